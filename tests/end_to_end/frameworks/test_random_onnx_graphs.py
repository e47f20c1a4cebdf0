"""Random graphs in the embedded engine: each answer is that of ONNX Runtime, or the graph is refused.

NEREID_GRAPH_SECONDS=3600 tries new graphs for an hour, and NEREID_GRAPH_SEED=7 the graph of one seed.
"""

import json
import os
import time
from collections import Counter

import numpy as np
import onnx
import onnx_oracle
import pytest
import random_conditions
import random_onnx_graphs
import tritonclient.http
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

import nereid_server
from onnx_engines import FLAGS

SECONDS = os.environ.get("NEREID_GRAPH_SECONDS")
# Without that variable, the graphs are the same in each run, as many as that many seconds allow.
USUAL_SEEDS = range(1, 2001)
USUAL_SECONDS = 40
SEED = os.environ.get("NEREID_GRAPH_SEED")
CONFIG = json.dumps({"backend": "onnxruntime", "max_batch_size": 0, "instance_group": [{"kind": "KIND_CPU", "count": 1}]})
# As many different failures are enough to read.
MOST_FAILURES = int(os.environ.get("NEREID_GRAPH_FAILURES", "5"))
# Dimensions are the files' own, without a batch.
EMBEDDED = [*FLAGS["tract"], "--backend-config=default-max-batch-size=0", "--model-control-mode=explicit"]
# How many graphs in which ONNX Runtime dies are few, as a share of all.
MOST_DEATHS = 0.05
PANIC = "the engine panicked"
# The graphs that get conditions.
CONDITIONAL_SEEDS = range(1, 201)


class Embedded:
    """The embedded engine behind a server's client."""

    def __init__(self, client):
        self.client = client
        self.outcomes: Counter[str] = Counter()

    def answers(self, model, feeds):
        """The answer to each of the inputs: the outputs by name, or the error. A model that is refused has no answers."""
        try:
            self.client.load_model("graph", config=CONFIG, files={"file:1/model.onnx": model.SerializeToString()})
        except InferenceServerException as error:
            self.outcomes["refused models"] += 1
            return [str(error) for _ in feeds]
        try:
            return [self._answer(model, feed) for feed in feeds]
        finally:
            self.client.unload_model("graph")

    def _answer(self, model, feed):
        inputs = []
        for name, value in feed.items():
            shape = list(value.shape) or [1]
            inputs.append(tritonclient.http.InferInput(name, shape, np_to_triton_dtype(value.dtype)))
            inputs[-1].set_data_from_numpy(value.reshape(shape))
        try:
            answer = self.client.infer("graph", inputs)
        except InferenceServerException as error:
            self.outcomes["refused requests"] += 1
            return str(error)
        self.outcomes["answers"] += 1
        return {output.name: answer.as_numpy(output.name) for output in model.graph.output}

    def failure(self, model, feeds):
        """What is wrong with the answers, in words, and the inputs; None if nothing is."""
        expected = [random_onnx_graphs.run(model, feed) for feed in feeds]
        for feed, right, answer in zip(feeds, expected, self.answers(model, feeds), strict=True):
            if not isinstance(answer, dict):
                why = answer if PANIC in answer else ""
            else:
                why = right and onnx_oracle.difference(model, feed, answer, right)
            if why:
                return why, feed
        return None

    def describe(self, graph, why, feed):
        """A failure, and the smallest graph that shows it."""

        def fails(part, given):
            return all(given[it.name].ndim for it in part.graph.input) and self.failure(part, [given])

        part, given = onnx_oracle.smallest(graph.model, feed, fails)
        small = random_onnx_graphs.Graph(graph.seed, part)
        why = (self.failure(part, [given]) or (why, feed))[0]
        inputs = "\n".join(
            f"{name} {list(value.shape)} = {np.array2string(value.ravel(), threshold=40)}" for name, value in given.items()
        )
        return f"{why}\n{small}\n{inputs}"


@pytest.fixture(scope="module")
def embedded(tmp_path_factory):
    """The embedded engine of a server."""
    with nereid_server.running(tmp_path_factory.mktemp("graphs"), *EMBEDDED) as server:
        with tritonclient.http.InferenceServerClient(server.url, network_timeout=120, connection_timeout=120) as client:
            yield Embedded(client)


def graphs(usual):
    """The graphs of the usual seeds, new ones for NEREID_GRAPH_SECONDS, or the one of NEREID_GRAPH_SEED."""
    seeds, seconds = usual, USUAL_SECONDS
    if SEED:
        seeds = [int(SEED)]
    elif SECONDS:
        seeds, seconds = range(time.time_ns() // 1000 % 2**40, 2**62), float(SECONDS)
    print(f"seeds from {seeds[0]}; NEREID_GRAPH_SEED=... runs one of them again")
    end = time.monotonic() + seconds
    for seed in seeds:
        if time.monotonic() > end:
            return
        graph = random_onnx_graphs.make(seed)
        if graph:
            yield graph


def test_each_answer_is_that_of_onnx_runtime_or_refused(embedded):
    embedded.outcomes.clear()
    failures, tried, deaths = [], 0, random_onnx_graphs.ONNX_RUNTIME.deaths
    for graph in graphs(USUAL_SEEDS):
        tried += 1
        found = embedded.failure(graph.model, graph.feeds)
        if found:
            failures.append(embedded.describe(graph, *found))
        if len(failures) >= MOST_FAILURES:
            break
    deaths = random_onnx_graphs.ONNX_RUNTIME.deaths - deaths
    print(f"{tried} graphs: {dict(embedded.outcomes)}; ONNX Runtime died {deaths} times")
    assert not failures, "\n\n".join(failures)
    assert SEED or deaths <= MOST_DEATHS * tried
    # Most graphs are served, or the test would show little.
    assert SEED or embedded.outcomes["answers"] > tried


def test_conditions_choose_a_graph_that_answers_as_on_onnx_runtime(embedded):
    embedded.outcomes.clear()
    chosen: Counter[int] = Counter()
    tried = 0
    for graph in graphs(CONDITIONAL_SEEDS):
        tried += 1
        choice = random_conditions.make(graph)
        if not choice:
            continue
        for feed, answer in zip(graph.feeds, embedded.answers(choice.model, graph.feeds), strict=True):
            described = f"seed {graph.seed}\n{onnx.printer.to_text(choice.model)}\n{feed}"
            assert PANIC not in answer, f"{answer}\n{described}"
            plain = choice.graph(feed)
            expected = plain and random_onnx_graphs.run(plain, feed)
            if expected and isinstance(answer, dict):
                assert not onnx_oracle.difference(plain, feed, answer, expected), described
                chosen[list(choice.graphs.values()).index(plain)] += 1
    print(f"{tried} graphs: {dict(embedded.outcomes)}; chosen: {dict(chosen)}")
    # Each of the three is chosen, or the test would show little.
    assert SEED or (sum(chosen.values()) > tried and min(chosen[place] for place in range(3)) > tried / 20)

"""Damaged random graphs in the embedded engine: answered or refused without a panic of the engine's library."""

import numpy as np
import random_onnx_graphs
from test_random_onnx_graphs import MOST_FAILURES, PANIC, SEED, USUAL_SEEDS, embedded, graphs  # noqa: F401 - a fixture


def test_a_damaged_graph_is_refused_without_a_panic(embedded):
    embedded.outcomes.clear()
    failures, tried = [], 0
    for graph in graphs(USUAL_SEEDS):
        damaged = random_onnx_graphs.damage(graph.model, np.random.default_rng(graph.seed))
        if damaged is None:
            continue
        tried += 1
        # ONNX Runtime takes some that ONNX does not allow, so that only panics show a defect.
        for answer in embedded.answers(damaged, graph.feeds[:1]):
            if PANIC in str(answer):
                failures.append(f"{answer}\n{random_onnx_graphs.Graph(graph.seed, damaged)}")
        if len(failures) >= MOST_FAILURES:
            break
    print(f"{tried} graphs: {dict(embedded.outcomes)}")
    assert not failures, "\n\n".join(failures)
    assert SEED or embedded.outcomes["refused models"] + embedded.outcomes["refused requests"] > tried / 10

"""Many models well: models that are loaded for their requests, batches and instances that follow the load, conditional ensembles,
releases, forests of trees. Prints tables in Markdown, and draws charts.

`cargo xtask bench operations` builds what this needs and starts it. Clients compute on the same processors as the server.
"""

import argparse
import itertools
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "end_to_end/support"))
sys.path.insert(0, str(Path(__file__).parents[1] / "end_to_end/scheduling"))
sys.path.insert(0, str(Path(__file__).parents[2] / "docs/pictures"))

import lightgbm
import numpy as np
import onnx
import onnxmltools
import onnxruntime
import plots
from onnx import TensorProto, helper
from onnxmltools.convert.common.data_types import FloatTensorType
from test_conditional_ensembles import CHAIN, page_of, write_example

import nereid_server
import usage
from http_requests import tensor
from model_files import OnnxModel, config, write_identity, write_model
from places import ROOT
from processes import tree
from scrapes import Scrape
from usage import cpu_s

PICTURES = ROOT / "docs/pictures"
DOUBLE = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        arrays = [pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array * 2)]) for array in arrays]
"""
FEATURES = 30


def table(columns, rows):
    """Prints a table; the first column is text."""
    print(f"\n| {' | '.join(columns)} |\n|---{'|--:' * (len(columns) - 1)}|")
    for row in rows:
        print(f"| {' | '.join(map(str, row))} |", flush=True)


def quantile(values, share):
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def memory_mib(pid):
    """The memory of a process and its descendants: what they share counts once for all."""
    total = 0
    for each in tree(pid):
        try:
            text = Path(f"/proc/{each}/smaps_rollup").read_text()
        except OSError:
            continue
        total += sum(map(int, re.findall(r"^Pss:\s+(\d+)", text, re.MULTILINE)))
    return total / 1024


class Clients:
    """Clients in a closed loop: each sends its next request when it has an answer. Their number may change."""

    def __init__(self, server, requests):
        """`requests` yields names of models and bodies, for all clients together."""
        self._server, self._requests, self._lock = server, requests, threading.Lock()
        self._wanted, self._threads = 0, []
        #: When each request began, how long it took, and its status.
        self.answers = []

    def _run(self, number):
        connection = HTTPConnection("127.0.0.1", self._server.port, timeout=120)
        while number < self._wanted:
            with self._lock:
                model, body = next(self._requests)
            began = time.monotonic()
            connection.request("POST", f"/v2/models/{model}/infer", body)
            answer = connection.getresponse()
            answer.read()
            self.answers.append((began, time.monotonic() - began, answer.status))
        connection.close()

    def set(self, count):
        """Changes the number of clients."""
        self._wanted = count
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        for number in range(len(self._threads), count):
            self._threads.append(threading.Thread(target=self._run, args=(number,)))
            self._threads[-1].start()

    def measure(self, count, seconds):
        """The answers of some seconds with a number of clients; no request may fail."""
        self.set(count)
        since = len(self.answers)
        time.sleep(seconds)
        found = self.answers[since:]
        failed = [status for _, _, status in found if status != 200]
        assert found and not failed, failed[:5]
        return found

    def stop(self):
        self._wanted = 0
        for thread in self._threads:
            thread.join()


@contextmanager
def clients(server, requests):
    made = Clients(server, requests)
    try:
        yield made
    finally:
        made.stop()


def same(model, *inputs):
    """The same request for ever."""
    return itertools.repeat((model, json.dumps({"inputs": list(inputs)})))


def forest(trees, leaves, features):
    """A classifier of LightGBM."""
    random_numbers = np.random.default_rng(1)
    rows = random_numbers.normal(size=(20_000, features)).astype("float32")
    labels = (rows[:, 0] * rows[:, 1] + rows[:, 2] ** 2 + 0.3 * random_numbers.normal(size=20_000)) > 1
    settings = {"objective": "binary", "num_leaves": leaves, "verbose": -1, "num_threads": 1}
    return lightgbm.train(settings, lightgbm.Dataset(rows, labels), trees)


def write_many(repository, count):
    """Models of three kinds: two of three are networks of 4 MiB, the others forests and, one of eight, models in Python. Returns a body
    for each."""
    booster = forest(100, 31, 8)
    bodies = {}
    for number in range(count):
        name = f"model_{number}"
        if number % 8 == 0:
            write_model(repository, name, config(name, "python", [("INPUT0", "FP32", [-1])], [("OUTPUT0", "FP32", [-1])]))
            (repository / name / "1" / "model.py").write_text(DOUBLE)
            bodies[name] = tensor("INPUT0", "FP32", [4], [1, 2, 3, 4])
        elif number % 8 < 3:
            write_model(repository, name, None)
            booster.save_model(repository / name / "1" / "lightgbm.txt")
            bodies[name] = tensor("input__0", "FP32", [1, 8], [0.5] * 8)
        else:
            weights = np.random.default_rng(number).normal(size=(1024, 1024)).astype("float32")
            nodes = [helper.make_node("MatMul", ["X", "W"], ["H"]), helper.make_node("Relu", ["H"], ["Y"])]
            inputs, outputs = ([(edge, TensorProto.FLOAT, ["N", 1024])] for edge in "XY")
            OnnxModel(name, nodes, inputs, outputs, {"W": weights}, 8).write(repository)
            bodies[name] = tensor("X", "FP32", [1, 1024], [0.5] * 1024)
    return {name: json.dumps({"inputs": [body]}) for name, body in bodies.items()}


def zipf(bodies, seed):
    """Requests whose models follow Zipf's law."""
    names = sorted(bodies)
    generator = random.Random(seed)
    generator.shuffle(names)
    weights = [1 / (rank + 1) for rank in range(len(names))]
    while True:
        for name in generator.choices(names, weights, k=1000):
            yield name, bodies[name]


def loads(server):
    """How many versions were loaded so far."""
    return server.log.count("successfully loaded '")


def many(folder, seconds, models):
    """All models in memory, and on demand with a part of it."""
    repository = folder / "models"
    bodies = write_many(repository, models)
    python = f"--backend-config=python,python={sys.executable}"
    whole = 0
    rows, lines = [], []
    for name, share in (("all at start", None), ("on demand, a quarter of the memory", 4), ("on demand, a tenth", 10)):
        flags = [python]
        if share:
            flags += ["--model-control-mode=on-demand", f"--model-memory-budget={whole // share}"]
            flags.append("--model-max-evictions-per-minute=100000")
        else:
            # Memory of processes is measured under a budget.
            flags.append(f"--model-memory-budget={1 << 40}")
        began = time.monotonic()
        with nereid_server.running(repository, *flags, limit_s=600) as server:
            ready = time.monotonic() - began
            if not whole:
                sizes = Scrape(server).named("nereid_model_memory_bytes")
                whole = int(sum(value for labels, value in sizes.items() if ("kind", "budget") in labels))
            with clients(server, zipf(bodies, 7)) as asking:
                asking.measure(8, seconds / 3)
                before = loads(server)
                answers = asking.measure(8, seconds)
            took = [1000 * each for _, each, _ in answers]
            loaded = loads(server) - before
            rows.append(
                (
                    name,
                    f"{ready:.1f} s",
                    f"{memory_mib(server.pid):,.0f} MiB",
                    f"{len(took) / seconds:,.0f}",
                    f"{100 * loaded / len(took):.2f} %",
                    *(f"{quantile(took, part):.1f} ms" for part in (0.5, 0.9, 0.99)),
                )
            )
            shares = [0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999]
            lines.append((name, [(100 * part, quantile(took, part)) for part in shares]))
    columns = ("", "ready after", "memory", "requests/s", "requests that loaded", "p50", "p90", "p99")
    table((f"{models} models, Zipf's law, 8 clients", *columns[1:]), rows)
    panel = {"x": "% of requests", "y": "latency in ms", "log_y": True, "series": lines}
    plots.write(PICTURES / "many-models", {"title": "Latency of requests to many models", "panels": [panel]})


def eviction():
    """Waits for loads in the simulation of budgets, if the least recently used model leaves and if the least valuable one does."""
    command = ["cargo", "test", "--locked", "--package", "nereid-residency", "--lib", "requests_wait_less", "--", "--nocapture"]
    printed = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    found = re.findall(r"^(.+): LRU (\d+) s, GDSF (\d+) s", printed, re.MULTILINE)
    assert found, printed
    names = [name for name, _, _ in found]
    recent, valuable = ([int(row[column]) / 3600 for row in found] for column in (1, 2))
    rows = [(name, f"{one:.1f} h", f"{two:.1f} h") for name, one, two in zip(names, recent, valuable, strict=True)]
    table(("waits for loads, simulated", "least recently used", "Nereid"), rows)
    series = [("least recently used", list(zip(names, recent, strict=True))), ("Nereid", list(zip(names, valuable, strict=True)))]
    panel = {"x": "demand", "y": "hours that requests wait for loads", "bars": True, "series": series}
    plots.write(PICTURES / "eviction", {"title": "Waits for loads by the rule that chooses what leaves", "panels": [panel]})


PHASES = (1, 32, 4, 64, 1)


def batching(folder, seconds):
    """A load that changes, on an instance that takes 10 ms whatever the size of a batch."""
    rows, lines = [], []
    settings = {
        "no delay": "dynamic_batching { }",
        "delay of 5 ms": "dynamic_batching { max_queue_delay_microseconds: 5000 }",
        "delay of 40 ms": "dynamic_batching { max_queue_delay_microseconds: 40000 }",
        "objective of 50 ms": 'dynamic_batching { } parameters { key: "latency_objective_microseconds" value { string_value: "50000" } }',
    }
    for number, (name, text) in enumerate(settings.items()):
        repository = folder / f"models_{number}"
        write_model(repository, "slow", slow(text, 32))
        with nereid_server.running(repository) as server, clients(server, same("slow", values([1, 1]))) as asking:
            found = []
            for count in PHASES:
                asking.set(count)
                time.sleep(1)
                took = [1000 * each for _, each, _ in asking.measure(count, seconds)]
                found.append((len(took) / seconds, quantile(took, 0.99)))
            rows.append((name, *(f"{rate:,.0f} at {late:.0f} ms" for rate, late in found)))
            lines.append((name, found))
    table(("requests/s at a p99", *(f"{count} clients" if count > 1 else "1 client" for count in PHASES)), rows)
    groups = [f"{count}" for count in PHASES]
    panels = [
        {
            "x": "clients, one phase after another",
            "y": unit,
            "bars": True,
            "series": [(name, [(group, each[at]) for group, each in zip(groups, found, strict=True)]) for name, found in lines],
        }
        for at, unit in enumerate(("requests/s", "p99 in ms"))
    ]
    plots.write(
        PICTURES / "adaptive-batching", {"title": "A changing load with fixed delays and with an objective", "panels": panels}
    )


def slow(extra, max_batch_size=0):
    """A model that takes 10 ms for an execution."""
    delay = 'parameters { key: "execute_delay_ms" value { string_value: "10" } }'
    tensors = ([("INPUT0", "FP32", (1,))], [("OUTPUT0", "FP32", (1,))])
    return config("slow", "identity", *tensors, max_batch_size, f"{extra} {delay}")


def values(shape):
    return tensor("INPUT0", "FP32", shape, [1.5] * int(np.prod(shape)))


def instances(folder, seconds):
    """A load that comes and goes, on instances that take 10 ms each."""
    rows = []
    most = max(2, os.cpu_count() or 2)
    limits = f'parameters {{ key: "instances_max" value {{ string_value: "{most}" }} }}'
    kinds = (("1 instance", 1, ""), (f"{most} instances", most, ""), (f"1 to {most} instances", 1, limits))
    for number, (name, count, extra) in enumerate(kinds):
        repository = folder / f"models_{number}"
        write_model(repository, "slow", slow(extra).replace("count: 1", f"count: {count}"))
        with nereid_server.running(repository) as server, clients(server, same("slow", values([1]))) as asking:
            found = []
            for clients_now in (1, 8, 1):
                asking.set(clients_now)
                time.sleep(1)
                took = [1000 * each for _, each, _ in asking.measure(clients_now, seconds)]
                found.append(f"{len(took) / seconds:,.0f} at {quantile(took, 0.99):.0f} ms")
            rows.append((name, *found))
    table(("requests/s at a p99", "1 client", "8 clients", "1 client"), rows)


def wrk(server, folder, model, body, connections, seconds):
    """Requests a second, and microseconds of the server's processor time for each."""
    path = folder / "body"
    path.write_text(body)
    script = ROOT / "xtask/src/bench/infer.lua"
    url = f"http://127.0.0.1:{server.port}/v2/models/{model}/infer"
    before = cpu_s(server.pid)
    seen = usage.wrk(connections, seconds, script, url, path, str(len(body)))
    used = cpu_s(server.pid) - before
    return seen["requests"] / seen["duration_us"] * 1e6, used * 1e6 / seen["requests"]


def median_of(pairs, measure, kinds):
    """The medians of both figures of each kind, measured in turn."""
    found: dict[str, list] = {kind: [] for kind in kinds}
    for _ in range(pairs):
        for kind in kinds:
            found[kind].append(measure(kind))
    return {kind: [quantile(column, 0.5) for column in zip(*each, strict=True)] for kind, each in found.items()}


def ensembles(folder, seconds):
    """The example of docs/ensembles.md beside the same chain as a model in Python."""
    repository = folder / "models"
    write_example(repository)
    write_model(repository, "chain", config("chain", "python", [("page", "UINT8", [4, -1])], [("text", "BYTES", [1])]))
    (repository / "chain" / "1" / "model.py").write_text(CHAIN)
    rows = []
    with nereid_server.running(repository, f"--backend-config=python,python={sys.executable}") as server:
        for name, sizes in (("nothing found: early exit", []), ("2 crops", [1, 4]), ("16 crops", [16] * 16), ("a fallback", [2])):
            page = page_of(sizes)
            body = json.dumps({"inputs": [tensor("page", "UINT8", page.shape, page.ravel().tolist())]})
            found = median_of(3, lambda model, body=body: wrk(server, folder, model, body, 8, seconds), ("read_marks", "chain"))
            (rate, cpu), (rate_python, cpu_python) = found["read_marks"], found["chain"]
            rows.append(
                (
                    name,
                    f"{rate:,.0f}",
                    f"{rate_python:,.0f}",
                    f"{rate / rate_python:.1f}",
                    f"{cpu:,.0f} us",
                    f"{cpu_python:,.0f} us",
                )
            )
    table(("8 clients", "requests/s: ensemble", "model in Python", "ratio", "CPU per request: ensemble", "model in Python"), rows)


def releases(folder, seconds):
    """What a release costs a request."""
    repository = folder / "models"
    kinds = {
        "one version": {},
        "95 % and 5 %": {"release_versions": "1=95, 2=5"},
        "a header decides": {"release_versions": "1=95, 2=5", "release_sticky_header": "x-user"},
        "copies of 10 %": {"release_versions": "1=100, 2=0", "release_shadow": "2=10"},
    }
    for name, parameters in kinds.items():
        model = name.replace(" ", "_").replace("%", "percent")
        write_identity(repository, model, ["FP32"], **parameters)
        if parameters:
            (repository / model / "2").mkdir()
            path = repository / model / "config.pbtxt"
            path.write_text(path.read_text() + "version_policy { latest { num_versions: 2 } }\n")
    with nereid_server.running(repository) as server:
        body = json.dumps({"inputs": [values([16])]})
        names = {name: name.replace(" ", "_").replace("%", "percent") for name in kinds}
        found = median_of(5, lambda name: wrk(server, folder, names[name], body, 8, seconds), kinds)
    plain = found["one version"][1]
    table(
        ("8 clients", "requests/s", "CPU per request", "of one version"),
        [(name, f"{rate:,.0f}", f"{cpu:.1f} us", f"{cpu / plain:.2f}") for name, (rate, cpu) in found.items()],
    )


def forests(folder, seconds, bench):
    """Rows a second of a forest without a server: here, in ONNX Runtime and in LightGBM, each in one thread."""
    booster = forest(300, 127, FEATURES)
    path = folder / "lightgbm.txt"
    booster.save_model(path)
    converted = onnxmltools.convert_lightgbm(booster, initial_types=[("x", FloatTensorType([None, FEATURES]))], zipmap=False)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    # It warns of each result for more than one row.
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        onnx.ModelProto.SerializeToString(converted), options, providers=["CPUExecutionProvider"]
    )
    sizes = (1, 8, 64, 4096)

    def best(run):
        run()
        least, until = float("inf"), time.monotonic() + seconds
        while time.monotonic() < until:
            began = time.perf_counter()
            run()
            least = min(least, time.perf_counter() - began)
        return least * 1e6

    command = ["taskset", "-c", "1", bench, path]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    units = {"ns": 1e-3, "µs": 1, "ms": 1e3, "s": 1e6}
    own = {
        int(rows): float(time_) * units[unit]
        for rows, time_, unit in re.findall(r"(\d+) rows:\s+([\d.]+)(ns|µs|ms|s)\s+a batch", printed)
    }
    rows = []
    lines: dict[str, list] = {"Nereid": [], "ONNX Runtime": [], "LightGBM": []}
    for size in sizes:
        given = np.random.default_rng(2).normal(size=(size, FEATURES)).astype("float32")
        runtime = best(lambda given=given: session.run(None, {"x": given}))
        library = best(lambda given=given: booster.predict(given, num_threads=1))
        rows.append((size, *(f"{each:,.1f} us" for each in (own[size], runtime, library)), f"{runtime / own[size]:.1f}"))
        for name, each in zip(lines, (own[size], runtime, library), strict=True):
            lines[name].append((size, size / each * 1e6))
    versions = f"ONNX Runtime {onnxruntime.__version__}", f"LightGBM {lightgbm.__version__}"
    table(("rows", "Nereid", *versions, "Nereid's rows/s to ONNX Runtime's"), rows)
    panel = {"x": "rows of a batch", "y": "rows/s", "log_x": 2, "series": list(lines.items())}
    plots.write(PICTURES / "forests", {"title": "Rows a second of a forest of 300 trees", "panels": [panel]})


def tuning(folder):
    """What `nereid tune` finds for the example, and how long it takes."""
    repository = folder / "models"
    repository.mkdir()
    shutil.copytree(ROOT / "examples/model_repository/digits", repository / "digits")
    began = time.monotonic()
    command = [
        nereid_server.binary(),
        "tune",
        f"--repository={repository}",
        "--seconds=60",
        f"--report={folder / 'page.html'}",
        "digits",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    print(f"\nnereid tune, {time.monotonic() - began:.0f} s:\n{done.stdout[-2000:]}{done.stderr[-500:] if done.returncode else ''}")


def main():
    """Runs the named parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", required=True)
    parser.add_argument("--seconds", type=int, required=True)
    parser.add_argument("--models", type=int, required=True)
    parser.add_argument("--forest-bench", required=True)
    given = parser.parse_args()
    assert shutil.which("wrk"), "wrk is missing: apt-get install wrk"
    parts = {
        "many": lambda folder: many(folder, 3 * given.seconds, given.models),
        "eviction": lambda _: eviction(),
        "batching": lambda folder: batching(folder, given.seconds),
        "instances": lambda folder: instances(folder, given.seconds),
        "ensembles": lambda folder: ensembles(folder, given.seconds),
        "releases": lambda folder: releases(folder, given.seconds),
        "forests": lambda folder: forests(folder, given.seconds, given.forest_bench),
        "tuning": tuning,
    }
    for name in given.parts.split(","):
        with ExitStack() as cleaned:
            parts[name](Path(cleaned.enter_context(tempfile.TemporaryDirectory())))


if __name__ == "__main__":
    main()

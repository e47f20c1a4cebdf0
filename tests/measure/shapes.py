"""Loads of other shapes than one model over a few connections: many models in turn, idle connections, live sequences, one request at a time,
ensembles, and a model of a gigabyte. Prints a table in Markdown.

`cargo xtask bench shapes` builds what this needs and starts it. Clients compute on the same processors as the server.
"""

import argparse
import json
import os
import re
import resource
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "end_to_end/support"))

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

import nereid_server
import onnx_engines
import usage
from http_requests import request, tensor
from model_files import OnnxModel, config, write_identity, write_model
from usage import cpu_s
from waiting import eventually

SCRIPT = """
local requests, at, last = {}, 0, 0
function init(args)
  wrk.method = "POST"
  wrk.headers["Content-Type"] = "application/json"
  for line in io.lines(args[1]) do
    local path, body = line:match("^(%S+) (.*)$")
    requests[#requests + 1] = wrk.format(nil, path, nil, body)
  end
  last = #requests
end
function request()
  at = at % last + 1
  return requests[at]
end
function done(summary, latency)
  local errors = summary.errors
  print(string.format("seen requests=%d duration_us=%d p50_us=%d connect=%d read=%d write=%d status=%d timeout=%d",
    summary.requests, summary.duration, latency:percentile(50),
    errors.connect, errors.read, errors.write, errors.status, errors.timeout))
end
"""


def status(pid, key):
    """A line of the status of a process, in bytes."""
    text = Path(f"/proc/{pid}/status").read_text()
    (found,) = re.findall(rf"^{key}:\s+(\d+)", text, re.MULTILINE)
    return 1024 * int(found)


def median(values):
    return sorted(values)[len(values) // 2]


class Load:
    """Requests that wrk sends in turn."""

    def __init__(self, folder, name, requests):
        """`requests` are pairs of a model and the inputs, or a whole body."""
        self._script = folder / "shapes.lua"
        self._script.write_text(SCRIPT)
        self._lines = folder / f"{name}.txt"
        with self._lines.open("w") as lines:
            for model, given in requests:
                body = given if isinstance(given, dict) else {"inputs": given}
                lines.write(f"/v2/models/{model}/infer {json.dumps(body, separators=(',', ':'))}\n")

    def run(self, server, connections, seconds):
        """Requests a second, microseconds of the server's processor time for each, the median latency in microseconds, and their number."""
        url = f"http://127.0.0.1:{server.port}/"
        before = cpu_s(server.pid)
        seen = usage.wrk(connections, seconds, self._script, url, self._lines)
        used = cpu_s(server.pid) - before
        count = seen["requests"]
        return count / seen["duration_us"] * 1e6, used * 1e6 / count, seen["p50_us"], count


class Compared:
    """Medians of loads that are measured in turn."""

    def __init__(self, pairs, *runs):
        for run in runs:
            run()
        found = [[run() for run in runs] for _ in range(pairs)]
        self.medians = [[median(column) for column in zip(*of_run, strict=True)] for of_run in zip(*found, strict=True)]
        first = [each[0] for each in found]
        #: The median of the last run's processor time and rate to those of the first, within each turn.
        self.cpu = median([turn[-1][1] / one[1] for turn, one in zip(found, first, strict=True)])
        self.rate = median([turn[-1][0] / one[0] for turn, one in zip(found, first, strict=True)])


def values(count, name="INPUT0"):
    return [tensor(name, "FP32", [count], [float(at) for at in range(count)])]


def models(folder, seconds, pairs):
    """64 models in turn beside one of them."""
    for number in range(64):
        write_identity(folder / "models", f"model_{number}", ["FP32"])
    with nereid_server.running(folder / "models") as server:
        one = Load(folder, "one", [("model_0", values(16))])
        all_ = Load(folder, "all", [(f"model_{number}", values(16)) for number in range(64)])
        found = Compared(pairs, lambda: one.run(server, 8, seconds), lambda: all_.run(server, 8, seconds))
    (_, cpu_one, *_), (_, cpu_all, *_) = found.medians
    yield "64 models in turn, to one model", f"{found.cpu:.2f}", "1.10", f"{cpu_all:.1f} and {cpu_one:.1f} us of CPU per request"


@contextmanager
def open_connections(server, count):
    """Connections that have sent one request each and then nothing."""
    request = b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n"
    opened = []
    try:
        for _ in range(count):
            connection = socket.create_connection(("127.0.0.1", server.port))
            opened.append(connection)
            connection.sendall(request)
            assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        yield
    finally:
        for connection in opened:
            connection.close()


def connections(folder, seconds, pairs):
    """100 busy connections alone, and beside 9,900 idle ones."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    write_identity(folder / "models", "same", ["FP32"])
    load = Load(folder, "same", [("same", values(16))])
    with nereid_server.running(folder / "models") as server:
        load.run(server, 100, seconds)
        rates, idle_bytes = [], []
        for _ in range(pairs):
            alone = load.run(server, 100, seconds)
            before = status(server.pid, "RssAnon")
            with open_connections(server, 9_900):
                idle_bytes.append((status(server.pid, "RssAnon") - before) / 9_900)
                rates.append((load.run(server, 100, seconds), alone))
            # The server has seen them close.
            assert eventually(lambda: len(os.listdir(f"/proc/{server.pid}/fd")) < 1_000)
    ratio = median([beside[1] / alone[1] for beside, alone in rates])
    yield "100 busy of 10,000 connections, to 100 alone", f"{ratio:.2f}", "1.05", "CPU per request"
    yield "an idle connection", f"{max(idle_bytes):,.0f} bytes", "4,096", "memory of the server's process, the highest of all turns"


SEQUENCES = """
sequence_batching {
  max_sequence_idle_microseconds: 3600000000
  oldest { max_candidate_sequences: 200000 }
}
"""


def in_sequence(number, start=False, end=False):
    return {"inputs": values(1), "parameters": {"sequence_id": number, "sequence_start": start, "sequence_end": end}}


def begin(server, numbers):
    """Begins sequences. Not with wrk: at its end it leaves requests unanswered, which cancels them."""

    def some(part):
        connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
        for number in part:
            connection.request("POST", "/v2/models/kept/infer", json.dumps(in_sequence(number, start=True)))
            answer = connection.getresponse()
            assert answer.read() and answer.status == 200, answer.status
        connection.close()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(some, [numbers[at::4] for at in range(4)]))


def sequences(folder, seconds, pairs):
    """Requests to one of 100,000 live sequences beside requests to one of 100, and a million that begin and end."""
    text = config("kept", "identity", [("INPUT0", "FP32", [-1])], [("OUTPUT0", "FP32", [-1])], 0, SEQUENCES)
    write_model(folder / "models", "kept", text)

    def live(count, first, **how):
        return Load(folder, f"live-{count}", [("kept", in_sequence(first + at, **how)) for at in range(count)])

    few, many, first = 100, 100_000, 1_000_000
    with nereid_server.running(folder / "models", nereid_server.OPEN_SEQUENCES) as server:
        begin(server, range(1, few + 1))
        before = status(server.pid, "RssAnon")
        begin(server, range(first, first + many))
        each = (status(server.pid, "RssAnon") - before) / many
        of_few, of_many = live(few, 1), live(many, first)
        found = Compared(pairs, lambda: of_few.run(server, 8, seconds), lambda: of_many.run(server, 8, seconds))
        server.kill()
    yield "a request to one of 100,000 live sequences, to one of 100", f"{found.cpu:.2f}", "1.20", "CPU per request"
    yield "a live sequence", f"{each:,.0f} bytes", "1,024", "memory of the server's process"
    with nereid_server.running(folder / "models") as server:
        short = live(100_000, 1, start=True, end=True)
        short.run(server, 8, seconds)
        before, count = status(server.pid, "RssAnon"), 0
        while count < 1_000_000:
            count += short.run(server, 8, 10)[3]
        grown = status(server.pid, "RssAnon") - before
    yield "a million sequences that begin and end", f"{grown / 2**20:.1f} MiB", "0", "growth of the server's process"


class Echo(NamedTuple):
    """A bare server."""

    port: int
    pid: int


def single(folder, seconds, pairs, echo):
    """One request at a time: a small ONNX model beside a bare server that echoes the body."""
    nodes = [helper.make_node("Add", ["X", "X"], ["Y"])]
    OnnxModel("add", nodes, [("X", TensorProto.FLOAT, ["N", 16])], [("Y", TensorProto.FLOAT, ["N", 16])], {}, 8).write(
        folder / "models"
    )
    write_identity(folder / "models", "same", ["FP32"])
    given = {"X": [tensor("X", "FP32", [1, 16], [1.0] * 16)], "INPUT0": values(16)}
    process = subprocess.Popen([echo], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert process.stdout is not None
        (port,) = re.findall(r"Started HTTPService at \S+:(\d+)", process.stdout.readline())
        bare = Echo(int(port), process.pid)
        for name, flags in onnx_engines.FLAGS.items():
            with nereid_server.running(folder / "models", *flags) as server:
                onnx_, same = Load(folder, "onnx", [("add", given["X"])]), Load(folder, "identity", [("same", given["INPUT0"])])
                found = Compared(
                    pairs,
                    lambda load=onnx_: load.run(bare, 1, seconds),
                    lambda load=same, server=server: load.run(server, 1, seconds),
                    lambda load=onnx_, server=server: load.run(server, 1, seconds),
                )
                before = cpu_s(server.pid)
                time.sleep(seconds)
                idle = 100 * (cpu_s(server.pid) - before) / seconds
            echo_us, same_us, onnx_us = (each[2] for each in found.medians)
            engine = {"tract": "embedded engine", "ort": "ONNX Runtime"}[name]
            note = f"p50: {onnx_us}, {same_us} (identity) and {echo_us} us; at rest {idle:.1f} % of a core"
            yield f"one request at a time, {engine}, to a bare echo", f"{onnx_us / echo_us:.2f}", "1.30", note
    finally:
        process.kill()
        process.wait()


def ensembles(folder, seconds, pairs):
    """Three identity steps beside one."""
    repository = folder / "models"
    for number in range(3):
        write_identity(repository, f"step_{number}", ["FP32"])
    edges = ["INPUT0", "first", "second", "OUTPUT0"]
    steps = ", ".join(
        f'{{ model_name: "step_{number}" model_version: -1 input_map {{ key: "INPUT0" value: "{edges[number]}" }} '
        f'output_map {{ key: "OUTPUT0" value: "{edges[number + 1]}" }} }}'
        for number in range(3)
    )
    text = config(
        "three", "", [("INPUT0", "FP32", [-1])], [("OUTPUT0", "FP32", [-1])], 0, f"ensemble_scheduling {{ step [ {steps} ] }}"
    )
    text = re.sub(r"(?m)^(backend|instance_group).*\n", "", text)
    write_model(repository, "three", f'platform: "ensemble"\n{text}')
    with nereid_server.running(repository) as server:
        one, three = (Load(folder, name, [(name, values(16))]) for name in ("step_0", "three"))
        found = Compared(pairs, lambda: one.run(server, 8, seconds), lambda: three.run(server, 8, seconds))
    (_, cpu_one, *_), (_, cpu_three, *_) = found.medians
    note = f"{cpu_three:.1f} us of CPU per request, one model over HTTP {cpu_one:.1f}"
    yield "each further step of an ensemble", f"{(cpu_three - cpu_one) / 2:.1f} us", "", note


SESSION = """
import re, sys, time
import onnxruntime

options = onnxruntime.SessionOptions()
options.intra_op_num_threads = options.inter_op_num_threads = 1
began = time.monotonic()
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
took = time.monotonic() - began
text = open("/proc/self/status").read()
print(took, *(int(re.search(rf"^{key}:\\s+(\\d+)", text, re.MULTILINE)[1]) for key in ("VmHWM", "RssAnon")))
"""


def gigabyte(folder, seconds, pairs):
    """A model with a gigabyte of weights: its load, beside ONNX Runtime's own."""
    del seconds
    side, count = 4096, 16
    weights = [np.random.default_rng(number).normal(size=(side, side)).astype("float32") for number in range(count)]
    nodes = [helper.make_node("MatMul", [f"x{at}", f"w{at}"], [f"x{at + 1}"]) for at in range(count)]
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", side]) for name in ("x0", f"x{count}")]
    kept = [onnx.numpy_helper.from_array(each, f"w{at}") for at, each in enumerate(weights)]
    model = helper.make_model(
        helper.make_graph(nodes, "large", tensors[:1], tensors[1:], kept), opset_imports=[helper.make_opsetid("", 13)], ir_version=8
    )
    path = folder / "models/large/1/model.onnx"
    path.parent.mkdir(parents=True)
    # Of an ONNX model there are two instances otherwise.
    (path.parents[1] / "config.pbtxt").write_text("instance_group { count: 1 kind: KIND_CPU }")
    onnx.save_model(model, path, save_as_external_data=True, location="weights")
    del weights, kept, model
    own, nereid = [], []
    for _ in range(pairs):
        printed = subprocess.run([sys.executable, "-c", SESSION, path], check=True, capture_output=True, text=True).stdout.split()
        own.append((float(printed[0]), 1024 * int(printed[1]), 1024 * int(printed[2])))
        with nereid_server.running(folder / "models", *onnx_engines.FLAGS["ort"], "--model-control-mode=explicit") as server:
            began = time.monotonic()
            request_load(server, "large")
            nereid.append((time.monotonic() - began, status(server.pid, "VmHWM"), status(server.pid, "RssAnon")))
    time_ratio = median([ours[0] / theirs[0] for ours, theirs in zip(nereid, own, strict=True)])
    peak_ratio = median([ours[1] / theirs[1] for ours, theirs in zip(nereid, own, strict=True)])
    version = onnxruntime.__version__
    yield (
        f"a model of 1 GiB, to ONNX Runtime {version}",
        f"{time_ratio:.2f}",
        "1.05",
        f"time to load: {median([each[0] for each in nereid]):.2f} s",
    )
    yield "the same", f"{peak_ratio:.2f}", "1.05", f"highest memory: {median([each[1] for each in nereid]) / 2**20:,.0f} MiB"


def request_load(server, name):
    answer = request(server, "POST", f"/v2/repository/models/{name}/load")
    assert answer.status == 200, answer


def main():
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", required=True)
    parser.add_argument("--seconds", type=int, required=True)
    parser.add_argument("--pairs", type=int, required=True)
    parser.add_argument("--echo", required=True)
    given = parser.parse_args()
    parts = {
        "models": models,
        "connections": connections,
        "sequences": sequences,
        "single": lambda folder, seconds, pairs: single(folder, seconds, pairs, given.echo),
        "ensembles": ensembles,
        "gigabyte": gigabyte,
    }
    print("\n| load | measured | target | |\n|---|--:|--:|---|")
    for name in given.parts.split(","):
        with ExitStack() as cleaned:
            folder = Path(cleaned.enter_context(tempfile.TemporaryDirectory()))
            for row in parts[name](folder, given.seconds, given.pairs):
                print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()

"""A fleet of servers behind Envoy, Nereid within Ray Serve, and the same models in plain Python on Ray Serve: requests a second,
processor time of a request in all processes but the clients', and latencies, at several numbers of clients.

`cargo xtask bench ray` builds what this needs and starts it. The table is Markdown. All compute on the same processors as the clients, wrk.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "end_to_end/support"))

import envoy
import nereid_server
import onnx_engines
import ray_application
import ray_cluster
import usage
from http_requests import LIMIT_S, tensor
from model_files import write_identity
from places import ROOT
from processes import tree
from usage import cpu_s
from waiting import eventually

SCRIPT = ROOT / "xtask/src/bench/infer.lua"
# The model and its input.
MODELS = {"same": tensor("INPUT0", "FP32", [16], [0.5] * 16), "digits": tensor("image", "FP32", [1, 1, 8, 8], [0.5] * 64)}


@contextmanager
def fleet(repository, folder, replicas):
    """Servers behind Envoy: the port, and the processes."""
    with ExitStack() as running:
        servers = {}
        for number in range(1, replicas + 1):
            flags = ["--load-reports=always", "--backend-config=onnxruntime,engine=ort"]
            flags.append(f"--backend-config=onnxruntime,library={onnx_engines.LIBRARY_FOLDER}")
            servers[f"server-{number}"] = running.enter_context(nereid_server.running(repository, *flags))
        (folder / "servers").mkdir()
        envoy.write_addresses(folder / "servers", servers)
        before = set(tree(os.getpid()))
        http_port, _ = running.enter_context(envoy.running(folder / "servers"))
        (proxy,) = set(tree(os.getpid())) - before
        yield http_port, [proxy, *(server.pid for server in servers.values())]


@contextmanager
def application(path, repository, folder, replicas):
    """An application of Serve: the port, and the process with all of Ray's."""
    running = ray_application.Application(repository, folder, path)
    try:
        running.command("scale", replicas)
        assert eventually(lambda: len(running.replicas()) == replicas)
        yield running.port, [running.pid]
    finally:
        running.stop()


def answers(port, model):
    """Whether the model answers a request."""
    connection = HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    try:
        connection.request("POST", f"/v2/models/{model}/infer", json.dumps({"inputs": [MODELS[model]]}))
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def measure(port, pids, model, clients, seconds, folder):
    """Requests a second, milliseconds of processor time for each, and the median and 99th percentile of latencies in milliseconds."""
    body = json.dumps({"inputs": [MODELS[model]]})
    path = folder / "body"
    path.write_text(body)
    url = f"http://127.0.0.1:{port}/v2/models/{model}/infer"

    def load(duration):
        return usage.wrk(clients, duration, SCRIPT, url, path, str(len(body)))

    load(1)
    before = cpu_s(*pids)
    seen = load(seconds)
    used = cpu_s(*pids) - before
    count = seen["requests"]
    return count / seen["duration_us"] * 1e6, used * 1000 / count, seen["p50_us"] / 1000, seen["p99_us"] / 1000


def main():
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", default="1,8,64")
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--replicas", type=int, default=2)
    given = parser.parse_args()
    assert shutil.which("wrk"), "wrk is missing: apt-get install wrk"
    kinds: dict[str, Any] = {
        "servers behind Envoy": fleet,
        "Nereid in Ray Serve": partial(application, "serve:app:Nereid"),
        "Python in Ray Serve": partial(application, "plain_serve:app:Plain"),
    }
    # For the models in plain Python: the same release as the servers'.
    ray_cluster.prepare()
    install = [sys.executable, "-m", "uv", "--quiet", "pip", "install", "--python", str(ray_cluster.PYTHON)]
    subprocess.run([*install, f"onnxruntime=={onnx_engines.onnxruntime.__version__}"], check=True)
    rows = {}
    for kind, start in kinds.items():
        with tempfile.TemporaryDirectory() as folder, ExitStack() as running:
            repository = Path(folder) / "models"
            write_identity(repository, "same", ["FP32"])
            shutil.copytree(ROOT / "examples/model_repository/digits", repository / "digits")
            port, pids = running.enter_context(start(repository, Path(folder), given.replicas))
            for model in MODELS:
                assert eventually(partial(answers, port, model)), (kind, model)
                for clients in map(int, given.clients.split(",")):
                    rows[model, clients, kind] = measure(port, pids, model, clients, given.seconds, Path(folder))
    print("\n| model | clients | | requests/s | CPU per request | p50 | p99 |\n|---|--:|---|--:|--:|--:|--:|")
    for (model, clients, kind), (rate, cpu, p50, p99) in sorted(
        rows.items(), key=lambda row: (list(MODELS).index(row[0][0]), row[0][1])
    ):
        print(f"| {model} | {clients} | {kind} | {rate:,.0f} | {cpu:.2f} ms | {p50:.1f} ms | {p99:.1f} ms |")


if __name__ == "__main__":
    main()

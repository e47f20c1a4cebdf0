"""A worker of NVIDIA Dynamo with Nereid's library, and one with NVIDIA's of the package nvidia-pytriton: requests a second and processor
time of a request in the worker and its model in Python, which returns its input. The frontend is the same.

`cargo xtask bench dynamo` builds what this needs and starts it. The table is Markdown. All compute on the same processors as the clients.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "end_to_end/support"))

import numpy as np
import tritonclient.grpc

import dynamo
import nereid_server
import python_backend
from http_requests import LIMIT_S
from model_files import config
from ports import free_ports
from usage import cpu_s
from waiting import eventually

ROUNDS = 3
SAME = """
import triton_python_backend_utils as utils


class TritonPythonModel:
    def execute(self, requests):
        inputs = [utils.get_input_tensor_by_name(request, "IN").as_numpy() for request in requests]
        return [utils.InferenceResponse([utils.Tensor("OUT", values)]) for values in inputs]
"""


# A function that NVIDIA's bindings name, and NVIDIA's library of pytriton, which is older, does not have. Success is null.
MISSING = "void* TRITONSERVER_ServerOptionsSetLogCallback(void) { return 0; }"


def workers(folder):
    """The flags and the variables of each worker."""
    nvidia = python_backend.library(folder)
    preloaded = folder / "missing.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-xc", "-", "-o", preloaded], input=MISSING, text=True, check=True)
    environment = python_backend.environment()
    variables = {name: environment[name] for name in ("LD_LIBRARY_PATH", "PATH", "VIRTUAL_ENV")}
    variables["LD_PRELOAD"] = str(preloaded)
    return {
        "Nereid": ([], {"NEREID_LIBRARY": str(Path(nereid_server.binary()).parent)}),
        "NVIDIA": (["--backend-directory", python_backend.BACKENDS], {"NEREID_LIBRARY": str(nvidia), **variables}),
    }


def measure(port, worker, size, clients, seconds):
    """Requests a second, and milliseconds of the worker's processor time for each."""
    sent = np.random.default_rng(size).random(size, np.float32)
    ends = time.monotonic() + seconds

    def work(_):
        count = 0
        tensor = tritonclient.grpc.InferInput("IN", [size], "FP32")
        tensor.set_data_from_numpy(sent)
        with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{port}") as client:
            while time.monotonic() < ends:
                answer = client.infer("same", [tensor], client_timeout=LIMIT_S)
                assert np.array_equal(answer.as_numpy("OUT"), sent)
                count += 1
        return count

    before, begun = cpu_s(worker.pid), time.monotonic()
    with ThreadPoolExecutor(clients) as pool:
        count = sum(pool.map(work, range(clients)))
    return count / (time.monotonic() - begun), 1000 * (cpu_s(worker.pid) - before) / count


def main():
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="16,4096")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--seconds", type=int, default=5)
    given = parser.parse_args()
    sizes = [int(size) for size in given.sizes.split(",")]
    rows = {}
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as running:
        folder = Path(temporary)
        repository = folder / "models"
        (repository / "same" / "1").mkdir(parents=True)
        text = config("same", "python", [("IN", "FP32", [-1])], [("OUT", "FP32", [-1])])
        (repository / "same" / "config.pbtxt").write_text(text)
        (repository / "same" / "1" / "model.py").write_text(SAME)
        started = {}
        for name, (flags, variables) in workers(folder).items():
            port, metrics = free_ports(2)
            store = folder / name
            frontend = dynamo.start("frontend", "--http-port", port, "--grpc-metrics-port", metrics, store=store)
            running.callback(frontend.kill)
            frontend.wait_for_log("Starting KServe gRPC service")
            worker = dynamo.start("worker", "--model-repository", repository, *flags, store=store, **variables)
            running.callback(worker.kill)
            worker.wait_for_log("Registered endpoint")
            client = running.enter_context(tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{port}"))
            assert eventually(lambda client=client: client.is_model_ready("same"))
            started[name] = (port, worker)
        for size in sizes:
            for port, worker in started.values():
                measure(port, worker, size, given.clients, 1)
            # In turn, as other programs may be busy for a time.
            rounds = [
                {name: measure(*it, size, given.clients, given.seconds) for name, it in started.items()} for _ in range(ROUNDS)
            ]
            rows[size] = {name: tuple(map(statistics.median, zip(*(it[name] for it in rounds)))) for name in started}
    print("\n| elements | worker | requests/s | CPU per request |\n|--:|---|--:|--:|")
    for size, of_workers in rows.items():
        for name, (rate, cpu) in of_workers.items():
            print(f"| {size} | {name} | {rate:,.0f} | {cpu:.2f} ms |")


if __name__ == "__main__":
    main()

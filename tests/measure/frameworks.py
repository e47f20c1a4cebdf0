"""What the server adds to frameworks, with real models: `frameworks.py BINARY`. Started by `cargo xtask bench frameworks`.

Each model runs on OpenVINO and on ONNX Runtime, in the framework's own Python and in the server; one more runs on TensorFlow. At batch 1 the figures are
the time of a run, which the server measures itself, and the time that a client sees; rounds alternate, and the median of the
ratios within rounds counts.

The embedded engine runs the same files, and ones of 8 bits, beside ONNX Runtime, with one thread each.

Under load, 32 clients send single images, which the server batches; Python runs full batches. The server and Python have the same
processor in turn, and the clients another one, so that they take nothing from the server. Tensors are in shared memory.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "end_to_end" / "support"))
os.environ.setdefault("NEREID_BINARY", sys.argv[1])

import numpy as np
import onnxruntime
import openvino
import tritonclient.http
from onnxruntime import quantization

import nereid_server
import onnx_engines
import openvino_models
import tensorflow_c
import tensorflow_models
import tensorflow_package
from http_requests import request
from model_files import write_model
from tensors import given

ROUNDS, RUNS, CLIENTS, BATCH = 7, 10, 32, 8
SERVER_CPU = min(os.sched_getaffinity(0))
MODELS = {
    "text_direction": ("x", (3, 48, 192)),
    "text_recogniser": ("x", (3, 48, 320)),
    "text_detector": ("x", (3, 320, 320)),
}
# A model of TensorFlow's, whose own loop calls TensorFlow's C interface.
CONVOLUTIONS = "convolutions"
GRAPH = tensorflow_models.convolutions(6, 24)
SHAPES = MODELS | {CONVOLUTIONS: ("x", (64, 64, 3))}
BACKENDS = {"openvino": "OpenVINO", "onnxruntime": "ONNX Runtime"}


def source(model):
    return ROOT / "examples" / "fetched_repository" / model / "1" / "model.onnx"


def own(backend, model):
    """A run in the framework's own Python, with as many threads as the server gives a single instance."""
    name, _ = SHAPES[model]
    if backend == "tensorflow":
        return tensorflow_c.runner(GRAPH, "x", "y")
    if backend == "openvino":
        run = openvino.Core().compile_model(source(model), "CPU").create_infer_request()
        return lambda values: run.infer({name: values})
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = len(os.sched_getaffinity(0))
    session = onnxruntime.InferenceSession(source(model), options, providers=["CPUExecutionProvider"])
    return lambda values: session.run(None, {name: values})


def write(folder):
    for model in MODELS:
        for backend in BACKENDS:
            extra = f"max_batch_size: {BATCH}\ndynamic_batching {{ }}\ninstance_group {{ count: 1 kind: KIND_CPU }}\n"
            extra += f'backend: "{backend}"\ndefault_model_filename: "model.onnx"\n'
            write_model(folder, f"{model}_{backend}", extra, source(model).read_bytes())
    config = f'platform: "tensorflow_graphdef"\nmax_batch_size: {BATCH}\ndynamic_batching {{ }}\n'
    config += "instance_group { count: 1 kind: KIND_CPU }\n"
    tensorflow_models.write(folder, f"{CONVOLUTIONS}_tensorflow", GRAPH, config)


def compute_us(server, model):
    """The time that the model has computed so far, and its executions."""
    entry = request(server, "GET", f"/v2/models/{model}/stats").json["model_stats"][0]
    parts = ("compute_input", "compute_infer", "compute_output")
    return sum(entry["inference_stats"][part]["ns"] for part in parts) / 1000, entry["execution_count"]


def milliseconds(run):
    start = time.perf_counter()
    for _ in range(RUNS):
        run()
    return (time.perf_counter() - start) * 1000 / RUNS


def at_batch_one(server, backend, model):
    """Medians of Python's time, the ratio of the server's run to it, and of the client's time to it."""
    name, shape = SHAPES[model]
    values = np.random.default_rng(1).uniform(-1, 1, (1, *shape)).astype(np.float32)
    run, served = own(backend, model), f"{model}_{backend}"
    rows = []
    with tritonclient.http.InferenceServerClient(server.url) as client:
        inputs = [given(name, values)]
        milliseconds(lambda: run(values)), milliseconds(lambda: client.infer(served, inputs))
        for _ in range(ROUNDS):
            before, executed = compute_us(server, served)
            seen = milliseconds(lambda: client.infer(served, inputs))
            after, now = compute_us(server, served)
            python = milliseconds(lambda: run(values))
            rows.append((python, (after - before) / 1000 / (now - executed) / python, seen / python))
    return [statistics.median(column) for column in zip(*rows)]


class OwnBatches:
    """The framework's own Python on the first processor, in a process: full batches."""

    def __init__(self, backend, model):
        command = [sys.executable, __file__, sys.argv[1], backend, model, str(SERVER_CPU)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdin and self.process.stdout
        self.input, self.output = self.process.stdin, self.process.stdout

    def rate(self):
        """Items per second."""
        self.input.write("\n")
        self.input.flush()
        return float(self.output.readline())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.input.close()
        self.process.wait()


def run_own_batches(backend, model, processor):
    """Prints the rate of some batches for each line that it reads."""
    _name, shape = SHAPES[model]
    values = np.random.default_rng(2).uniform(-1, 1, (BATCH, *shape)).astype(np.float32)
    os.sched_setaffinity(0, {int(processor)})
    run = own(backend, model)
    run(values)
    for _ in sys.stdin:
        print(BATCH * 1000 / milliseconds(lambda: run(values)), flush=True)


class SharedTensors:
    """An input of one image, and a place for each client's outputs, in a region of shared memory."""

    def __init__(self, server, served, name, values):
        with tritonclient.http.InferenceServerClient(server.url) as client:
            response = client.infer(served, [given(name, values)])
            outputs = [(output["name"], response.as_numpy(output["name"]).nbytes) for output in response.get_response()["outputs"]]
        self.server, self.input, self.outputs = server, (name, values), outputs
        self.stride = sum(size for _, size in outputs)
        self.path = Path(f"/dev/shm/{served}-{os.getpid()}")

    def __enter__(self):
        _, values = self.input
        with open(self.path, "wb") as region:
            region.write(values.tobytes())
            region.truncate(values.nbytes + CLIENTS * self.stride)
            size = region.seek(0, os.SEEK_END)
        body = json.dumps({"key": f"/{self.path.name}", "offset": 0, "byte_size": size})
        assert request(self.server, "POST", "/v2/systemsharedmemory/region/tensors/register", body).status == 200
        return self

    def __exit__(self, *_):
        request(self.server, "POST", "/v2/systemsharedmemory/region/tensors/unregister")
        self.path.unlink()

    def body(self, client):
        """The request of a client."""
        name, values = self.input
        offset = values.nbytes + client * self.stride
        outputs = []
        for output, size in self.outputs:
            outputs.append({"name": output, "parameters": self._place(offset, size)})
            offset += size
        parameters = self._place(0, values.nbytes)
        entry = {"name": name, "datatype": "FP32", "shape": values.shape, "parameters": parameters}
        return json.dumps({"inputs": [entry], "outputs": outputs})

    def _place(self, offset, size):
        return {"shared_memory_region": "tensors", "shared_memory_offset": offset, "shared_memory_byte_size": size}


def under_load(server, backend, model):
    """Items per second of Python with full batches, and the ratio of the server's to it."""
    name, shape = SHAPES[model]
    values = np.random.default_rng(2).uniform(-1, 1, (1, *shape)).astype(np.float32)
    served = f"{model}_{backend}"
    ratios, rates = [], []

    def client(count, body):
        connection = HTTPConnection("127.0.0.1", server.port)
        for _ in range(count):
            connection.request("POST", f"/v2/models/{served}/infer", body)
            response = connection.getresponse()
            answer = response.read()
            assert response.status == 200, answer
        connection.close()

    with OwnBatches(backend, model) as python, SharedTensors(server, served, name, values) as tensors:
        bodies = [tensors.body(number) for number in range(CLIENTS)]

        def serve(each):
            start = time.perf_counter()
            list(clients.map(client, [each] * CLIENTS, bodies))
            return each * CLIENTS / (time.perf_counter() - start)

        with ThreadPoolExecutor(CLIENTS) as clients:
            python.rate(), serve(1)
            for _ in range(5):
                rates.append(python.rate())
                # A second or so, whatever the model.
                ratios.append(serve(max(2, int(rates[-1] / CLIENTS))) / rates[-1])
    return statistics.median(rates), statistics.median(ratios)


def quantised(model, folder):
    """The model's file with weights and activations of 8 bits, between operators that quantise and dequantise."""
    name, shape = MODELS[model]

    class Examples(quantization.CalibrationDataReader):
        """Random images."""

        def __init__(self):
            numbers = np.random.default_rng(3)
            self.left = [numbers.uniform(-1, 1, (1, *shape)).astype(np.float32) for _ in range(4)]

        def get_next(self):
            """The next image's inputs, or nothing."""
            return {name: self.left.pop()} if self.left else None

    path = folder / f"{model}.onnx"
    quantization.quantize_static(source(model), path, Examples(), per_channel=True)
    return path.read_bytes()


def embedded_engine(folder):
    """Prints the embedded engine's times of a run beside ONNX Runtime's, each with one thread."""
    # It names initializers that nothing uses.
    onnxruntime.set_default_logger_severity(3)
    files = {model: source(model).read_bytes() for model in MODELS}
    for model in MODELS:
        files[f"{model}_int8"] = quantised(model, folder)
    repository = folder / "embedded"
    for model, contents in files.items():
        config = 'backend: "onnxruntime"\ninstance_group { count: 1 kind: KIND_CPU }\n'
        write_model(repository, model, config, contents)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    print("\n| model | ONNX Runtime | embedded engine | lowest | highest |\n|---|---|---|---|---|")
    with nereid_server.running(repository, *onnx_engines.FLAGS["tract"]) as server:
        with tritonclient.http.InferenceServerClient(server.url) as client:
            for model, contents in files.items():
                name, shape = MODELS[model.removesuffix("_int8")]
                values = np.random.default_rng(1).uniform(-1, 1, (1, *shape)).astype(np.float32)
                session = onnxruntime.InferenceSession(contents, options, providers=["CPUExecutionProvider"])
                inputs = [given(name, values)]
                rows = []
                for _ in range(ROUNDS):
                    before, executed = compute_us(server, model)
                    milliseconds(lambda: client.infer(model, inputs))
                    after, now = compute_us(server, model)
                    runtime = milliseconds(lambda: session.run(None, {name: values}))
                    rows.append((runtime, (after - before) / 1000 / (now - executed) / runtime))
                runtimes, ratios = zip(*rows)
                figures = f"{statistics.median(runtimes):.2f} ms | {statistics.median(ratios):.2f}x"
                print(f"| {model} | {figures} | {min(ratios):.2f}x | {max(ratios):.2f}x |", flush=True)


def main():
    flags = [*onnx_engines.FLAGS["ort"], *openvino_models.FLAGS, *tensorflow_package.FLAGS]
    tensorflow_package.fetched()
    rows = [(model, backend, title) for model in MODELS for backend, title in BACKENDS.items()]
    rows.append((CONVOLUTIONS, "tensorflow", "TensorFlow"))
    everywhere = os.sched_getaffinity(0)
    with tempfile.TemporaryDirectory() as folder:
        write(folder)
        print("\n| model | framework | run in Python | run in Nereid | client of Nereid | batches in Python | 32 clients |")
        print("|---|---|---|---|---|---|---|")
        for model, backend, title in rows:
            with nereid_server.running(Path(folder), *flags) as server:
                python, run, seen = at_batch_one(server, backend, model)
            # The server inherits its processor.
            os.sched_setaffinity(0, {SERVER_CPU})
            with nereid_server.running(Path(folder), *flags) as server:
                os.sched_setaffinity(0, everywhere - {SERVER_CPU} or everywhere)
                rate, load = under_load(server, backend, model)
            os.sched_setaffinity(0, everywhere)
            figures = f"{python:.2f} ms | {run:.2f}x | {seen:.2f}x | {rate:.0f}/s | {load:.2f}x"
            print(f"| {model} | {title} | {figures} |", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        embedded_engine(Path(folder))


if len(sys.argv) > 2:
    run_own_batches(*sys.argv[2:])
else:
    main()

"""NVIDIA Dynamo with three workers that run Nereid's library, as docs/dynamo.md has it. Not among the default tests, because Dynamo
takes 0.5 GB: `cargo xtask test clusters`.
"""

import queue
import re
import signal
import threading
import time
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

import dynamo
from http_requests import LIMIT_S
from model_files import write_identity, write_model
from ports import free_port, free_ports
from waiting import eventually

INTEGERS = ["UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"]
FLOATS = {"FP32": np.float32, "FP64": np.float64}
TYPES = ["BOOL", *INTEGERS, *FLOATS, "BYTES"]
# Each model of the second and third is on two workers.
MODELS = {"first": ["a", "b"], "second": ["b", "c"], "third": ["c", "a"]}
CLIENTS = 6
# Answers to requests that a killed worker had, and to those sent to it before its lease of ten seconds ends.
LOST = re.compile(r"Unavailable: (Stream ended before|TCP connection to \S+ failed|Worker disconnected before)")
COUNTER = """
import numpy
import triton_python_backend_utils as utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            count = utils.get_input_tensor_by_name(request, "IN").as_numpy()[0]
            for number in range(count):
                sender.send(utils.InferenceResponse([utils.Tensor("OUT", numpy.array([number], numpy.int32))]))
            sender.send(flags=utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
COUNTER_CONFIG = """
backend: "python"
input { name: "IN" data_type: TYPE_INT32 dims: 1 }
output { name: "OUT" data_type: TYPE_INT32 dims: 1 }
model_transaction_policy { decoupled: true }
"""
HALVES = """
import numpy
import triton_python_backend_utils as utils


class TritonPythonModel:
    def execute(self, requests):
        arrays = [request.inputs()[0].as_numpy().astype(numpy.float32) for request in requests]
        return [utils.InferenceResponse([utils.Tensor("OUT", array)]) for array in arrays]
"""
HALVES_CONFIG = """
backend: "python"
input { name: "IN" data_type: TYPE_FP16 dims: -1 }
output { name: "OUT" data_type: TYPE_FP32 dims: -1 }
"""
SEQUENCE_CONFIG = """
backend: "identity"
max_batch_size: 4
input { name: "INPUT0" data_type: TYPE_FP32 dims: 1 }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: 1 }
sequence_batching { direct { } }
"""
LABELS_CONFIG = """
backend: "identity"
input { name: "INPUT0" data_type: TYPE_FP32 dims: -1 }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: -1 label_filename: "labels.txt" }
"""


class Cluster:
    """A frontend and its workers."""

    def __init__(self, folder, running):
        self._folder, self._running = folder, running
        self.port, metrics = free_ports(2)
        # Dynamo's port of metrics of the first worker.
        self.metrics = free_port()
        self.workers: dict[str, dynamo.Process] = {}
        ports = ["--http-port", self.port, "--grpc-metrics-port", metrics]
        self.frontend = self._start("frontend", *ports)
        self.frontend.wait_for_log("Starting KServe gRPC service")
        self.client = running.enter_context(self.connect())

    def _start(self, script, *arguments, **environment):
        process = dynamo.start(script, *arguments, store=self._folder / "store", **environment)
        self._running.callback(process.kill)
        return process

    def connect(self):
        """A client of the frontend."""
        return tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{self.port}")

    def start(self, name, **environment):
        """Starts the worker with the models of this name, and waits until it serves them."""
        repository = self._folder / name
        worker = self._start("worker", "--model-repository", repository, **environment)
        self.workers[name] = worker
        worker.wait_for_log("Registered endpoint", count=len([*repository.iterdir()]))
        # The frontend has heard of each.
        assert eventually(lambda: all(self.client.is_model_ready(model.name) for model in repository.iterdir()))
        return worker

    def echo(self, model, array, **options):
        """An inference of a model that returns its input, and whether it has."""
        tensor = tritonclient.grpc.InferInput("INPUT0", array.shape, options.pop("datatype", "FP32"))
        tensor.set_data_from_numpy(array)
        return self.client.infer(model, [tensor], client_timeout=LIMIT_S, **options)

    @contextmanager
    def load(self):
        """Sends requests to all models on two workers; gives the answers and errors, by their texts."""
        stop = threading.Event()
        outcomes: Counter[str] = Counter()

        def work(client):
            number = 0
            with self.connect() as connection:
                while not stop.is_set():
                    number += 1
                    sent = np.array([client, number, number / 7], np.float32)
                    tensor = tritonclient.grpc.InferInput("INPUT0", [3], "FP32")
                    tensor.set_data_from_numpy(sent)
                    model, name = "abc"[number % 3], f"{client}-{number}"
                    try:
                        answer = connection.infer(model, [tensor], request_id=name, client_timeout=LIMIT_S)
                    except InferenceServerException as error:
                        outcomes[str(error)] += 1
                        continue
                    right = np.array_equal(answer.as_numpy("OUTPUT0"), sent) and answer.get_response().id == name
                    outcomes["right" if right else "wrong"] += 1

        with ThreadPoolExecutor(CLIENTS) as pool:
            clients = [pool.submit(work, client) for client in range(CLIENTS)]
            try:
                yield outcomes
            finally:
                stop.set()
        for client in clients:
            client.result()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dynamo")
    for worker, models in MODELS.items():
        for model in models:
            write_identity(folder / worker, model, ["FP32"], execute_delay_ms=5)
    only = folder / "first"
    for datatype in [*TYPES, "BF16", "FP16"]:
        write_identity(only, datatype, [datatype])
    for name, config, code in [("counter", COUNTER_CONFIG, COUNTER), ("halves", HALVES_CONFIG, HALVES)]:
        write_model(only, name, config)
        (only / name / "1" / "model.py").write_text(code)
    write_model(only, "sequences", SEQUENCE_CONFIG)
    write_model(only, "labels", LABELS_CONFIG)
    (only / "labels" / "labels.txt").write_text("ant\nbee\ncat\n")
    with ExitStack() as running:
        cluster = Cluster(folder, running)
        cluster.start("first", DYN_SYSTEM_PORT=str(cluster.metrics))
        for worker in [*MODELS][1:]:
            cluster.start(worker)
        yield cluster


def values(datatype, random, count):
    """Random elements with the extreme ones of a type."""
    if datatype == "BOOL":
        return random.random(count) < 0.5
    if datatype == "BYTES":
        return np.array([random.bytes(random.integers(0, 40)) for _ in range(count - 2)] + [b"", "ö\0".encode()], object)
    if datatype in FLOATS:
        return np.append(random.standard_normal(count - 3), [np.inf, -np.inf, -0.0]).astype(FLOATS[datatype])
    limits = np.iinfo(datatype.lower())
    found = random.integers(limits.min, limits.max, count, limits.dtype, endpoint=True)
    found[:2] = limits.min, limits.max
    return found


@pytest.mark.parametrize("datatype", TYPES)
def test_elements_of_every_type_come_back(cluster, datatype):
    random = np.random.default_rng(len(datatype))
    for count in (4, 5, 300):
        array = values(datatype, random, count)
        answer = cluster.echo(datatype, array, datatype=datatype, request_id=f"r{count}")
        found = answer.as_numpy("OUTPUT0")
        np.testing.assert_array_equal(found, array)
        assert answer.get_response().id == f"r{count}" and answer.get_output("OUTPUT0").datatype == datatype


@pytest.mark.parametrize(
    "datatype, kind, text", [("BF16", ml_dtypes.bfloat16, "SystemError"), ("FP16", np.float16, "expected u16")]
)
def test_outputs_of_half_precision_are_errors_of_dynamo(cluster, datatype, kind, text):
    with pytest.raises(InferenceServerException, match=text):
        cluster.echo(datatype, np.array([1, -2.5], kind), datatype=datatype)


def test_inputs_of_half_precision_arrive(cluster):
    array = np.array([1, -2.5, 0.25, 1e-3], np.float16)
    tensor = tritonclient.grpc.InferInput("IN", array.shape, "FP16")
    tensor.set_data_from_numpy(array)
    answer = cluster.client.infer("halves", [tensor], client_timeout=LIMIT_S)
    np.testing.assert_array_equal(answer.as_numpy("OUT"), array.astype(np.float32))


def test_metadata_and_configuration_are_the_librarys(cluster):
    metadata = cluster.client.get_model_metadata("INT8")
    assert [(tensor.name, tensor.datatype, [*tensor.shape]) for tensor in metadata.inputs] == [("INPUT0", "INT8", [-1])]
    assert cluster.client.get_model_config("counter").config.model_transaction_policy.decoupled


@pytest.mark.parametrize(
    "model, options, text",
    [
        ("none", {}, "Model 'none' not found"),
        ("a", {"outputs": [tritonclient.grpc.InferRequestedOutput("NONE")]}, "unexpected inference output 'NONE'"),
        ("a", {"datatype": "INT32"}, "has datatype INT32, but model 'a' expects FP32"),
        ("counter", {}, "unexpected inference input 'INPUT0'"),
    ],
)
def test_errors_have_the_librarys_texts(cluster, model, options, text):
    kind = np.int32 if "datatype" in options else np.float32
    with pytest.raises(InferenceServerException, match=text):
        cluster.echo(model, np.array([1], kind), **options)


def test_streams_have_all_their_answers_in_order(cluster):
    answers: queue.Queue = queue.Queue()
    counts = [3, 1, 40, 0, 7]
    with cluster.connect() as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for number, count in enumerate(counts):
            tensor = tritonclient.grpc.InferInput("IN", [1], "INT32")
            tensor.set_data_from_numpy(np.array([count], np.int32))
            client.async_stream_infer("counter", [tensor], request_id=str(number))
        found: dict[str, list[int]] = {str(number): [] for number in range(len(counts))}
        # The last answer of each has no tensor.
        for _ in range(sum(counts) + len(counts)):
            result, error = answers.get(timeout=LIMIT_S)
            assert error is None
            output = result.as_numpy("OUT")
            found[result.get_response().id] += [] if output is None else output.tolist()
        client.stop_stream()
    assert list(found.values()) == [[*range(count)] for count in counts]


def test_sequences_are_refused_because_dynamo_does_not_pass_them_on(cluster):
    with pytest.raises(InferenceServerException, match="must specify a non-zero or non-empty correlation ID"):
        cluster.echo("sequences", np.array([[1]], np.float32), sequence_id=7, sequence_start=True)


@pytest.mark.parametrize("count, expected", [(1, ["8.500000:1:bee"]), (3, ["8.500000:1:bee", "2.000000:2:cat", "-1.000000:0:ant"])])
def test_classes_have_their_labels(cluster, count, expected):
    wanted = [tritonclient.grpc.InferRequestedOutput("OUTPUT0", class_count=count)]
    answer = cluster.echo("labels", np.array([-1, 8.5, 2], np.float32), outputs=wanted)
    assert [text.decode() for text in answer.as_numpy("OUTPUT0").flatten()] == expected


def test_dynamos_metrics_contain_the_librarys(cluster):
    before = succeeded(cluster)
    cluster.echo("UINT8", np.array([1], np.uint8), datatype="UINT8")
    assert succeeded(cluster) == before + 1


def succeeded(cluster):
    """The successful requests of a model, by the first worker's metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{cluster.metrics}/metrics", timeout=LIMIT_S) as answer:
        text = answer.read().decode()
    (value,) = re.findall(r'^nv_inference_request_success\{.*model="UINT8".*\} (\d+)', text, re.M)
    return float(value)


def test_the_librarys_log_is_in_dynamos_only(cluster):
    lines = cluster.workers["first"].lines
    assert any("INFO lifecycle: successfully loaded 'UINT8' version 1" in line for line in lines)
    # The form of the library's own lines on standard error.
    assert [line for line in lines if re.match(r"[IWEV]\d{4} ", line)] == []


def test_a_worker_that_is_stopped_answers_what_it_has(cluster):
    with cluster.load() as outcomes:
        assert eventually(lambda: outcomes["right"] > 300)
        cluster.workers["second"].signal(signal.SIGTERM)
        assert cluster.workers["second"].wait() == 0
        before = outcomes["right"]
        assert eventually(lambda: outcomes["right"] > before + 300)
        # Its successor is used.
        cluster.start("second")
        assert eventually(lambda: "request" in cluster.workers["second"].log)
        before = outcomes["right"]
        assert eventually(lambda: outcomes["right"] > before + 300)
    # The frontend gives up a request that has not reached the worker when this leaves its list.
    errors = outcomes.total() - outcomes["right"]
    print(f"a worker was stopped: {outcomes}")
    assert outcomes["wrong"] == 0 and errors <= CLIENTS
    assert all("Worker disconnected before" in text for text in outcomes if text not in ("right", "wrong")), outcomes


def test_only_requests_of_a_killed_worker_fail(cluster):
    with cluster.load() as outcomes:
        assert eventually(lambda: outcomes["right"] > 300)
        cluster.workers["third"].signal(signal.SIGKILL)
        # Until its lease of ten seconds ends, the frontend tries the dead worker now and then.
        time.sleep(12)
        settled = outcomes.total() - outcomes["right"]
        before = outcomes["right"]
        assert eventually(lambda: outcomes["right"] > before + 1000)
        assert outcomes.total() - outcomes["right"] == settled
    errors = outcomes.total() - outcomes["right"]
    print(f"a worker was killed: {outcomes}")
    assert outcomes["wrong"] == 0 and 0 < errors <= 4 * CLIENTS
    assert all(LOST.search(text) for text in outcomes if text not in ("right", "wrong")), outcomes

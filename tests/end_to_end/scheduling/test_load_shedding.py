"""Requests that would miss their deadline in the queue are refused at once, and all others are served.

A gate holds the execution that the queue waits for, so that the queue is as long as the test makes it.
"""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import Queue

import numpy
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

import nereid_server
from gates import Gate
from http_requests import LIMIT_S, request, tensor
from http_requests import infer as infer_http
from scrapes import Scrape
from waiting import eventually

CONFIG = """
backend: "identity"
max_batch_size: 0
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 1 ] } ]
parameters { key: "gate" value { string_value: "%s" } }
"""
SEQUENCES = (
    CONFIG
    + """
sequence_batching { max_sequence_idle_microseconds: 600000000 }
"""
)
WHOLE = {"sequence_start": True, "sequence_end": True}
# Enough executions for an average, which leaves out the first, and how long the others take at least.
WARM, COLD, EXECUTION_S = 32, 16, 0.1
# A queue that takes 20 seconds even by the low estimate, and deadlines that its last request would miss and meet.
QUEUE, HASTY_S, PATIENT_S = 300, 10, 600


class Stream:
    """A stream of requests, whose answers are errors or None."""

    def __init__(self, server, timeout=PATIENT_S):
        self.answers: Queue[Exception | None] = Queue()
        self.client = tritonclient.grpc.InferenceServerClient(server.grpc_url)
        self.client.start_stream(lambda result, error: self.answers.put(error), stream_timeout=timeout)

    def ask(self, model, **flags):
        self.client.async_stream_infer(model, given(), **flags)

    def answer(self):
        return self.answers.get(timeout=LIMIT_S)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.client.stop_stream(cancel_requests=True)
        self.client.close()


def given():
    result = tritonclient.grpc.InferInput("INPUT0", [1], "FP32")
    result.set_data_from_numpy(numpy.ones(1, dtype=numpy.float32))
    return [result]


def pending(server, model):
    return Scrape(server).pending(model)


def shed(server, model):
    return Scrape(server).value("nereid_shed_requests_total", model=model, version="1")


@contextmanager
def warm_server(repository, model, *flags):
    """A server that knows how long its model executes, and the model's gate."""
    gate = Gate()
    config = {"slow": CONFIG, "sequences": SEQUENCES}[model]
    (repository / model / "1").mkdir(parents=True)
    (repository / model / "config.pbtxt").write_text(config % gate.path)
    with nereid_server.running(repository, *flags) as server, gate, Stream(server) as stream:
        for number in range(1, WARM + 1):
            stream.ask(model, **({"sequence_id": number, **WHOLE} if model == "sequences" else {}))
            held = gate.entered()
            if number > COLD:
                time.sleep(EXECUTION_S)
            held.release()
            assert stream.answer() is None
        yield server, gate


@pytest.mark.parametrize("sheds", [True, False])
def test_a_call_whose_deadline_passes_in_the_queue_is_refused_at_once(tmp_path, sheds):
    flags = [] if sheds else ["--shed-load=false"]
    with (
        warm_server(tmp_path, "slow", *flags) as (server, gate),
        Stream(server) as crowd,
        tritonclient.grpc.InferenceServerClient(server.grpc_url) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        crowd.ask("slow")
        gate.entered()
        for _ in range(QUEUE):
            crowd.ask("slow")
        patient = pool.submit(client.infer, "slow", given(), client_timeout=PATIENT_S)
        assert eventually(lambda: pending(server, "slow") == QUEUE + 1)
        with pytest.raises(InferenceServerException) as hasty:
            client.infer("slow", given(), client_timeout=HASTY_S if sheds else 0.5)
        if sheds:
            assert hasty.value.status() == "StatusCode.UNAVAILABLE" and "would miss its deadline" in hasty.value.message()
            rejected = {"model": "slow", "version": "1", "reason": "REJECTED"}
            assert Scrape(server).value("nv_inference_request_failure", **rejected) == 1
        else:
            assert hasty.value.status() == "StatusCode.DEADLINE_EXCEEDED"
        assert shed(server, "slow") == sheds
        # Those that wait are served.
        gate.open()
        assert [crowd.answer() for _ in range(QUEUE + 1)] == [None] * (QUEUE + 1)
        assert patient.result(LIMIT_S).as_numpy("OUTPUT0") == [1]
        # An idle model takes any deadline that it may meet.
        assert client.infer("slow", given(), client_timeout=HASTY_S).as_numpy("OUTPUT0") == [1]


@pytest.fixture(scope="module")
def warm(tmp_path_factory):
    """A server that knows how long its models execute, and their gate."""
    with warm_server(tmp_path_factory.mktemp("models"), "slow") as warm:
        yield warm


class Busy:
    """A model with requests in its queue, of which none leaves."""

    def __init__(self, server, gate):
        self.server, self._gate = server, gate
        self._crowd = Stream(server)
        self._has_left = False
        self._crowd.ask("slow")
        self._held = gate.entered()
        for _ in range(QUEUE):
            self._crowd.ask("slow")
        assert eventually(lambda: pending(server, "slow") == QUEUE)
        # A short execution must not lower the average for the next test.
        time.sleep(2 * EXECUTION_S)

    def serve(self, send):
        """The answer to a request that joins the queue, which all others then leave."""
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(send)
            assert eventually(lambda: pending(self.server, "slow") == QUEUE + 1)
            self.leave(1)
            self._gate.entered().release()
            return answer.result(LIMIT_S)

    def leave(self, others=0):
        """Cancels the requests in the queue except those of others, and ends the execution."""
        if not self._has_left:
            self._has_left = True
            self._crowd.__exit__()
            assert eventually(lambda: pending(self.server, "slow") == others)
            self._held.release()


@pytest.fixture
def busy(warm):
    """A server with a queue of 20 seconds in front of the model `slow`."""
    busy = Busy(*warm)
    yield busy
    busy.leave()


BODY = {"inputs": [tensor("INPUT0", "FP32", [1], [1])]}
HASTY = {"parameters": {"timeout": HASTY_S * 1_000_000}, **BODY}


@pytest.mark.parametrize(
    "headers, body, sheds",
    [
        ({"X-Request-Timeout": "10"}, BODY, True),
        ({"X-Request-Timeout": "10000ms"}, BODY, True),
        ({"x-envoy-expected-rq-timeout-ms": "10000"}, BODY, True),
        ({"X-Request-Timeout": "600", "x-envoy-expected-rq-timeout-ms": "10000"}, BODY, True),
        ({}, HASTY, True),
        ({"X-Request-Timeout": "600"}, HASTY, True),
        ({"X-Request-Timeout": "600"}, BODY, False),
        ({"X-Request-Timeout": "soon"}, BODY, False),
        ({}, {"parameters": {"timeout": 600_000_000}, **BODY}, False),
    ],
)
def test_times_over_http_count(busy, headers, body, sheds):
    before = shed(busy.server, "slow")

    def send():
        return infer_http(busy.server, "slow", json.dumps(body), headers)

    if sheds:
        answer = send()
        assert answer.status == 503 and int(answer.headers["Retry-After"]) >= 1, answer
        # At once: nothing has left the queue.
        assert pending(busy.server, "slow") == QUEUE
    else:
        answer = busy.serve(send)
        assert answer.status == 200, answer
    assert shed(busy.server, "slow") == before + sheds


@pytest.mark.parametrize("route", ["generate", "generate_stream"])
def test_times_of_generate_count(busy, route):
    body = json.dumps({"INPUT0": 1})
    path = f"/v2/models/slow/{route}"
    refused = request(busy.server, "POST", path, body, {"X-Request-Timeout": str(HASTY_S)})
    assert refused.status == 503, refused
    patient = {"X-Request-Timeout": str(PATIENT_S)}
    assert busy.serve(lambda: request(busy.server, "POST", path, body, patient)).status == 200


def test_deadline_of_a_stream_is_that_of_its_requests(busy):
    before = shed(busy.server, "slow")
    with Stream(busy.server, timeout=HASTY_S) as hasty:
        hasty.ask("slow")
        assert "would miss its deadline" in str(hasty.answer())
    with Stream(busy.server, timeout=PATIENT_S) as patient:

        def send():
            patient.ask("slow")
            return patient.answer()

        assert busy.serve(send) is None
    assert shed(busy.server, "slow") == before + 1


def test_sequence_ends_with_a_request_that_would_miss_its_deadline(tmp_path):
    with (
        warm_server(tmp_path, "sequences") as (server, gate),
        Stream(server) as stream,
        tritonclient.grpc.InferenceServerClient(server.grpc_url) as client,
    ):
        stream.ask("sequences", sequence_id=900, sequence_start=True)
        gate.entered()
        for _ in range(QUEUE):
            stream.ask("sequences", sequence_id=900)
        assert eventually(lambda: pending(server, "sequences") == QUEUE)
        with pytest.raises(InferenceServerException, match="would miss its deadline"):
            client.infer("sequences", given(), sequence_id=900, client_timeout=HASTY_S)
        with pytest.raises(InferenceServerException, match="is not open"):
            client.infer("sequences", given(), sequence_id=900)
        # Other sequences have slots of their own; those that waited before are served.
        gate.open()
        assert [stream.answer() for _ in range(QUEUE + 1)] == [None] * (QUEUE + 1)
        client.infer("sequences", given(), sequence_id=901, client_timeout=HASTY_S, **WHOLE)
        assert shed(server, "sequences") == 1

"""Requests that would miss their deadline in the queue are refused at once, and all others are served."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from queue import Queue

import numpy
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

import nereid_server
from http_requests import LIMIT_S, request, tensor
from http_requests import infer as infer_http
from scrapes import Scrape

# Each execution takes this long, so the queue is as long as the test makes it.
EXECUTION_S = 0.1
CONFIG = """
backend: "identity"
max_batch_size: 0
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 1 ] } ]
parameters { key: "execute_delay_ms" value { string_value: "100" } }
"""
SEQUENCES = (
    CONFIG
    + """
sequence_batching { max_sequence_idle_microseconds: 60000000 }
"""
)
# Enough executions for an average, and a queue that takes three seconds.
WARM = 32
QUEUE = 30


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    repository = tmp_path_factory.mktemp("models")
    for name, config in {"slow": CONFIG, "sequences": SEQUENCES}.items():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(config)
    return repository


def infer(client, timeout=None):
    """The seconds that a request takes, and the error that ends it."""
    tensor = tritonclient.grpc.InferInput("INPUT0", [1], "FP32")
    tensor.set_data_from_numpy(numpy.ones(1, dtype=numpy.float32))
    start = time.monotonic()
    try:
        client.infer("slow", [tensor], client_timeout=timeout)
    except InferenceServerException as error:
        return time.monotonic() - start, error
    return time.monotonic() - start, None


@pytest.mark.parametrize("sheds", [True, False])
def test_a_call_whose_deadline_passes_in_the_queue_is_refused_at_once(repository, sheds):
    flags = [] if sheds else ["--shed-load=false"]
    with (
        nereid_server.running(repository, *flags) as server,
        tritonclient.grpc.InferenceServerClient(server.grpc_url) as client,
        ThreadPoolExecutor(QUEUE) as pool,
    ):
        # Nothing is known of execution times yet: no call is refused early.
        cold = list(pool.map(lambda _: infer(client), range(WARM)))
        assert [error for _, error in cold] == [None] * WARM
        crowd = [pool.submit(infer, client) for _ in range(QUEUE)]
        limit = EXECUTION_S * QUEUE / 4
        while Scrape(server).value("nv_inference_pending_request_count", model="slow", version="1") < QUEUE * 0.6:
            pass
        patient = infer(client, timeout=60)
        crowd += [pool.submit(infer, client) for _ in range(QUEUE)]
        while Scrape(server).value("nv_inference_pending_request_count", model="slow", version="1") < QUEUE * 0.6:
            pass
        hasty = infer(client, timeout=limit)
        assert patient[1] is None
        assert [error for _, error in (it.result() for it in crowd)] == [None] * len(crowd)
        seconds, error = hasty
        if sheds:
            assert error.status() == "StatusCode.UNAVAILABLE" and "would miss its deadline" in error.message()
            assert seconds < limit
            rejected = {"model": "slow", "version": "1", "reason": "REJECTED"}
            assert Scrape(server).value("nv_inference_request_failure", **rejected) == 1
            assert Scrape(server).value("nereid_shed_requests_total", model="slow", version="1") == 1
        else:
            assert error.status() == "StatusCode.DEADLINE_EXCEEDED"
        # An idle model takes any deadline that it may meet.
        assert infer(client, timeout=EXECUTION_S * 20)[1] is None


def pending(server, model):
    return Scrape(server).value("nv_inference_pending_request_count", model=model, version="1")


def shed(server, model):
    return Scrape(server).value("nereid_shed_requests_total", model=model, version="1")


def given():
    result = tritonclient.grpc.InferInput("INPUT0", [1], "FP32")
    result.set_data_from_numpy(numpy.ones(1, dtype=numpy.float32))
    return [result]


@pytest.fixture(scope="module")
def warm(repository):
    """A server that knows how long its models execute."""
    with (
        nereid_server.running(repository) as server,
        tritonclient.grpc.InferenceServerClient(server.grpc_url) as client,
        ThreadPoolExecutor(8) as pool,
    ):
        assert [error for _, error in pool.map(lambda _: infer(client), range(WARM))] == [None] * WARM
        whole = {"sequence_start": True, "sequence_end": True}
        for number in range(1, WARM + 1):
            client.infer("sequences", given(), sequence_id=number, **whole)
        yield server


@pytest.fixture
def busy(warm):
    """The same server with a queue of three seconds in front of the model `slow`."""
    with tritonclient.grpc.InferenceServerClient(warm.grpc_url) as client:
        crowd = [client.async_infer("slow", given(), lambda result, error: None) for _ in range(QUEUE)]
        while pending(warm, "slow") < QUEUE * 0.6:
            pass
        yield warm
        for call in crowd:
            call.cancel()
    while pending(warm, "slow") > 0:
        pass


BODY = {"inputs": [tensor("INPUT0", "FP32", [1], [1])]}
HASTY = {"parameters": {"timeout": 200_000}, **BODY}


@pytest.mark.parametrize(
    "headers, body, sheds",
    [
        ({"X-Request-Timeout": "0.2"}, BODY, True),
        ({"X-Request-Timeout": "200ms"}, BODY, True),
        ({"x-envoy-expected-rq-timeout-ms": "200"}, BODY, True),
        ({"X-Request-Timeout": "60", "x-envoy-expected-rq-timeout-ms": "200"}, BODY, True),
        ({}, HASTY, True),
        ({"X-Request-Timeout": "60"}, HASTY, True),
        ({"X-Request-Timeout": "60"}, BODY, False),
        ({"X-Request-Timeout": "soon"}, BODY, False),
        ({}, {"parameters": {"timeout": 60_000_000}, **BODY}, False),
    ],
)
def test_times_over_http_count(busy, headers, body, sheds):
    before = shed(busy, "slow")
    start = time.monotonic()
    answer = infer_http(busy, "slow", json.dumps(body), headers)
    took = time.monotonic() - start
    if sheds:
        assert answer.status == 503 and int(answer.headers["Retry-After"]) >= 1, answer
        assert took < EXECUTION_S * QUEUE / 3
    else:
        assert answer.status == 200, answer
    assert shed(busy, "slow") == before + sheds


@pytest.mark.parametrize("route", ["generate", "generate_stream"])
def test_times_of_generate_count(busy, route):
    body = json.dumps({"INPUT0": 1})
    path = f"/v2/models/slow/{route}"
    refused = request(busy, "POST", path, body, {"X-Request-Timeout": "0.1"})
    assert refused.status == 503, refused
    assert request(busy, "POST", path, body, {"X-Request-Timeout": "60"}).status == 200


class Stream:
    """A stream of requests, whose answers are errors or None."""

    def __init__(self, server, timeout):
        self.answers = Queue()
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


def test_deadline_of_a_stream_is_that_of_its_requests(busy):
    before = shed(busy, "slow")
    with Stream(busy, timeout=EXECUTION_S * QUEUE / 4) as hasty:
        hasty.ask("slow")
        assert "would miss its deadline" in str(hasty.answer())
    with Stream(busy, timeout=60) as patient:
        patient.ask("slow")
        assert patient.answer() is None
    assert shed(busy, "slow") == before + 1


def test_sequence_ends_with_a_request_that_would_miss_its_deadline(warm):
    before = shed(warm, "sequences")
    with Stream(warm, timeout=60) as stream, tritonclient.grpc.InferenceServerClient(warm.grpc_url) as client:
        stream.ask("sequences", sequence_id=900, sequence_start=True)
        for _ in range(QUEUE):
            stream.ask("sequences", sequence_id=900)
        while pending(warm, "sequences") < QUEUE * 0.6:
            pass
        with pytest.raises(InferenceServerException, match="would miss its deadline"):
            client.infer("sequences", given(), sequence_id=900, client_timeout=EXECUTION_S * 3)
        with pytest.raises(InferenceServerException, match="is not open"):
            client.infer("sequences", given(), sequence_id=900)
        # Other sequences have slots of their own; those that waited before are served.
        assert [stream.answer() for _ in range(QUEUE + 1)] == [None] * (QUEUE + 1)
        client.infer("sequences", given(), sequence_id=901, sequence_start=True, sequence_end=True, client_timeout=60)
    assert shed(warm, "sequences") == before + 1

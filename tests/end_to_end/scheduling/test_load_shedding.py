"""Requests that would miss their deadline in the queue are refused at once, and all others are served."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

import nereid_server
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
# Enough executions for an average, and a queue that takes three seconds.
WARM = 32
QUEUE = 30


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    repository = tmp_path_factory.mktemp("models")
    (repository / "slow" / "1").mkdir(parents=True)
    (repository / "slow" / "config.pbtxt").write_text(CONFIG)
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
        else:
            assert error.status() == "StatusCode.DEADLINE_EXCEEDED"
        # An idle model takes any deadline that it may meet.
        assert infer(client, timeout=EXECUTION_S * 20)[1] is None

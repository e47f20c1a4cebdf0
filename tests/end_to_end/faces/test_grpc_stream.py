"""Streams of inference requests over gRPC: order, errors, floods, disconnecting clients."""

import asyncio
import queue
import threading
import time
from pathlib import Path

import grpc
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio
from tritonclient.utils import InferenceServerException

import nereid_server
from grpc_requests import LIMIT_S, message, numbers, stub
from model_files import write_identity
from scrapes import Scrape
from waiting import eventually


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A model that gives back what it gets."""
    repository = tmp_path_factory.mktemp("grpc_stream")
    write_identity(repository, "same", ["INT32"])
    with nereid_server.running(repository) as server:
        yield server


@pytest.fixture
def client(server):
    with triton.InferenceServerClient(server.grpc_url) as client:
        yield client


@pytest.fixture
def channel(server):
    with grpc.insecure_channel(server.grpc_url) as channel:
        yield channel


def start(client, **how):
    """Starts a stream whose answers go into a queue."""
    answers: queue.Queue = queue.Queue()
    client.start_stream(lambda result, error: answers.put(error or result), **how)
    return answers


def test_the_client_gets_its_answers_in_order(client):
    answers = start(client)
    for value in range(200):
        client.async_stream_infer("same", [numbers([value])], request_id=str(value))
    for value in range(200):
        answer = answers.get(timeout=LIMIT_S)
        assert answer.get_response().id == str(value)
        assert answer.get_response().parameters["triton_final_response"].bool_param
        assert answer.as_numpy("OUTPUT0").tolist() == [value]
    client.stop_stream()
    assert answers.empty()


@pytest.fixture
def gated(repository, serve, gate):
    """A server of the models `same` and `slow`, whose executions wait at the gate."""
    write_identity(repository, "same", ["INT32"])
    write_identity(repository, "slow", ["INT32"], gate=gate.path)
    return serve()


def test_a_slow_model_holds_up_the_answers_after_it(gated, gate):
    client = triton.InferenceServerClient(gated.grpc_url)
    answers = start(client)
    client.async_stream_infer("slow", [numbers([1])], request_id="slow")
    client.async_stream_infer("same", [numbers([2])], request_id="quick")
    held = gate.entered()
    assert eventually(lambda: Scrape(gated).value("nv_inference_exec_count", model="same", version="1") == 1)
    held.release()
    assert [answers.get(timeout=LIMIT_S).get_response().id for _ in range(2)] == ["slow", "quick"]
    client.stop_stream()


def test_an_error_is_one_answer_among_others(client):
    answers = start(client)
    client.async_stream_infer("nobody", [numbers([1])], request_id="wrong")
    client.async_stream_infer("same", [numbers([2])], request_id="right")
    error = answers.get(timeout=LIMIT_S)
    assert isinstance(error, InferenceServerException)
    assert "nobody" in error.message()
    assert answers.get(timeout=LIMIT_S).get_response().id == "right"
    client.stop_stream()


def test_refused_requests_are_identified_and_the_stream_goes_on(channel):
    wrong_shape = message(request_id="shape")
    wrong_shape.inputs[0].shape[:] = [5]
    valueless = message(request_id="parameter")
    valueless.parameters["x"].SetInParent()
    both = message(request_id="both")
    both.inputs[0].contents.int_contents.extend([1, 2])
    version = message(request_id="version")
    version.model_version = "first"
    requests = [wrong_shape, valueless, both, version, message(request_id="right")]
    for metadata in ((), (("triton_grpc_error", "true"),)):
        seen = list(stub(channel).ModelStreamInfer(iter(requests), timeout=LIMIT_S, metadata=metadata))
        assert [answer.infer_response.id for answer in seen] == ["shape", "parameter", "both", "version", "right"]
        assert [bool(answer.error_message) for answer in seen] == [True] * 4 + [False]


def test_bytes_that_are_not_a_message_end_the_stream_with_an_error(channel):
    raw = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
    good = message().SerializeToString()
    answers = raw(iter([good, b"\xff\xff", good]), timeout=LIMIT_S)
    with pytest.raises(grpc.RpcError) as end:
        list(answers)
    assert end.value.code() == grpc.StatusCode.INTERNAL


def test_a_stream_without_requests_ends_well(channel):
    assert list(stub(channel).ModelStreamInfer(iter([]), timeout=LIMIT_S)) == []


def test_streams_of_several_clients_are_independent(server):
    failures = []

    def ask(number):
        with triton.InferenceServerClient(server.grpc_url) as client:
            answers = start(client)
            for value in range(100):
                client.async_stream_infer("same", [numbers([number, value])])
            for value in range(100):
                got = answers.get(timeout=LIMIT_S)
                if isinstance(got, Exception) or got.as_numpy("OUTPUT0").tolist() != [number, value]:
                    failures.append(got)
            client.stop_stream()

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_the_asyncio_client_streams(server):
    async def ask():
        async def requests():
            for value in range(100):
                yield {"model_name": "same", "inputs": [numbers([value])]}

        async with tritonclient.grpc.aio.InferenceServerClient(server.grpc_url) as client:
            seen = []
            async for result, error in client.stream_infer(requests()):
                assert error is None
                seen.extend(result.as_numpy("OUTPUT0").tolist())
            return seen

    assert asyncio.run(asyncio.wait_for(ask(), LIMIT_S)) == list(range(100))


@pytest.mark.parametrize("streams", [1, 4])
def test_thousands_of_requests_may_wait_for_a_slow_model(gated, gate, streams):
    """As with `async_stream_infer` in a loop. All streams share the process's one connection."""
    total = 20_000
    clients = [triton.InferenceServerClient(gated.grpc_url) for _ in range(streams)]
    answers = [start(client) for client in clients]
    for number in range(total):
        clients[number % streams].async_stream_infer("slow", [numbers([number])], request_id=str(number))
    assert eventually(lambda: Scrape(gated).pending("slow") == total - 1, limit_s=LIMIT_S)
    gate.open()
    for number in range(total):
        answer = answers[number % streams].get(timeout=LIMIT_S)
        assert answer.get_response().id == str(number)
        assert answer.as_numpy("OUTPUT0").tolist() == [number]
    for client in clients:
        client.stop_stream()


def test_a_client_that_does_not_read_is_held_back(server, channel):
    """The client writes without end and reads nothing: it is stopped, and the server stays as it was."""
    written = 0
    payload = message(values=range(16 << 10))

    def requests():
        nonlocal written
        while not stop.is_set():
            written += 1
            yield payload

    def resident():
        status = Path(f"/proc/{server.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) << 10

    stop = threading.Event()
    before = resident()
    answers = stub(channel).ModelStreamInfer(requests(), timeout=LIMIT_S)
    last, seen = 0, -1
    end = time.monotonic() + LIMIT_S
    while seen != written or written == 0:
        # Written as far as there is room on the way: no more goes out within a second.
        seen, last = written, last + 1
        assert time.monotonic() < end
        time.sleep(1)
    grown = resident() - before
    stop.set()
    answers.cancel()
    assert written * 64 << 10 < 1 << 30
    assert grown < 300 << 20, f"{grown >> 20} MiB more after {written} requests"
    with triton.InferenceServerClient(server.grpc_url) as client:
        assert client.infer("same", [numbers([1])]).as_numpy("OUTPUT0").tolist() == [1]


def test_requests_of_a_disconnected_client_are_cancelled(gated, gate):
    client = triton.InferenceServerClient(gated.grpc_url)
    start(client)
    for value in range(20):
        client.async_stream_infer("slow", [numbers([value])])
    held = gate.entered()
    assert eventually(lambda: Scrape(gated).pending("slow") > 0)
    client.stop_stream(cancel_requests=True)
    client.close()
    assert eventually(lambda: Scrape(gated).pending("slow") == 0)
    held.release()
    gate.open()
    with triton.InferenceServerClient(gated.grpc_url) as other:
        other.infer("slow", [numbers([21])])
        [counted] = other.get_inference_statistics("slow").model_stats
    assert counted.execution_count == 2, "requests of a client that is gone were executed"


def test_a_shutdown_ends_streams(repository, serve):
    write_identity(repository, "same", ["INT32"])
    server = serve()
    with triton.InferenceServerClient(server.grpc_url) as client:
        answers = start(client)
        client.async_stream_infer("same", [numbers([1])])
        assert answers.get(timeout=LIMIT_S).as_numpy("OUTPUT0").tolist() == [1]
        server.terminate()
        assert server.wait_for_exit() == 0
        end = answers.get(timeout=LIMIT_S)
        assert isinstance(end, InferenceServerException)
        assert end.status() == "StatusCode.UNAVAILABLE"

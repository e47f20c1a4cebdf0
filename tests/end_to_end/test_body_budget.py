"""The budget of request bytes in memory: decompression bombs and unfinished bodies stay within it, and good requests pass."""

import http.client
import json
import socket
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import httpx
import numpy as np
import pytest

import nereid_server
from grpc_requests import message, stub
from http_requests import infer, request, tensor
from model_files import write_identity

LIMIT_S = 60
MIB = 1 << 20
BUDGET = 192 * MIB
# What the server takes beside the budget: itself, answers, and what its allocator keeps.
SLACK = 256 * MIB
INFER = "/inference.GRPCInferenceService/ModelInfer"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    repository = tmp_path_factory.mktemp("models")
    write_identity(repository, "same", ["INT32"])
    with nereid_server.running(repository, f"--max-inflight-bytes={BUDGET}") as server:
        yield server


def peak(server):
    """The most memory that the server ever had."""
    status = Path(f"/proc/{server.pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) << 10


class Good:
    """A client whose small requests go on all the while, over both protocols."""

    def __init__(self, server):
        self._server = server
        self._done = threading.Event()
        self.answered = 0
        self.failures = []
        self._threads = [threading.Thread(target=run) for run in (self._over_http, self._over_grpc)]

    def _over_http(self):
        while not self._done.is_set():
            answer = infer(self._server, "same", {"inputs": [tensor("INPUT0", "INT32", [2], [1, 2])]})
            if answer.status != 200:
                self.failures.append(answer)
            self.answered += 1

    def _over_grpc(self):
        with grpc.insecure_channel(self._server.grpc_url) as channel:
            while not self._done.is_set():
                try:
                    stub(channel).ModelInfer(message(), timeout=LIMIT_S)
                except grpc.RpcError as error:
                    self.failures.append(error)
                self.answered += 1

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._done.set()
        for thread in self._threads:
            thread.join()
        assert self.answered > 0 and self.failures == []


def zeros(mebibytes, algorithm):
    """Zeros, compressed step by step."""
    packer = zlib.compressobj(wbits={"gzip": 31, "deflate": 15}[algorithm])
    return b"".join([packer.compress(bytes(MIB)) for _ in range(mebibytes)] + [packer.flush()])


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
@pytest.mark.parametrize("call", [INFER, INFER.replace("ModelInfer", "RepositoryModelLoad")])
def test_grpc_messages_that_inflate_beyond_the_budget_are_refused(server, algorithm, call):
    bomb = zeros(1000, algorithm)
    with Good(server), ThreadPoolExecutor(4) as pool:
        codes = list(pool.map(lambda _: raw_call(server, call, (1, bomb), {"grpc-encoding": algorithm}), range(4)))
    assert codes == [grpc.StatusCode.UNAVAILABLE.value[0]] * 4
    assert peak(server) < BUDGET + SLACK, peak(server) >> 20


def raw_call(server, path, message, headers=None, announced=None):
    """Sends one message by hand, its flag and contents, and returns the status."""
    flag, contents = message
    body = bytes([flag]) + (announced or len(contents)).to_bytes(4, "big") + contents
    headers = {"content-type": "application/grpc", "te": "trailers", **(headers or {})}
    with httpx.Client(http1=False, http2=True, timeout=LIMIT_S) as client:
        return int(client.post(f"http://{server.grpc_url}{path}", content=body, headers=headers).headers["grpc-status"])


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_http_bodies_that_inflate_beyond_the_budget_are_refused(server, algorithm):
    bomb = zeros(64, algorithm)
    assert len(bomb) < 70_000
    headers = {"Content-Encoding": algorithm, "Inference-Header-Content-Length": "0"}
    with Good(server), ThreadPoolExecutor(40) as pool:
        statuses = set(pool.map(lambda _: infer(server, "same", bomb, headers).status, range(200)))
    # A raw tensor of zeros is a good request, for those that have room.
    assert statuses == {200, 503}
    assert peak(server) < BUDGET + SLACK, peak(server) >> 20


def test_unfinished_bodies_count_as_far_as_they_arrived(server):
    head = b"POST /v2/models/same/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000\r\n\r\n"
    connections = [socket.create_connection(("127.0.0.1", server.port), timeout=LIMIT_S) for _ in range(60)]
    refused = 0
    with Good(server):
        for connection in connections:
            try:
                connection.sendall(head + bytes(4 * MIB))
                connection.setblocking(False)
                refused += b" 503 " in connection.recv(1000)
            except BlockingIOError:
                continue
            except ConnectionError:
                refused += 1
        for connection in connections:
            connection.close()
    assert refused > 0
    assert peak(server) < BUDGET + SLACK, peak(server) >> 20
    # All is given back.
    values = np.zeros(32 * MIB // 4, np.int32)
    header = {"inputs": [tensor("INPUT0", "INT32", [values.size], binary_data_size=values.nbytes)], "outputs": []}
    text = json.dumps(header).encode()
    body = text + values.tobytes()
    for _ in range(8):
        answer = infer(server, "same", body, {"Inference-Header-Content-Length": str(len(text))})
        assert answer.status == 200


@pytest.mark.parametrize("length", [BUDGET + 1, 2_000_000_000])
def test_a_declared_length_that_can_never_fit_is_refused_at_once(server, length):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=LIMIT_S)
    connection.putrequest("POST", "/v2/models/same/infer")
    connection.putheader("Content-Length", str(length))
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()
    with Good(server):
        code = raw_call(server, INFER, (0, b""), announced=length)
        assert code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]


def test_a_stream_waits_for_room_instead_of_failing(server):
    values = range(8 * MIB // 4)
    large = message(values=values)
    with grpc.insecure_channel(server.grpc_url, options=[("grpc.max_receive_message_length", -1)]) as channel:
        answers = list(stub(channel).ModelStreamInfer(iter([large] * 40), timeout=LIMIT_S))
    assert [answer.error_message for answer in answers] == [""] * 40
    assert request(server, "GET", "/v2/health/live").status == 200

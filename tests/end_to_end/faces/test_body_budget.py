"""The budget of request bytes in memory: decompression bombs and unfinished bodies stay within it, and good requests pass."""

import collections
import functools
import gzip
import http.client
import json
import socket
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import h2.connection
import h2.events
import httpx
import numpy as np
import pytest

import nereid_server
from grpc_requests import message, stub
from http_requests import infer, request, tensor
from model_files import write_identity
from waiting import eventually

LIMIT_S = 60
# Between the small requests of the good client.
PAUSE_S = 0.005
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
            time.sleep(PAUSE_S)

    def _over_grpc(self):
        with grpc.insecure_channel(self._server.grpc_url) as channel:
            while not self._done.is_set():
                try:
                    stub(channel).ModelInfer(message(), timeout=LIMIT_S)
                except grpc.RpcError as error:
                    self.failures.append(error)
                self.answered += 1
                time.sleep(PAUSE_S)

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._done.set()
        for thread in self._threads:
            thread.join()
        assert self.answered > 0 and self.failures == []


@functools.cache
def zeros(mebibytes, algorithm):
    """Zeros, compressed step by step. A gibibyte takes seconds."""
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
        statuses = set(pool.map(lambda _: infer(server, "same", bomb, headers).status, range(60)))
    # A raw tensor of zeros is a good request, for those that have room.
    assert statuses == {200, 503}
    assert peak(server) < BUDGET + SLACK, peak(server) >> 20


@pytest.mark.parametrize("form", ["text", "binary"])
def test_answers_that_nobody_reads_count_over_http(tmp_path, form):
    write_identity(tmp_path, "same", ["INT32"])
    with nereid_server.running(tmp_path, f"--max-inflight-bytes={BUDGET}") as server:
        leave_unread_over_http(server, form)


def leave_unread_over_http(server, form):
    # As text, the numbers take three times as many bytes, and compressed next to nothing.
    numbers = np.full(2 * MIB, np.iinfo(np.int32).min, np.int32)
    inputs = [tensor("INPUT0", "INT32", [numbers.size], binary_data_size=numbers.nbytes)]
    text = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": form == "binary"}}).encode()
    body = text + numbers.tobytes()
    encoding = "identity"
    if form == "text":
        body = zlib.compress(body)
        encoding = "deflate"
    head = (
        f"POST /v2/models/same/infer HTTP/1.1\r\nHost: x\r\nContent-Encoding: {encoding}\r\n"
        f"Inference-Header-Content-Length: {len(text)}\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode()
    connections = []
    statuses = set()
    with Good(server):
        for _ in range({"text": 30, "binary": 150}[form]):
            connection = socket.create_connection(("127.0.0.1", server.port), timeout=LIMIT_S)
            connections.append(connection)
            connection.sendall(head + body)
            # Its answer has begun, and is never read to its end.
            statuses.add(connection.recv(12))
    assert statuses == {b"HTTP/1.1 200", b"HTTP/1.1 503"}
    assert peak(server) < BUDGET + 2 * SLACK, peak(server) >> 20
    for connection in connections:
        connection.close()
    good = {"inputs": [tensor("INPUT0", "INT32", [2 * MIB], list(range(2 * MIB)))]}
    assert eventually(lambda: infer(server, "same", good).status == 200, limit_s=LIMIT_S)


@pytest.mark.parametrize("algorithm", [None, "gzip"])
def test_answers_that_nobody_reads_count_over_grpc(tmp_path, algorithm):
    write_identity(tmp_path, "same", ["INT32"])
    with nereid_server.running(tmp_path, f"--max-inflight-bytes={BUDGET}") as server:
        leave_unread_over_grpc(server, algorithm)


def leave_unread_over_grpc(server, algorithm):
    contents = message(values=[7] * (2 * MIB)).SerializeToString()
    if algorithm:
        contents = gzip.compress(contents, 1)
    flag = int(algorithm is not None)
    frame = bytes([flag]) + len(contents).to_bytes(4, "big") + contents
    headers = [(":method", "POST"), (":scheme", "http"), (":path", INFER), (":authority", "x")]
    headers += [("content-type", "application/grpc"), ("te", "trailers")]
    headers += [("grpc-encoding", algorithm)] if algorithm else []
    connections = []
    statuses: collections.Counter[str | None] = collections.Counter()
    with Good(server):
        for _ in range(150):
            connections.append(Unread(server, headers, frame))
            statuses[connections[-1].status()] += 1
    # Those that have room are never read to their end, so they have no status.
    assert statuses[None] > 0 and statuses[str(grpc.StatusCode.UNAVAILABLE.value[0])] > 0, statuses
    assert sum(statuses.values()) == statuses[None] + statuses[str(grpc.StatusCode.UNAVAILABLE.value[0])]
    assert peak(server) < BUDGET + 2 * SLACK, peak(server) >> 20
    for connection in connections:
        connection.close()
    with grpc.insecure_channel(server.grpc_url, options=[("grpc.max_receive_message_length", -1)]) as channel:
        large = message(values=range(2 * MIB))

        def is_answered():
            try:
                return stub(channel).ModelInfer(large, timeout=LIMIT_S) is not None
            except grpc.RpcError:
                return False

        assert eventually(is_answered, limit_s=LIMIT_S)


class Unread:
    """A call on a connection of its own, whose client makes no room for the answer."""

    def __init__(self, server, headers, body):
        self._socket = socket.create_connection(("127.0.0.1", int(server.grpc_url.split(":")[1])), timeout=LIMIT_S)
        self._connection = h2.connection.H2Connection()
        self._connection.initiate_connection()
        self._connection.send_headers(1, headers)
        self._status = None
        self._has_begun = False
        left = memoryview(body)
        while left:
            room = min(self._connection.local_flow_control_window(1), self._connection.max_outbound_frame_size, len(left))
            if room == 0:
                self._receive()
                continue
            self._connection.send_data(1, left[:room].tobytes(), end_stream=room == len(left))
            left = left[room:]
            self._socket.sendall(self._connection.data_to_send())
        while not self._has_begun:
            self._receive()

    def _receive(self):
        for event in self._connection.receive_data(self._socket.recv(MIB)):
            if isinstance(event, (h2.events.ResponseReceived, h2.events.TrailersReceived)):
                self._status = dict(event.headers).get(b"grpc-status", b"").decode() or None
            self._has_begun |= isinstance(event, (h2.events.DataReceived, h2.events.StreamEnded))
        self._socket.sendall(self._connection.data_to_send())

    def status(self):
        return self._status

    def close(self):
        self._socket.close()


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
        answers = list(stub(channel).ModelStreamInfer(iter([large] * 28), timeout=LIMIT_S))
    assert [answer.error_message for answer in answers] == [""] * 28
    assert request(server, "GET", "/v2/health/live").status == 200

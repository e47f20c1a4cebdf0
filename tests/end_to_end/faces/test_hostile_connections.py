"""Garbage connections and endless bodies: the limits hold and the server goes on serving."""

import json
import random
import socket
import struct
import subprocess
from contextlib import suppress

import pytest

import nereid_server
from http_requests import LIMIT_S, assert_refused, infer, infer_binary, request, tensor
from model_files import scale_model

GOOD = {"inputs": [tensor("X", "FP32", [1, 3], [1.0, 2.0, 3.0])]}
JSON_LIMIT = 4096
BODY_LIMIT = 16384
CONNECTIONS = 200
REQUEST_LINE = b"POST /v2/models/scale/infer HTTP/1.1\r\nHost: x\r\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    repository = tmp_path_factory.mktemp("models")
    scale_model("scale", max_batch_size=1024).write(repository)
    limits = f"--http-max-input-size={JSON_LIMIT}", f"--http-max-body-size={BODY_LIMIT}"
    with nereid_server.running(repository, *limits) as server:
        yield server


def assert_answers_well(server):
    answer = infer(server, "scale", GOOD)
    assert (answer.status, answer.json["outputs"][0]["data"]) == (200, [2.0, 4.0, 6.0])


def connect(server):
    return socket.create_connection(("127.0.0.1", server.port), timeout=LIMIT_S)


def exchange(server, data):
    """Sends bytes over a new connection and returns what comes back, at least an answer's head."""
    with connect(server) as connection:
        received = b""
        # The server may close the connection while we still send.
        with suppress(ConnectionError):
            connection.sendall(data)
        with suppress(ConnectionError):
            while b"\r\n\r\n" not in received and (piece := connection.recv(65536)):
                received += piece
        return received


def status(answer):
    """The status of a raw answer."""
    return int(answer.split(b" ", 2)[1])


def padded(size):
    """The good request, made longer by blanks."""
    text = json.dumps(GOOD)
    return text + " " * (size - len(text))


def rows(count):
    """A binary request of 12 bytes a row: its JSON and its payload."""
    return {"inputs": [tensor("X", "FP32", [count, 3], binary_data_size=count * 12)]}, bytes(count * 12)


def test_json_of_exactly_the_limit_is_accepted(server):
    assert infer(server, "scale", padded(JSON_LIMIT)).status == 200


def test_json_over_the_limit_is_answered_with_400(server):
    assert_refused(infer(server, "scale", padded(JSON_LIMIT + 1)), 400)
    assert_answers_well(server)


def test_the_limit_of_json_does_not_count_binary_tensors(server):
    assert infer_binary(server, "scale", *rows(JSON_LIMIT // 12 + 1)).status == 200


def test_a_body_over_the_limit_is_answered_with_413(server):
    assert_refused(infer(server, "scale", padded(BODY_LIMIT + 1)), 413)
    assert_refused(infer_binary(server, "scale", *rows(BODY_LIMIT // 12 + 1)), 413)
    assert_answers_well(server)


@pytest.mark.parametrize("megabytes", [0.1, 1, 4, 9, 40])
@pytest.mark.parametrize("protocol", ["--http1.1", "--http2-prior-knowledge"])
@pytest.mark.parametrize(("path", "expected"), [("v2/models/scale/infer", "413"), ("v2/nothing", "404")])
def test_curl_gets_the_answer_to_a_body_that_is_not_read(server, tmp_path, megabytes, protocol, path, expected):
    body = tmp_path / "body"
    body.write_bytes(bytes(int(megabytes * 1e6)))
    command = ["curl", "-s", protocol, "-o", tmp_path / "answer", "-w", "%{http_code}", "--data-binary", f"@{body}"]
    outcome = subprocess.run([*command, f"http://{server.url}/{path}"], capture_output=True, text=True, timeout=LIMIT_S)
    assert (outcome.stdout, outcome.returncode) == (expected, 0), outcome.stderr
    assert "error" in json.loads((tmp_path / "answer").read_text())


@pytest.mark.parametrize("declared", [BODY_LIMIT + 1, 10**12, 2**63 - 1])
def test_a_body_declared_too_large_is_refused_before_it_arrives(server, declared):
    answer = exchange(server, REQUEST_LINE + b"Content-Length: %d\r\n\r\n" % declared)
    assert status(answer) == 413
    assert_answers_well(server)


def test_a_chunked_body_over_the_limit_is_refused_while_it_arrives(server):
    chunk = b"400\r\n" + b" " * 0x400 + b"\r\n"
    answer = exchange(server, REQUEST_LINE + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * (BODY_LIMIT // 0x400 + 1))
    assert status(answer) == 413
    assert_answers_well(server)


def test_a_body_of_many_tiny_chunks_is_read(server):
    text = json.dumps(GOOD).encode()
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in text) + b"0\r\n\r\n"
    answer = exchange(server, REQUEST_LINE + b"Transfer-Encoding: chunked\r\n\r\n" + chunks)
    assert status(answer) == 200
    assert_answers_well(server)


@pytest.mark.parametrize(
    "chunks, reason",
    [
        (b"zzz\r\n", b"Invalid chunk size line"),
        (b"1;x=" + b"y" * 20_000 + b"\r\n{\r\n", b"chunk extensions over limit"),
        (b"1\r\n{}\r\n", b"Invalid chunk body"),
    ],
)
def test_the_answer_to_a_body_that_cannot_be_read_says_why(server, chunks, reason):
    answer = exchange(server, REQUEST_LINE + b"Transfer-Encoding: chunked\r\n\r\n" + chunks)
    assert status(answer) == 400 and reason in answer, answer
    assert_answers_well(server)


def test_garbage_connections_do_not_affect_the_next_request(server):
    generator = random.Random(5)
    text = json.dumps(GOOD).encode()
    kinds = [
        lambda: b"",
        lambda: generator.randbytes(generator.randrange(1, 2000)),
        lambda: b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + generator.randbytes(300),
        lambda: b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + generator.randbytes(50),
        lambda: b"GET /v2 HTTP/9.9\r\n\r\n",
        lambda: b"GET /" + b"a" * generator.randrange(70_000) + b" HTTP/1.1\r\n\r\n",
        lambda: b"GET /v2 HTTP/1.1\r\n" + b"X: y\r\n" * generator.randrange(500) + b"\r\n",
        lambda: REQUEST_LINE + b"Content-Length: -1\r\n\r\n",
        lambda: REQUEST_LINE + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
        lambda: REQUEST_LINE + b"Transfer-Encoding: chunked\r\n\r\nzzz\r\n",
        lambda: REQUEST_LINE + b"Content-Length: %d\r\n\r\n" % len(text) + text[: generator.randrange(len(text))],
        lambda: REQUEST_LINE[: generator.randrange(len(REQUEST_LINE))],
        lambda: REQUEST_LINE + b"Content-Length: 400\r\n\r\n" + generator.randbytes(400),
    ]
    left_open = []
    for index in range(CONNECTIONS):
        connection = connect(server)
        with suppress(ConnectionError):
            connection.sendall(kinds[index % len(kinds)]())
        if index % 3 == 0:
            left_open.append(connection)
            continue
        if index % 3 == 1:
            # Closed with a reset instead of a farewell.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
        if index % 20 == 0:
            assert_answers_well(server)
    assert_answers_well(server)
    for connection in left_open:
        connection.close()
    assert_answers_well(server)


def test_many_stalled_senders_delay_nobody_else(server):
    """Each stops somewhere within its request and stays; the server gives them up after a minute."""
    text = json.dumps(GOOD).encode()
    whole = REQUEST_LINE + b"Content-Length: %d\r\n\r\n" % len(text) + text
    stalled = [connect(server) for _ in range(CONNECTIONS)]
    try:
        for index, connection in enumerate(stalled):
            connection.sendall(whole[: 1 + index * (len(whole) - 2) // CONNECTIONS])
        for _ in range(20):
            assert_answers_well(server)
        # They are still being listened to: one that goes on in time is answered.
        late = stalled[CONNECTIONS // 2]
        late.sendall(whole[1 + (CONNECTIONS // 2) * (len(whole) - 2) // CONNECTIONS :])
        assert status(late.recv(65536)) == 200
    finally:
        for connection in stalled:
            connection.close()
    assert_answers_well(server)


def test_a_request_that_arrives_byte_by_byte_is_answered(server):
    text = json.dumps(GOOD).encode()
    with connect(server) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in REQUEST_LINE + b"Content-Length: %d\r\n\r\n" % len(text) + text:
            connection.sendall(bytes([byte]))
        assert status(connection.recv(65536)) == 200


def test_pipelined_requests_are_answered_in_order(server):
    text = json.dumps(GOOD).encode()
    one = REQUEST_LINE + b"Content-Length: %d\r\n\r\n" % len(text) + text
    live = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    with connect(server) as connection:
        connection.sendall(one * 5 + live)
        received = b""
        while piece := connection.recv(65536):
            received += piece
    assert received.count(b"HTTP/1.1 200") == 6
    assert received.count(b'"outputs"') == 5


def test_a_client_that_disconnects_before_its_answer_does_not_harm_the_server(server):
    text = json.dumps(GOOD).encode()
    for _ in range(50):
        with connect(server) as connection:
            connection.sendall(REQUEST_LINE + b"Content-Length: %d\r\n\r\n" % len(text) + text)
    assert request(server, "GET", "/v2/health/ready").status == 200
    assert_answers_well(server)

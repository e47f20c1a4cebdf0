"""A server that stops: what clients see who are in the middle of something, and that no request of theirs is lost."""

import json
import random
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

import nereid_server
from http_requests import LIMIT_S, infer, tensor
from model_files import write_identity
from scrapes import Scrape
from waiting import eventually

BODY = json.dumps({"inputs": [tensor("INPUT0", "INT32", [1], [7])]}).encode()
SLOW = {"inputs": [tensor("INPUT0", "INT32", [2], [7, 8])]}
CONNECTIONS = 16
# For each pattern of traffic.
STOPS = 4
# Less than the exit timeout, which is 30 seconds.
PROMPT_S = 20


def read_answer(connection):
    """The status, the headers and the body of an answer; None if the connection ended before its first byte."""
    received = b""
    while b"\r\n\r\n" not in received:
        more = connection.recv(65536)
        if not more:
            assert not received, received
            return None
        received += more
    head, body = received.split(b"\r\n\r\n", 1)
    lines = head.decode().lower().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines[1:])
    while len(body) < int(headers["content-length"]):
        more = connection.recv(65536)
        assert more, "the answer was cut"
        body += more
    return int(lines[0].split()[1]), headers, body


def ask_in_a_loop(port, model, pauses, outcomes):
    """Sends one request after the other on one connection until an answer says that it was the last."""
    head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(BODY)}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", port), LIMIT_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while True:
            try:
                connection.sendall(head + BODY)
                answer = read_answer(connection)
            except OSError as error:
                outcomes.append(f"cut: {error}")
                return
            if answer is None:
                outcomes.append("cut: no answer")
                return
            status, headers, body = answer
            outcomes.append(status if status == 200 or b"stopping" in body else body)
            if headers.get("connection") == "close":
                return
            time.sleep(random.expovariate(1 / pauses) if pauses else 0)


@pytest.mark.parametrize("pauses", [0, 0.002, 0.02])
@pytest.mark.parametrize("delay_ms", [0, 3])
def test_no_request_on_busy_connections_is_cut(repository, pauses, delay_ms):
    write_identity(repository, "quick", ["INT32"], execute_delay_ms=delay_ms)
    answered = 0
    for _ in range(STOPS):
        server = nereid_server.Server(repository)
        try:
            server.wait_until_ready()
            outcomes: list[int | bytes | str] = []
            with ThreadPoolExecutor(CONNECTIONS) as threads:
                for _ in range(CONNECTIONS):
                    threads.submit(ask_in_a_loop, server.port, "quick", pauses, outcomes)
                assert eventually(lambda: len(outcomes) >= 2 * CONNECTIONS)
                time.sleep(random.uniform(0, 0.05))
                server.terminate()
            assert server.wait_for_exit(PROMPT_S) == 0, server.log
            assert set(outcomes) <= {200, 503}, set(outcomes)
            answered += outcomes.count(200)
        finally:
            server.kill()
    assert answered > 0


def test_no_call_over_grpc_is_cut(repository):
    write_identity(repository, "quick", ["INT32"])
    server = nereid_server.Server(repository)
    outcomes, over = [], threading.Event()

    def calls():
        with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
            given = tritonclient.grpc.InferInput("INPUT0", [1], "INT32")
            given.set_data_from_numpy(np.array([7], np.int32))
            while not over.is_set():
                try:
                    client.infer("quick", [given])
                    outcomes.append("answered")
                except InferenceServerException as error:
                    outcomes.append(f"{error.status()}: {error.message()}")
                    # What was not sent to a server that has gone was not cut.
                    if "failed to connect" in error.message().lower():
                        return

    try:
        server.wait_until_ready()
        with ThreadPoolExecutor(4) as threads:
            for _ in range(4):
                threads.submit(calls)
            assert eventually(lambda: len(outcomes) > 50)
            server.terminate()
            assert server.wait_for_exit(PROMPT_S) == 0, server.log
            over.set()
        unexpected = {
            outcome
            for outcome in outcomes
            if not (outcome == "answered" or "stopping" in outcome or "failed to connect" in outcome.lower())
        }
        assert not unexpected and "answered" in outcomes
    finally:
        over.set()
        server.kill()


def test_connections_are_answered_while_requests_are_in_progress(repository, serve, gate):
    write_identity(repository, "slow", ["INT32"], gate=gate.path)
    write_identity(repository, "quick", ["INT32"])
    server = serve()
    connection = HTTPConnection("127.0.0.1", server.port, timeout=LIMIT_S)

    def ask(method, path, body=None):
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()

    grpc = tritonclient.grpc.InferenceServerClient(server.grpc_url)
    assert grpc.is_server_ready()
    assert ask("POST", "/v2/models/quick/infer", BODY)[0] == 200
    with ThreadPoolExecutor() as threads:
        slow = threads.submit(infer, server, "slow", SLOW)
        gate.entered()
        server.terminate()
        assert eventually(lambda: ask("GET", "/v2/health/ready")[0] == 400)
        for _ in range(3):
            assert ask("GET", "/v2/health/live")[0] == 200
            assert ask("GET", "/v2/models/quick/stats")[0] == 200
            status, body = ask("POST", "/v2/models/quick/infer", BODY)
            assert status == 503 and "stopping" in body
            assert (grpc.is_server_live(), grpc.is_server_ready()) == (True, False)
            # Also over a new connection: gRPC goes on accepting them, HTTP does not.
            with tritonclient.grpc.InferenceServerClient(server.grpc_url) as late:
                given = tritonclient.grpc.InferInput("INPUT0", [1], "INT32")
                given.set_data_from_numpy(np.array([7], np.int32))
                with pytest.raises(InferenceServerException, match="stopping") as refused:
                    late.infer("quick", [given])
                assert "UNAVAILABLE" in refused.value.status()
            assert Scrape(server).pending("slow") == 0
        assert eventually(lambda: not connects(server.port))
        assert server.exit_code is None
        gate.open()
        assert slow.result().status == 200
    assert server.wait_for_exit(PROMPT_S) == 0
    grpc.close()
    connection.close()


def connects(port):
    try:
        socket.create_connection(("127.0.0.1", port), LIMIT_S).close()
    except OSError:
        return False
    return True


def write_sequence_model(repository, idle_us):
    (repository / "seq" / "1").mkdir(parents=True)
    (repository / "seq" / "config.pbtxt").write_text(f"""backend: "identity"
        input {{ name: "INPUT0" data_type: TYPE_INT32 dims: 1 }} output {{ name: "OUTPUT0" data_type: TYPE_INT32 dims: 1 }}
        instance_group {{ count: 2 }} sequence_batching {{ max_sequence_idle_microseconds: {idle_us} }}""")


@pytest.mark.parametrize("protocol", [tritonclient.http, tritonclient.grpc])
def test_sequences_that_have_begun_go_on_to_their_end(repository, protocol):
    write_sequence_model(repository, 60_000_000)
    server = nereid_server.Server(repository)
    try:
        server.wait_until_ready()
        url = server.url if protocol is tritonclient.http else server.grpc_url
        with protocol.InferenceServerClient(url) as client:

            def send(sequence, start=False, end=False):
                given = protocol.InferInput("INPUT0", [1], "INT32")
                given.set_data_from_numpy(np.array([7], np.int32))
                client.infer("seq", [given], sequence_id=sequence, sequence_start=start, sequence_end=end)

            send(7, start=True)
            send(8, start=True)
            server.terminate()
            assert eventually(lambda: not client.is_server_ready())
            for _ in range(3):
                send(7)
                with pytest.raises(InferenceServerException, match="stopping"):
                    send(9, start=True)
                send(8)
            send(7, end=True)
            assert server.exit_code is None
            send(8, end=True)
        assert server.wait_for_exit(PROMPT_S) == 0, server.log
    finally:
        server.kill()


@pytest.mark.parametrize("idle_us, timeout_s, exit_code", [(500_000, 60, 0), (600_000_000, 1, 1)])
def test_a_sequence_that_nobody_ends_holds_the_exit_until_it_was_idle_for_too_long(repository, idle_us, timeout_s, exit_code):
    write_sequence_model(repository, idle_us)
    server = nereid_server.Server(repository, f"--exit-timeout-secs={timeout_s}")
    try:
        server.wait_until_ready()
        body = {"inputs": [tensor("INPUT0", "INT32", [1], [7])]}
        parameters = {"sequence_id": 7, "sequence_start": True}
        assert infer(server, "seq", body | {"parameters": parameters}).status == 200
        server.terminate()
        assert server.wait_for_exit(PROMPT_S) == exit_code, server.log
        assert (f"sequences were still open after {timeout_s} seconds" in server.log) == (exit_code == 1)
    finally:
        server.kill()


def test_a_grpc_stream_that_waits_for_requests_does_not_hold_the_exit(repository):
    write_identity(repository, "quick", ["INT32"])
    server = nereid_server.Server(repository)
    try:
        server.wait_until_ready()
        answers = []
        with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
            client.start_stream(lambda result, error: answers.append(error))
            given = tritonclient.grpc.InferInput("INPUT0", [1], "INT32")
            given.set_data_from_numpy(np.array([7], np.int32))
            client.async_stream_infer("quick", [given])
            assert eventually(lambda: answers == [None])
            server.terminate()
            assert server.wait_for_exit(PROMPT_S) == 0, server.log
            client.stop_stream()
    finally:
        server.kill()


def test_readiness_is_withdrawn_before_anything_else(repository, serve, gate):
    write_identity(repository, "slow", ["INT32"], gate=gate.path)
    server = serve()
    with ThreadPoolExecutor() as threads:
        slow = threads.submit(infer, server, "slow", SLOW)
        gate.entered()
        with tritonclient.http.InferenceServerClient(server.url) as client:
            assert client.is_server_ready()
            server.terminate()
            assert eventually(lambda: not client.is_server_ready())
            assert client.is_server_live()
            gate.open()
        assert slow.result().status == 200
    assert server.wait_for_exit(PROMPT_S) == 0

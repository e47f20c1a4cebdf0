"""Many connections: most are idle, and those in use are served, also when descriptors run out."""

import resource
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc
import pytest

import nereid_server
from grpc_requests import message, stub
from http_requests import LIMIT_S, infer, request, tensor
from model_files import write_identity
from waiting import eventually

GOOD = {"inputs": [tensor("INPUT0", "INT32", [2], [1, 2])]}
LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"


@contextmanager
def soft_limit(descriptors):
    """This process's limit of descriptors, which processes that it starts begin with."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def connect(port):
    return socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S)


def is_live(connection):
    connection.sendall(LIVE)
    return connection.recv(4096).startswith(b"HTTP/1.1 200 ")


def cpu_seconds(server):
    fields = Path(f"/proc/{server.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100


def test_ten_thousand_connections_are_open_at_once(tmp_path):
    write_identity(tmp_path, "same", ["INT32"])
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = 10_000 if most == resource.RLIM_INFINITY else min(10_000, most - 500)
    with ExitStack() as stack:
        # The server raises a low limit by itself.
        with soft_limit(min(1024, most)):
            server = stack.enter_context(nereid_server.running(tmp_path))
        stack.enter_context(soft_limit(most))
        ports = [server.port, int(server.grpc_url.rsplit(":", 1)[1])]
        idle = [stack.enter_context(connect(ports[index % 2])) for index in range(count)]
        assert infer(server, "same", GOOD).status == 200
        assert all(is_live(connection) for connection in idle[:: 2 * 10])
        assert infer(server, "same", GOOD).status == 200


@pytest.mark.parametrize("crowded", ["http", "grpc", "both"])
def test_idle_connections_make_room_when_descriptors_run_out(repository, serve, gate, crowded):
    write_identity(repository, "same", ["INT32"])
    write_identity(repository, "slow", ["INT32"], gate=gate.path)
    with ExitStack() as stack:
        server = serve()
        http, grpc_port = server.port, int(server.grpc_url.rsplit(":", 1)[1])
        pool = stack.enter_context(ThreadPoolExecutor(1))
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (200, 200))
        ports = {"http": [http], "grpc": [grpc_port], "both": [http, grpc_port]}[crowded]
        busy = pool.submit(infer, server, "slow", GOOD)
        gate.entered()
        idle = [stack.enter_context(connect(ports[index % len(ports)])) for index in range(400)]
        for _ in range(10):
            assert infer(server, "same", GOOD).status == 200
            assert request(server, "GET", "/v2/health/ready").status == 200
            with grpc.insecure_channel(server.grpc_url) as channel:
                stub(channel).ModelInfer(message(values=[1]), timeout=LIMIT_S)
        gate.open()
        assert busy.result(LIMIT_S).status == 200, "a connection that waits for its answer was closed"
        assert len(idle) == 400

        def rests():
            before = cpu_seconds(server)
            time.sleep(1)
            return cpu_seconds(server) - before < 0.5

        assert eventually(rests), "it is busy though nobody asks for anything"

"""The exit timeout is a limit: whatever a backend does, the process ends in time, and its status says that it was cut off."""

import os
import signal
import socket
import time

import pytest

import native_backends
import nereid_server
from http_requests import LIMIT_S
from native_backends import parameter, write_model

TENSORS = """
input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }
"""
EXIT_TIMEOUT_S = 1
# What a busy machine may add to the timeout.
SLACK_S = 20
BODY = b'{"inputs": [{"name": "IN", "datatype": "INT32", "shape": [1], "data": [7]}]}'
HEAD = f"POST /v2/models/stuck/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(BODY)}\r\n\r\n".encode()


@pytest.fixture(scope="module")
def backends(tmp_path_factory):
    folder = tmp_path_factory.mktemp("backends")
    native_backends.compile_c(folder, "stuck")
    return folder


def stuck_server(repository, backends, where, how, *flags):
    write_model(repository, "stuck", "stuck", TENSORS + parameter("where", where) + parameter("how", how))
    limits = (f"--exit-timeout-secs={EXIT_TIMEOUT_S}", f"--backend-directory={backends}")
    return nereid_server.Server(repository, *limits, *flags)


def assert_ends_in_time(server, signals=(signal.SIGTERM,)):
    start = time.monotonic()
    for each in signals:
        os.kill(server.pid, each)
    code = server.wait_for_exit(EXIT_TIMEOUT_S + SLACK_S)
    return code, time.monotonic() - start


@pytest.mark.parametrize("how", ["sleep", "spin"])
@pytest.mark.parametrize("client", ["waits", "is gone"])
@pytest.mark.parametrize("threads", [1, 3])
def test_a_stuck_execution_does_not_hold_the_exit(repository, backends, how, client, threads):
    server = stuck_server(repository, backends, "execute", how, f"--http-thread-count={threads}")
    try:
        server.wait_until_ready()
        with socket.create_connection(("127.0.0.1", server.port), LIMIT_S) as connection:
            connection.sendall(HEAD + BODY)
            server.wait_for_log("stuck in execute")
            if client == "is gone":
                connection.close()
            code, took = assert_ends_in_time(server)
        assert (code, took >= EXIT_TIMEOUT_S) == (1, True), server.log
    finally:
        server.kill()


@pytest.mark.parametrize("where", ["instance_end", "model_end", "exit"])
@pytest.mark.parametrize("how", ["sleep", "spin"])
def test_a_backend_that_is_stuck_at_its_end_does_not_hold_the_exit(repository, backends, where, how):
    server = stuck_server(repository, backends, where, how)
    try:
        server.wait_until_ready()
        code, _ = assert_ends_in_time(server)
        assert code == 1, server.log
    finally:
        server.kill()


@pytest.mark.parametrize("where", ["load", "instance"])
def test_a_load_that_is_stuck_does_not_hold_the_exit(repository, backends, where):
    server = stuck_server(repository, backends, where, "sleep")
    try:
        server.wait_for_log(f"stuck in {where}")
        assert_ends_in_time(server)
    finally:
        server.kill()


def test_further_signals_change_nothing(repository, backends):
    server = stuck_server(repository, backends, "instance_end", "sleep")
    try:
        server.wait_until_ready()
        signals = (signal.SIGTERM, signal.SIGINT, signal.SIGTERM)
        code, took = assert_ends_in_time(server, signals)
        assert (code, took >= EXIT_TIMEOUT_S) == (1, True), server.log
    finally:
        server.kill()

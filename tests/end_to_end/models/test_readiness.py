"""Backends that say whether their instances are ready: what clients see. Newer versions of the
reference ask them, 2.51 does not.
"""

import json
import time
from http.client import HTTPConnection

import pytest
import tritonclient.grpc

import native_backends
import nereid_server
from native_backends import parameter, write_model

TENSORS = """
input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }
"""
LIMIT_S = 5


class Moody:
    """A server with a model whose backend is in the mood that its file says, and one that is always ready."""

    def __init__(self, server, file):
        self.server = server
        self._file = file
        self.says("yes")

    def says(self, mood):
        self._file.write_text(mood)

    def get(self, path):
        connection = HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    backends = tmp_path_factory.mktemp("backends")
    native_backends.compile_c(backends, "misbehave")
    repository = tmp_path_factory.mktemp("models")
    file = tmp_path_factory.mktemp("mood") / "mood"
    groups = "instance_group [ { count: 2 kind: KIND_CPU }, { kind: KIND_CPU passive: true } ]"
    write_model(repository, "moody", "misbehave", TENSORS + parameter("mood", file) + groups)
    write_model(repository, "even", "misbehave", TENSORS)
    with nereid_server.running(repository, f"--backend-directory={backends}") as server:
        yield Moody(server, file)


@pytest.fixture
def moody(running):
    running.says("yes")
    yield running
    running.says("yes")


def test_a_model_is_ready_while_its_backend_reports_it(moody):
    assert moody.get("/v2/models/moody/ready") == (200, "")
    assert moody.get("/v2/health/ready")[0] == 200


def test_over_http_neither_an_unready_model_nor_its_server_is_ready(moody):
    moody.says("no")
    status, answer = moody.get("/v2/models/moody/versions/1/ready")
    assert (status, json.loads(answer)["error"]) == (400, "misbehave: the readiness fails on purpose")
    assert moody.get("/v2/models/even/ready")[0] == 200
    assert moody.get("/v2/health/ready")[0] == 400
    assert moody.get("/v2/health/live")[0] == 200
    moody.says("yes")
    assert moody.get("/v2/models/moody/ready")[0] == 200
    assert moody.get("/v2/health/ready")[0] == 200


def test_over_grpc_neither_an_unready_model_nor_its_server_is_ready(moody):
    with tritonclient.grpc.InferenceServerClient(moody.server.grpc_url) as client:
        assert client.is_model_ready("moody") and client.is_server_ready()
        moody.says("no")
        assert not client.is_model_ready("moody") and not client.is_server_ready()
        assert client.is_model_ready("even") and client.is_server_live()


def test_a_readiness_check_that_hangs_delays_nobody_for_long(moody):
    moody.says("wait")
    start = time.monotonic()
    status, answer = moody.get("/v2/models/moody/ready")
    took = time.monotonic() - start
    assert status == 400 and "did not answer the readiness check" in answer
    assert LIMIT_S - 1 < took < LIMIT_S + 30
    # The check is still pending: nothing else waits for it.
    start = time.monotonic()
    for _ in range(10):
        assert moody.get("/v2/models/moody/ready")[0] == 400
        assert moody.get("/v2/models/even/ready")[0] == 200
    assert time.monotonic() - start < 8 * LIMIT_S
    moody.says("yes")
    deadline = time.monotonic() + 30
    while moody.get("/v2/models/moody/ready")[0] != 200:
        assert time.monotonic() < deadline

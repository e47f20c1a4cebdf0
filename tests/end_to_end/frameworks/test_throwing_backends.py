"""Backends in C++ that throw: the process ends, as the reference does, and the log names the backend."""

import json
import signal
from http.client import HTTPConnection

import pytest

import native_backends
import nereid_server
from native_backends import parameter, write_model

TENSORS = """
input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }
"""
REQUEST = {"inputs": [{"name": "IN", "shape": [1], "datatype": "INT32", "data": [7]}]}


@pytest.fixture(scope="module")
def backends(tmp_path_factory):
    folder = tmp_path_factory.mktemp("backends")
    native_backends.compile_cpp(folder, "throwing")
    return folder


@pytest.fixture
def server(tmp_path, backends, request):
    """A server with a model whose function throws."""
    write_model(tmp_path / "models", "m", "throwing", TENSORS + parameter("throws", request.param))
    server = nereid_server.Server(tmp_path / "models", f"--backend-directory={backends}")
    yield server
    server.kill()


def ask(server):
    connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        connection.request("POST", "/v2/models/m/infer", body=json.dumps(REQUEST))
        return connection.getresponse().status
    finally:
        connection.close()


def assert_ended_by(server, function):
    assert server.wait_for_exit() == -signal.SIGABRT
    assert f"TRITONBACKEND_{function} of model 'm' threw an exception" in server.log
    server.assert_no_panic()


@pytest.mark.parametrize("server", ["nothing"], indirect=True)
def test_a_backend_that_throws_nothing_is_served(server):
    server.wait_until_ready()
    assert ask(server) == 200
    server.stop()


@pytest.mark.parametrize("server", ["ModelInstanceExecute"], indirect=True)
def test_an_exception_in_an_execution_ends_the_server_and_is_reported(server):
    server.wait_until_ready()
    with pytest.raises(OSError):
        ask(server)
    assert_ended_by(server, "ModelInstanceExecute")


@pytest.mark.parametrize("server", ["ModelInstanceFinalize"], indirect=True)
def test_an_exception_in_a_finalizer_ends_the_server_and_is_reported(server):
    server.wait_until_ready().terminate()
    assert_ended_by(server, "ModelInstanceFinalize")


@pytest.mark.parametrize("server", ["ModelInitialize"], indirect=True)
def test_an_exception_in_a_models_start_ends_the_server_and_is_reported(server):
    assert_ended_by(server, "ModelInitialize")


@pytest.mark.parametrize("server", ["ModelInstanceInitialize"], indirect=True)
def test_an_exception_in_an_instances_start_ends_the_server_and_is_reported(server):
    assert_ended_by(server, "ModelInstanceInitialize")

"""Errors of backends that the reference does not survive: the server goes on, and every client is answered."""

import pytest
from test_backend_interface import IN, report
from test_misbehaving_backends import TENSORS, do

import native_backends
import nereid_server
from native_backends import parameter, write_model


@pytest.fixture(scope="module")
def backends(tmp_path_factory):
    folder = tmp_path_factory.mktemp("backends")
    for name in ("exercise", "misbehave"):
        native_backends.compile_c(folder, name)
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory, backends):
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "null", "exercise", IN + parameter("mode", "null"))
    write_model(repository, "well", "misbehave", TENSORS)
    with nereid_server.running(repository, f"--backend-directory={backends}") as server:
        yield server


def test_null_pointers_are_refused_everywhere(server):
    lines = report(server, "null")
    survived = "TRITONSERVER_ErrorDelete(NULL): survived"
    assert survived in lines
    calls = [line for line in lines if line != survived and line.startswith("TRITON") and "(" in line]
    assert len(calls) > 35
    assert [line for line in calls if not line.endswith(": Invalid argument")] == []


def test_a_request_released_without_an_answer_is_answered_with_an_error(server):
    status, message = do(server, "drop")
    assert status == 500 and message


def test_a_request_released_twice_is_released_once(server):
    assert do(server, "twice") == 5
    assert do(server, "plain") == 0


def test_only_the_first_final_answer_counts(server):
    assert do(server, "answer_twice") == 6
    assert do(server, "plain") == 0


def test_an_output_that_the_model_does_not_have_is_refused(server):
    assert do(server, "wrong_output") is None
    server.wait_for_log("unexpected inference output 'NONE'")
    assert do(server, "plain") == 0

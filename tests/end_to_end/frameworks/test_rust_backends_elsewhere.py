"""The example backend in Rust, loaded into this server and into NVIDIA's: the same library answers the same in both."""

import json
from http.client import HTTPConnection

import pytest

import native_backends
import nereid_server
import python_backend
from native_backends import parameter, write_model


@pytest.fixture(scope="module", params=["nereid", "nvidia"])
def address(request, tmp_path_factory):
    """`host:port` of a server that has the example's models."""
    backends = tmp_path_factory.mktemp("backends")
    native_backends.copy_rust(backends, "words")
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "words", "words", "model_transaction_policy { decoupled: true }")
    write_model(repository, "words_at_once", "words")
    write_model(repository, "wrong_pause", "words", parameter("pause_ms", "soon"))
    flags = (f"--backend-directory={backends}", "--exit-on-error=false", "--strict-readiness=false")
    if request.param == "nereid":
        with nereid_server.running(repository, *flags) as server:
            yield server.url
    else:
        with python_backend.nvidia_server(repository, *flags) as url:
            yield url


def ask(address, path, body):
    connection = HTTPConnection(address, timeout=60)
    try:
        connection.request("POST", path, body=json.dumps(body))
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def at_once(address, text, **parameters):
    inputs = [{"name": "TEXT", "shape": [1], "datatype": "BYTES", "data": [text]}]
    status, answer = ask(address, "/v2/models/words_at_once/infer", {"inputs": inputs, "parameters": parameters})
    answer = json.loads(answer)
    return answer["outputs"][0]["data"] if status == 200 else (status, answer["error"])


def test_all_words_come_at_once(address):
    assert at_once(address, "to be or not") == ["to", "be", "or", "not"]
    assert at_once(address, "") == []


def test_a_parameter_is_read_and_a_wrong_one_refused(address):
    assert at_once(address, "to be or not", max_words=2) == ["to", "be"]
    assert at_once(address, "to be", max_words=-1) == (400, "max_words is -1: must be 0 or more")


def test_words_come_one_by_one(address):
    status, answer = ask(address, "/v2/models/words/generate_stream", {"TEXT": "to be or not"})
    assert status == 200
    lines = [json.loads(line.removeprefix("data: ")) for line in answer.splitlines() if line]
    assert [line["WORD"] for line in lines] == ["to", "be", "or", "not"]


def test_a_configuration_that_the_backend_refuses_is_reported_with_the_reason(address):
    _, answer = ask(address, "/v2/repository/index", {})
    (row,) = [row for row in json.loads(answer) if row["name"] == "wrong_pause"]
    assert row["state"] == "UNAVAILABLE" and "invalid pause 'soon'" in row["reason"]

"""Backends that return errors from each call, or answer late, often or never: only their own requests are affected.

The reference behaves the same. What it does not survive is in `test_hostile_backends.py`.
"""

import json
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection

import pytest

import native_backends
import nereid_server
from model_files import write_identity
from native_backends import parameter, write_model
from waiting import eventually

TENSORS = """
input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }
"""


@pytest.fixture(scope="module")
def backends(tmp_path_factory):
    folder = tmp_path_factory.mktemp("backends")
    native_backends.compile_c(folder, "misbehave")
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory, backends):
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "well", "misbehave", TENSORS)
    write_model(repository, "decoupled", "misbehave", TENSORS + "model_transaction_policy { decoupled: true }")
    for call in ("model", "instance"):
        write_model(repository, f"fails_{call}", "misbehave", TENSORS + parameter("fail", call))
    flags = ("--exit-on-error=false", "--strict-readiness=false")
    with nereid_server.running(repository, f"--backend-directory={backends}", *flags) as server:
        yield server


def ask(server, path, body, timeout=60):
    connection = HTTPConnection("127.0.0.1", server.port, timeout=timeout)
    try:
        connection.request("POST", path, body=json.dumps(body))
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def state(server, model):
    """The state of a model in the repository's index."""
    (entry,) = [entry for entry in json.loads(ask(server, "/v2/repository/index", {})[1]) if entry["name"] == model]
    return entry["state"]


def do(server, what, timeout=60, model="well"):
    """Has the backend do something; what comes back."""
    inputs = [{"name": "IN", "shape": [1], "datatype": "INT32", "data": [7]}]
    body = {"inputs": inputs, "parameters": {"do": what}}
    status, answer = ask(server, f"/v2/models/{model}/infer", body, timeout)
    answer = json.loads(answer)
    if status != 200:
        return status, answer["error"]
    return answer["outputs"][0]["data"][0] if answer["outputs"] else None


def test_a_well_behaved_execution_is_answered(server):
    assert do(server, "plain") == 0


def test_an_execution_that_fails_fails_its_requests(server):
    assert do(server, "error") == (503, "misbehave: the execution fails on purpose")


def test_an_error_that_is_sent_arrives_with_its_code(server):
    assert do(server, "send_error") == (503, "misbehave: the answer fails on purpose")


def test_a_request_may_be_released_long_after_its_answer(server):
    assert do(server, "late") == 1


def test_a_request_may_be_answered_long_after_its_release(server):
    assert do(server, "early") == 2


def test_a_request_that_is_kept_delays_no_other(server):
    with ThreadPoolExecutor() as threads:
        kept = threads.submit(do, server, "hold")
        assert do(server, "plain") == 0
        while not kept.done():
            assert do(server, "let_go") == 3
        assert kept.result() == 4


def test_the_server_survives_a_client_that_gives_up(server):
    held = server.log.count("misbehave: holds a request")
    with pytest.raises(TimeoutError):
        do(server, "hold", timeout=0.5)
    assert eventually(lambda: server.log.count("misbehave: holds a request") > held)
    assert do(server, "let_go") == 3
    assert do(server, "plain") == 0


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_decoupled_model_answers_as_often_as_it_likes(server, count):
    body = {"IN": 7, "do": "many", "count": count}
    status, answer = ask(server, "/v2/models/decoupled/generate_stream", body)
    events = [json.loads(line.removeprefix("data: ")) for line in answer.splitlines() if line]
    assert status == 200 and [event["OUT"] for event in events] == list(range(count))


@pytest.mark.parametrize("count", [0, 2, 3])
def test_a_model_that_should_answer_once_and_does_not_fails_its_request(server, count):
    body = {
        "inputs": [{"name": "IN", "shape": [1], "datatype": "INT32", "data": [7]}],
        "parameters": {"do": "many", "count": count},
    }
    status, answer = ask(server, "/v2/models/well/infer", body)
    assert status == 500 and "exactly one was expected" in json.loads(answer)["error"]
    status, answer = ask(server, "/v2/models/well/generate", {"IN": 7, "do": "many", "count": count})
    assert status == 200 and "exactly one" in json.loads(answer)["error"]
    assert do(server, "plain") == 0


def test_a_model_whose_start_fails_is_not_loaded_and_says_why(server):
    _, answer = ask(server, "/v2/repository/index", {})
    index = {model["name"]: model for model in json.loads(answer)}
    for call in ("model", "instance"):
        row = index[f"fails_{call}"]
        assert row["state"] == "UNAVAILABLE"
        assert f"misbehave: the {call} fails on purpose" in row["reason"]
    assert index["well"]["state"] == "READY"


def index_of_one(tmp_path, backends, call):
    """The index of a server with one model, where a call to the backend itself fails."""
    repository = tmp_path / "models"
    write_model(repository, "well", "misbehave", TENSORS)
    flags = (f"--backend-directory={backends}", f"--backend-config=misbehave,fail={call}", "--exit-on-error=false")
    with nereid_server.running(repository, *flags, "--strict-readiness=false") as server:
        _, answer = ask(server, "/v2/repository/index", {})
        return json.loads(answer)[0]


def test_a_backend_whose_start_fails_serves_no_model(tmp_path, backends):
    row = index_of_one(tmp_path, backends, "backend")
    assert row["state"] == "UNAVAILABLE"
    assert "misbehave: the backend fails on purpose" in row["reason"]


def test_a_backend_without_attributes_serves(tmp_path, backends):
    assert index_of_one(tmp_path, backends, "attribute")["state"] == "READY"


def test_failing_finalizers_are_logged_and_the_server_ends(tmp_path, backends):
    repository = tmp_path / "models"
    write_model(repository, "well", "misbehave", TENSORS)
    with nereid_server.running(repository, f"--backend-directory={backends}") as server:
        assert do(server, "plain") == 0
    assert "misbehave: an instance ends" in server.log
    assert "misbehave: a model ends" in server.log
    assert "misbehave: the instance's end fails on purpose" in server.log


@pytest.mark.parametrize(("what", "answered"), [("hold", 4), ("keep", 9)])
def test_an_unloaded_model_ends_when_its_last_request_is_released(tmp_path, backends, what, answered):
    repository = tmp_path / "models"
    for name in ("well", "other"):
        write_model(repository, name, "misbehave", TENSORS)
    write_identity(repository, "idle", ["INT32"])
    flags = ["--model-control-mode=explicit", "--load-model=*", f"--backend-directory={backends}"]
    with nereid_server.running(repository, *flags) as server, ThreadPoolExecutor(2) as threads:
        waiting = threads.submit(do, server, what)
        server.wait_for_log("misbehave: holds a request")
        threads.submit(ask, server, "/v2/repository/models/well/unload", {})
        assert eventually(lambda: do(server, "plain") != 0)
        # A model that is unloaded later ends, so this one would have ended too if nothing held it.
        assert ask(server, "/v2/repository/models/idle/unload", {})[0] == 200
        assert eventually(lambda: state(server, "idle") == "UNAVAILABLE")
        assert state(server, "well") == "UNLOADING"
        assert "an instance ends" not in server.log
        assert do(server, "let_go", model="other") == 3
        assert waiting.result(timeout=30) == answered
        server.wait_for_log("misbehave: a model ends")

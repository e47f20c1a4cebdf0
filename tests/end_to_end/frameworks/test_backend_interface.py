"""Triton's C interface for backends: a backend in C calls every function, and each outcome is the reference's.

The expected lines were recorded from Triton 2.51. `NEREID_BINARY` may name a tritonserver to record them anew.
"""

import json
from http.client import HTTPConnection

import pytest

import native_backends
import nereid_server
from native_backends import SOURCES, parameter, write_model

IN = 'input { name: "IN" data_type: TYPE_INT32 dims: [ -1, 3 ] }\n'
OUT = 'output { name: "OUT" data_type: TYPE_INT32 dims: [ -1, 3 ] }\n'


@pytest.fixture(scope="module")
def backends(tmp_path_factory):
    folder = tmp_path_factory.mktemp("backends")
    native_backends.compile_c(folder, "exercise")
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory, backends):
    repository = tmp_path_factory.mktemp("models")
    for mode in ("plain", "wrong"):
        write_model(repository, mode, "exercise", IN + parameter("mode", mode))
    write_model(repository, "callee", "exercise", IN + OUT + parameter("mode", "callee"))
    with nereid_server.running(repository, f"--backend-directory={backends}", "--backend-config=exercise,own-setting=7") as server:
        yield server


def ask(server, method, path, body=None):
    connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        connection.request(method, path, body=None if body is None else json.dumps(body))
        answer = connection.getresponse()
        text = answer.read()
        return answer.status, json.loads(text) if text else None
    finally:
        connection.close()


def report(server, model):
    """The lines that the backend noted while it executed a request."""
    body = {
        "id": "outer",
        "inputs": [{"name": "IN", "shape": [1, 3], "datatype": "INT32", "data": [7, 8, 9]}],
        "parameters": {"text": "t", "whole": 5, "truth": True, "real": 0.25},
        "outputs": [{"name": "REPORT"}],
    }
    status, answer = ask(server, "POST", f"/v2/models/{model}/infer", body)
    assert status == 200, answer
    return answer["outputs"][0]["data"][0].splitlines()


def expected(name):
    return (SOURCES / name).read_text().splitlines()


def test_every_function_answers_as_the_reference(server):
    assert report(server, "plain") == expected("exercise.plain.txt")


def test_invalid_arguments_are_answered_as_the_reference_does(server):
    assert report(server, "wrong") == expected("exercise.wrong.txt")


def test_the_backend_says_how_many_instances_a_model_has(server):
    _, config = ask(server, "GET", "/v2/models/plain/config")
    assert [(group["kind"], group["count"]) for group in config["instance_group"]] == [("KIND_CPU", 2)]


def test_the_backend_completes_the_configuration(server):
    _, config = ask(server, "GET", "/v2/models/plain/config")
    assert [output["name"] for output in config["output"]] == ["REPORT", "EXTRA"]


def test_lines_of_the_backend_are_in_the_log(server):
    report(server, "plain")
    line = server.wait_for_log("a line of the backend").string
    assert line.startswith("I") and "exercise.c:42]" in line
    assert "no such level" not in server.log


def test_reported_times_are_counted(server):
    report(server, "plain")
    _, statistics = ask(server, "GET", "/v2/models/plain/versions/1/stats")
    model = statistics["model_stats"][0]
    executions = model["execution_count"]
    assert executions == model["inference_count"] == model["inference_stats"]["success"]["count"] > 0
    assert model["inference_stats"]["compute_input"]["ns"] == 10 * executions
    assert model["batch_stats"][0]["compute_input"] == {"count": executions, "ns": 10 * executions}


def test_reported_memory_is_in_the_statistics(server):
    _, statistics = ask(server, "GET", "/v2/models/plain/versions/1/stats")
    # Of the model, and of each of two instances.
    usage = [{"type": "CPU", "id": 0, "byte_size": 1000 + 2 * 10}]
    assert statistics["model_stats"][0]["memory_usage"] == usage


def test_the_backend_ends_with_the_server(tmp_path, backends):
    repository = tmp_path / "models"
    write_model(repository, "callee", "exercise", IN + OUT + parameter("mode", "callee"))
    with nereid_server.running(repository, f"--backend-directory={backends}") as server:
        pass
    assert "exercise: backend ended" in server.log


def test_the_configuration_follows_a_change_of_instances_alone(tmp_path, backends):
    repository = tmp_path / "models"
    write_model(repository, "groups", "exercise", IN + parameter("mode", "groups"))
    flags = ["--model-control-mode=explicit", "--load-model=groups", f"--backend-directory={backends}"]

    def counts():
        lines = [line.removeprefix("instances, ").split(": ") for line in report(server, "groups") if "instances" in line]
        return {when: int(count) for when, count in lines}

    with nereid_server.running(repository, *flags) as server:
        _, given = ask(server, "GET", "/v2/models/groups/config")
        # The backend prefers two, which stand in the configuration from the first.
        assert counts() == {"while the instance was made": 2, "now": 2}
        # While instances are made, the configuration is that of the instances before.
        for groups, before, now in [([{"count": 3, "kind": "KIND_CPU"}], 2, 3), ([], 3, 2)]:
            changed = json.dumps({**given, "output": [], "instance_group": groups})
            body = {"parameters": {"config": changed}}
            assert ask(server, "POST", "/v2/repository/models/groups/load", body) == (200, None)
            seen = counts()
            assert seen["now"] == now
            assert seen["while the instance was made"] in (2, before)

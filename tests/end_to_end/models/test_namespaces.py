"""Models of the same name in several repositories, with and without namespaces."""

import shutil

import pytest
import tritonclient.http

import nereid_server
from http_requests import assert_refused, infer, request, tensor
from model_files import scale_model

ASK = {"inputs": [tensor("X", "FP32", [1, 3], [1.0, 2.0, 3.0])]}
NAMESPACES = "--model-namespacing=true"
DUPLICATE = {"name": "both", "state": "UNAVAILABLE"}


@pytest.fixture
def repositories(tmp_path):
    """Two repositories: each has a model of its own, and both have one of the same name."""
    folders = [tmp_path / "first", tmp_path / "second"]
    for factor, folder in enumerate(folders, start=2):
        folder.mkdir()
        scale_model("both", factor).write(folder)
        scale_model(folder.name, factor).write(folder)
    return folders


@pytest.fixture
def serve(repositories):
    """Starts a server over both."""
    first, second = repositories
    started = []

    def start(*flags, **how):
        server = nereid_server.running(first, f"--model-repository={second}", *flags, **how)
        started.append(server)
        return server.__enter__()

    yield start
    for server in started:
        server.__exit__(None, None, None)


def entries(server, name):
    return [it for it in request(server, "POST", "/v2/repository/index").json if it["name"] == name]


def load(server, name):
    return request(server, "POST", f"/v2/repository/models/{name}/load")


def first_value(answer):
    assert answer.status == 200, answer
    return answer.json["outputs"][0]["data"][0]


def test_without_namespaces_a_model_in_two_repositories_is_unavailable_with_the_reason(serve):
    server = serve("--exit-on-error=false", ready=False)
    assert first_value(infer(server, "second", ASK)) == 3.0
    (entry,) = entries(server, "both")
    reason = entry.pop("reason")
    assert entry == DUPLICATE and "first" in reason and "second" in reason
    assert_refused(infer(server, "both", ASK), 404)


def test_the_index_lists_such_a_model_before_it_is_loaded(serve):
    server = serve("--model-control-mode=explicit")
    (entry,) = entries(server, "both")
    assert entry.pop("reason") and entry == DUPLICATE
    assert entries(server, "first") == [{"name": "first"}]
    assert_refused(load(server, "both"), 500)


def test_with_namespaces_both_are_served_and_the_name_alone_is_ambiguous(serve):
    server = serve(NAMESPACES)
    assert server.ready_status() == 200
    assert entries(server, "both") == [{"name": "both", "version": "1", "state": "READY"}] * 2
    for path in ("", "/ready", "/config", "/stats", "/versions/1", "/versions/1/ready"):
        assert_refused(request(server, "GET", f"/v2/models/both{path}"), 400)
    assert_refused(infer(server, "both", ASK), 400)
    assert first_value(infer(server, "second", ASK)) == 3.0
    # The statistics of all models are those of both.
    statistics = request(server, "GET", "/v2/models/stats").json["model_stats"]
    assert sorted(it["name"] for it in statistics) == ["both", "both", "first", "second"]


def test_a_name_is_loaded_and_unloaded_in_every_repository(serve, repositories):
    server = serve(NAMESPACES, "--model-control-mode=explicit")
    assert entries(server, "both") == [{"name": "both"}] * 2
    assert load(server, "both").status == 200
    assert_refused(infer(server, "both", ASK), 400)
    with tritonclient.http.InferenceServerClient(server.url) as client:
        client.unload_model("both")
    assert_refused(infer(server, "both", ASK), 404)
    shutil.rmtree(repositories[0] / "both")
    assert load(server, "both").status == 200
    assert first_value(infer(server, "both", ASK)) == 3.0
    assert_refused(load(server, "nobody"), 500)


def test_a_model_sent_with_a_request_is_one_more_of_its_name(serve):
    server = serve(NAMESPACES, "--model-control-mode=explicit", "--load-model=first")
    model = scale_model("first", 7)
    with tritonclient.http.InferenceServerClient(server.url) as client:
        client.load_model("second", files={"file:1/model.onnx": model.serialized()}, config='{"backend": "onnxruntime"}')
        assert first_value(infer(server, "second", ASK)) == 7.0
        client.load_model("first", files={"file:1/model.onnx": model.serialized()}, config='{"backend": "onnxruntime"}')
    assert_refused(infer(server, "first", ASK), 400)

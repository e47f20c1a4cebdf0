"""Loading and unloading under load: by request, and by polling the repository."""

import base64
import json
import os
import shutil
import threading
import time

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

import nereid_server
from http_requests import assert_refused, infer, request, tensor
from model_files import config, scale_model, write_identity, write_model
from waiting import eventually

EXPLICIT = "--model-control-mode=explicit"
POLL = ("--model-control-mode=poll", "--repository-poll-secs=1")
LIMIT_S = 30


def scaled(repository, factor, name="scale", version=1):
    """A model that multiplies by `factor`."""
    model = scale_model(name, factor)
    folder = repository / name / str(version)
    if not folder.exists():
        write_model(repository, name, model.config(), model.serialized(), version)
        return
    (repository / name / "config.pbtxt").write_text(model.config())
    new = repository / name / ".new"
    new.write_bytes(model.serialized())
    new.replace(folder / "model.onnx")


def ask(client, name="scale", version=""):
    tensor = tritonclient.http.InferInput("X", [1, 3], "FP32")
    tensor.set_data_from_numpy(np.ones((1, 3), np.float32))
    return client.infer(name, [tensor], model_version=version).as_numpy("Y")[0][0]


def index(client, **how):
    return {(entry["name"], entry.get("version", "")): entry.get("state") for entry in client.get_model_repository_index(**how)}


def settled(client, wanted):
    """Waits until the index is what it should be."""
    deadline = time.monotonic() + LIMIT_S
    while index(client) != wanted:
        assert time.monotonic() < deadline, index(client)
        time.sleep(0.05)


def identity(extra=""):
    """The configuration of a model of the identity backend."""
    tensors = [(way, [(f"{way}0", "INT32", [2])]) for way in ("INPUT", "OUTPUT")]
    return config("wrong", "identity", tensors[0][1], tensors[1][1]).replace("instance_group { count: 1 kind: KIND_CPU }", extra)


@pytest.fixture
def explicit(repository, serve):
    """A server over two models of which none is loaded, and its client."""
    scaled(repository, 2.0)
    write_identity(repository, "other", ["INT32"])
    server = serve(EXPLICIT)
    with tritonclient.http.InferenceServerClient(server.url, concurrency=8) as client:
        yield client, server


def test_nothing_is_loaded_unless_requested(explicit):
    client, server = explicit
    assert client.is_server_ready()
    assert index(client) == {("scale", ""): None, ("other", ""): None}
    assert not client.is_model_ready("scale")
    client.load_model("scale")
    assert client.is_model_ready("scale") and ask(client) == 2.0
    assert index(client) == {("scale", "1"): "READY", ("other", ""): None}
    ready = request(server, "POST", "/v2/repository/index", '{"ready": true}').json
    assert ready == [{"name": "scale", "version": "1", "state": "READY"}]


def test_a_model_is_unloaded_and_loaded_again(explicit):
    client, _server = explicit
    client.load_model("scale")
    client.unload_model("scale")
    assert not client.is_model_ready("scale")
    with pytest.raises(InferenceServerException) as caught:
        ask(client)
    assert caught.value.status() == "404"
    settled(client, {("scale", "1"): "UNAVAILABLE", ("other", ""): None})
    entry = next(it for it in client.get_model_repository_index() if it["name"] == "scale")
    assert entry["reason"] == "unloaded"
    assert client.is_server_ready()
    client.load_model("scale")
    assert ask(client) == 2.0


def test_some_or_all_models_are_loaded_at_the_start(repository, serve):
    for name in ("a", "b", "c"):
        write_identity(repository, name, ["INT32"])
    server = serve(EXPLICIT, "--load-model=a", "--load-model=c")
    with tritonclient.http.InferenceServerClient(server.url) as client:
        assert [client.is_model_ready(name) for name in "abc"] == [True, False, True]
    server = serve(EXPLICIT, "--load-model=*")
    with tritonclient.http.InferenceServerClient(server.url) as client:
        assert all(client.is_model_ready(name) for name in "abc")


def test_a_load_that_fails_says_why_and_leaves_what_is_served(explicit, repository):
    client, server = explicit
    client.load_model("scale")
    (repository / "scale" / "1" / "model.onnx").write_bytes(b"not a model")
    answer = request(server, "POST", "/v2/repository/models/scale/load")
    assert_refused(answer, 400)
    assert "version 1" in answer.json["error"]
    assert ask(client) == 2.0
    scaled(repository, 5.0)
    client.load_model("scale")
    assert ask(client) == 5.0
    (repository / "scale" / "config.pbtxt").write_text("max_batch_sise: 3")
    answer = request(server, "POST", "/v2/repository/models/scale/load")
    assert_refused(answer, 500)
    assert "max_batch_size" in answer.json["error"]
    assert ask(client) == 5.0
    assert_refused(request(server, "POST", "/v2/repository/models/nope/load"), 500)
    assert request(server, "POST", "/v2/repository/models/nope/unload").status == 200


@pytest.mark.parametrize(
    ("text", "version", "status"),
    [
        # Errors of the configuration alone are found before any version is read.
        (identity("max_batch_size: -1"), None, 500),
        (identity("no_such_field: 1"), None, 500),
        (identity().replace("identity", "no_such_backend"), "1", 400),
        (identity().replace("[ 2 ]", "[ 0 ]"), "1", 400),
        (identity().replace("[ 2 ]", "[ 2 ] reshape { shape: [ 3 ] }"), "1", 400),
        (identity().replace('"OUTPUT0"', '"OUTPUT0" label_filename: "gone.txt"'), "1", 400),
        (identity("instance_group { kind: KIND_GPU }"), "1", 400),
        (identity("version_policy { specific { versions: [ 7 ] } }"), None, 400),
    ],
)
def test_configuration_errors_are_distinguished_from_version_errors(explicit, repository, text, version, status):
    client, server = explicit
    write_model(repository, "wrong", text)
    assert_refused(request(server, "POST", "/v2/repository/models/wrong/load"), status)
    (entry,) = [entry for entry in client.get_model_repository_index() if entry["name"] == "wrong"]
    assert (entry.get("version"), entry["state"]) == (version, "UNAVAILABLE")
    assert entry["reason"]


def test_a_configuration_and_files_are_given_with_the_request(explicit, repository):
    client, _server = explicit
    client.load_model("scale")
    own = client.get_model_config("scale")
    client.load_model("scale", config=json.dumps(dict(own, max_batch_size=2)))
    assert client.get_model_config("scale")["max_batch_size"] == 2
    # What the server says of a configuration can be given back to it.
    client.load_model("scale", config=json.dumps(own))
    assert client.get_model_config("scale") == own
    new = scale_model("scale", 7.0).serialized()
    client.load_model("scale", config=json.dumps(own), files={"file:3/model.onnx": new})
    assert ask(client) == 7.0
    settled(client, {("scale", "1"): "UNAVAILABLE", ("scale", "3"): "READY", ("other", ""): None})


@pytest.mark.parametrize(
    "parameters",
    [
        {"config": {}},
        {"config": "{"},
        {"config": '{"name": "other"}'},
        {"config": '{"max_batch_sise": 1}'},
        {"file:1/model.onnx": "aGk="},
        {"config": "{}", "file:1/model.onnx": "%%%"},
        {"config": '{"backend": "identity"}', "file:../../evil": "aGk="},
        {"config": '{"backend": "identity"}', "file:/tmp/evil": "aGk="},
        {"something": "else"},
    ],
    ids=str,
)
def test_an_invalid_load_request_is_refused_and_nothing_changes(explicit, repository, parameters):
    client, server = explicit
    client.load_model("scale")
    before = client.get_model_config("scale")
    answer = request(server, "POST", "/v2/repository/models/scale/load", json.dumps({"parameters": parameters}))
    assert_refused(answer, 400, 500)
    assert client.get_model_config("scale") == before and ask(client) == 2.0
    assert not (repository.parent / "evil").exists()


@pytest.mark.parametrize("body", ["{", '{"parameters": 3}', "text", '{"parameters": {"config": 1, "unload_dependents": 1}}'])
def test_a_malformed_request_is_refused(explicit, body):
    _, server = explicit
    for path in ("models/scale/load", "models/scale/unload"):
        assert_refused(request(server, "POST", f"/v2/repository/{path}", body), 500)


@pytest.mark.parametrize("body", ["", "{}", "[]", "null", '"text"', '\ufeff{"parameters": {}}'])
def test_a_request_without_parameters_is_one_without_a_body(explicit, body):
    client, server = explicit
    for action, ready in (("load", True), ("unload", False)):
        answer = request(server, "POST", f"/v2/repository/models/scale/{action}", body.encode())
        assert answer.status == 200 and client.is_model_ready("scale") == ready


@pytest.mark.parametrize("name", ["..", ".", "..%2Fscale", "a%2Fb", "%2Fscale"])
def test_paths_are_not_names_of_models(explicit, name):
    _, server = explicit
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as by_grpc:
        for action in ("load", "unload"):
            assert_refused(request(server, "POST", f"/v2/repository/models/{name}/{action}"), 400)
            with pytest.raises(InferenceServerException, match="INVALID_ARGUMENT"):
                getattr(by_grpc, f"{action}_model")(name.replace("%2F", "/"))


def test_unknown_parameters_of_an_unload_are_ignored(explicit):
    client, server = explicit
    client.load_model("scale")
    body = '{"parameters": {"other": 3, "config": {}, "unload_dependents": false}}'
    assert request(server, "POST", "/v2/repository/models/scale/unload", body).status == 200
    assert not client.is_model_ready("scale")


@pytest.mark.parametrize("flags", [(), POLL], ids=["none", "poll"])
def test_models_are_controlled_by_request_in_explicit_mode_only(repository, serve, flags):
    scaled(repository, 2.0)
    server = serve(*flags)
    for action in ("load", "unload"):
        assert_refused(request(server, "POST", f"/v2/repository/models/scale/{action}"), 503)
    with tritonclient.http.InferenceServerClient(server.url) as client:
        assert ask(client) == 2.0


def test_a_model_is_swapped_under_load_without_a_failed_request(explicit, repository):
    client, server = explicit
    client.load_model("scale")
    stop, outcomes = threading.Event(), []

    def hammer():
        seen, errors = set(), []
        with tritonclient.http.InferenceServerClient(server.url) as own:
            while not stop.is_set():
                try:
                    seen.add(float(ask(own)))
                except InferenceServerException as error:
                    errors.append(str(error))
        outcomes.append((seen, errors))

    threads = [threading.Thread(target=hammer) for _ in range(8)]
    for thread in threads:
        thread.start()
    factors = [float(factor) for factor in range(3, 9)]
    for factor in factors:
        scaled(repository, factor)
        client.load_model("scale")
        assert ask(client) == factor
    stop.set()
    for thread in threads:
        thread.join()
    assert [errors for _, errors in outcomes] == [[]] * 8
    assert set().union(*(seen for seen, _ in outcomes)) <= {2.0, *factors}


def test_twenty_clients_load_and_unload_one_model_at_once(explicit):
    client, server = explicit
    outcomes = []

    def act(number):
        action = "load" if number % 2 else "unload"
        for _ in range(5):
            outcomes.append(request(server, "POST", f"/v2/repository/models/scale/{action}").status)

    threads = [threading.Thread(target=act, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == [200] * 100
    client.load_model("scale")
    assert ask(client) == 2.0


def test_the_server_follows_the_repository(repository, serve):
    scaled(repository, 2.0)
    server = serve(*POLL)
    with tritonclient.http.InferenceServerClient(server.url) as client:
        assert ask(client) == 2.0
        scaled(repository, 3.0, version=2)
        write_identity(repository, "other", ["INT32"])
        settled(client, {("scale", "1"): "UNAVAILABLE", ("scale", "2"): "READY", ("other", "1"): "READY"})
        assert ask(client) == 3.0
        shutil.rmtree(repository / "other")
        (repository / "scale" / "2" / "model.onnx").write_bytes(b"not a model")
        settled(client, {("scale", "1"): "UNAVAILABLE", ("scale", "2"): "READY"})
        server.wait_for_log("failed to load 'scale' version 2")
        # The broken one is not served, and does not end the following.
        assert ask(client) == 3.0
        scaled(repository, 4.0, version=2)
        deadline = time.monotonic() + LIMIT_S
        while ask(client) != 4.0:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_a_copy_in_progress_is_not_taken_up(repository, serve):
    server = serve(*POLL)
    model = scale_model("scale", 2.0)
    contents = model.serialized()
    # Grows by a piece after each poll.
    write_model(repository, "scale", model.config(), contents[:10])
    path = repository / "scale" / "1" / "model.onnx"
    lengths = [*range(20, len(contents), max(1, len(contents) // 3)), len(contents)]
    for polls, length in enumerate(lengths, 1):
        assert eventually(lambda: server.log.count("it is reloaded once a poll sees no further change") >= polls)
        path.write_bytes(contents[:length])
    with tritonclient.http.InferenceServerClient(server.url) as client:
        settled(client, {("scale", "1"): "READY"})
        assert ask(client) == 2.0
    assert "failed to load" not in server.log


def test_a_watched_repository_is_followed_without_waiting_for_the_poll(repository, serve):
    scaled(repository, 2.0)
    # Too long for the test: what happens, happens without it.
    server = serve("--model-control-mode=poll", "--repository-poll-secs=1000", "--repository-watch=true")
    with tritonclient.http.InferenceServerClient(server.url) as client:
        assert ask(client) == 2.0
        scaled(repository, 3.0)
        server.wait_for_log(r"'scale' has changed \(its configuration, version 1\) and is stable since the last poll", LIMIT_S)
        scaled(repository, 5.0, name="new")
        settled(client, {("scale", "1"): "READY", ("new", "1"): "READY"})
        assert (ask(client), ask(client, "new")) == (3.0, 5.0)
        shutil.rmtree(repository / "new")
        settled(client, {("scale", "1"): "READY"})
        for decision in ("'new' has changed \\(it is new\\); it is reloaded once a poll", "'new' is no longer in the repository"):
            server.wait_for_log(decision)


def test_a_change_before_the_repository_is_watched_is_followed(repository, gate):
    scaled(repository, 2.0)
    write_identity(repository, "last", ["INT32"], creation_gate=gate.path)
    flags = ("--model-control-mode=poll", "--repository-poll-secs=1000", "--repository-watch=true")
    server = nereid_server.Server(repository, *flags)
    try:
        server.wait_until_listening().wait_for_log("successfully loaded 'scale' version 1")
        last = gate.entered()
        scaled(repository, 3.0)
        last.release()
        with tritonclient.http.InferenceServerClient(server.url) as client:
            assert eventually(lambda: ask(client) == 3.0, limit_s=LIMIT_S), server.log
        server.stop()
    finally:
        server.kill()


def test_compiled_python_files_are_no_change_of_a_model(repository, serve):
    scaled(repository, 2.0)
    server = serve("--model-control-mode=explicit", "--load-model=scale")
    cache = repository / "scale" / "1" / "__pycache__"
    cache.mkdir()
    (cache / "model.cpython-312.pyc").write_bytes(b"compiled")
    with tritonclient.http.InferenceServerClient(server.url) as client:
        client.load_model("scale")
        assert server.log.count("loading 'scale' version 1") == 1
        scaled(repository, 3.0)
        client.load_model("scale")
        assert ask(client) == 3.0
        assert server.log.count("loading 'scale' version 1") == 2


def test_a_load_that_hangs_does_not_block_polling(repository, serve, gate):
    scaled(repository, 2.0)
    server = serve(*POLL)
    write_identity(repository, "hangs", ["INT32"], creation_gate=gate.path)
    with tritonclient.http.InferenceServerClient(server.url) as client:
        gate.entered()
        scaled(repository, 3.0)
        settled(client, {("scale", "1"): "READY", ("hangs", "1"): "LOADING"})
        server.wait_for_log("successfully loaded 'scale' version 1", LIMIT_S)
        deadline = time.monotonic() + LIMIT_S
        while ask(client) != 3.0:
            assert time.monotonic() < deadline, server.log
            time.sleep(0.05)
        assert index(client)[("hangs", "1")] == "LOADING"


def test_base64_of_a_file_may_be_given_by_hand(explicit):
    _, server = explicit
    own = {"backend": "identity", "input": [{"name": "INPUT0", "data_type": "TYPE_INT32", "dims": [1]}]}
    own["output"] = [{"name": "OUTPUT0", "data_type": "TYPE_INT32", "dims": [1]}]
    contents = base64.b64encode(b"nothing to see").decode()
    parameters = {"config": json.dumps(own), "file:1/readme": contents}
    answer = request(server, "POST", "/v2/repository/models/fresh/load", json.dumps({"parameters": parameters}))
    assert answer.status == 200, answer.body
    assert request(server, "GET", "/v2/models/fresh/ready").status == 200


def test_passive_instances_are_left_alone_and_a_gpu_is_refused_where_there_is_none(repository, serve):
    for name, groups in (
        ("wrong", "instance_group [ { count: 1 }, { passive: true count: 2 } ]"),
        ("idle", "instance_group { passive: true }"),
        ("gpu", "instance_group { kind: KIND_GPU gpus: [ 0 ] }"),
    ):
        write_model(repository, name, identity(groups).replace('name: "wrong"', f'name: "{name}"'))
    server = serve("--exit-on-error=false", ready=False, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    inputs = {"inputs": [tensor("INPUT0", "INT32", [2], [1, 2])]}
    assert all(infer(server, "wrong", inputs).status == 200 for _ in range(10))
    assert request(server, "GET", "/v2/models/idle/ready").status == 200
    assert_refused(infer(server, "idle", inputs), 503)
    reasons = {it["name"]: it.get("reason", "") for it in request(server, "POST", "/v2/repository/index").json}
    assert "no GPU is available" in reasons["gpu"]

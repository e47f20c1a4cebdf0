"""Repositories that break while they are served: the server reports what is wrong and serves the rest."""

import base64
import json
import os
import resource
import shutil
import tempfile
import threading
import time
from pathlib import Path

import pytest

import nereid_server
from http_requests import assert_refused, infer, request, tensor
from model_files import config, scale_model, write_model

EXPLICIT = "--model-control-mode=explicit"
POLL = ("--model-control-mode=poll", "--repository-poll-secs=1")
TOLERANT = "--exit-on-error=false"
ASK = {"inputs": [tensor("X", "FP32", [1, 3], [1.0, 2.0, 3.0])]}
LIMIT_S = 30
NOBODY = 65534


def load(server, name, **parameters):
    body = json.dumps({"parameters": parameters}) if parameters else None
    return request(server, "POST", f"/v2/repository/models/{name}/load", body)


def states(server):
    return {(it["name"], it.get("version", "")): it.get("state") for it in request(server, "POST", "/v2/repository/index").json}


def loop(folder):
    """A link that leads to itself."""
    folder.symlink_to(folder.name)


def a_loop_as_configuration(model):
    (model / "config.pbtxt").unlink()
    loop(model / "config.pbtxt")


def a_folder_as_configuration(model):
    (model / "config.pbtxt").unlink()
    (model / "config.pbtxt").mkdir()


def a_loop_as_model_file(model):
    (model / "1" / "model.onnx").unlink()
    loop(model / "1" / "model.onnx")


def a_link_to_nowhere_as_model_file(model):
    (model / "1" / "model.onnx").unlink()
    (model / "1" / "model.onnx").symlink_to("gone")


def a_file_as_version(model):
    shutil.rmtree(model / "1")
    (model / "1").write_text("not a folder")


def a_loop_as_version(model):
    shutil.rmtree(model / "1")
    loop(model / "1")


@pytest.mark.parametrize(
    "spoil",
    [
        a_loop_as_configuration,
        a_folder_as_configuration,
        a_loop_as_model_file,
        a_link_to_nowhere_as_model_file,
        a_file_as_version,
        a_loop_as_version,
    ],
)
def test_an_unreadable_model_fails_alone_until_it_is_fixed(repository, serve, spoil):
    scale_model("good").write(repository)
    scale_model("bad").write(repository)
    whole = repository.parent / "whole"
    shutil.copytree(repository / "bad", whole)
    spoil(repository / "bad")
    server = serve(*POLL, TOLERANT, ready=False)
    assert infer(server, "good", ASK).status == 200
    assert_refused(infer(server, "bad", ASK), 404)
    assert "READY" not in {state for (name, _), state in states(server).items() if name == "bad"}
    assert len([line for line in server.complaints if "'bad'" in line]) == 1, server.log
    shutil.rmtree(repository / "bad")
    shutil.copytree(whole, repository / "bad")
    deadline = time.monotonic() + LIMIT_S
    while infer(server, "bad", ASK).status != 200:
        assert time.monotonic() < deadline, server.log
        time.sleep(0.05)


def test_dangling_and_circular_links_are_not_models(repository, serve):
    scale_model("good").write(repository)
    loop(repository / "circle")
    (repository / "dangling").symlink_to("gone")
    (repository / "good" / "inside").symlink_to(repository)
    other = repository.parent / "other"
    other.mkdir()
    server = serve(*POLL, f"--model-repository={other}")
    assert states(server) == {("good", "1"): "READY"}
    server.wait_for_log("Started HTTPService")
    # A new model takes two polls, so the link that leads back changed nothing in two polls.
    scale_model("new").write(other)
    server.wait_for_log("successfully loaded 'new' version 1", LIMIT_S)
    assert server.log.count("loading 'good' version 1") == 1 and "'good' has changed" not in server.log


@pytest.fixture
def open_repository(monkeypatch):
    """A repository, and the binary, where every user can reach them."""
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        folder.chmod(0o755)
        monkeypatch.setenv("NEREID_BINARY", shutil.copy(nereid_server.binary(), folder))
        repository = folder / "models"
        repository.mkdir()
        yield repository


@pytest.mark.parametrize("locked", [".", "1", "config.pbtxt", "1/model.onnx"])
def test_missing_permissions_are_reported_and_the_rest_is_served(open_repository, locked):
    scale_model("good").write(open_repository)
    scale_model("bad").write(open_repository)
    (open_repository / "bad" / locked).chmod(0)
    # The superuser may read everything, so the server is somebody else.
    user = NOBODY if os.geteuid() == 0 else None
    with nereid_server.running(open_repository, TOLERANT, ready=False, user=user) as server:
        assert infer(server, "good", ASK).status == 200
        assert_refused(infer(server, "bad", ASK), 404)
        assert any("'bad'" in line and "Permission denied" in line for line in server.complaints), server.log
    (open_repository / "bad" / locked).chmod(0o755)


def test_a_version_that_vanishes_while_it_is_loaded_fails_and_comes_back(repository, serve):
    server = serve(EXPLICIT)
    model = scale_model("going")
    outcomes = []
    stop = threading.Event()

    def come_and_go():
        while not stop.is_set():
            shutil.rmtree(repository / "going", ignore_errors=True)
            write_model(repository, "going", model.config(), model.serialized())

    mover = threading.Thread(target=come_and_go)
    mover.start()
    for _ in range(40):
        outcomes.append(load(server, "going").status)
        request(server, "POST", "/v2/repository/models/going/unload")
    stop.set()
    mover.join()
    assert set(outcomes) <= {200, 400, 500}
    assert load(server, "going").status == 200
    assert infer(server, "going", ASK).json["outputs"][0]["data"] == [2.0, 4.0, 6.0]


def test_a_configuration_that_changes_while_the_model_is_loaded_is_taken_up_next(repository, serve, gate):
    def write(count):
        text = config("slow", "identity", [("INPUT0", "INT32", [1])], [("OUTPUT0", "INT32", [1])])
        extra = f'parameters {{ key: "creation_gate" value {{ string_value: "{gate.path}" }} }}'
        new = repository / "slow" / ".config"
        new.write_text(text.replace("count: 1", f"count: {count}") + extra)
        new.replace(repository / "slow" / "config.pbtxt")

    (repository / "slow" / "1").mkdir(parents=True)
    write(count=1)
    server = serve(EXPLICIT)
    outcome = []
    loading = threading.Thread(target=lambda: outcome.append(load(server, "slow").status))
    loading.start()
    gate.entered()
    write(count=3)
    gate.open()
    loading.join()

    def groups():
        return request(server, "GET", "/v2/models/slow/config").json["instance_group"][0]["count"]

    assert (outcome, groups()) == ([200], 1)
    assert load(server, "slow").status == 200
    assert groups() == 3


def test_a_full_disk_refuses_the_files_of_a_request_and_nothing_else(repository, serve, tmp_path):
    scale_model("good").write(repository)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    server = serve(EXPLICIT, "--load-model=good", env={**os.environ, "TMPDIR": str(temporary)})
    # Like a full disk, this fails writes once the file has this many bytes.
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (4096, 4096))
    large = base64.b64encode(bytes(100_000)).decode()
    given = {"config": '{"backend": "onnxruntime"}', "file:1/model.onnx": large}
    answer = load(server, "good", **given)
    assert_refused(answer, 500)
    assert "cannot keep the files" in answer.json["error"]
    assert infer(server, "good", ASK).status == 200
    # Half of a file is not left behind.
    assert [path.name for path in temporary.rglob("*") if path.is_file()] == ["lock"]
    small = base64.b64encode(scale_model("good", 5).serialized()).decode()
    assert load(server, "good", **{**given, "file:1/model.onnx": small}).status == 200
    assert infer(server, "good", ASK).json["outputs"][0]["data"] == [5.0, 10.0, 15.0]

"""The files that clients send with load requests: nobody else may read them, and none outlive their server for long."""

import base64
import json
import os
from pathlib import Path

import pytest

import nereid_server
from http_requests import infer, request, tensor
from model_files import scale_model
from waiting import eventually

EXPLICIT = "--model-control-mode=explicit"
ASK = {"inputs": [tensor("X", "FP32", [1, 3], [1.0, 2.0, 3.0])]}


@pytest.fixture
def temporary(tmp_path):
    folder = tmp_path / "temporary"
    folder.mkdir()
    return folder


def start(repository, temporary):
    return nereid_server.running(repository, EXPLICIT, env={**os.environ, "TMPDIR": str(temporary)})


def send(server, name, tmp_path):
    scale_model(name).write(tmp_path)
    file = base64.b64encode((tmp_path / name / "1" / "model.onnx").read_bytes()).decode()
    config = json.dumps({"backend": "onnxruntime", "max_batch_size": 8})
    body = json.dumps({"parameters": {"config": config, "file:1/model.onnx": file}})
    assert request(server, "POST", f"/v2/repository/models/{name}/load", body).status == 200
    assert infer(server, name, ASK).status == 200


def files(temporary):
    # Folders may go while they are walked through, which this leaves out.
    return [Path(folder) / "model.onnx" for folder, _, names in os.walk(temporary) if "model.onnx" in names]


def test_files_are_private_and_go_with_their_model(repository, temporary, tmp_path):
    with start(repository, temporary) as server:
        for name in ("a", "b"):
            send(server, name, tmp_path)
        assert len(files(temporary)) == 2
        for folder in temporary.iterdir():
            assert folder.stat().st_mode & 0o777 == 0o700
        assert request(server, "POST", "/v2/repository/models/a/unload").status == 200
        assert eventually(lambda: len(files(temporary)) == 1)
    assert list(temporary.iterdir()) == []


def test_a_plain_load_serves_what_the_repository_has(repository, temporary, tmp_path):
    scale_model("m", factor=5.0).write(repository)
    with start(repository, temporary) as server:
        send(server, "m", tmp_path)
        assert infer(server, "m", ASK).json["outputs"][0]["data"] == [2.0, 4.0, 6.0]
        for _ in range(2):
            assert request(server, "POST", "/v2/repository/models/m/load").status == 200
            assert infer(server, "m", ASK).json["outputs"][0]["data"] == [5.0, 10.0, 15.0]
        assert eventually(lambda: files(temporary) == [])


def test_the_next_start_removes_what_a_killed_server_left(repository, temporary, tmp_path):
    with start(repository, temporary) as killed, start(repository, temporary) as living:
        send(killed, "m", tmp_path)
        send(living, "n", tmp_path)
        killed.kill()
        assert len(files(temporary)) == 2
        with start(repository, temporary) as other:
            assert len(files(temporary)) == 1
            assert "which a server left behind" in other.log
            assert infer(living, "n", ASK).status == 200
            send(other, "o", tmp_path)
    assert list(temporary.iterdir()) == []

"""FIFOs, sockets, devices and directories in the place of a model's files, and names that lead out of its folder: the
server refuses the model at once and serves the rest, and `nereid check` reports it."""

import base64
import json
import os
import socket
import subprocess

import onnx
import pytest

import nereid_server
from http_requests import assert_refused, infer, request, tensor
from model_files import scale_model
from onnx_engines import FLAGS

TOLERANT = "--exit-on-error=false"
ASK = {"inputs": [tensor("X", "FP32", [1, 3], [1.0, 2.0, 3.0])]}
LIMIT_S = 60


def fifo(path):
    os.mkfifo(path)


def bound_socket(path):
    with socket.socket(socket.AF_UNIX) as it:
        folder = os.getcwd()
        # The address of a socket has room for about a hundred bytes.
        os.chdir(path.parent)
        it.bind(path.name)
        os.chdir(folder)


def link_to(target):
    def make(path):
        path.symlink_to(target)

    return make


SPECIAL = {
    "fifo": (fifo, "a FIFO"),
    "socket": (bound_socket, "a socket"),
    "zero": (link_to("/dev/zero"), "a character device"),
    "full": (link_to("/dev/full"), "a character device"),
    "directory": (lambda path: path.mkdir(), "a directory"),
}


def with_field(model, text):
    path = model / "config.pbtxt"
    path.write_text(f"{path.read_text()}\n{text}")


def as_configuration(model):
    (model / "config.pbtxt").unlink()
    return model / "config.pbtxt"


def as_model(model):
    (model / "1" / "model.onnx").unlink()
    return model / "1" / "model.onnx"


def as_named_model(model):
    with_field(model, 'default_model_filename: "other"')
    return model / "1" / "other"


def as_labels(model):
    path = model / "config.pbtxt"
    path.write_text(path.read_text().replace('output { name: "Y"', 'output { label_filename: "labels" name: "Y"'))
    assert "labels" in path.read_text()
    return model / "labels"


def as_warm_up(model):
    value = 'value { data_type: TYPE_FP32 dims: [ 3 ] input_data_file: "sample" }'
    with_field(model, f'model_warmup {{ name: "w" batch_size: 1 inputs {{ key: "X" {value} }} }}')
    (model / "warmup").mkdir()
    return model / "warmup" / "sample"


def as_external_data(model):
    file = model / "1" / "model.onnx"
    onnx.save(onnx.load(file), file, save_as_external_data=True, location="weights", size_threshold=0)
    (model / "1" / "weights").unlink()
    return model / "1" / "weights"


POSITIONS = [as_configuration, as_model, as_named_model, as_labels, as_warm_up, as_external_data]


def spoiled(position, kind):
    """Whether a directory is in order there, where a folder may hold the model."""
    return not (kind == "directory" and position in (as_model, as_named_model))


CASES = [(position, kind) for position in POSITIONS for kind in SPECIAL if spoiled(position, kind)]


@pytest.fixture
def special(repository):
    """A repository with a good model, and one model for each position and kind of file."""
    scale_model("good").write(repository)
    expected = {}
    for position, kind in CASES:
        name = f"{position.__name__}_{kind}"
        scale_model(name).write(repository)
        make, what = SPECIAL[kind]
        make(position(repository / name))
        expected[name] = what
    return expected


@pytest.mark.parametrize("engine", FLAGS)
@pytest.mark.parametrize("mode", ["none", "poll"])
def test_a_special_file_fails_its_model_alone_and_at_once(special, serve, engine, mode):
    server = serve(TOLERANT, f"--model-control-mode={mode}", *FLAGS[engine], ready=False)
    assert infer(server, "good", ASK).status == 200
    index = {it["name"]: it for it in request(server, "POST", "/v2/repository/index").json}
    for name, what in special.items():
        assert index[name]["state"] == "UNAVAILABLE", (name, index[name])
        # The embedded engine does not follow links that lead out of the folder to external data.
        told = [what] if engine == "ort" else [what, "resolves outside the model directory"]
        assert any(it in index[name]["reason"] for it in told), (name, index[name])


def test_the_check_reports_special_files(special, repository):
    command = [nereid_server.binary(), "check", str(repository), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL)
    assert done.returncode == 1, done
    models = {model["name"]: model for model in json.loads(done.stdout)["models"]}
    assert models["good"]["would_load"]
    # What an ONNX file refers to, only a load tells.
    told = {name: what for name, what in special.items() if not name.startswith("as_external_data")}
    problems = json.loads(done.stdout)["problems"]
    for name, what in told.items():
        assert not models[name]["would_load"], name
        assert any(it["model"] == name and what in it["message"] for it in problems), (name, problems)


OUTSIDE = ["/dev/zero", "/etc/passwd", "../../good/1/model.onnx", "../1/model.onnx", ".."]


@pytest.mark.parametrize("engine", FLAGS)
def test_a_client_cannot_name_a_file_outside_of_the_models_folder(repository, serve, engine):
    scale_model("good").write(repository)
    scale_model("m").write(repository)
    file = base64.b64encode((repository / "m" / "1" / "model.onnx").read_bytes()).decode()
    server = serve("--model-control-mode=explicit", "--load-model=good", *FLAGS[engine])
    for name in OUTSIDE:
        fields: list[dict] = [
            {"default_model_filename": name},
            {"output": [{"name": "Y", "data_type": "TYPE_FP32", "dims": [3], "label_filename": f"x/../../{name}"}]},
            {
                "model_warmup": [
                    {
                        "name": "w",
                        "batch_size": 1,
                        "inputs": {"X": {"data_type": "TYPE_FP32", "dims": [3], "input_data_file": name}},
                    }
                ]
            },
        ]
        for field in fields:
            for files in ({}, {"file:1/model.onnx": file}):
                override = json.dumps({"backend": "onnxruntime", "max_batch_size": 8, **field})
                body = json.dumps({"parameters": {"config": override, **files}})
                answer = request(server, "POST", "/v2/repository/models/m/load", body)
                # 500 where the configuration itself is refused, as in the reference.
                assert_refused(answer, 400, 500)
                assert "within the model's folder" in answer.json["error"], (field, answer.json)
    assert infer(server, "good", ASK).status == 200


@pytest.mark.parametrize("engine", FLAGS)
@pytest.mark.parametrize("location", ["/dev/zero", "/etc/passwd", "../secret", "a/../../secret", "*/_ORT_MEM_ADDR_/*"])
def test_a_client_cannot_have_weights_read_from_elsewhere(repository, serve, tmp_path, engine, location):
    scale_model("m").write(repository)
    proto = onnx.load(repository / "m" / "1" / "model.onnx")
    onnx.save(proto, tmp_path / "it.onnx", save_as_external_data=True, location="weights", size_threshold=0)
    proto = onnx.load(tmp_path / "it.onnx", load_external_data=False)
    for constant in proto.graph.initializer:
        for entry in constant.external_data:
            if entry.key == "location":
                entry.value = location
    server = serve("--model-control-mode=explicit", *FLAGS[engine])
    parameters = {
        "config": json.dumps({"backend": "onnxruntime", "max_batch_size": 8}),
        "file:1/model.onnx": base64.b64encode(proto.SerializeToString()).decode(),
    }
    answer = request(server, "POST", "/v2/repository/models/m/load", json.dumps({"parameters": parameters}))
    assert_refused(answer, 400)
    assert "external data" in answer.json["error"], answer.json

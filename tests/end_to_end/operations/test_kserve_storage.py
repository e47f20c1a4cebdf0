"""Models as KServe's own storage initialiser puts them into a container, served by the containers of deploy/kserve: each format, from
folders, archives on the web and Hugging Face's hub.
"""

import http.server
import io
import json
import os
import shutil
import tarfile
import threading
import zipfile
from contextlib import contextmanager
from functools import partial

import numpy as np
import openvino
import pytest
from openvino import opset13 as ops

import gguf_models
import kserve_storage
import llamacpp_package
import openvino_models
import silero_package
import tensorflow_models
import torch_package
import transformers_package
from http_requests import request, tensor
from hubs import Delivery, HuggingFace
from kserve_containers import Container
from model_files import scale_model
from places import ROOT

FORESTS = ROOT / "crates/engines/forest/tests/models"
LIMIT_S = 300
DOUBLED = """
import triton_python_backend_utils as utils

class TritonPythonModel:
    def execute(self, requests):
        inputs = [utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        return [utils.InferenceResponse([utils.Tensor("Y", values * 2)]) for values in inputs]
"""
DECLARED = """
max_batch_size: 8
input { name: "X" data_type: TYPE_FP32 dims: 3 }
output { name: "Y" data_type: TYPE_FP32 dims: 3 }
"""
TORCH = DECLARED.replace('"X"', '"INPUT__0"').replace('"Y"', '"OUTPUT__0"')


def write_onnx(folder):
    (folder / "scale.onnx").write_bytes(scale_model("scale").serialized())


def write_onnx_versions(folder):
    for version in (1, 2):
        (folder / str(version)).mkdir()
        (folder / str(version) / "model.onnx").write_bytes(scale_model("scale", factor=float(version)).serialized())


def write_openvino(folder):
    network = openvino_models.network("scale", [("X", "FP32", [-1, 3])], lambda x: {"Y": ops.multiply(x, np.float32(2))})
    openvino.save_model(network, folder / "scale.xml", compress_to_fp16=False)


def write_tensorflow(folder):
    """As TensorFlow Serving has it."""
    for version, factor in (("0001", 3.0), ("0012", 2.0)):
        (folder / version).mkdir()
        graph = tensorflow_models.scaled([-1, 3], factor)
        saved = tensorflow_models.saved_model(graph, [-1, 3], [("X", "x:0")], [("Y", "y:0")])
        (folder / version / "saved_model.pb").write_bytes(saved)


def write_python(folder):
    (folder / "model.py").write_text(DOUBLED)
    (folder / "config.pbtxt").write_text(DECLARED)


def write_pytorch(folder):
    models = folder.parent / "torch"
    torch_package.run(torch_package.MODELS, models, silero_package.torchscript())
    shutil.copy(models / "Twice" / "1" / "model.pt", folder)
    (folder / "config.pbtxt").write_text(TORCH)


# Models that double their input.
FORMATS = {
    "onnx": (write_onnx, "X", "Y"),
    "onnx, versions": (write_onnx_versions, "X", "Y"),
    "openvino": (write_openvino, "X", "Y"),
    "tensorflow": (write_tensorflow, "X", "Y"),
    "python": (write_python, "X", "Y"),
    "pytorch": (write_pytorch, "INPUT__0", "OUTPUT__0"),
}
FLAGS = {
    "openvino": openvino_models.FLAGS,
    # By OpenVINO, which the image has.
    "tensorflow": openvino_models.FLAGS,
    "pytorch": [f"--backend-config=pytorch,library={torch_package.LIBRARY_FOLDER}"],
}


def doubles(server, model, given, expected):
    body = {"inputs": [tensor(given, "FP32", [2, 3], [1, 2, 3, 4, 5, 6])]}
    answer = request(server, "POST", f"/v2/models/{model}/infer", json.dumps(body))
    assert answer.status == 200, answer.body
    (output,) = answer.json["outputs"]
    assert (output["name"], output["data"]) == (expected, [2, 4, 6, 8, 10, 12])


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "source"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("kind", FORMATS)
def test_a_model_of_each_format_is_served_as_the_initialiser_links_it(source, tmp_path, kind):
    write, given, expected = FORMATS[kind]
    write(source)
    models = kserve_storage.initialise(f"file://{source}", tmp_path / "mounted")
    assert any(path.is_symlink() for path in models.iterdir())
    variables = torch_package.environment() if kind == "pytorch" else {}
    with Container(
        "nereid-model", models, tmp_path / "added", "double", *FLAGS.get(kind, []), limit_s=LIMIT_S, **variables
    ) as server:
        doubles(server, "double", given, expected)
    # Nothing was copied.
    copies = [path.name for path in (tmp_path / "added").rglob("*") if path.is_file() and not path.is_symlink()]
    assert [name for name in copies if name != "config.pbtxt" and not name.endswith(".pyc")] == []


@pytest.mark.parametrize(
    "model, name",
    [
        ("xgb_base_score.json", "model.bst"),
        ("xgb_base_score.json", "model.json"),
        ("xgb_base_score.ubj", "model.bst"),
        ("xgb_base_score.ubj", "model.ubj"),
        ("xgb_base_score.deprecated", "model.bst"),
        ("lgb_regression.txt", "model.bst"),
        ("lgb_regression.txt", "model.txt"),
    ],
)
def test_forests_have_any_name_that_kserves_own_runtimes_take(source, tmp_path, model, name):
    shutil.copy(FORESTS / model, source / name)
    models = kserve_storage.initialise(f"file://{source}", tmp_path / "mounted")
    with Container("nereid-model", models, tmp_path / "added", "churn") as server:
        metadata = request(server, "GET", "/v2/models/churn").json
        (size,) = metadata["inputs"][0]["shape"][1:]
        body = {"inputs": [tensor("input__0", "FP32", [1, size], [0.5] * size)]}
        answer = request(server, "POST", "/v2/models/churn/infer", json.dumps(body))
        assert answer.status == 200 and np.isfinite(answer.json["outputs"][0]["data"]).all()


def test_a_repository_is_served_by_its_own_names(source, tmp_path):
    """As KServe's runtime of Triton serves it, whatever format the service names."""
    for name in ("first", "second"):
        scale_model(name).write(source)
    (source / "bare" / "1").mkdir(parents=True)
    (source / "bare" / "1" / "model.onnx").write_bytes(scale_model("bare").serialized())
    models = kserve_storage.initialise(f"file://{source}", tmp_path / "mounted")
    with Container("nereid-model", models, tmp_path / "added", "service") as server:
        for name in ("first", "second", "bare"):
            doubles(server, name, "X", "Y")


class Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@contextmanager
def web(folder):
    """A server of files; gives its address."""
    # Of archives, the initialiser wants to know the type.
    Handler.extensions_map = {
        ".zip": "application/zip",
        ".tar": "application/x-tar",
        ".gz": "application/gzip",
        "": "application/octet-stream",
    }
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.mark.parametrize("name", ["scale.onnx", "scale.zip", "scale.tar", "scale.tar.gz"])
def test_a_file_or_an_archive_of_the_web_is_served(source, tmp_path, name):
    contents, made = scale_model("scale").serialized(), io.BytesIO()
    if name.endswith("zip"):
        with zipfile.ZipFile(made, "w") as archive:
            archive.writestr("model.onnx", contents)
    elif ".tar" in name:
        with tarfile.open(fileobj=made, mode="w:gz" if name.endswith("gz") else "w") as archive:
            entry = tarfile.TarInfo("model.onnx")
            entry.size = len(contents)
            archive.addfile(entry, io.BytesIO(contents))
    else:
        made.write(contents)
    (source / name).write_bytes(made.getvalue())
    with web(source) as address:
        models = kserve_storage.initialise(f"{address}/{name}", tmp_path / "mounted")
    with Container("nereid-model", models, tmp_path / "added", "double") as server:
        doubles(server, "double", "X", "Y")


@pytest.fixture
def hub():
    """A stand-in for Hugging Face's hub."""
    delivery = Delivery()
    hub = HuggingFace(delivery)
    with delivery.running(), hub.running():
        yield hub


def complete(server, prefix):
    body = {"model": "chat", "prompt": "ab", "max_tokens": 4}
    answer = request(server, "POST", f"{prefix}/v1/completions", json.dumps(body), {"content-type": "application/json"})
    return answer.status, answer.json


def check_text(server):
    """The model's name is the service's, and it answers at both of its addresses."""
    for prefix in ("/openai", ""):
        listed = request(server, "GET", f"{prefix}/v1/models").json
        assert [model["id"] for model in listed["data"]] == ["chat"]
        status, answer = complete(server, prefix)
        assert status == 200 and answer["usage"]["completion_tokens"] == 4, answer
    assert request(server, "POST", "/openai/v1/nothing", "{}").json["error"]["type"] == "invalid_request_error"


def test_a_gguf_file_of_the_hub_is_served(hub, tmp_path):
    files = {"README.md": b"# a model", ".gitattributes": b"x", "chat.Q4_K_M.gguf": gguf_models.gguf()}
    hub.put_files("owner/chat-GGUF", files)
    models = kserve_storage.initialise("hf://owner/chat-GGUF", tmp_path / "mounted", HF_ENDPOINT=hub.origin)
    with Container("nereid-text", models, tmp_path / "added", "chat", llamacpp_package.flag(), limit_s=LIMIT_S) as server:
        check_text(server)


def test_one_of_several_gguf_files_is_named_by_a_variable(hub, tmp_path):
    files = {f"chat.{kind}.gguf": gguf_models.gguf(seed) for seed, kind in enumerate(("Q4_K_M", "Q8_0"), 1)}
    hub.put_files("owner/chat-GGUF", files)
    models = kserve_storage.initialise("hf://owner/chat-GGUF", tmp_path / "mounted", HF_ENDPOINT=hub.origin)
    more = llamacpp_package.flag()
    refused = Container("nereid-text", models, tmp_path / "refused", "chat", more)
    assert refused.process.wait(LIMIT_S) == 1
    with Container("nereid-text", models, tmp_path / "added", "chat", more, limit_s=LIMIT_S, MODEL_FILE="chat.Q8_0.gguf") as server:
        check_text(server)


def test_a_folder_of_the_hub_is_served(hub, tmp_path):
    flag = transformers_package.NEWEST.flag()
    folder = transformers_package.models()[0] / "llama"
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    hub.put_files("owner/chat", files | {"README.md": b"# a model", ".gitattributes": b"x", "pytorch_model.bin": b"not read"})
    models = kserve_storage.initialise("hf://owner/chat", tmp_path / "mounted", HF_ENDPOINT=hub.origin)
    variables = {name: value for name, value in transformers_package.environment().items() if os.environ.get(name) != value}
    with Container("nereid-text", models, tmp_path / "added", "chat", flag, limit_s=LIMIT_S, **variables) as server:
        check_text(server)

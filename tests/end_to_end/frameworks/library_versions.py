"""Every promised release of the frameworks' libraries: load, infer, reload, unload, and the end of the process. Not among the
default tests, because the libraries take 2 GB: `cargo xtask test versions`.
"""

import os
import re

import numpy as np
import pytest

import nereid_server
import tensorflow_models
from http_requests import infer, request, tensor
from library_releases import RELEASES, folder
from model_files import scale_model
from openvino_models import tensors

# Each framework's name in the server's log.
NAMES = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO", "tensorflow": "TensorFlow"}
ENDINGS = ["serving", "unloaded", "failed"]


def flags(framework, release):
    settings = [f"library={folder(framework, release)}"]
    if framework == "onnxruntime":
        settings.append("engine=ort")
    return [f"--backend-config={framework},{setting}" for setting in settings]


def write_double(repository, framework):
    """Writes model `double` for a framework, and returns the path of its file."""
    if framework == "tensorflow":
        config = 'platform: "tensorflow_graphdef" max_batch_size: 8\n'
        config += tensors("input", ("X", "FP32", [3])) + tensors("output", ("Y", "FP32", [3]))
        factor = tensorflow_models.constant("factor", "FP32", np.float32(2))
        double = tensorflow_models.node("Y", "Mul", ["X", "factor"], T=tensorflow_models.type_of("FP32"))
        graph = tensorflow_models.graph(tensorflow_models.placeholder("X", "FP32", [-1, 3]), factor, double)
        tensorflow_models.write(repository, "double", graph, config)
        return repository / "double/1/model.graphdef"
    scale_model("double").write(repository)
    if framework == "openvino":
        config = 'backend: "openvino" default_model_filename: "model.onnx" max_batch_size: 8'
        (repository / "double" / "config.pbtxt").write_text(config)
    return repository / "double/1/model.onnx"


def assert_doubles(server):
    for rows in (1, 3, 8):
        values = np.arange(rows * 3, dtype=np.float32) - 4.5
        body = {"inputs": [tensor("X", "FP32", [rows, 3], values.tolist())]}
        (output,) = infer(server, "double", body).json["outputs"]
        np.testing.assert_array_equal(output["data"], values * 2)


def check_release(repository, framework, release, ending):
    """Serves a model on a release of a framework's library until it is reloaded, unloaded or replaced by a damaged one, then stops."""
    model = write_double(repository, framework)
    explicit = ["--model-control-mode=explicit", "--load-model=double"]
    with nereid_server.running(repository, *flags(framework, release), *explicit) as server:
        server.wait_for_log(f"{NAMES[framework]} {re.escape(release)}")
        assert_doubles(server)
        if ending == "failed":
            model.write_bytes(b"not a model")
            assert request(server, "POST", "/v2/repository/models/double/load").status == 400
        else:
            os.utime(model)
            assert request(server, "POST", "/v2/repository/models/double/load").status == 200
        assert_doubles(server)
        if ending == "unloaded":
            assert request(server, "POST", "/v2/repository/models/double/unload").status == 200
        server.stop()
        assert server.exit_code == 0


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize(
    ("framework", "release"), [(framework, release) for framework, releases in RELEASES.items() for release in releases]
)
def test_server_on_a_release_answers_and_exits_cleanly(repository, framework, release, ending):
    check_release(repository, framework, release, ending)

"""Every promised release of the frameworks' libraries: load, infer, reload, unload, and the end of the process. Not among the
default tests, because the libraries take 5 GB: `cargo xtask test versions`.
"""

import json
import os
import re
import shutil

import numpy as np
import pytest
import test_torch_packages

import nereid_server
import processes
import silero_package
import tensorflow_models
import torch_package
import torch_wheel
from http_requests import infer, request, tensor
from library_releases import HOME, RELEASES, environment, folder
from model_files import scale_model
from once import once
from openvino_models import tensors

# How the server's log names each library. It does not know the release of libtorch.
NAMES = {"onnxruntime": "ONNX Runtime {}", "openvino": "OpenVINO {}", "tensorflow": "TensorFlow {}", "pytorch": "libtorch"}
ENDINGS = ["serving", "unloaded", "failed"]
# A server may compile the shim for libtorch first.
START_LIMIT_S = 400
TORCH_MODELS = HOME / "torch-models"


def flags(framework, release):
    settings = [f"library={folder(framework, release)}"]
    if framework == "onnxruntime":
        settings.append("engine=ort")
    return [f"--backend-config={framework},{setting}" for setting in settings]


def torch_models():
    """A folder with a folder for each TorchScript model, and what the oldest release answers in its own Python."""

    def write():
        answers = torch_package.run(torch_package.MODELS, TORCH_MODELS, silero_package.torchscript())
        (TORCH_MODELS / "answers.json").write_text(json.dumps(answers))

    HOME.mkdir(exist_ok=True)
    once(TORCH_MODELS, write)
    return TORCH_MODELS, json.loads((TORCH_MODELS / "answers.json").read_text())


def write_double(repository, framework):
    """Writes model `double` for a framework, and returns the path of its file."""
    declared = tensors("input", ("X", "FP32", [3])) + tensors("output", ("Y", "FP32", [3]))
    if framework == "tensorflow":
        config = f'platform: "tensorflow_graphdef" max_batch_size: 8\n{declared}'
        factor = tensorflow_models.constant("factor", "FP32", np.float32(2))
        double = tensorflow_models.node("Y", "Mul", ["X", "factor"], T=tensorflow_models.type_of("FP32"))
        graph = tensorflow_models.graph(tensorflow_models.placeholder("X", "FP32", [-1, 3]), factor, double)
        tensorflow_models.write(repository, "double", graph, config)
        return repository / "double/1/model.graphdef"
    if framework == "pytorch":
        shutil.copytree(torch_models()[0] / "Twice", repository / "double")
        (repository / "double/config.pbtxt").write_text(f'backend: "pytorch" max_batch_size: 8\n{declared}')
        return repository / "double/1/model.pt"
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


def running(repository, framework, release, *more):
    """A server on a release of a framework's library."""
    variables = os.environ | environment(framework, release)
    return nereid_server.running(repository, *flags(framework, release), *more, env=variables, limit_s=START_LIMIT_S)


def check_release(repository, framework, release, ending):
    """Serves a model on a release of a framework's library until it is reloaded, unloaded or replaced by a damaged one, then stops."""
    model = write_double(repository, framework)
    with running(repository, framework, release, "--model-control-mode=explicit", "--load-model=double") as server:
        server.wait_for_log(NAMES[framework].format(re.escape(release)))
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
        processes.stop_all_of(server)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize(
    ("framework", "release"), [(framework, release) for framework, releases in RELEASES.items() for release in releases]
)
def test_server_on_a_release_answers_and_exits_cleanly(repository, framework, release, ending):
    check_release(repository, framework, release, ending)


@pytest.mark.parametrize("release", RELEASES["pytorch"])
def test_real_networks_answer_on_every_libtorch_as_in_the_python_of_the_oldest(repository, release):
    folder, answers = torch_models()
    declared = tensors("input", ("x", "FP32", [4, -1])) + tensors("output", ("OUTPUT__0", "FP32", [5]))
    shutil.copytree(folder / "Network", repository / "network")
    (repository / "network/config.pbtxt").write_text(f'backend: "pytorch" max_batch_size: 8\n{declared}')
    (repository / "speech/1").mkdir(parents=True)
    shutil.copy(silero_package.torchscript(), repository / "speech/1/model.pt")
    declared = tensors("input", ("x", "FP32", [1, 512]), ("sr", "INT64", [1])) + tensors("output", ("y", "FP32", [1, 1]))
    (repository / "speech/config.pbtxt").write_text(f'backend: "pytorch"\n{declared}')
    with running(repository, "pytorch", release) as server:
        for values, expected in answers["network"]:
            values = np.array(values, np.float32)
            body = {"inputs": [tensor("x", "FP32", values.shape, values.ravel().tolist())]}
            (output,) = infer(server, "network", body).json["outputs"]
            np.testing.assert_allclose(output["data"], np.ravel(expected), rtol=1e-4, atol=1e-6)
        for sound, expected in answers["speech"]:
            body = {"inputs": [tensor("x", "FP32", [1, 512], np.ravel(sound).tolist()), tensor("sr", "INT64", [1], [16000])]}
            (output,) = infer(server, "speech", body).json["outputs"]
            np.testing.assert_allclose(output["data"], np.ravel(expected), rtol=1e-4, atol=1e-6)
        processes.stop_all_of(server)


@pytest.mark.parametrize("engine", ["library", "python"])
@pytest.mark.parametrize("wheel", [torch_wheel.OLDEST_WITH_PACKAGES, torch_wheel.NEWEST], ids=["oldest", "newest"])
def test_packages_of_a_pytorch_answer_as_in_its_python(repository, tmp_path, wheel, engine):
    folder, cases = wheel.models(torch_wheel.MODELS)
    sources, targets = test_torch_packages.NAMES
    shutil.copytree(folder / "Nested", repository / "nested")
    file = repository / "nested/1/model.pt2"
    (repository / "nested/config.pbtxt").write_text('platform: "torch_aoti"\n' + test_torch_packages.nested(sources, targets))
    settings = [f"pytorch,engine={engine}", f"pytorch,library={wheel.library_folder}"]
    if engine == "python":
        settings[1] = f"python,python={test_torch_packages.environment_with(wheel, tmp_path)}"
    options = ["--model-control-mode=explicit", "--load-model=nested", *(f"--backend-config={setting}" for setting in settings)]
    variables = os.environ | wheel.environment()
    with nereid_server.running(repository, *options, env=variables, limit_s=START_LIMIT_S) as server:
        test_torch_packages.check_cases(server, "nested", sources, targets, cases)
        os.utime(file)
        assert request(server, "POST", "/v2/repository/models/nested/load").status == 200
        test_torch_packages.check_cases(server, "nested", sources, targets, cases)
        file.write_bytes(file.read_bytes()[:-5000])
        assert request(server, "POST", "/v2/repository/models/nested/load").status == 400
        test_torch_packages.check_cases(server, "nested", sources, targets, cases)
        processes.stop_all_of(server)

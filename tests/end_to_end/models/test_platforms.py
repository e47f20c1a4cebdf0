"""Each platform of Triton's documents serves a model, or says in one sentence what it needs."""

import os
import shutil

import numpy as np
import pytest
import tritonclient.http

import netdef_cases
import onnx_engines
import silero_package
import tensorflow_models
import tensorflow_package
import torch_package
import torch_wheel
from http_requests import request
from model_files import scale_model, write_model
from openvino_models import tensors
from tensors import given

FLAGS = [*onnx_engines.FLAGS["ort"], *tensorflow_package.FLAGS]


def configuration(platform, source, target):
    declared = tensors("input", (source, "FP32", [3])) + tensors("output", (target, "FP32", [3]))
    return f'platform: "{platform}"\nmax_batch_size: 4\n{declared}'


def onnx(repository, name, config):
    write_model(repository, name, config, scale_model(name).serialized())


def graphdef(repository, name, config):
    tensorflow_models.write(repository, name, tensorflow_models.scaled([-1, 3]), config)


def saved_model(repository, name, config):
    tensorflow_models.write(repository, name, tensorflow_models.scaled([-1, 3]), config, shape=[-1, 3])


def torchscript(repository, name, config):
    torch_package.run(torch_package.MODELS, repository.parent / "torch", silero_package.torchscript())
    (repository.parent / "torch" / "Twice").rename(repository / name)
    (repository / name / "config.pbtxt").write_text(config)


def aoti(repository, name, config):
    models, _ = torch_wheel.NEWEST.models(torch_wheel.MODELS)
    shutil.copytree(models / "Twice", repository / name)
    (repository / name / "config.pbtxt").write_text(config)


def netdef(repository, name, config):
    netdef_cases.write(repository, netdef_cases.cases()["scale"]._replace(name=name), config)


def ensemble(repository, name, config):
    onnx(repository, "member", configuration("onnxruntime_onnx", "X", "Y"))
    step = 'model_name: "member" model_version: -1 input_map { key: "X" value: "X" } output_map { key: "Y" value: "Y" }'
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(f"{config}ensemble_scheduling {{ step {{ {step} }} }}\n")


def anything(file):
    def write(repository, name, config):
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "1" / file).write_bytes(b"anything")
        (repository / name / "config.pbtxt").write_text(config)

    return write


# Platform, how to write a model, its input and output, and the factor between them or what the refusal says.
PLATFORMS = [
    ("ensemble", ensemble, "X", "Y", 2.0),
    ("onnxruntime_onnx", onnx, "X", "Y", 2.0),
    ("tensorflow_graphdef", graphdef, "x", "y", 3.0),
    ("tensorflow_savedmodel", saved_model, "given", "scaled", 3.0),
    ("pytorch_libtorch", torchscript, "x", "y", 2.0),
    ("torch_aoti", aoti, "ARGS[0]", "RESULT", 2.0),
    ("caffe2_netdef", netdef, "x", "out0", 0.3),
    ("tensorrt_plan", anything("model.plan"), "x", "y", "TensorRT plans need NVIDIA's TensorRT and Triton's backend for it: "),
]


@pytest.mark.parametrize("platform, write, source, target, expected", PLATFORMS, ids=[it[0] for it in PLATFORMS])
def test_a_platform_serves_a_model_or_says_what_it_needs(repository, serve, platform, write, source, target, expected):
    tensorflow_package.fetched()
    write(repository, platform, configuration(platform, source, target))
    torch = torch_wheel.NEWEST if platform == "torch_aoti" else torch_package.RELEASE
    flags = [*FLAGS, f"--backend-config=pytorch,library={torch.library_folder}"]
    server = serve(*flags, "--exit-on-error=false", ready=False, limit_s=300, env=os.environ | torch.environment())
    server.wait_until_loaded()
    if isinstance(expected, str):
        (line,) = [line for line in server.complaints if f"'{platform}'" in line]
        assert expected in line
        return
    assert request(server, "GET", f"/v2/models/{platform}").json["platform"] == platform
    values = np.random.default_rng(3).uniform(-1, 1, (2, 3)).astype(np.float32)
    with tritonclient.http.InferenceServerClient(server.url) as client:
        output = client.infer(platform, [given(source, values)]).as_numpy(target)
    np.testing.assert_allclose(output, values * np.float32(expected), rtol=1e-6)

"""ONNX Runtime (also with Caffe2's format), OpenVINO, TensorFlow and PyTorch in one process: their copies of OpenMP, protobuf
and thread pools do not disturb each other."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.http

import netdef_cases
import onnx_engines
import openvino_models
import silero_package
import tensorflow_models
import tensorflow_package
import torch_package
from model_files import scale_model, write_model
from openvino_models import network, tensors
from tensors import given

REQUESTS = 1000
# Model, input, output and factor.
MODELS = [
    ("by_onnxruntime", "X", "Y", 2.0),
    ("by_openvino", "X", "Y", 2.0),
    ("by_tensorflow", "given", "scaled", 3.0),
    ("by_pytorch", "x", "y", 2.0),
    ("scale", "x", "out0", 0.3),
]


@pytest.fixture
def server(repository, serve, tmp_path):
    write_model(repository, "by_onnxruntime", None, scale_model("by_onnxruntime").serialized())
    openvino_models.write(repository, network("by_openvino", [("X", "FP32", [-1, 3])], lambda x: {"Y": x + x}))
    tensorflow_models.write(repository, "by_tensorflow", tensorflow_models.scaled([-1, 3]), shape=[-1, 3])
    torch_package.run(torch_package.MODELS, tmp_path / "torch", silero_package.torchscript())
    (tmp_path / "torch" / "Twice").rename(repository / "by_pytorch")
    declared = tensors("input", ("x", "FP32", [3])) + tensors("output", ("y", "FP32", [3]))
    text = 'platform: "pytorch_libtorch" max_batch_size: 4 dynamic_batching { }\n' + declared
    (repository / "by_pytorch" / "config.pbtxt").write_text(text)
    netdef = tensors("input", ("x", "FP32", [3])) + tensors("output", ("out0", "FP32", [3]))
    netdef_cases.write(repository, netdef_cases.cases()["scale"], f'platform: "caffe2_netdef" max_batch_size: 4\n{netdef}')
    tensorflow_package.fetched()
    flags = [*onnx_engines.FLAGS["ort"], *openvino_models.FLAGS, *tensorflow_package.FLAGS]
    flags.append(f"--backend-config=pytorch,library={torch_package.LIBRARY_FOLDER}")
    return serve(*flags, env=os.environ | torch_package.environment())


def test_a_thousand_mixed_requests_are_answered_right(server):
    kept = threading.local()

    def send(number):
        if not hasattr(kept, "client"):
            kept.client = tritonclient.http.InferenceServerClient(server.url)
        name, source, target, factor = MODELS[number % len(MODELS)]
        size = 1 + number % 4
        values = np.random.default_rng(number).uniform(-1, 1, (size, 3)).astype(np.float32)
        output = kept.client.infer(name, [given(source, values)]).as_numpy(target)
        np.testing.assert_allclose(output, values * np.float32(factor), rtol=1e-6, err_msg=name)
        return name

    with ThreadPoolExecutor(8) as clients:
        names = list(clients.map(send, range(REQUESTS)))
    assert len(names) == REQUESTS and set(names) == {name for name, *_ in MODELS}

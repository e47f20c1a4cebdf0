"""ONNX models on a GPU, by ONNX Runtime's providers for it. Only `tests/gpu/run` runs these: they need a GPU, and a
library of ONNX Runtime that was built for one (the package onnxruntime-gpu), whose folder NEREID_TEST_ONNXRUNTIME_GPU
names. What it needs in turn (CUDA's libraries, cuDNN, TensorRT) has to be found by the system's loader.

A provider that cannot be used fails the load, so a model that is served runs on what was asked for.
"""

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import tritonclient.http

import nereid_server

DIGITS = Path(__file__).resolve().parents[2] / "examples/model_repository/digits"
TENSORRT = 'name: "tensorrt" parameters { key: "precision_mode" value: "FP32" }'


@pytest.mark.parametrize("accelerator", ["", 'name: "cuda"', TENSORRT], ids=["gpu_without_accelerator", "cuda", "tensorrt"])
def test_a_model_on_a_gpu_answers_as_on_the_processor(tmp_path, accelerator):
    model = tmp_path / "digits"
    shutil.copytree(DIGITS, model)
    extra = "dynamic_batching { max_queue_delay_microseconds: 1000 } instance_group { kind: KIND_GPU count: 2 }"
    if accelerator:
        extra += f"\noptimization {{ execution_accelerators {{ gpu_execution_accelerator {{ {accelerator} }} }} }}"
    with (model / "config.pbtxt").open("a") as file:
        file.write(extra)
    images = np.random.default_rng(0).random((64, 1, 8, 8), np.float32)
    session = onnxruntime.InferenceSession(DIGITS / "1/model.onnx", providers=["CPUExecutionProvider"])
    (expected,) = session.run(["probabilities"], {"image": images})
    library = os.environ["NEREID_TEST_ONNXRUNTIME_GPU"]
    flags = ["--backend-config=onnxruntime,engine=ort", f"--backend-config=onnxruntime,library={library}"]

    def answer(image):
        with tritonclient.http.InferenceServerClient(server.url, network_timeout=300) as client:
            sent = tritonclient.http.InferInput("image", [1, 1, 8, 8], "FP32")
            sent.set_data_from_numpy(image[None])
            return client.infer("digits", [sent]).as_numpy("probabilities")[0]

    with nereid_server.running(tmp_path, *flags) as server, ThreadPoolExecutor(8) as pool:
        answers = np.stack(list(pool.map(answer, images)))
    np.testing.assert_allclose(answers, expected, rtol=1e-2, atol=1e-3)

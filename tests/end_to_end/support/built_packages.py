"""The packages under test, and models to try them with."""

import os
import shutil
from pathlib import Path

import native_backends
from http_requests import infer, tensor
from places import EXAMPLES

NUMBERS = [1.5, 2.0, 0.25]
DOUBLE = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        arrays = [pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array * 2)]) for array in arrays]
"""


def folder():
    """The folder of the packages."""
    named = os.environ.get("NEREID_PACKAGES")
    assert named, "set NEREID_PACKAGES to a folder with the packages of: cargo xtask package all"
    return Path(named)


def package(pattern):
    """The one package whose name matches."""
    found = list(folder().glob(pattern))
    assert len(found) == 1, f"{folder()} has {len(found)} files {pattern}: cargo xtask package all"
    return found[0]


def write_models(repository, python=False):
    """Writes the model `digits`, which the embedded engine runs, and, on demand, one in Python, `double`."""
    repository.mkdir(parents=True, exist_ok=True)
    shutil.copytree(EXAMPLES / "model_repository" / "digits", repository / "digits")
    if python:
        tensors = "".join(f'{way} {{ name: "{way.upper()}0" data_type: TYPE_FP32 dims: -1 }} ' for way in ["input", "output"])
        native_backends.write_model(repository, "double", "python", tensors)
        (repository / "double" / "1" / "model.py").write_text(DOUBLE)


def check_models(server, python=False, onnx=True):
    """One inference with each model."""
    if onnx:
        answered = infer(server, "digits", {"inputs": [tensor("image", "FP32", [1, 1, 8, 8], [0.5] * 64)]}).json
        assert sum(next(output["data"] for output in answered["outputs"] if output["name"] == "probabilities")) > 0.99, answered
    if python:
        answered = infer(server, "double", {"inputs": [tensor("INPUT0", "FP32", [3], NUMBERS)]}).json
        assert answered["outputs"][0]["data"] == [2 * number for number in NUMBERS], answered

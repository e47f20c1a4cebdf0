"""TorchScript models with torchvision's operators, on libtorch and on PyTorch's own Python."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig

import numpy as np
import pytest
from test_pytorch import COMPILE_LIMIT_S, answer, reason

import torch_wheel
import torchvision_package
from openvino_models import tensors

CONFIG = (
    'backend: "pytorch"\n'
    + tensors("input", ("boxes", "FP32", [-1, 4]), ("scores", "FP32", [-1]), ("image", "FP32", [1, 2, 16, 16]))
    + tensors("output", ("kept__0", "INT64", [-1]), ("regions__1", "FP32", [-1, 2, 2, 3]))
)


@pytest.fixture(scope="module")
def detector(tmp_path_factory):
    """The model's folder, and what PyTorch answers."""
    folder = tmp_path_factory.mktemp("torchvision")
    cases = json.loads(torchvision_package.run(torchvision_package.MODELS, folder))
    return folder / "detector", cases


@pytest.fixture
def write(repository, detector):
    """Puts the model into the repository."""
    shutil.copytree(detector[0], repository / "detector")
    (repository / "detector" / "config.pbtxt").write_text(CONFIG)


def environment(folder, packages):
    """A Python environment with these packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "torch.pth").write_text(f"{packages}\n{sysconfig.get_path('purelib')}\n")
    return folder


def flags(engine, packages, folder):
    """The flags for an engine with torch from these packages."""
    if engine == "library":
        return [f"--backend-config=pytorch,library={packages / 'torch/lib'}"]
    return [
        f"--backend-config=python,python={environment(folder / 'environment', packages)}",
        "--backend-config=pytorch,engine=python",
    ]


@pytest.mark.usefixtures("write")
@pytest.mark.parametrize("engine", ["library", "python"])
def test_a_detector_answers_as_in_pytorchs_own_python(serve, detector, engine, tmp_path):
    own = flags(engine, torchvision_package.PYTHON, tmp_path)
    server = serve(*own, env=os.environ | torch_wheel.NEWEST.environment(), limit_s=COMPILE_LIMIT_S)
    if engine == "library":
        server.wait_for_log(r"operators of torchvision: .*torchvision/_C")
    for inputs, expected in detector[1]:
        boxes, scores, image = (np.array(it, np.float32) for it in inputs)
        outputs = answer(server, "detector", boxes=boxes, scores=scores, image=image)
        np.testing.assert_array_equal(outputs["kept__0"], expected[0])
        np.testing.assert_allclose(outputs["regions__1"], np.array(expected[1], np.float32), rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("write")
@pytest.mark.parametrize(
    ("engine", "says"),
    [("library", "torchvision has it, which is not installed next to libtorch"), ("python", "No module named 'torchvision'")],
)
def test_without_torchvision_the_refusal_names_it(serve, engine, says, tmp_path):
    own = flags(engine, torch_wheel.NEWEST.python, tmp_path)
    line = reason(
        lambda *more, **how: serve(*own, *more, env=os.environ | torch_wheel.NEWEST.environment(), limit_s=300, **how), "detector"
    )
    assert says in line

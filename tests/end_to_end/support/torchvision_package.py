"""PyPI's torchvision (7.5 MB) next to PyPI's PyTorch, unpacked beside the Python environment of the tests. Fetched once for each
environment; nothing is installed.
"""

import subprocess
import sys
from pathlib import Path

import torch_wheel
from once import once

# Makes the model: run with this package's Python.
MODELS = Path(__file__).with_name("torchvision_models.py")

HOME = Path(sys.prefix) / "torchvision-0.29"
# Python packages: links to PyTorch's, and torchvision.
PYTHON = HOME / "packages"
LIBRARY_FOLDER = PYTHON / "torch/lib"
_PACKAGES = ["torchvision==0.29.2", "pillow==13.0.0"]


def fetched():
    """Fetches it unless it is there."""
    torch_wheel.NEWEST.fetched()
    once(HOME, _fetch)


def _fetch():
    quiet = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-compile", "--only-binary=:all:"]
    command: list[str | Path] = [sys.executable, "-m", "pip", "install", *quiet, "--upgrade", "--target", PYTHON, *_PACKAGES]
    subprocess.run(command, check=True)
    for package in torch_wheel.NEWEST.python.iterdir():
        link = PYTHON / package.name
        if not link.exists():
            link.symlink_to(package)


def run(program, *arguments):
    """Runs a Python program with PyTorch and torchvision, and returns the last line that it prints."""
    fetched()
    return torch_wheel.NEWEST.run(program, *arguments, packages=PYTHON)

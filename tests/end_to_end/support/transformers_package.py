"""PyPI's transformers (25 MB) next to PyPI's PyTorch, in an environment of their own beside the Python environment of the tests. Fetched once
for each environment; nothing is installed in the tests' own.
"""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import torch_wheel
from once import once

# Makes the models: run with this package's Python.
MODELS = Path(__file__).with_name("transformers_models.py")


class Release:
    """A release of transformers."""

    def __init__(self, version, packages):
        self.version = version
        self._home = Path(sys.prefix) / f"transformers-{version}"
        self._packages = [f"transformers=={version}", *packages.split()]
        # The environment for models.
        self.python = self._home / "environment"
        self.packages = self._home / "packages"

    def flag(self):
        """The server's flag with which models run in the environment. It needs the variables of `environment`."""
        once(self._home, self._fetch)
        return f"--backend-config=transformers,python={self.python}"

    def _fetch(self):
        torch_wheel.NEWEST.fetched()
        quiet = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-compile", "--only-binary=:all:"]
        command: list[str | Path] = [sys.executable, "-m", "pip", "install", *quiet, "--upgrade", "--target", self.packages]
        subprocess.run([*command, *self._packages], check=True)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", self.python], check=True)
        (site,) = self.python.glob("lib/python*/site-packages")
        # numpy, regex and others that transformers needs are among the tests' own.
        paths = [self.packages, torch_wheel.NEWEST.python, sysconfig.get_path("purelib")]
        (site / "packages.pth").write_text("".join(f"{path}\n" for path in paths))


def environment():
    """The variables of a server whose models run in the environment."""
    return os.environ | torch_wheel.NEWEST.environment()


_BESIDE = "safetensors==0.8.0 tqdm==4.70.1"
NEWEST = Release(
    "5.24.0", f"huggingface_hub==2.4.0 tokenizers==0.23.3 typer==0.29.2 annotated-doc==0.0.7 shellingham==1.5.4 {_BESIDE}"
)
RELEASES = [Release("4.57.6", f"huggingface_hub==0.36.0 tokenizers==0.22.2 {_BESIDE}"), NEWEST]


def models(release=NEWEST):
    """A folder with a folder for each model, and what transformers itself writes."""
    release.flag()
    paths = os.pathsep.join(map(str, (release.packages, torch_wheel.NEWEST.python)))
    return torch_wheel.NEWEST.models(MODELS, packages=paths, name=release.version)

"""Releases of the frameworks' libraries that the server promises to run with, fetched from PyPI and unpacked beside the Python
environment of the tests, each once for each environment. Nothing is installed.
"""

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from once import once

HOME = Path(sys.prefix) / "library-releases"

# The oldest promised release that PyPI has with the library that the server loads, some between, and the newest.
# docs/frameworks.md lists the same releases.
RELEASES = {
    "onnxruntime": ["1.19.2", "1.20.1", "1.21.1", "1.22.1", "1.23.2", "1.27.0", "1.31.1"],
    "openvino": ["2024.3.0", "2025.0.0", "2026.4.1"],
    "tensorflow": ["2.12.0", "2.17.1", "2.21.0"],
}

# ONNX Runtime's libraries of this age crash at the end of a process that still holds their environment.
OLD_ONNX_RUNTIME = "1.20.1"

# The package of each framework, and the start of the names of its libraries.
_PACKAGES = {
    "onnxruntime": ("onnxruntime", "onnxruntime/capi/libonnxruntime"),
    "openvino": ("openvino", "openvino/libs/"),
    "tensorflow": ("tensorflow-cpu", "tensorflow/libtensorflow_"),
}


def folder(framework, release):
    """The folder with the library of a release."""
    home = HOME / framework / release
    home.parent.mkdir(parents=True, exist_ok=True)
    once(home, lambda: _fetch(framework, release, home))
    return home


def _fetch(framework, release, home):
    package, prefix = _PACKAGES[framework]
    with tempfile.TemporaryDirectory() as wheels:
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download", "--no-deps"]
        subprocess.run([*pip, "--only-binary=:all:", "--dest", wheels, f"{package}=={release}"], check=True)
        (wheel,) = Path(wheels).glob("*.whl")
        with zipfile.ZipFile(wheel) as files:
            for name in files.namelist():
                # The plugins for GPUs and NPUs are large, and a machine without these devices does not need them.
                if name.startswith(prefix) and not name.endswith(("_gpu_plugin.so", "_npu_plugin.so")):
                    with files.open(name) as source, open(home / Path(name).name, "wb") as target:
                        shutil.copyfileobj(source, target, 1 << 20)


def old_onnx_runtime():
    """The folder with the one old release that the default tests need."""
    return folder("onnxruntime", OLD_ONNX_RUNTIME)

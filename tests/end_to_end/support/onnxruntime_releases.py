"""Earlier releases of ONNX Runtime: the libraries of PyPI's packages, unpacked beside the Python environment of the tests. Each is
fetched once for each environment; nothing is installed.
"""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from once import once

HOME = Path(sys.prefix) / "onnxruntime-releases"
# Its library crashed when the process ended and released its environment late.
OLD = "1.20.1"
# The oldest whose package has the library as a file of its own, and one of each of several later years.
ALL = ["1.19.2", OLD, "1.21.1", "1.22.1", "1.23.2", "1.27.0"]


def folder(release):
    """The folder with the library of a release."""
    home = HOME / release
    HOME.mkdir(exist_ok=True)
    once(home, lambda: _fetch(release, home))
    return home / "onnxruntime" / "capi"


def old():
    """The one release that the default tests need."""
    return folder(OLD)


def _fetch(release, home):
    with tempfile.TemporaryDirectory() as wheels:
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download", "--no-deps"]
        subprocess.run([*pip, "--dest", wheels, f"onnxruntime=={release}"], check=True)
        (wheel,) = Path(wheels).glob("*.whl")
        with zipfile.ZipFile(wheel) as files:
            names = [name for name in files.namelist() if name.startswith("onnxruntime/capi/libonnxruntime")]
            files.extractall(home, names)

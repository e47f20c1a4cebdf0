"""TensorFlow's library alone, of PyPI's package (274 MB), unpacked beside the Python environment of the tests: fetched once for
each environment, and nothing is installed.
"""

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from once import once

PACKAGE = "tensorflow-cpu==2.21.0"
# The folder of the library.
LIBRARY_FOLDER = Path(sys.prefix) / "tensorflow-2.21"
LIBRARY = LIBRARY_FOLDER / "libtensorflow_cc.so.2"
FLAGS = [f"--backend-config=tensorflow,library={LIBRARY_FOLDER}"]


def fetched():
    """Fetches it unless it is there."""
    once(LIBRARY_FOLDER, _fetch)


def _fetch():
    with tempfile.TemporaryDirectory() as wheels:
        # Only libraries are wanted, so the Python for which the package is does not matter.
        download = ["download", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:"]
        platform = ["--python-version=3.11", "--platform=manylinux_2_27_x86_64"]
        command = [sys.executable, "-m", "pip", *download, *platform, "--dest", wheels, PACKAGE]
        subprocess.run(command, check=True)
        (wheel,) = Path(wheels).glob("*.whl")
        with zipfile.ZipFile(wheel) as files:
            for name in files.namelist():
                if name.startswith("tensorflow/libtensorflow_"):
                    with files.open(name) as source, open(LIBRARY_FOLDER / Path(name).name, "wb") as target:
                        shutil.copyfileobj(source, target, 1 << 20)

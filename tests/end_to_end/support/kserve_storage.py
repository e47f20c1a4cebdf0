"""KServe's storage initialiser, from its Python package, which puts what an address has into the folder of a container. It is installed once
for each test environment, in an environment of its own, with what it needs for folders, the web and Hugging Face's hub.
"""

import os
import subprocess
import sys
from pathlib import Path

from once import once

PACKAGE = "kserve-storage==0.21.0"
NEEDED = ["requests==2.34.2", "huggingface_hub==2.4.0"]
HOME = Path(sys.prefix) / "kserve-storage"
PYTHON = HOME / "python" / "bin" / "python"
LIMIT_S = 120
# As its container's entry point.
_PROGRAM = "import sys; from kserve_storage import Storage; Storage.download(*sys.argv[1:])"


def prepare():
    """Installs the package, unless it is there."""
    once(HOME, _install, mark=" ".join([PACKAGE, *NEEDED]))


def _install():
    uv = [sys.executable, "-m", "uv", "--quiet"]
    subprocess.run([*uv, "venv", "--clear", "--python", sys.executable, HOME / "python"], check=True)
    pip = [*uv, "pip", "install", "--python", str(PYTHON)]
    # Without the clients of all clouds.
    subprocess.run([*pip, "--no-deps", PACKAGE], check=True)
    subprocess.run([*pip, *NEEDED], check=True)


def initialise(address, folder, **variables):
    """Runs it with an address and the folder that becomes /mnt/models."""
    prepare()
    environment = os.environ | {"HF_HOME": str(folder.parent / "hub")} | variables
    command = [PYTHON, "-c", _PROGRAM, address, str(folder)]
    outcome = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    return folder

"""The package nvidia-pytriton, installed with what it needs in an environment of its own, with the server under test in place of
the one that it ships. It is installed once for each test environment.
"""

import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import nereid_server
import python_backend
from once import once

# An application that uses the package.
PROGRAM = Path(__file__).with_name("pytriton_program.py")

HOME = Path(sys.prefix) / "nvidia-pytriton"
PYTHON = HOME / "python" / "bin" / "python"
# Each test run has a binary of its own, so the environment names it.
_SERVER = '#!/bin/sh\nexec "$NEREID_BINARY" "$@"\n'


def prepare():
    """Installs the package, unless it is there."""
    once(HOME, _install)


def _install():
    python = HOME / "python"
    subprocess.run([sys.executable, "-m", "venv", "--clear", python], check=True)
    pip: list[str | Path] = [PYTHON, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    subprocess.run([*pip, python_backend.PACKAGE, python_backend.NUMPY], check=True)
    (server,) = python.glob("lib/python*/site-packages/pytriton/tritonserver/bin/tritonserver")
    server.write_text(_SERVER)
    server.chmod(0o755)


def run(program, *arguments, limit_s):
    """Runs a Python program there, and gives what came of it."""
    prepare()
    # The backend's stub needs the library of the very interpreter whose modules it imports.
    libraries = [sysconfig.get_config_var("LIBDIR"), os.environ.get("LD_LIBRARY_PATH")]
    command = [str(PYTHON), str(program), *map(str, arguments)]
    # It makes sockets there, whose paths must be short.
    with tempfile.TemporaryDirectory() as workspaces:
        environment = os.environ | {
            "NEREID_BINARY": str(nereid_server.binary()),
            "LD_LIBRARY_PATH": ":".join(filter(None, libraries)),
            "PYTRITON_HOME": workspaces,
        }
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=limit_s, check=False)

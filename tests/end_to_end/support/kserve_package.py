"""KServe's Python package, installed with what it needs in an environment of its own, whose packages conflict with those of
the tests. It is installed once for each test environment.
"""

import fcntl
import json
import subprocess
import sys
from pathlib import Path

PACKAGE = "kserve==0.21.0"
HOME = Path(sys.prefix) / "kserve"
PYTHON = HOME / "python" / "bin" / "python"
_PROGRAM = Path(__file__).parent / "kserve_program.py"


def prepare():
    """Installs the package, unless it is there. Of several workers one does, and the others wait."""
    HOME.mkdir(exist_ok=True)
    with open(HOME / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ready = HOME / PACKAGE
        if not ready.exists():
            uv = [sys.executable, "-m", "uv", "--quiet"]
            subprocess.run([*uv, "venv", "--clear", "--python", sys.executable, HOME / "python"], check=True)
            subprocess.run([*uv, "pip", "install", "--python", PYTHON, PACKAGE], check=True)
            ready.touch()


def run(*arguments, limit_s=120):
    """Runs `kserve_program.py` there, and gives what it found."""
    prepare()
    command: list[str | Path] = [PYTHON, _PROGRAM, *map(str, arguments)]
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=limit_s)
    assert outcome.returncode == 0, outcome.stderr
    return json.loads(outcome.stdout.splitlines()[-1])

"""Azurite, Microsoft's emulator of Azure Blob Storage, installed by npm beside the Python environment of the tests, once for
each environment.
"""

import fcntl
import shutil
import subprocess
import sys
from pathlib import Path

PACKAGE = "azurite@3.35.0"
HOME = Path(sys.prefix) / "azurite"


def program():
    """The command that starts it. Of several workers one installs it, and the others wait."""
    for needed in ("node", "npm"):
        if not shutil.which(needed):
            raise RuntimeError(f"Azurite needs {needed}: apt-get install nodejs npm")
    HOME.mkdir(exist_ok=True)
    with open(HOME / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ready = HOME / "ready"
        if not ready.exists() or ready.read_text() != PACKAGE:
            install = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(HOME), PACKAGE]
            subprocess.run(install, check=True, stdin=subprocess.DEVNULL)
            ready.write_text(PACKAGE)
    return ["node", str(HOME / "node_modules/azurite/dist/src/blob/main.js")]

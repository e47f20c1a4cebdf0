"""Azurite, Microsoft's emulator of Azure Blob Storage, installed by npm beside the Python environment of the tests, once for
each environment.
"""

import shutil
import subprocess
import sys
from pathlib import Path

from once import once

PACKAGE = "azurite@3.35.0"
HOME = Path(sys.prefix) / "azurite"


def program():
    """The command that starts it, which is installed first unless it is there."""
    for needed in ("node", "npm"):
        if not shutil.which(needed):
            raise RuntimeError(f"Azurite needs {needed}: apt-get install nodejs npm")
    once(HOME, _install, f"ready-{PACKAGE}")
    return ["node", str(HOME / "node_modules/azurite/dist/src/blob/main.js")]


def _install():
    install = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(HOME), PACKAGE]
    subprocess.run(install, check=True, stdin=subprocess.DEVNULL)

"""The command `nereid` of this Python environment.

Imports neither numpy nor the server's library: the interpreter is replaced by the program at once.
"""

import os
import sys
from pathlib import Path


def program() -> str:
    """The path of the program."""
    # Both packages are always in the same folder.
    return os.fspath(Path(__file__).resolve().parents[1] / "nereid" / "bin" / "nereid")


def main() -> None:
    """Runs the program with this process's arguments, for the models and frameworks of this interpreter's environment."""
    if sys.prefix != sys.base_prefix:
        # The environment need not be activated.
        os.environ["VIRTUAL_ENV"] = sys.prefix
    elif sys.executable:
        # The program looks for the packages of the first `python3` on the path.
        own, path = os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)
        os.environ["PATH"] = os.pathsep.join([own, path])
    os.execv(program(), [program(), *sys.argv[1:]])

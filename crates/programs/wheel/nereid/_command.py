"""The command `nereid`: replaces this interpreter by the package's program."""

import os
import sys
from pathlib import Path


def main() -> None:
    """Runs the program with this process's arguments."""
    if sys.prefix != sys.base_prefix:
        # Models in Python see the packages of this environment, also if it is not activated.
        os.environ["VIRTUAL_ENV"] = sys.prefix
    program = os.fspath(Path(__file__).resolve().parent / "bin" / "nereid")
    os.execv(program, [program, *sys.argv[1:]])


if __name__ == "__main__":
    main()

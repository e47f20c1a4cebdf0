"""The command `nereid`: replaces this interpreter by the package's program."""

import os
import sys
from pathlib import Path


def main() -> None:
    """Runs the program with this process's arguments."""
    program = os.fspath(Path(__file__).resolve().parent / "bin" / "nereid")
    os.execv(program, [program, *sys.argv[1:]])


if __name__ == "__main__":
    main()

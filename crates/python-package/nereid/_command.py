"""The command `nereid`: the program of the package, in place of this interpreter."""

import os
import sys
from pathlib import Path


def main() -> None:
    """Runs the program with the arguments of this one."""
    program = os.fspath(Path(__file__).resolve().parent / "bin" / "nereid")
    os.execv(program, [program, *sys.argv[1:]])


if __name__ == "__main__":
    main()

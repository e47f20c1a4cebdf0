"""`python -m nereid` is the command `nereid`."""

from ._command import main

main()

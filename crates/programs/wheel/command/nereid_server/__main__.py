"""`python -m nereid_server` is the command `nereid`."""

from . import main

main()

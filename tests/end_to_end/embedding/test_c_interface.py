"""The program exports the functions of Triton's C interface to the libraries that it loads."""

import re
import subprocess
from pathlib import Path

import nereid_server

TABLE = Path(__file__).resolve().parents[3] / "docs" / "c-abi.md"


def test_the_program_exports_what_the_table_says():
    rows = dict(re.findall(r"^\| `(\w+)` \| (\w+) \|", TABLE.read_text(), re.MULTILINE))
    command = ["nm", "--dynamic", "--defined-only", nereid_server.binary()]
    symbols = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    exported = set(re.findall(r" T (TRITON\w+)$", symbols, re.MULTILINE))
    assert exported == {name for name, state in rows.items() if state != "missing"}
    assert len(exported) > 200

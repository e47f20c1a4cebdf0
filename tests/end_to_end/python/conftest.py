"""What all tests of Python models have in common: a stopped server leaves no process behind."""

import os
import uuid
from pathlib import Path

import pytest

from waiting import eventually

_MARK = "NEREID_TESTED_BY"


def _marked(mark):
    """The command lines of the processes that inherited the mark."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if mark.encode() in (folder / "environ").read_bytes():
                    line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    # The tests' own interpreter keeps a helper.
                    found += [line] if "multiprocessing.resource_tracker" not in line else []
            except OSError:
                pass  # It has ended, or is another user's.
    return found


@pytest.fixture(autouse=True, scope="module")
def no_process_is_left_behind():
    """Compares the processes before and after the tests of a file."""
    mark = uuid.uuid4().hex
    os.environ[_MARK] = mark
    yield
    del os.environ[_MARK]
    assert eventually(lambda: not _marked(mark)), _marked(mark)

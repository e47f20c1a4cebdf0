"""Control groups of this machine that limit the memory of programs, in both versions of the interface. Only the superuser makes them."""

import os
from contextlib import contextmanager
from pathlib import Path

import nereid_server
from waiting import eventually

_GROUPS = Path("/sys/fs/cgroup")


class Group:
    """A control group."""

    def __init__(self, folder, limit):
        self._folder, self.limit = folder, limit
        # What starts a program in the group.
        self.prefix = ["sh", "-c", f'echo $$ > {folder}/cgroup.procs && exec "$@"', "sh"]

    def program(self, folder):
        """A program that runs the server under test in the group."""
        program = folder / "nereid"
        program.write_text(f'#!/bin/sh\necho $$ > {self._folder}/cgroup.procs && exec {nereid_server.binary()} "$@"\n')
        program.chmod(0o755)
        return program

    @property
    def events(self):
        """The file that counts in its line `oom_kill` which programs the system ended."""
        for name in ("memory.oom_control", "memory.events"):
            if (self._folder / name).exists():
                return self._folder / name
        raise AssertionError(f"{self._folder} does not count what was killed")

    def failures(self):
        """How often the system ended a program because the group had no memory left."""
        fields = dict(line.split() for line in self.events.read_text().splitlines())
        return int(fields["oom_kill"])


@contextmanager
def memory(limit):
    """A group whose programs have that many bytes of memory together, without any swap."""
    old = _GROUPS / "memory"
    folder = (old if old.exists() else _GROUPS) / f"nereid-test-{os.getpid()}"
    folder.mkdir()
    try:
        if old.exists():
            (folder / "memory.limit_in_bytes").write_text(str(limit))
        else:
            (_GROUPS / "cgroup.subtree_control").write_text("+memory")
            (folder / "memory.max").write_text(str(limit))
        yield Group(folder, limit)
    finally:

        def is_removed():
            try:
                folder.rmdir()
            except OSError:
                return False  # A program is still there.
            return True

        assert eventually(is_removed), f"{folder} still has programs"

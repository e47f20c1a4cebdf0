"""Programs that take memory beside the server under test."""

import subprocess
import sys
from contextlib import contextmanager

_MIB = 1 << 20
_PIECE = 128 * _MIB
_HOLD = "import sys, time\nheld = bytearray({size})\nheld[::4096] = bytes([1]) * len(held[::4096])\ntime.sleep({seconds})"

# Forks processes that take a piece each until the system has ended some program of the group. They end with their parent's end of a pipe.
_EXHAUST = """
import os, sys

def failures():
    with open({events!r}) as file:
        return next(int(line.split()[1]) for line in file if line.startswith("oom_kill "))

with open("/proc/self/oom_score_adj", "w") as file:
    file.write("{score}")
before, pieces, (until, end) = failures(), [], os.pipe()
while failures() == before:
    assert len(pieces) < {most}, "the group has more memory than it should have"
    taken, took = os.pipe()
    pieces.append(os.fork())
    if not pieces[-1]:
        os.close(end)
        held = bytearray({piece})
        held[::4096] = bytes([1]) * len(held[::4096])
        os.write(took, b"1")
        os.close(took)
        os.read(until, 1)
        os._exit(0)
    os.close(took)
    os.read(taken, 1)
    os.close(taken)
print(len(pieces), flush=True)
sys.stdin.read()
os.close(end)
print(sum(os.WIFSIGNALED(os.waitpid(piece, 0)[1]) for piece in pieces), flush=True)
"""
#: Between models' processes and the server: the hog ends when no process of a model is left, and the server after it.
_SCORE = 250
_STEP = 16 * _MIB


def hog(size, prefix=()):
    """Starts programs that take so many bytes together for a time. Each is small: the system ends others when there is no memory left."""

    def start(seconds):
        code = _HOLD.format(size=_PIECE, seconds=seconds)
        return [subprocess.Popen([*prefix, sys.executable, "-Sc", code]) for _ in range(size // _PIECE)]

    return start


class Exhausted:
    """A group's memory while nothing is left of it."""

    def __init__(self, pieces):
        #: How many processes took it.
        self.pieces = pieces
        #: How many of these the system ended, known afterwards.
        self.own = 0


@contextmanager
def exhausted(group, limit):
    """Takes what is left of a group's memory until the system has ended a program, and keeps it meanwhile."""
    code = _EXHAUST.format(events=str(group.events), score=_SCORE, piece=_STEP, most=limit // _STEP + 8)
    command = [*group.prefix, sys.executable, "-Sc", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin and process.stdout
        try:
            first = process.stdout.readline()
            assert first, "the program that takes memory was ended"
            state = Exhausted(int(first))
            yield state
            process.stdin.close()
            state.own = int(process.stdout.readline())
        finally:
            process.kill()

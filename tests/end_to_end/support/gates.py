"""Gates: executions and loads of identity models wait at them until the test releases them.

Knows the protocol of the identity backend's gates: one connection for each execution, with one line. Knows nothing of
what is executed.
"""

import select
import socket
import tempfile
from pathlib import Path

from http_requests import LIMIT_S


class Held:
    """An execution or a load at the gate."""

    def __init__(self, connection):
        self._connection = connection
        with connection.makefile() as lines:
            # The instance and the number of requests, or the model and its version.
            self.name, number = lines.readline().split()
        self.number = int(number)

    def release(self):
        """Releases it."""
        self._connection.close()


class Gate:
    """A gate that holds executions and loads until it is opened."""

    def __init__(self):
        # A folder of its own, since the path of a socket may have 107 bytes only.
        self._folder = tempfile.TemporaryDirectory(prefix="gate")
        self.path = str(Path(self._folder.name) / "gate")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen(128)
        self._listener.settimeout(LIMIT_S)
        self._held = []

    def entered(self):
        """Waits for the next execution or load, and returns it."""
        held = Held(self._listener.accept()[0])
        self._held.append(held)
        return held

    def is_empty(self):
        """Whether nothing waits at the gate that has not been seen yet."""
        return not select.select([self._listener], [], [], 0.02)[0]

    def release_all(self):
        """Releases what has entered."""
        for held in self._held:
            held.release()

    def open(self):
        """Releases everything, and whatever comes later."""
        self._listener.close()
        self.release_all()
        self._folder.cleanup()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.open()

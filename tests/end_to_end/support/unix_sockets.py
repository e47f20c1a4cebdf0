"""Servers at Unix sockets, and connections to them."""

import socket
import tempfile
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

import nereid_server

LIMIT_S = 30


class SocketConnection(HTTPConnection):
    """A connection of HTTP to a Unix socket."""

    def __init__(self, path):
        super().__init__("localhost", timeout=LIMIT_S)
        self._path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(LIMIT_S)
        self.sock.connect(str(self._path))


@contextmanager
def socket_folder():
    """A folder whose path is short, since that of a socket has at most 107 bytes, and that every user may enter."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@contextmanager
def serving(repository, *flags):
    """A server whose HTTP is at a Unix socket, once it has loaded its models."""
    server = nereid_server.Server(repository, *flags)
    try:
        server.wait_for_log(r"Started HTTPService at unix:")
        server.wait_for_log(r"^\| Model +\| Version +\| Status +\|$")
        yield server
        if server.exit_code is None:
            server.stop()
    finally:
        server.kill()

"""Redis's real server, as Debian packages it: the one that is installed, or else its package, unpacked beside the Python
environment of the tests. Fetched once for each environment; nothing is installed.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

from http_requests import LIMIT_S
from once import once
from ports import free_port
from waiting import eventually

HOME = Path(sys.prefix) / "redis"
# The program, and the libraries that it needs beside those that every Debian has.
_PACKAGES = [
    "redis-server",
    "redis-tools",
    "libatomic1",
    "libhiredis0.14",
    "libjemalloc2",
    "liblua5.1-0",
    "liblzf1",
    "lua-bitop",
    "lua-cjson",
]


def program():
    """The path of redis-server."""
    if installed := shutil.which("redis-server"):
        return installed
    once(HOME, _fetch)
    return str(HOME / "usr/bin/redis-server")


def _fetch():
    debs = HOME / "debs"
    debs.mkdir(exist_ok=True)
    try:
        download = ["apt-get", "download", *_PACKAGES]
        if subprocess.run(download, cwd=debs, capture_output=True).returncode != 0:
            # The lists of packages may be missing or old; only the superuser may fetch new ones.
            subprocess.run(["apt-get", "update"], check=True, capture_output=True)
            subprocess.run(download, cwd=debs, check=True, capture_output=True)
        for deb in debs.glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", deb, HOME], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise RuntimeError(
            f"redis-server is needed, and its package cannot be fetched ({error}): apt-get install redis-server"
        ) from error


class Redis:
    """A Redis server that may be killed, paused and started again on the same port."""

    def __init__(self, folder, *settings, tls=None, server=None):
        self.port = free_port()
        ports = ["--port", "0", "--tls-port", str(self.port)] if tls else ["--port", str(self.port)]
        self._command = [str(server or program()), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder), *ports, *settings]
        self._tls = tls
        self._process: subprocess.Popen | None = None

    def start(self):
        """Starts the process, empty, and waits until it takes connections."""
        libraries = [HOME / "usr/lib/x86_64-linux-gnu", HOME / "usr/lib/aarch64-linux-gnu"]
        path = ":".join([*map(str, libraries), os.environ.get("LD_LIBRARY_PATH", "")])
        environment = {**os.environ, "LD_LIBRARY_PATH": path.rstrip(":")}
        self._process = subprocess.Popen(self._command, env=environment, stdout=subprocess.DEVNULL)
        assert eventually(self._takes_connections), f"{self._command} takes no connections"

    def _takes_connections(self):
        assert self._process and self._process.poll() is None, f"{self._command} ended"
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def pause(self):
        """It says nothing until it goes on."""
        self._send(signal.SIGSTOP)

    def go_on(self):
        """Ends a pause."""
        self._send(signal.SIGCONT)

    def _send(self, number):
        assert self._process, "Redis is not running"
        self._process.send_signal(number)

    def kill(self):
        """Ends the process at once."""
        if self._process:
            self._process.kill()
            self._process.wait()
            self._process = None

    def run(self, *parts):
        """A command in clear text, and the reply: text, a number, None or a list of them."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=LIMIT_S) as connection:
            parts = [part if isinstance(part, bytes) else str(part).encode() for part in parts]
            text = b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)
            connection.sendall(b"*%d\r\n%s" % (len(parts), text))
            with connection.makefile("rb") as replies:
                return _reply(replies)


def _reply(replies):
    line = replies.readline()
    kind, rest = line[:1], line[1:].strip()
    if kind == b"$":
        length = int(rest)
        return None if length < 0 else replies.read(length + 2)[:-2]
    if kind == b"*":
        return [_reply(replies) for _ in range(int(rest))]
    assert kind != b"-", line
    return int(rest) if kind == b":" else rest


@contextmanager
def running(folder, *settings, tls=None, server=None):
    """A Redis server with settings of its own command line. `server` None is the program that all tests use."""
    redis = Redis(folder, *settings, tls=tls, server=server)
    redis.start()
    try:
        yield redis
    finally:
        redis.kill()

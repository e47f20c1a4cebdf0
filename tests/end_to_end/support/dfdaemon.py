"""Dragonfly's real daemon, dfdaemon, as a proxy: without a manager, and with a scheduler of our own that knows no peers, so that
it reads what it has not from the origin.

It is built from its crate once for each user, into the user's cache folder, which takes about 20 minutes.
"""

import fcntl
import os
import re
import shutil
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from glob import glob
from itertools import chain
from pathlib import Path

import grpc
import yaml

from ports import free_ports
from waiting import eventually

VERSION = "1.5.10"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nereid" / f"dfdaemon-{VERSION}"
START_LIMIT_S = 60
# What its build needs beside Rust, by the names of Debian's packages.
_TOOLS = {"protoc": "protobuf-compiler", "cmake": "cmake", "cc": "build-essential", "c++": "build-essential"}
# Where the build looks for libclang, and its names there.
_LIBRARIES = ["/usr/lib/llvm-*/lib", "/usr/lib/*-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib"]
_LIBCLANG = re.compile(r"libclang(-[\d.]+)?\.so(\.\d+)*$")


def program():
    """The path of dfdaemon. One process builds it, and others wait."""
    CACHE.mkdir(parents=True, exist_ok=True)
    built = CACHE / "bin" / "dfdaemon"
    with open(CACHE / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.exists():
            missing = missing_packages()
            assert not missing, f"dfdaemon's build needs more: apt-get install {' '.join(missing)}"
            crate = ["dragonfly-client", "--version", VERSION, "--bin", "dfdaemon"]
            # Outside of the project, whose settings of Rust are its own.
            folders = ["--root", str(CACHE), "--target-dir", str(CACHE / "target")]
            command = ["cargo", "install", "--debug", "--locked", *crate, *folders]
            # Without debug information it takes less time and room.
            subprocess.run(command, cwd=CACHE, check=True, env={**os.environ, "CARGO_PROFILE_DEV_DEBUG": "0"})
            shutil.rmtree(CACHE / "target")
    return built


def missing_packages(libraries=_LIBRARIES):
    """Debian's packages of what the build needs and this machine lacks."""
    missing = {package for tool, package in _TOOLS.items() if not shutil.which(tool)}
    folders = [os.environ["LIBCLANG_PATH"]] if "LIBCLANG_PATH" in os.environ else [*chain(*map(glob, libraries))]
    files = chain(*(os.listdir(folder) for folder in folders if os.path.isdir(folder)))
    if not any(map(_LIBCLANG.match, files)):
        missing.add("libclang-dev")
    return sorted(missing)


class Scheduler(grpc.GenericRpcHandler):
    """As much of Dragonfly's scheduler as a lone daemon needs: it is healthy, takes announcements, and refuses to look for
    peers.
    """

    def __init__(self):
        self.calls = []
        self._server = grpc.server(ThreadPoolExecutor(4))
        self._server.add_generic_rpc_handlers([self])
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()

    def service(self, call):
        self.calls.append(call.method)
        if call.method == "/grpc.health.v1.Health/Check":
            # The field `status`, which says SERVING.
            return grpc.unary_unary_rpc_method_handler(lambda asked, _: b"\x08\x01")
        if call.method.endswith("/AnnouncePeer"):
            return None
        return grpc.unary_unary_rpc_method_handler(lambda asked, _: b"")

    def stop(self):
        self._server.stop(None).wait()


class Dfdaemon:
    """Runs within a `with` statement. `folder` is its own."""

    _process: subprocess.Popen

    def __init__(self, folder):
        folder.mkdir()
        self.folder = folder
        self._scheduler = Scheduler()
        ports = free_ports(7)
        here = "127.0.0.1"
        self.address = f"http://{here}:{ports[0]}"
        self._port = ports[0]
        config = {
            "host": {"hostname": "tests", "ip": here},
            "server": {"pluginDir": f"{folder}/plugins", "cacheDir": f"{folder}/cache"},
            "download": {"server": {"socketPath": f"{folder}/socket"}},
            "upload": {"server": {"ip": here, "port": ports[2]}},
            "storage": {"dir": f"{folder}/storage", "server": {"ip": here, "tcpPort": ports[3], "quicPort": ports[4]}},
            "proxy": {"server": {"ip": here, "port": ports[0]}},
            "health": {"server": {"ip": here, "port": ports[1]}},
            "metrics": {"server": {"ip": here, "port": ports[5]}},
            "stats": {"server": {"ip": here, "port": ports[6]}},
        }
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        schedulers = {"scheduler": {"addr": f"{here}:{self._scheduler.port}"}}
        (folder / "dynconfig.yaml").write_text(yaml.safe_dump(schedulers))
        self.log = folder / "log.txt"

    def __enter__(self):
        files = ["--config", self.folder / "config.yaml", "--dynconfig", self.folder / "dynconfig.yaml"]
        command = [program(), *files, "--console", "--log-dir", self.folder / "logs"]
        with open(self.log, "w") as log:
            self._process = subprocess.Popen(command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            assert eventually(self._is_up, START_LIMIT_S), self.log.read_text()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _is_up(self):
        assert self._process.poll() is None, self.log.read_text()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._port)) == 0

    def kill(self):
        """Ends the process at once."""
        self._process.kill()
        self._process.wait()

    @property
    def asked_for_peers(self):
        """How often it asked the scheduler for peers that have a file."""
        return sum(call.endswith("/AnnouncePeer") for call in self._scheduler.calls)

    def __exit__(self, *_):
        self.kill()
        self._scheduler.stop()

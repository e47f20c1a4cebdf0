"""Follows docs/ray.md on a cluster of this machine, with the page's commands as they are printed.

In their places are only what a machine has one of: the folder /etc, and the ports of Ray, Envoy and Serve. `sudo` and `pip` are programs
that act for the test's own user and environment. `ray stop` would end every cluster of the machine: the one of the test ends with its head.
"""

import getpass
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import envoy
import guide_pages
import nereid_server
import ray_cluster
from places import ROOT
from ports import free_port
from processes import tree
from waiting import eventually

PAGE = "docs/ray.md"
HEAD = "ray start --head"
START_LIMIT_S = 180
START_TRIES = 5
PORTS = ("", "dashboard-agent-grpc-", "dashboard-agent-listen-", "metrics-export-", "runtime-env-agent-", "ray-client-server-")


class Reader:
    """A reader with a machine of his own."""

    def __init__(self, folder, dashboard=False, **variables):
        """`dashboard` has Ray serve its pages, which take half a minute to start. `variables` are further ones of the environment."""
        ray_cluster.prepare()
        self.etc = folder / "etc"
        self._programs = folder / "bin"
        for made in (self.etc, self._programs):
            made.mkdir()
        python = shlex.quote(str(ray_cluster.PYTHON))
        self._program("sudo", '"$@"')
        self._program("pip", f'{shlex.quote(sys.executable)} -m uv --quiet pip "$1" --python {python} "${{@:2}}"')
        folders = [self._programs, ray_cluster.PYTHON.parent, Path(nereid_server.binary()).parent, envoy.PROGRAM.parent]
        # Sockets are below this folder, and their paths may have 107 bytes only.
        self._home = tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True)
        own = {"PATH": ":".join(map(str, [*folders, os.environ["PATH"]])), "USER": getpass.getuser()}
        self._pages = [f"--dashboard-port={free_port()}"] if dashboard else ["--include-dashboard=false"]
        if dashboard:
            own["RAY_DASHBOARD_ADDRESS"] = self._pages[0].replace("--dashboard-port=", "http://127.0.0.1:")
        self._variables = os.environ | own | {"RAY_TMPDIR": self._home.name, "RAY_USAGE_STATS_ENABLED": "0"} | variables
        self._started: list[subprocess.Popen] = []
        self._head: subprocess.Popen | None = None
        self.envoy = (0, 0)

    def _program(self, name, command):
        path = self._programs / name
        path.write_text(f"#!/bin/bash\nexec {command}\n")
        path.chmod(0o755)

    def commands(self, *sections):
        """The commands of sections of the page, in their order."""
        blocks = guide_pages.blocks(PAGE, *sections)
        return [command for block in blocks if block.kind == "console" for command, _ in block.commands()]

    def run(self, command, folder=ROOT):
        """Executes a command of the page; gives what it printed, where it comes to an end."""
        if command == "ray stop":
            return self.stop()
        command = command.replace("/etc/", f"{self.etc}/")
        if command.startswith("envoy "):
            return self._run_envoy(command)
        if command == HEAD:
            self._start_head(folder)
            return ""
        if command.endswith(" &"):
            self._start(command.removesuffix(" &"), folder)
            return ""
        outcome = self._outcome(command, folder)
        assert outcome.returncode == 0, f"$ {command}\n{outcome.stdout}{outcome.stderr}"
        return outcome.stdout

    def start(self, command, folder):
        """Starts a command of the page that does not end."""
        return self._start(command, folder)

    def end(self, process):
        """Ends one of these, as Ctrl-C does."""
        process.send_signal(signal.SIGINT)
        process.wait(START_LIMIT_S)
        self._started.remove(process)

    def _outcome(self, command, folder):
        bash = ["bash", "-euo", "pipefail", "-c", command]
        return subprocess.run(bash, cwd=folder, env=self._variables, capture_output=True, text=True, timeout=START_LIMIT_S * 2)

    def _start(self, command, folder):
        process = subprocess.Popen(["bash", "-c", f"exec {command}"], cwd=folder, env=self._variables, stdin=subprocess.DEVNULL)
        self._started.append(process)
        return process

    def _start_head(self, folder):
        """Starts Ray, without its pages. Its agent has 15 seconds to start, too few on a busy machine."""
        for _ in range(START_TRIES):
            ports = [f"--{name}port={free_port()}" for name in PORTS]
            head = self._start(" ".join([HEAD, *ports, *self._pages, "--block"]), folder)
            # Written when the node runs.
            known = Path(self._home.name) / "ray" / "ray_current_cluster"
            assert eventually(lambda head=head: head.poll() is not None or known.exists(), START_LIMIT_S)
            if head.poll() is None:
                self._head = head
                return
        raise AssertionError(f"Ray did not start in {START_TRIES} tries")

    def _run_envoy(self, command):
        path = self.etc / "envoy" / "envoy.yaml"
        assert eventually((path.parent / "servers" / "grpc.yaml").exists)
        text, self.envoy = envoy.placed(path.read_text(), path.parent / "servers")
        path.write_text(text)
        # A machine has one shared memory for Envoys that restart each other.
        self._start(f"{command} --disable-hot-restart --log-level error", ROOT)
        return ""

    def servers(self):
        """The fleet's servers by their names."""
        printed = self.run("python deploy/ray/fleet.py status")
        return {server["name"]: server for server in map(json.loads, printed.splitlines())}

    def processes(self):
        """All processes of the cluster, by their numbers."""
        return [] if self._head is None else tree(self._head.pid)

    def stop(self):
        """Ends what was started, the last one first."""
        members = self.processes()
        for process in reversed(self._started):
            process.send_signal(signal.SIGTERM)
        for process in self._started:
            try:
                process.wait(START_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._started.clear()
        self._head = None
        for pid in members:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        return ""

    def close(self):
        """Ends what is left."""
        self.stop()
        self._home.cleanup()

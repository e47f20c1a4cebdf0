"""A cluster of Ray with several nodes on this machine, and the command of deploy/ray on it. Ray is installed once for each test
environment, in an environment of its own.
"""

import json
import subprocess
import sys
import threading
from pathlib import Path

from once import once
from places import ROOT

PACKAGE = "ray[serve]==2.60.0"
HOME = Path(sys.prefix) / "ray"
PYTHON = HOME / "python" / "bin" / "python"
FLEET = ROOT / "deploy" / "ray" / "fleet.py"
LIMIT_S = 180
_PROGRAM = Path(__file__).parent / "ray_program.py"


def prepare():
    """Installs the package, unless it is there."""
    once(HOME, _install, mark=PACKAGE)


def _install():
    uv = [sys.executable, "-m", "uv", "--quiet"]
    subprocess.run([*uv, "venv", "--clear", "--python", sys.executable, HOME / "python"], check=True)
    subprocess.run([*uv, "pip", "install", "--python", str(PYTHON), PACKAGE], check=True)


class Cluster:
    """A head without processors, and nodes that have two of the resource `nereid` each."""

    def __init__(self, nodes):
        prepare()
        pipe = subprocess.PIPE
        self._process = subprocess.Popen([PYTHON, _PROGRAM, str(nodes)], stdin=pipe, stdout=pipe, text=True)
        self.address = self._answer()

    def _answer(self):
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("answer "):
                return json.loads(line.removeprefix("answer "))
        raise AssertionError("the program that runs Ray has ended")

    def command(self, *words):
        """Has the program act on the cluster."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def fleet(self, *arguments):
        """Runs the command of deploy/ray, and gives what it printed."""
        command = [PYTHON, FLEET, "--address", self.address, *map(str, arguments)]
        outcome = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
        assert outcome.returncode == 0, outcome.stdout + outcome.stderr
        return outcome.stdout

    def status(self):
        """The servers by their names."""
        return {server["name"]: server for server in map(json.loads, self.fleet("status").splitlines())}

    def follow(self, folder, *arguments):
        """Starts the command that keeps a balancer's files up to date."""
        return subprocess.Popen([PYTHON, FLEET, "--address", self.address, "addresses", *arguments, folder])

    def stop(self):
        """Ends all nodes."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        end = threading.Timer(LIMIT_S, self._process.kill)
        end.start()
        self._process.wait()
        end.cancel()

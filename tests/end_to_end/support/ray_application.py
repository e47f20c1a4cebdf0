"""An application of Ray Serve on this machine, in the environment of ray_cluster.py with the package `nereid` beside it."""

import json
import os
import subprocess
import threading
from pathlib import Path

import python_package
from places import ROOT
from ports import free_port
from processes import tree
from ray_cluster import LIMIT_S, PYTHON, prepare

_PROGRAM = Path(__file__).parent / "ray_application_program.py"


def command_line(pid):
    """How a process calls itself; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


class Application:
    """An application with one replica: its module, the name of what builds it, and that of its deployment."""

    def __init__(self, repository, folder, path="serve:app:Nereid", **variables):
        """`variables` are further ones of the environment of all of Ray's processes."""
        prepare()
        package = python_package.install(folder / "package")
        self.port = free_port()
        environment = os.environ | {"PYTHONPATH": f"{package}:{ROOT / 'deploy/ray'}:{ROOT / 'tests/measure'}"} | variables
        arguments = [path, self.port, json.dumps({"model_repository": str(repository)})]
        pipe = subprocess.PIPE
        command = [str(PYTHON), str(_PROGRAM), *map(str, arguments)]
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)
        self.pid = self._process.pid
        self._answer()

    def replicas(self):
        """The processes of the replicas."""
        return self.processes("ray::ServeReplica:")

    def processes(self, name):
        """The processes whose command lines begin like this."""
        return [pid for pid in tree(self.pid) if command_line(pid).startswith(name)]

    def _answer(self):
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("answer "):
                return json.loads(line.removeprefix("answer "))
        raise AssertionError("the program that runs Ray has ended")

    def command(self, *words):
        """Has the program act on the application."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def stop(self):
        """Ends Ray."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        end = threading.Timer(LIMIT_S, self._process.kill)
        end.start()
        self._process.wait()
        end.cancel()

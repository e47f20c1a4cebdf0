"""The tests of OpenAI's interface with every promised release of the package `openai`, beside that of the default tests. Not among those:
`cargo xtask test versions`.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from once import once
from places import ROOT

# Since the oldest one, clients have responses. The newest one is that of the default tests.
RELEASES = ["1.66.5", "1.109.1", "2.0.0", "2.54.0"]
HOME = Path(sys.prefix) / "openai-releases"
# What the package needs beside what the tests' environment has.
FURTHER = ["distro==1.9.0", "tqdm==4.67.1"]


def installed(release):
    """A folder with the package, and no other release of it."""
    HOME.mkdir(exist_ok=True)
    folder = HOME / release

    def install():
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            f"--target={folder}",
            f"openai=={release}",
            *FURTHER,
        ]
        subprocess.run(command, check=True)

    once(folder, install)
    return folder


@pytest.mark.parametrize("release", RELEASES)
def test_interface_serves_the_release(release, tmp_path):
    tests = ROOT / "tests" / "end_to_end"
    environment = os.environ | {"PYTHONPATH": str(installed(release))}
    shown = "import openai; print(openai.__version__)"
    found = subprocess.run([sys.executable, "-c", shown], env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == release
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'tests'}"]
    done = subprocess.run(
        [*command, "faces/test_openai.py"], cwd=tests, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-20_000:]
    print(release, done.stdout.splitlines()[-1])

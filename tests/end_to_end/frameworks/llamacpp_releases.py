"""The tests of language models with the oldest and the newest supported release of llama.cpp, beside that of the default tests. Not among
those: `cargo xtask test versions`, which builds the newest one.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gguf_models
import llamacpp_package
import nereid_server
from places import ROOT

TESTS = ["cached_prefixes", "damaged_language_models", "language_models", "reranking_models", "structured_output"]


def built():
    """The folder with the newest library, which no package has."""
    return Path(os.environ["NEWEST_LLAMACPP"]).parent


@pytest.mark.parametrize(("release", "folder"), [("0.4.0", llamacpp_package.oldest_library_folder), ("0.6.0", built)])
def test_language_models_run_on_the_release(release, folder, tmp_path):
    environment = os.environ | {llamacpp_package.FOLDER: str(folder())}
    gguf_models.write(tmp_path / "models")
    flag = f"--backend-config=llamacpp,library={folder()}"
    with nereid_server.running(tmp_path / "models", flag) as server:
        server.wait_for_log(rf"llama\.cpp {re.escape(release)}")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'tests'}"]
    files = [f"frameworks/test_{name}.py" for name in TESTS]
    done = subprocess.run(
        [*command, *files], cwd=ROOT / "tests/end_to_end", env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-20_000:]
    print(release, done.stdout.splitlines()[-1])

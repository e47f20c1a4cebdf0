"""The programs of docs/clients.md, which do the same in each language."""

import subprocess
import sys
from pathlib import Path

import pytest

import nereid_server
from guide_pages import Reader, blocks
from places import EXAMPLES, ROOT

PAGE = "docs/clients.md"
# The step `guides` tries the others.
LANGUAGES = ["curl", "Python", "JavaScript"]


def follow(folder, language, **environment):
    """`environment` has further folders of programs (`path`) and variables."""
    (folder / "examples").symlink_to(EXAMPLES)
    (folder / "proto").symlink_to(ROOT / "proto")
    Reader(folder, **environment).follow(PAGE, "Clients", language)


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_program_does_the_five_tasks(tmp_path, language):
    follow(tmp_path, language)


def test_the_program_in_rust_does_the_five_tasks(tmp_path):
    (block,) = blocks(PAGE, "Rust")
    assert block.text == (ROOT / "crates/programs/client/examples/tasks.rs").read_text()
    program = Path(nereid_server.binary()).parent / "examples" / "tasks"
    assert program.exists(), f"{program} is missing: cargo build --workspace --all-targets"
    (tmp_path / "models").mkdir()
    for model in ("model_repository/identity_fp32", "python_repository/stream_words"):
        (tmp_path / "models" / Path(model).name).symlink_to(EXAMPLES / model)
    python = f"--backend-config=python,python={sys.executable}"
    with nereid_server.running(tmp_path / "models", python) as server:
        run = subprocess.run([program, server.url, server.grpc_url], capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stdout) == (0, "ready\nINPUT0 FP32 [-1,-1]\n[1.5,2,0.1]\none by one\n1 requests\n"), run

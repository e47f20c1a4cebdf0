"""The programs of docs/clients.md, which do the same in each language. `test_web_page.py` opens the page for browsers."""

import subprocess
import sys
from pathlib import Path

import pytest

import nereid_server
from guide_pages import Reader, blocks
from places import EXAMPLES, ROOT

PAGE = "docs/clients.md"
# The step `guides` tries the others.
LANGUAGES = ["curl", "Python", "Python, asynchronous", "Python, shared memory", "JavaScript"]
# Models in Python run on the tests' own interpreter.
PYTHON = f"--backend-config=python,python={sys.executable}"
ANSWERS = "ready\nINPUT0 FP32 [-1,-1]\n[1.5,2,0.1]\none by one\n1 requests\n"


def follow(folder, language, **environment):
    """`environment` has further folders of programs (`path`) and variables."""
    (folder / "examples").symlink_to(EXAMPLES)
    (folder / "proto").symlink_to(ROOT / "proto")
    Reader(folder, **environment).follow(PAGE, "Clients", language)


def write_models(folder):
    """A repository with the models of the page."""
    models = folder / "models"
    models.mkdir()
    for model in ("model_repository/identity_fp32", "python_repository/stream_words"):
        (models / Path(model).name).symlink_to(EXAMPLES / model)
    return models


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_program_does_the_five_tasks(tmp_path, language):
    follow(tmp_path, language)


def test_the_program_in_rust_does_the_five_tasks(tmp_path):
    (block,) = blocks(PAGE, "Rust")
    assert block.text == (ROOT / "crates/programs/client/examples/tasks.rs").read_text()
    program = Path(nereid_server.binary()).parent / "examples" / "tasks"
    assert program.exists(), f"{program} is missing: cargo build --workspace --all-targets"
    with nereid_server.running(write_models(tmp_path), PYTHON) as server:
        run = subprocess.run([program, server.url, server.grpc_url], capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stdout) == (0, ANSWERS), run


def test_the_program_in_c_does_the_five_tasks(tmp_path):
    write_models(tmp_path)
    (tmp_path / "include").symlink_to(ROOT / "crates/programs/libtritonserver/include")
    (tmp_path / "lib").symlink_to(Path(nereid_server.binary()).parent)
    Reader(tmp_path).follow(PAGE, "C")

"""Editors that use OpenAI's interface, as they are released: they change a file as a model tells them. Not among the default tests:
`cargo xtask test ai-clients`. Each editor has an environment of its own, because their packages do not fit together with those of others."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import language_models
import nereid_server
from once import once

AIDER = "aider-chat==0.86.2"
HOME = Path(sys.prefix) / "aider"
LIMIT_S = 300
FLAGS = [f"--backend-config=python,python={sys.executable}", "--openai-default-max-tokens=1000"]
BEFORE = 'def farewell():\n    return "Hello"\n\n\nprint(farewell())\n'
# The model reads the file and the task in what the editor sends, and answers in the editor's form. Its last message is a command.
TASK = "Replace Hello by Goodbye."
READ = """
{%- set all = messages | map(attribute="content") | join("\n") -%}
{%- set file = all.split("\nfarewell.py\n```\n")[1].split("```")[0] -%}
{%- set words = all.split("Replace ")[1].split(".")[0].split(" by ") -%}
{%- set changed = file | replace(words[0], words[1]) -%}
"""
FORMS = {
    "whole": "<user> say Done.\n\nfarewell.py\n```\n{{ changed }}```\n<assistant>",
    "diff": (
        "<user> say Done.\n\nfarewell.py\n```python\n<<<<<<< SEARCH\n{{ file }}=======\n{{ changed }}>>>>>>> REPLACE\n```\n<assistant>"
    ),
}


@pytest.fixture(scope="module")
def aider():
    """The program, which is installed once."""

    def install():
        subprocess.run([sys.executable, "-m", "venv", "--clear", HOME / "environment"], check=True)
        pip: list[str | Path] = [
            HOME / "environment/bin/python",
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            AIDER,
        ]
        subprocess.run(pip, check=True)

    once(HOME, install, f"ready-{AIDER}")
    return HOME / "environment/bin/aider"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    repository = tmp_path_factory.mktemp("editors")
    for form, answer in FORMS.items():
        language_models.write(repository, form, template=READ + answer)
    with nereid_server.running(repository, *FLAGS) as server:
        yield server


@pytest.fixture
def edit(aider, server, tmp_path):
    """Has the editor do the task with a model, and returns the outcome and the file."""

    def edit(model, form, stream):
        # The editor would fetch these from the network.
        prices = tmp_path / "home/.aider/caches/model_prices_and_context_window.json"
        prices.parent.mkdir(parents=True, exist_ok=True)
        prices.write_text("{}")
        file = tmp_path / "farewell.py"
        file.write_text(BEFORE)
        command = [aider, f"--model=openai/{model}", f"--edit-format={form}", "--stream" if stream else "--no-stream"]
        command += [f"--openai-api-base=http://{server.url}/v1", "--openai-api-key=none", "--no-git", "--yes-always"]
        command += [
            "--no-check-update",
            "--no-show-release-notes",
            "--analytics-disable",
            "--no-show-model-warnings",
            "--no-pretty",
        ]
        command += ["--map-tokens=0", "--no-auto-lint", "--message", TASK, file.name]
        environment = os.environ | {"HOME": str(tmp_path / "home"), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S
        )
        return done, file.read_text()

    return edit


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_aider_edits_a_file(edit, form, stream):
    done, text = edit(form, form, stream)
    assert done.returncode == 0, done.stderr
    assert text == BEFORE.replace("Hello", "Goodbye"), done.stdout
    assert "Applied edit to farewell.py" in done.stdout and "Done." in done.stdout, done.stdout
    assert " received." in done.stdout, done.stdout


def test_aider_shows_the_servers_error(edit):
    done, text = edit("missing", "whole", False)
    assert "Unknown model: missing" in done.stdout + done.stderr, done
    assert text == BEFORE

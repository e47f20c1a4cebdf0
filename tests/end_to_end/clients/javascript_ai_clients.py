"""Clients of OpenAI's interface in JavaScript, as they are released: each does the same tasks. Not among the default tests:
`cargo xtask test ai-clients`."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ai_site import site  # noqa: F401 - a fixture
from once import once

PACKAGES = {
    "openai": "6.49.0",
    "ai": "6.0.326",
    "@ai-sdk/openai": "3.0.141",
    "@ai-sdk/openai-compatible": "2.0.92",
    "@langchain/core": "1.4.0",
    "@langchain/openai": "1.5.8",
    "zod": "4.6.7",
}
HOME = Path(sys.prefix) / "javascript-ai-clients"
CLIENTS = {
    "openai": ["openai_client.mjs"],
    "ai-sdk": ["ai_sdk.mjs", "chat"],
    "ai-sdk-responses": ["ai_sdk.mjs", "responses"],
    "langchain": ["langchain.mjs"],
}
LIMIT_S = 300


@pytest.fixture(scope="module")
def programs():
    """The folder of the programs, with the packages that they import."""
    for needed in ("node", "npm"):
        if not shutil.which(needed):
            raise RuntimeError(f"the clients in JavaScript need {needed}: apt-get install nodejs npm")
    wanted = [f"{name}@{version}" for name, version in PACKAGES.items()]
    install = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(HOME), *wanted]
    mark = "ready-" + "-".join(wanted).replace("/", "+")
    once(HOME, lambda: subprocess.run(install, check=True, stdin=subprocess.DEVNULL), mark)
    for program in Path(__file__).parent.glob("*.mjs"):
        shutil.copy(program, HOME)
    return HOME


@pytest.fixture(params=CLIENTS)
def run(programs, request):
    """Has a client do a task, and returns the outcome."""
    program, *form = CLIENTS[request.param]

    def run(task, url, key="none", retries=0):
        command = ["node", str(programs / program), task, url, key, str(retries), *form]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def test_answers_have_their_text_and_the_number_of_tokens(site, run):
    assert run("chat", site.url) == {"text": "1 2 3 ", "tokens": 3}


def test_streams_come_in_pieces_and_end_with_the_number_of_tokens(site, run):
    found = run("stream", site.url)
    assert "".join(found["parts"]) == "1 2 3 4 5 " and found["tokens"] == 5
    assert len([part for part in found["parts"] if part]) == 5


def test_tools_are_called_and_their_results_are_answered(site, run):
    assert run("tools", site.url) == "The tool says: rain in Oslo"


def test_real_model_fills_in_a_form(site, run):
    assert set(run("structured", site.url)) == {"name", "age"}


def test_texts_have_their_vectors(site, run):
    assert run("embed", site.url) == [[len(text), ord(text[0]), 0.5] for text in ("a", "bc", "def", "g", "hi")]


def test_unknown_models_and_wrong_parameters_are_the_clients_own_errors(site, run):
    missing, wrong = run("errors", site.url)
    assert (missing["status"], wrong["status"]) == (404, 400), (missing, wrong)
    assert "Unknown model: unknown" in missing["message"]
    # The newer form of the interface has them by another field.
    assert "logprobs" in wrong["message"] or "'include' is not supported" in wrong["message"]


def test_limits_are_the_clients_own_errors_and_end_by_themselves(site, run):
    refused = run("limited", site.limited_url, site.key)
    assert refused["status"] == 429, refused
    assert run("again", site.limited_url, site.key, retries=5) == ["1 ", "1 "]


def test_leaving_a_stream_cancels_it(site, run):
    assert site.sees_cancelled(lambda: run("leave", site.url))


@pytest.mark.parametrize("run", ["openai"], indirect=True)
def test_responses_continue_each_other(site, run):
    found = run("responses", site.url)
    assert found == {"first": "1 2 ", "parts": ["1 ", "2 ", "3 "], "tokens": 3, "previous": True}

"""Completions of the command line, as bash uses them."""

import subprocess

import pytest

import nereid_server


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["nereid", "--http-po"], ["--http-port"]),
        (["nereid", "--log-f"], ["--log-format", "--log-file"]),
        (["nereid", "--load-reports", ""], ["off", "on-request", "always"]),
        (["nereid", "chec"], ["check"]),
        (["nereid", "check", "--js"], ["--json"]),
        (["nereid", "completions", "b"], ["bash"]),
        (["nereid", "--nosuch"], []),
    ],
)
def test_bash_completes_what_there_is(words, expected):
    script = subprocess.run([nereid_server.binary(), "completions", "bash"], capture_output=True, text=True, check=True)
    line = " ".join(f"'{word}'" for word in words)
    asked = f"""
        COMP_WORDS=({line}) COMP_CWORD={len(words) - 1}
        _nereid nereid '{words[-1]}' '{words[-2]}'
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    outcome = subprocess.run(["bash", "-c", script.stdout + asked], capture_output=True, text=True, check=True)
    assert sorted(outcome.stdout.split()) == sorted(expected)


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_scripts_of_their_own(shell):
    script = subprocess.run([nereid_server.binary(), "completions", shell], capture_output=True, text=True, check=True)
    assert {"zsh": "#compdef nereid", "fish": "complete -c nereid"}[shell] in script.stdout

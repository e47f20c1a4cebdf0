"""Chat templates of well-known families, rendered by the server and by transformers.

The templates are those that llama.cpp's sources have (in the package llama-cpp-python of PyPI, 77 MB), unpacked once for each environment of
the tests. A model returns its prompt.
"""

import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import jinja2
import pytest
from transformers.utils.chat_template_utils import render_jinja_template

import echo_models
import nereid_server
from http_requests import request
from once import once
from template_conversations import conversations

SOURCES = "llama-cpp-python==0.3.36"
DIGEST = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
HOME = Path(sys.prefix) / "chat-templates"
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}

# Differences that stay.
DIFFERENT = {
    # gpt-oss's template shows only the first call of a message; the server makes a message of each.
    ("openai-gpt-oss-120b", "parallel calls"),
    # In Jinja, what is added to a text that is marked as safe is escaped as HTML, which is no use in a prompt.
    *(
        ("meetkai-functionary-medium-v3.1", name)
        for name in ("tools", "tools with system", "call", "answered call", "reasoned call", "call with text", "parallel calls")
    ),
}


def templates():
    """The folder with the templates."""

    def fetch():
        with tempfile.TemporaryDirectory() as folder:
            pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download", "--no-deps", "--no-cache-dir"]
            name, _ = SOURCES.split("==")
            subprocess.run([*pip, f"--no-binary={name}", "--dest", folder, SOURCES], check=True)
            (archive,) = Path(folder).glob("*.tar.gz")
            found = hashlib.sha256(archive.read_bytes()).hexdigest()
            assert found == DIGEST, f"{SOURCES} has digest {found}"
            with tarfile.open(archive) as tar:
                for member in tar.getmembers():
                    if "/models/templates/" in member.name and member.name.endswith(".jinja"):
                        contents = tar.extractfile(member)
                        assert contents is not None, f"{member.name} is no file"
                        (HOME / Path(member.name).name).write_bytes(contents.read())

    HOME.parent.mkdir(parents=True, exist_ok=True)
    once(HOME, fetch)
    return HOME


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    repository = tmp_path_factory.mktemp("templates")
    for path in templates().glob("*.jinja"):
        text = path.read_text()
        # A parser that finds no call in the prompt.
        echo_models.write(repository, path.stem, text, parser="hermes" if "[TOOL_CALLS]" in text else "mistral")
        (repository / path.stem / "tokenizer_config.json").write_text(json.dumps(TOKENS))
    with nereid_server.running(repository) as server:
        yield server


def expected(template, name, messages, tools, variables):
    """The prompt that transformers makes, or the refusal of the template; None where transformers fails."""
    if "developer" not in template:
        for message in messages:
            message["role"] = message["role"].replace("developer", "system")
    if "[/THINK]" in template and "'thinking'" in template:
        # Clients have no such part of the content.
        for message in messages:
            if thought := message.get("thinking"):
                text = [{"type": "text", "text": message["content"]}] if message["content"] else []
                message["content"] = [{"type": "thinking", "thinking": thought}, *text]
    variables = {"add_generation_prompt": True, **TOKENS, **variables}
    try:
        (prompt,), _ = render_jinja_template([messages], tools=tools, chat_template=template, **variables)
    except jinja2.TemplateError as error:
        # Those of Jinja itself have classes of their own.
        return error if type(error) is jinja2.TemplateError else None
    except (TypeError, ValueError, AttributeError, KeyError, IndexError, RecursionError):
        return None
    return prompt


@pytest.mark.parametrize("name", sorted(conversations()))
def test_prompts_are_those_of_transformers(server, name):
    compared, different = 0, []
    for path in sorted(templates().glob("*.jinja")):
        messages, tools, variables = conversations()[name]
        want = expected(path.read_text(), name, messages, tools, dict(variables))
        if want is None or (path.stem, name) in DIFFERENT:
            continue
        messages, tools, variables = conversations()[name]
        for call in (call for message in messages for call in message.get("tool_calls", [])):
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"], ensure_ascii=False)
        own = {
            key: variables.pop(key) for key in ("add_generation_prompt", "continue_final_message", "documents") if key in variables
        }
        body = {"model": path.stem, "messages": messages, "chat_template_kwargs": variables, **own}
        if tools is not None:
            body["tools"] = tools
        answer = request(server, "POST", "/v1/chat/completions", json.dumps(body))
        compared += 1
        if isinstance(want, str):
            got = answer.json["choices"][0]["message"]["content"] if answer.status == 200 else answer.body.decode()
            if got != want:
                different.append(f"{path.stem}:\n  {want!r}\n  {got!r}")
        elif answer.status != 400 or str(want) not in answer.json["error"]["message"]:
            different.append(f"{path.stem}: {want!r}\n  {answer.body.decode()}")
    assert not different, "\n".join(different)
    assert compared > 30

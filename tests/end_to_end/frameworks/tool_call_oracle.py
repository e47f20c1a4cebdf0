"""Tool calls in outputs of many families, read by the server and by NVIDIA Dynamo's parsers (the crate dynamo-parsers).

A model returns its prompt, which is the output to read. `NEREID_DYNAMO_PARSERS` names Dynamo's program `record_dynamo_batch`, which reads the
outputs of one family. For gpt-oss it needs the vocabulary, which the package quicktok-v1 has in a form of its own.
"""

import base64
import importlib.resources
import json
import os
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest

import echo_models
import nereid_server
from http_requests import request

TRANSCRIPTS = json.loads((Path(__file__).parent / "tool_transcripts.json").read_text())

# The server's names of the formats that Dynamo calls otherwise.
NAMES = {"harmony": "gpt_oss", "llama3_json": "llama3"}

TOOLS = [
    {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "detailed": {"type": "boolean"},
                "places": {"type": "array", "items": {}},
            },
        },
    },
    {"name": "now", "parameters": {"type": "object", "properties": {}}},
]


def weather(arguments):
    return ("get_weather", arguments)


NOW: tuple[str, dict[str, Any]] = ("now", {})
OSLO = weather({"city": "Oslo"})
CUT = weather('{"city": "Os')

# Where the two differ, with what the server reads, by the reasons.
DIFFERENT = {
    "text behind and between calls is content": {
        ("hermes", "text behind"): ([OSLO], "Done."),
        ("qwen25", "text between"): ([NOW, OSLO], "and"),
        ("qwen3_coder", "text behind"): ([NOW], "Done."),
        ("mistral", "text behind"): ([NOW], "Done."),
        ("llama3_json", "text behind"): ([OSLO], "Done."),
        ("pythonic", "text behind"): ([OSLO], "Done."),
        ("deepseek_v3_1", "text behind"): ([NOW], "Done."),
        ("deepseek_v3", "text behind"): ([OSLO], "Done."),
    },
    "what is no call is content, with its marks": {
        ("hermes", "no JSON"): ([], "<tool_call>get_weather(Oslo)</tool_call>"),
        ("qwen25", "empty"): ([], "<tool_call>\n</tool_call>"),
        ("qwen25", "no opening tag"): ([], TRANSCRIPTS["qwen25"]["no opening tag"]),
        ("mistral", "no JSON"): ([], "[TOOL_CALLS] weather in Oslo"),
        ("harmony", "no recipient"): ([], '{"city": "Oslo"}'),
        ("harmony", "plain"): ([], "Hello there."),
        ("deepseek_v3_1", "no JSON"): ([], TRANSCRIPTS["deepseek_v3_1"]["no JSON"]),
    },
    "the arguments of a call that was cut off are cut off, too: nobody runs half of a command by mistake": {
        ("hermes", "cut off"): ([CUT], ""),
        ("qwen3_coder", "cut off"): ([weather('{"city": "Osl')], ""),
        ("mistral", "cut off"): ([CUT], ""),
        ("mistral", "named, cut off"): ([CUT], ""),
        ("llama3_json", "cut off"): ([CUT], ""),
        ("pythonic", "cut off"): ([CUT], ""),
        ("harmony", "cut off"): ([CUT], ""),
        ("deepseek_v3_1", "cut off"): ([CUT], ""),
        ("deepseek_v3", "cut off"): ([CUT], ""),
    },
    "a call whose arguments are complete needs no further end": {
        ("qwen3_coder", "no end of a value"): ([weather({"city": "Oslo", "days": 3})], ""),
        ("pythonic", "no end"): ([OSLO], ""),
        ("harmony", "no end"): ([OSLO], ""),
        ("deepseek_v3_1", "no end"): ([OSLO], ""),
    },
    "marks within a text are text": {
        ("hermes", "tag in a text"): ([weather({"city": "a</tool_call>b"})], ""),
        ("deepseek_v3_1", "mark in a text"): ([weather({"city": "<｜tool▁call▁end｜>"})], ""),
        ("deepseek_v3", "fence in a text"): ([weather({"city": "```"})], ""),
    },
    "several calls, and more braces than there should be, are read": {
        ("qwen25", "two in one tag"): ([OSLO, NOW], ""),
        ("qwen25", "brace too many"): ([OSLO], ""),
        ("llama3_json", "two"): ([OSLO, NOW], ""),
        ("llama3_json", "two lines"): ([OSLO, NOW], ""),
        ("pythonic", "two lists"): ([OSLO, NOW], ""),
    },
    "arguments are an object": {
        ("hermes", "arguments as a text"): ([OSLO], ""),
        ("qwen25", "null arguments"): ([NOW], ""),
    },
    "a parameter that the schema lacks may be anything": {
        ("qwen3_coder", "unknown parameter"): ([weather({"more": 7})], ""),
    },
    "the template writes values as they are, so the model does, too": {
        ("qwen3_coder", "escapes"): ([weather({"city": '&lt;a&gt; \\n "q"'})], ""),
    },
    "newer releases of Mistral's models write the name in front": {
        ("mistral", "named"): ([OSLO], ""),
        ("mistral", "two named"): ([OSLO, NOW], ""),
        ("mistral", "named without a mark"): ([OSLO], ""),
        ("mistral", "identifier"): ([OSLO], ""),
        ("mistral", "text in front of a named one"): ([OSLO], "I look."),
    },
    "all of Python's literals are read": {
        ("pythonic", "literals"): (
            [weather({"city": "Oslo", "detailed": True, "days": -3, "places": [{"lat": 1.5, "x": None}, []]})],
            "",
        ),
        ("pythonic", "lines"): ([weather({"city": "Oslo", "days": 3})], ""),
        ("pythonic", "long text"): ([weather({"city": "a\nb"})], ""),
        ("pythonic", "large number"): ([weather({"days": 1 << 64})], ""),
        ("pythonic", "tuple"): ([weather({"places": [1, 2]})], ""),
    },
    "arguments that are no literals make the call invalid, instead of being left out of it": {
        ("pythonic", "positional behind"): ([weather('{"days": 1, "Oslo"}')], ""),
        ("pythonic", "name as a value"): ([weather('{"city": Oslo}')], ""),
        ("pythonic", "sum"): ([weather('{"city": "Oslo", "days": 1 + 2}')], ""),
        ("pythonic", "others"): ([weather('{"city": "Oslo", **more}')], ""),
    },
}


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    """A folder with the vocabulary, whose digest Dynamo checks."""
    contents = (importlib.resources.files("quicktok") / "data/o200k.vocab").read_bytes()
    (count,), at, tokens = struct.unpack_from("<I", contents), 4, []
    for _ in range(count):
        (length,) = struct.unpack_from("<H", contents, at)
        (rank,) = struct.unpack_from("<I", contents, at + 2 + length)
        tokens.append((rank, contents[at + 2 : at + 2 + length]))
        at += 6 + length
    lines = [f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in sorted(tokens)]
    folder = tmp_path_factory.mktemp("vocabulary")
    (folder / "o200k_base.tiktoken").write_text("".join(lines))
    return folder


def dynamo(family, folder, vocabulary):
    """The calls and the text that Dynamo reads in the outputs of a family."""
    cases = {name: {"model_text": text, "tools": TOOLS} for name, text in TRANSCRIPTS[family].items()}
    (folder / "cases.json").write_text(json.dumps({"family": family, "cases": cases}))
    command = [os.environ["NEREID_DYNAMO_PARSERS"], folder / "cases.json"]
    environment = os.environ | {"TIKTOKEN_ENCODINGS_BASE": str(vocabulary)}
    program = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=120, env=environment)
    return {
        name: ([(call["name"], call["arguments"]) for call in read["calls"]], read["normal_text"].strip())
        for name, read in json.loads(program.stdout).items()
    }


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    repository = tmp_path_factory.mktemp("transcripts")
    for family in TRANSCRIPTS:
        # Messages of the format harmony are read behind the header that the prompt ends with.
        end = "<|start|>assistant" if family == "harmony" else ""
        echo_models.write(repository, family, "{{ messages[0].content }}" + end, parser=NAMES.get(family, family))
    with nereid_server.running(repository) as server:
        yield server


def read(server, family, text):
    """The calls and the text that the server reads."""
    tools = [{"type": "function", "function": tool} for tool in TOOLS]
    body = {"model": family, "messages": [{"role": "user", "content": text}], "tools": tools}
    answer = request(server, "POST", "/v1/chat/completions", json.dumps(body))
    assert answer.status == 200, answer.body
    message = answer.json["choices"][0]["message"]
    calls = [call["function"] for call in message.get("tool_calls", [])]
    return [(call["name"], decoded(call["arguments"])) for call in calls], (message["content"] or "").strip()


def decoded(arguments):
    """The arguments, or their text if that is not JSON."""
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


@pytest.mark.parametrize("family", TRANSCRIPTS)
def test_calls_are_those_of_dynamo(server, family, vocabulary, tmp_path):
    theirs = dynamo(family, tmp_path, vocabulary)
    differences = {}
    for name, text in TRANSCRIPTS[family].items():
        ours = read(server, family, text)
        if ours != theirs.get(name):
            differences[name] = (ours, theirs.get(name))
    known = {name: ours for different in DIFFERENT.values() for (of, name), ours in different.items() if of == family}
    unexpected = {name: pair for name, pair in differences.items() if pair[0] != known.get(name)}
    assert not unexpected, json.dumps(unexpected, indent=1, ensure_ascii=False)
    # A difference that is gone is no longer listed.
    assert set(known) <= set(differences)

"""Structured output of a real language model: JSON by random schemas, tools, regular expressions, choices and grammars.

At high temperatures the small model writes nearly at random, so that what holds an output together is its form. OpenAI's client asks, and
Python's jsonschema decides whether an answer matches.
"""

import json
import random
import re
import time
from concurrent.futures import ThreadPoolExecutor

import jsonschema
import openai
import pytest
from openai import OpenAI

import llamacpp_package
import nereid_server
from http_requests import request

SCHEMAS = 30
REASONS = ("stop", "length")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server with the real model."""
    repository = tmp_path_factory.mktemp("structured")
    (repository / "chat/1").mkdir(parents=True)
    (repository / "chat/1/model.gguf").symlink_to(llamacpp_package.model())
    with nereid_server.running(repository, llamacpp_package.flag()) as server:
        yield server


@pytest.fixture
def client(server):
    """OpenAI's client, without attempts after the first."""
    with OpenAI(base_url=f"http://{server.url}/v1", api_key="none", max_retries=0, timeout=300) as client:
        yield client


def ask(client, text="Invent something.", **fields):
    """The first choice of the answer to one message."""
    fields.setdefault("max_tokens", 200)
    answer = client.chat.completions.create(model="chat", messages=[{"role": "user", "content": text}], **fields)
    assert answer.choices[0].finish_reason in (*REASONS, "tool_calls")
    return answer.choices[0]


def by_schema(schema):
    """The response format with this schema."""
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


def random_schema(chance, depth=2):
    """A schema that ends soon: short texts, few items, no further properties."""
    kinds = ["integer", "string", "boolean", "enum", "pattern", "null"]
    kind = chance.choice(kinds + ["array", "object", "anyOf", "object"] * bool(depth))
    if kind == "integer":
        low = chance.randint(-50, 50)
        return {"type": "integer", "minimum": low, "maximum": low + chance.randint(0, 300)}
    if kind == "string":
        return {"type": "string", "minLength": 1, "maxLength": chance.randint(1, 12)}
    if kind == "enum":
        return {"enum": chance.sample([1, "one", None, True, "ä\n", [2], {"a": 1.5}], 2)}
    if kind == "pattern":
        return {
            "type": "string",
            "pattern": chance.choice(["^[A-Z]{2}[0-9]{1,3}$", "^(foo|bar)+$", "^\\d{4}-\\d{2}$"]),
            "maxLength": 12,
        }
    if kind == "array":
        return {"type": "array", "minItems": chance.randint(0, 2), "maxItems": 3, "items": random_schema(chance, depth - 1)}
    if kind == "anyOf":
        return {"anyOf": [random_schema(chance, depth - 1) for _ in range(2)]}
    if kind == "object":
        names = chance.sample(["name", "age", "tags", "größe"], chance.randint(1, 3))
        return {
            "type": "object",
            "properties": {name: random_schema(chance, depth - 1) for name in names},
            "required": chance.sample(names, chance.randint(0, len(names))),
            "additionalProperties": False,
        }
    return {"type": kind}


def test_answers_match_random_schemas(client):
    chance = random.Random(7)
    schemas = [random_schema(chance) for _ in range(SCHEMAS)]

    def answer(numbered):
        number, schema = numbered
        how = {"temperature": chance.choice([0.0, 1.0, 2.0]), "seed": number, "max_tokens": 300}
        return ask(client, response_format=by_schema(schema), **how)

    with ThreadPoolExecutor(8) as clients:
        answers = list(clients.map(answer, enumerate(schemas)))
    for schema, choice in zip(schemas, answers, strict=True):
        assert choice.finish_reason == "stop", (schema, choice)
        jsonschema.validate(json.loads(choice.message.content), schema)


def test_requests_with_a_form_and_without_do_not_disturb_each_other(client):
    def answer(number):
        if number % 2:
            return ask(client, temperature=0, max_tokens=20)
        return ask(client, extra_body={"guided_choice": [f"choice {number}", f"other {number}"]})

    with ThreadPoolExecutor(8) as clients:
        for number, choice in enumerate(clients.map(answer, range(16))):
            if number % 2:
                assert len(choice.message.content.split()) > 5, choice
            else:
                assert choice.message.content in (f"choice {number}", f"other {number}")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_any_json_object_without_a_schema(client, stream):
    text = ""
    how = {"response_format": {"type": "json_object"}, "max_tokens": 400, "temperature": 0}
    message = "Reply with a JSON object with the key name."
    if stream:
        messages = [{"role": "user", "content": message}]
        for event in client.chat.completions.create(model="chat", messages=messages, stream=True, **how):
            text += event.choices[0].delta.content or ""
    else:
        text = ask(client, message, **how).message.content
    # The model may never end its object, but begins with nothing else.
    assert text.startswith("{")
    try:
        assert isinstance(json.loads(text), dict)
    except json.JSONDecodeError:
        assert len(text) > 200


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"structured_outputs": {"regex": "[0-9]{3}-[a-z]{2}"}}, "[0-9]{3}-[a-z]{2}"),
        ({"guided_regex": "(ab|ä)+!"}, "(ab|ä)+!"),
        ({"structured_outputs": {"choice": ["red", "green"]}}, "red|green"),
        ({"structured_outputs": {"grammar": 'root ::= "<" [a-z]{1,5} ("," [0-9])* ">"'}}, "<[a-z]{1,5}(,[0-9])*>"),
        ({"guided_grammar": 'start: "<" /[a-z]{1,5}/ ("," /[0-9]/){0,2} ">"'}, "<[a-z]{1,5}(,[0-9]){0,2}>"),
    ],
    ids=["regex", "older name", "choice", "gbnf", "lark"],
)
@pytest.mark.parametrize("seed", range(3))
def test_forms_of_vllm(client, fields, pattern, seed):
    choice = ask(client, extra_body=fields, temperature=1.5, seed=seed, stop=["never"])
    if choice.finish_reason == "stop":
        assert re.fullmatch(pattern, choice.message.content), choice
    else:
        assert len(choice.message.content) > 100


def tool(name, properties):
    """A tool whose arguments are all required."""
    parameters = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


WEATHER = tool("weather", {"city": {"enum": ["Oslo", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}})
TIME = tool("time", {"zone": {"type": "string", "maxLength": 5}})


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}], ids=["required", "named"])
def test_forced_tools_have_arguments_by_their_schemas(client, choice):
    for seed in range(3):
        how = {"tools": [WEATHER, TIME], "tool_choice": choice, "parallel_tool_calls": False}
        how |= {"seed": seed, "temperature": 1.5, "max_tokens": 400}
        message = ask(client, "What is the weather in Rome?", **how).message
        assert message.tool_calls
        for call in message.tool_calls:
            known = {"weather": WEATHER, "time": TIME}[call.function.name]
            jsonschema.validate(json.loads(call.function.arguments), known["function"]["parameters"])


def test_parsed_answers_of_openais_client(client):
    from pydantic import BaseModel, Field

    class City(BaseModel):
        """An answer."""

        name: str = Field(max_length=10)
        population: int = Field(ge=0, le=99)

    messages = [{"role": "user", "content": "Describe a city."}]
    answer = client.chat.completions.parse(model="chat", messages=messages, response_format=City, max_tokens=200, temperature=0)
    assert isinstance(answer.choices[0].message.parsed, City)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"response_format": by_schema({"type": "thing"})}, "structured output: "),
        ({"response_format": by_schema({"$ref": "http://127.0.0.1/schema"})}, "structured output: "),
        ({"extra_body": {"guided_regex": "a("}}, "structured output: "),
        ({"extra_body": {"structured_outputs": {"structural_tag": "{}"}}}, "by 'structural_tag'"),
        ({"response_format": by_schema({"enum": ["x" * 1_000_000]})}, "is longer than 262144 bytes"),
        (
            {"tools": [tool(f"tool{number}", {"a": {"type": "string"}}) for number in range(10_000)], "tool_choice": "required"},
            "longer",
        ),
        ({"extra_body": {"guided_regex": "a?b?" * 20_000}}, "at most 4096 are supported"),
        ({"extra_body": {"guided_grammar": "start: " + "(" * 100_000}}, "more than 500 groups"),
    ],
    ids=["type", "remote", "regex", "tag", "megabyte", "tools", "expression", "groups"],
)
def test_forms_that_cannot_be_followed_are_refused_in_time(client, fields, message):
    begun = time.monotonic()
    with pytest.raises(openai.BadRequestError) as error:
        ask(client, **fields)
    assert message in str(error.value) or "but the context holds" in str(error.value)
    assert time.monotonic() - begun < 20
    assert ask(client, max_tokens=1)


def test_schema_reaches_the_model_without_openais_interface(server):
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}
    # Spaces are free, and models of random weights like them.
    sampling = {"temperature": 1, "seed": 3, "max_tokens": 400, "structured_outputs": {"json": json.dumps(schema)}}
    body = {"text_input": "Answer: ", "exclude_input_in_output": True, "sampling_parameters": json.dumps(sampling)}
    found = request(server, "POST", "/v2/models/chat/generate", json.dumps(body)).json
    jsonschema.validate(json.loads(found["text_output"]), schema)

"""OpenAI's interface, used by OpenAI's own client: answers, streams, tools, errors, and clients that leave."""

import asyncio
import base64
import json
import struct
import sys
from http.client import HTTPConnection

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

import language_models
import nereid_server
from access_policies import Policy, bearer
from scrapes import Scrape
from waiting import eventually

FLAGS = [f"--backend-config=python,python={sys.executable}", "--max-inflight-requests=256"]
OWN_PORT = r'Started OpenAI at [^\s"]+:(\d+)'
HERMES = 'parameters { key: "tool_call_parser" value { string_value: "hermes" } }'
THINKING = 'parameters { key: "reasoning_parser" value { string_value: "think" } }'
WEATHER: dict = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A model that chats, and one without a template."""
    repository = tmp_path_factory.mktemp("openai")
    language_models.write(repository, "chat", f"{HERMES} {THINKING}")
    language_models.write(repository, "bare", template=None)
    language_models.write_embedding(repository, "vectors")
    with nereid_server.running(repository, *FLAGS) as server:
        yield server


@pytest.fixture
def client(server):
    """OpenAI's client, without attempts after the first."""
    with OpenAI(base_url=f"http://{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def ask(client, text, **fields):
    """The answer to one message."""
    fields.setdefault("max_tokens", 1000)
    return client.chat.completions.create(model="chat", messages=[{"role": "user", "content": text}], **fields)


def test_models_are_listed_and_found(client):
    assert sorted(model.id for model in client.models.list()) == ["bare", "chat", "vectors"]
    assert client.models.retrieve("chat").object == "model"
    with pytest.raises(openai.NotFoundError) as error:
        client.models.retrieve("unknown")
    assert error.value.code == "model_not_found"


@pytest.mark.parametrize(
    ("text", "limit", "expected", "reason"), [("count 3", 10, "1 2 3 ", "stop"), ("count 9", 2, "1 2 ", "length")]
)
def test_chat_answers_whole_and_streamed(client, text, limit, expected, reason):
    answer = ask(client, text, max_tokens=limit)
    choice = answer.choices[0]
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", expected, reason)
    tokens = len(expected.split())
    assert (answer.usage.completion_tokens, answer.usage.prompt_tokens) == (tokens, 4)
    chunks = list(ask(client, text, max_tokens=limit, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == expected
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == reason
    assert chunks[-1].usage.completion_tokens == tokens


def test_completions_have_prompts_choices_and_echo(client):
    answer = client.completions.create(model="bare", prompt=["count 2", "say äöü€😀"], n=2, echo=True, max_tokens=100)
    expected = ["count 21 2 ", "count 21 2 ", "say äöü€😀äöü€😀", "say äöü€😀äöü€😀"]
    assert [choice.text for choice in answer.choices] == expected
    stream = client.completions.create(model="bare", prompt="count 4", stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == "1 2 3 4 "


@pytest.mark.parametrize("stream", [False, True])
def test_parameters_reach_the_model_as_vllm_names_them(client, stream):
    fields = {"temperature": 0.25, "seed": 5, "stop": ["\t\t"], "extra_body": {"top_k": 7, "chat_template_kwargs": {"x": 1}}}
    answer = ask(client, "parameters", stream=stream, logit_bias={"50": -100}, user="somebody", **fields)
    parts = [chunk.choices[0].delta.content or "" for chunk in answer] if stream else [answer.choices[0].message.content]
    assert json.loads("".join(parts)) == {
        "temperature": 0.25,
        "seed": 5,
        "stop": ["\t\t"],
        "top_k": 7,
        "logit_bias": {"50": -100},
        "max_tokens": 1000,
    }


def test_stop_text_across_tokens_ends_the_answer(client):
    answer = ask(client, "say one two three four", stop="two th")
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("one ", "stop")


def test_tools_are_called_and_their_results_are_shown(client):
    call = '<think>rain?</think>Let me see. <tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>'
    answer = ask(client, f"say {call}", tools=[WEATHER])
    message = answer.choices[0].message
    assert (answer.choices[0].finish_reason, message.content, message.reasoning_content) == ("tool_calls", "Let me see.", "rain?")
    assert json.loads(message.tool_calls[0].function.arguments) == {"city": "Oslo"}
    chunks = ask(client, f"say {call}", tools=[WEATHER], stream=True)
    deltas = [chunk.choices[0].delta for chunk in chunks]
    first, *others = [delta.tool_calls[0] for delta in deltas if delta.tool_calls]
    assert first.id and first.function.name == "weather" and not any(part.id or part.function.name for part in others)
    assert {part.index for part in (first, *others)} == {0}
    assert "".join(part.function.arguments or "" for part in (first, *others)) == '{"city": "Oslo"}'
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "rain"}
    conversation = [{"role": "user", "content": "?"}, message.model_dump(), result, {"role": "user", "content": "count 1"}]
    second = client.chat.completions.create(model="chat", messages=conversation, tools=[WEATHER])
    assert second.choices[0].message.content.startswith("1 ")


def test_forced_tools_and_schemas_constrain_the_output(client):
    forced = ask(client, "parameters", tools=[WEATHER], tool_choice={"type": "function", "function": {"name": "weather"}})
    parameters = json.loads(forced.choices[0].message.tool_calls[0].function.arguments)
    assert parameters["structured_outputs"] == {"json": WEATHER["function"]["parameters"]}
    schema = {"type": "object", "properties": {"z": {"type": "integer"}, "a": {"type": "string"}}}
    response_format = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": True}}
    answer = ask(client, "parameters", response_format=response_format)
    assert json.loads(answer.choices[0].message.content)["structured_outputs"] == {"json": schema}


@pytest.mark.parametrize(
    ("error", "fields"),
    [
        (openai.NotFoundError, {"model": "unknown"}),
        (openai.BadRequestError, {"model": "bare"}),
        (openai.BadRequestError, {"n": 0}),
        (openai.BadRequestError, {"messages": []}),
        (openai.BadRequestError, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}),
        (openai.BadRequestError, {"tools": [{"type": "web_search"}]}),
        (openai.InternalServerError, {"messages": [{"role": "user", "content": "fail"}]}),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_errors_have_openais_form(client, error, fields, stream):
    request = {"model": "chat", "messages": [{"role": "user", "content": "a"}], **fields}
    with pytest.raises(error) as raised:
        client.chat.completions.create(stream=stream, **request)
    assert raised.value.body["message"]
    assert raised.value.request_id
    assert raised.value.response.json()["detail"] == raised.value.body["message"]


def test_client_does_not_repeat_what_would_fail_again(server):
    with OpenAI(base_url=f"http://{server.url}/v1", api_key="none", max_retries=2) as client:
        with pytest.raises(openai.InternalServerError) as raised:
            ask(client, "fail")
    assert raised.value.response.headers["x-should-retry"] == "false"
    assert "x-stainless-retry-count" in raised.value.request.headers
    assert raised.value.request.headers["x-stainless-retry-count"] == "0"


def test_responses_are_whole_and_streamed(client):
    call = '<think>rain?</think>Let me see. <tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>'
    tool = {"type": "function", **WEATHER["function"]}
    request = {"model": "chat", "instructions": "Be brief.", "input": f"say {call}", "tools": [tool], "max_output_tokens": 1000}
    answer = client.responses.create(**request)
    assert (answer.status, answer.output_text) == ("completed", "Let me see.")
    assert [item.type for item in answer.output] == ["reasoning", "message", "function_call"]
    assert json.loads(answer.output[2].arguments) == {"city": "Oslo"}
    with client.responses.stream(**request) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert (text, final.output_text) == ("Let me see.", "Let me see.")
    outputs = [item.model_dump() for item in answer.output]
    result = {"type": "function_call_output", "call_id": answer.output[2].call_id, "output": "rain"}
    conversation = [{"role": "user", "content": "?"}, *outputs, result, {"role": "user", "content": "count 2"}]
    second = client.responses.create(model="chat", input=conversation, max_output_tokens=1)
    assert (second.status, second.output_text) == ("incomplete", "1 ")


def test_stored_response_is_continued_retrieved_and_deleted(client):
    first = client.responses.create(model="chat", input="count 2", max_output_tokens=10)
    assert client.responses.retrieve(first.id) == first
    with client.responses.stream(model="chat", previous_response_id=first.id, input="count 1", max_output_tokens=10) as stream:
        stream.until_done()
        second = stream.get_final_response()
    assert (second.previous_response_id, second.output_text, second.store) == (first.id, "1 ", True)
    assert second.usage.input_tokens > 2 * first.usage.input_tokens
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError, match="not found"):
        client.responses.retrieve(first.id)
    with pytest.raises(openai.BadRequestError) as error:
        client.responses.create(model="chat", previous_response_id=first.id, input="count 1")
    assert error.value.code == "previous_response_not_found"
    kept = client.responses.create(model="chat", previous_response_id=second.id, input="count 1", store=False, max_output_tokens=10)
    assert kept.usage.input_tokens > second.usage.input_tokens
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(kept.id)


@pytest.mark.parametrize("encoding", [openai.NOT_GIVEN, "float", "base64"])
def test_embeddings_of_several_texts(client, encoding):
    texts = ["a", "bc", "def", "g", "hi", "jkl"]
    answer = client.embeddings.create(model="vectors", input=texts, encoding_format=encoding)
    vectors = [entry.embedding for entry in answer.data]
    if encoding == "base64":
        vectors = [list(struct.unpack("<3f", base64.b64decode(vector))) for vector in vectors]
    assert vectors == [[len(text), ord(text[0]), 0.5] for text in texts]
    assert [entry.index for entry in answer.data] == [0, 1, 2, 3, 4, 5]
    with pytest.raises(openai.BadRequestError) as error:
        client.embeddings.create(model="vectors", input="a", dimensions=2)
    assert error.value.param == "dimensions"


def test_outputs_are_in_the_metrics_of_vllm(repository, serve):
    language_models.write(repository, "chat", HERMES)
    server = serve(*FLAGS)

    def value(name, **more):
        labels = {"model_name": "chat", "engine": "openai", **more}
        return Scrape(server).value(f"vllm:{name}", **labels)

    with OpenAI(base_url=f"http://{server.url}/v1", api_key="none", max_retries=0) as client:
        ask(client, "count 3")
        list(ask(client, "count 5", stream=True, max_tokens=4))
        ticks = ask(client, "endless", stream=True)
        next(iter(ticks))
        assert (value("num_requests_running"), value("num_requests_waiting")) == (1, 0)
        ticks.close()
    assert eventually(lambda: value("num_requests_running") == 0)
    assert value("prompt_tokens_total") >= 8
    assert value("generation_tokens_total") >= 7
    assert [value("request_success_total", finished_reason=reason) for reason in ("stop", "length")] == [1, 1]
    assert [value(f"{name}_count") for name in ("time_to_first_token_seconds", "time_per_output_token_seconds")] == [1, 1]
    assert value("e2e_request_latency_seconds_count") == 2


def number(client, question):
    """How many endless requests the model has started or seen cancelled."""
    return int(ask(client, question).choices[0].message.content)


@pytest.mark.parametrize("stream", [False, True])
def test_client_that_leaves_cancels_its_requests(server, client, stream):
    """TRI-1664 of the reference: requests of clients that had left went on."""
    before = number(client, "cancelled?")
    connection = HTTPConnection(server.url)
    body = {"model": "chat", "stream": stream, "n": 2, "messages": [{"role": "user", "content": "endless"}]}
    connection.request("POST", "/v1/chat/completions", json.dumps(body))
    assert eventually(lambda: number(client, "started?") == before + 2)
    if stream:
        assert b"tick" in connection.getresponse().read(4096)
    connection.close()
    assert eventually(lambda: number(client, "cancelled?") == before + 2)


@pytest.mark.parametrize("stream", [False, True])
def test_generated_tokens_are_limited_by_principal(tmp_path, repository, serve, stream):
    language_models.write(repository, "chat", f"{HERMES} {THINKING}")
    grants = {name: [(["infer", "read"], ["*"], "tokens-per-minute = 20")] for name in ("a", "b")}
    policy = Policy(tmp_path / "access", grants | {"root": [(["read"], ["*"])]})
    server = serve(*FLAGS, policy.option)
    url = f"http://{server.url}/v1"

    def count(client):
        message = {"role": "user", "content": "count 11"}
        answer = client.chat.completions.create(model="chat", messages=[message], max_tokens=100, stream=stream)
        return sum(1 for _ in answer) if stream else answer

    with OpenAI(base_url=url, api_key=policy.keys["a"], max_retries=0) as client:
        assert count(client) and count(client)
        # Tokens are counted when a request ends, which may be just after its answer.
        with pytest.raises(openai.RateLimitError) as refused:
            for _ in range(3):
                count(client)
        assert "20 generated tokens a minute is used up" in str(refused.value)
        assert 0 < int(refused.value.response.headers["retry-after"]) < 60
    with OpenAI(base_url=url, api_key=policy.keys["b"], max_retries=0) as client:
        assert count(client)

    def generated():
        connection = HTTPConnection("127.0.0.1", server.metrics_port, timeout=30)
        connection.request("GET", "/metrics", headers=bearer(policy.keys["root"]))
        return 'nereid_principal_generated_tokens_total{principal="b"} 11\n' in connection.getresponse().read().decode()

    assert eventually(generated)


def test_two_hundred_streams_at_once_are_complete_and_not_mixed(server):
    async def one(client, number):
        stream = await client.chat.completions.create(
            model="chat", messages=[{"role": "user", "content": f"say {number} " + "x" * 60}], stream=True, max_tokens=100
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def all_of_them():
        async with AsyncOpenAI(base_url=f"http://{server.url}/v1", api_key="none", max_retries=0) as client:
            return await asyncio.gather(*(one(client, number) for number in range(200)))

    assert asyncio.run(all_of_them()) == [f"{number} " + "x" * 60 for number in range(200)]


def test_interface_can_be_closed(tmp_path_factory):
    repository = tmp_path_factory.mktemp("closed")
    with nereid_server.running(repository, "--openai=false") as server:
        connection = HTTPConnection(server.url)
        connection.request("GET", "/v1/models")
        assert connection.getresponse().status == 404


def test_interface_can_have_a_port_of_its_own_with_the_same_rights(tmp_path, repository, serve):
    language_models.write(repository, "chat", HERMES)
    language_models.write(repository, "other")
    policy = Policy(tmp_path / "access", {"a": [(["infer", "read"], ["chat"])]})
    server = serve(*FLAGS, "--openai-port=0", "--openai-address=127.0.0.1", policy.option)
    own = f"127.0.0.1:{server.wait_for_log(OWN_PORT).group(1)}"

    def status(address, method, path):
        connection = HTTPConnection(address, timeout=30)
        connection.request(method, path, headers=bearer(policy.keys["a"]))
        return connection.getresponse().status

    paths = [("GET", "/v1/models"), ("POST", "/tokenize"), ("GET", "/v2/health/ready"), ("GET", "/v2/models/chat"), ("GET", "/")]
    assert [status(own, *path) for path in paths] == [200, 400, 404, 404, 404]
    assert [status(server.url, *path) for path in paths] == [404, 404, 200, 200, 404]
    with OpenAI(base_url=f"http://{own}/v1", api_key=policy.keys["a"], max_retries=0) as client:
        assert ask(client, "count 2").choices[0].message.content == "1 2 "
        with pytest.raises(openai.PermissionDeniedError):
            client.completions.create(model="other", prompt="a")
    with OpenAI(base_url=f"http://{own}/v1", api_key="wrong", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError):
            ask(client, "count 2")


def test_stored_response_is_found_at_every_port(repository, serve):
    language_models.write(repository, "chat", HERMES)
    server = serve(*FLAGS, "--console-port=0", "--console-address=127.0.0.1")
    other = server.wait_for_log(r'Started Console at [^\s"]+:(\d+)').group(1)
    addresses = [server.url, f"127.0.0.1:{other}"]
    clients = [OpenAI(base_url=f"http://{address}/v1", api_key="none", max_retries=0) for address in addresses]
    for one, another in [clients, clients[::-1]]:
        first = one.responses.create(model="chat", input="count 2", max_output_tokens=10)
        assert another.responses.retrieve(first.id) == first
        second = another.responses.create(model="chat", previous_response_id=first.id, input="count 1", max_output_tokens=10)
        assert (second.previous_response_id, second.output_text) == (first.id, "1 ")
        one.responses.delete(second.id)
        with pytest.raises(openai.NotFoundError):
            another.responses.retrieve(second.id)


def test_own_port_is_served_without_http_and_is_nobody_elses(repository):
    language_models.write(repository, "chat")
    server = nereid_server.Server(repository, *FLAGS, "--allow-http=false", "--openai-port=0", "--openai-address=127.0.0.1")
    try:
        port = server.wait_for_log(OWN_PORT).group(1)
        with OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0) as client:
            server.wait_for_log(r"^\| chat +\| 1 +\| READY")
            assert ask(client, "count 2").choices[0].message.content == "1 2 "
        assert "Started HTTPService" not in server.log
        server.stop()
    finally:
        server.kill()
    for flag, reason in [
        (f"--openai-port={port}", "--http-port and --openai-port are the same"),
        ("--openai-address=127.0.0.1", "--openai-address needs --openai-port"),
    ]:
        refused = nereid_server.refused_start(repository, flag, port=port)
        assert refused.exit_code != 0 and reason in refused.log

"""Triton's own vLLM backend (github.com/triton-inference-server/vllm_backend) behind OpenAI's interface, over a stand-in for the package `vllm`.

Its sources are cloned once for each environment of the tests, or read from the checkout that `NEREID_VLLM_BACKEND` names.
"""

import base64
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import openai
import PIL
import pytest
from openai import OpenAI
from PIL import Image

import nereid_server
import python_backend
import scrapes
import vllm_package
from http_requests import request
from once import once
from waiting import eventually

ADDRESS = "https://github.com/triton-inference-server/vllm_backend"
REVISION = "8de0c148bda1da25de1e05ffaaf67116dacc7264"


def checkout():
    """The folder with the backend's sources."""
    given = os.environ.get("NEREID_VLLM_BACKEND")
    if given:
        return Path(given)
    home = Path(sys.prefix) / "vllm-backend"
    folder = home / REVISION

    def fetch():
        subprocess.run(["git", "clone", "--quiet", ADDRESS, folder], check=True, stdin=subprocess.DEVNULL)
        subprocess.run(["git", "-C", folder, "checkout", "--quiet", REVISION], check=True)

    once(home, fetch, mark=f"ready-{REVISION}")
    return folder


@pytest.fixture(scope="module", params=["builtin", "library"])
def server(tmp_path_factory, request):
    """A server with the backend, in the server's own Python backend and in NVIDIA's."""
    python_backend.prepare()
    folder = tmp_path_factory.mktemp("vllm")
    backends = folder / "backends"
    backends.mkdir()
    (backends / "python").symlink_to(python_backend.BACKENDS / "python")
    shutil.copytree(checkout() / "src", backends / "vllm")
    # Beside the backend's file, because models' interpreters ignore PYTHONPATH.
    vllm_package.write(backends / "vllm")
    for name in ("PIL", "pillow.libs"):
        shutil.copytree(Path(PIL.__file__).parents[1] / name, backends / "vllm" / name)
    weights = folder / "weights"
    weights.mkdir()
    (weights / "chat_template.jinja").write_text(
        "{% for message in messages %}{% if message.content is string %}{{ message.content }} {% else %}"
        "{% for part in message.content %}{% if part.type == 'image' %}<image>{% else %}{{ part.text }} {% endif %}{% endfor %}"
        "{% endif %}{% endfor %}"
    )
    model = folder / "models/opt"
    (model / "1").mkdir(parents=True)
    engine = {"model": str(weights), "gpu_memory_utilization": 0.5, "enable_lora": "true"}
    (model / "1/model.json").write_text(json.dumps(engine))
    (model / "1/multi_lora.json").write_text(json.dumps({"alpaca": "/weights/alpaca"}))
    parameters = "".join(
        f'parameters {{ key: "{name}" value {{ string_value: "true" }} }}\n'
        for name in ("REPORT_CUSTOM_METRICS", "ENABLE_VLLM_HEALTH_CHECK")
    )
    (model / "config.pbtxt").write_text(f'backend: "vllm"\ninstance_group [ {{ count: 1 kind: KIND_MODEL }} ]\n{parameters}')
    flags = [f"--backend-directory={backends}", f"--backend-config=python,engine={request.param}"]
    flags += [f"--backend-config=python,python={sys.executable}"] if request.param == "builtin" else []
    environment = python_backend.environment()
    with nereid_server.running(folder / "models", *flags, env=environment) as server:
        yield server


@pytest.fixture
def client(server):
    """OpenAI's client, without attempts after the first."""
    with OpenAI(base_url=f"http://{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def ask(client, text, **how):
    return client.chat.completions.create(model=how.pop("model", "opt"), messages=[{"role": "user", "content": text}], **how)


@pytest.mark.parametrize(("limit", "text", "reason"), [(10, "three two one", "stop"), (2, "three two", "length")])
def test_chat_is_answered_whole_and_streamed(client, limit, text, reason):
    answer = ask(client, "one two three", max_tokens=limit, temperature=0, seed=7, stop=["x"])
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == (text, reason)
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, len(text.split()))
    how = {"max_tokens": limit, "stream": True, "stream_options": {"include_usage": True}}
    chunks = list(ask(client, "one two three", **how))
    pieces = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]
    assert ("".join(pieces), len(pieces)) == (text, len(text.split()))
    assert chunks[-2].choices[0].finish_reason == reason
    assert chunks[-1].usage.completion_tokens == len(text.split())


def test_probabilities_are_reported(client):
    answer = ask(client, "one two", max_tokens=5, logprobs=True, top_logprobs=1)
    tokens = answer.choices[0].logprobs.content
    assert [(token.token, token.logprob) for token in tokens] == [("two", -0.5), ("one", -0.5)]


@pytest.mark.parametrize("how", ["response_format", "extra_body"])
def test_schema_reaches_the_engine(client, how):
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"const": 7}}}
    own = {"structured_outputs": {"json": {"const": 7}}}
    answer = ask(client, "x", **{how: form if how == "response_format" else own})
    assert answer.choices[0].message.content == "7"


def test_forced_tool_is_called(client):
    tool = {"type": "function", "function": {"name": "f", "parameters": {"const": 5}}}
    answer = ask(client, "x", tools=[tool], tool_choice={"type": "function", "function": {"name": "f"}})
    (call,) = answer.choices[0].message.tool_calls
    assert (call.function.name, call.function.arguments) == ("f", "5")


def test_images_reach_the_engine(client):
    picture = io.BytesIO()
    Image.new("RGB", (3, 2)).save(picture, "PNG")
    address = "data:image/png;base64," + base64.b64encode(picture.getvalue()).decode()
    content = [{"type": "text", "text": "What?"}, {"type": "image_url", "image_url": {"url": address}}]
    answer = client.chat.completions.create(model="opt", messages=[{"role": "user", "content": content}], max_tokens=5)
    assert answer.choices[0].message.content == "(3, 2)"


def test_adapters_are_requested_by_name(client):
    # The backend names adapters by their numbers.
    assert ask(client, "x", model="opt:alpaca").choices[0].message.content == "1 /weights/alpaca"
    with pytest.raises(openai.APIStatusError, match="LoRA unknown is not supported"):
        ask(client, "x", model="opt:unknown")


def test_texts_are_embedded(client):
    answer = client.embeddings.create(model="opt", input=["a b", "c"], encoding_format="float")
    assert [item.embedding for item in answer.data] == [[2.0] * 4, [1.0] * 4]
    answer = client.embeddings.create(model="opt", input=[5, 6, 7], dimensions=2)
    assert answer.data[0].embedding == [3.0, 3.0]


def test_client_that_leaves_aborts_the_request(client):
    before = int(ask(client, "aborted?").choices[0].message.content)
    with ask(client, "endless", stream=True) as stream:
        next(iter(stream))
    assert eventually(lambda: int(ask(client, "aborted?").choices[0].message.content) == before + 1)


def test_unknown_parameter_is_an_error_and_the_server_goes_on(client):
    with pytest.raises(openai.InternalServerError):
        ask(client, "x", extra_body={"warmth": 1})
    assert ask(client, "one").choices[0].message.content == "one"


def test_metrics_of_the_engine_are_reported(client, server):
    ask(client, "one two")
    metrics = scrapes.get(server).body.decode()
    assert 'vllm:generation_tokens_total{model="opt",version="1"}' in metrics
    assert 'vllm:time_to_first_token_seconds_bucket{model="opt",version="1",le="0.01"}' in metrics


def test_generate_answers_with_the_prompt_in_front_unless_it_is_excluded(server):
    for excluded, expected in [(True, "two one"), (False, "one twotwo one")]:
        body = {"text_input": "one two", "exclude_input_in_output": excluded, "sampling_parameters": json.dumps({"max_tokens": 9})}
        answer = request(server, "POST", "/v2/models/opt/generate", json.dumps(body))
        assert answer.json["text_output"] == expected, excluded

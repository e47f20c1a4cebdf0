"""The layout of Triton's vLLM backend behind OpenAI's interface: a backend in Python in the folder `vllm`, whose models are a `model.json`.

The backend here follows the contract of that one, over a stand-in for vLLM's engine in a package `vllm`: it completes configurations, runs
an event loop on a thread of its own, and answers decoupled requests with pieces of text.
"""

import json
import sys

import openai
import pytest
from openai import OpenAI

import nereid_server
import python_backend

# An engine whose model writes the prompt's words backwards.
ENGINE = """
import asyncio
from dataclasses import dataclass, field


@dataclass
class SamplingParams:
    max_tokens: int = 16
    temperature: float = 1.0
    seed: int | None = None
    stop: list = field(default_factory=list)
    structured_outputs: dict | None = None


@dataclass
class Completion:
    text: str
    token_ids: list
    finish_reason: str | None = None


@dataclass
class RequestOutput:
    prompt_token_ids: list
    outputs: list


class AsyncEngine:
    def __init__(self, model, **options):
        self.model = model

    async def generate(self, prompt, sampling, request_id):
        words = prompt.split()[::-1] if sampling.structured_outputs is None else [str(sampling.structured_outputs["json"]["const"])]
        text, count = "", min(len(words), sampling.max_tokens)
        for number, word in enumerate(words[:count], 1):
            await asyncio.sleep(0.001)
            text += f" {word}" if text else word
            reason = None if number < count else "stop" if count == len(words) else "length"
            yield RequestOutput(list(range(len(words))), [Completion(text, list(range(number)), reason)])
"""

BACKEND = """
import asyncio
import json
import os
import threading

import numpy
import triton_python_backend_utils as pb_utils
import vllm


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        for name, kind, optional in [
            ("text_input", "TYPE_STRING", False),
            ("stream", "TYPE_BOOL", True),
            ("sampling_parameters", "TYPE_STRING", True),
            ("exclude_input_in_output", "TYPE_BOOL", True),
            ("return_finish_reason", "TYPE_BOOL", True),
            ("return_num_input_tokens", "TYPE_BOOL", True),
            ("return_num_output_tokens", "TYPE_BOOL", True),
        ]:
            config.add_input({"name": name, "data_type": kind, "dims": [1], "optional": optional})
        for name, kind in [
            ("text_output", "TYPE_STRING"),
            ("finish_reason", "TYPE_STRING"),
            ("num_input_tokens", "TYPE_UINT32"),
            ("num_output_tokens", "TYPE_UINT32"),
        ]:
            config.add_output({"name": name, "data_type": kind, "dims": [-1]})
        config.set_model_transaction_policy({"decoupled": True})
        config.set_max_batch_size(0)
        return config

    def initialize(self, args):
        folder = os.path.join(args["model_repository"], args["model_version"])
        with open(os.path.join(folder, "model.json")) as file:
            self.engine = vllm.AsyncEngine(**json.load(file))
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()

    def execute(self, requests):
        for request in requests:
            asyncio.run_coroutine_threadsafe(self.answer(request), self.loop)
        return None

    async def answer(self, request):
        sender = request.get_response_sender()
        try:
            await self.generate(request, sender)
        except Exception as error:
            sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error))))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    async def generate(self, request, sender):
        def given(name, default):
            tensor = pb_utils.get_input_tensor_by_name(request, name)
            return default if tensor is None else tensor.as_numpy()[0]

        sampling = json.loads(given("sampling_parameters", b"{}"))
        if "structured_outputs" in sampling:
            # A text of JSON, as for Triton's backend.
            sampling["structured_outputs"] = json.loads(sampling["structured_outputs"])
        sampling = vllm.SamplingParams(**sampling)
        stream, sent, tokens = bool(given("stream", False)), 0, 0
        async for output in self.engine.generate(given("text_input", b"").decode(), sampling, request.request_id()):
            (completion,) = output.outputs
            if stream or completion.finish_reason is not None:
                text = completion.text[sent:].encode()
                values = {
                    "text_output": numpy.array([text], dtype=numpy.object_),
                    "finish_reason": numpy.array([str(completion.finish_reason).encode()], dtype=numpy.object_),
                    "num_input_tokens": numpy.array([len(output.prompt_token_ids)], dtype=numpy.uint32),
                    "num_output_tokens": numpy.array([len(completion.token_ids) - tokens], dtype=numpy.uint32),
                }
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor(name, value) for name, value in values.items()]))
                sent, tokens = len(completion.text), len(completion.token_ids)

    def finalize(self):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
"""


@pytest.fixture(scope="module", params=["builtin", "library"])
def server(tmp_path_factory, request):
    """A server with the backend, in the server's own Python backend and in NVIDIA's."""
    python_backend.prepare()
    folder = tmp_path_factory.mktemp("vllm")
    backends = folder / "backends"
    (backends / "vllm").mkdir(parents=True)
    (backends / "python").symlink_to(python_backend.BACKENDS / "python")
    (backends / "vllm/model.py").write_text(BACKEND)
    # Beside the backend's file, because models' interpreters ignore PYTHONPATH.
    (backends / "vllm/vllm").mkdir()
    (backends / "vllm/vllm/__init__.py").write_text(ENGINE)
    # A model as the Hub has it, with its chat template.
    weights = folder / "weights"
    weights.mkdir()
    (weights / "chat_template.jinja").write_text("{% for message in messages %}{{ message.content }} {% endfor %}")
    model = folder / "models/opt"
    (model / "1").mkdir(parents=True)
    (model / "1/model.json").write_text(json.dumps({"model": str(weights), "gpu_memory_utilization": 0.5}))
    (model / "config.pbtxt").write_text('backend: "vllm"\ninstance_group [ { count: 1 kind: KIND_MODEL } ]')
    flags = [f"--backend-directory={backends}", f"--backend-config=python,engine={request.param}"]
    flags += [f"--backend-config=python,python={sys.executable}"] if request.param == "builtin" else []
    with nereid_server.running(folder / "models", *flags, env=python_backend.environment()) as server:
        yield server


@pytest.fixture
def client(server):
    """OpenAI's client, without attempts after the first."""
    with OpenAI(base_url=f"http://{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.mark.parametrize(("limit", "text", "reason"), [(10, "three two one", "stop"), (2, "three two", "length")])
def test_chat_is_answered_whole_and_streamed(client, limit, text, reason):
    how = {"model": "opt", "messages": [{"role": "user", "content": "one two three"}], "max_tokens": limit, "temperature": 0}
    answer = client.chat.completions.create(**how)
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == (text, reason)
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, len(text.split()))
    chunks = list(client.chat.completions.create(**how, stream=True))
    pieces = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]
    assert ("".join(pieces), len(pieces)) == (text, len(text.split()))
    assert chunks[-1].choices[0].finish_reason == reason


def test_schema_reaches_the_engine(client):
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"const": 7}}}
    answer = client.chat.completions.create(model="opt", messages=[{"role": "user", "content": "x"}], response_format=form)
    assert answer.choices[0].message.content == "7"


def test_error_of_the_engine_is_the_answer(client):
    with pytest.raises(openai.InternalServerError, match="unexpected keyword argument 'warmth'"):
        client.chat.completions.create(model="opt", messages=[{"role": "user", "content": "x"}], extra_body={"warmth": 1})

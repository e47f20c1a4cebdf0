"""Who shares cached prefixes of a language model: requests of one principal, over every protocol, unless the model shares them."""

import json
import random
import sys

import numpy as np
import pytest
import tritonclient.grpc

import gguf_models
import llamacpp_package
import model_files
from access_policies import Policy, bearer
from http_requests import request

PROMPT = "the fox jumps over the hounds of london"
# A token for each letter and space; one begins each text, and one is a space before it.
TOKENS = len(PROMPT) + 2
CALLER = '''
import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Has the model of the same text count cached tokens, as a request of its own client or of nobody."""

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        given = {name: pb_utils.get_input_tensor_by_name(request, name) for name in ("text_input", "is_traced")}
        wanted = pb_utils.Tensor("return_num_cached_tokens", numpy.array([True]))
        sampling = pb_utils.Tensor("sampling_parameters", numpy.array([b'{"max_tokens": 1}'], dtype=numpy.object_))
        how = {"trace": request.trace()} if given["is_traced"].as_numpy()[0] else {}
        inner = pb_utils.InferenceRequest(
            model_name="own", inputs=[given["text_input"], wanted, sampling], requested_output_names=["num_cached_tokens"], **how
        )
        found = [response for response in inner.exec(decoupled=True) if response.output_tensors()]
        count = pb_utils.get_output_tensor_by_name(found[-1], "num_cached_tokens").as_numpy()
        return pb_utils.InferenceResponse([pb_utils.Tensor("num_cached_tokens", count)])
'''
CALLER_CONFIG = """
backend: "python"
input [
  { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "is_traced" data_type: TYPE_BOOL dims: [ 1 ] }
]
output [ { name: "num_cached_tokens" data_type: TYPE_UINT32 dims: [ 1 ] } ]
instance_group [{ kind: KIND_CPU }]
"""


def openai(server, headers, model, path="completions", **more):
    """The cached tokens of a request that gives its prompt as OpenAI's clients do."""
    text = {"messages": [{"role": "user", "content": PROMPT}]} if path == "chat/completions" else {"prompt": PROMPT}
    body = {"model": model, "max_tokens": 1, **text, **more}
    found = request(server, "POST", f"/v1/{path}", json.dumps(body), headers)
    assert found.status == 200, found.body
    usage = found.json["usage"]
    assert usage["prompt_tokens"] == TOKENS
    return usage["prompt_tokens_details"]["cached_tokens"]


def chat(server, headers, model):
    return openai(server, headers, model, "chat/completions")


def responses(server, headers, model):
    body = {"model": model, "max_output_tokens": 1, "input": PROMPT, "store": False}
    found = request(server, "POST", "/v1/responses", json.dumps(body), headers)
    return found.json["usage"]["input_tokens_details"]["cached_tokens"]


def streamed(server, headers, model):
    more = {"stream": True, "stream_options": {"include_usage": True}}
    body = {"model": model, "max_tokens": 2, "prompt": PROMPT, **more}
    found = request(server, "POST", "/v1/completions", json.dumps(body), headers)
    events = [line[6:] for line in found.body.decode().split("\n") if line.startswith("data: {")]
    return json.loads(events[-1])["usage"]["prompt_tokens_details"]["cached_tokens"]


def generate(server, headers, model):
    body = {"text_input": PROMPT, "max_tokens": 1, "return_num_cached_tokens": True}
    found = request(server, "POST", f"/v2/models/{model}/generate", json.dumps(body), headers)
    return found.json["num_cached_tokens"]


def grpc_stream(server, headers, model):
    tensors = {"text_input": ("BYTES", PROMPT.encode()), "return_num_cached_tokens": ("BOOL", True)}
    inputs = []
    for name, (datatype, value) in tensors.items():
        given = tritonclient.grpc.InferInput(name, [1], datatype)
        given.set_data_from_numpy(np.array([value], bool if datatype == "BOOL" else object))
        inputs.append(given)
    found = []
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        lower = {name.lower(): value for name, value in headers.items()}
        client.start_stream(lambda result, error: found.append((result, error)), headers=lower)
        client.async_stream_infer(model, inputs, parameters={"max_tokens": 1})
        client.stop_stream()
    ((result, error),) = found
    assert error is None
    return result.as_numpy("num_cached_tokens")[0]


PROTOCOLS = [openai, chat, responses, streamed, generate, grpc_stream]


@pytest.fixture
def site(tmp_path, repository, serve):
    """A server with a policy: a model whose prefixes are each principal's own, one that shares them, and one that calls the first."""
    gguf_models.write(repository, "own", gguf_models.parameters(max_sequences=8))
    gguf_models.write(repository, "shared", gguf_models.parameters(prefix_cache="shared"))
    model_files.write_model(repository, "caller", CALLER_CONFIG)
    (repository / "caller/1/model.py").write_text(CALLER)
    grants = {name: [(["infer", "read"], ["*"])] for name in ("a", "b")}
    policy = Policy(tmp_path / "access", grants, anonymous=[(["infer", "read"], ["*"])])
    server = serve(llamacpp_package.flag(), f"--backend-config=python,python={sys.executable}", policy.option)
    return server, [bearer(policy.keys["a"]), bearer(policy.keys["b"]), {}]


@pytest.mark.parametrize("first", PROTOCOLS)
def test_prefix_is_shared_within_a_principal_over_every_protocol(site, first):
    server, clients = site
    for client in clients:
        assert [first(server, client, "own") for _ in range(2)] == [0, TOKENS - 1]
    for protocol in PROTOCOLS:
        assert [protocol(server, client, "own") for client in clients] == [TOKENS - 1] * 3, protocol.__name__


def test_salt_divides_the_prefixes_of_a_principal(site):
    server, (one, other, _) = site
    for client, salt, cached in [
        (one, "x", 0),
        (one, "x", TOKENS - 1),
        (one, "y", 0),
        (one, None, 0),
        (other, "x", 0),
        (other, "x", TOKENS - 1),
        (one, "y", TOKENS - 1),
    ]:
        more = {} if salt is None else {"cache_salt": salt}
        assert openai(server, client, "own", **more) == cached, (client, salt)


def test_model_may_share_prefixes_of_all(site):
    server, clients = site
    assert openai(server, clients[0], "shared") == 0
    for protocol in PROTOCOLS:
        assert [protocol(server, client, "shared") for client in clients] == [TOKENS - 1] * 3, protocol.__name__
    assert openai(server, clients[0], "shared", cache_salt="x") == 0


def test_requests_of_models_are_those_of_the_client_that_they_name(site):
    server, (one, other, _) = site

    def called(client, is_traced):
        body = json.dumps({"text_input": PROMPT, "is_traced": is_traced})
        found = request(server, "POST", "/v2/models/caller/generate", body, client)
        assert found.status == 200, found.body
        return found.json["num_cached_tokens"]

    assert [called(one, True), openai(server, one, "own"), called(other, True)] == [0, TOKENS - 1, 0]
    assert [called(one, False), called(other, False), openai(server, other, "own")] == [0, TOKENS - 1, TOKENS - 1]


def test_without_a_policy_all_clients_are_one(repository, serve):
    gguf_models.write(repository, "own")
    server = serve(llamacpp_package.flag())
    assert [openai(server, {}, "own") for _ in range(2)] == [0, TOKENS - 1]


@pytest.mark.parametrize("sandbox", ["off", "on"])
def test_prefixes_that_left_the_cache_are_read_from_files(repository, serve, sandbox):
    """The cache has room for one of the prompts, and one model keeps what leaves it in files."""
    limits = {"max_sequences": 3, "context_length": 400, "cache_tokens": 400}
    gguf_models.write(repository, "plain", gguf_models.parameters(**limits))
    gguf_models.write(repository, "filed", gguf_models.parameters(**limits, prefix_cache_disk_bytes=50_000_000))
    server = serve(llamacpp_package.flag(), f"--backend-config=llamacpp,sandbox={sandbox}")
    chance = random.Random(5)
    prompts = ["".join(chance.choices("dehijklm", k=300)) for _ in range(4)]

    def ask(model, prompt):
        body = {
            "text_input": prompt,
            "exclude_input_in_output": True,
            "return_num_cached_tokens": True,
            "return_num_input_tokens": True,
        }
        body["sampling_parameters"] = json.dumps({"temperature": 0, "max_tokens": 24, "ignore_eos": True})
        found = request(server, "POST", f"/v2/models/{model}/generate", json.dumps(body))
        assert found.status == 200, found.body
        return found.json

    for prompt in prompts:
        ask("filed", prompt)
    # The last one is in the cache in any case, and then leaves it.
    for prompt in prompts[:-1] * 2:
        expected, found = ask("plain", prompt), ask("filed", prompt)
        # All prompts begin with the same two tokens.
        assert expected["num_cached_tokens"] < 10 and found["num_cached_tokens"] == found["num_input_tokens"] - 1
        assert found["text_output"] == expected["text_output"]
        # Another continuation of a part of it.
        expected, found = ask("plain", prompt[:250] + "xyz"), ask("filed", prompt[:250] + "xyz")
        assert found["num_cached_tokens"] > 240
        assert found["text_output"] == expected["text_output"]

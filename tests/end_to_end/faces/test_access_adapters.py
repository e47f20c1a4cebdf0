"""Rights on LoRA adapters: what a pattern of a model's name or of an adapter's permits, by every protocol."""

import json
import sys

import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

import language_models
import nereid_server
from access_policies import Policy, bearer, nereid
from http_requests import request

ADAPTERS = 'parameters { key: "lora_adapters" value { string_value: "legal,hr" } }'
NAMES = ["chat", "chat:legal", "chat:hr"]
# Which of these names a client may use whose role has these patterns. The first says also whether KServe's protocol is open to it.
PATTERNS: dict[tuple, list[bool]] = {
    ("chat",): [True, True, True],
    ("chat*",): [True, True, True],
    ("*",): [True, True, True],
    ("chat:legal",): [False, True, False],
    ("chat:*",): [False, True, True],
    ("*:hr",): [False, False, True],
    ("chat:hr", "chat:legal"): [False, True, True],
    ("chat:legal", "chat"): [True, True, True],
    ("chat:", "cha", "other:legal", "chat:legal:x"): [False, False, False],
}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A server with a model with two adapters, which answers with its sampling parameters, and the keys of clients by their patterns."""
    folder = tmp_path_factory.mktemp("adapters")
    language_models.write(folder / "models", "chat", ADAPTERS)
    grants: dict[str, list] = {f"c{number}": [(["infer", "read"], list(patterns))] for number, patterns in enumerate(PATTERNS)}
    grants["limited"] = [(["infer"], ["chat:legal"], "requests-per-second = 1")]
    policy = Policy(folder / "access", grants)
    keys = {patterns: policy.keys[f"c{number}"] for number, patterns in enumerate(PATTERNS)}
    flags = [f"--backend-config=python,python={sys.executable}", "--openai-default-max-tokens=1000", policy.option]
    with nereid_server.running(folder / "models", *flags) as server:
        yield server, keys | {"limited": policy.keys["limited"], "file": policy.file}


def post(server, key, path, body):
    return request(server, "POST", path, json.dumps(body), headers=bearer(key))


def chat(server, key, model, **fields):
    """The answer to a request for the sampling parameters."""
    return post(
        server, key, "/v1/chat/completions", {"model": model, "messages": [{"role": "user", "content": "parameters"}], **fields}
    )


def adapter_of(answer):
    """The adapter in the sampling parameters that the model has seen."""
    return json.loads(answer.json["choices"][0]["message"]["content"]).get("lora_name")


@pytest.mark.parametrize(("patterns", "allowed"), PATTERNS.items(), ids=map(", ".join, PATTERNS))
def test_patterns_are_rights_on_models_and_adapters(site, patterns, allowed):
    server, keys = site
    key = keys[patterns]
    for name, is_allowed in zip(NAMES, allowed, strict=True):
        answer = chat(server, key, name)
        assert answer.status == (200 if is_allowed else 403), (name, answer.body)
        if is_allowed:
            assert adapter_of(answer) == name.removeprefix("chat").removeprefix(":") or adapter_of(answer) is None
        for path, field in [("completions", "prompt"), ("responses", "input")]:
            body = {"model": name, field: "parameters"}
            assert post(server, key, f"/v1/{path}", body).status == (200 if is_allowed else 403), (path, name)
        described = request(server, "GET", f"/v1/models/{name}", headers=bearer(key))
        assert described.status == (200 if is_allowed else 403), name
        escaped = request(server, "GET", f"/v1/models/{name.replace(':', '%3A')}", headers=bearer(key))
        assert escaped.status == described.status
    listed = [model["id"] for model in request(server, "GET", "/v1/models", headers=bearer(key)).json["data"]]
    assert sorted(listed) == sorted(name for name, is_allowed in zip(NAMES, allowed, strict=True) if is_allowed)


@pytest.mark.parametrize(("patterns", "allowed"), PATTERNS.items(), ids=map(", ".join, PATTERNS))
def test_other_protocols_are_no_way_around(site, patterns, allowed):
    server, keys = site
    key = keys[patterns]
    sampling = json.dumps({"max_tokens": 100, "lora_name": "hr"})
    body = {"text_input": "parameters", "stream": False, "sampling_parameters": sampling}
    tensors = [
        {"name": name, "shape": [1], "datatype": "BYTES", "data": [body[name]]} for name in ("text_input", "sampling_parameters")
    ]
    for path, sent in [("generate", body), ("generate_stream", body), ("infer", {"inputs": tensors})]:
        status = post(server, key, f"/v2/models/chat/{path}", sent).status
        # Requests to decoupled models are for streams.
        assert (status == 403) == (not allowed[0]), (path, status)
        # No model has this name.
        full = post(server, key, f"/v2/models/chat:hr/{path}", sent).status
        assert full in (403, 404)
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        text, parameters = (tritonclient.grpc.InferInput(name, [1], "BYTES") for name in ("text_input", "sampling_parameters"))
        text.set_data_from_numpy(np.array([b"parameters"], dtype=object))
        parameters.set_data_from_numpy(np.array([sampling.encode()], dtype=object))
        with pytest.raises(InferenceServerException) as error:
            client.infer("chat", [text, parameters], headers={"authorization": f"Bearer {key}"})
        # Requests to decoupled models are for streams here, too.
        assert ("the right 'infer'" in str(error.value.message())) == (not allowed[0]), error.value.message()


def test_body_cannot_name_another_adapter(site):
    server, keys = site
    for patterns in [("chat:legal",), ("chat",)]:
        answer = chat(server, keys[patterns], "chat:legal", lora_name="hr")
        assert answer.status == 400
        assert answer.json["error"]["message"] == "'lora_name' is not supported together with an adapter in 'model'"
    # A right on the model covers its adapters, however they are named.
    assert adapter_of(chat(server, keys[("chat",)], "chat", lora_name="hr")) == "hr"


def test_unknown_adapters_are_unknown_only_to_clients_that_may_use_them(site):
    server, keys = site
    for patterns, name, status in [
        (("chat",), "chat:none", 404),
        (("chat:*",), "chat:none", 404),
        (("chat:legal",), "chat:none", 403),
        (("*:hr",), "none:hr", 404),
        (("chat:legal",), "none:legal", 403),
    ]:
        assert chat(server, keys[patterns], name).status == status, (patterns, name)
        assert request(server, "GET", f"/v1/models/{name}", headers=bearer(keys[patterns])).status == status, (patterns, name)


def test_stored_answers_of_an_adapter_can_be_continued_and_read_by_its_client(site):
    server, keys = site
    key = keys[("chat:legal",)]
    first = post(server, key, "/v1/responses", {"model": "chat:legal", "input": "say a"}).json
    found = request(server, "GET", f"/v1/responses/{first['id']}", headers=bearer(key))
    assert (found.status, found.json["id"]) == (200, first["id"])
    again = {"model": "chat:legal", "input": "say b", "previous_response_id": first["id"]}
    assert post(server, key, "/v1/responses", again).status == 200
    assert post(server, key, "/v1/responses", again | {"model": "chat"}).status == 403


def test_limits_of_a_role_on_an_adapter_apply(site):
    server, keys = site
    statuses = [chat(server, keys["limited"], "chat:legal").status for _ in range(30)]
    assert statuses[0] == 200 and 429 in statuses


def test_policy_explains_that_a_right_on_the_model_covers_an_adapter(site):
    _, keys = site
    explained = nereid("access", "check", keys["file"], "c0", "chat:legal")
    assert "If this is the adapter 'legal' of model 'chat', 'infer' and 'read' on 'chat' cover it, too." in explained
    assert "adapter" not in nereid("access", "check", keys["file"], "c0", "chat")

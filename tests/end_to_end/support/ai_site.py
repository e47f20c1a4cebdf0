"""Servers for the clients of OpenAI's interface: a model that does what its prompt says, a real one, and models of embeddings."""

import json
import sys
from dataclasses import dataclass

import pytest

import gguf_models
import language_models
import llamacpp_package
import nereid_server
from access_policies import Policy
from http_requests import request
from waiting import eventually

HERMES = 'parameters { key: "tool_call_parser" value { string_value: "hermes" } }'
FLAGS = [f"--backend-config=python,python={sys.executable}", "--openai-default-max-tokens=1000"]


@dataclass(frozen=True)
class Site:
    """A server with the models `chat`, `small`, `vectors` and `embedder`, and one that admits a request a second to its model `chat`."""

    server: nereid_server.Server
    limited: nereid_server.Server
    # A key for both.
    key: str

    @property
    def url(self):
        return f"http://{self.server.url}/v1"

    @property
    def limited_url(self):
        return f"http://{self.limited.url}/v1"

    def number(self, question):
        """How many endless requests the model `chat` has started or seen cancelled."""
        body = {"model": "chat", "messages": [{"role": "user", "content": question}]}
        answer = request(self.server, "POST", "/v1/chat/completions", json.dumps(body))
        return int(answer.json["choices"][0]["message"]["content"])

    def sees_cancelled(self, leave):
        """Whether `leave`, which begins an endless answer and leaves, cancels it."""
        before = self.number("cancelled?")
        leave()
        return eventually(lambda: self.number("cancelled?") == before + 1)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clients")
    for repository in ("models", "limited"):
        language_models.write(folder / repository, "chat", HERMES)
    language_models.write_embedding(folder / "models", "vectors")
    gguf_models.write(folder / "models", "embedder", contents=gguf_models.gguf(pooling=gguf_models.MEAN))
    (folder / "models/small/1").mkdir(parents=True)
    (folder / "models/small/1/model.gguf").symlink_to(llamacpp_package.model())
    policy = Policy(folder / "access", {"client": [(["infer", "read"], ["*"], "requests-per-second = 1")]})
    with (
        nereid_server.running(folder / "models", *FLAGS, llamacpp_package.flag()) as server,
        nereid_server.running(folder / "limited", *FLAGS, policy.option) as limited,
    ):
        yield Site(server, limited, policy.keys["client"])

"""What the tests of repositories in clouds share: a store with a bucket, servers that reach it, and what they are asked."""

import os
import time
from contextlib import contextmanager

from clouds import put_tree
from http_requests import infer, request, tensor
from nereid_server import Server

EXPLICIT = "--model-control-mode=explicit"
POLL = ("--model-control-mode=poll", "--repository-poll-secs=1")
LIMIT_S = 30


def environment(**more):
    """That of the tests, without what the machine knows of clouds."""
    names = ("AWS_", "AZURE_", "GOOGLE_", "TRITON_", "CLOUD", "STORAGE_EMULATOR", "IDENTITY_", "HF_", "GCE_", "DOCKER_")
    proxies = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE")
    variables = os.environ.items()
    own = {name: value for name, value in variables if not name.startswith(names) and name.upper() not in proxies}
    return {**own, "HOME": "/nonexistent", "AWS_EC2_METADATA_DISABLED": "true", **more}


class Cloud:
    """An object store with a bucket `models`, and how servers reach it."""

    def __init__(self, store):
        self.store = store
        store.bucket("models")

    def put(self, prefix, folder):
        put_tree(self.store, "models", prefix, folder)

    def url(self, path, through=None):
        return self.store.url(f"models/{path}", through)

    def environment(self, through=None, **more):
        """That of a server that reaches the store, through a proxy if there is one."""
        return environment(**{**self.store.variables(through), **more})


def answers(server, model):
    """Whether a model returns what it gets."""
    inputs = [tensor("INPUT0", "INT32", [2], [1, 2])]
    answer = infer(server, model, {"inputs": inputs})
    return answer.status == 200 and answer.json["outputs"][0]["data"] == [1, 2]


def versions(server, model):
    return request(server, "GET", f"/v2/models/{model}").json["versions"]


def load(server, model):
    return request(server, "POST", f"/v2/repository/models/{model}/load")


def until(condition):
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@contextmanager
def refused(repository, *flags, env):
    """A server that gives up by itself."""
    server = Server(repository, *flags, env=env)
    try:
        assert server.wait_for_exit() != 0
        server.assert_no_panic()
        yield server
    finally:
        server.kill()

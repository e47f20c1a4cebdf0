"""What the tests of repositories in clouds share: a store with a bucket, servers that reach it, and what they are asked."""

import os
import time
from contextlib import contextmanager

from certificates import Authority
from cloud_servers import Proxy, azure, google, put_tree, s3
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
    """An object store with a bucket `models`, and how servers reach it: over TLS, if an authority has signed its certificate."""

    def __init__(self, store, authority=None):
        self.store = store
        self.authority = authority
        store.bucket("models")

    @property
    def kind(self):
        return type(self.store).__name__

    def proxy(self):
        """A proxy in front of the store. Both speak TLS, or neither does."""
        identity = self.authority and self.authority.sign("proxy")
        return Proxy(self.store.address, identity, store_has_tls=bool(identity))

    def put(self, prefix, folder):
        put_tree(self.store, "models", prefix, folder)

    def url(self, path, through=None):
        return self.store.url(f"models/{path}", through)

    def environment(self, through=None, **more):
        """That of a server that reaches the store, through a proxy if there is one."""
        return environment(**{**self.store.variables(through), **self.trusts, **more})

    @property
    def trusts(self):
        """The variable that makes servers trust the store's certificate."""
        return {"SSL_CERT_FILE": str(self.authority.certificate)} if self.authority else {}


CLOUDS = {"s3": s3, "gs": google, "as": azure}
# Of each kind, one that speaks TLS and one that does not.
CLOUDS_AND_TLS = [(kind, tls) for kind in CLOUDS for tls in (False, True)]


@contextmanager
def cloud_of(kind, folder=None):
    """A cloud of this kind; with a folder for certificates, over TLS."""
    authority = folder and Authority(folder, "storage")
    with CLOUDS[kind](authority and authority.sign("store")) as store:
        yield Cloud(store, authority)


def name_of(param):
    """The name of a kind of `CLOUDS_AND_TLS` in the names of tests."""
    kind, tls = param
    return f"{kind}-{'tls' if tls else 'plain'}"


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

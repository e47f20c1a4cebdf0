"""Models from Hugging Face's hub, from registries and from the web over TLS, with an authority of one's own."""

from contextlib import contextmanager

import pytest

from certificates import Authority
from cloud_repositories import answers, environment, refused
from cloud_servers import ForwardProxy, Proxy
from hubs import TITLE, Delivery, HuggingFace, Registry, Web, archive
from model_files import write_identity
from nereid_server import running


@pytest.fixture
def model(tmp_path):
    write_identity(tmp_path / "models", "a", ["INT32"])
    (tmp_path / "models" / "a" / "1" / "weights").write_bytes(b"weights" * 1000)
    return tmp_path / "models" / "a"


@contextmanager
def hub(model, authority):
    with Delivery().running() as delivery, HuggingFace(delivery).running() as hub:
        hub.put("owner/a", model)
        hub.private.add("owner/a")
        with Proxy(hub.address, authority.sign("hub")) as proxy:
            yield "hf://owner/a", {"HF_ENDPOINT": proxy.origin, "HF_TOKEN": hub.token}, proxy


@contextmanager
def web(model, authority):
    with Web().running() as web, Proxy(web.address, authority.sign("web")) as proxy:
        web.put("a.tar.gz", archive("tar.gz", model))
        yield f"{proxy.origin}/a.tar.gz", {}, proxy


@contextmanager
def registry(model, authority):
    """Registries on this machine are spoken to without TLS: this one has another name, which a proxy knows."""
    with Delivery().running() as delivery, Registry(delivery, False).running() as registry:
        files = [path for path in model.rglob("*") if path.is_file()]
        layers = [(path.read_bytes(), "text/plain", {TITLE: path.relative_to(model).as_posix()}) for path in files]
        registry.put("team/a", "v1", layers)
        with (
            Proxy(registry.address, authority.sign("registry", "registry.example")) as proxy,
            ForwardProxy(proxy.address) as forward,
        ):
            yield "oci://registry.example/team/a:v1", {"HTTPS_PROXY": forward.url}, proxy


@pytest.mark.parametrize("source", [hub, web, registry])
def test_models_come_over_tls_from_those_who_are_trusted(source, model, tmp_path):
    authority = Authority(tmp_path, "hubs")
    with source(model, authority) as (address, variables, proxy):
        with running(address, env=environment(**variables, SSL_CERT_FILE=str(authority.certificate))) as server:
            assert answers(server, "a")
            assert HuggingFace.token not in server.log
        before = len(proxy.requests)
        assert before
        with refused(address, env=environment(**variables)) as server:
            server.wait_for_log("cannot (list|look at) .*: the server's certificate is not trusted: UnknownIssuer")
        assert len(proxy.requests) == before

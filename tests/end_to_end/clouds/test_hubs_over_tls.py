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
    with Delivery(authority.sign("delivery")).running() as delivery, HuggingFace(delivery).running() as hub:
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
    with Delivery(authority.sign("delivery")).running() as delivery, Registry(delivery, False).running() as registry:
        files = [path for path in model.rglob("*") if path.is_file()]
        layers = [(path.read_bytes(), "text/plain", {TITLE: path.relative_to(model).as_posix()}) for path in files]
        registry.put("team/a", "v1", layers)
        with (
            Proxy(registry.address, authority.sign("registry", "registry.example")) as proxy,
            ForwardProxy(proxy.address) as forward,
        ):
            # The layers are on this machine, where a name that may be public does not lead.
            variables = {"HTTPS_PROXY": forward.url, "NEREID_PRIVATE_REDIRECTS": "true"}
            yield "oci://registry.example/team/a:v1", variables, proxy


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


def test_redirects_do_not_lead_to_servers_without_tls(model, tmp_path):
    authority = Authority(tmp_path, "hubs")
    env = environment(SSL_CERT_FILE=str(authority.certificate))
    with Web().running() as web, Delivery().running() as elsewhere:
        packed = archive("tar.gz", model)
        web.answer = lambda path, query, headers: (302, {"location": f"{elsewhere.origin}/{elsewhere.put(packed)}?sig=hidden"}, b"")
        with Proxy(web.address, authority.sign("web")) as proxy, refused(f"{proxy.origin}/a.tar.gz", env=env) as server:
            server.wait_for_log("redirect from 'https://.*' to 'http://.*sig=\\*\\*\\*' refused: it drops TLS")
            assert "hidden" not in server.log
        assert elsewhere.requests == []

"""HTTP with TLS: real clients, client certificates, reloaded files, failed handshakes."""

import re
import socket
import ssl
import threading
import time
from contextlib import contextmanager

import httpx
import numpy as np
import pytest
import tritonclient.http

import nereid_server
from certificates import Authority, serial_of
from model_files import write_identity
from waiting import eventually

LIMIT_S = 30


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path, "servers")


@pytest.fixture
def serve_tls(authority, repository, serve):
    """Starts a server with a certificate; returns both."""

    def start(*flags):
        write_identity(repository, "same", ["INT32"])
        identity = authority.sign("server")
        files = [f"--http-server-cert={identity.certificate}", f"--http-server-key={identity.key}"]
        return serve("--http-use-ssl=true", *files, *flags, ready=False), identity

    return start


def trusting(*authorities, identity=None):
    context = ssl.create_default_context()
    for authority in authorities:
        context.load_verify_locations(authority.certificate)
    if identity:
        context.load_cert_chain(identity.certificate, identity.key)
    return context


def live(server, context, **how):
    """The answer to whether the server is live, over a connection of its own."""
    with httpx.Client(verify=context, timeout=LIMIT_S, **how) as client:
        return client.get(f"https://127.0.0.1:{server.port}/v2/health/live")


@contextmanager
def opened(server, context):
    with socket.create_connection(("127.0.0.1", server.port), LIMIT_S) as plain:
        with context.wrap_socket(plain, server_hostname="localhost") as stream:
            yield stream


def infer(client):
    sent = tritonclient.http.InferInput("INPUT0", [3], "INT32")
    sent.set_data_from_numpy(np.array([1, 2, 3], np.int32))
    return client.infer("same", [sent]).as_numpy("OUTPUT0").tolist()


def test_clients_speak_http_1_or_2_with_tls(serve_tls, authority):
    server, _ = serve_tls()
    answer = live(server, trusting(authority))
    assert (answer.status_code, answer.http_version) == (200, "HTTP/1.1")
    answer = live(server, trusting(authority), http2=True)
    assert (answer.status_code, answer.http_version) == (200, "HTTP/2")
    options = {"ca_certs": str(authority.certificate)}
    with tritonclient.http.InferenceServerClient(server.url, ssl=True, ssl_options=options) as client:
        assert infer(client) == [1, 2, 3]


def test_large_tensors_pass_both_ways(serve_tls, authority):
    server, _ = serve_tls()
    values = np.arange(3_000_000, dtype=np.int32)
    sent = tritonclient.http.InferInput("INPUT0", values.shape, "INT32")
    sent.set_data_from_numpy(values)
    options = {"ca_certs": str(authority.certificate)}
    with tritonclient.http.InferenceServerClient(server.url, ssl=True, ssl_options=options) as client:
        assert np.array_equal(client.infer("same", [sent]).as_numpy("OUTPUT0"), values)


def test_only_clients_with_a_trusted_certificate_are_served(serve_tls, authority, tmp_path):
    clients = Authority(tmp_path, "clients")
    server, _ = serve_tls("--http-use-ssl-mutual=true", f"--http-root-cert={clients.certificate}")
    known, stranger = clients.sign("known"), authority.sign("stranger")
    assert live(server, trusting(authority, identity=known)).status_code == 200
    for context in (trusting(authority), trusting(authority, identity=stranger)):
        # With TLS 1.3 a client hears of the refusal only when it reads.
        with pytest.raises((httpx.ConnectError, httpx.ReadError)):
            live(server, context)
    options = {
        "ca_certs": str(authority.certificate),
        "certfile": str(known.certificate),
        "keyfile": str(known.key),
    }
    with tritonclient.http.InferenceServerClient(server.url, ssl=True, ssl_options=options) as client:
        assert infer(client) == [1, 2, 3]


def test_the_log_of_requests_names_clients_by_their_certificates(serve_tls, authority, tmp_path):
    clients = Authority(tmp_path, "clients")
    mutual = ["--http-use-ssl-mutual=true", f"--http-root-cert={clients.certificate}"]
    server, _ = serve_tls(*mutual, "--log-requests=true")
    for name in ("one", "another client"):
        context = trusting(authority, identity=clients.sign(name))
        for http2 in (False, True):
            assert live(server, context, http2=http2).status_code == 200
        named = f'/v2/health/live status=200 .* principal={name}"'
        assert eventually(lambda: len(re.findall(named, server.log)) == 2), server.log


def test_a_new_certificate_is_reloaded_under_load(serve_tls, authority):
    server, first = serve_tls()
    context = trusting(authority)
    seen, failures, done = [], [], threading.Event()

    def load():
        while not done.is_set():
            try:
                with opened(server, context) as stream:
                    stream.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                    assert stream.recv(1000).startswith(b"HTTP/1.1 200 ")
                    seen.append(serial_of(stream.getpeercert(binary_form=True)))
            except Exception as error:
                failures.append(error)

    loads = [threading.Thread(target=load) for _ in range(4)]
    with opened(server, context) as old:
        for thread in loads:
            thread.start()
        second = authority.sign("renewed")
        second.take_the_place_of(first)
        deadline = time.monotonic() + LIMIT_S
        while second.serial not in seen[-1:] and time.monotonic() < deadline:
            time.sleep(0.05)
        done.set()
        for thread in loads:
            thread.join()
        # A connection that was open stays so.
        old.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
        assert old.recv(1000).startswith(b"HTTP/1.1 200 ")
    assert failures == []
    assert set(seen) == {first.serial, second.serial}
    assert seen.index(second.serial) > 0


def test_a_broken_certificate_is_ignored_until_it_is_fixed(serve_tls, authority):
    server, first = serve_tls()
    first.certificate.write_text("-----BEGIN CERTIFICATE-----\nnonsense\n")
    complaint = server.wait_for_log(r"^W.*cannot reload the TLS files; keeping the previous ones: .*")
    assert str(first.certificate) in complaint.group()
    assert live(server, trusting(authority)).status_code == 200
    second = authority.sign("renewed")
    second.take_the_place_of(first)
    server.wait_for_log("reloaded the TLS files")
    with opened(server, trusting(authority)) as stream:
        assert serial_of(stream.getpeercert(binary_form=True)) == second.serial


def test_failed_handshakes_affect_no_other_client(serve_tls, authority):
    server, _ = serve_tls()
    garbage = [b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n", bytes(300), b"\x16\x03\x01\xff\xff", b"\x16", b""]
    connections = [socket.create_connection(("127.0.0.1", server.port), LIMIT_S) for _ in range(200)]
    try:
        for index, connection in enumerate(connections):
            connection.sendall(garbage[index % len(garbage)])
        assert live(server, trusting(authority)).status_code == 200
        # One that speaks without TLS hears nothing of HTTP.
        assert b"HTTP" not in connections[0].recv(1000)
    finally:
        for connection in connections:
            connection.close()


def test_missing_and_invalid_files_are_refused_at_start(repository, authority, tmp_path):
    identity = authority.sign("server")
    certificate, key = f"--http-server-cert={identity.certificate}", f"--http-server-key={identity.key}"
    for flags, reason in (
        (["--http-use-ssl=true"], "--http-server-cert"),
        (["--http-use-ssl=true", certificate], "--http-server-key"),
        (["--http-use-ssl-mutual=true", certificate, key], "--http-root-cert"),
        (["--http-use-ssl=true", certificate, f"--http-server-key={tmp_path}/none.key"], "none.key"),
        (["--http-use-ssl=true", certificate, f"--http-server-key={authority.sign('x').key}"], "x.key"),
    ):
        server = nereid_server.refused_start(repository, *flags)
        assert server.exit_code != 0
        assert reason in server.log

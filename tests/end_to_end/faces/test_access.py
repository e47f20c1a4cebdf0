"""Access: restricted API groups, shared ports, forwarded headers, addresses."""

import socket

import nereid_server
from http_requests import assert_refused, infer, request, tensor
from model_files import write_identity

BODY = {"inputs": [tensor("INPUT0", "INT32", [1], [7])]}


def test_a_restricted_api_group_requires_its_key(repository, serve):
    write_identity(repository, "same", ["INT32"])
    server = serve("--http-restricted-api=inference,model-config:admin-key=s=1", "--http-restricted-api=metadata:other=2")
    for headers in ({}, {"admin-key": "s=2"}, {"other": "s=1"}):
        assert_refused(infer(server, "same", BODY, headers), 403)
        assert_refused(request(server, "GET", "/v2/models/same/config", headers=headers), 403)
    assert infer(server, "same", BODY, {"Admin-Key": "s=1"}).status == 200
    assert request(server, "GET", "/v2/models/same/config", headers={"admin-key": "s=1"}).status == 200
    assert_refused(request(server, "GET", "/v2"), 403)
    assert request(server, "GET", "/v2", headers={"other": "2"}).status == 200
    assert request(server, "GET", "/v2/health/ready").status == 200


def test_invalid_restrictions_are_refused_at_start(repository):
    for flags in (
        ["--http-restricted-api=everything:a=b"],
        ["--http-restricted-api=health:a"],
        ["--http-restricted-api=health:a=b", "--http-restricted-api=trace,health:c=d"],
    ):
        server = nereid_server.refused_start(repository, *flags)
        assert server.exit_code != 0
        assert "http-restricted-api" in server.log


def test_an_invalid_header_pattern_is_refused_at_start(repository):
    server = nereid_server.refused_start(repository, "--http-header-forward-pattern=x-(")
    assert server.exit_code != 0 and "http-header-forward-pattern" in server.log


def test_reserved_headers_cannot_be_forwarded(repository, serve):
    write_identity(repository, "same", ["INT32"])
    server = serve("--http-header-forward-pattern=(x-fw-.*|priority)")
    assert infer(server, "same", BODY, {"X-Fw-A": "1", "Other": "2"}).status == 200
    assert_refused(infer(server, "same", BODY, {"priority": "1"}), 400)


def test_servers_share_a_port_only_if_both_allow_it(repository, serve):
    first = serve("--reuse-http-port=true")
    second = nereid_server.Server(repository, "--reuse-http-port=true", port=first.port)
    try:
        second.wait_until_listening()
        assert second.port == first.port
        assert request(first, "GET", "/v2/health/live").status == 200
        second.stop()
    finally:
        second.kill()
    alone = nereid_server.refused_start(repository, port=first.port)
    assert alone.exit_code != 0 and str(first.port) in alone.log


def test_the_address_may_be_a_host_name(repository, serve):
    server = serve("--http-address=localhost")
    assert request(server, "GET", "/v2/health/live").status == 200
    unknown = nereid_server.refused_start(repository, "--http-address=no.such.host.invalid")
    assert unknown.exit_code != 0 and "no.such.host.invalid" in unknown.log


def test_a_client_that_expects_100_continue_gets_it(repository, serve):
    write_identity(repository, "same", ["INT32"])
    server = serve("--http-max-body-size=1000")
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        head = "POST /v2/models/same/infer HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: {}\r\n\r\n"
        body = b'{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1],"data":[7]}]}'
        connection.sendall(head.format(len(body)).encode())
        assert connection.recv(1000).startswith(b"HTTP/1.1 100 ")
        connection.sendall(body)
        assert connection.recv(1000).startswith(b"HTTP/1.1 200 ")
        connection.sendall(head.format(1001).encode())
        assert connection.recv(1000).startswith(b"HTTP/1.1 413 ")

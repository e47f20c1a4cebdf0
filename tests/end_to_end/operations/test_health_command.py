"""`nereid health`: the health check of a container without curl."""

import os
import socket
import subprocess
import threading
import time

import pytest

import nereid_server
from access_policies import Policy
from certificates import Authority
from model_files import write_identity

LIMIT_S = 60


def health(*arguments, **variables):
    """The exit code of a check, and its only line of output."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NEREID_")} | variables
    command = [nereid_server.binary(), "health", *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.stdout == "", done
    assert done.stderr.count("\n") == done.returncode, done
    return done.returncode, done.stderr.rstrip("\n").removeprefix("nereid health: ")


def closed_port():
    """A port on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.fixture
def answering():
    """Serves one connection with these bytes; returns the port. Without bytes, it never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        kept = []

        def start(reply):
            def serve():
                connection, _ = listener.accept()
                kept.append(connection)
                connection.recv(4096)
                connection.sendall(reply)

            threading.Thread(target=serve, daemon=True).start()
            return listener.getsockname()[1]

        yield start
        for connection in kept:
            connection.close()


def test_a_ready_server_and_its_models_are_healthy(examples):
    for arguments in ([], ["--live"], ["--model=digits"], ["--model=digits", "--model-version=1"]):
        assert health(f"--url={examples.url}", *arguments) == (0, ""), arguments
        assert health(f"--http-port={examples.port}", *arguments) == (0, ""), arguments
        assert health(*arguments, NEREID_HTTP_PORT=str(examples.port)) == (0, ""), arguments
    for arguments, reason in [
        (["--model=digit"], "model 'digit' is not ready (status 400): Request for unknown model: 'digit' is not found"),
        (["--model=digits", "--model-version=9"], "version 9 of model 'digits' is not ready (status 400): "),
    ]:
        code, line = health(f"--url={examples.url}", *arguments)
        assert code == 1 and line.startswith(f"http://{examples.url}: {reason}"), line


def test_the_file_of_options_says_where_the_server_listens(examples, tmp_path):
    file = tmp_path / "nereid.toml"
    file.write_text(f"model-repository = ['models']\nhttp-port = {examples.port}\nhttp-address = '127.0.0.1'\n")
    assert health(f"--config-file={file}") == (0, "")
    assert health(NEREID_CONFIG_FILE=str(file)) == (0, "")
    code, line = health(f"--config-file={file}", f"--http-port={closed_port()}")
    assert code == 1 and "cannot connect: Connection refused" in line
    wrong = [nereid_server.binary(), "health", f"--config-file={tmp_path}/none.toml"]
    done = subprocess.run(wrong, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 2 and "none.toml" in done.stderr, done


@pytest.mark.parametrize("name", ["two words", "größe", "100%", "a?b#c"])
def test_models_with_unusual_names_are_checked(repository, serve, name):
    write_identity(repository, name, ["FP32"])
    server = serve()
    assert health(f"--url={server.url}", f"--model={name}") == (0, "")
    code, line = health(f"--url={server.url}", f"--model={name}x")
    assert code == 1 and f"model '{name}x' is not ready" in line


def test_a_server_that_is_live_and_not_ready_says_so(repository):
    write_identity(repository, "good", ["FP32"])
    (repository / "bad" / "1").mkdir(parents=True)
    (repository / "bad" / "1" / "model.onnx").write_bytes(b"no model")
    with nereid_server.running(repository, "--exit-on-error=false", ready=False) as server:
        url = f"--url={server.url}"
        assert health(url, "--live") == (0, "")
        assert health(url) == (1, f"http://{server.url}: the server is not ready (status 400)")
        assert health(url, "--model=good") == (0, "")
        code, line = health(url, "--model=bad")
        assert code == 1 and "model 'bad' is not ready" in line
    code, line = health(url, "--live")
    assert code == 1 and line.startswith(f"http://{server.url}: cannot connect: Connection refused")


def test_a_server_that_does_not_answer_fails_in_time(answering):
    port = answering(b"")
    begin = time.monotonic()
    assert health(f"--url=127.0.0.1:{port}", "--timeout=1") == (1, "no answer within 1 seconds")
    assert time.monotonic() - begin < 10


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n", "unexpected answer, status 500"),
        (b"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n", "unexpected answer, status 302"),
        (
            b'HTTP/1.1 503 Service Unavailable\r\nContent-Length: 22\r\n\r\n{"error":"one\\ntwo \xc3\xbc"}',
            "the server is not ready (status 503): one two ü",
        ),
        (b"220 mail.example.com ESMTP\r\n", "the answer is not of HTTP"),
    ],
)
def test_other_answers_are_not_healthy(answering, reply, reason):
    port = answering(reply)
    code, line = health(f"--url=http://127.0.0.1:{port}")
    assert code == 1 and line.startswith(f"http://127.0.0.1:{port}: {reason}"), line


def test_restricted_health_needs_its_header(repository, serve):
    server = serve("--http-restricted-api=health:admin-key=secret", ready=False)
    code, line = health(f"--url={server.url}", "--header=admin-key: wrong")
    assert code == 1 and "access was denied (status 403)" in line
    assert health(f"--url={server.url}", "--header=admin-key: secret") == (0, "")


def test_the_api_key_is_sent(repository, tmp_path, serve):
    write_identity(repository, "vision-1", ["FP32"])
    policy = Policy(tmp_path / "access", {"vision": [(["read"], ["vision-*"])], "other": [(["read"], ["speech-*"])]})
    server = serve(policy.option)
    arguments = [f"--url={server.url}", "--model=vision-1"]
    assert health(*arguments, NEREID_API_KEY=policy.keys["vision"]) == (0, "")
    for key in (policy.keys["other"], "wrong", ""):
        code, line = health(*arguments, NEREID_API_KEY=key)
        assert code == 1 and ("access was denied" in line or "is not ready" in line), line
        assert not key or key not in line
    code, line = health(*arguments, NEREID_API_KEY="two\nlines")
    assert (code, line) == (1, "NEREID_API_KEY is not an API key: it has blanks or other characters of no key")


def test_tls_is_checked_by_authority_or_by_the_servers_own_certificate(repository, tmp_path, serve):
    authority, other = Authority(tmp_path, "servers"), Authority(tmp_path, "others")
    # Its clients call it by a name that is not this machine's.
    identity = authority.sign("server", "models.example.com", is_here=False)
    elsewhere, local = other.sign("elsewhere"), authority.sign("local")
    files = ["--http-use-ssl=true", f"--http-server-cert={identity.certificate}", f"--http-server-key={identity.key}"]
    server = serve(*files, ready=False)
    # As the server itself is configured.
    assert health(f"--http-port={server.port}", *files) == (0, "")
    other_file = f"--http-server-cert={elsewhere.certificate}"
    assert health(f"--http-port={server.port}", "--http-use-ssl=true", other_file)[0] == 1
    url = f"--url=https://localhost:{server.port}"
    for arguments in ([], [f"--ca={other.certificate}"], [f"--ca={authority.certificate}"]):
        code, line = health(url, *arguments)
        assert code == 1 and "cannot set up TLS: invalid peer certificate" in line, line
    code, line = health(f"--url=http://localhost:{server.port}")
    assert code == 1, line
    for broken in (tmp_path / "none.pem", identity.key):
        code, line = health(url, f"--ca={broken}")
        assert code == 1 and str(broken) in line, line
    local.take_the_place_of(identity)
    deadline = time.monotonic() + LIMIT_S
    while health(url, f"--ca={authority.certificate}") != (0, ""):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_client_certificates_are_presented(repository, tmp_path, serve):
    authority, clients = Authority(tmp_path, "servers"), Authority(tmp_path, "clients")
    identity, client = authority.sign("server"), clients.sign("client")
    files = [f"--http-server-cert={identity.certificate}", f"--http-server-key={identity.key}"]
    server = serve("--http-use-ssl-mutual=true", f"--http-root-cert={clients.certificate}", *files, ready=False)
    arguments = [f"--url=https://127.0.0.1:{server.port}", f"--ca={authority.certificate}"]
    assert health(*arguments)[0] == 1
    presented = [f"--client-cert={client.certificate}", f"--client-key={client.key}"]
    assert health(*arguments, *presented) == (0, "")
    assert health(*arguments, presented[0], f"--client-key={identity.key}")[0] == 1

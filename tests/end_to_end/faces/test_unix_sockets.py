"""Unix sockets: every protocol at one, their files, and who their clients are."""

import json
import os
import re
import shutil
import stat
import subprocess
from http.client import HTTPConnection

import grpc
import pytest
import tritonclient.grpc

import nereid_server
from access_policies import RIGHTS, Policy, bearer
from grpc_requests import numbers
from http_requests import tensor
from model_files import write_identity
from unix_sockets import SocketConnection, serving, socket_folder

LIMIT_S = 30
BODY = json.dumps({"inputs": [tensor("INPUT0", "INT32", [1], [7])]})
INFER = "/v2/models/own/infer"
# A user other than that of the tests, whom only the superuser can become.
NOBODY = 65534


@pytest.fixture
def sockets():
    """A folder for sockets."""
    with socket_folder() as folder:
        yield folder


def ask(path, method, target, body=None, headers=None):
    """One request over a connection of its own; its status and the text of the answer."""
    connection = SocketConnection(path)
    try:
        connection.request(method, target, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def asked_by_nobody(path):
    """The status of a request of another user, whose interpreter may be out of reach: a child of this process becomes that user."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            status = str(ask(path, "GET", "/v2/models/own")[0])
        except PermissionError:
            status = "refused"
        except BaseException as error:
            status = repr(error)
        os.write(writer, status.encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as answer:
        return answer.read()


def healthy(*arguments):
    """The exit code of a health check, and its reason."""
    command = [nereid_server.binary(), "health", *map(str, arguments)]
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return outcome.returncode, outcome.stderr


def test_every_protocol_is_served_at_its_socket(repository, sockets):
    write_identity(repository, "own", ["INT32"])
    http, rpc, metrics = sockets / "http", sockets / "grpc", sockets / "metrics"
    flags = (f"--http-address=unix:{http}", f"--grpc-address=unix://{rpc}?mode=0600", f"--metrics-address=unix:{metrics}?mode=666")
    with serving(repository, *flags) as server:
        for path, mode in ((http, 0o660), (rpc, 0o600), (metrics, 0o666)):
            about = path.lstat()
            assert stat.S_ISSOCK(about.st_mode) and stat.S_IMODE(about.st_mode) == mode
        status, text = ask(http, "POST", INFER, BODY)
        assert status == 200 and json.loads(text)["outputs"][0]["data"] == [7]
        assert 'nv_inference_request_success{model="own",version="1"} 1' in ask(metrics, "GET", "/metrics")[1]
        assert ask(http, "GET", "/console/api/server")[0] == 200
        for url in (f"unix:{rpc}", f"unix://{rpc}"):
            with tritonclient.grpc.InferenceServerClient(url) as client:
                assert client.infer("own", [numbers([4])]).as_numpy("OUTPUT0").tolist() == [4]
        for arguments in ([f"--url=unix:{http}"], [f"--url=unix://{http}", "--model=own"], [f"--http-address=unix:{http}"]):
            assert healthy(*arguments) == (0, "")
        code, reason = healthy(f"--url=unix:{http}", "--model=absent")
        assert code == 1 and f"unix:{http}: model 'absent' is not ready" in reason
        if curl := shutil.which("curl"):
            command = [curl, "--silent", "--unix-socket", http, "--http2-prior-knowledge", "http://localhost/v2/models/own"]
            assert json.loads(subprocess.run(command, capture_output=True, timeout=60, check=True).stdout)["name"] == "own"
        # A process of this machine may bring files and use shared memory.
        region = json.dumps({"key": "/none", "offset": 0, "byte_size": 4})
        assert ask(http, "POST", "/v2/systemsharedmemory/region/r/register", region)[0] != 403
        assert server.complaints == []
    assert list(sockets.iterdir()) == []
    code, reason = healthy(f"--url=unix:{http}")
    assert code == 1 and "cannot connect" in reason


def command(*arguments):
    """What a command of the program prints, and its exit code."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("NEREID_")}
    outcome = subprocess.run(
        [nereid_server.binary(), *map(str, arguments)], env=variables, capture_output=True, text=True, timeout=60
    )
    return outcome.returncode, outcome.stdout + outcome.stderr


def test_commands_for_terminals_reach_a_server_at_its_socket(repository, sockets):
    write_identity(repository, "own", ["INT32"], dims=(2,))
    http, metrics = sockets / "http", sockets / "metrics"
    with serving(repository, f"--http-address=unix:{http}", f"--metrics-address=unix:{metrics}"):
        for address in (f"unix:{http}", f"unix://{http}"):
            code, text = command("infer", address, "own", "INPUT0=[7,-8]")
            assert code == 0 and re.search(r"OUTPUT0  INT32 \[2\]\n +7  -8", text), text
            code, text = command("top", address, f"--metrics=unix:{metrics}", "--once", "--interval=1")
            assert code == 0 and re.search(r"^own .*[Rr]eady", text, re.MULTILINE) and "CPU " in text, text
        # An answer with an error, one that streams, and a server that is gone.
        code, text = command("infer", f"unix:{http}", "absent", "INPUT0=7")
        assert code == 1 and "absent" in text
        code, text = command("infer", f"unix:{http}", "own", "INPUT0=[7,8]", "--stream")
        assert code == 0 and "7" in text, text
    for arguments in (["infer", f"unix:{http}", "own", "INPUT0=7"], ["top", f"unix:{http}", "--once"]):
        code, text = command(*arguments)
        assert code == 1 and "No such file" in text, text


def test_only_the_socket_of_a_server_that_ended_is_replaced(repository, sockets):
    write_identity(repository, "own", ["INT32"])
    path = sockets / "http"
    flag = f"--http-address=unix:{path}"
    with serving(repository, flag) as server:
        server.kill()
        server.wait_for_exit()
    assert path.is_socket()
    with serving(repository, flag):
        assert ask(path, "GET", "/v2/models/own")[0] == 200
        second = nereid_server.refused_start(repository, flag)
        assert second.exit_code != 0 and f"cannot serve HTTP at unix:{path}: another server listens there" in second.log
        assert ask(path, "GET", "/v2/models/own")[0] == 200
    path.write_text("mine")
    refused = nereid_server.refused_start(repository, flag)
    assert refused.exit_code != 0 and "not a socket" in refused.log and path.read_text() == "mine"


@pytest.mark.parametrize(
    "flags, reason",
    [
        (["--http-address=unix:"], "the path of the Unix socket is empty"),
        (["--http-address=unix:/a?mode=rw"], "an octal mode such as 0660"),
        (["--http-address=unix://host/a"], "a Unix socket has no host"),
        (["--http-address=unix:/a", "--grpc-address=unix:/a"], "each protocol needs its own socket"),
    ],
)
def test_an_unusable_socket_is_refused(repository, flags, reason):
    server = nereid_server.refused_start(repository, *flags)
    assert server.exit_code != 0 and reason in server.log


def test_the_user_of_a_client_is_its_principal(tmp_path, repository, sockets):
    write_identity(repository, "own", ["INT32"])
    policy = Policy(tmp_path / "access", {"me": [(["infer"], ["own"])], "nobody": [(["read"], ["own"])], "root": [(RIGHTS, ["*"])]})
    text = policy.file.read_text()
    for name, user in (("me", os.geteuid()), ("nobody", NOBODY)):
        text = text.replace(f"[principals.{name}]\n", f"[principals.{name}]\nuids = [{user}]\n")
    policy.file.write_text(text)
    http, rpc = sockets / "http", sockets / "grpc"
    with serving(repository, f"--http-address=unix:{http}?mode=0666", f"--grpc-address=unix:{rpc}", policy.option) as server:
        key = bearer(policy.keys["root"])
        for headers, runs, reads in (({}, 200, 403), (key, 200, 200), (bearer("wrong"), 401, 401)):
            assert ask(http, "POST", INFER, BODY, headers)[0] == runs
            assert ask(http, "GET", "/v2/models/own", None, headers)[0] == reads
        with tritonclient.grpc.InferenceServerClient(f"unix:{rpc}") as client:
            assert client.infer("own", [numbers([4])]).as_numpy("OUTPUT0").tolist() == [4]
            with pytest.raises(tritonclient.grpc.InferenceServerException) as caught:
                client.get_model_metadata("own")
            assert caught.value.status() == f"StatusCode.{grpc.StatusCode.PERMISSION_DENIED.name}"
        # Without the address, a port of this machine has no users.
        metrics = int(server.wait_for_log(r"Started Metrics Service at 127.0.0.1:(\d+)").group(1))
        connection = HTTPConnection("127.0.0.1", metrics, timeout=LIMIT_S)
        connection.request("GET", "/metrics")
        assert connection.getresponse().status == 401
        connection.close()
        if os.geteuid() == 0:
            assert (asked_by_nobody(http), asked_by_nobody(rpc)) == ("200", "refused")


def test_principals_of_users_are_in_the_overview(tmp_path):
    policy = Policy(tmp_path, {"a": [(["infer"], ["*"])]})
    policy.file.write_text(policy.file.read_text().replace("[principals.a]\n", "[principals.a]\nuids = [7, 1000]\n"))
    command = [nereid_server.binary(), "access", "check", policy.file]
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert re.search(r"^a \(keys: 1, certificates: 0, users: 7 1000\)$", outcome.stdout, re.M), outcome

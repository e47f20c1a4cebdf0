"""The ways in which people wait for a Triton server, probe it and script it: answers, exit statuses and start-up loops."""

import http.client
import os
import socket
import subprocess

import grpc
import httpx
import pytest
import requests
import tritonclient.grpc
import tritonclient.http
from grpc_health.v1 import health_pb2, health_pb2_grpc

import nereid_server
import probe_scripts
from http_requests import request
from model_files import config, write_identity, write_model
from ports import free_port
from waiting import eventually

EMPTY, ERROR = (0, "text/plain"), "an error"
MODEL = "/v2/models/good/ready"
# What the reference (2.51) was recorded to answer: the status, and a body of no bytes or an error as JSON. The first status
# is that of a server whose models are all ready, the second that of one with a model that failed to load.
RECORDED = {
    ("GET", "/v2/health/live"): (200, 200, EMPTY),
    ("GET", "/v2/health/ready"): (200, 400, EMPTY),
    ("GET", "/v2/health/live?"): (200, 200, EMPTY),
    ("GET", "/v2/health/ready?x=1"): (200, 400, EMPTY),
    ("GET", MODEL): (200, 200, EMPTY),
    ("GET", f"{MODEL}?verbose=1"): (200, 200, EMPTY),
    ("GET", "/v2/models/good/versions/1/ready"): (200, 200, EMPTY),
    ("GET", "/v2/models/good/versions/7/ready"): (400, 400, ERROR),
    ("GET", "/v2/models/bad/ready"): (400, 400, ERROR),
    ("GET", "/v2/models/nosuch/ready"): (400, 400, ERROR),
    ("GET", "/v2/models/nosuch/versions/1/ready"): (400, 400, ERROR),
    ("GET", "/v2/health/live/"): (404, 404, ERROR),
    ("GET", "/v2/health/ready/"): (404, 404, ERROR),
    ("GET", f"{MODEL}/"): (404, 404, ERROR),
    ("GET", "/v2/models//ready"): (404, 404, ERROR),
    ("GET", "/v2/models/ready"): (404, 404, ERROR),
    ("GET", "/v2/health"): (404, 404, ERROR),
    ("GET", "/v2/health/nosuch"): (404, 404, ERROR),
    ("GET", "/v2/health/READY"): (404, 404, ERROR),
    ("GET", "/V2/health/ready"): (404, 404, ERROR),
    ("GET", "//v2/health/ready"): (404, 404, ERROR),
    ("GET", "/health"): (404, 404, ERROR),
    ("GET", "/"): (404, 404, ERROR),
    ("HEAD", "/v2/health/live"): (405, 405, ERROR),
    ("HEAD", "/v2/health/ready"): (405, 405, ERROR),
    ("HEAD", MODEL): (405, 405, ERROR),
    ("HEAD", "/v2/models/nosuch/ready"): (405, 405, ERROR),
    ("POST", "/v2/health/ready"): (405, 405, ERROR),
    ("PUT", "/v2/health/live"): (405, 405, ERROR),
    ("DELETE", "/v2/health/ready"): (405, 405, ERROR),
    ("OPTIONS", "/v2/health/live"): (405, 405, ERROR),
    ("POST", MODEL): (405, 405, ERROR),
    ("GET", "/v2/repository/index"): (405, 405, ERROR),
}
# Headers of common clients.
AGENTS = {
    "curl": {"User-Agent": "curl/7.88.1", "Accept": "*/*"},
    "kubelet": {"User-Agent": "kube-probe/1.31", "Accept": "*/*", "Connection": "close"},
    "requests": {"User-Agent": "python-requests/2.32", "Accept": "*/*", "Accept-Encoding": "gzip, deflate"},
    "wget": {"User-Agent": "Wget/1.21.3", "Accept": "*/*", "Accept-Encoding": "identity", "Connection": "Keep-Alive"},
    "browser": {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", "User-Agent": "Mozilla/5.0"},
    "load balancer": {"User-Agent": "ELB-HealthChecker/2.0", "Connection": "close"},
    "any type of application": {"Accept": "application/*"},
    "no JSON": {"Accept": "application/json;q=0, */*"},
    "no headers": {},
}
NOT_READY = "--exit-on-error=false"
STATES = ["ready", "failing"]
# Paths, and whether they are healthy in each state.
HEALTH = {
    "/v2/health/live": (True, True),
    "/v2/health/ready": (True, False),
    MODEL: (True, True),
    "/v2/models/bad/ready": (False, False),
}
NAMING_JSON = ["application/json", "Application/JSON;q=0.9", "*/*, application/json", "application/json, text/plain, */*"]


def write_bad(repository):
    """A model that fails to load."""
    write_model(repository, "bad", config("bad", "nosuch", [("I", "INT32", [1])], [("O", "INT32", [1])]))


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    """A server whose models are all ready, and one with a model that failed."""
    repositories = [tmp_path_factory.mktemp(state) for state in STATES]
    for repository in repositories:
        write_identity(repository, "good", ["INT32"])
    write_bad(repositories[1])
    with nereid_server.running(repositories[0]) as ready:
        with nereid_server.running(repositories[1], NOT_READY, ready=False) as failing:
            yield {"ready": ready, "failing": failing}


@pytest.fixture(params=STATES)
def state(request):
    return request.param


@pytest.fixture
def server(servers, state):
    return servers[state]


@pytest.mark.parametrize("agent", AGENTS)
def test_status_body_and_headers_are_as_recorded_from_the_reference(server, state, agent):
    for (method, path), (*statuses, kind) in RECORDED.items():
        answer = request(server, method, path, headers=AGENTS[agent])
        length, content_type = answer.headers["Content-Length"], answer.headers["Content-Type"]
        if (agent, method, path) == ("browser", "GET", "/"):
            # The console.
            assert (answer.status, content_type) == (200, "text/html; charset=utf-8")
            continue
        assert answer.status == statuses[STATES.index(state)], (method, path)
        if kind == EMPTY:
            assert (answer.body, int(length), content_type) == (b"", *EMPTY), (method, path)
        else:
            # An answer to HEAD has no body.
            assert int(length) > 0 and content_type == "application/json", (method, path)
            assert method == "HEAD" or (len(answer.body) == int(length) and answer.json["error"]), (method, path)


@pytest.mark.parametrize("path", HEALTH)
@pytest.mark.parametrize("name", probe_scripts.SCRIPTS)
def test_script_succeeds_only_if_the_server_is_healthy(server, state, path, name):
    is_healthy = HEALTH[path][STATES.index(state)]
    assert probe_scripts.succeeds(probe_scripts.SCRIPTS[name], f"http://{server.url}{path}") == is_healthy


@pytest.mark.parametrize("path", HEALTH)
@pytest.mark.parametrize("name", probe_scripts.CALLS | probe_scripts.OVER_HTTP2)
def test_python_call_succeeds_only_if_the_server_is_healthy(server, state, path, name):
    call = (probe_scripts.CALLS | probe_scripts.OVER_HTTP2)[name]
    assert probe_scripts.holds(call, f"http://{server.url}{path}") == HEALTH[path][STATES.index(state)]


def test_no_script_or_call_succeeds_without_a_server():
    url = f"http://127.0.0.1:{free_port()}/v2/health/live"
    scripts = probe_scripts.SCRIPTS | probe_scripts.BY_HEAD
    assert [name for name, script in scripts.items() if probe_scripts.succeeds(script, url)] == []
    calls = probe_scripts.CALLS | probe_scripts.OVER_HTTP2
    assert [name for name, call in calls.items() if probe_scripts.holds(call, url)] == []


@pytest.mark.parametrize("name", probe_scripts.BY_HEAD)
def test_script_that_sends_head_fails_as_with_the_reference(servers, name):
    assert not probe_scripts.succeeds(probe_scripts.BY_HEAD[name], f"http://{servers['ready'].url}/v2/health/ready")


@pytest.mark.parametrize("accept", NAMING_JSON)
@pytest.mark.parametrize("http2", [False, True])
def test_client_that_names_json_gets_kserves_body(servers, accept, http2):
    with httpx.Client(http1=not http2, http2=http2, headers={"Accept": accept}) as client:
        for name in ("live", "ready"):
            answer = client.get(f"http://{servers['ready'].url}/v2/health/{name}")
            assert (answer.status_code, answer.headers["Content-Type"]) == (200, "application/json")
            assert answer.json() == {name: True}
        assert client.get(f"http://{servers['ready'].url}{MODEL}").content == b""
        unready = client.get(f"http://{servers['failing'].url}/v2/health/ready")
        assert (unready.status_code, unready.content) == (400, b"")


@pytest.mark.parametrize("protocol", [tritonclient.http, tritonclient.grpc], ids=["http", "grpc"])
def test_triton_client_reports_health(server, state, protocol):
    url = server.grpc_url if protocol is tritonclient.grpc else server.url
    with protocol.InferenceServerClient(url) as client:
        assert client.is_server_live()
        assert client.is_server_ready() == (state == "ready")
        assert client.is_model_ready("good") and client.is_model_ready("good", "1")
        assert not client.is_model_ready("bad") and not client.is_model_ready("nosuch")
        assert not client.is_model_ready("good", "7")


@pytest.mark.parametrize("agent", ["kube-probe/1.31", "grpc_health_probe/v0.4", None])
def test_grpc_health_check_reports_the_server_for_every_service(server, state, agent):
    options = [("grpc.primary_user_agent", agent)] if agent else []
    statuses = health_pb2.HealthCheckResponse
    # The reference ignores the name of the service.
    expected = statuses.SERVING if state == "ready" else statuses.NOT_SERVING
    for service in ["", "good", "bad", "nosuch", "inference.GRPCInferenceService"]:
        with grpc.insecure_channel(server.grpc_url, options) as channel:
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=service), timeout=30)
            assert answer.status == expected, service


def test_health_of_cloud_faces_has_no_body_for_any_client(repository, serve):
    write_identity(repository, "good", ["INT32"])
    routes = {"AIP_HEALTH_ROUTE": "/h", "AIP_PREDICT_ROUTE": "/p"}
    clouds = ["--allow-sagemaker=true", "--sagemaker-port=0", "--allow-vertex-ai=true", "--vertex-ai-port=0"]
    server = serve("--allow-http=true", *clouds, env={**os.environ, **routes})
    started = [rf'Started {face} HTTPService at [^\s"]+:(\d+)' for face in ("Sagemaker", "Vertex AI")]
    ports = [int(server.wait_for_log(line).group(1)) for line in started]
    for port, path in zip(ports, ["/ping", "/h"], strict=True):
        url = f"http://127.0.0.1:{port}{path}"
        for script in probe_scripts.SCRIPTS.values():
            assert probe_scripts.succeeds(script, url), (script, path)
        named = requests.get(url, headers={"Accept": "application/json"}, timeout=30)
        assert (named.status_code, named.content, named.headers["Content-Type"]) == (200, b"", "text/plain")
        assert requests.head(url, timeout=30).status_code == 405


def test_tcp_probe_does_not_disturb_the_server(server):
    for port in (server.port, server.grpc_port, server.metrics_port):
        for _ in range(20):
            socket.create_connection(("127.0.0.1", port), 30).close()
    assert requests.get(f"http://{server.url}/v2/health/live", timeout=30).status_code == 200


def bash(script, *arguments, limit_s=120):
    """The outcome of a script, whose arguments are `$1` and so on."""
    command = ["bash", "-c", script, "script", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)


def test_metrics_serve_as_a_probe(servers):
    server = servers["ready"]
    for script in (
        "curl -sf http://127.0.0.1:$1/metrics | grep -q '^nv_inference_request_success{'",
        """test "$(curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1:$1/metrics)" = 200""",
        "wget -qO- http://127.0.0.1:$1/metrics | grep -q nv_",
    ):
        assert bash(script, server.metrics_port).returncode == 0, script


# Reads the index as scripts do with jq: the state of a model, and the names of those that are ready.
INDEX = """curl -s -X POST http://$1/v2/repository/index | python3 -c '
import json, sys
index = json.load(sys.stdin)
print([model["state"] for model in index if model["name"] == "good"])
print([model["name"] for model in index if model.get("state") == "READY"])'"""


def test_index_and_loads_work_from_curl(repository, serve):
    write_identity(repository, "good", ["INT32"])
    server = serve("--model-control-mode=explicit")
    ready = """curl -s -o /dev/null -w '%{http_code}' http://$1/v2/models/good/ready"""
    status = "curl -s -w '%{http_code}' -X POST"
    for load in (
        f"{status} http://$1/v2/repository/models/good/load",
        f"{status} -d '{{}}' http://$1/v2/repository/models/good/load",
        f"{status} -H 'Content-Type: application/json' -d '' http://$1/v2/repository/models/good/load",
    ):
        assert bash(ready, server.url).stdout == "400"
        assert bash(load, server.url).stdout == "200", load
        assert bash(ready, server.url).stdout == "200"
        assert bash(INDEX, server.url).stdout.strip() == "['READY']\n['good']"
        assert bash(f"{status} http://$1/v2/repository/models/good/unload", server.url).stdout == "200"
    assert bash(f"{status} http://$1/v2/repository/models/nosuch/load", server.url).stdout.endswith("500")


# Starts the server, waits with a counter until the whole output of curl is 200, or until the process has ended; then
# stops it with a signal and prints what `wait` reports.
LOOP = """signal=$1; port=$2; shift 2
"$@" > "$LOG" 2>&1 &
pid=$!
count=0
until [ "$(curl -s -w '%{http_code}' http://127.0.0.1:$port/v2/health/ready)" = 200 ]; do
  if ! kill -0 $pid 2> /dev/null; then wait $pid; echo "ended $?"; exit 1; fi
  count=$((count + 1))
  if [ $count -gt 600 ]; then kill -9 $pid; echo "not ready"; exit 2; fi
  sleep 0.1
done
kill -$signal $pid
wait $pid
echo "stopped $?" """


def command(repository, port, *flags):
    address = ["--http-address=127.0.0.1", f"--http-port={port}", "--grpc-port=0", "--metrics-port=0"]
    return [nereid_server.binary(), f"--model-repository={repository}", *address, *flags]


@pytest.mark.parametrize("signal", ["TERM", "INT", "2", "15"])
def test_start_up_loop_sees_the_server_ready_and_stopped(repository, tmp_path, monkeypatch, signal):
    write_identity(repository, "good", ["INT32"])
    monkeypatch.setenv("LOG", str(tmp_path / "log"))
    port = free_port()
    outcome = bash(LOOP, signal, port, *command(repository, port))
    assert (outcome.stdout.strip(), outcome.returncode) == ("stopped 0", 0), (tmp_path / "log").read_text()


def test_start_up_loop_sees_a_server_that_gives_up(repository, tmp_path, monkeypatch):
    write_identity(repository, "good", ["INT32"])
    write_bad(repository)
    monkeypatch.setenv("LOG", str(tmp_path / "log"))
    port = free_port()
    outcome = bash(LOOP, "TERM", port, *command(repository, port))
    assert (outcome.stdout.strip(), outcome.returncode) == ("ended 1", 1), (tmp_path / "log").read_text()


def test_python_loop_that_began_before_the_server_sees_it_become_ready(repository):
    write_identity(repository, "good", ["INT32"])
    port = free_port()
    seen: list[int | None] = []
    server = nereid_server.Server(repository, port=port)
    try:
        while seen[-1:] != [200]:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            try:
                connection.request("GET", "/v2/health/ready")
                found = connection.getresponse().status
            except OSError:
                found = None
            finally:
                connection.close()
            assert server.exit_code is None, server.log
            seen += [found] * (seen[-1:] != [found])
        # Connections are refused, then models are loading.
        assert set(seen) <= {None, 400, 200}
        server.stop()
    finally:
        server.kill()


@pytest.mark.parametrize("option", ["--http-port", "--grpc-port", "--metrics-port"])
def test_second_server_on_a_port_in_use_ends_with_an_error(servers, repository, option):
    write_identity(repository, "good", ["INT32"])
    first = servers["ready"]
    port = {"--http-port": first.port, "--grpc-port": first.grpc_port, "--metrics-port": first.metrics_port}[option]
    second = nereid_server.refused_start(repository, "--metrics-address=127.0.0.1", f"{option}={port}")
    assert second.exit_code == 1
    assert "already in use" in second.log and str(port) in second.log
    assert request(first, "GET", "/v2/health/ready").status == 200


def test_stopping_server_is_not_ready_and_stays_live_until_its_last_request_is_done(repository, serve, gate):
    write_identity(repository, "slow", ["INT32"], gate=gate.path)
    server = serve()
    balancer = httpx.Client()
    body = '{"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1], "data": [7]}]}'
    slow = subprocess.Popen(
        ["curl", "-s", "-w", "%{http_code}", "-o", "/dev/null", "-d", body, f"http://{server.url}/v2/models/slow/infer"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        gate.entered()
        assert balancer.get(f"http://{server.url}/v2/health/ready").status_code == 200
        server.terminate()
        # New connections are refused; those that are open get answers until the end.
        script = probe_scripts.SCRIPTS["curl prints body and status"]
        assert eventually(lambda: not probe_scripts.succeeds(script, f"http://{server.url}/v2/health/ready"))
        for path, status in {"/v2/health/ready": 400, "/v2/health/live": 200, "/v2/models/slow/ready": 200}.items():
            answer = balancer.get(f"http://{server.url}{path}")
            assert (answer.status_code, answer.content) == (status, b""), path
        gate.open()
        assert slow.communicate(timeout=60)[0] == "200"
        assert server.wait_for_exit() == 0
    finally:
        balancer.close()
        slow.kill()
        slow.wait()

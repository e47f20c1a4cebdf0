"""Servers on the nodes of a Ray cluster, behind Envoy, as docs/ray.md has it. Not among the default tests, because Ray takes 0.2 GB and
its nodes much memory: `cargo xtask test clusters`.
"""

import json
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection, HTTPException
from types import SimpleNamespace

import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

import envoy
import haproxy
import nereid_server
from http_requests import LIMIT_S, tensor
from model_files import write_identity
from ray_cluster import Cluster
from waiting import eventually

NODES = 3
CLIENTS = 3
WAIT_S = 120
BODY = json.dumps({"inputs": [tensor("INPUT0", "INT32", [1], [7])]})


class Fleet:
    """A balancer and the cluster behind it."""

    def __init__(self, cluster, http_port, grpc_port, options):
        self.cluster = cluster
        self.options = options
        self._http, self._grpc = http_port, grpc_port
        self._seen: tuple | None = None

    def over_http(self, path="/v2/models/same/infer", body=BODY):
        """A request to the balancer: the status, and the body."""
        connection = HTTPConnection("127.0.0.1", self._http, timeout=LIMIT_S)
        try:
            connection.request("POST" if body else "GET", path, body)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    @contextmanager
    def load(self):
        """Sends requests over both protocols; gives the counts of answers and the errors, which are complete at the end."""
        stop = threading.Event()
        answers = [0] * (2 * CLIENTS)
        errors: list = []

        def http(client):
            while not stop.is_set():
                try:
                    status, body = self.over_http()
                    if status != 200 or json.loads(body)["outputs"][0]["data"] != [7]:
                        errors.append((status, body))
                except (OSError, HTTPException) as error:
                    errors.append(error)
                answers[client] += 1

        def grpc(client):
            numbers = tritonclient.grpc.InferInput("INPUT0", [1], "INT32")
            numbers.set_data_from_numpy(np.array([7], np.int32))
            with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{self._grpc}") as connection:
                while not stop.is_set():
                    try:
                        found = connection.infer("same", [numbers], client_timeout=LIMIT_S).as_numpy("OUTPUT0").tolist()
                        if found != [7]:
                            errors.append(found)
                    except InferenceServerException as error:
                        errors.append(error)
                    answers[client] += 1

        with ThreadPoolExecutor(2 * CLIENTS) as pool:
            clients = [pool.submit(http, client) for client in range(CLIENTS)]
            clients += [pool.submit(grpc, CLIENTS + client) for client in range(CLIENTS)]
            try:
                yield answers, errors
                # So that what changed last has its effect.
                before = list(answers)
                assert eventually(lambda: all(now > then + 50 for now, then in zip(answers, before)), WAIT_S)
            finally:
                stop.set()
        for client in clients:
            client.result()
        print(f"{sum(answers)} answers, {len(errors)} errors")

    def is_up(self):
        """Whether the balancer listens and reaches a server."""
        try:
            return self.over_http("/v2/health/ready", None)[0] == 200
        except OSError:
            return False

    def ready(self, count, without=()):
        """Whether so many servers are ready, these not among them, and the balancer has all of them."""
        servers = self.cluster.status()
        found: set = set()
        for number in range(100):
            # A balancer that counts connections may pass over a busy server for a while.
            if number >= 12 and found >= servers.keys():
                break
            found.add(json.loads(self.over_http("/v2", None)[1])["name"])
        if (seen := (sorted(found), {name: server["state"] for name, server in servers.items()})) != self._seen:
            # Shown if the test fails.
            print("the balancer has", *seen)
            self._seen = seen
        if len(servers) != count or servers.keys() & set(without) or {server["state"] for server in servers.values()} != {"ready"}:
            return False
        return found == servers.keys()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ray")
    for repository in ("models", "more"):
        write_identity(folder / repository, "same", ["INT32"], execute_delay_ms=5)
    write_identity(folder / "more", "other", ["INT32"])
    (folder / "servers").mkdir()
    with ExitStack() as running:
        cluster = Cluster(NODES)
        running.callback(cluster.stop)
        program = ["--resource", "nereid=1", "--program", nereid_server.binary()]
        cluster.fleet("start", "--servers", NODES, *program, "--", f"--model-repository={folder / 'models'}")
        follower = cluster.follow(folder / "servers")
        running.callback(follower.wait)
        running.callback(follower.kill)
        assert eventually((folder / "servers" / "grpc.yaml").exists, WAIT_S)
        http_port, grpc_port = running.enter_context(envoy.running(folder / "servers"))
        fleet = Fleet(cluster, http_port, grpc_port, f"--model-repository={folder / 'more'}")
        assert eventually(fleet.is_up)
        yield fleet
        pids = [server["pid"] for server in cluster.status().values()]
        cluster.fleet("stop")
        assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]


def test_each_node_has_a_server(fleet):
    assert eventually(lambda: fleet.ready(NODES), WAIT_S)
    assert len({server["node"] for server in fleet.cluster.status().values()}) == NODES


def test_a_killed_server_is_replaced_and_no_answer_is_lost(fleet):
    with fleet.load() as (_, errors):
        name, server = next(iter(fleet.cluster.status().items()))
        os.kill(server["pid"], signal.SIGKILL)
        assert eventually(lambda: fleet.ready(NODES, without=[name]), WAIT_S)
    assert errors == []


def test_the_servers_of_a_killed_node_start_on_others_and_no_answer_is_lost(fleet):
    with fleet.load() as (_, errors):
        name, server = next(iter(fleet.cluster.status().items()))
        os.kill(server["pid"], signal.SIGKILL)
        fleet.cluster.command("kill node", server["node"])
        assert eventually(lambda: fleet.ready(NODES, without=[name]), WAIT_S)
        assert server["node"] not in {server["node"] for server in fleet.cluster.status().values()}
        fleet.cluster.command("add node")
    assert errors == []


def test_a_keeper_that_died_takes_its_servers_over(fleet):
    before = fleet.cluster.status().keys()
    with fleet.load() as (_, errors):
        fleet.cluster.command("kill keeper")
        assert eventually(lambda: fleet.ready(NODES), WAIT_S)
    assert errors == [] and fleet.cluster.status().keys() == before


def test_a_keeper_that_died_with_a_server_knows_how_many_there_were(fleet):
    # Not the number that it began with.
    fleet.cluster.fleet("scale", NODES + 1)
    with fleet.load() as (_, errors):
        name, server = next(iter(fleet.cluster.status().items()))
        os.kill(server["pid"], signal.SIGKILL)
        fleet.cluster.command("kill keeper")
        assert eventually(lambda: fleet.ready(NODES + 1, without=[name]), WAIT_S)
        fleet.cluster.fleet("scale", NODES)
        assert eventually(lambda: fleet.ready(NODES), WAIT_S)
    assert errors == []


def test_no_answer_is_lost_while_the_number_of_servers_changes(fleet):
    with fleet.load() as (_, errors):
        for servers in (4, 1, 3):
            fleet.cluster.fleet("scale", servers)
            assert eventually(lambda: fleet.ready(servers), WAIT_S)
    assert errors == []


def test_the_number_of_servers_follows_the_requests_that_wait(fleet):
    with fleet.load() as (_, errors):
        fleet.cluster.fleet("scale", "3,4,0")
        assert eventually(lambda: fleet.ready(4), WAIT_S)
        fleet.cluster.fleet("scale", 3)
        assert eventually(lambda: fleet.ready(3), WAIT_S)
    assert errors == []


def test_no_answer_is_lost_in_a_rolling_update(fleet):
    before = fleet.cluster.status()
    with fleet.load() as (_, errors):
        fleet.cluster.fleet("update", "--", fleet.options)
        assert eventually(lambda: fleet.ready(NODES, without=before), WAIT_S)
        assert fleet.over_http("/v2/models/other/ready", None)[0] == 200
    assert errors == []


def test_models_are_loaded_where_they_are_asked_for(fleet):
    before = fleet.cluster.status()
    fleet.cluster.fleet("update", "--", fleet.options, "--model-control-mode=on-demand")
    assert eventually(lambda: fleet.ready(NODES, without=before), WAIT_S)
    servers = fleet.cluster.status()
    assert not any(loaded(server, model) for server in servers.values() for model in ("same", "other"))
    assert fleet.over_http("/v2/models/other/infer")[0] == 200
    assert [loaded(server, "other") for server in servers.values()].count(True) == 1
    with fleet.load() as (_, errors):
        # All of them get requests for this one.
        assert eventually(lambda: all(loaded(server, "same") for server in servers.values()), WAIT_S)
        name, server = next((name, server) for name, server in servers.items() if loaded(server, "other"))
        os.kill(server["pid"], signal.SIGKILL)
        # Another one loads it.
        assert fleet.over_http("/v2/models/other/infer")[0] == 200
        assert eventually(lambda: fleet.ready(NODES, without=[name]), WAIT_S)
    assert errors == []


def loaded(server, model):
    """Whether a server has a model in its memory."""
    connection = HTTPConnection(server["ip"], server["http"], timeout=LIMIT_S)
    try:
        connection.request("POST", "/v2/repository/index", "{}")
        found = json.loads(connection.getresponse().read())
    finally:
        connection.close()
    return any((entry["name"], entry.get("state")) == (model, "READY") for entry in found)


def test_no_answer_is_lost_behind_haproxy_while_the_number_of_servers_changes(fleet, tmp_path):
    servers = {name: SimpleNamespace(port=it["http"], grpc_port=it["grpc"]) for name, it in fleet.cluster.status().items()}
    proxy = haproxy.HAProxy(tmp_path / "haproxy", servers)
    with ExitStack() as running:
        running.callback(proxy.end)
        follower = fleet.cluster.follow(tmp_path / "haproxy", "--haproxy", proxy.socket)
        running.callback(follower.wait)
        running.callback(follower.kill)
        behind = Fleet(fleet.cluster, proxy.http_port, proxy.grpc_port, fleet.options)
        with behind.load() as (_, errors):
            for count in (4, 3):
                fleet.cluster.fleet("scale", count)
                assert eventually(lambda: behind.ready(count), WAIT_S)
        assert errors == []

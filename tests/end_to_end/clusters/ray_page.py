"""docs/ray.md followed as printed, on a cluster of one machine: servers behind Envoy, one killed under load, their number by the load, a
rolling update, and the end. Not among the default tests: `cargo xtask test clusters`.
"""

import json
import os
import signal
from contextlib import ExitStack
from http.client import HTTPConnection, HTTPException

import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

import ray_cluster
from fleets import load
from http_requests import LIMIT_S, tensor
from ray_reader import Reader
from waiting import eventually

WAIT_S = 600
IMAGE = np.linspace(0, 1, 64, dtype=np.float32).reshape(1, 1, 8, 8)
BODY = json.dumps({"inputs": [tensor("image", "FP32", [1, 1, 8, 8], IMAGE.flatten().tolist())]})
# The largest batch, so that requests wait.
MANY = np.tile(IMAGE, (32, 1, 1, 1))


class Page:
    """The page's fleet, by the reader who started it."""

    def __init__(self, reader):
        self.reader = reader
        self.expected = None

    def ask(self, path, body=None):
        """A request to Envoy: the status and the body."""
        connection = HTTPConnection("127.0.0.1", self.reader.envoy[0], timeout=LIMIT_S)
        try:
            connection.request("POST" if body else "GET", path, body)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def over_http(self):
        """One inference: the error, if there is one."""
        try:
            status, body = self.ask("/v2/models/digits/infer", BODY)
        except (OSError, HTTPException) as error:
            return error
        if status != 200:
            return status, body
        (output,) = json.loads(body)["outputs"]
        return self._problem(output["data"])

    def over_grpc(self, images=IMAGE):
        """The same over gRPC."""
        given = tritonclient.grpc.InferInput("image", images.shape, "FP32")
        given.set_data_from_numpy(images)
        with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{self.reader.envoy[1]}") as client:
            try:
                found = client.infer("digits", [given], client_timeout=LIMIT_S).as_numpy("probabilities")
            except InferenceServerException as error:
                return error
        return self._problem(found[-1])

    def _problem(self, found):
        """What is wrong with an answer. All must be the first one's."""
        if self.expected is None:
            self.expected = found
        return None if np.allclose(found, self.expected, atol=1e-5) else found

    def ready(self, count, without=()):
        """Whether the fleet has so many servers, or any number, these not among them, all are ready, and Envoy sends requests to all."""
        servers = self.reader.servers()
        count = count or len(servers)
        if len(servers) != count or servers.keys() & set(without) or {server["state"] for server in servers.values()} != {"ready"}:
            return False
        return {json.loads(self.ask("/v2")[1])["name"] for _ in range(8 * count)} == servers.keys()

    def is_up(self):
        try:
            return self.ask("/v2/health/ready")[0] == 200
        except OSError:
            return False


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    with ExitStack() as running:
        reader = Reader(tmp_path_factory.mktemp("page"))
        running.callback(reader.close)
        commands = reader.commands("Start")
        install, *start = commands[: commands.index("envoy -c /etc/envoy/envoy.yaml") + 1]
        assert install == f"pip install {ray_cluster.PACKAGE.replace('[serve]', '')}"
        reader.run(install)
        for command in start:
            reader.run(command)
        page = Page(reader)
        assert eventually(page.is_up, WAIT_S) and page.over_http() is page.over_grpc() is None
        yield page


def command(page, word):
    """The page's command for this, after the start."""
    (found,) = [line for line in page.reader.commands("Start") if f"fleet.py {word}" in line and "addresses" not in line]
    return found


def test_no_answer_is_lost_when_a_server_is_killed(page):
    assert eventually(lambda: page.ready(2), WAIT_S)
    with load(page.over_http) as errors, load(page.over_grpc) as more:
        name, server = next(iter(page.reader.servers().items()))
        os.kill(server["pid"], signal.SIGKILL)
        assert eventually(lambda: page.ready(2, without=[name]), WAIT_S)
    assert errors == more == []


def test_servers_come_with_requests_that_wait_and_go_a_minute_later(page):
    scale = command(page, "scale")
    least, most, _ = map(int, scale.rpartition(" ")[2].split(","))
    with load(page.over_http) as errors:
        with load(lambda: page.over_grpc(MANY)) as more:
            page.reader.run(scale)
            assert eventually(lambda: page.ready(most), WAIT_S)
            # One of those that came, and that the load needs.
            name, server = list(page.reader.servers().items())[-1]
            os.kill(server["pid"], signal.SIGKILL)
            assert eventually(lambda: page.ready(most, without=[name]), WAIT_S)
        assert more == []
    # Of a single client, no request waits.
    with load(page.over_http, workers=1) as later:
        assert eventually(lambda: page.ready(least), WAIT_S)
    assert errors == later == []


def test_no_answer_is_lost_in_a_rolling_update(page):
    before = page.reader.servers()
    with load(page.over_http) as errors, load(page.over_grpc) as more:
        page.reader.run(command(page, "update"))
        # Their number follows the load meanwhile.
        assert eventually(lambda: page.ready(None, without=before), WAIT_S)
    assert errors == more == []


def test_the_end_leaves_no_process(page):
    servers = [server["pid"] for server in page.reader.servers().values()]
    page.reader.run(command(page, "stop"))
    assert not [pid for pid in servers if os.path.exists(f"/proc/{pid}")]
    # Envoy goes on with the addresses that it has.
    assert page.ask("/v2/health/ready")[0] == 503
    members = page.reader.processes()
    assert members
    page.reader.run("ray stop")
    assert eventually(lambda: not [pid for pid in members if os.path.exists(f"/proc/{pid}")])

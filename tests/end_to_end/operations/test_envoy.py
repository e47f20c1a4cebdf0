"""Envoy before several servers, with the configuration of deploy/envoy: shares by load, and servers that come and go."""

import json
import re
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection, HTTPException

import numpy as np
import pytest
import tritonclient.grpc

import envoy
import nereid_server
from http_requests import LIMIT_S, tensor
from model_files import write_identity
from scrapes import Scrape
from waiting import eventually

SERVERS = envoy.CONFIG.parent / "servers"
BODY = json.dumps({"inputs": [tensor("INPUT0", "INT32", [1], [7])]})
WORKERS = 6


def address_file(protocol, ports):
    """The file with the servers for a protocol, as deploy/envoy has it, for servers on these ports, by their names."""
    lines = (SERVERS / f"{protocol}.yaml").read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if "- endpoint:" in line)
    assert all("192.0.2.1" in line or "nereid-1" in line for line in lines[first : first + 2])
    for name, port in ports.items():
        address = re.sub(r"192\.0\.2\.1, port_value: \d+", f"127.0.0.1, port_value: {port}", lines[first])
        lines += [address, lines[first + 1].replace("nereid-1", name)]
    return "\n".join(lines[:first] + lines[first + 6 :]) + "\n"


class Fleet:
    """Servers behind Envoy."""

    def __init__(self, servers, folder, http_port, grpc_port):
        self.servers = servers
        self._folder = folder
        self.http_port = http_port
        self.client = tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{grpc_port}")

    def announce(self, servers):
        """Tells Envoy the servers, by their names."""
        write_addresses(self._folder, servers)

    def request(self, method, path, body=None, headers=None):
        """A request to Envoy: its status and body."""
        connection = HTTPConnection("127.0.0.1", self.http_port, timeout=LIMIT_S)
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def over_http(self):
        """One inference over HTTP: the error, if there is one."""
        try:
            status, body = self.request("POST", "/v2/models/same/infer", BODY)
            return None if status == 200 else (status, body)
        except (OSError, HTTPException) as error:
            return error

    def over_grpc(self):
        """One inference over gRPC: the error, if there is one."""
        numbers = tritonclient.grpc.InferInput("INPUT0", [1], "INT32")
        numbers.set_data_from_numpy(np.array([7], np.int32))
        try:
            answer = self.client.infer("same", [numbers], client_timeout=LIMIT_S).as_numpy("OUTPUT0").tolist()
            return None if answer == [7] else answer
        except tritonclient.grpc.InferenceServerException as error:
            return error

    def answered(self):
        """How many requests each server has answered."""
        counts = (Scrape(server).value("nv_inference_request_success", model="same", version="1") for server in self.servers)
        return np.array(list(counts))

    def shares(self, count):
        """The share of each server in the next `count` requests."""
        before = self.answered()
        assert eventually(lambda: (self.answered() - before).sum() >= count)
        answered = self.answered() - before
        return answered / answered.sum()

    def names(self, headers=None):
        """The names of the servers that answer several requests in a row."""
        try:
            answers = [self.request("GET", "/v2", headers=headers) for _ in range(12)]
            return {json.loads(body)["name"] for _, body in answers}
        except (OSError, HTTPException, ValueError):
            return set()

    def names_over_grpc(self):
        """The same over gRPC."""
        return {self.client.get_server_metadata().name for _ in range(12)}


def write_addresses(folder, servers):
    """Replaces the files with the addresses, each in one step."""
    for protocol, ports in [
        ("http", {name: server.port for name, server in servers.items()}),
        ("grpc", {name: server.grpc_port for name, server in servers.items()}),
    ]:
        new = folder / f".{protocol}.yaml"
        new.write_text(address_file(protocol, ports))
        new.rename(folder / f"{protocol}.yaml")


@pytest.fixture
def fleet(tmp_path):
    """Starts servers whose models take so many milliseconds, and Envoy before them."""
    with ExitStack() as running:

        def start(*delays):
            servers = []
            for number, delay in enumerate(delays, 1):
                repository = tmp_path / f"models{number}"
                repository.mkdir()
                write_identity(repository, "same", ["INT32"], execute_delay_ms=delay)
                how = nereid_server.running(repository, "--load-reports=always", "--log-requests=true", f"--id=server-{number}")
                servers.append(running.enter_context(how))
            folder = tmp_path / "servers"
            folder.mkdir()
            write_addresses(folder, {f"server-{number}": server for number, server in enumerate(servers, 1)})
            http_port, grpc_port = running.enter_context(envoy.running(folder))
            fleet = Fleet(servers, folder, http_port, grpc_port)
            running.enter_context(fleet.client)
            assert eventually(lambda: len(fleet.names()) == len(delays) and fleet.over_grpc() is None)
            return fleet

        yield start


@contextmanager
def load(request):
    """Repeats a request in several threads; gives the errors, which are complete at the end."""
    stop, errors = threading.Event(), []

    def work():
        while not stop.is_set():
            if (error := request()) is not None:
                errors.append(error)

    with ThreadPoolExecutor(WORKERS) as pool:
        workers = [pool.submit(work) for _ in range(WORKERS)]
        try:
            yield errors
        finally:
            stop.set()
    for worker in workers:
        worker.result()


@pytest.mark.parametrize("protocol", ["over_http", "over_grpc"])
def test_a_slow_server_gets_a_smaller_share(fleet, protocol):
    fleet = fleet(4, 4, 60)
    with load(getattr(fleet, protocol)) as errors:
        # Without reports it would get one in three.
        assert eventually(lambda: fleet.shares(60)[2] < 0.2), fleet.shares(60)
    assert errors == []


@pytest.mark.parametrize("protocol", ["over_http", "over_grpc"])
@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM])
def test_no_answer_is_lost_when_a_server_ends(fleet, protocol, ending):
    fleet = fleet(5, 5, 5)
    with load(getattr(fleet, protocol)) as errors:
        assert eventually(lambda: fleet.answered().min() > 10)
        ended = fleet.servers.pop()
        if ending == signal.SIGTERM:
            ended.terminate()
            assert ended.wait_for_exit() == 0
        else:
            ended.kill()
        before = fleet.answered()
        assert eventually(lambda: (fleet.answered() - before).min() > 50)
    assert errors == []


@pytest.mark.parametrize("protocol, pause_s", [("over_http", 0), ("over_grpc", 0.2), ("over_http", 2.5)])
def test_no_answer_is_lost_when_two_of_three_die_in_turn(fleet, protocol, pause_s):
    fleet = fleet(5, 5, 5)
    with load(getattr(fleet, protocol)) as errors:
        assert eventually(lambda: fleet.answered().min() > 10)
        fleet.servers.pop().kill()
        time.sleep(pause_s)
        fleet.servers.pop().kill()
        before = fleet.answered()
        assert eventually(lambda: (fleet.answered() - before).min() > 300)
    assert errors == []


def test_large_requests_are_sent_again(fleet):
    fleet = fleet(5, 5, 5)
    numbers = [7] * 400_000
    body = json.dumps({"inputs": [tensor("INPUT0", "INT32", [len(numbers)], numbers)], "outputs": []})
    # Envoy's own limit for what it can send again is 1 MiB.
    assert len(body) > 1.1 * (1 << 20)

    def request():
        try:
            status, answer = fleet.request("POST", "/v2/models/same/infer", body)
            return None if status == 200 else (status, answer[:200])
        except (OSError, HTTPException) as error:
            return error

    with load(request) as errors:
        assert eventually(lambda: fleet.answered().min() > 2)
        fleet.servers.pop().kill()
        before = fleet.answered()
        assert eventually(lambda: (fleet.answered() - before).min() > 5)
    assert errors == []


def test_envoy_follows_the_files_with_the_addresses(fleet):
    fleet = fleet(0, 0, 0)
    servers = {f"server-{number}": server for number, server in enumerate(fleet.servers, 1)}
    for names in [{"server-1"}, {"server-2", "server-3"}, {"server-1", "server-2", "server-3"}, {"server-3"}]:
        with load(fleet.over_http) as errors, load(fleet.over_grpc) as more:
            fleet.announce({name: servers[name] for name in sorted(names)})
            assert eventually(lambda: fleet.names() == names), (names, fleet.names())
            assert eventually(lambda: fleet.names_over_grpc() == names), (names, fleet.names_over_grpc())
        assert errors == [] and more == []


def test_a_server_that_comes_back_is_used_again(fleet, tmp_path):
    fleet = fleet(0, 0, 0)
    ended = fleet.servers.pop()
    ended.kill()
    assert eventually(lambda: fleet.names() == {"server-1", "server-2"})
    flags = ["--load-reports=always", "--id=server-3", f"--http-port={ended.port}", f"--grpc-port={ended.grpc_port}"]
    with nereid_server.running(tmp_path / "models3", *flags):
        with load(fleet.over_http) as errors:
            assert eventually(lambda: "server-3" in fleet.names())
        assert errors == []


def test_the_requests_of_a_sequence_reach_one_server(fleet):
    fleet = fleet(0, 0, 0)
    places = {}
    for sequence in map(str, range(20)):
        headers = {"x-sequence-id": sequence}
        (name,) = fleet.names(headers)
        for _ in range(4):
            assert fleet.client.get_server_metadata(headers=headers).name == name
        places[sequence] = name
    assert set(places.values()) == {"server-1", "server-2", "server-3"}


def test_conversations_with_models_of_text_stay_with_a_server_and_outlive_it(fleet):
    fleet = fleet(0, 0, 0)

    def place(session):
        """The server that answers requests of a conversation, by how many it has answered."""
        before = requests(fleet)
        for _ in range(5):
            status, _ = fleet.request("POST", "/v1/chat/completions", "{}", {"x-session-id": session})
            assert status == 400
        # Requests are logged after their answers.
        assert eventually(lambda: (requests(fleet) - before).sum() == 5)
        return (requests(fleet) - before).tolist()

    places = {session: place(session) for session in map(str, range(12))}
    assert all(sorted(counts) == [0, 0, 5] for counts in places.values())
    assert np.sum([*places.values()], axis=0).min() > 0
    # Nothing of a conversation is in the server only.
    session = next(session for session, counts in places.items() if counts[2])
    fleet.servers[2].kill()
    for _ in range(10):
        assert fleet.request("POST", "/v1/chat/completions", "{}", {"x-session-id": session})[0] == 400


def requests(fleet):
    """How many requests to OpenAI's routes each server has logged."""
    return np.array([server.log.count("HTTP POST /v1/chat/completions") for server in fleet.servers])

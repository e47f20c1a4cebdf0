"""Envoy before several servers, with the configuration of deploy/envoy: shares by load, and servers that come and go."""

import json
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from http.client import HTTPException

import numpy as np
import pytest

import envoy
import fleets
import nereid_server
from fleets import CHATS, chats, load
from http_requests import tensor
from waiting import eventually


@contextmanager
def balancer(folder, servers):
    """Envoy before these servers: its ports, and what announces others."""
    folder = folder / "servers"
    folder.mkdir()
    envoy.write_addresses(folder, servers)
    with envoy.running(folder) as ports:
        yield *ports, partial(envoy.write_addresses, folder)


@pytest.fixture
def fleet(tmp_path):
    """Starts servers whose models take so many milliseconds, and Envoy before them."""
    with ExitStack() as running:
        yield lambda *delays: running.enter_context(fleets.running(tmp_path, balancer, *delays))


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


@pytest.mark.parametrize("protocol", ["over_http", "over_grpc"])
def test_sequences_have_their_state_while_another_server_is_killed(fleet, protocol):
    fleet = fleet(5, 5, 5)
    sequences, last = range(1, 31), 20
    with ThreadPoolExecutor(len(sequences)) as clients:
        begun = [*clients.map(lambda sequence: fleet.step(sequence, 0, last, protocol), sequences)]
        assert begun == [None] * len(sequences)
        places = {sequence: fleet.names({"x-sequence-id": str(sequence)}) for sequence in sequences}
        assert set.union(*places.values()) == {"server-1", "server-2", "server-3"}
        fleet.servers.pop().kill()
        stay = [sequence for sequence, names in places.items() if names != {"server-3"}]

        def follow(sequence):
            return [error for number in range(1, last + 1) if (error := fleet.step(sequence, number, last, protocol))]

        # Nothing is repeated, and nothing moves.
        assert [*clients.map(follow, stay)] == [[]] * len(stay)
        # Those of the server that is gone begin again, once it is known to be.
        for sequence in places.keys() - set(stay):
            assert eventually(lambda sequence=sequence: fleet.step(sequence, 0, 0, protocol) is None)


def test_conversations_with_models_of_text_stay_with_a_server_and_outlive_it(fleet):
    fleet = fleet(0, 0, 0)

    def place(session):
        """The server that answers requests of a conversation, by how many it has answered."""
        before = chats(fleet)
        for number in range(5):
            status, _ = fleet.request("POST", CHATS[number % 2], "{}", {"x-session-id": session})
            assert status == 400
        # Requests are logged after their answers.
        assert eventually(lambda: (chats(fleet) - before).sum() == 5)
        return (chats(fleet) - before).tolist()

    places = {session: place(session) for session in map(str, range(12))}
    assert all(sorted(counts) == [0, 0, 5] for counts in places.values())
    assert np.sum([*places.values()], axis=0).min() > 0
    # Nothing of a conversation is in the server only.
    session = next(session for session, counts in places.items() if counts[2])
    fleet.servers[2].kill()
    for number in range(10):
        assert fleet.request("POST", CHATS[number % 2], "{}", {"x-session-id": session})[0] == 400

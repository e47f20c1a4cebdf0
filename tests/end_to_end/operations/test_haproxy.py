"""HAProxy before several servers, with the configuration of deploy/haproxy: shares by load, and servers that come and go."""

import json
import queue
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from http.client import HTTPConnection, HTTPException

import numpy as np
import pytest
import tritonclient.grpc

import fleets
import haproxy
import nereid_server
from fleets import BODY, load
from gates import Gate
from http_requests import LIMIT_S, tensor
from model_files import write_identity
from waiting import eventually

# HAProxy does not read gRPC's statuses, so clients repeat what a stopping server refuses.
RETRIES = {
    "methodConfig": [
        {
            "name": [{}],
            "retryPolicy": {
                "maxAttempts": 5,
                "initialBackoff": "0.1s",
                "maxBackoff": "1s",
                "backoffMultiplier": 2,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ]
}


@pytest.fixture
def fleet(tmp_path):
    """Starts servers whose models take so many milliseconds, and HAProxy before them."""
    with ExitStack() as running:
        yield lambda *delays: running.enter_context(fleets.running(tmp_path, haproxy.running, *delays))


@pytest.mark.parametrize("protocol", ["over_http", "over_grpc"])
def test_a_slow_server_gets_a_smaller_share(fleet, protocol):
    fleet = fleet(4, 4, 60)
    with load(getattr(fleet, protocol)) as errors:
        assert eventually(lambda: fleet.shares(60)[2] < 0.2), fleet.shares(60)
    assert errors == []


@pytest.mark.parametrize("protocol", ["over_http", "over_grpc"])
@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM])
def test_no_answer_is_lost_when_a_server_ends(fleet, protocol, ending):
    fleet = fleet(5, 5, 5)
    request = fleet.over_http
    client = tritonclient.grpc.InferenceServerClient(
        fleet.grpc_url, channel_args=[("grpc.service_config", json.dumps(RETRIES)), ("grpc.enable_retries", 1)]
    )
    if protocol == "over_grpc":
        request = partial(fleet.over_grpc, client)
    with client, load(request) as errors:
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


@pytest.mark.parametrize("protocol, at_once", [("over_http", True), ("over_http", False), ("over_grpc", False)])
def test_no_answer_is_lost_when_two_of_three_die_in_turn(fleet, protocol, at_once):
    fleet = fleet(5, 5, 5)
    with load(getattr(fleet, protocol)) as errors:
        assert eventually(lambda: fleet.answered().min() > 10)
        fleet.servers.pop().kill()
        if not at_once:
            before = fleet.answered()
            assert eventually(lambda: (fleet.answered() - before).min() > 50)
        fleet.servers.pop().kill()
        before = fleet.answered()
        assert eventually(lambda: (fleet.answered() - before).min() > 300)
    assert errors == []


def over_http(fleet, count):
    """One inference of so many numbers over HTTP: the error, if there is one."""
    numbers = [7] * count
    body = json.dumps({"inputs": [tensor("INPUT0", "INT32", [count], numbers)], "outputs": [{"name": "OUTPUT0"}]})
    try:
        status, answer = fleet.request("POST", "/v2/models/same/infer", body)
        return None if status == 200 and json.loads(answer)["outputs"][0]["data"] == numbers else (status, answer[:200])
    except (OSError, HTTPException) as error:
        return error


def test_large_requests_are_sent_again(fleet):
    fleet = fleet(5, 5, 5)
    # HAProxy's own limit for what it can send again is 16 KiB.
    with load(partial(over_http, fleet, 300_000)) as errors:
        assert eventually(lambda: fleet.answered().min() > 2)
        fleet.servers.pop().kill()
        before = fleet.answered()
        assert eventually(lambda: (fleet.answered() - before).min() > 5)
    assert errors == []


def test_requests_larger_than_the_buffer_are_answered(fleet):
    fleet = fleet(0, 0)
    assert [over_http(fleet, count) for count in (349_000, 350_000, 3_000_000)] == [None] * 3
    numbers = np.arange(2_000_000, dtype=np.int32)
    large = tritonclient.grpc.InferInput("INPUT0", numbers.shape, "INT32")
    large.set_data_from_numpy(numbers)
    assert np.array_equal(fleet.client.infer("same", [large], client_timeout=LIMIT_S).as_numpy("OUTPUT0"), numbers)


def test_no_request_fails_while_the_addresses_change(fleet):
    fleet = fleet(1, 1, 1)
    servers = {f"server-{number}": server for number, server in enumerate(fleet.servers, 1)}
    connections: queue.SimpleQueue[HTTPConnection] = queue.SimpleQueue()

    def over_kept_connection():
        """One inference over a connection that is kept."""
        try:
            connection = connections.get_nowait()
        except queue.Empty:
            connection = HTTPConnection("127.0.0.1", fleet.http_port, timeout=LIMIT_S)
        try:
            connection.request("POST", "/v2/models/same/infer", BODY)
            response = connection.getresponse()
            body = response.read()
        except (OSError, HTTPException) as error:
            return error
        connections.put(connection)
        return None if response.status == 200 else (response.status, body)

    for names in [{"server-1"}, {"server-2", "server-3"}, {"server-1", "server-2", "server-3"}, {"server-3"}]:
        with load(fleet.over_http) as errors, load(over_kept_connection) as kept, load(fleet.over_grpc) as more:
            fleet.announce({name: servers[name] for name in sorted(names)})
            assert eventually(lambda: fleet.names() == names), (names, fleet.names())
            assert eventually(lambda: fleet.names_over_grpc() == names), (names, fleet.names_over_grpc())
        assert errors == [] and kept == [] and more == []


def test_a_server_that_comes_back_is_used_again(fleet, tmp_path):
    fleet = fleet(0, 0, 0)
    ended = fleet.servers.pop()
    ended.kill()
    assert eventually(lambda: fleet.names() == {"server-1", "server-2"})
    flags = ["--id=server-3", f"--http-port={ended.port}", f"--grpc-port={ended.grpc_port}"]
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
    # Other sequences stay where they are when a server leaves.
    fleet.announce({f"server-{number}": fleet.servers[number - 1] for number in (1, 3)})
    assert eventually(lambda: fleet.names() == {"server-1", "server-3"})
    for sequence, name in places.items():
        found = fleet.names({"x-sequence-id": sequence})
        assert found == {name} if name != "server-2" else len(found) == 1


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
        before = fleets.chats(fleet)
        for number in range(5):
            status, _ = fleet.request("POST", fleets.CHATS[number % 2], "{}", {"x-session-id": session})
            assert status == 400
        # Requests are logged after their answers.
        assert eventually(lambda: (fleets.chats(fleet) - before).sum() == 5)
        return (fleets.chats(fleet) - before).tolist()

    places = {session: place(session) for session in map(str, range(12))}
    assert all(sorted(counts) == [0, 0, 5] for counts in places.values())
    assert np.sum([*places.values()], axis=0).min() > 0
    # Nothing of a conversation is in the server only.
    session = next(session for session, counts in places.items() if counts[2])
    fleet.servers[2].kill()
    for number in range(10):
        assert fleet.request("POST", fleets.CHATS[number % 2], "{}", {"x-session-id": session})[0] == 400


def test_a_stream_passes_each_message_when_it_is_there(tmp_path):
    with Gate() as gate, ExitStack() as running:
        repository = tmp_path / "models"
        repository.mkdir()
        write_identity(repository, "same", ["INT32"])
        write_identity(repository, "held", ["INT32"], gate=gate.path)
        server = running.enter_context(nereid_server.running(repository, "--id=server-1"))
        _, grpc_port, _ = running.enter_context(haproxy.running(tmp_path, {"server-1": server}))
        client = running.enter_context(tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{grpc_port}"))
        arrived: queue.SimpleQueue = queue.SimpleQueue()
        client.start_stream(lambda result, error: arrived.put((result, error)))

        def send(model, number):
            numbers = tritonclient.grpc.InferInput("INPUT0", [1], "INT32")
            numbers.set_data_from_numpy(np.array([number], np.int32))
            client.async_stream_infer(model, [numbers])

        def answer():
            result, error = arrived.get(timeout=LIMIT_S)
            assert error is None, error
            return result.as_numpy("OUTPUT0").tolist()

        # The client goes on after it has read an answer.
        for number in range(3):
            send("same", number)
            assert answer() == [number]
        # And reads an answer while its next request is executed.
        send("same", 3)
        send("held", 4)
        held = gate.entered()
        assert answer() == [3]
        held.release()
        assert answer() == [4]
        client.stop_stream()

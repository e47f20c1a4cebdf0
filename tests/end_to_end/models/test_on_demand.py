"""Models that are loaded for their requests: HTTP, gRPC and tritonclient; failures, changes, clients that leave, a crash."""

import re
import shutil
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from http_requests import LIMIT_S, assert_refused, infer, request, tensor
from model_files import write_identity
from scrapes import Scrape
from waiting import eventually

ON_DEMAND = "--model-control-mode=on-demand"
BODY = {"inputs": [tensor("INPUT0", "INT32", [2], [3, 4])]}


def entries(server, name=None):
    """The lines of the index, of a model or of all."""
    index = request(server, "POST", "/v2/repository/index").json
    return [(line.get("version"), line["state"], line.get("reason")) for line in index if name in (None, line["name"])]


def load_lines(server, name):
    """How often a version of the model was loaded."""
    return server.log.count(f"loading '{name}' version 1")


def http_answer(server, name):
    with tritonclient.http.InferenceServerClient(server.url) as client:
        value = tritonclient.http.InferInput("INPUT0", [2], "INT32")
        value.set_data_from_numpy(np.array([3, 4], np.int32))
        return list(client.infer(name, [value]).as_numpy("OUTPUT0"))


def grpc_answer(server, name, **how):
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        value = tritonclient.grpc.InferInput("INPUT0", [2], "INT32")
        value.set_data_from_numpy(np.array([3, 4], np.int32))
        return list(client.infer(name, [value], **how).as_numpy("OUTPUT0"))


def stream_answers(server, names):
    """The errors or outputs of the models, asked over one stream."""
    answers, news = [], threading.Semaphore(0)

    def take(result, error):
        answers.append(str(error) if error else (result.get_response().model_name, list(result.as_numpy("OUTPUT0"))))
        news.release()

    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        client.start_stream(take)
        for name in names:
            value = tritonclient.grpc.InferInput("INPUT0", [2], "INT32")
            value.set_data_from_numpy(np.array([3, 4], np.int32))
            client.async_stream_infer(name, [value])
        assert all(news.acquire(timeout=LIMIT_S) for _ in names)
        client.stop_stream()
    return answers


def test_every_kind_of_request_loads_its_model(repository, serve):
    for name in ("http", "grpc", "streamed", "generated", "described", "configured", "idle"):
        write_identity(repository, name, ["INT32"])
    server = serve(ON_DEMAND)
    assert server.ready_status() == 200
    assert set(entries(server)) == {(None, "UNLOADED", "loaded on demand")}
    # Clients that wait until a model is ready before they send requests would wait forever otherwise.
    assert request(server, "GET", "/v2/models/idle/ready").status == 200
    assert request(server, "GET", "/v2/models/unknown/ready").status == 400
    assert http_answer(server, "http") == grpc_answer(server, "grpc") == [3, 4]
    assert stream_answers(server, ["streamed", "http", "unknown"])[:2] == [("streamed", [3, 4]), ("http", [3, 4])]
    assert request(server, "POST", "/v2/models/generated/generate", '{"INPUT0": [3, 4]}').status == 200
    assert request(server, "GET", "/v2/models/described").json["inputs"][0]["name"] == "INPUT0"
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        assert client.get_model_config("configured").config.backend == "identity"
        assert client.is_model_ready("idle") and client.is_server_ready() and not client.is_model_ready("unknown")
    for name in ("http", "grpc", "streamed", "generated", "described", "configured"):
        assert entries(server, name) == [("1", "READY", None)]
        assert load_lines(server, name) == 1
    assert entries(server, "idle") == [(None, "UNLOADED", "loaded on demand")]
    for answer in (infer(server, "unknown", BODY), request(server, "GET", "/v2/models/unknown")):
        assert_refused(answer, 404)
    assert_refused(infer(server, "http", BODY, version=7), 404)


def test_a_model_says_so_in_its_configuration(repository, serve):
    write_identity(repository, "waits", ["INT32"], load_on_demand="true")
    write_identity(repository, "loads", ["INT32"], load_on_demand="false")
    write_identity(repository, "plain", ["INT32"])
    server = serve()
    assert server.ready_status() == 200
    assert entries(server) == [("1", "READY", None), ("1", "READY", None), ("1", "UNLOADED", "loaded on demand")]
    assert http_answer(server, "waits") == [3, 4]
    assert entries(server, "waits") == [("1", "READY", None)]


def test_concurrent_requests_cause_one_load_and_clients_may_leave(repository, serve, gate):
    write_identity(repository, "held", ["INT32"], creation_gate=gate.path)
    write_identity(repository, "other", ["INT32"])
    server = serve(ON_DEMAND)
    with ThreadPoolExecutor(32) as threads:
        asked = [threads.submit([http_answer, grpc_answer][number % 2], server, "held") for number in range(20)]
        held = gate.entered()
        # A client that leaves, and another whose deadline passes, while the others wait.
        with socket.create_connection(("127.0.0.1", server.port)) as leaving:
            leaving.sendall(b"POST /v2/models/held/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
        with pytest.raises(InferenceServerException, match=r"Deadline|is still being loaded"):
            grpc_answer(server, "held", client_timeout=0.2)
        late = infer(server, "held", {**BODY, "parameters": {"timeout": 100_000}})
        assert_refused(late, 503)
        assert int(late.headers["Retry-After"]) >= 1
        assert http_answer(server, "other") == [3, 4]
        assert entries(server, "held") == [("1", "LOADING", None)]
        held.release()
        assert [future.result(LIMIT_S) for future in asked] == [[3, 4]] * 20
    assert load_lines(server, "held") == 1


@pytest.fixture
def broken(repository):
    """The configuration of a model that cannot be loaded, and what it should say."""
    write_identity(repository, "broken", ["INT32"])
    config = repository / "broken" / "config.pbtxt"
    good = config.read_text()
    config.write_text(good.replace('"OUTPUT0"', '"OUTPUT9"'))
    return config, good


def test_a_failed_load_is_reported_to_all_and_not_tried_again_within_the_pause(serve, broken):
    config, good = broken
    server = serve(ON_DEMAND, "--on-demand-retry-secs=300")
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: infer(server, "broken", BODY), range(8)))
    for answer in answers:
        assert_refused(answer, 503)
        assert "OUTPUT" in answer.json["error"] and 1 <= int(answer.headers["Retry-After"]) <= 300
    with pytest.raises(InferenceServerException, match="could not be loaded"):
        grpc_answer(server, "broken")
    assert server.ready_status() == 200
    assert request(server, "GET", "/v2/models/broken/ready").status == 400
    attempts = load_lines(server, "broken")
    config.write_text(good)
    assert_refused(infer(server, "broken", BODY), 503)
    assert load_lines(server, "broken") == attempts == 1


def test_a_failed_load_is_tried_again_after_the_pause(serve, broken):
    config, good = broken
    server = serve(ON_DEMAND, "--on-demand-retry-secs=1")
    assert_refused(infer(server, "broken", BODY), 503)
    config.write_text(good)
    assert eventually(lambda: infer(server, "broken", BODY).status == 200)
    assert load_lines(server, "broken") == 2
    assert request(server, "GET", "/v2/models/broken/ready").status == 200


def test_requests_do_not_wait_longer_than_the_server_lets_them(repository, serve, gate):
    write_identity(repository, "held", ["INT32"], creation_gate=gate.path)
    server = serve(ON_DEMAND, "--on-demand-wait-secs=0")
    answer = infer(server, "held", BODY)
    assert_refused(answer, 503)
    assert answer.headers["Retry-After"] == "1"
    # It is loaded for the next request.
    gate.entered().release()
    assert eventually(lambda: infer(server, "held", BODY).status == 200)
    assert load_lines(server, "held") == 1


def test_files_may_change_at_any_time(repository, serve):
    write_identity(repository, "m", ["INT32"])
    server = serve(ON_DEMAND, "--repository-poll-secs=1")
    assert http_answer(server, "m") == [3, 4]
    # A loaded model follows its files.
    shutil.copytree(repository / "m" / "1", repository / "m" / "2")
    assert eventually(lambda: ("2", "READY", None) in entries(server, "m"))
    # One that was unloaded is loaded as it is then.
    assert request(server, "POST", "/v2/repository/models/m/unload").status == 200
    assert eventually(lambda: {state for _, state, _ in entries(server, "m")} == {"UNLOADED"})
    shutil.copytree(repository / "m" / "1", repository / "m" / "3")
    assert http_answer(server, "m") == [3, 4]
    assert ("3", "READY", None) in entries(server, "m")
    # New models are found, and removed ones forgotten.
    write_identity(repository, "new", ["INT32"])
    assert eventually(lambda: infer(server, "new", BODY).status == 200)
    shutil.rmtree(repository / "m")
    assert eventually(lambda: infer(server, "m", BODY).status == 404)
    assert eventually(lambda: entries(server, "m") == [])


def test_a_crash_in_the_middle_of_loads_leaves_nothing_behind(repository, serve):
    for number in range(30):
        write_identity(repository, f"m{number}", ["INT32"])
    server = serve(ON_DEMAND)

    def ask(number):
        try:
            return infer(server, f"m{number % 30}", BODY).status
        except OSError:
            return None

    with ThreadPoolExecutor(16) as threads:
        asked = [threads.submit(ask, number) for number in range(300)]
        assert eventually(lambda: "loading 'm3' version 1" in server.log)
        server.kill()
        outcomes = {future.result(LIMIT_S) for future in asked}
    assert outcomes <= {200, None}
    again = serve(ON_DEMAND)
    with ThreadPoolExecutor(16) as threads:
        began = time.monotonic()
        statuses = list(threads.map(lambda number: infer(again, f"m{number}", BODY).status, range(30)))
    assert statuses == [200] * 30 and time.monotonic() - began < LIMIT_S


def test_a_hundred_models_share_the_room_of_ten(repository, serve):
    for number in range(100):
        write_identity(repository, f"m{number}", ["INT32"], memory_byte_size="1000000")
    server = serve(
        ON_DEMAND, "--model-memory-budget=10500000", "--model-max-evictions-per-minute=100000", "--model-memory-directory=none"
    )
    most, wrong = 0, []

    def client(seed):
        random = np.random.default_rng(seed)
        refused = 0
        for rank in random.zipf(1.3, 60):
            number = int(rank - 1) % 100
            body = {"inputs": [tensor("INPUT0", "INT32", [2], [number, seed])]}
            answer = infer(server, f"m{number}", body)
            if answer.status == 503:
                assert int(answer.headers["Retry-After"]) >= 1
                refused += 1
            elif answer.json["model_name"] != f"m{number}" or answer.json["outputs"][0]["data"] != [number, seed]:
                wrong.append(answer)
        return refused

    with ThreadPoolExecutor(8) as threads:
        clients = [threads.submit(client, seed) for seed in range(8)]
        while not all(future.done() for future in clients):
            most = max(most, sum(state == "READY" for _, state, _ in entries(server)))
        refused = sum(future.result(LIMIT_S) for future in clients)
    assert not wrong and 8 <= most <= 10 and refused <= 48
    assert "leaves the memory (1.0 MB) to make room for" in server.log
    assert server.ready_status() == 200
    counted = re.findall(r'nereid_model_memory_bytes\{.*kind="budget"\} (\d+)', Scrape(server).text)
    assert 8 <= len(counted) <= 10 and set(counted) == {"1000000"}


def test_idle_models_leave_and_kept_ones_stay(repository, serve):
    write_identity(repository, "idle", ["INT32"])
    write_identity(repository, "kept", ["INT32"], keep_loaded="true")
    write_identity(repository, "never", ["INT32"], idle_timeout_secs="0")
    server = serve("--model-idle-timeout=1")
    # All are loaded at the start.
    server.wait_for_log("successfully loaded 'idle' version 1")
    assert eventually(lambda: entries(server, "idle") == [("1", "UNLOADED", "loaded on demand")])
    assert entries(server, "kept") == entries(server, "never") == [("1", "READY", None)]
    assert server.ready_status() == 200
    assert http_answer(server, "idle") == [3, 4]


def test_competing_models_are_named_in_the_log(repository, serve):
    for name in ("a", "b"):
        write_identity(repository, name, ["INT32"], memory_byte_size="1000")
    server = serve(ON_DEMAND, "--model-memory-budget=1500", "--model-max-evictions-per-minute=2", "--model-memory-directory=none")
    for name in ("a", "b", "a"):
        assert http_answer(server, name) == [3, 4]
    answer = infer(server, "b", BODY)
    assert_refused(answer, 503)
    assert int(answer.headers["Retry-After"]) > 10
    assert "2 models left the memory within a minute, most of all 'a' 1 times, 'b' 1 times" in server.log
    assert http_answer(server, "a") == [3, 4]


def write_scheduled(repository, name, schedule, **more):
    write_identity(repository, name, ["INT32"], load_schedule=schedule, **more)


def test_a_model_is_there_at_its_time_before_any_request(repository, serve):
    write_scheduled(repository, "always", "* * * * *", load_schedule_keep="2m", idle_timeout_secs="1")
    write_scheduled(repository, "seldom", "30 2 29 2 * Europe/Berlin")
    server = serve()
    server.wait_for_log(r"loading 'always' by its schedule")
    assert eventually(lambda: [state for _, state, _ in entries(server, "always")] == ["READY"])
    ((version, state, reason),) = entries(server, "seldom")
    pattern = r"loaded on demand, by its schedule next at (2028|2032)-02-29 02:30 Europe/Berlin"
    assert (version, state) == ("1", "UNLOADED") and re.fullmatch(pattern, reason), reason
    server.wait_for_log(r"'seldom' is loaded by its schedule, next at 20")
    assert http_answer(server, "always") == http_answer(server, "seldom") == [3, 4]
    assert load_lines(server, "always") == 1


@pytest.mark.parametrize(
    "schedule, keep, words",
    [
        ("8:00", None, "parameter 'load_schedule' is '8:00', but must be five fields as in cron"),
        ("0 25 * * *", None, "but must be five fields as in cron: "),
        ("0 8 * * * Mars/Olympus", None, "a time zone that this machine knows"),
        ("0 0 31 6 *", None, "a schedule with a time that comes"),
        ("0 8 * * *", "forever", "parameter 'load_schedule_keep' is 'forever', but must be a duration from 1m to 168h"),
        (None, "1h", "parameter 'load_schedule_keep' has no effect without 'load_schedule'"),
    ],
)
def test_wrong_schedules_fail_the_load_with_what_would_be_right(repository, serve, schedule, keep, words):
    given = {"load_schedule": schedule, "load_schedule_keep": keep}
    write_identity(repository, "m", ["INT32"], **{key: value for key, value in given.items() if value is not None})
    write_identity(repository, "other", ["INT32"])
    server = serve("--exit-on-error=false", "--strict-readiness=false")
    ((_, state, reason),) = entries(server, "m")
    assert state == "UNAVAILABLE" and words in reason, reason
    assert http_answer(server, "other") == [3, 4]

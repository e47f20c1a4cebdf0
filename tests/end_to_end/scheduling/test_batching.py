"""Scheduling as clients see it: batches, priorities, queue policies, limits.

A gate holds the execution that the others have to wait for, so that nothing here depends on how long something takes.
"""

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.http
from tritonclient.utils import InferenceServerException

from http_requests import LIMIT_S
from model_files import config, write_model
from scrapes import Scrape
from waiting import eventually

DYNAMIC = "dynamic_batching { preferred_batch_size: 4 %s }"


def slow(repository, *extra, name="slow", gate=None, delay_ms=0, dims=(1,)):
    """A model whose executions wait at a gate, or are delayed."""
    given = {"gate": gate.path} if gate else {"execute_delay_ms": delay_ms}
    lines = [f'parameters {{ key: "{key}" value: {{ string_value: "{value}" }} }}' for key, value in given.items()]
    tensors = ([("INPUT0", "INT32", list(dims))], [("OUTPUT0", "INT32", list(dims))])
    text = config(name, "identity", *tensors, 4, "\n".join([*lines, *extra]))
    if any("instance_group" in line for line in extra):
        text = text.replace("instance_group { count: 1 kind: KIND_CPU }\n", "", 1)
    write_model(repository, name, text)
    return name


class Crowd:
    """Clients that send requests at the same time, each over its own connection."""

    def __init__(self, server, model="slow"):
        self._server, self._model = server, model
        self._pool = ThreadPoolExecutor(32)
        # The order in which answers came, and of what.
        self.order = []

    def ask(self, value, **parameters):
        """Sends a request, without waiting for the answer."""
        return self._pool.submit(self._ask, value, parameters)

    def _ask(self, value, parameters):
        with tritonclient.http.InferenceServerClient(self._server.url, network_timeout=60) as client:
            tensor = tritonclient.http.InferInput("INPUT0", [1, 1], "INT32")
            tensor.set_data_from_numpy(np.array([[value]], np.int32))
            try:
                answer = client.infer(self._model, [tensor], **parameters).as_numpy("OUTPUT0")[0][0]
            finally:
                self.order.append(value)
            assert answer == value
            return answer

    def statistics(self):
        """The model's statistics now."""
        with tritonclient.http.InferenceServerClient(self._server.url) as client:
            return client.get_inference_statistics(self._model)["model_stats"][0]

    def executing(self, gate, value=0):
        """Sends a request and waits until it executes, so that the next ones have to wait."""
        asked = self.ask(value)
        gate.entered()
        return asked

    def wait_for_pending(self, count):
        """Waits until this many requests are in the queue."""
        assert eventually(lambda: Scrape(self._server).pending(self._model) == count), Scrape(self._server).text

    def release_each(self, gate, first, count):
        """Releases the first execution and then `count` more, each when the one before is answered."""
        gate.release_all()
        first.result(LIMIT_S)
        for answered in range(2, count + 2):
            gate.entered().release()
            assert eventually(lambda: len(self.order) == answered)


def sizes(statistics):
    return {batch["batch_size"]: batch["compute_infer"]["count"] for batch in statistics["batch_stats"]}


def failure(future):
    with pytest.raises(InferenceServerException) as caught:
        future.result(60)
    return caught.value.status()


def test_requests_that_meet_in_the_queue_share_an_execution(repository, serve, gate):
    slow(repository, DYNAMIC % "", gate=gate)
    crowd = Crowd(serve())
    first = crowd.executing(gate)
    others = [crowd.ask(value) for value in range(1, 5)]
    crowd.wait_for_pending(4)
    gate.open()
    for value, future in enumerate([first, *others]):
        assert future.result(60) == value
    statistics = crowd.statistics()
    assert (statistics["inference_count"], statistics["execution_count"]) == (5, 2)
    assert sizes(statistics) == {1: 1, 4: 1}
    assert statistics["inference_stats"]["success"]["count"] == 5
    assert statistics["inference_stats"]["queue"]["ns"] > 0
    assert set(statistics["inference_stats"]) == {
        "success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss",
    }  # fmt: skip
    assert (statistics["response_stats"], statistics["memory_usage"]) == ({}, [])


def test_without_dynamic_batching_each_is_executed_by_itself(repository, serve, gate):
    slow(repository, gate=gate)
    crowd = Crowd(serve())
    futures = [crowd.executing(gate), *(crowd.ask(value) for value in range(1, 5))]
    crowd.wait_for_pending(4)
    gate.open()
    for future in futures:
        future.result(60)
    assert sizes(crowd.statistics()) == {1: 5}


def test_a_batch_waits_for_more_requests(repository, serve):
    slow(repository, DYNAMIC % "max_queue_delay_microseconds: 3600000000", name="hour")
    slow(repository, DYNAMIC % "max_queue_delay_microseconds: 500000", name="moment")
    server = serve()
    hour, moment = Crowd(server, "hour"), Crowd(server, "moment")
    for future in [hour.ask(value) for value in range(4)]:
        future.result(60)
    # Complete: it does not wait until the time is over.
    assert sizes(hour.statistics()) == {4: 1}
    start = time.monotonic()
    moment.ask(9).result(60)
    assert time.monotonic() - start >= 0.5
    assert sizes(moment.statistics()) == {1: 1}


def test_urgent_requests_are_answered_first(repository, serve, gate):
    levels = "preferred_batch_size: 1 priority_levels: 3 default_priority_level: 2"
    slow(repository, "dynamic_batching { %s }" % levels, gate=gate)
    crowd = Crowd(serve())
    first = crowd.executing(gate)
    for count, (value, priority) in enumerate(((3, 3), (2, 0), (1, 1)), 1):
        crowd.ask(value, priority=priority)
        crowd.wait_for_pending(count)
    crowd.release_each(gate, first, 3)
    assert crowd.order == [0, 1, 2, 3]


def test_a_full_queue_is_refused_and_the_others_are_served(repository, serve, gate):
    slow(repository, DYNAMIC % "default_queue_policy { max_queue_size: 2 }", gate=gate)
    crowd = Crowd(serve())
    first = crowd.executing(gate)
    others = [crowd.ask(value) for value in range(1, 9)]
    assert eventually(lambda: sum(future.done() for future in others) == 6)
    gate.open()
    outcomes = []
    for future in others:
        try:
            outcomes.append(future.result(60) > 0)
        except InferenceServerException as error:
            outcomes.append(error.status())
    assert first.result(60) == 0
    assert sorted(map(str, outcomes)) == ["503"] * 6 + ["True"] * 2
    assert crowd.statistics()["inference_stats"]["fail"]["count"] == 6


@pytest.mark.parametrize("in_request", [False, True])
def test_a_request_that_times_out_in_the_queue_is_refused(repository, serve, gate, in_request):
    # The first one, too, may wait only for this long until it executes.
    milliseconds = 3_600_000 if in_request else 1000
    policy = f"default_timeout_microseconds: {milliseconds * 1000} allow_timeout_override: {str(in_request).lower()}"
    slow(repository, DYNAMIC % f"default_queue_policy {{ {policy} }}", gate=gate)
    crowd = Crowd(serve())
    first = crowd.executing(gate)
    late = crowd.ask(1, timeout=20_000) if in_request else crowd.ask(1)
    assert failure(late) == "503"
    # Answered while the instance was still busy.
    assert not first.done()
    gate.open()
    assert first.result(60) == 0


def test_a_delayed_request_gives_way_to_others(repository, serve, gate):
    scheduling = "dynamic_batching { preferred_batch_size: 1 default_queue_policy { %s allow_timeout_override: true } }"
    slow(repository, scheduling % "timeout_action: DELAY default_timeout_microseconds: 3600000000", gate=gate)
    slow(repository, scheduling % "default_timeout_microseconds: 3600000000", gate=gate, name="clock")
    server = serve()
    crowd, clock = Crowd(server), Crowd(server, "clock")
    first, _ = crowd.executing(gate), clock.executing(gate)
    for value, parameters in ((1, {"timeout": 20_000}), (2, {"timeout": 20_000}), (3, {})):
        crowd.ask(value, **parameters)
        crowd.wait_for_pending(value)
    # A later request of another model times out, so those two have waited too long, too: they go last, in their order.
    assert failure(clock.ask(0, timeout=20_000)) == "503"
    crowd.release_each(gate, first, 3)
    assert crowd.order == [0, 3, 1, 2]


def test_answers_come_in_the_order_of_requests_if_the_model_preserves_it(repository, serve, gate):
    scheduling = "dynamic_batching { preferred_batch_size: 1 preserve_ordering: true }"
    slow(repository, scheduling, "instance_group { count: 2 kind: KIND_CPU }", gate=gate)
    crowd = Crowd(serve())
    first, held = crowd.ask(0), gate.entered()
    second, overtaking = crowd.ask(1), gate.entered()
    overtaking.release()
    assert eventually(lambda: crowd.statistics()["execution_count"] == 1)
    assert not second.done()
    held.release()
    assert (first.result(60), second.result(60)) == (0, 1)


def test_a_client_that_hangs_up_leaves_the_queue(repository, serve, gate):
    slow(repository, DYNAMIC % "default_queue_policy { max_queue_size: 1 }", gate=gate)
    server = serve()
    crowd = Crowd(server)
    first = crowd.executing(gate)
    body = b'{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1,1],"data":[7]}]}'
    with socket.create_connection(("127.0.0.1", server.port)) as gone:
        head = f"POST /v2/models/slow/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        gone.sendall(head.encode() + body)
        crowd.wait_for_pending(1)
    crowd.wait_for_pending(0)
    # There is room for another now.
    second = crowd.ask(1)
    crowd.wait_for_pending(1)
    gate.open()
    assert (first.result(60), second.result(60)) == (0, 1)
    statistics = crowd.statistics()
    assert (statistics["inference_count"], statistics["inference_stats"]["fail"]["count"]) == (2, 1)


def test_different_shapes_do_not_share_an_execution(repository, serve, gate):
    slow(repository, DYNAMIC % "", name="varies", gate=gate, dims=[-1])
    server = serve()
    crowd = Crowd(server, "varies")
    pool = ThreadPoolExecutor(8)

    def ask(length):
        with tritonclient.http.InferenceServerClient(server.url, network_timeout=60) as client:
            tensor = tritonclient.http.InferInput("INPUT0", [1, length], "INT32")
            tensor.set_data_from_numpy(np.arange(length, dtype=np.int32).reshape(1, length))
            return client.infer("varies", [tensor]).as_numpy("OUTPUT0").shape

    futures = [pool.submit(ask, 1)]
    gate.entered()
    for count, length in enumerate((2, 2, 3), 1):
        futures.append(pool.submit(ask, length))
        crowd.wait_for_pending(count)
    gate.open()
    assert [future.result(60) for future in futures] == [(1, 1), (1, 2), (1, 2), (1, 3)]
    assert sizes(crowd.statistics()) == {1: 2, 2: 1}


def test_models_share_a_resource(repository, serve, gate):
    limiter = 'instance_group { count: 2 kind: KIND_CPU rate_limiter { resources { name: "R" count: 1 } } }'
    for name in ("one", "two"):
        slow(repository, limiter, name=name, gate=gate)
    server = serve("--rate-limit=execution_count", "--rate-limit-resource=R:1")
    crowds = [Crowd(server, name) for name in ("one", "two")]
    futures = [crowd.ask(value) for value in range(3) for crowd in crowds]
    for _ in futures:
        held = gate.entered()
        # One at a time.
        assert gate.is_empty()
        held.release()
    for future in futures:
        future.result(60)


def test_a_missing_resource_is_reported_at_start(repository, serve):
    slow(repository, 'instance_group { rate_limiter { resources { name: "R" count: 3 } } }')
    flags = ("--rate-limit=execution_count", "--rate-limit-resource=R:2", "--exit-on-error=false")
    server = serve(*flags, ready=False)
    assert "needs 3 of resource 'R', but its limit is 2" in server.log


def test_the_server_refuses_more_than_its_limit(repository, serve, gate):
    slow(repository, gate=gate)
    crowd = Crowd(serve("--max-inflight-requests=1"))
    first = crowd.executing(gate)
    assert failure(crowd.ask(1)) == "503"
    gate.open()
    assert first.result(60) == 0
    assert crowd.ask(2).result(60) == 2


def test_the_batcher_waits_for_the_configured_backlog(repository, serve, monkeypatch):
    monkeypatch.setenv("TRITONSERVER_DELAY_SCHEDULER", "3")
    slow(repository, DYNAMIC % "")
    crowd = Crowd(serve())
    futures = [crowd.ask(0), crowd.ask(1)]
    crowd.wait_for_pending(2)
    assert not any(future.done() for future in futures)
    for future in [*futures, crowd.ask(2)]:
        future.result(60)
    assert sizes(crowd.statistics()) == {3: 1}


def test_every_request_of_a_flood_is_answered(repository, serve):
    slow(repository, DYNAMIC % "default_queue_policy { max_queue_size: 8 }", delay_ms=5)
    server = serve()
    outcomes, lock = [], threading.Lock()

    def client(number):
        with tritonclient.http.InferenceServerClient(server.url, network_timeout=60) as client:
            for value in range(40):
                tensor = tritonclient.http.InferInput("INPUT0", [1, 1], "INT32")
                tensor.set_data_from_numpy(np.array([[number * 100 + value]], np.int32))
                try:
                    answer = client.infer("slow", [tensor]).as_numpy("OUTPUT0")[0][0]
                    outcome = answer == number * 100 + value
                except InferenceServerException as error:
                    outcome = error.status() == "503"
                with lock:
                    outcomes.append(outcome)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == [True] * (24 * 40)
    statistics = Crowd(server).statistics()
    counts = statistics["inference_stats"]
    assert counts["success"]["count"] + counts["fail"]["count"] == 24 * 40

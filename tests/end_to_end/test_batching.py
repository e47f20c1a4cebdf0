"""Scheduling as clients see it: batches, priorities, queue policies, limits.

The identity backend is told to take its time, so that requests meet in the queue. Nothing here depends on how long
something takes, only on what happens while something else cannot.
"""

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.http
from tritonclient.utils import InferenceServerException

from model_files import config, write_model

DELAY_S = 0.4
DYNAMIC = "dynamic_batching { preferred_batch_size: 4 %s }"


def slow(repository, *extra, name="slow", delay_s=DELAY_S, dims=(1,)):
    """A model whose executions take their time."""
    delay = f'parameters {{ key: "execute_delay_ms" value: {{ string_value: "{int(delay_s * 1000)}" }} }}'
    tensors = ([("INPUT0", "INT32", list(dims))], [("OUTPUT0", "INT32", list(dims))])
    text = config(name, "identity", *tensors, 4, "\n".join([delay, *extra]))
    if any("instance_group" in line for line in extra):
        text = text.replace("instance_group { count: 1 kind: KIND_CPU }\n", "", 1)
    write_model(repository, name, text)
    return name


class Crowd:
    """Clients that ask at the same time, each over a connection of its own."""

    def __init__(self, server, model="slow"):
        self._server, self._model = server, model
        self._pool = ThreadPoolExecutor(32)
        # The order in which answers came, and of what.
        self.order = []
        # When each answer came.
        self.times = {}

    def ask(self, value, **parameters):
        """Asks, without waiting for the answer."""
        return self._pool.submit(self._ask, value, parameters)

    def _ask(self, value, parameters):
        with tritonclient.http.InferenceServerClient(self._server.url, network_timeout=60) as client:
            tensor = tritonclient.http.InferInput("INPUT0", [1, 1], "INT32")
            tensor.set_data_from_numpy(np.array([[value]], np.int32))
            try:
                answer = client.infer(self._model, [tensor], **parameters).as_numpy("OUTPUT0")[0][0]
            finally:
                self.order.append(value)
                self.times[value] = time.monotonic()
            assert answer == value
            return answer

    def statistics(self):
        """The model's statistics now."""
        with tritonclient.http.InferenceServerClient(self._server.url) as client:
            return client.get_inference_statistics(self._model)["model_stats"][0]

    def executing(self, value=0):
        """Asks, and waits until the answer is being made, so that whatever comes next has to wait."""
        asked = self.ask(value)
        # There is nothing to be seen of a running execution from outside.
        time.sleep(DELAY_S / 4)
        return asked


def sizes(statistics):
    return {batch["batch_size"]: batch["compute_infer"]["count"] for batch in statistics["batch_stats"]}


def failure(future):
    with pytest.raises(InferenceServerException) as caught:
        future.result(60)
    return caught.value.status()


def test_requests_that_meet_in_the_queue_share_an_execution(repository, serve):
    slow(repository, DYNAMIC % "")
    crowd = Crowd(serve())
    first = crowd.executing()
    others = [crowd.ask(value) for value in range(1, 5)]
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


def test_without_dynamic_batching_each_is_executed_by_itself(repository, serve):
    slow(repository, delay_s=0.05)
    crowd = Crowd(serve())
    for future in [crowd.ask(value) for value in range(5)]:
        future.result(60)
    assert sizes(crowd.statistics()) == {1: 5}


def test_a_batch_waits_for_company(repository, serve):
    slow(repository, DYNAMIC % "max_queue_delay_microseconds: 3000000", delay_s=0)
    crowd = Crowd(serve())
    start = time.monotonic()
    for future in [crowd.ask(value) for value in range(4)]:
        future.result(60)
    # Complete: it does not wait until the time is over.
    assert time.monotonic() - start < 3
    assert sizes(crowd.statistics()) == {4: 1}
    start = time.monotonic()
    crowd.ask(9).result(60)
    assert time.monotonic() - start >= 3
    assert sizes(crowd.statistics()) == {1: 1, 4: 1}


def test_urgent_requests_are_answered_first(repository, serve):
    slow(repository, "dynamic_batching { preferred_batch_size: 1 priority_levels: 3 default_priority_level: 2 }")
    crowd = Crowd(serve())
    first = crowd.executing()
    rest = []
    for value, priority in ((3, 3), (2, 0), (1, 1)):
        rest.append(crowd.ask(value, priority=priority))
        time.sleep(DELAY_S / 16)
    for future in [first, *rest]:
        future.result(60)
    assert crowd.order == [0, 1, 2, 3]


def test_a_full_queue_is_refused_and_the_others_are_served(repository, serve):
    slow(repository, DYNAMIC % "default_queue_policy { max_queue_size: 2 }")
    crowd = Crowd(serve())
    first = crowd.executing()
    others = [crowd.ask(value) for value in range(1, 9)]
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
def test_a_request_is_not_kept_waiting_longer_than_it_may(repository, serve, in_request):
    milliseconds = 3_600_000 if in_request else 20
    policy = f"default_timeout_microseconds: {milliseconds * 1000} allow_timeout_override: {str(in_request).lower()}"
    slow(repository, DYNAMIC % f"default_queue_policy {{ {policy} }}")
    crowd = Crowd(serve())
    first = crowd.executing()
    late = crowd.ask(1, timeout=20_000) if in_request else crowd.ask(1)
    assert failure(late) == "503"
    # Answered while the instance was still busy.
    assert not first.done()
    assert first.result(60) == 0


def test_a_request_that_waited_too_long_may_give_way_instead(repository, serve):
    policy = "timeout_action: DELAY default_timeout_microseconds: 20000"
    slow(repository, "dynamic_batching { preferred_batch_size: 1 default_queue_policy { %s } }" % policy)
    crowd = Crowd(serve())
    first = crowd.executing()
    slow_one = crowd.ask(1)
    time.sleep(DELAY_S / 4)
    fresh = crowd.ask(2)
    for future in (first, slow_one, fresh):
        future.result(60)
    # All have waited too long by the time the instance is free: those that did so first go first.
    assert crowd.order == [0, 1, 2]


def test_answers_come_in_the_order_of_requests_if_they_are_told_to(repository, serve):
    multiplier = 'parameters { key: "instance_wise_delay_multiplier" value: { string_value: "3" } }'
    scheduling = "dynamic_batching { preferred_batch_size: 1 preserve_ordering: true }"
    slow(repository, scheduling, multiplier, "instance_group { count: 2 kind: KIND_CPU }")
    crowd = Crowd(serve())
    futures = []
    for value in range(5):
        futures.append(crowd.ask(value))
        time.sleep(DELAY_S / 4)
    for future in futures:
        future.result(60)
    # Answers that leave together may reach their clients in any order; one that was made much later does not.
    times = [crowd.times[value] for value in range(5)]
    assert all(max(times[: i + 1]) < times[i] + DELAY_S / 2 for i in range(5)), times


def test_a_client_that_hangs_up_leaves_the_queue(repository, serve):
    slow(repository, DYNAMIC % "default_queue_policy { max_queue_size: 1 }")
    server = serve()
    crowd = Crowd(server)
    first = crowd.executing()
    body = b'{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1,1],"data":[7]}]}'
    with socket.create_connection(("127.0.0.1", server.port)) as gone:
        head = f"POST /v2/models/slow/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        gone.sendall(head.encode() + body)
        time.sleep(DELAY_S / 8)
    time.sleep(DELAY_S / 8)
    # There is room for another now.
    second = crowd.ask(1)
    assert (first.result(60), second.result(60)) == (0, 1)
    statistics = crowd.statistics()
    assert (statistics["inference_count"], statistics["inference_stats"]["fail"]["count"]) == (2, 1)


def test_different_shapes_do_not_share_an_execution(repository, serve):
    slow(repository, DYNAMIC % "", name="varies", dims=[-1])
    server = serve()
    pool = ThreadPoolExecutor(8)

    def ask(length):
        with tritonclient.http.InferenceServerClient(server.url, network_timeout=60) as client:
            tensor = tritonclient.http.InferInput("INPUT0", [1, length], "INT32")
            tensor.set_data_from_numpy(np.arange(length, dtype=np.int32).reshape(1, length))
            return client.infer("varies", [tensor]).as_numpy("OUTPUT0").shape

    futures = []
    for length in (1, 2, 2, 3):
        futures.append(pool.submit(ask, length))
        time.sleep(0.05)
    assert [future.result(60) for future in futures] == [(1, 1), (1, 2), (1, 2), (1, 3)]
    assert sizes(Crowd(server, "varies").statistics()) == {1: 2, 2: 1}


def test_models_share_a_resource(repository, serve):
    limiter = 'instance_group { count: 2 kind: KIND_CPU rate_limiter { resources { name: "R" count: 1 } } }'
    for name in ("one", "two"):
        slow(repository, limiter, name=name, delay_s=0.1)
    server = serve("--rate-limit=execution_count", "--rate-limit-resource=R:1")
    crowds = [Crowd(server, name) for name in ("one", "two")]
    start = time.monotonic()
    for future in [crowd.ask(value) for value in range(3) for crowd in crowds]:
        future.result(60)
    # One at a time.
    assert time.monotonic() - start >= 0.6


def test_a_resource_that_is_not_there_is_told_at_the_start(repository, serve):
    slow(repository, 'instance_group { rate_limiter { resources { name: "R" count: 3 } } }')
    flags = ("--rate-limit=execution_count", "--rate-limit-resource=R:2", "--exit-on-error=false")
    server = serve(*flags, ready=False)
    assert "needs 3 of resource 'R', but there are 2" in server.log


def test_the_server_refuses_more_than_it_is_told_to_take(repository, serve):
    slow(repository)
    crowd = Crowd(serve("--max-inflight-requests=1"))
    first = crowd.executing()
    assert failure(crowd.ask(1)) == "503"
    assert first.result(60) == 0
    assert crowd.ask(2).result(60) == 2


def test_a_batcher_begins_when_as_many_wait_as_a_test_wants(repository, serve, monkeypatch):
    monkeypatch.setenv("TRITONSERVER_DELAY_SCHEDULER", "3")
    slow(repository, DYNAMIC % "", delay_s=0)
    crowd = Crowd(serve())
    futures = [crowd.ask(0), crowd.ask(1)]
    time.sleep(0.1)
    assert not any(future.done() for future in futures)
    for future in [*futures, crowd.ask(2)]:
        future.result(60)
    assert sizes(crowd.statistics()) == {3: 1}


def test_a_flood_ends_in_answers_for_all(repository, serve):
    slow(repository, DYNAMIC % "default_queue_policy { max_queue_size: 8 }", delay_s=0.005)
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

"""Batches by a latency objective, as clients, metrics and `nereid check` see them. The objectives are minutes, so that nothing here
depends on how long something takes."""

import json
import subprocess

import pytest
from test_batching import Crowd, sizes

import nereid_server
from http_requests import infer, request, tensor
from model_files import config, write_model
from scrapes import Scrape

MINUTES = 300_000_000
GAUGES = [f"nereid_batch_{name}" for name in ("objective_seconds", "target_size", "delay_seconds", "execution_seconds")]
EXPLICIT = ("--model-control-mode=explicit", "--load-model=slow")
BODY = {"inputs": [tensor("INPUT0", "INT32", [1, 1], [3])]}


def text(scheduling="dynamic_batching { }", max_batch_size=4, **values):
    tensors = ([("INPUT0", "INT32", (1,))], [("OUTPUT0", "INT32", (1,))])
    parameters = [f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}' for key, value in values.items()]
    return config("slow", "identity", *tensors, max_batch_size, "\n".join([scheduling, *parameters]))


def gauges(server):
    scrape = Scrape(server)
    return [scrape.value(name, model="slow", version="1") for name in GAUGES]


def learn(crowd):
    """More requests at once than a batch has, so that the batcher measures executions and sees senders who do not wait."""
    for future in [crowd.ask(value) for value in range(48)]:
        future.result(60)


def load(server):
    answer = request(server, "POST", "/v2/repository/models/slow/load")
    assert answer.status == 200, answer


def test_a_request_waits_for_company_and_a_reload_forgets_what_was_learned(repository, serve):
    write_model(repository, "slow", text(execute_delay_ms=200, latency_objective_microseconds=MINUTES))
    server = serve(*EXPLICIT)
    assert gauges(server) == [300, 4, 0, None]
    crowd = Crowd(server)
    learn(crowd)
    objective, size, _, execution = gauges(server)
    assert (objective, size) == (300, 4) and execution >= 0.2
    before = sizes(crowd.statistics())
    first = crowd.ask(1)
    crowd.wait_for_pending(1)
    assert not first.done() and gauges(server)[2] > 0
    others = [crowd.ask(value) for value in (2, 3, 4)]
    assert [future.result(60) for future in (first, *others)] == [1, 2, 3, 4]
    after = sizes(crowd.statistics())
    assert after == {**before, 4: before[4] + 1}

    waits = crowd.ask(5)
    crowd.wait_for_pending(1)
    changed = text(execute_delay_ms=1, latency_objective_microseconds=2 * MINUTES)
    (repository / "slow" / "config.pbtxt").write_text(changed)
    load(server)
    # Its batch did not wait any longer.
    assert waits.result(60) == 5
    assert gauges(server) == [600, 4, 0, None]
    assert infer(server, "slow", BODY).json["outputs"][0]["data"] == [3]

    (repository / "slow" / "config.pbtxt").write_text(text())
    load(server)
    assert gauges(server) == [None] * 4
    assert infer(server, "slow", BODY).status == 200


def test_clients_that_wait_for_answers_do_not_wait_for_others(repository, serve):
    write_model(repository, "slow", text(execute_delay_ms=2, latency_objective_microseconds=MINUTES))
    server = serve()
    # A wait for others would last minutes.
    for _ in range(40):
        assert infer(server, "slow", BODY).json["outputs"][0]["data"] == [3]
    statistics = request(server, "GET", "/v2/models/slow/stats").json["model_stats"][0]
    assert sizes(statistics) == {1: 40}


def test_the_rate_limiter_instances_and_priorities_go_with_an_objective(repository, serve):
    levels = "dynamic_batching { priority_levels: 2 default_priority_level: 2 max_queue_delay_microseconds: 2000 }"
    limited = text(levels, execute_delay_ms=2, latency_objective_microseconds=MINUTES).replace(
        "count: 1 kind: KIND_CPU", 'count: 3 kind: KIND_CPU rate_limiter { resources { name: "one" count: 1 } }'
    )
    write_model(repository, "slow", limited)
    server = serve("--rate-limit=execution_count")
    crowd = Crowd(server)
    futures = [crowd.ask(value, priority=value % 3) for value in range(200)]
    assert [future.result(60) for future in futures] == list(range(200))
    statistics = crowd.statistics()
    assert statistics["inference_count"] == 200 and max(sizes(statistics)) <= 4
    assert gauges(server)[2] <= 0.002


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            {"latency_objective_microseconds": 0},
            "is '0', but must be a whole number of microseconds from 1 to 3600000000 (an hour)",
        ),
        ({"latency_objective_microseconds": -1}, "is '-1', but must be"),
        ({"latency_objective_microseconds": "20ms"}, "is '20ms', but must be"),
        ({"latency_objective_microseconds": 2**64}, "is '18446744073709551616', but must be"),
        ({"latency_objective_microseconds": 5, "scheduling": ""}, "needs dynamic_batching"),
        (
            {"latency_objective_microseconds": 5, "scheduling": "sequence_batching { oldest { } }"},
            "not supported with sequence_batching",
        ),
        (
            {"latency_objective_microseconds": 5, "scheduling": "dynamic_batching { preferred_batch_size: 2 }"},
            "must be omitted beside",
        ),
        ({"latency_objective_microseconds": 5, "max_batch_size": 1}, "max_batch_size"),
    ],
)
def test_invalid_objectives_are_refused_and_others_are_served(repository, serve, given, expected):
    write_model(repository, "slow", text(**given))
    write_model(repository, "fine", text(latency_objective_microseconds=5).replace('"slow"', '"fine"'))
    server = serve("--exit-on-error=false", "--strict-readiness=false")
    states = {line["name"]: line for line in request(server, "POST", "/v2/repository/index").json}
    assert states["slow"]["state"] == "UNAVAILABLE" and expected in states["slow"]["reason"]
    # An objective that cannot be met delays nothing.
    assert states["fine"]["state"] == "READY" and infer(server, "fine", BODY).status == 200

    checked = subprocess.run([nereid_server.binary(), "check", str(repository), "--json"], capture_output=True, timeout=60)
    assert checked.returncode == 1
    (problem,) = json.loads(checked.stdout)["problems"]
    assert expected in problem["field"] + problem["message"]
    assert problem["model"] == "slow" and problem["line"] > 0 and problem["column"] > 0

"""Ensembles whose members are loaded on demand or by a schedule: every mode of model control, idle members, budgets, changes."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from http_requests import LIMIT_S, assert_refused, infer, request, tensor
from model_files import write_identity, write_model
from waiting import eventually

BODY = {"inputs": [tensor("INPUT0", "INT32", [2], [3, 4])]}
ALL = ["a", "b", "c", "inner", "outer"]


def write_ensemble(repository, name, *members, **parameters):
    """An ensemble that passes its input through the members."""
    tensors = ["INPUT0", *(f"t{number}" for number in range(1, len(members))), "OUTPUT0"]
    steps = "".join(
        f'step {{ model_name: "{member}" model_version: -1 input_map {{ key: "INPUT0" value: "{into}" }} '
        f'output_map {{ key: "OUTPUT0" value: "{out}" }} }}\n'
        for member, into, out in zip(members, tensors, tensors[1:], strict=False)
    )
    extra = "".join(f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n' for key, value in parameters.items())
    io = "".join(f'{kind} {{ name: "{kind.upper()}0" data_type: TYPE_INT32 dims: [ -1 ] }}\n' for kind in ("input", "output"))
    write_model(repository, name, f'name: "{name}" platform: "ensemble"\n{io}ensemble_scheduling {{ {steps} }}\n{extra}')


def write_nested(repository, **parameters):
    """`outer` of `inner` and `c`, `inner` of `a` and `b`: the parameters are those of members that are no ensembles."""
    for name in ("a", "b", "c"):
        write_identity(repository, name, ["INT32"], **parameters)
    write_ensemble(repository, "inner", "a", "b")
    write_ensemble(repository, "outer", "inner", "c")


def states(server):
    index = request(server, "POST", "/v2/repository/index").json
    return {line["name"]: (line.get("state"), line.get("reason")) for line in index}


def loaded(server):
    return sorted(name for name, (state, _) in states(server).items() if state == "READY")


def answer(server, name):
    found = infer(server, name, BODY)
    assert found.status == 200, found.json
    return found.json["outputs"][0]["data"]


@pytest.mark.parametrize(
    "parameters",
    [{"load_on_demand": "true"}, {"load_schedule": "0 0 29 2 *"}, {"load_schedule": "0 0 29 2 *", "load_on_demand": "false"}],
)
@pytest.mark.parametrize(
    "options",
    [
        ["--model-control-mode=none"],
        ["--model-control-mode=poll"],
        ["--model-control-mode=explicit", "--load-model=outer"],
        ["--model-control-mode=explicit", "--load-model=c", "--load-model=outer", "--load-model=a"],
        ["--model-control-mode=explicit", "--load-model=*"],
        ["--model-control-mode=on-demand", "--load-model=outer"],
    ],
    ids=lambda options: " ".join(options),
)
def test_the_start_loads_ensembles_with_their_members(repository, serve, options, parameters):
    write_nested(repository, **parameters)
    server = serve(*options)
    server.wait_for_log("successfully loaded 'outer' version 1")
    assert server.ready_status() == 200
    assert loaded(server) == ALL
    assert answer(server, "outer") == answer(server, "inner") == [3, 4]


def test_clients_load_and_unload_ensembles_and_members(repository, serve):
    write_nested(repository, load_on_demand="true")
    write_ensemble(repository, "other", "b", "c", load_on_demand="true")
    server = serve("--model-control-mode=explicit")

    def control(name, action, parameters=None):
        body = json.dumps({"parameters": parameters}) if parameters else None
        found = request(server, "POST", f"/v2/repository/models/{name}/{action}", body)
        assert found.status == 200, found.json

    control("outer", "load")
    assert loaded(server) == ALL
    # Without a member that a client unloaded, no ensemble serves until a client loads it again.
    control("b", "unload")
    assert loaded(server) == ["a", "c"]
    refused = infer(server, "outer", BODY)
    assert refused.status >= 400 and "b" in refused.json["error"]
    control("outer", "load")
    assert answer(server, "outer") == [3, 4]
    control("other", "load")
    # Members that others use stay.
    control("outer", "unload", {"unload_dependents": True})
    assert loaded(server) == ["b", "c", "other"]
    assert answer(server, "other") == [3, 4]


def test_a_request_brings_back_ensembles_and_members_in_mode_on_demand(repository, serve):
    write_nested(repository)
    server = serve("--model-control-mode=on-demand")
    assert loaded(server) == []
    assert answer(server, "outer") == [3, 4]
    assert loaded(server) == ALL
    for name in ("b", "inner", "outer"):
        assert request(server, "POST", f"/v2/repository/models/{name}/unload").status == 200
        assert name not in loaded(server)
        assert request(server, "GET", "/v2/models/outer/ready").status == 200
        assert answer(server, "outer") == [3, 4]
        assert loaded(server) == ALL


def test_idle_members_leave_with_their_ensembles(repository, serve):
    write_nested(repository, load_on_demand="true", idle_timeout_secs="1")
    server = serve("--model-control-mode=poll", "--repository-poll-secs=1")
    for name in ("a", "b", "c"):
        server.wait_for_log(f"'{name}' leaves the memory: it is idle")
    assert eventually(lambda: set(states(server).values()) == {("UNLOADED", "loaded on demand")})
    assert server.ready_status() == 200
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda _: answer(server, "outer"), range(16))) == [[3, 4]] * 16


def test_ensembles_share_a_budget_that_has_no_room_for_all(repository, serve):
    names = [f"m{number}" for number in range(6)]
    for name in names:
        write_identity(repository, name, ["INT32"], memory_byte_size="1000000")
    pairs = {f"pair{number}": (names[number], names[(number + 1) % 6]) for number in range(6)}
    for name, members in pairs.items():
        write_ensemble(repository, name, *members)
    write_ensemble(repository, "all", *names)
    options = ["--model-memory-budget=3500000", "--model-max-evictions-per-minute=100000", "--model-memory-directory=none"]
    server = serve(*options, "--on-demand-retry-secs=0")
    # What finds no room at the start waits for its requests.
    assert server.ready_status() == 200
    assert len([name for name in loaded(server) if name in names]) == 3
    for name in [*pairs, *pairs, *names]:
        assert answer(server, name) == [3, 4], name
        assert len([other for other in loaded(server) if other in names]) <= 3
    # At once, where two that have one member each would wait for the room of the other's.
    with ThreadPoolExecutor(6) as threads:
        statuses = list(threads.map(lambda name: infer(server, name, BODY).status, [*pairs, *pairs, *pairs]))
    assert set(statuses) <= {200, 503} and statuses.count(200) >= 12, statuses
    refused = infer(server, "all", BODY)
    assert_refused(refused, 503)
    assert "'all' depends on 'm" in refused.json["error"] and "no room for model 'm" in refused.json["error"]
    assert int(refused.headers["Retry-After"]) >= 1
    assert answer(server, "pair0") == [3, 4]


@pytest.mark.parametrize("mode", ["none", "poll", "explicit", "on-demand"])
def test_the_error_of_an_ensemble_names_the_member_and_its_reason(repository, serve, mode):
    write_nested(repository, load_on_demand="true")
    config = repository / "a" / "config.pbtxt"
    good = config.read_text()
    config.write_text(good.replace('"OUTPUT0"', '"OUTPUT9"'))
    is_ready = mode in ("explicit", "on-demand")
    server = serve(f"--model-control-mode={mode}", "--on-demand-retry-secs=0", "--exit-on-error=false", ready=is_ready)
    if mode == "explicit":
        error = request(server, "POST", "/v2/repository/models/outer/load").json["error"]
    elif mode == "on-demand":
        error = infer(server, "outer", BODY).json["error"]
    else:
        error = states(server)["outer"][1]
    for part in ("'inner'", "'a'", "OUTPUT"):
        assert part in error, error
    # A member that could be loaded is not a reason.
    assert "'c'" not in error, error


def test_no_request_is_lost_while_members_change(repository, serve):
    write_nested(repository, load_on_demand="true")
    write_ensemble(repository, "other", "b", "c")
    server = serve("--model-control-mode=poll", "--repository-poll-secs=1", "--model-idle-timeout=1")
    is_over = threading.Event()

    def client(name):
        answers = 0
        while not is_over.is_set():
            assert answer(server, name) == [3, 4]
            answers += 1
        return answers

    with ThreadPoolExecutor(8) as threads:
        clients = [threads.submit(client, name) for name in ("outer", "inner", "other", "a", "outer")]
        try:
            for name in ("b", "c"):
                config = repository / name / "config.pbtxt"
                config.write_text(config.read_text() + "\nparameters { key: 'changed' value { string_value: '1' } }\n")
                changed = f"'{name}' has changed"
                server.wait_for_log(changed)
                assert eventually(lambda name=name: server.log.count(f"successfully loaded '{name}' version 1") >= 2)
        finally:
            is_over.set()
        assert all(future.result(LIMIT_S) > 0 for future in clients)
    server.wait_for_log("'c' leaves the memory: it is idle")
    assert answer(server, "outer") == [3, 4]

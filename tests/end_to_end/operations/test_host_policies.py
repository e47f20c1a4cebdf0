"""Host policies: where instances are created and run, and what backends know of it. The reference behaves the same."""

import ctypes
import json
import os
import subprocess
import threading
from http.client import HTTPConnection

import pytest

import native_backends
import nereid_server
from native_backends import write_model

TENSORS = """
input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "REPORT" data_type: TYPE_STRING dims: [ 1 ] }
"""
CORE = min(os.sched_getaffinity(0))
MEMORY_BIND = 2


def may_choose_memory():
    """Whether the system lets programs choose the memory of node 0; not every container may."""
    found = []

    def choose():
        mask = ctypes.c_ulong(1)
        # 238 is set_mempolicy on x86-64, 237 on 64-bit ARM.
        number = 238 if os.uname().machine == "x86_64" else 237
        found.append(ctypes.CDLL(None).syscall(number, MEMORY_BIND, ctypes.byref(mask), 2) == 0)

    thread = threading.Thread(target=choose)
    thread.start()
    thread.join()
    return found[0]


@pytest.fixture(scope="module")
def backends(tmp_path_factory):
    folder = tmp_path_factory.mktemp("backends")
    native_backends.compile_c(folder, "place")
    return folder


def ask(server, path, body, timeout=60):
    connection = HTTPConnection("127.0.0.1", server.port, timeout=timeout)
    try:
        connection.request("POST", path, body=json.dumps(body))
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def report(server, model):
    """What the instance that executes says, by its lines."""
    inputs = [{"name": "IN", "shape": [1], "datatype": "INT32", "data": [7]}]
    status, answer = ask(server, f"/v2/models/{model}/infer", {"inputs": inputs})
    assert status == 200, answer
    lines = json.loads(answer)["outputs"][0]["data"][0].splitlines()
    return dict(line.split(":", 1) for line in lines)


def place(cores, mode=0, nodes=0):
    return f" {' '.join(map(str, cores))}, memory policy {mode} of nodes {nodes:x}"


def test_an_instance_without_a_policy_runs_anywhere_and_knows_the_name_of_its_policy(tmp_path, backends):
    repository = tmp_path / "models"
    groups = {"auto": "", "cpu": "kind: KIND_CPU", "model": "kind: KIND_MODEL"}
    for name, kind in groups.items():
        write_model(repository, name, "place", TENSORS + f"instance_group {{ {kind} }}")
    write_model(repository, "named", "place", TENSORS + 'instance_group { kind: KIND_CPU host_policy: "left" }')
    everywhere = place(sorted(os.sched_getaffinity(0)))
    with nereid_server.running(repository, f"--backend-directory={backends}") as server:
        policies = {"auto": "cpu", "cpu": "cpu", "model": "model", "named": "left"}
        for model, policy in policies.items():
            lines = report(server, model)
            assert json.loads(lines["policy"]) == {policy: {}}
            assert (lines["made on"], lines["runs on"]) == (everywhere, everywhere)


def test_an_instance_is_created_and_runs_on_the_cores_of_its_policy(tmp_path, backends):
    repository = tmp_path / "models"
    write_model(repository, "here", "place", TENSORS + 'instance_group { kind: KIND_CPU host_policy: "left" }')
    write_model(repository, "there", "place", TENSORS)
    flags = (f"--backend-directory={backends}", f"--host-policy=left,cpu-cores={CORE}-{CORE}")
    with nereid_server.running(repository, *flags) as server:
        lines = report(server, "here")
        assert json.loads(lines["policy"]) == {"left": {"cpu-cores": f"{CORE}-{CORE}"}}
        assert (lines["made on"], lines["runs on"]) == (place([CORE]), place([CORE]))
        # Nobody else is held there.
        assert report(server, "there")["runs on"] == place(sorted(os.sched_getaffinity(0)))


def test_an_instance_has_the_memory_of_its_policy_or_is_refused_where_the_system_does(tmp_path, backends):
    repository = tmp_path / "models"
    write_model(repository, "here", "place", TENSORS + "instance_group { kind: KIND_CPU }")
    flags = (f"--backend-directory={backends}", "--exit-on-error=false", "--strict-readiness=false")
    with nereid_server.running(repository, *flags, "--host-policy=cpu,numa-node=0") as server:
        if may_choose_memory():
            lines = report(server, "here")
            expected = place(sorted(os.sched_getaffinity(0)), MEMORY_BIND, 1)
            assert (lines["made on"], lines["runs on"]) == (expected, expected)
        else:
            _, index = ask(server, "/v2/repository/index", {})
            assert json.loads(index)[0]["state"] == "UNAVAILABLE"


@pytest.mark.parametrize("setting", ["numa-node=63", "cpu-cores=1023-1023"])
def test_a_missing_core_or_node_makes_the_model_unavailable(tmp_path, backends, setting):
    repository = tmp_path / "models"
    write_model(repository, "here", "place", TENSORS + "instance_group { kind: KIND_CPU }")
    flags = (f"--backend-directory={backends}", "--exit-on-error=false", "--strict-readiness=false")
    with nereid_server.running(repository, *flags, f"--host-policy=cpu,{setting}") as server:
        _, index = ask(server, "/v2/repository/index", {})
        row = json.loads(index)[0]
        assert row["state"] == "UNAVAILABLE"
        assert "NUMA" in row["reason"] or "processors" in row["reason"]


@pytest.mark.parametrize("setting", ["numa-node=left", "cpu-cores=1", "cpu-cores=0,1"])
def test_an_invalid_value_concerns_models_of_its_policy_alone(tmp_path, backends, setting):
    repository = tmp_path / "models"
    write_model(repository, "here", "place", TENSORS + 'instance_group { kind: KIND_CPU host_policy: "left" }')
    write_model(repository, "there", "place", TENSORS)
    flags = (f"--backend-directory={backends}", "--exit-on-error=false", "--strict-readiness=false")
    with nereid_server.running(repository, *flags, f"--host-policy=left,{setting}") as server:
        _, index = ask(server, "/v2/repository/index", {})
        rows = {row["name"]: row for row in json.loads(index)}
        assert (rows["here"]["state"], rows["there"]["state"]) == ("UNAVAILABLE", "READY")
        name, value = setting.split("=")
        assert f"{name} is '{value}'" in rows["here"]["reason"]
        assert f"models of policy 'left' cannot be loaded: {name} is '{value}'" in server.log


@pytest.mark.parametrize("wrong", ["cpu", "cpu,numa-node", "cpu,sockets=1"])
def test_an_invalid_policy_is_refused_at_start(tmp_path, wrong):
    command = [nereid_server.binary(), f"--model-repository={tmp_path}", f"--host-policy={wrong}"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode != 0 and "host-policy" in ended.stderr


def test_a_change_of_instances_alone_updates_profiles_devices_and_policy(tmp_path, backends):
    repository = tmp_path / "models"
    given = 'platform: "tensorrt_plan"\n' + TENSORS
    write_model(repository, "m", "place", given + 'instance_group { kind: KIND_CPU host_policy: "a" }')
    flags = (f"--backend-directory={backends}", "--model-control-mode=explicit", "--load-model=m")
    with nereid_server.running(repository, *flags) as server:
        lines = report(server, "m")
        assert (lines["profiles"], lines["devices"]) == ("", "")
        group = 'kind: KIND_CPU profile: [ "1", "2" ] host_policy: "b" secondary_devices { device_id: 3 }'
        (repository / "m" / "config.pbtxt").write_text(f'backend: "place"\n{given}\ninstance_group {{ {group} }}')
        status, answer = ask(server, "/v2/repository/models/m/load", {})
        assert status == 200, answer
        lines = report(server, "m")
        assert (lines["profiles"], lines["devices"]) == (" 1 2", " KIND_NVDLA 3")
        assert json.loads(lines["policy"]) == {"b": {}}

"""Memory that models were measured to take: kept across restarts, even of a killed server, shown in the index, and read again."""

import json
import os
import re
import shutil
import time

import grpc
import pytest
from tritonclient.grpc import service_pb2 as messages

import grpc_requests
import nereid_server
import python_backend
from access_policies import Policy
from http_requests import infer, request, tensor
from model_files import config, write_identity, write_model
from scrapes import Scrape
from waiting import eventually

MB = 1_000_000
# The memory of a model that holds HELD, its interpreter included, fits; that of two does not.
HELD, BUDGET = 150 * MB, 300 * MB
FLAGS = (f"--model-memory-budget={BUDGET}", "--model-load-thread-count=0")
FILE = "model-memory.json"
BODY = {"inputs": [tensor("INPUT0", "INT32", [2], [3, 4])]}

HOLDING = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.held = bytearray(%d)
        for place in range(0, len(self.held), 4096):
            self.held[place] = 1

    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", value)]) for value in inputs]
"""


def write_holding(repository, name, held=HELD):
    """A model in Python that holds memory in its process. Its files are small."""
    text = config(name, "python", [("INPUT0", "INT32", [-1])], [("OUTPUT0", "INT32", [-1])])
    write_model(repository, name, text)
    (repository / name / "1" / "model.py").write_text(HOLDING % held)


@pytest.fixture(scope="module", autouse=True)
def backend():
    python_backend.prepare()


@pytest.fixture
def start(serve, tmp_path):
    """Starts a server under the budget that keeps its records in a folder of the test's."""

    def started(*flags):
        folder = f"--model-memory-directory={tmp_path / 'records'}"
        return serve(*FLAGS, folder, *flags, env=python_backend.environment())

    return started


def states(server):
    """The state of each model."""
    return {line["name"]: line["state"] for line in request(server, "POST", "/v2/repository/index").json}


def records(tmp_path):
    """The records of a folder by the model's name; none before the first is written."""
    file = tmp_path / "records" / FILE
    return {entry["model"]: entry for entry in json.loads(file.read_text())["models"]} if file.exists() else {}


def test_a_killed_server_knows_after_its_restart_what_its_models_take(repository, start, tmp_path):
    for name in ("first", "second"):
        write_holding(repository, name)
    server = start()
    # Nothing is known of them: by their files, both have room. One leaves as soon as it is known what they take.
    assert eventually(lambda: records(tmp_path).keys() == {"first", "second"})
    assert eventually(lambda: sorted(states(server).values()) == ["READY", "UNLOADED"])
    assert re.search(r"models (take|have grown to) \d+\.\d MB, more than the memory budget of 300\.0 MB", server.log)
    server.kill()
    for entry in records(tmp_path).values():
        assert HELD <= entry["processes_bytes"] <= BUDGET - 50 * MB and entry["load_ms"] > 0

    again = start()
    assert sorted(states(again).values()) == ["READY", "UNLOADED"]
    assert re.search(r"model-memory\.json has what 2 models took in memory", again.log)
    # The other one is loaded for its request, and takes the place of the first.
    (waiting,) = (name for name, state in states(again).items() if state == "UNLOADED")
    assert infer(again, waiting, BODY).status == 200
    assert sorted(states(again).values()) == ["READY", "UNLOADED"] and states(again)[waiting] == "READY"
    again.stop()

    # Other files are estimated anew, and those that are as they were are not.
    shutil.rmtree(repository / "second")
    write_holding(repository, "second", HELD // 2)
    third = start()
    assert states(third) == {"first": "READY", "second": "READY"}


def test_files_that_are_broken_foreign_or_read_only_are_a_warning(repository, start, tmp_path):
    write_holding(repository, "model", MB)
    write_identity(repository, "other", ["INT32"])
    folder = tmp_path / "records"
    folder.mkdir()
    file = folder / FILE
    for content, is_replaced in (("", True), ('{"nereid_model_memory":1,"digest":"', True), ("notes of somebody", False)):
        file.write_text(content)
        server = start()
        assert set(states(server).values()) == {"READY"} and infer(server, "model", BODY).status == 200
        warning = "the file is damaged and will be replaced" if is_replaced else "it is left as it is"
        assert re.search(rf"^W.*{FILE}: .*{warning}", server.log, re.MULTILINE)
        if is_replaced:
            assert eventually(lambda: records(tmp_path).keys() == {"model", "other"})
        server.stop()
        assert (file.read_text() == content) == (not is_replaced)
    file.unlink()
    # A folder that is none; the superuser could write to one that is read-only.
    shutil.rmtree(folder)
    folder.write_text("")
    server = start()
    assert set(states(server).values()) == {"READY"}
    assert eventually(lambda: "is not kept for the next start" in server.log)
    assert server.log.count("is not kept for the next start") == 1 and folder.read_text() == ""


def test_records_are_kept_by_default_in_the_user_s_cache_and_only_under_a_budget(repository, tmp_path):
    write_identity(repository, "model", ["INT32"])
    kept = tmp_path / "cache" / "nereid" / "model-memory"
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    for flags in ((), (FLAGS[0], "--model-memory-directory=none")):
        with nereid_server.running(repository, *flags, env=env):
            pass
        assert not kept.exists()
    with nereid_server.running(repository, FLAGS[0], env=env):
        assert eventually((kept / FILE).exists)
    assert kept.stat().st_mode & 0o777 == 0o700 and (kept / FILE).stat().st_mode & 0o777 == 0o600


def test_servers_share_the_records(repository, start, tmp_path):
    names = [f"model{number}" for number in range(6)]
    for name in names:
        write_identity(repository, name, ["INT32"])
    servers = [start("--model-control-mode=on-demand") for _ in range(3)]
    for number, name in enumerate(names):
        assert infer(servers[number % 3], name, BODY).status == 200
    assert eventually(lambda: sorted(records(tmp_path)) == names)


GROWING = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.held = []

    def execute(self, requests):
        for request in requests:
            value = pb_utils.get_input_tensor_by_name(request, "INPUT0")
            self.held.append(bytes([1]) * (int(value.as_numpy()[0]) * 1_000_000))
        inputs = [pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", value)]) for value in inputs]
"""


def memory(server, headers=None):
    """The memory of each model's only entry in the index; without models whose memory is unknown."""
    answer = request(server, "POST", "/v2/repository/index", '{"memory": true}', headers or {})
    return {line["name"]: line["memory"] for line in answer.json if "memory" in line}


def test_the_index_has_the_memory_of_models_on_request(repository, start, tmp_path):
    write_holding(repository, "held")
    write_identity(repository, "declared", ["INT32"], memory_byte_size="5000")
    write_identity(repository, "unknown", ["INT32"])
    server = start("--model-control-mode=on-demand")
    assert memory(server) == {}
    began = time.time()
    for name in ("held", "declared"):
        assert infer(server, name, BODY).status == 200
    found = memory(server)
    assert found.keys() == {"held", "declared"}
    held = found["held"]
    assert held["basis"] == "measured" and HELD <= held["processes"] <= BUDGET and held["server"] >= 0
    assert held["budget"] == held["server"] + held["processes"]
    assert began - 1 <= held["measured_at"] / 1000 <= time.time()
    assert (found["declared"]["basis"], found["declared"]["budget"]) == ("declared", 5000)
    # Nobody else gets another answer than before.
    for body in (None, "{}", '{"memory": false}', '{"ready": true}'):
        for line in request(server, "POST", "/v2/repository/index", body).json:
            assert line.keys() <= {"name", "version", "state", "reason"}
    # 500 is the reference's status for its member.
    for flag, status in (("ready", 500), ("memory", 400)):
        for value in ("1", '"true"', "[]", "{}"):
            refused = request(server, "POST", "/v2/repository/index", f'{{"{flag}": {value}}}')
            assert (refused.status, refused.json["error"]) == (status, f"'{flag}' is not true or false")
    # Over gRPC, by a field that the client's messages do not have.
    with grpc.insecure_channel(server.grpc_url) as channel:
        asking = messages.RepositoryIndexRequest.FromString(b"\xa0\x06\x01")
        answer = grpc_requests.stub(channel).RepositoryIndex(asking)
        plain = grpc_requests.stub(channel).RepositoryIndex(messages.RepositoryIndexRequest())
    assert [line.name for line in answer.models] == [line.name for line in plain.models]
    assert b"measured" in answer.SerializeToString() and b"declared" in answer.SerializeToString()
    assert b"measured" not in plain.SerializeToString()
    # What a model out of memory would take, in this run and in the next.
    assert request(server, "POST", "/v2/repository/models/held/unload").status == 200
    assert eventually(lambda: states(server)["held"] == "UNLOADED")
    assert memory(server)["held"] == held
    assert eventually(lambda: records(tmp_path).keys() == {"held", "declared"})
    server.stop()
    again = start("--model-control-mode=on-demand")
    assert memory(again)["held"] == {**held, "basis": "recorded"}


def test_clients_see_the_memory_of_models_that_they_may_see(repository, serve, tmp_path):
    for name in ("mine", "theirs"):
        write_identity(repository, name, ["INT32"])
    policy = Policy(tmp_path / "policy", {"me": [(["read"], ["mine"])], "all": [(["read"], ["*"])]})
    server = serve(f"--access={policy.file}")
    for name, visible in (("me", {"mine"}), ("all", {"mine", "theirs"})):
        assert memory(server, {"Authorization": f"Bearer {policy.keys[name]}"}).keys() == visible


def test_a_model_that_grows_counts_more_and_may_have_to_leave(repository, start):
    text = config("growing", "python", [("INPUT0", "INT32", [-1])], [("OUTPUT0", "INT32", [-1])])
    write_model(repository, "growing", text)
    (repository / "growing" / "1" / "model.py").write_text(GROWING)
    write_identity(repository, "other", ["INT32"])
    server = start()
    before = memory(server)["growing"]["processes"]

    def grow(megabytes):
        body = {"inputs": [tensor("INPUT0", "INT32", [1], [megabytes])]}
        assert infer(server, "growing", body).status == 200

    grow(100)
    assert eventually(lambda: memory(server)["growing"]["processes"] >= before + 100 * MB)
    found = memory(server)["growing"]
    assert found["budget"] == found["server"] + found["processes"]
    assert set(states(server).values()) == {"READY"}
    # More than the budget: the model with the least use for its size leaves.
    for _ in range(3):
        assert infer(server, "other", BODY).status == 200
    grow(250)
    assert eventually(lambda: states(server)["growing"] == "UNLOADED")
    assert re.search(r"models have grown to \d+\.\d MB, more than the memory budget of 300\.0 MB: 'growing' leaves", server.log)
    assert states(server)["other"] == "READY"
    # Its next load takes what it took at first.
    grow(0)
    assert memory(server)["growing"]["processes"] < before + 50 * MB


def test_models_leave_a_gpu_for_others_there(repository, start):
    for name, gpus in (("first", "0:600"), ("second", "0:600"), ("elsewhere", "1:600"), ("large", "0:2000")):
        write_identity(repository, name, ["INT32"], gpu_memory_byte_size=gpus)
    budgets = ("--model-gpu-memory-budget=0:1000", "--model-gpu-memory-budget=1:1000")
    server = start("--model-control-mode=on-demand", *budgets)
    for name in ("first", "elsewhere", "second"):
        assert infer(server, name, BODY).status == 200
    found = states(server)
    assert (found["first"], found["second"], found["elsewhere"]) == ("UNLOADED", "READY", "READY")
    refused = infer(server, "large", BODY)
    assert refused.status == 503 and "of GPU 0, more than the memory budget of" in refused.json["error"]
    assert memory(server)["second"]["gpus"] == [{"gpu": 0, "budget": 600}]
    line = r'nereid_model_memory_bytes\{model="(\w+)",version="1",kind="gpu_budget",gpu="(\d)"\} 600'
    assert set(re.findall(line, Scrape(server).text)) == {("second", "0"), ("elsewhere", "1")}
    assert infer(server, "first", BODY).status == 200 and states(server)["elsewhere"] == "READY"


def test_an_invalid_size_of_a_gpu_is_refused(repository, serve):
    write_identity(repository, "model", ["INT32"], gpu_memory_byte_size="0:many")
    server = serve("--exit-on-error=false", ready=False)
    (line,) = request(server, "POST", "/v2/repository/index").json
    assert line["state"] == "UNAVAILABLE" and "parameter 'gpu_memory_byte_size' is '0:many', but must be bytes" in line["reason"]

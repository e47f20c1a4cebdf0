"""What models take of the memory of GPUs: measured when they are loaded and while they serve, shown, kept, and within budgets."""

import json
import re

import grpc
import pytest
from tritonclient.grpc import service_pb2 as messages

import gpu_memory
import grpc_requests
import python_backend
from console_pages import expect
from http_requests import infer, request, tensor
from model_files import config, write_model
from scrapes import Scrape
from waiting import eventually

MB = 1_000_000
# Two such models do not fit.
TAKEN, BUDGET = 600 * MB, 1000 * MB

# Takes memory of a GPU as far as the stand-in goes: when it is loaded, and as many megabytes as a request says.
TAKING = """
import os

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def take(self, size):
        with open({processes!r}, "a") as file:
            file.write(f"{gpu} {{{sign} * os.getpid()}} {{size}}\\n")

    def initialize(self, args):
        self.take({size})

    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests]
        for value in inputs:
            self.take(int(value[0]) * {mb})
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", value)]) for value in inputs]
"""


@pytest.fixture(scope="module", autouse=True)
def backend():
    python_backend.prepare()


@pytest.fixture
def nvml(tmp_path):
    """Two GPUs, of which other programs take a part."""
    nvml = gpu_memory.Nvml(tmp_path)
    nvml.report((0, 300 * MB, 70_000), (0, 0, 70_000))
    return nvml


@pytest.fixture
def write(repository, nvml):
    """Writes a model that takes memory of a GPU."""

    def written(name, gpu, size=TAKEN, sign=1, on_gpu=False, more=""):
        text = config(name, "python", [("INPUT0", "INT32", [-1])], [("OUTPUT0", "INT32", [-1])])
        if on_gpu:
            text = text.replace("kind: KIND_CPU", f"kind: KIND_GPU gpus: [ {gpu} ]")
        write_model(repository, name, text + more)
        model = TAKING.format(processes=str(nvml.processes), gpu=gpu, sign=sign, size=size, mb=MB)
        (repository / name / "1" / "model.py").write_text(model)

    return written


@pytest.fixture
def start(serve, tmp_path, nvml):
    """Starts a server that keeps its records in a folder of the test's."""
    library = gpu_memory.compile_standin(tmp_path)

    def started(*flags, variables=nvml.environment, budgets=(0, 1), budget=BUDGET):
        folder = f"--model-memory-directory={tmp_path / 'records'}"
        limits = [f"--model-gpu-memory-budget={gpu}:{budget}" for gpu in budgets]
        env = python_backend.environment() | {"STANDIN_DEVICES": "9.0,9.0"} | variables
        driver = f"--cuda-driver-library={library}"
        pools = [f"--cuda-memory-pool-byte-size={gpu}:0" for gpu in (0, 1)]
        return serve(driver, *pools, folder, *limits, *flags, env=env)

    return started


def states(server):
    """The state of each model."""
    return {line["name"]: line["state"] for line in request(server, "POST", "/v2/repository/index").json}


def on_gpus(server):
    """What the index has of the memory of GPUs, by the names of models."""
    index = request(server, "POST", "/v2/repository/index", json.dumps({"memory": True})).json
    return {line["name"]: line.get("memory", {}).get("gpus") for line in index}


def take(server, name, megabytes=0):
    """Has a model take more memory."""
    body = {"inputs": [tensor("INPUT0", "INT32", [1], [megabytes])]}
    assert infer(server, name, body).status == 200


def taken(gpu, measured, budget=None):
    """The entry of a GPU in the index."""
    return {"gpu": gpu, "measured": measured, "budget": measured if budget is None else budget}


def varint(number):
    """A number in Protobuf's encoding."""
    return bytes([number & 127 | 128]) + varint(number >> 7) if number > 127 else bytes([number])


@pytest.mark.parametrize("threads", (0, 4))
def test_a_restarted_server_knows_what_its_models_take_of_gpus(write, start, tmp_path, threads):
    """Loads side by side are told apart by their processes."""
    sizes = {"one": (0, TAKEN), "two": (0, TAKEN + 50 * MB), "else": (1, TAKEN), "none": (1, 0)}
    for name, (gpu, size) in sizes.items():
        write(name, gpu, size)
    server = start(f"--model-load-thread-count={threads}", budget=4 * BUDGET)
    assert set(states(server).values()) == {"READY"}
    expected = {name: [taken(gpu, size)] if size else None for name, (gpu, size) in sizes.items()}
    assert eventually(lambda: on_gpus(server) == expected), on_gpus(server)
    line = r'nereid_model_memory_bytes\{model="(\w+)",version="1",kind="gpu(?:_budget)?",gpu="(\d)"\} (\d+)'
    metrics = [("one", "0", str(TAKEN)), ("two", "0", str(TAKEN + 50 * MB)), ("else", "1", str(TAKEN))]
    assert sorted(re.findall(line, Scrape(server).text)) == sorted(metrics * 2)
    with grpc.insecure_channel(server.grpc_url) as channel:
        # The request has the field `memory`, which the client's messages do not have; nor do its answers.
        asking = messages.RepositoryIndexRequest.FromString(b"\xa0\x06\x01")
        answer = grpc_requests.stub(channel).RepositoryIndex(asking).SerializeToString()
    for size in (TAKEN, TAKEN + 50 * MB):
        assert answer.count(b"\x10" + varint(size) + b"\x18" + varint(size)) == 1 + (size == TAKEN)
    file = tmp_path / "records" / "model-memory.json"
    assert eventually(lambda: file.exists() and len(json.loads(file.read_text())["models"]) == 4)
    server.kill()

    again = start(f"--model-load-thread-count={threads}")
    found = states(again)
    assert sorted(found[name] for name in ("one", "two")) == ["READY", "UNLOADED"]
    assert found["else"] == found["none"] == "READY"
    (waiting,) = (name for name, state in found.items() if state == "UNLOADED")
    take(again, waiting)
    assert states(again) == found | {"one": found["two"], "two": found["one"]}


def test_a_model_whose_processes_take_more_of_a_gpu_may_have_to_leave(write, start):
    for name, gpu, size in (("growing", 0, 100 * MB), ("other", 0, 200 * MB), ("elsewhere", 1, TAKEN)):
        write(name, gpu, size)
    server = start()
    assert eventually(lambda: on_gpus(server)["growing"] == [taken(0, 100 * MB)])
    take(server, "growing", 300)
    assert eventually(lambda: on_gpus(server)["growing"] == [taken(0, 400 * MB)])
    assert set(states(server).values()) == {"READY"}
    for _ in range(3):
        take(server, "other")
    take(server, "growing", 500)
    assert eventually(lambda: states(server)["growing"] == "UNLOADED")
    assert re.search(
        r"models have grown to 1100\.0 MB of GPU 0, more than the memory budget of 1000\.0 MB: 'growing' leaves", server.log
    )
    assert states(server) == {"growing": "UNLOADED", "other": "READY", "elsewhere": "READY"}
    # Its next load takes what it took at first.
    take(server, "growing")
    assert eventually(lambda: on_gpus(server)["growing"] == [taken(0, 100 * MB)])


def test_where_processes_have_other_numbers_what_was_added_counts(write, start):
    """As in containers. Models without an instance on a GPU take what they want by themselves, which nobody sees there."""
    for name, gpu in (("first", 0), ("second", 0), ("third", 0), ("elsewhere", 1)):
        write(name, gpu, sign=-1, on_gpu=True)
    write("unseen", 1, 50 * MB, sign=-1)
    server = start("--model-control-mode=on-demand")
    for name in ("first", "elsewhere", "unseen"):
        take(server, name)
    expected = {"first": [taken(0, TAKEN)], "second": None, "third": None, "elsewhere": [taken(1, TAKEN)], "unseen": None}
    assert on_gpus(server) == expected
    # By its files, each has room beside the one before. Once what it takes is known, the one before leaves, and no other.
    for name, ready in (("second", {"second", "elsewhere", "unseen"}), ("third", {"third", "elsewhere", "unseen"})):
        take(server, name)
        assert eventually(lambda ready=ready: {name for name, state in states(server).items() if state == "READY"} == ready)


def test_declared_memory_comes_first_and_what_was_measured_is_shown(write, start, browser):
    declared = 'parameters { key: "gpu_memory_byte_size" value { string_value: "0:%d" } }' % (900 * MB)
    write("declared", 0, more=declared)
    server = start()
    assert eventually(lambda: on_gpus(server)["declared"] == [taken(0, TAKEN, 900 * MB)])
    with browser.console(server) as console:
        page = console.open("models/declared/signature")
        expect(page.get_by_role("region", name="Facts")).to_contain_text(re.compile(r"processes\); GPU 0: 572(\.\d+)? MiB"))


def test_without_the_management_library_sizes_of_files_count(write, start, nvml, tmp_path):
    write("model", 0, on_gpu=True)
    empty = tmp_path / "empty"
    empty.mkdir()
    server = start(variables=nvml.environment | {"LD_LIBRARY_PATH": str(empty)})
    assert states(server) == {"model": "READY"}
    ((gpu,),) = on_gpus(server).values()
    assert gpu["gpu"] == 0 and "measured" not in gpu and 0 < gpu["budget"] < MB
    assert "what models take of the memory of GPUs is not measured: " in server.log


def test_without_budgets_models_are_measured_too(write, start):
    write("model", 1)
    server = start(budgets=())
    assert eventually(lambda: on_gpus(server) == {"model": [taken(1, TAKEN)]})

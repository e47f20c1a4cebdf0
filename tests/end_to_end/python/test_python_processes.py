"""Models in Python that fail, in every way that a program can: the client learns why, the log has the traceback, other models
are unharmed, and a process that died is started again.
"""

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from http.client import HTTPConnection
from pathlib import Path

import grpc
import numpy
import pytest
import tritonclient.http
import tritonclient.utils.shared_memory as shared_memory
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tritonclient.utils import InferenceServerException

import nereid_server
import python_lab
from scrapes import Scrape
from waiting import eventually

FLAGS = [f"--backend-config=python,python={sys.executable}", "--model-control-mode=explicit"]
CONFIG = """
backend: "python"
input [ { name: "WHAT" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "ANSWER" data_type: TYPE_STRING dims: [ 1 ] } ]
"""
# The models of the conformance suite of backends.
DOUBLES = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(pb_utils.get_input_tensor_by_name(it, "X").as_numpy()) for it in requests]

    def answer(self, x):
        if (x < 0).any():
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("negative on purpose"))
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", x * 2)])
"""
FAILS_AT_START = """
class TritonPythonModel:
    def initialize(self, args):
        raise ValueError("broken on purpose")
"""
# Does what each request says.
OBEDIENT = """
import ctypes, os, sys, time
import numpy
import triton_python_backend_utils as pb_utils

def answer(text):
    return pb_utils.InferenceResponse([pb_utils.Tensor("ANSWER", numpy.array([text], dtype=object))])

class TritonPythonModel:
    def initialize(self, args):
        print("initialised", args["model_instance_name"])

    def act(self, what):
        if what == "exit":
            sys.exit(3)
        if what == "os._exit":
            os._exit(4)
        if what == "segfault":
            ctypes.string_at(0)
        if what == "loop":
            while True:
                pass
        if what == "allocate":
            import resource
            resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
            self.hoard = b"x" * (1 << 40)
        if what == "raise":
            raise ValueError("on purpose")
        if what == "triton":
            raise pb_utils.TritonModelException("of Triton's kind")
        if what == "error":
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("as a response", pb_utils.TritonError.NOT_FOUND))
        if what == "print":
            print("printed\\nin two lines")
            print("complained", file=sys.stderr)
        if what.startswith("log "):
            pb_utils.Logger.log_info(what.removeprefix("log "))
        if what == "pid":
            return answer(str(os.getpid()))
        return answer(what)

    def execute(self, requests):
        whats = [pb_utils.get_input_tensor_by_name(r, "WHAT").as_numpy()[0].decode() for r in requests]
        if whats == ["two"]:
            return [answer("1"), answer("2")]
        if whats == ["none"]:
            return []
        if whats == ["text"]:
            return ["text"]
        return [self.act(what) for what in whats]
"""


def put(repository, name, code, config=CONFIG):
    folder = repository / name / "1"
    folder.mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(config)
    (folder / "model.py").write_text(textwrap.dedent(code))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    repository = tmp_path_factory.mktemp("models")
    put(repository, "obedient", OBEDIENT)
    put(repository, "other", OBEDIENT)
    with nereid_server.running(repository, *FLAGS, "--load-model=obedient", "--load-model=other") as server:
        yield server


@pytest.fixture
def client(models):
    with tritonclient.http.InferenceServerClient(models.url, network_timeout=60) as client:
        yield client


def ask(client, what, model="obedient"):
    """What the model answers."""
    tensor = tritonclient.http.InferInput("WHAT", [1], "BYTES")
    tensor.set_data_from_numpy(numpy.array([what], dtype=object))
    return client.infer(model, [tensor]).as_numpy("ANSWER")[0].decode()


@pytest.mark.parametrize(
    "what, message",
    [
        ("raise", "ValueError: on purpose"),
        ("triton", "of Triton's kind"),
        ("error", "as a response"),
        ("two", "2"),
        ("none", "0"),
        ("text", "InferenceResponse"),
        ("exit", "SystemExit|exited with status 3"),
    ],
)
def test_a_request_that_fails_says_why_and_the_process_lives_on(client, models, what, message):
    before = ask(client, "pid")
    with pytest.raises(InferenceServerException) as failure:
        ask(client, what)
    assert any(part in failure.value.message() for part in message.split("|")), failure.value.message()
    assert ask(client, "on") == "on"
    if what != "exit":
        assert ask(client, "pid") == before


def test_a_traceback_is_in_the_log_with_file_and_line(client, models):
    with pytest.raises(InferenceServerException):
        ask(client, "raise")
    models.wait_for_log(r"obedient_0: Traceback")
    models.wait_for_log(r'obedient_0: .*obedient/1/model.py\\\\?", line \d+, in act')


def test_printed_lines_of_a_model_are_logged_under_its_name(client, models):
    assert ask(client, "print") == "print"
    models.wait_for_log(r"^I.*obedient_0: in two lines")
    models.wait_for_log(r"^W.*obedient_0: complained")


@pytest.mark.parametrize(
    "what, end",
    [("os._exit", "exited with status 4"), ("segfault", "signal 11"), ("kill", "signal 9")],
)
def test_a_process_that_dies_is_started_again_and_counted(client, models, what, end):
    labels = {"model": "obedient", "version": "1"}
    restarts = Scrape(models).value("nereid_worker_restarts_total", **labels)
    before, other = ask(client, "pid"), ask(client, "pid", "other")
    if what == "kill":
        os.kill(int(before), 9)
        models.wait_for_log(f"obedient_0' was killed by {end}")
        assert eventually(lambda: Scrape(models).value("nereid_worker_restarts_total", **labels) > restarts)
    else:
        with pytest.raises(InferenceServerException, match=end):
            ask(client, what)
    # At once the first time, and after pauses if it goes on like this.
    assert eventually(lambda: client.is_model_ready("obedient"))
    assert ask(client, "pid") != before
    assert Scrape(models).value("nereid_worker_restarts_total", **labels) == restarts + 1
    assert ask(client, "pid", "other") == other


def test_models_in_python_conform_as_a_backend(tmp_path):
    program = Path(nereid_server.binary()).parent / "examples" / "python_conformance"
    assert program.exists(), f"{program} is missing: cargo build --workspace --all-targets"
    (tmp_path / "1").mkdir()
    for file, source in {"model.py": DOUBLES, "broken.py": FAILS_AT_START}.items():
        (tmp_path / "1" / file).write_text(source)
    outcome = subprocess.run([program, sys.executable, tmp_path], capture_output=True, text=True, timeout=120)
    assert outcome.returncode == 0, outcome.stderr
    assert "python conforms" in outcome.stdout


def test_memory_that_runs_out_fails_the_request_alone(client):
    with pytest.raises(InferenceServerException, match=r"MemoryError|signal 9"):
        ask(client, "allocate")
    assert ask(client, "on") == "on"


class Limited:
    """A process that may map only so much more memory, for a while."""

    def __init__(self, pid, more):
        self.pid = pid
        (pages, *_) = Path(f"/proc/{pid}/statm").read_text().split()
        self.limit = int(pages) * resource.getpagesize() + more

    def __enter__(self):
        self.before = resource.prlimit(self.pid, resource.RLIMIT_AS)
        resource.prlimit(self.pid, resource.RLIMIT_AS, (self.limit, self.before[1]))

    def __exit__(self, *_):
        resource.prlimit(self.pid, resource.RLIMIT_AS, self.before)


ECHO = """
import os
import numpy
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        answer = []
        for request in requests:
            given = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            output = numpy.zeros(int(given[0]), dtype=numpy.uint8)
            answer.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", output), pb_utils.Tensor("PID", numpy.array([os.getpid()]))]))
        return answer
"""
ECHO_CONFIG = """
backend: "python"
input { name: "IN" data_type: TYPE_INT64 dims: -1 }
output { name: "OUT" data_type: TYPE_UINT8 dims: -1 } output { name: "PID" data_type: TYPE_INT64 dims: 1 }
"""


def test_shared_memory_that_runs_out_fails_the_request_alone(repository, serve):
    put(repository, "echo", ECHO, ECHO_CONFIG)
    server = serve(*FLAGS, "--load-model=*")
    elements = 24 << 20
    region = shared_memory.create_shared_memory_region("in", f"/nereid-{os.getpid()}", elements * 8)
    with tritonclient.http.InferenceServerClient(server.url, network_timeout=60) as client:

        def ask(length, count=1):
            shared_memory.set_shared_memory_region(region, [numpy.array([length], dtype=numpy.int64)])
            tensor = tritonclient.http.InferInput("IN", [count], "INT64")
            tensor.set_shared_memory("in", count * 8)
            answer = client.infer("echo", [tensor])
            return len(answer.as_numpy("OUT")), int(answer.as_numpy("PID")[0])

        try:
            client.register_system_shared_memory("in", f"/nereid-{os.getpid()}", elements * 8)
            length, pid = ask(5)
            assert length == 5
            # An input, for which the server takes memory, and an output, for which the process does.
            with (
                Limited(server.pid, 32 << 20),
                pytest.raises(InferenceServerException, match=r"'IN': cannot take .* shared memory"),
            ):
                ask(5, elements)
            with Limited(pid, 128 << 20), pytest.raises(InferenceServerException, match="memory"):
                ask(100 << 20)
            assert ask(7) == (7, pid)
            assert ask(1 << 20, elements) == (1 << 20, pid)
        finally:
            client.unregister_system_shared_memory()
            shared_memory.destroy_shared_memory_region(region)


def test_a_loop_without_end_is_ended_by_the_limit(repository, serve):
    put(repository, "obedient", OBEDIENT)
    limit = "--backend-config=python,execute-timeout-seconds=2"
    server = serve(*FLAGS, "--load-model=*", limit)
    with tritonclient.http.InferenceServerClient(server.url, network_timeout=60) as client:
        before = ask(client, "pid")
        with pytest.raises(InferenceServerException, match="did not answer in time"):
            ask(client, "loop")
        assert ask(client, "pid") != before


CLASS = """
class TritonPythonModel:
    {body}
    def execute(self, requests):
        return []
"""
BROKEN = {
    "syntax": ("def nonsense(:", "SyntaxError"),
    "import": ("import a_module_that_nobody_has", "a_module_that_nobody_has"),
    "while_imported": ("def deeper():\n    raise LookupError('while it is imported')\ndeeper()", "while it is imported"),
    "no_class": ("x = 1", "TritonPythonModel"),
    "initialize": (CLASS.format(body="def initialize(self, args): raise KeyError('lost')"), "KeyError: 'lost'"),
    "exits": (CLASS.format(body="def initialize(self, args): import os; os._exit(9)"), "exited with status 9"),
    "completion": (
        CLASS.format(body="@staticmethod\n    def auto_complete_config(config): raise OSError('nothing to complete')"),
        "nothing to complete",
    ),
    "completion_exits": (
        CLASS.format(body="@staticmethod\n    def auto_complete_config(config): import os; os._exit(5)"),
        "exited with status 5",
    ),
    "completes_nonsense": (
        CLASS.format(body="@staticmethod\n    def auto_complete_config(config): return 7"),
        "ModelConfig",
    ),
}


def children(pid):
    """The processes that a server has started."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if fields[1] == str(pid):
            found.append(int(stat.parent.name))
    return found


def held(pid):
    """What a process holds: descriptors, and mappings of memory files."""
    return len(os.listdir(f"/proc/{pid}/fd")), Path(f"/proc/{pid}/maps").read_text().count("memfd:nereid-tensors")


def resident(pid):
    """Resident memory in MiB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def test_models_that_do_not_load_say_why_and_leak_nothing(repository, serve):
    for name, (code, _) in BROKEN.items():
        put(repository, name, code)
    put(repository, "missing", "")
    (repository / "missing" / "1" / "model.py").unlink()
    server = serve(*FLAGS)
    with tritonclient.http.InferenceServerClient(server.url, network_timeout=60) as client:

        def fail(name):
            with pytest.raises(InferenceServerException) as failure:
                client.load_model(name)
            return failure.value.message()

        for name, (_, reason) in BROKEN.items():
            assert reason in fail(name), name
        assert "model.py" in fail("missing")
        # The log has all frames of an exception: also those within an import, and those outside of it.
        for where in [
            r"while_imported/1/model\.py.*line 3, in <module>",
            r"while_imported/1/model\.py.*line 2, in deeper",
            "in _find",
        ]:
            server.wait_for_log(where)
        assert eventually(lambda: not children(server.pid))
        before, memory = held(server.pid), resident(server.pid)
        for _ in range(200):
            fail("missing")
        for name in [*BROKEN] * 5:
            fail(name)
        assert eventually(lambda: not children(server.pid))
        assert eventually(lambda: all(now <= then for now, then in zip(held(server.pid), before)))
        assert resident(server.pid) < memory + 16


# Waits until as many instances as the model has are at the same place.
TOGETHER = """
import os, time
import numpy
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        here = os.path.join(args["model_repository"], "here")
        os.makedirs(here, exist_ok=True)
        open(os.path.join(here, args["model_instance_name"]), "w").close()
        limit = time.monotonic() + 25
        while len(os.listdir(here)) < 6:
            if time.monotonic() > limit:
                raise RuntimeError("the others do not start meanwhile")
            time.sleep(0.01)

    def execute(self, requests):
        return [pb_utils.InferenceResponse([]) for _ in requests]
"""


def test_a_model_without_a_configuration_has_no_tensors(repository, serve):
    put(repository, "bare", CLASS.format(body="").replace("[]", "[pb.InferenceResponse([]) for _ in requests]"), "")
    model = repository / "bare" / "1" / "model.py"
    model.write_text("import triton_python_backend_utils as pb\n" + model.read_text())
    for name in ("empty", "backend_alone"):
        shutil.copytree(repository / "bare", repository / name)
    (repository / "bare" / "config.pbtxt").unlink()
    (repository / "backend_alone" / "config.pbtxt").write_text('backend: "python"')
    server = serve(*FLAGS, "--load-model=*")
    with tritonclient.http.InferenceServerClient(server.url, network_timeout=60) as client:
        for name in ("bare", "empty", "backend_alone"):
            config = client.get_model_config(name)
            assert (config["input"], config["output"], config["max_batch_size"]) == ([], [], 0)
            assert client.infer(name, []).get_response()["outputs"] == []
            tensor = tritonclient.http.InferInput("X", [1], "INT8").set_data_from_numpy(numpy.zeros(1, "int8"))
            with pytest.raises(InferenceServerException, match="expected 0 inputs but got 1 inputs"):
                client.infer(name, [tensor])


def test_a_stopped_process_does_not_hold_up_the_end_of_the_server(repository, serve):
    put(repository, "obedient", OBEDIENT + "\n    def finalize(self):\n        print('finalised')\n")
    server = serve(*FLAGS, "--load-model=obedient")
    with tritonclient.http.InferenceServerClient(server.url) as client:
        os.kill(int(ask(client, "pid")), signal.SIGSTOP)
    began = time.monotonic()
    server.stop()
    # Less than the exit timeout, which is 30 seconds.
    assert time.monotonic() - began < 20
    server.wait_for_log("obedient_0.*finalised")


@pytest.mark.parametrize("text", ["a\nE0101 00:00:00.000000 1 x.rs:1] one", "\nE0101 two", "\r\x1b[2Jthree", "\n\nfour"])
def test_log_messages_of_a_model_are_one_line_without_control_characters(client, models, text):
    forged = text[-3:]
    ask(client, "log " + text)
    models.wait_for_log(re.escape(forged) + '"$')
    (line,) = [line for line in models.log.splitlines() if line.endswith(forged + '"')]
    assert line.startswith("I") and line.isprintable(), line


# Answers a small request with a large tensor.
LARGE = """
import numpy
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        tensor = pb_utils.Tensor("OUT", numpy.arange(5000, dtype="float32"))
        return [pb_utils.InferenceResponse([tensor]) for _ in requests]
"""
LARGE_CONFIG = """
backend: "python" input { name: "IN" data_type: TYPE_FP32 dims: 1 } output { name: "OUT" data_type: TYPE_FP32 dims: -1 }
"""


def test_an_answer_that_cannot_be_mapped_fails_alone(repository, serve):
    python_lab.write(repository, "lab")
    put(repository, "large", LARGE, LARGE_CONFIG)
    server = serve(*FLAGS, "--load-model=*")
    code = """
import resource
def large():
    answer = ask("large", [tensor("IN", [1], "float32")], ["OUT"]).exec()
    return answer.error().message() if answer.has_error() else float(answer.output_tensors()[0].as_numpy().sum())

soft, hard = resource.getrlimit(resource.RLIMIT_AS)
with open("/proc/self/statm") as sizes:
    mapped = int(sizes.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (mapped + (32 << 20), hard))
failed = [outcome(large) for _ in range(3)]
resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
result = [failed, [large() for _ in range(3)]]
"""
    with tritonclient.http.InferenceServerClient(server.url, network_timeout=60) as client:
        failed, answers = python_lab.run(client, code)
        assert all("'OUT': cannot map its shared memory: Cannot allocate memory" in reason for reason in failed), failed
        assert answers == [sum(range(5000))] * 3
        assert client.is_model_ready("lab")


# Answers with a tensor of as many dimensions as its input says.
WIDE = """
import ctypes
import numpy
import triton_python_backend_utils as pb_utils

class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("dimensions", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p), ("offset", ctypes.c_uint64),
                ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]

new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype = ctypes.py_object
new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]

class TritonPythonModel:
    kept = []

    def wide(self, dimensions):
        data, shape = (ctypes.c_float * 1)(7), (ctypes.c_int64 * dimensions)(*[1] * dimensions)
        tensor = Tensor(ctypes.addressof(data), (1, 0), dimensions, 2, 32, 1, ctypes.addressof(shape))
        self.kept.append((data, shape, tensor))
        return pb_utils.Tensor.from_dlpack("OUT", new_capsule(ctypes.addressof(tensor), b"dltensor", None))

    def execute(self, requests):
        dimensions = [int(request.inputs()[0].as_numpy()[0]) for request in requests]
        return [pb_utils.InferenceResponse([self.wide(number)]) for number in dimensions]
"""


@pytest.mark.parametrize(("dimensions", "is_answered"), [(1, True), (33, True), (64, True), (65, False), (5_000_000, False)])
def test_outputs_have_64_dimensions_at_most(wide, dimensions, is_answered):
    tensor = tritonclient.http.InferInput("IN", [1], "FP32")
    tensor.set_data_from_numpy(numpy.array([dimensions], dtype=numpy.float32))
    with tritonclient.http.InferenceServerClient(wide.url, network_timeout=60) as client:
        if is_answered:
            (output,) = client.infer("wide", [tensor]).get_response()["outputs"]
            assert output["shape"] == [1] * dimensions
        else:
            reason = f"tensor 'OUT': it has {dimensions} dimensions, but may have 64 at most"
            with pytest.raises(InferenceServerException, match=reason):
                client.infer("wide", [tensor])


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    repository = tmp_path_factory.mktemp("wide")
    put(repository, "wide", WIDE, LARGE_CONFIG)
    with nereid_server.running(repository, *FLAGS, "--load-model=wide") as server:
        yield server


def test_the_instances_of_a_model_start_side_by_side(repository, serve):
    put(repository, "together", TOGETHER, CONFIG + "instance_group { count: 6 kind: KIND_CPU }")
    server = serve(*FLAGS, "--load-model=together")
    assert len(children(server.pid)) == 6


# Notes its life in a file beside the model's folder.
NOTED = """
import os, time

class TritonPythonModel:
    def initialize(self, args):
        self.file = os.path.join(args["model_repository"], "..", "..", "noted.txt")
        self.note("started")

    def note(self, what):
        with open(self.file, "a") as file:
            print(what, file=file)

    def finalize(self):
        time.sleep(0.2)
        self.note("finalized")
"""


@pytest.mark.parametrize(
    "groups",
    [
        # Each with how many instances start and are finalized before the load is answered.
        [("count: 2", 2, 0), ("count: 1", 0, 1), ("count: 3", 2, 0), ("count: 1", 0, 2), ("count: 2", 1, 0), ("count: 1", 0, 1)],
        [
            ("count: 1", 1, 0),
            ("count: 2 name: 'renamed'", 1, 0),
            ("count: 1", 0, 1),
            ("count: 4", 3, 0),
            ("count: 4 name: 'x'", 0, 0),
        ],
    ],
)
def test_instances_stay_when_their_number_or_name_changes_and_removed_ones_are_finalized_first(repository, serve, groups):
    put(repository, "noted", NOTED, CONFIG)
    server = serve(*FLAGS)
    noted = repository.parent / "noted.txt"
    started = finalized = 0
    with tritonclient.http.InferenceServerClient(server.url) as client:
        for group, starts, ends in groups:
            (repository / "noted" / "config.pbtxt").write_text(CONFIG + f"instance_group {{ kind: KIND_CPU {group} }}")
            client.load_model("noted")
            started, finalized = started + starts, finalized + ends
            lines = noted.read_text().split()
            assert (lines.count("started"), lines.count("finalized")) == (started, finalized), group
            assert client.is_model_ready("noted") and client.is_server_ready()
    server.terminate()
    assert server.wait_for_exit() == 0
    assert noted.read_text().split().count("finalized") == started


def test_settings_without_a_meaning_are_taken_and_named_once(repository, serve):
    for name in ("one", "two"):
        put(repository, name, OBEDIENT, CONFIG)
    settings = ["shm-default-byte-size=64", "shm-growth-byte-size=64", "shm-region-prefix-name=x", "thread-pool-size=3"]
    server = serve(*FLAGS, "--load-model=*", *(f"--backend-config=python,{setting}" for setting in settings))
    with tritonclient.http.InferenceServerClient(server.url) as client:
        assert client.is_model_ready("one") and client.is_model_ready("two")
    (line,) = [line for line in server.log.splitlines() if "backend 'python' needs no" in line]
    assert all(setting.split("=")[0] in line for setting in settings)


def test_the_system_ends_processes_of_models_before_the_server_when_memory_runs_out(repository, serve):
    put(repository, "obedient", OBEDIENT, CONFIG)
    server = serve(*FLAGS, "--load-model=*")
    own, *others = (int(Path(f"/proc/{pid}/oom_score_adj").read_text()) for pid in (server.pid, *children(server.pid)))
    assert others == [min(own + 500, 1000)]


def test_processes_end_with_the_server_even_if_it_is_killed(repository, serve):
    put(repository, "obedient", OBEDIENT, CONFIG + "instance_group { count: 3 kind: KIND_CPU }")
    server = serve(*FLAGS, "--load-model=*")
    processes = children(server.pid)
    assert len(processes) == 3
    # Tensors are in memory that has no name, so that nothing can be left of it.
    maps = [Path(f"/proc/{pid}/maps").read_text() for pid in [server.pid, *processes]]
    assert not any("/dev/shm" in text for text in maps)
    os.kill(server.pid, 9)
    assert eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in processes))


COUNTER = """
import numpy
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            count = int(pb_utils.get_input_tensor_by_name(request, "WHAT").as_numpy()[0])
            sender = request.get_response_sender()
            for number in range(count):
                contents = numpy.array([str(number) + "x" * 1000], dtype=object)
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("ANSWER", contents)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
# Asks the model `counter` for more responses than it reads, and sends as many itself meanwhile.
RELAY = """
import numpy
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            what = pb_utils.get_input_tensor_by_name(request, "WHAT")
            inner = pb_utils.InferenceRequest(model_name="counter", requested_output_names=["ANSWER"], inputs=[what])
            sender, responses = request.get_response_sender(), inner.exec(decoupled=True)
            for number in range(int(what.as_numpy()[0])):
                contents = numpy.array([str(number) + "y" * 1000], dtype=object)
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("ANSWER", contents)]))
            read = sum(bool(response.output_tensors()) for response in responses)
            last = numpy.array([f"read {read}"], dtype=object)
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("ANSWER", last)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


def test_responses_that_nobody_reads_yet_hold_up_nothing_else(repository, serve):
    decoupled = CONFIG + "model_transaction_policy { decoupled: true }"
    put(repository, "counter", COUNTER, decoupled)
    put(repository, "relay", RELAY, decoupled)
    server = serve(*FLAGS, "--load-model=*")
    count = 3000
    body = json.dumps({"WHAT": str(count)})
    connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("POST", "/v2/models/relay/generate_stream", body)
    events = [line for line in connection.getresponse().read().decode().split("\n") if line.startswith("data: ")]
    connection.close()
    answers = [json.loads(event.removeprefix("data: "))["ANSWER"] for event in events]
    assert answers == [str(number) + "y" * 1000 for number in range(count)] + [f"read {count}"]


IS_READY = """
import os
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.sign = os.path.join(args["model_repository"], "ready")

    def is_ready(self):
        return os.path.exists(self.sign)

    def execute(self, requests):
        return [pb_utils.InferenceResponse([]) for _ in requests]
"""


def test_a_model_says_itself_whether_it_is_ready(repository, serve):
    put(repository, "fickle", IS_READY)
    put(repository, "obedient", OBEDIENT)
    sign = repository / "fickle" / "ready"
    sign.touch()
    server = serve(*FLAGS, "--load-model=*")
    with tritonclient.http.InferenceServerClient(server.url, network_timeout=60) as client:
        for ready in (True, False, True):
            sign.touch() if ready else sign.unlink()
            assert client.is_model_ready("fickle") == ready
            assert client.is_model_ready("obedient")


STARTS_AT_TIMES = """
import os

class TritonPythonModel:
    def initialize(self, arguments):
        if os.path.exists(os.path.join(arguments["model_repository"], "kept-down")):
            raise ValueError("is kept down")

    def execute(self, requests):
        os._exit(3)
"""


def test_a_health_watch_follows_the_processes_of_models_and_what_models_say(repository, serve):
    put(repository, "fickle", IS_READY)
    put(repository, "dies", STARTS_AT_TIMES)
    sign, kept_down = repository / "fickle" / "ready", repository / "dies" / "kept-down"
    sign.touch()
    server = serve(*FLAGS, "--load-model=*")
    with grpc.insecure_channel(server.grpc_url) as channel:
        statuses = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=60)

        def serving():
            return next(statuses).status == health_pb2.HealthCheckResponse.SERVING

        assert serving()
        with tritonclient.http.InferenceServerClient(server.url, network_timeout=60) as client:
            kept_down.touch()
            with pytest.raises(InferenceServerException, match="exited with status 3"):
                ask(client, "x", "dies")
            assert not serving()
            kept_down.unlink()
            assert serving()
        sign.unlink()
        assert not serving()
        sign.touch()
        assert serving()
        statuses.cancel()

"""What the processes of models may do, by the setting `sandbox`: the same model's code against the same server, confined and not."""

import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import tritonclient.http
import tritonclient.utils.shared_memory as shared_memory

import native_backends
import nereid_server
import openvino_models
import python_lab
from access_policies import RIGHTS, Policy
from model_files import write_identity
from tensors import given

LEVELS = ["off", "basic", "on", "required"]
CONFINED = ["on", "required"]
# A segment that another process left, which is also the name of a temporary file, and a variable with a secret.
SEGMENT = "nereid_sandbox_test"
SECRET = {"NEREID_TEST_SECRET": "of the server"}
# Reads a byte of another process's memory without a file. Permission is checked before the address, which is not mapped.
PEEK = """
import ctypes, errno
class Part(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
here, there = Part(ctypes.addressof(ctypes.create_string_buffer(1)), 1), Part(1, 1)
library = ctypes.CDLL(None, use_errno=True)
library.process_vm_readv({process}, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
result = errno.errorcode[ctypes.get_errno()]
"""


@pytest.fixture(scope="module", params=LEVELS)
def level(request):
    return request.param


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    repository = tmp_path_factory.mktemp("models")
    python_lab.write(repository, "lab")
    python_lab.write(repository, "neighbour")
    (repository / "lab" / "words.txt").write_text("own")
    return repository


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    """The server's policy and its file of keys, outside the repository. Clients without a key may do everything."""
    everything = [(RIGHTS, ["*"])]
    return Policy(tmp_path_factory.mktemp("access"), {"operator": everything}, anonymous=everything)


@pytest.fixture(scope="module")
def outside(tmp_path_factory):
    """A folder outside the repository, with a file that the server may read."""
    folder = tmp_path_factory.mktemp("outside")
    (folder / "file").write_text("secret")
    return folder


@contextlib.contextmanager
def running(repository, *settings, more=()):
    flags = [*more, *python_lab.FLAGS, *(f"--backend-config=python,{setting}" for setting in settings)]
    with nereid_server.running(repository, *flags, env={**os.environ, **SECRET}) as server:
        yield server


@pytest.fixture(scope="module")
def models(repository, level, policy):
    with running(repository, f"sandbox={level}", more=[policy.option]) as server:
        yield server


@pytest.fixture
def client(models):
    with tritonclient.http.InferenceServerClient(models.url, network_timeout=60) as client:
        yield client


def outcome(client, expression):
    """What an expression gives within the model, or the name of the error that it raises."""
    found = python_lab.run(client, f"result = outcome(lambda: {expression})")
    return found.split(":")[0] if isinstance(found, str) else found


def attempts(server, outside, repository, policy, other):
    """What a hostile model tries, and the first level that refuses it. `other` is another model's process and its folder."""
    neighbour, file = repository / "neighbour", outside / "file"
    port = server.url.rpartition(":")[2]
    process, temporary = other
    return {
        f"len(open('{policy.keys_file}').read())": "on",
        f"len(open('{policy.file}').read())": "on",
        f"len(open('{file}').read())": "on",
        f"open('{temporary}/{SEGMENT}', 'w').write('x')": "on",
        f"len(open('{neighbour}/config.pbtxt').read())": "on",
        f"len(os.listdir('{repository}'))": "on",
        f"open('{outside}/new', 'w').write('x')": "on",
        "open(args['model_repository'] + '/beside', 'w').write('x')": "on",
        f"os.truncate('{file}', 6) or 1": "on",
        f"len(os.listdir('{Path.home()}') or [0])": "on",
        f"len(open('/dev/shm/{SEGMENT}', 'rb').read())": "on",
        f"__import__('socket').create_connection(('127.0.0.1', {port}), 5).close() or 1": "on",
        "__import__('socket').socket(__import__('socket').AF_UNIX).close() or 1": "on",
        "len(os.environ['NEREID_TEST_SECRET'])": "on",
        f"len(open('/proc/{server.pid}/cmdline').read())": "on",
        f"open('/proc/{server.pid}/mem', 'rb').close() or 1": "basic",
        f"open('/proc/{server.pid}/mem', 'r+b').close() or 1": "basic",
        f"len(open('/proc/{server.pid}/environ', 'rb').read())": "basic",
        f"open('/proc/{process}/mem', 'rb').close() or 1": "basic",
        f"os.kill({process}, 0) or 1": "basic",
        f"len(os.readlink('/proc/{server.pid}/fd/1'))": "basic",
        f"os.kill({server.pid}, 0) or 1": "basic",
        "1 - int([it for it in open('/proc/self/status') if it.startswith('NoNewPrivs')][0].split()[1]) or 1 // 0": "basic",
    }


def test_what_a_level_refuses_works_below_it(client, models, level, outside, repository, policy):
    segment = Path("/dev/shm") / SEGMENT
    segment.write_bytes(b"another's")
    code = "import tempfile; result = [os.getpid(), tempfile.gettempdir()]"
    other = python_lab.run(client, code, model="neighbour")
    try:
        for expression, refused_from in attempts(models, outside, repository, policy, other).items():
            found = outcome(client, expression)
            if LEVELS.index(level) >= LEVELS.index(refused_from):
                assert found in {"PermissionError", "FileNotFoundError", "KeyError", "ZeroDivisionError"}, expression
            else:
                assert isinstance(found, int) and found > 0, (expression, found)
    finally:
        segment.unlink()
        for written in (outside / "new", repository / "lab" / "beside", Path(other[1]) / SEGMENT):
            written.unlink(missing_ok=True)
    assert (outside / "file").read_text() == "secret"
    for process in (models.pid, other[0]):
        assert python_lab.run(client, PEEK.format(process=process)) == ("EFAULT" if level == "off" else "EPERM")


def test_the_server_survives_a_model_that_kills_it(client, models, level):
    if level == "off":
        # The signal that asks whether a process exists: nothing else refuses the others.
        assert outcome(client, f"os.kill({models.pid}, 0) or 1") == 1
        return
    for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP):
        assert outcome(client, f"os.kill({models.pid}, {number:d})") == "PermissionError"
    assert client.is_server_live()


def test_what_models_need_works_at_every_level(client, level):
    assert outcome(client, "open(args['model_repository'] + '/words.txt').read()") == "own"
    assert outcome(client, "(numpy.ones((64, 64)) @ numpy.ones((64, 64))).sum().item()") == 64.0**3
    for code in [
        "import tempfile; f = tempfile.NamedTemporaryFile(); f.write(b'x' * 100); f.flush(); result = os.path.getsize(f.name)",
        "import subprocess; result = len(subprocess.run(['echo', 'x' * 99], capture_output=True, check=True).stdout)",
        "found = []; t = threading.Thread(target=found.append, args=[100]); t.start(); t.join(); result = found[0]",
        "result = asyncio.run(asyncio.sleep(0, 100))",
        "import subprocess; p = subprocess.Popen(['sleep', '60']); p.kill(); p.wait(); result = 100",
        "import ssl, ctypes, hashlib, locale, urllib.request; result = 100 if ssl.create_default_context() else 0",
    ]:
        assert python_lab.run(client, code) == 100, (level, code)
    # An inner request, and tensors that travel in shared memory.
    inner = "result = pb_utils.get_output_tensor_by_name(" + (
        "ask('neighbour', [texts('CODE', 'result = 7')], ['RESULT']).exec(), 'RESULT').as_numpy()[0].decode()"
    )
    assert python_lab.run(client, inner) == "7"
    large = numpy.arange(1 << 20, dtype=numpy.float32)
    code = "outputs = [pb_utils.Tensor('OF', get(request, 'F').as_numpy() * 2)]"
    assert (client.infer("lab", python_lab.inputs(code, F=large)).as_numpy("OF") == large * 2).all()


def test_shared_memory_of_clients_works_at_every_level(client):
    values = numpy.arange(4096, dtype=numpy.float32)
    region = shared_memory.create_shared_memory_region("in", "/nereid_sandbox_client", values.nbytes)
    try:
        shared_memory.set_shared_memory_region(region, [values])
        client.register_system_shared_memory("in", "/nereid_sandbox_client", values.nbytes)
        tensors = python_lab.inputs("result = float(get(request, 'F').as_numpy().sum())", F=values)
        tensors[1] = tritonclient.http.InferInput("F", values.shape, "FP32")
        tensors[1].set_shared_memory("in", values.nbytes)
        assert python_lab.result(client.infer("lab", tensors)) == values.sum()
        client.unregister_system_shared_memory("in")
    finally:
        shared_memory.destroy_shared_memory_region(region)


def test_temporary_folders_go_with_their_processes(repository):
    with running(repository, "sandbox=on") as server, tritonclient.http.InferenceServerClient(server.url) as client:
        folder = Path(python_lab.run(client, "result = os.environ['TMPDIR']"))
        assert folder.is_dir() and folder.stat().st_mode & 0o077 == 0
        assert python_lab.run(client, "result = os.path.expanduser('~')") == str(folder)
    assert not folder.exists()


def test_next_start_removes_temporary_folders_of_a_killed_server(repository, tmp_path):
    flags = [*python_lab.FLAGS, "--backend-config=python,sandbox=on"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with nereid_server.running(repository, *flags, env=environment) as killed:
        left = set(tmp_path.glob("nereid-model-*"))
        assert len(left) == 2
        killed.kill()
        assert set(tmp_path.glob("nereid-model-*")) == left
        with nereid_server.running(repository, *flags, env=environment):
            own = set(tmp_path.glob("nereid-model-*"))
            assert len(own) == 2 and not own & left
    assert not list(tmp_path.glob("nereid-model-*"))


@pytest.mark.parametrize("level", CONFINED)
def test_operators_allow_paths_network_and_variables(repository, outside, level):
    own = ["sandbox-network.lab=on", f"sandbox-write.lab={outside}", "sandbox-variables.lab=NEREID_TEST_SECRET"]
    with running(repository, f"sandbox={level}", *own) as server:
        port = server.url.rpartition(":")[2]
        with tritonclient.http.InferenceServerClient(server.url, network_timeout=60) as client:
            connect = f"__import__('socket').create_connection(('127.0.0.1', {port}), 5).close() or 1"
            for expression in (f"open('{outside}/new', 'w').write('x')", connect, "len(os.environ['NEREID_TEST_SECRET'])"):
                assert outcome(client, expression) > 0, expression
                refused = python_lab.run(client, f"result = outcome(lambda: {expression})", model="neighbour")
                assert refused.split(":")[0] in {"PermissionError", "KeyError"}, expression
    (outside / "new").unlink()


@pytest.mark.parametrize("operator, model", [("basic", "on"), ("on", "off"), ("on", "basic")])
def test_models_tighten_their_sandbox_and_never_loosen_it(tmp_path, outside, operator, model):
    parameters = 'parameters { key: "sandbox" value { string_value: "%s" } }' % model
    parameters += 'parameters { key: "sandbox_network" value { string_value: "on" } }'
    python_lab.write(tmp_path, "lab", extra=parameters)
    with running(tmp_path, f"sandbox={operator}") as server:
        with tritonclient.http.InferenceServerClient(server.url, network_timeout=60) as client:
            assert outcome(client, f"open('{outside}/file').read()") == "PermissionError"
            assert outcome(client, "__import__('socket').socket()") == "PermissionError"


def test_memory_has_a_limit(repository):
    with running(repository, f"sandbox-memory={1 << 30}") as server:
        with tritonclient.http.InferenceServerClient(server.url, network_timeout=60) as client:
            assert outcome(client, "len(bytearray(64 << 20))") == 64 << 20
            assert outcome(client, "len(bytearray(2 << 30))") == "MemoryError"


@pytest.mark.parametrize("setting", ["sandbox=yes", "sandbox-network=all", "sandbox-memory=much"])
def test_invalid_settings_refuse_the_models(tmp_path, setting):
    python_lab.write(tmp_path, "lab")
    flags = [*python_lab.FLAGS, f"--backend-config=python,{setting}", "--exit-on-error=false"]
    with nereid_server.running(tmp_path, *flags, ready=False) as server:
        server.wait_for_log(f"backend setting '{setting.split('=')[0]}' is '{setting.split('=')[1]}': ")


@pytest.mark.parametrize("level, reaches", [("basic", True), ("on", False)])
def test_environments_of_models_are_prepared_within_the_sandbox(tmp_path, outside, level, reaches):
    python_lab.write(
        tmp_path, "lab", extra=('parameters { key: "EXECUTION_ENV_PATH" value { string_value: "$$TRITON_MODEL_DIRECTORY/env" } }')
    )
    environment = tmp_path / "lab" / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--system-site-packages", environment], check=True)
    # numpy is in the environment of these tests, from which that one was made.
    packages = next((environment / "lib").glob("python3*")) / "site-packages"
    (packages / "numpy.pth").write_text(str(Path(numpy.__file__).parent.parent))
    with (environment / "bin" / "activate").open("a") as script:
        script.write(f"\ncat {outside}/file && export REACHED=1\ntrue\n")
    settings = [f"sandbox={level}", f"sandbox-read={Path(numpy.__file__).parent.parent}"]
    with running(tmp_path, *settings) as server:
        with tritonclient.http.InferenceServerClient(server.url, network_timeout=60) as client:
            assert outcome(client, "os.environ.get('REACHED', '')") == ("1" if reaches else "")
            assert python_lab.run(client, "result = sys.prefix") == str(environment)


@pytest.mark.parametrize("level, filters", [("off", "0"), ("basic", "0"), ("on", "2"), ("required", "2")])
def test_frameworks_in_processes_execute_at_every_level(tmp_path, level, filters):
    openvino_models.write(tmp_path, openvino_models.network("scale", [("x", "FP32", [-1, 3])], doubled))
    settings = [f"--backend-config=openvino,{setting}" for setting in ("isolation=process", f"sandbox={level}")]
    with nereid_server.running(tmp_path, *openvino_models.FLAGS, *settings) as server:
        with tritonclient.http.InferenceServerClient(server.url, network_timeout=60) as client:
            values = numpy.array([[1, 2, 3]], dtype=numpy.float32)
            answer = client.infer("scale", [given("x", values)])
            assert (answer.as_numpy("y") == values * 2).all()
        # The process that the backend is opened in first serves no model, and ends.
        statuses = [(Path(f"/proc/{child}") / "status").read_text() for child in children(server.pid)]
        found = {line.split()[1] for status in statuses for line in status.splitlines() if line.startswith("Seccomp:")}
        assert found == {filters}


@pytest.mark.parametrize("level", LEVELS)
def test_code_in_the_processes_of_frameworks_reaches_no_further(tmp_path, policy, outside, level):
    repository, outcomes = tmp_path / "models", tmp_path / "outcomes"
    outcomes.mkdir()
    openvino_models.write(repository, openvino_models.network("scale", [("x", "FP32", [-1, 3])], doubled))
    write_identity(repository, "neighbour", ["INT32"])
    library = native_backends.compile_c(tmp_path / "libraries", "attempts")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        tried = {
            f"read {repository}/scale/1/model.xml": None,
            f"read {policy.keys_file}": "on",
            f"read {policy.file}": "on",
            f"read {repository}/neighbour/config.pbtxt": "on",
            f"list {repository}": "on",
            f"write {outside}/of_framework": "on",
            f"connect {listener.getsockname()[1]}": "on",
            "read /proc/@/mem": "basic",
            "write /proc/@/mem": "basic",
            "read /proc/@/environ": "basic",
            "peek @": "basic",
            "signal @": "basic",
        }
        settings = ["isolation=process", f"sandbox={level}", f"sandbox-read={library.parent}", f"sandbox-write={outcomes}"]
        settings.append("sandbox-variables=NEREID_ATTEMPTS:NEREID_OUTCOMES")
        preloaded = {"LD_PRELOAD": str(library), "NEREID_ATTEMPTS": "\n".join(tried), "NEREID_OUTCOMES": str(outcomes)}
        flags = [policy.option, *openvino_models.FLAGS, *(f"--backend-config=openvino,{setting}" for setting in settings)]
        with nereid_server.running(repository, *flags, env=os.environ | preloaded) as server:
            (process,) = children(server.pid)
            found = [line.split(" ", 1) for line in (outcomes / str(process)).read_text().splitlines()]
    (outside / "of_framework").unlink(missing_ok=True)
    assert [attempt for _, attempt in found] == [*tried]
    for number, attempt in found:
        refused_from = tried[attempt]
        if refused_from and LEVELS.index(level) >= LEVELS.index(refused_from):
            assert int(number) in (errno.EACCES, errno.EPERM), (number, attempt)
        else:
            assert number == "0", (os.strerror(int(number)), attempt)


def doubled(x):
    return {"y": openvino_models.ops.multiply(x, numpy.float32(2))}


def children(pid):
    """The processes that a process has started and that still run."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]

"""Models in Python with tensors on a GPU, when there is none, or its driver fails: only what needs it is affected. And what a
request costs. The driver is the stand-in."""

import os
from concurrent.futures import ThreadPoolExecutor

import numpy
import pytest
import tritonclient.http
from test_gpu_memory import body, register, within
from test_python_gpu import DEVICE_INPUTS, FLAGS, LOOK, run_on, write_lab

import gpu_memory
import python_lab
from http_requests import assert_refused, infer, tensor

NO_POOLS = ["--pinned-memory-pool-byte-size=0", "--cuda-memory-pool-byte-size=0:0"]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return gpu_memory.compile_standin(tmp_path_factory.mktemp("driver"))


@pytest.fixture(scope="module")
def driver(library):
    return gpu_memory.Driver(library)


@pytest.fixture
def models(repository, library):
    write_lab(repository, "lab", library)
    write_lab(repository, "on_gpu", library, DEVICE_INPUTS)


@pytest.fixture
def start(serve, models, library, standin):
    """Starts a server with a stand-in for its driver and that of its models."""

    def started(*flags, **more):
        return serve(
            *FLAGS, *(flags or [f"--cuda-driver-library={library}"]), *NO_POOLS, env=os.environ | standin.environment | more
        )

    return started


@pytest.fixture
def standin(tmp_path):
    return gpu_memory.Standin(tmp_path)


@pytest.fixture
def failing(standin):
    """Has calls of the driver fail from now on."""
    return standin.fail


@pytest.fixture
def copies(standin):
    """The copies since the last call."""
    return standin.copies


OUTPUT = """
if "theirs" not in kept:
    kept["theirs"] = device_arrays.Array(driver, numpy.arange(20_000, dtype="float32"))
outputs = [pb_utils.Tensor.from_dlpack("OF", kept["theirs"])]
"""
GIVEN = tensor("F", "FP32", [3], **within("io", 12))


def test_tensors_are_copied_once_and_only_where_needed(start, driver, copies):
    server = start()
    io = driver.allocate(numpy.arange(3, dtype=numpy.float32).tobytes(), 64)
    assert register(server, "io", body(io.handle, 64)).status == 200
    _, outputs = run_on(server, "lab", OUTPUT)
    assert outputs["OF"][-1] == 19_999
    copies()
    run_on(server, "lab", OUTPUT)
    assert copies() == ["cuMemcpyDtoH_v2 80000"]
    # An input stays where it is; the result is copied from there.
    code = 'outputs = [pb_utils.Tensor.from_dlpack("OF", get(request, "F"))]'
    run_on(server, "on_gpu", code, [GIVEN])
    assert copies() == ["cuMemcpyDtoH_v2 12"]
    run_on(server, "on_gpu", "get(request, 'F')", [GIVEN])
    assert copies() == []
    run_on(server, "lab", "get(request, 'F')", [GIVEN])
    assert copies() == ["cuMemcpyDtoH_v2 12"]


PREFERRED = """
inner = "outputs = [tensor('OF', [1, 2], 'float32')]"
preferred = pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_GPU, 0)
output = ask("lab", [texts("CODE", inner)], ["OF"], preferred_memory=preferred).exec().output_tensors()[0]
result = [output.is_cpu(), (output.as_numpy() if output.is_cpu() else device_arrays.consume(driver, output)[3]).tolist()]
"""


def test_memory_is_released_with_its_tensors(start, driver):
    server = start()
    io = driver.allocate(bytes(64))
    assert register(server, "io", body(io.handle, 64)).status == 200
    for _ in range(20):
        run_on(server, "on_gpu", LOOK, [GIVEN])
        assert run_on(server, "on_gpu", PREFERRED)[0] == [False, [1.0, 2.0]]
    assert run_on(server, "on_gpu", "result = driver.library.standin_memories()")[0] == 0


def test_a_call_that_fails_fails_its_request_alone(start, driver, failing):
    server = start()
    io = driver.allocate(bytes(64))
    assert register(server, "io", body(io.handle, 64)).status == 200
    pid = "result = os.getpid()"
    for call, model, code, given, words in [
        ("cuMemcpyDtoH_v2", "lab", OUTPUT, [], "tensor 'OF' cannot be copied from the GPU's memory: cuMemcpyDtoH_v2 failed"),
        ("cuIpcOpenMemHandle_v2", "on_gpu", LOOK, [GIVEN], "input 'F' is in GPU memory that cannot be opened: cuIpcOpenMem"),
    ]:
        run_on(server, model, code, given)
        before, _ = run_on(server, model, pid)
        failing(f"{call} 700")
        answer = infer(server, model, {"inputs": [tensor("CODE", "BYTES", [1], [code]), *given]})
        assert_refused(answer, 500)
        assert words in answer.json["error"] and "CUDA_ERROR_ILLEGAL_ADDRESS" in answer.json["error"]
        assert run_on(server, model, pid)[0] == before
        failing()
        run_on(server, model, code, given)
    # Where the GPU has no room, outputs are not where they are preferred.
    failing("cuMemAlloc_v2 2")
    assert run_on(server, "on_gpu", PREFERRED)[0] == [True, [1.0, 2.0]]


def test_in_a_batch_the_request_whose_input_cannot_be_opened_fails_alone(start, driver, failing, repository):
    config = repository / "on_gpu" / "config.pbtxt"
    text = config.read_text()
    config.write_text(
        text + "max_batch_size: 3 dynamic_batching { preferred_batch_size: 3 max_queue_delay_microseconds: 60000000 }"
    )
    server = start()
    io = driver.allocate(bytes(64))
    assert register(server, "io", body(io.handle, 64)).status == 200
    failing("cuIpcOpenMemHandle_v2 700")
    code = {"inputs": [tensor("CODE", "BYTES", [1, 1], ["result = len(get(request, 'F').as_numpy())"])]}
    plain = tensor("F", "FP32", [1, 3], [1, 2, 3])
    with ThreadPoolExecutor(3) as pool:
        given = [plain, GIVEN | {"shape": [1, 3]}, plain]
        answers = list(pool.map(lambda it: infer(server, "on_gpu", {"inputs": [*code["inputs"], it]}), given))
    assert [answer.status for answer in answers] == [200, 500, 200]
    assert "cannot be opened" in answers[1].json["error"]


@pytest.mark.parametrize(
    ("flag", "more", "words"),
    [
        (None, {"STANDIN_DEVICES": ""}, "no GPU 0: the driver reports 0, numbered from 0"),
        ("--cuda-driver-library=", {}, "the server uses no GPU memory"),
    ],
)
def test_without_a_gpu_tensors_there_are_refused(serve, repository, library, flag, more, words):
    python_lab.write(repository, "plain")
    flags = [*python_lab.FLAGS, flag or f"--cuda-driver-library={library}", *NO_POOLS]
    server = serve(*flags, env=os.environ | more)
    code = """
class Theirs:
    def __init__(self, kind):
        self.kind = kind
    def __dlpack_device__(self):
        return (self.kind, 0)
    def __dlpack__(self, **_):
        raise RuntimeError("nobody can use it")
result = [outcome(lambda: pb_utils.Tensor.from_dlpack("X", Theirs(kind))) for kind in (2, 13)]
"""
    with tritonclient.http.InferenceServerClient(server.url) as client:
        for refused in python_lab.run(client, code, "plain"):
            assert refused == f"TritonModelException: tensor 'X': it is in the memory of a GPU, which cannot be used: {words}"

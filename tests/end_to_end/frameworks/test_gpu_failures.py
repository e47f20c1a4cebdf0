"""Missing GPUs, and failing drivers: only what needs them is affected. The driver is the stand-in."""

import os

import numpy as np
import pytest
import tritonclient.http
from test_gpu_memory import TENSORS, VALUES, body, register, within

import gpu_memory
import native_backends
import nereid_server
from http_requests import assert_refused, infer, request, tensor
from model_files import write_identity
from scrapes import Scrape

LIMIT = "--pinned-memory-pool-byte-size=65536", "--cuda-memory-pool-byte-size=0:65536"


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return gpu_memory.compile_standin(tmp_path_factory.mktemp("driver"))


@pytest.fixture(scope="module")
def driver(library):
    return gpu_memory.Driver(library)


@pytest.fixture
def models(repository, tmp_path):
    """An identity model, and the backend in C that works on a GPU's memory; the folder of its backend."""
    write_identity(repository, "floats", ["FP32"])
    native_backends.compile_c(tmp_path / "backends", "gpu")
    native_backends.write_model(repository, "native", "gpu", TENSORS)
    return tmp_path / "backends"


@pytest.fixture
def start(serve, models, library, standin):
    """Starts a server with a stand-in for its driver, which is not the driver of the test itself."""
    variables = standin.environment | {"GPU_BACKEND_DRIVER": str(library)}

    def started(*flags, **more):
        flags = (f"--backend-directory={models}", f"--cuda-driver-library={library}", *LIMIT, *flags)
        return serve(*flags, env=os.environ | variables | more)

    return started


@pytest.fixture
def standin(tmp_path):
    return gpu_memory.Standin(tmp_path)


@pytest.fixture
def failing(standin):
    """Has calls of the server's driver fail from now on."""
    return standin.fail


@pytest.fixture
def copies(standin):
    """The copies since the last call."""
    return standin.copies


IN = {"inputs": [tensor("INPUT0", "FP32", [3], **within("io", 12))]}
OUT = {"outputs": [{"name": "OUTPUT0", "parameters": within("io", 12, 32)}]}
NATIVE = {
    "inputs": [tensor("IN", "FP32", [3], **within("io", 12))],
    "outputs": [{"name": "OUT", "parameters": within("io", 12, 32)}],
    "parameters": {"want": "GPU 0"},
}


def test_each_tensor_is_copied_once_and_only_where_needed(start, driver, copies):
    server = start()
    io = driver.allocate(VALUES.tobytes(), 64)
    assert register(server, "io", body(io.handle, 64)).status == 200
    copies()
    assert infer(server, "floats", IN | OUT).status == 200
    assert copies() == ["cuMemcpyDtoH_v2 12", "cuMemcpyHtoD_v2 12"]
    # The backend's own, and none of the server's.
    assert infer(server, "native", NATIVE).status == 200
    assert copies() == ["cuMemcpyDtoD_v2 12"]


def metrics(server):
    """The server's metrics of pinned memory: total, used."""
    scrape = Scrape(server)
    return scrape.value("nv_pinned_memory_pool_total_bytes"), scrape.value("nv_pinned_memory_pool_used_bytes")


def test_a_copy_that_fails_fails_its_request_alone(start, driver, failing):
    server = start()
    io = driver.allocate(VALUES.tobytes(), 64)
    assert register(server, "io", body(io.handle, 64)).status == 200
    for call, parts in [("cuMemcpyDtoH_v2", IN), ("cuMemcpyHtoD_v2", IN | OUT), ("cuStreamSynchronize", IN | OUT)]:
        failing(f"{call} 700")
        answer = infer(server, "floats", parts)
        assert_refused(answer, 500)
        assert f"{call} failed with CUDA_ERROR_ILLEGAL_ADDRESS" in answer.json["error"]
        plain = {"inputs": [tensor("INPUT0", "FP32", [1], [5])]}
        assert infer(server, "floats", plain).json["outputs"][0]["data"] == [5]
    # A backend that writes host memory, which is copied when it answers.
    host = NATIVE | {"parameters": {"want": "CPU"}}
    failing("cuStreamSynchronize 700")
    assert_refused(infer(server, "native", host), 500)
    failing("cuCtxPushCurrent_v2 201")
    assert_refused(infer(server, "floats", IN | OUT), 500)
    failing()
    assert infer(server, "native", host).status == 200
    assert infer(server, "floats", IN | OUT).status == 200
    assert np.frombuffer(io.read(12, 32), np.float32).tolist() == VALUES.tolist()


def test_a_region_that_cannot_be_opened_or_measured_is_not_registered(start, driver, failing):
    server = start()
    io = driver.allocate(VALUES.tobytes(), 64)
    for call in ["cuIpcOpenMemHandle_v2", "cuMemGetAddressRange_v2"]:
        failing(f"{call} 999")
        answer = register(server, "io", body(io.handle, 64))
        assert_refused(answer, 400)
        assert f"{call} failed with CUDA_ERROR_UNKNOWN: unknown error" in answer.json["error"]
    failing()
    answer = register(server, "io", body(io.handle, 65))
    assert_refused(answer, 400)
    assert "65 bytes requested from memory of 64 bytes" in answer.json["error"]
    handle = io.handle
    io.free()
    assert_refused(register(server, "io", body(handle, 64)), 400)


def test_memory_stays_readable_after_its_owner_gave_it_back(start, driver):
    server = start()
    io = driver.allocate(VALUES.tobytes(), 64)
    assert register(server, "io", body(io.handle, 64)).status == 200
    io.free()
    assert infer(server, "floats", IN).json["outputs"][0]["data"] == VALUES.tolist()


def test_a_region_that_cannot_be_closed_is_logged(start, driver, failing):
    server = start()
    io = driver.allocate(VALUES.tobytes(), 64)
    assert register(server, "io", body(io.handle, 64)).status == 200
    failing("cuIpcCloseMemHandle 999")
    assert request(server, "POST", "/v2/cudasharedmemory/region/io/unregister").status == 200
    server.wait_for_log("cannot free GPU memory: cuIpcCloseMemHandle failed")
    assert request(server, "GET", "/v2/cudasharedmemory/status").json == []


def test_the_metrics_show_the_pinned_memory_in_use(start):
    server = start()
    keep = {"inputs": [tensor("IN", "FP32", [3], [1, 2, 3])], "parameters": {"do": "keep"}}
    assert metrics(server) == (65536, 0)
    assert infer(server, "native", keep).status == 200
    assert metrics(server) == (65536, 12)
    assert infer(server, "native", keep).status == 200
    assert metrics(server) == (65536, 0)
    assert metrics(start(STANDIN_DEVICES="")) == (0, 0)


def test_the_server_runs_without_a_pool_that_cannot_be_allocated(start, driver, failing):
    failing("cuMemHostAlloc 2", "cuMemAlloc_v2 2")
    server = start()
    server.wait_for_log("Pinned memory pool is not created: cuMemHostAlloc failed with CUDA_ERROR_OUT_OF_MEMORY")
    server.wait_for_log("CUDA memory pool is not created on device 0: cuMemAlloc_v2 failed")
    io = driver.allocate(VALUES.tobytes(), 64)
    assert register(server, "io", body(io.handle, 64)).status == 200
    told = infer(server, "native", NATIVE | {"parameters": {"do": "pools"}}).json["parameters"]
    assert (told["pinned"], told["device"]) == ("Unavailable", "Unavailable")


def test_gpus_below_the_minimum_compute_capability_are_not_used(start):
    flags = ("--min-supported-compute-capability=7.0", "--cuda-memory-pool-byte-size=1:4096")
    server = start(*flags, STANDIN_DEVICES="5.2,7.5")
    server.wait_for_log("GPU 0, Stand-in 0 with compute capability 5.2, is not used")
    server.wait_for_log("GPU 1, Stand-in 1 with compute capability 7.5, is used")
    server.wait_for_log("backends may borrow 4096 bytes of the memory of GPU 1")
    assert "on device 0" not in server.log


@pytest.mark.parametrize("why", ["no devices", "a driver that fails"])
def test_without_a_gpu_regions_are_refused_and_all_else_is_served(start, driver, failing, why):
    if why == "no devices":
        server = start(STANDIN_DEVICES="")
    else:
        failing("cuInit 999")
        server = start()
        server.wait_for_log("no GPU is used: cuInit failed with CUDA_ERROR_UNKNOWN")
    io = driver.allocate(VALUES.tobytes(), 64)
    answer = register(server, "io", body(io.handle, 64))
    assert_refused(answer, 400)
    assert "no GPU" in answer.json["error"]
    plain = {"inputs": [tensor("INPUT0", "FP32", [1], [5])]}
    assert infer(server, "floats", plain).json["outputs"][0]["data"] == [5]
    told = infer(server, "native", {"inputs": [tensor("IN", "FP32", [1], [5])], "parameters": {"do": "pools"}})
    assert [told.json["parameters"][key] for key in ("pinned", "device")] == ["Unsupported", "Unsupported"]


def test_groups_on_gpus_take_gpus_that_the_driver_has(repository, library, monkeypatch):
    write_identity(repository, "m", ["FP32"])
    config = repository / "m" / "config.pbtxt"
    config.write_text(config.read_text() + "instance_group { kind: KIND_GPU count: 1 gpus: [ 1 ] }\n")
    monkeypatch.setenv("STANDIN_DEVICES", "9.0,9.0")
    flag = f"--cuda-driver-library={library}"
    with nereid_server.running(repository, flag, *LIMIT) as server:
        plain = {"inputs": [tensor("INPUT0", "FP32", [1], [5])]}
        assert infer(server, "m", plain).status == 200
    monkeypatch.setenv("STANDIN_DEVICES", "9.0")
    server = nereid_server.refused_start(repository, flag)
    assert "GPU 1 is not available" in server.log


@pytest.mark.parametrize(
    ("limit", "instances", "loaded"),
    [
        ("0:0.75", "kind: KIND_GPU gpus: [ 0 ]", True),
        ("0:0.7", "kind: KIND_GPU gpus: [ 0 ]", False),
        ("0:0", "kind: KIND_GPU gpus: [ 1 ]", True),
        ("1:0.7", "kind: KIND_GPU gpus: [ 0 ]", True),
        ("1:0.7", "kind: KIND_GPU", False),
        ("0:0", "kind: KIND_CPU", True),
    ],
)
def test_models_are_not_loaded_onto_gpus_that_are_too_full(repository, library, limit, instances, loaded):
    write_identity(repository, "m", ["FP32"])
    config = repository / "m" / "config.pbtxt"
    text = config.read_text()
    config.write_text(text.replace("count: 1 kind: KIND_CPU", instances))
    environment = os.environ | {"STANDIN_DEVICES": "9.0,9.0", "STANDIN_USED": str(3 << 30)}
    flags = [f"--cuda-driver-library={library}", f"--model-load-gpu-limit={limit}", "--exit-on-error=false"]
    with nereid_server.running(repository, *flags, ready=False, env=environment) as server:
        assert (request(server, "GET", "/v2/models/m/ready").status == 200) == loaded
        assert ("75.0 % of its memory is in use, more than the limit of" in server.log) != loaded


def test_a_configured_driver_library_must_exist(repository):
    write_identity(repository, "m", ["FP32"])
    server = nereid_server.refused_start(repository, "--cuda-driver-library=/nowhere/libcuda.so.1")
    assert server.exit_code != 0
    assert "'/nowhere/libcuda.so.1'" in server.log


def test_an_unregistered_region_serves_the_requests_that_have_it(start, driver):
    server = start()
    io = driver.allocate(bytes(4 << 20))
    count = 1 << 20
    with tritonclient.http.InferenceServerClient(server.url, concurrency=8) as client:
        client.register_cuda_shared_memory("io", io.raw_handle, 0, io.size)
        given = tritonclient.http.InferInput("INPUT0", [count], "FP32")
        given.set_shared_memory("io", io.size)
        output = tritonclient.http.InferRequestedOutput("OUTPUT0")
        output.set_shared_memory("io", io.size)
        pending = [client.async_infer("floats", [given], outputs=[output]) for _ in range(16)]
        client.unregister_cuda_shared_memory("io")
        outcomes = []
        for answer in pending:
            try:
                answer.get_result()
                outcomes.append("answered")
            except tritonclient.utils.InferenceServerException as error:
                outcomes.append("unknown" if "Unable to find shared memory region" in str(error) else str(error))
        # Requests from before are answered, later ones refused: the server survives both.
        assert set(outcomes) <= {"answered", "unknown"}
        assert client.is_server_live()


def test_closed_servers_take_no_regions(serve, repository, library, driver):
    write_identity(repository, "floats", ["FP32"])
    server = serve("--allow-client-shm=false", f"--cuda-driver-library={library}", *LIMIT)
    io = driver.allocate(VALUES.tobytes(), 64)
    assert_refused(register(server, "io", body(io.handle, 64)), 501)
    assert_refused(request(server, "POST", "/v2/cudasharedmemory/unregister"), 501)
    assert_refused(request(server, "POST", "/v2/cudasharedmemory/region/io/unregister"), 501)
    assert request(server, "GET", "/v2/cudasharedmemory/status").json == []

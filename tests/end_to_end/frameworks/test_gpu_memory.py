"""Memory of a GPU: clients register it, inputs are read from it and outputs written to it, by backends of all kinds.

Without a GPU the driver is a stand-in, which ends the process that touches a device's memory other than by its calls.
`tests/gpu/run` has these tests use a GPU.
"""

import base64
import json
import time
from contextlib import ExitStack

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

import gpu_memory
import native_backends
import nereid_server
from http_requests import assert_refused, infer, request, tensor
from model_files import scale_model, write_identity

TENSORS = """
input { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }
"""
VALUES = np.array([1.5, -2, 3], np.float32)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """The driver library that the server and the tests load."""
    return gpu_memory.named_driver() or gpu_memory.compile_standin(tmp_path_factory.mktemp("driver"))


@pytest.fixture(scope="module")
def driver(library):
    return gpu_memory.Driver(library)


@pytest.fixture(scope="module")
def server(tmp_path_factory, library):
    """Identity models, one that computes, and a backend in C that works on a GPU's memory."""
    repository = tmp_path_factory.mktemp("models")
    write_identity(repository, "floats", ["FP32"])
    write_identity(repository, "texts", ["BYTES"])
    write_identity(repository, "two", ["INT32", "INT32"])
    scale_model("double").write(repository)
    backends = tmp_path_factory.mktemp("backends")
    native_backends.compile_c(backends, "gpu")
    native_backends.write_model(repository, "native", "gpu", TENSORS)
    native_backends.copy_rust(backends, "trial")
    native_backends.write_model(repository, "rust", "trial")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPU_BACKEND_DRIVER", library)
        flags = [f"--backend-directory={backends}", f"--cuda-driver-library={library}"]
        flags += ["--min-supported-compute-capability=1.0", "--pinned-memory-pool-byte-size=1048576"]
        flags += ["--cuda-memory-pool-byte-size=0:1048576"]
        with nereid_server.running(repository, *flags) as server:
            yield server


@pytest.fixture
def client(server):
    with tritonclient.http.InferenceServerClient(server.url) as client:
        yield client
        client.unregister_cuda_shared_memory()
        client.unregister_system_shared_memory()


@pytest.fixture
def grpc_client(server):
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        yield client
        client.unregister_cuda_shared_memory()


@pytest.fixture
def memory(driver):
    """Allocates memory of the GPU: `memory(contents, size)`."""
    with ExitStack() as made:

        def make(contents, size=None):
            allocated = driver.allocate(contents, size)
            made.callback(allocated.free)
            return allocated

        yield make


def registered(client, name, memory):
    """Registers all of an allocation."""
    client.register_cuda_shared_memory(name, memory.raw_handle, 0, memory.size)
    return memory


def body(handle, byte_size=16, device_id=0):
    """A request to register memory, of a handle in bytes."""
    return {"raw_handle": {"b64": base64.b64encode(handle).decode()}, "byte_size": byte_size, "device_id": device_id}


def register(server, name, text):
    if not isinstance(text, str):
        text = json.dumps(text)
    return request(server, "POST", f"/v2/cudasharedmemory/region/{name}/register", text)


def within(region, size, offset=0):
    """The parameters of a tensor that lies in a region."""
    return {"shared_memory_region": region, "shared_memory_byte_size": size, "shared_memory_offset": offset}


def through_regions(kind, client, model, name, wanted, nbytes):
    """Infers with Triton's client: an input at the beginning of the region "io", and an output at its 256th byte."""
    given = kind.InferInput(name, list(VALUES.shape), "FP32")
    given.set_shared_memory("io", nbytes)
    output = kind.InferRequestedOutput(wanted)
    output.set_shared_memory("io", nbytes, offset=256)
    return client.infer(model, [given], outputs=[output])


@pytest.mark.parametrize("kind", [tritonclient.http, tritonclient.grpc], ids=["http", "grpc"])
@pytest.mark.parametrize(("model", "name", "output"), [("floats", "INPUT0", "OUTPUT0"), ("native", "IN", "OUT")])
def test_the_client_infers_through_a_gpus_memory(client, grpc_client, memory, kind, model, name, output):
    chosen = client if kind is tritonclient.http else grpc_client
    io = registered(chosen, "io", memory(VALUES.tobytes(), 1024))
    answer = through_regions(kind, chosen, model, name, output, VALUES.nbytes)
    assert answer.get_output(output)
    assert np.frombuffer(io.read(VALUES.nbytes, 256), np.float32).tolist() == VALUES.tolist()
    # What the output leaves of the region stays as it is.
    assert io.read(1024 - 256 - VALUES.nbytes, 256 + VALUES.nbytes) == bytes(1024 - 256 - VALUES.nbytes)


def test_a_model_that_computes_on_the_processor_reads_and_writes_it(client, server, memory):
    io = registered(client, "io", memory(VALUES.tobytes(), 64))
    ask = {
        "inputs": [tensor("X", "FP32", [1, 3], **within("io", 12))],
        "outputs": [{"name": "Y", "parameters": within("io", 12, 32)}],
    }
    for _ in range(20):
        assert infer(server, "double", ask).json["outputs"] == [{"name": "Y", "datatype": "FP32", "shape": [1, 3]}]
    assert np.frombuffer(io.read(12, 32), np.float32).tolist() == [3, -4, 6]


def test_regions_are_listed_and_unregistered(client, grpc_client, memory):
    first, second = memory(b"1", 100), memory(b"2", 200)
    client.register_cuda_shared_memory("b", first.raw_handle, 0, 100)
    grpc_client.register_cuda_shared_memory("a", second.raw_handle, 0, 50)
    assert client.get_cuda_shared_memory_status() == [
        {"name": "a", "device_id": 0, "byte_size": 50},
        {"name": "b", "device_id": 0, "byte_size": 100},
    ]
    told = grpc_client.get_cuda_shared_memory_status("b", as_json=True)
    assert told == {"regions": {"b": {"name": "b", "byte_size": "100"}}}
    assert client.get_system_shared_memory_status() == []
    client.unregister_system_shared_memory("a")
    client.unregister_cuda_shared_memory("b")
    assert client.get_cuda_shared_memory_status("a") == [{"name": "a", "device_id": 0, "byte_size": 50}]
    with pytest.raises(InferenceServerException, match="Unable to find shared memory region: 'b'"):
        client.get_cuda_shared_memory_status("b")
    grpc_client.unregister_cuda_shared_memory()
    assert client.get_cuda_shared_memory_status() == []


def test_invalid_regions_are_refused(client, server, memory):
    allocated = memory(b"", 64)
    good = body(allocated.handle, 64)
    for wrong, status in [
        ("", 500),
        ("[]", 400),
        ({}, 400),
        (good | {"raw_handle": "AAAA"}, 500),
        (good | {"raw_handle": {}}, 500),
        (good | {"raw_handle": {"b64": 3}}, 500),
        (good | {"raw_handle": {"b64": "not base64!"}}, 400),
        (good | {"raw_handle": {"b64": "AAAA"}}, 400),
        (body(allocated.handle + b"\0"), 400),
        (body(bytes(64)), 400),
        (good | {"byte_size": 0}, 400),
        (good | {"byte_size": 2**63}, 400),
        (good | {"byte_size": "64"}, 500),
        (good | {"byte_size": -1}, 500),
        (good | {"device_id": -1}, 500),
        (good | {"device_id": 99}, 400),
        (good | {"device_id": 2**64 - 1}, 400),
        ({key: good[key] for key in ("raw_handle", "byte_size")}, 500),
        ({key: good[key] for key in ("raw_handle", "device_id")}, 500),
    ]:
        assert_refused(register(server, "r", wrong), status)
    assert_refused(request(server, "GET", "/v2/cudasharedmemory/region/r/status"), 404)
    assert_refused(request(server, "POST", "/v2/cudasharedmemory/register", json.dumps(good)), 400)
    assert register(server, "r", good).status == 200
    assert_refused(register(server, "r", good), 400)
    # The same memory may have several names.
    assert register(server, "other", good).status == 200
    assert client.is_server_live()


def test_grpc_reports_why_a_registration_fails(client, grpc_client, memory):
    allocated = memory(b"", 64)
    for handle, device, size, code in [
        (allocated.handle[:-1], 0, 64, "INVALID_ARGUMENT"),
        (b"", 0, 64, "INVALID_ARGUMENT"),
        (bytes(64), 0, 64, "INVALID_ARGUMENT"),
        (allocated.handle, 99, 64, "INVALID_ARGUMENT"),
        (allocated.handle, -1, 64, "INVALID_ARGUMENT"),
        (allocated.handle, 0, 0, "INVALID_ARGUMENT"),
        (allocated.handle, 0, 2**63, "INVALID_ARGUMENT"),
    ]:
        with pytest.raises(InferenceServerException) as refusal:
            grpc_client.register_cuda_shared_memory("r", base64.b64encode(handle), device, size)
        assert refusal.value.status() == f"StatusCode.{code}", refusal.value
    grpc_client.register_cuda_shared_memory("r", allocated.raw_handle, 0, 64)
    with pytest.raises(InferenceServerException) as refusal:
        grpc_client.register_cuda_shared_memory("r", allocated.raw_handle, 0, 64)
    assert refusal.value.status() == "StatusCode.ALREADY_EXISTS"


def test_regions_of_both_kinds_share_their_names(client, server, memory):
    registered(client, "r", memory(b"", 64))
    text = json.dumps({"key": "/nereid-none", "byte_size": 8})
    answer = request(server, "POST", "/v2/systemsharedmemory/region/r/register", text)
    assert_refused(answer, 400)
    assert "'r' already" in answer.json["error"]
    answer = request(server, "GET", "/v2/systemsharedmemory/region/r/status")
    assert_refused(answer, 404)
    assert "CUDA" in answer.json["error"]


def test_tensors_lie_within_their_regions(client, server, memory):
    registered(client, "r", memory(bytes(64)))
    for place, status in [
        (within("r", 65), 400),
        (within("r", 8, 64), 400),
        (within("r", 8, 2**64 - 4), 400),
        (within("r", 12), 400),
        (within("unknown", 8), 404),
    ]:
        assert_refused(infer(server, "floats", {"inputs": [tensor("INPUT0", "FP32", [2], **place)]}), status)
    good = [tensor("INPUT0", "FP32", [2], [1, 2])]
    for place, status in [(within("r", 65), 400), (within("r", 4), 500)]:
        wanted = [{"name": "OUTPUT0", "parameters": place}]
        assert_refused(infer(server, "floats", {"inputs": good, "outputs": wanted}), status)


def test_strings_are_checked_after_the_copy(client, server, memory):
    contents = b"\x02\0\0\0ab\0\0\0\0"
    io = registered(client, "io", memory(contents, 64))
    ask = {
        "inputs": [tensor("INPUT0", "BYTES", [2], **within("io", len(contents)))],
        "outputs": [{"name": "OUTPUT0", "parameters": within("io", 32, 32)}],
    }
    assert infer(server, "texts", ask).status == 200
    assert io.read(len(contents), 32) == contents
    assert infer(server, "texts", {"inputs": ask["inputs"]}).json["outputs"][0]["data"] == ["ab", ""]
    io.write(b"\x03")
    answer = infer(server, "texts", ask)
    assert_refused(answer, 400)
    assert "INPUT0" in answer.json["error"]


def test_inputs_and_outputs_mix_with_others(client, server, memory, tmp_path):
    io = registered(client, "io", memory(np.array([7, 8], np.int32).tobytes(), 64))
    ask = {
        "inputs": [tensor("INPUT0", "INT32", [2], **within("io", 8)), tensor("INPUT1", "INT32", [1], [9])],
        "outputs": [{"name": "OUTPUT0"}, {"name": "OUTPUT1", "parameters": within("io", 4, 16)}],
    }
    answer = infer(server, "two", ask).json["outputs"]
    assert answer[0]["data"] == [7, 8]
    assert "data" not in answer[1]
    assert np.frombuffer(io.read(4, 16), np.int32).tolist() == [9]


def native(server, given, wanted=None, **parameters):
    """Asks the backend in C; its answer's parameters, and its output's values."""
    ask = {"inputs": [tensor("IN", "FP32", [3], **given)], "parameters": parameters}
    if wanted:
        ask["outputs"] = [{"name": "OUT", "parameters": wanted}]
    answer = infer(server, "native", ask)
    assert answer.status == 200, answer
    return answer.json["parameters"], answer.json["outputs"][0].get("data")


def test_backends_in_c_get_the_gpus_own_memory(client, server, memory):
    io = registered(client, "io", memory(VALUES.tobytes(), 64))
    told, data = native(server, within("io", 12), within("io", 12, 32), want="GPU 0")
    assert told == {
        "in": "GPU 0",
        "in_handle": "shared",
        "asked": "GPU 0",
        "out": "GPU 0",
        "out_handle": "shared",
    }
    assert data is None
    assert np.frombuffer(io.read(12, 32), np.float32).tolist() == VALUES.tolist()


def test_backends_in_c_that_write_host_memory_have_it_copied(client, server, memory):
    io = registered(client, "io", memory(VALUES.tobytes(), 64))
    told, _ = native(server, within("io", 12), within("io", 12, 32), want="CPU")
    assert (told["in"], told["asked"], told["out"], told["out_handle"]) == ("GPU 0", "GPU 0", "CPU 0", "not shared")
    assert np.frombuffer(io.read(12, 32), np.float32).tolist() == VALUES.tolist()
    # Memory of another GPU was not requested.
    told, _ = native(server, within("io", 12), within("io", 12, 32), want="GPU 1")
    assert told["out"] == "CPU 0"


def test_outputs_without_a_region_are_in_host_memory(client, server, memory):
    registered(client, "io", memory(VALUES.tobytes(), 64))
    told, data = native(server, within("io", 12), want="GPU 0")
    assert (told["in"], told["asked"], told["out"]) == ("GPU 0", "CPU 0", "CPU 0")
    assert data == VALUES.tolist()


def test_backends_in_rust_know_where_their_memory_is(client, server, memory):
    registered(client, "io", memory(np.array([7, 8, 9], np.int32).tobytes(), 64))

    def places(given, wanted):
        ask = {
            "inputs": [tensor("IN", "INT32", [3], **given)],
            "parameters": {"do": "device"},
            "outputs": [{"name": "OUT"}, {"name": "NUMBERS", "parameters": wanted}],
        }
        answer = infer(server, "rust", ask)
        assert answer.status == 200, answer
        outputs = {output["name"]: output.get("data") for output in answer.json["outputs"]}
        return outputs["OUT"], outputs["NUMBERS"]

    lent = ["lent: 524288 bytes on device 0", "lent: Unavailable"]
    lines, numbers = places(within("io", 12), within("io", 12, 32))
    assert lines == ["input: 12 bytes on device 0", "values: Err(Unsupported)", *lent, "output: 12 bytes on device 0"]
    assert numbers is None
    lines, numbers = places({"data": [7, 8, 9]}, {})
    assert lines == ["input: 12 bytes on the host", "values: Ok([7, 8, 9])", *lent, "output: 12 bytes on the host, zeroed true"]
    assert numbers == [0x01010101] * 3


def test_an_output_may_lie_where_its_input_does(client, server, memory):
    io = registered(client, "io", memory(VALUES.tobytes(), 64))
    told, _ = native(server, within("io", 12), within("io", 12, 4), want="GPU 0")
    assert told["out"] == "CPU 0"
    assert np.frombuffer(io.read(16), np.float32).tolist() == [1.5, 1.5, -2, 3]


def test_backends_in_c_borrow_pinned_memory_and_memory_of_the_gpu(client, server, memory):
    registered(client, "io", memory(VALUES.tobytes(), 64))
    for _ in range(3):
        told, data = native(server, within("io", 12), do="pools")
        lent = {key: told[key] for key in ("pinned", "device", "twice", "no_room", "no_gpu")}
        assert lent == {
            "pinned": "ok",
            "device": "ok",
            "twice": "Invalid argument",
            "no_room": "Internal",
            "no_gpu": "Unavailable",
        }
        assert data == VALUES.tolist()


def test_inner_requests_use_gpu_memory(client, server, memory):
    io = registered(client, "io", memory(VALUES.tobytes(), 64))
    told, data = native(server, within("io", 12), do="inner")
    assert (told["inner"], data) == ("GPU 0", VALUES.tolist())
    told, data = native(server, within("io", 12), within("io", 12, 32), do="inner", want="GPU 0")
    assert (told["inner"], data) == ("GPU 0", None)
    assert np.frombuffer(io.read(12, 32), np.float32).tolist() == VALUES.tolist()


def test_many_clients_at_once_read_and_write_their_own(server, memory):
    count = 8
    with ExitStack() as clients:
        asked = []
        for number in range(count):
            client = clients.enter_context(tritonclient.grpc.InferenceServerClient(server.grpc_url))
            values = VALUES + number
            io = registered(client, f"io{number}", memory(values.tobytes(), 64))
            given = tritonclient.grpc.InferInput("INPUT0" if number % 2 else "IN", [3], "FP32")
            given.set_shared_memory(f"io{number}", 12)
            output = tritonclient.grpc.InferRequestedOutput("OUTPUT0" if number % 2 else "OUT")
            output.set_shared_memory(f"io{number}", 12, offset=32)
            model = "floats" if number % 2 else "native"
            calls: list[InferenceServerException | None] = []
            for _ in range(25):
                client.async_infer(model, [given], outputs=[output], callback=lambda result, error, to=calls: to.append(error))
            asked.append((values, io, calls))
        deadline = time.monotonic() + 60
        while any(len(calls) < 25 for _, _, calls in asked):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        for values, io, calls in asked:
            assert calls == [None] * 25
            assert np.frombuffer(io.read(12, 32), np.float32).tolist() == values.tolist()
        client.unregister_cuda_shared_memory()

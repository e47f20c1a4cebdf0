"""System shared memory: Triton's client registers regions, models read and write them, and nothing breaks the server."""

import json
import os
import uuid
from pathlib import Path

import grpc
import numpy as np
import pytest
import tritonclient.http
import tritonclient.utils.shared_memory as shm

import grpc_requests
import nereid_server
from http_requests import assert_refused, infer, request, tensor
from model_files import scale_model, write_identity

PAGE = 4096
SHM = Path("/dev/shm")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Identity models and one that computes."""
    repository = tmp_path_factory.mktemp("shared_memory")
    write_identity(repository, "floats", ["FP32"])
    write_identity(repository, "texts", ["BYTES"])
    write_identity(repository, "two", ["INT32", "INT32"])
    scale_model("double").write(repository)
    with nereid_server.running(repository) as server:
        yield server


@pytest.fixture
def client(server):
    with tritonclient.http.InferenceServerClient(server.url) as client:
        yield client
        client.unregister_system_shared_memory()


@pytest.fixture
def memory():
    """Makes shared memory objects: `memory(size)` gives a path in /dev/shm."""
    made = []

    def make(size, contents=b""):
        path = SHM / f"nereid-{uuid.uuid4().hex}"
        path.write_bytes(contents.ljust(size, b"\0"))
        made.append(path)
        return path

    yield make
    for path in made:
        path.unlink(missing_ok=True)


def register(server, name, body):
    text = body if isinstance(body, str) else json.dumps(body)
    return request(server, "POST", f"/v2/systemsharedmemory/region/{name}/register", text)


def placed(name, datatype, shape, region, size, offset=0):
    """An input in a region."""
    return tensor(name, datatype, shape, shared_memory_region=region, shared_memory_byte_size=size, shared_memory_offset=offset)


def output(name, region, size, offset=0, **more):
    """An output requested in a region."""
    where = {"shared_memory_region": region, "shared_memory_byte_size": size, "shared_memory_offset": offset}
    return {"name": name, "parameters": where | more}


def test_the_client_infers_through_shared_memory(client):
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    key = f"/nereid-{uuid.uuid4().hex}"
    handle = shm.create_shared_memory_region("io", key, 2 * PAGE)
    try:
        shm.set_shared_memory_region(handle, [values])
        client.register_system_shared_memory("io", key, 2 * PAGE)
        assert client.get_system_shared_memory_status() == [{"name": "io", "key": key, "offset": 0, "byte_size": 2 * PAGE}]
        given = tritonclient.http.InferInput("X", [2, 3], "FP32")
        given.set_shared_memory("io", values.nbytes)
        wanted = tritonclient.http.InferRequestedOutput("Y")
        wanted.set_shared_memory("io", values.nbytes, offset=PAGE)
        answer = client.infer("double", [given], outputs=[wanted])
        assert answer.get_output("Y") == {"name": "Y", "datatype": "FP32", "shape": [2, 3]}
        written = shm.get_contents_as_numpy(handle, np.float32, [2, 3], offset=PAGE)
        np.testing.assert_array_equal(written, values * 2)
        client.unregister_system_shared_memory("io")
        assert client.get_system_shared_memory_status() == []
    finally:
        shm.destroy_shared_memory_region(handle)


def test_strings_go_through_shared_memory(client, server, memory):
    contents = b"\x02\0\0\0ab\0\0\0\0"
    path = memory(100, contents)
    client.register_system_shared_memory("io", path.name, 100)
    body = {
        "inputs": [placed("INPUT0", "BYTES", [2], "io", len(contents))],
        "outputs": [output("OUTPUT0", "io", 50, offset=50)],
    }
    answer = infer(server, "texts", body)
    assert answer.json["outputs"] == [{"name": "OUTPUT0", "datatype": "BYTES", "shape": [2]}]
    assert path.read_bytes()[50 : 50 + len(contents)] == contents


def test_an_output_may_lie_where_its_input_does(client, server, memory):
    path = memory(12, np.array([1, 2, 3], np.float32).tobytes())
    client.register_system_shared_memory("io", path.name, 12)
    body = {"inputs": [placed("X", "FP32", [1, 3], "io", 12)], "outputs": [output("Y", "io", 12)]}
    assert infer(server, "double", body).status == 200
    assert np.frombuffer(path.read_bytes(), np.float32).tolist() == [2, 4, 6]


def test_inputs_and_outputs_mix_with_others(client, server, memory):
    path = memory(8, np.array([7, 8], np.int32).tobytes())
    client.register_system_shared_memory("in", path.name, 8)
    body = {"inputs": [placed("INPUT0", "INT32", [2], "in", 8), tensor("INPUT1", "INT32", [1], [9])]}
    answer = infer(server, "two", body)
    assert [out["data"] for out in answer.json["outputs"]] == [[7, 8], [9]]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("", 500),
        ("[]", 400),
        ({"byte_size": 8}, 400),
        ({"key": "KEY"}, 400),
        ({"key": 3, "byte_size": 8}, 500),
        ({"key": "KEY", "byte_size": "8"}, 500),
        ({"key": "KEY", "byte_size": -8}, 500),
        ({"key": "KEY", "byte_size": 1.5}, 500),
        ({"key": "KEY", "byte_size": 8, "offset": -1}, 500),
        ({"key": "KEY", "byte_size": 8, "offset": None}, 500),
        ({"key": "KEY", "byte_size": 8, "offset": 4}, 400),
        ({"key": "KEY", "byte_size": 8, "offset": 2 * PAGE}, 400),
        ({"key": "KEY", "byte_size": 2**64 - 1, "offset": PAGE}, 400),
        ({"key": "KEY", "byte_size": 2 * PAGE + 1}, 400),
        ({"key": "KEY", "byte_size": 0}, 400),
        ({"key": "nereid-no-such-object", "byte_size": 8}, 500),
        ({"key": "/", "byte_size": 8}, 500),
        ({"key": "../etc/passwd", "byte_size": 8}, 500),
        ({"key": "triton_python_backend_shm_region_1", "byte_size": 8}, 400),
    ],
)
def test_invalid_regions_are_refused(server, memory, body, status):
    if isinstance(body, dict) and body.get("key") == "KEY":
        body = body | {"key": memory(2 * PAGE).name}
    assert_refused(register(server, "r", body), status)
    assert_refused(request(server, "GET", "/v2/systemsharedmemory/region/r/status"), 404)


def test_a_name_is_registered_once(client, server, memory):
    path = memory(8)
    assert register(server, "r", {"key": path.name, "byte_size": 8}).status == 200
    assert_refused(register(server, "r", {"key": path.name, "byte_size": 8}), 400)
    assert request(server, "POST", "/v2/systemsharedmemory/region/unknown/unregister").status == 200
    assert_refused(request(server, "POST", "/v2/systemsharedmemory/register", "{}"), 400)


@pytest.mark.parametrize("backend", ["python,", ""])
def test_memory_of_the_python_backend_is_reserved_under_its_configured_name(repository, serve, memory, backend):
    write_identity(repository, "floats", ["FP32"])
    path = memory(8)
    server = serve(f"--backend-config={backend}shm-region-prefix-name={path.name[:9]}")
    for key in (path.name, "/" + path.name, "triton_python_backend_shm_region_1"):
        assert_refused(register(server, "r", {"key": key, "byte_size": 8}), 400)
    other = serve("--backend-config=other,shm-region-prefix-name=nereid")
    assert register(other, "r", {"key": path.name, "byte_size": 8}).status == 200


def test_tensors_lie_within_their_regions(client, server, memory):
    client.register_system_shared_memory("r", memory(64).name, 64)
    good = tensor("INPUT0", "FP32", [2], [1, 2])
    for place, status in [
        (placed("INPUT0", "FP32", [2], "unknown", 8), 404),
        (placed("INPUT0", "FP32", [2], "r", 65), 400),
        (placed("INPUT0", "FP32", [2], "r", 8, 64), 400),
        (placed("INPUT0", "FP32", [2], "r", 8, 2**64 - 4), 400),
        (placed("INPUT0", "FP32", [2], "r", 12), 400),
        (placed("INPUT0", "FP32", [2], "r", -8), 500),
        (placed("INPUT0", "FP32", [2], "r", 0), 400),
        (placed("INPUT0", "FP32", [0], "r", 0), 400),
        (placed("INPUT0", "FP32", [0], "unknown", 0), 404),
        (tensor("INPUT0", "FP32", [2], [1, 2], shared_memory_region="unknown", shared_memory_byte_size=8), 400),
        (tensor("INPUT0", "FP32", [2], shared_memory_region=3, shared_memory_byte_size=8), 500),
        (tensor("INPUT0", "FP32", [2], [1, 2], shared_memory_region="r", shared_memory_byte_size=8), 400),
    ]:
        assert_refused(infer(server, "floats", {"inputs": [place]}), status)
    for place, status in [
        (output("OUTPUT0", "unknown", 8), 404),
        (output("OUTPUT0", "r", 65), 400),
        (output("OUTPUT0", "r", 4), 500),
        (output("OUTPUT0", "r", 0), 400),
        (output("OUTPUT0", "r", 8, classification=0), 400),
        (output("OUTPUT0", "unknown", 8, binary_data=True), 400),
        (output("OUTPUT0", "r", 8, classification=1), 400),
        (output("OUTPUT0", "r", 8, binary_data=True), 400),
    ]:
        assert_refused(infer(server, "floats", {"inputs": [good], "outputs": [place]}), status)
    assert infer(server, "floats", {"inputs": [good], "outputs": [output("OUTPUT0", "r", 8, 8)]}).status == 200


def test_truncated_memory_fails_only_its_own_requests(client, server, memory):
    path, other = memory(4 * PAGE), memory(PAGE, np.array([5], np.float32).tobytes())
    client.register_system_shared_memory("short", path.name, 4 * PAGE)
    client.register_system_shared_memory("other", other.name, PAGE)
    os.truncate(path, 0)
    count = 4 * PAGE // 4
    read = {"inputs": [placed("INPUT0", "FP32", [count], "short", 4 * PAGE)]}
    assert_refused(infer(server, "floats", read), 503)
    write = {
        "inputs": [tensor("INPUT0", "FP32", [1], [1])],
        "outputs": [output("OUTPUT0", "short", 4 * PAGE)],
    }
    assert_refused(infer(server, "floats", write), 503)
    good = infer(server, "floats", {"inputs": [placed("INPUT0", "FP32", [1], "other", 4)]})
    assert good.json["outputs"][0]["data"] == [5]
    path.write_bytes(np.array([6], np.float32).tobytes().ljust(4 * PAGE, b"\0"))
    client.unregister_system_shared_memory("short")
    client.register_system_shared_memory("short", path.name, 4 * PAGE)
    again = infer(server, "floats", {"inputs": [placed("INPUT0", "FP32", [1], "short", 4)]})
    assert again.json["outputs"][0]["data"] == [6]


def test_cuda_regions_are_refused(server):
    assert request(server, "GET", "/v2/cudasharedmemory/status").json == []
    assert_refused(request(server, "GET", "/v2/cudasharedmemory/region/r/status"), 404)
    assert_refused(request(server, "POST", "/v2/cudasharedmemory/region/r/register", ""), 500)
    assert_refused(request(server, "POST", "/v2/cudasharedmemory/region/r/register", "{}"), 400)
    handle = {"raw_handle": {"b64": "AAAA"}, "byte_size": 8, "device_id": 0}
    assert_refused(request(server, "POST", "/v2/cudasharedmemory/region/r/register", json.dumps(handle)), 400)
    assert request(server, "POST", "/v2/cudasharedmemory/region/r/unregister").status == 200
    assert request(server, "POST", "/v2/cudasharedmemory/unregister").status == 200


def test_shared_memory_may_be_disabled_for_clients(memory, repository, serve):
    server = serve("--allow-client-shm=false")
    assert_refused(register(server, "r", {"key": memory(8).name, "byte_size": 8}), 501)
    assert_refused(request(server, "POST", "/v2/systemsharedmemory/unregister"), 501)
    assert request(server, "GET", "/v2/systemsharedmemory/status").json == []


@pytest.mark.parametrize("flags, status, code", [((), 404, "NOT_FOUND"), (("--allow-client-shm=false",), 501, "UNIMPLEMENTED")])
def test_request_naming_an_unregistered_region_is_refused(repository, serve, flags, status, code):
    write_identity(repository, "same", ["INT32"])
    server = serve(*flags)
    in_region = {"shared_memory_region": "r", "shared_memory_byte_size": 8}
    plain = tensor("INPUT0", "INT32", [2], [1, 2])
    for given, wanted in [
        (tensor("INPUT0", "INT32", [2], **in_region), {}),
        (plain, in_region),
        (tensor("INPUT0", "INT32", [2], **in_region), in_region),
        (plain, in_region | {"shared_memory_offset": 4}),
    ]:
        body = {"inputs": [given], "outputs": [{"name": "OUTPUT0", "parameters": wanted}]}
        assert_refused(infer(server, "same", body), status)
    with grpc.insecure_channel(server.grpc_url) as channel:
        for places in ["input", "output", "both"]:
            message = grpc_requests.message()
            message.outputs.add(name="OUTPUT0")
            if places != "output":
                message.raw_input_contents.clear()
                place(message.inputs[0])
            if places != "input":
                place(message.outputs[0])
            grpc_requests.assert_refused(lambda sent=message: grpc_requests.stub(channel).ModelInfer(sent), grpc.StatusCode[code])
    # The server goes on.
    assert infer(server, "same", {"inputs": [plain]}).json["outputs"][0]["data"] == [1, 2]


def place(tensor):
    """Places a gRPC tensor in a region."""
    tensor.parameters["shared_memory_region"].string_param = "r"
    tensor.parameters["shared_memory_byte_size"].int64_param = 8

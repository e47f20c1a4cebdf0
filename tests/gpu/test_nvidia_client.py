"""NVIDIA's own module for memory of GPUs in clients, `tritonclient.utils.cuda_shared_memory`, against the server. Only `tests/gpu/run`
runs these: they need a GPU, the package cuda-python, and a torch with CUDA.
"""

import numpy as np
import pytest
import torch
import tritonclient.grpc
import tritonclient.http
import tritonclient.utils.cuda_shared_memory as regions
from tritonclient.utils import InferenceServerException, deserialize_bytes_tensor, serialize_byte_tensor

import nereid_server
from model_files import scale_model, write_identity


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    repository = tmp_path_factory.mktemp("models")
    write_identity(repository, "floats", ["FP32"])
    write_identity(repository, "texts", ["BYTES"])
    scale_model("double").write(repository)
    with nereid_server.running(repository) as server:
        yield server


@pytest.fixture(params=[tritonclient.http, tritonclient.grpc], ids=["http", "grpc"])
def kind(request):
    return request.param


@pytest.fixture
def client(server, kind):
    url = server.url if kind is tritonclient.http else server.grpc_url
    with kind.InferenceServerClient(url) as client:
        yield client
        client.unregister_cuda_shared_memory()


@pytest.fixture
def region(client):
    made = []

    def make(name, size):
        made.append(regions.create_shared_memory_region(name, size, 0))
        client.register_cuda_shared_memory(name, regions.get_raw_handle(made[-1]), 0, size)
        return made[-1]

    yield make
    client.unregister_cuda_shared_memory()
    for each in made:
        regions.destroy_shared_memory_region(each)


def infer(client, kind, model, names, shape, datatype, size, room=None):
    """Infers with the input in the region "in" and the output in the region "out"."""
    given, wanted = kind.InferInput(names[0], shape, datatype), kind.InferRequestedOutput(names[1])
    given.set_shared_memory("in", size)
    wanted.set_shared_memory("out", room or size)
    return client.infer(model, [given], outputs=[wanted])


@pytest.mark.parametrize("count", [1, 1000, 4_000_000])
@pytest.mark.parametrize("source", ["numpy", "torch on the CPU", "torch on the GPU"])
def test_arrays_pass_through_regions(client, kind, region, source, count):
    values = np.random.default_rng(count).random(count, np.float32)
    given, answered = region("in", values.nbytes), region("out", values.nbytes)
    if source == "numpy":
        regions.set_shared_memory_region(given, [values])
    else:
        array = torch.from_numpy(values).to("cuda" if source.endswith("GPU") else "cpu")
        regions.set_shared_memory_region_from_dlpack(given, [array])
    for _ in range(5):
        infer(client, kind, "floats", ("INPUT0", "OUTPUT0"), [count], "FP32", values.nbytes)
        found = regions.get_contents_as_numpy(answered, np.float32, [count])
        assert np.array_equal(found, values)
        tensor = torch.from_dlpack(regions.as_shared_memory_tensor(answered, "FP32", [count]))
        assert tensor.is_cuda and np.array_equal(tensor.cpu().numpy(), values)


def test_a_model_on_the_processor_computes_on_regions(client, kind, region):
    values = np.array([[1.5, -2, 3]], np.float32)
    given, answered = region("in", values.nbytes), region("out", values.nbytes)
    regions.set_shared_memory_region(given, [values])
    infer(client, kind, "double", ("X", "Y"), [1, 3], "FP32", values.nbytes)
    assert regions.get_contents_as_numpy(answered, np.float32, [1, 3]).tolist() == [[3, -4, 6]]


def test_strings_pass_through_regions(client, kind, region):
    texts = np.array([b"", b"one", "größer".encode(), b"x" * 10_000], object)
    serialized = serialize_byte_tensor(texts)
    size = len(serialized.item())
    given, answered = region("in", size), region("out", 2 * size)
    regions.set_shared_memory_region(given, [serialized])
    infer(client, kind, "texts", ("INPUT0", "OUTPUT0"), [len(texts)], "BYTES", size, 2 * size)
    found = regions.get_contents_as_numpy(answered, np.uint8, [size]).tobytes()
    assert deserialize_bytes_tensor(found).tolist() == texts.tolist()


def test_an_output_longer_than_its_region_is_refused(client, kind, region):
    values = np.arange(100, dtype=np.float32)
    given, answered = region("in", values.nbytes), region("out", 8)
    regions.set_shared_memory_region(given, [values])
    with pytest.raises(InferenceServerException, match="out"):
        infer(client, kind, "floats", ("INPUT0", "OUTPUT0"), [100], "FP32", values.nbytes, 8)
    infer(client, kind, "floats", ("INPUT0", "OUTPUT0"), [2], "FP32", 8)
    assert regions.get_contents_as_numpy(answered, np.float32, [2]).tolist() == [0, 1]


def test_a_region_whose_owner_freed_it_does_not_end_the_server(server, client, kind):
    values = np.arange(4, dtype=np.float32)
    for name in ("in", "out"):
        made = regions.create_shared_memory_region(name, values.nbytes, 0)
        client.register_cuda_shared_memory(name, regions.get_raw_handle(made), 0, values.nbytes)
        regions.destroy_shared_memory_region(made)
    # CUDA keeps memory as long as one process has it open: the server has.
    infer(client, kind, "floats", ("INPUT0", "OUTPUT0"), [4], "FP32", values.nbytes)
    assert client.is_server_live() and server.exit_code is None

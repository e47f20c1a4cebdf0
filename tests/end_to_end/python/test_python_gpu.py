"""Models in Python whose tensors are in memory of a GPU: outputs of libraries that compute there, inputs that clients share,
and outputs of other models.

Without a GPU the driver is a stand-in. `tests/gpu/run` has these tests use a GPU.
"""

import json
from pathlib import Path

import numpy
import pytest
import tritonclient.http
from test_gpu_memory import registered, within

import device_arrays
import gpu_memory
import nereid_server
import python_lab
from http_requests import infer, tensor
from model_files import write_identity

DEVICE_INPUTS = 'parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "no" } }'
# The stand-in for the driver opens another process's memory through /proc, which the sandbox forbids.
FLAGS = [*python_lab.FLAGS, "--min-supported-compute-capability=1.0", "--backend-config=python,sandbox=off"]


def write_lab(repository, name, library, extra="", lab=python_lab.LAB):
    """A lab whose code has arrays on the GPU."""
    head = f"import sys\nsys.path.append({str(Path(device_arrays.__file__).parent)!r})\nimport device_arrays\n"
    head += f"driver = device_arrays.driver({library!r})\n"
    python_lab.write(repository, name, head + lab, extra)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return gpu_memory.named_driver() or gpu_memory.compile_standin(tmp_path_factory.mktemp("driver"))


@pytest.fixture(scope="module")
def server(tmp_path_factory, library):
    repository = tmp_path_factory.mktemp("models")
    write_lab(repository, "lab", library)
    write_lab(repository, "on_gpu", library, DEVICE_INPUTS)
    decoupled = "model_transaction_policy { decoupled: true }"
    write_lab(repository, "stream", library, decoupled, python_lab.STREAM_LAB)
    write_identity(repository, "identity", ["FP32"])
    write_identity(repository, "texts", ["BYTES"])
    with nereid_server.running(repository, *FLAGS, f"--cuda-driver-library={library}") as server:
        yield server


@pytest.fixture
def client(server):
    with tritonclient.http.InferenceServerClient(server.url, network_timeout=60) as client:
        yield client
        client.unregister_cuda_shared_memory()


@pytest.fixture(scope="module")
def driver(library):
    return gpu_memory.Driver(library)


def run_on(server, model, code, inputs=(), outputs=None):
    """What the lab's code results in, and the outputs, with inputs and outputs in regions."""
    ask = {"inputs": [tensor("CODE", "BYTES", [1], [code]), *inputs]}
    if outputs:
        ask["outputs"] = [{"name": "RESULT"}, *outputs]
    answer = infer(server, model, ask)
    assert answer.status == 200, answer.json
    found = {output["name"]: output.get("data") for output in answer.json["outputs"]}
    return json.loads(found.pop("RESULT")[0]), found


def test_models_learn_that_they_may_use_a_gpu(tmp_path, library):
    groups = {
        "default": ("", "GPU", "KIND_GPU", [0]),
        "counted": ("instance_group { count: 2 }", "GPU", "KIND_GPU", [0]),
        "listed": ("instance_group { gpus: 0 }", "GPU", "KIND_GPU", [0]),
        "asked": ("instance_group { kind: KIND_GPU }", "GPU", "KIND_GPU", [0]),
        "cpu": ("instance_group { kind: KIND_CPU }", "CPU", "KIND_CPU", []),
    }
    for name, (text, *_) in groups.items():
        write_lab(tmp_path, name, library, text)
    code = 'result = [args["model_instance_kind"], args["model_instance_device_id"]]'
    with (
        nereid_server.running(tmp_path, *FLAGS, f"--cuda-driver-library={library}") as server,
        tritonclient.http.InferenceServerClient(server.url) as client,
    ):
        for name, (_, kind, configured, gpus) in groups.items():
            [group] = client.get_model_config(name)["instance_group"]
            assert (group["kind"], group["gpus"]) == (configured, gpus), name
            assert run_on(server, name, code)[0] == [kind, "0"], name


def test_a_tensor_on_a_gpu_stays_there(client):
    code = """
result = {}
for dtype in "bool int8 uint16 int32 int64 uint64 float16 float32 float64".split():
    for shape, skip in [((), 0), ((3,), 8), ((2, 3, 4), 16), ((50, 1000), 256)]:
        theirs = device_arrays.Array(driver, numpy.arange(numpy.prod(shape, dtype=int)).reshape(shape).astype(dtype), skip)
        for how in ("object", "capsule"):
            ours = pb_utils.Tensor.from_dlpack("X", theirs if how == "object" else theirs.__dlpack__())
            again = pb_utils.Tensor.from_dlpack("Y", ours)
            kind, device, address, values = device_arrays.consume(driver, again if how == "object" else ours.to_dlpack())
            facts = [ours.is_cpu(), list(ours.__dlpack_device__()), [kind, device], address == theirs.memory.address + skip,
                     values.dtype == dtype, list(ours.shape()) == list(shape), bool((values == theirs.values).all())]
            result[f"{dtype} {shape} {how}"] = facts
        # Its library waits for the stream that the copies go through.
        result[f"{dtype} {shape} streams"] = theirs.streams
        del ours, again
        theirs.memory.free()
result["exported"] = device_arrays.exported()
"""
    result = python_lab.run(client, code)
    assert result.pop("exported") == 0
    assert len(result) == 9 * 4 * 3
    for name, found in result.items():
        streams = name.endswith("streams")
        assert found == ([1, None] if streams else [False, [2, 0], [2, 0], True, True, True, True]), name


def test_a_tensor_on_a_gpu_is_no_array(client):
    code = """
theirs = device_arrays.Array(driver, numpy.arange(6, dtype="float32").reshape(2, 3))
turned = device_arrays.Array(driver, numpy.arange(6, dtype="float32").reshape(2, 3), strides=(1, 2))
far = device_arrays.Array(driver, numpy.zeros(2, dtype="float32"))
far.device = 99
ours = pb_utils.Tensor.from_dlpack("X", theirs)
capsule = far.__dlpack__()
result = [outcome(lambda: it().shape()) for it in (
    ours.as_numpy, lambda: pb_utils.Tensor.from_dlpack("X", turned), lambda: pb_utils.Tensor.from_dlpack("X", far),
    lambda: pb_utils.Tensor.from_dlpack("X", capsule),
)]
# What is refused stays its owner's.
result += [device_arrays.consume(driver, theirs)[0], "dltensor" in repr(capsule)]
"""
    array, turned, far, capsule, kind, kept = python_lab.run(client, code)
    assert array == "TritonModelException: Tensor is stored in GPU and cannot be converted to NumPy."
    assert turned == "TritonModelException: tensor 'X': elements in the memory of a GPU must be contiguous"
    for refused in (far, capsule):
        assert refused.startswith("TritonModelException: tensor 'X': it is in the memory of a GPU, which cannot be used: no GPU 99")
    assert (kind, kept) == (2, True)


@pytest.mark.parametrize("count", [0, 1, 5, 1000, 300_000])
def test_outputs_on_a_gpu_are_answered(client, count):
    code = f"""
theirs = device_arrays.Array(driver, numpy.arange({count}, dtype="float32") / 2, 4)
outputs = [pb_utils.Tensor.from_dlpack("OF", theirs)]
"""
    answer = client.infer("lab", python_lab.inputs(code))
    assert (answer.as_numpy("OF") == numpy.arange(count, dtype=numpy.float32) / 2).all()
    assert len(answer.as_numpy("OF")) == count


def test_outputs_on_a_gpu_reach_a_clients_memory_there(client, server, driver):
    io = registered(client, "io", driver.allocate(bytes(64)))
    code = 'outputs = [pb_utils.Tensor.from_dlpack("OF", device_arrays.Array(driver, numpy.array([1.5, 2, -3], "float32")))]'
    _, outputs = run_on(server, "lab", code, outputs=[{"name": "OF", "parameters": within("io", 12, 32)}])
    assert outputs == {"OF": None}
    assert numpy.frombuffer(io.read(12, 32), numpy.float32).tolist() == [1.5, 2, -3]


LOOK = """
given = get(request, "F")
result = [given.is_cpu(), list(given.__dlpack_device__())]
result.append((given.as_numpy() if given.is_cpu() else device_arrays.consume(driver, given)[3]).tolist())
"""


@pytest.mark.parametrize(("model", "stays"), [("on_gpu", True), ("lab", False)])
@pytest.mark.parametrize(("offset", "count"), [(0, 3), (16, 5), (256, 1000)])
def test_inputs_in_a_clients_memory_stay_there_if_the_model_wants(client, server, driver, model, stays, offset, count):
    values = numpy.arange(count, dtype=numpy.float32) / 4
    registered(client, "io", driver.allocate(bytes(offset) + values.tobytes(), 8192))
    given = tensor("F", "FP32", [count], **within("io", values.nbytes, offset))
    for _ in range(3):
        found, _ = run_on(server, model, LOOK, [given])
        assert found == [not stays, [2, 0] if stays else [1, 0], values.tolist()]


def test_other_inputs_of_such_a_model_are_in_cpu_memory(client, server, driver):
    texts = b"\x02\0\0\0ab\0\0\0\0"
    registered(client, "io", driver.allocate(texts, 64))
    code = LOOK + 'result += [get(request, "S").is_cpu(), [it.decode() for it in get(request, "S").as_numpy()[0]]]'
    given = [tensor("F", "FP32", [2], [1, 2]), tensor("S", "BYTES", [1, 2], **within("io", len(texts)))]
    found, _ = run_on(server, "on_gpu", code, given)
    assert found == [True, [1, 0], [1.0, 2.0], True, ["ab", ""]]


def test_outputs_computed_from_gpu_inputs_are_served(client, server, driver):
    values = numpy.arange(100, dtype=numpy.float32)
    io = registered(client, "io", driver.allocate(values.tobytes(), 1024))
    code = """
given = get(request, "F")
kept["inputs"] = kept.get("inputs", []) + [given]
outputs = [pb_utils.Tensor.from_dlpack("OF", given)]
"""
    given = tensor("F", "FP32", [100], **within("io", 400))
    for _ in range(3):
        run_on(server, "on_gpu", code, [given], [{"name": "OF", "parameters": within("io", 400, 512)}])
        assert io.read(400, 512) == values.tobytes()
    # Inputs that a model keeps can be read later, as long as the client keeps the memory.
    code = 'result = [device_arrays.consume(driver, it)[3].sum().item() for it in kept.pop("inputs")]'
    found, _ = run_on(server, "on_gpu", code)
    assert found == [values.sum()] * 3


@pytest.mark.parametrize(
    ("memory", "device", "on_gpu"),
    [("GPU", 0, True), ("GPU", 99, False), ("GPU", -1, False), ("GPU", 2**40, False), ("CPU", 0, False), (None, 0, False)],
)
def test_outputs_of_other_models_come_where_they_are_preferred(client, memory, device, on_gpu):
    preferred = f", preferred_memory=pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_{memory}, {device})" if memory else ""
    code = f"""
theirs = device_arrays.Array(driver, numpy.arange(700, dtype="float32"))
inputs = [pb_utils.Tensor.from_dlpack("INPUT0", theirs)]
found = []
for model, inputs in [("identity", inputs), ("texts", [texts("INPUT0", "a", "b")])]:
    answer = ask(model, inputs, ["OUTPUT0"]{preferred}).exec()
    output = answer.output_tensors()[0]
    values = output.as_numpy() if output.is_cpu() else device_arrays.consume(driver, output)[3]
    found.append([output.is_cpu(), values.tolist() if model == "identity" else len(values)])
result = found
"""
    numbers, strings = python_lab.run(client, code)
    assert numbers == [not on_gpu, list(range(700))]
    assert strings == [True, 2]


@pytest.mark.parametrize("count", [1, 700, 50_000])
def test_each_response_of_a_decoupled_model_may_be_on_a_gpu(client, count):
    code = f"""
inner = '''
for number in range(5):
    theirs = device_arrays.Array(driver, numpy.full({count}, number, "float32"))
    sender.send(pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("OF", theirs)]))
    theirs.memory.free()
sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
'''
result = []
preferred = pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_GPU, 0)
for answer in ask("stream", [texts("CODE", inner)], ["OF"], preferred_memory=preferred).exec(decoupled=True):
    for output in answer.output_tensors():
        values = device_arrays.consume(driver, output)[3]
        result.append([output.is_cpu(), len(values), float(values.min()), float(values.max())])
"""
    assert python_lab.run(client, code) == [[False, count, number, number] for number in range(5)]

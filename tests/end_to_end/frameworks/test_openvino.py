"""Models on OpenVINO, beside OpenVINO's own Python."""

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ml_dtypes
import numpy as np
import openvino
import pytest
import tritonclient.http
from onnx import TensorProto, helper
from openvino import opset13 as ops
from test_onnx_runtime import in_regions
from tritonclient.utils import InferenceServerException

import nereid_server
import openvino_models
from http_requests import assert_refused, engine, infer, infer_binary, request, tensor
from model_files import OnnxModel, write_model
from openvino_models import TYPES, network, parameter, tensors
from places import EXAMPLES
from tensors import given

rng = np.random.default_rng(23)
CORE = openvino.Core()


@pytest.fixture
def serve(serve):
    """Servers that find OpenVINO."""
    return lambda *flags, **how: serve(*openvino_models.FLAGS, *flags, **how)


def answer(server, model, **inputs):
    """The outputs of a model by name."""
    with tritonclient.http.InferenceServerClient(server.url) as client:
        result = client.infer(model, [given(name, values) for name, values in inputs.items()])
    return {output["name"]: result.as_numpy(output["name"]) for output in result.get_response()["outputs"]}


def reason(repository, serve, name):
    """Why a model is refused."""
    server = serve("--exit-on-error=false", ready=False)
    assert_refused(request(server, "GET", f"/v2/models/{name}/ready"), 400)
    (line,) = [line for line in server.complaints if f"'{name}'" in line]
    return line


def served_config(server, name):
    return request(server, "GET", f"/v2/models/{name}/config").json


def doubled(name, shape, datatype="FP32"):
    """`X` of that shape, times two, is `Y`."""
    return network(name, [("X", datatype, shape)], lambda x: {"Y": ops.add(x, x)})


def floats(*shape):
    return rng.uniform(-1, 1, shape).astype(np.float32)


REAL = {
    "text_detector": [{"x": floats(1, 3, 96, 160)}, {"x": floats(2, 3, 64, 64)}],
    "text_recogniser": [{"x": floats(1, 3, 48, 320)}, {"x": floats(3, 3, 48, 100)}],
    "text_direction": [{"x": floats(1, 3, 48, 192)}, {"x": floats(4, 3, 48, 192)}],
    "file_type": [{"bytes": rng.integers(0, 257, (count, 2048)).astype(np.int32)} for count in (1, 4)],
}


def own_python(path, inputs):
    """What OpenVINO answers in Python, by any name of the outputs. Models of other frameworks compute in FP32."""
    compiled = CORE.compile_model(path, "CPU", {} if path.suffix == ".xml" else {"INFERENCE_PRECISION_HINT": "f32"})
    outputs = compiled(inputs)
    return {name: outputs[port] for port in compiled.outputs for name in port.names}


def test_real_models_answer_as_in_openvinos_own_python(repository, serve):
    for name in REAL:
        file = EXAMPLES / "fetched_repository" / name / "1" / "model.onnx"
        write_model(repository, name, 'backend: "openvino" default_model_filename: "model.onnx"', file.read_bytes())
    server = serve()
    server.wait_for_log(rf"OpenVINO {openvino.__version__.split('-')[0]} given by the setting 'library': \S+")
    for name, requests in REAL.items():
        for inputs in requests:
            expected = own_python(repository / name / "1" / "model.onnx", inputs)
            outputs = answer(server, name, **inputs)
            assert outputs, name
            for output, values in outputs.items():
                np.testing.assert_allclose(values, expected[output], rtol=1e-5, atol=1e-5, err_msg=f"{name} {output}")


def test_a_model_of_another_framework_keeps_its_precision_unless_asked(repository, serve):
    weights = floats(256, 256)
    product = OnnxModel(
        "product",
        [helper.make_node("MatMul", ["X", "W"], ["Y"])],
        [("X", TensorProto.FLOAT, ["N", 256])],
        [("Y", TensorProto.FLOAT, ["N", 256])],
        {"W": weights},
    )
    extra = 'backend: "openvino" default_model_filename: "model.onnx" instance_group { kind: KIND_CPU }\n'
    asked = {"kept": "", "no": parameter("HINT_BF16", "NO"), "yes": parameter("HINT_BF16", "YES")}
    for name, parameters in asked.items():
        write_model(repository, name, extra + parameters, product.serialized())
    openvino_models.write(
        repository, network("own", [("X", "FP32", [-1, 256])], lambda x: {"Y": ops.matmul(x, weights, False, False)})
    )
    server = serve()
    precisions = {}
    for name in (*asked, "own"):
        line = server.wait_for_log(rf"model '{name}' version 1 is served by OpenVINO .* on CPU \(precision: (\w+), ")
        precisions[name] = line.group(1)
        assert engine(server, name).startswith(f"OpenVINO {openvino.__version__.split('-')[0]}")
    # What the processor computes in BF16 is OpenVINO's own choice.
    own = repository / "own" / "1" / "model.xml"
    assert precisions["kept"] == precisions["no"] == "f32" and precisions["own"] == precision(own)
    assert precisions["yes"] == precision(own, INFERENCE_PRECISION_HINT="bf16")
    given = floats(3, 256)
    exact = given.astype(np.float64) @ weights.astype(np.float64)
    for name in ("kept", "no"):
        np.testing.assert_allclose(answer(server, name, X=given)["Y"], exact, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(answer(server, "yes", X=given)["Y"], exact, rtol=0.1, atol=0.5)


def precision(path, **properties):
    """The precision that OpenVINO chooses in Python."""
    compiled = CORE.compile_model(path, "CPU", properties)
    return compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()


def test_a_model_that_openvino_cannot_convert_is_refused_with_its_reason(repository, serve):
    file = EXAMPLES / "fetched_repository" / "speech_detector" / "1" / "model.onnx"
    extra = 'backend: "openvino" default_model_filename: "model.onnx"'
    write_model(repository, "speech_detector", extra, file.read_bytes())
    line = reason(repository, serve, "speech_detector")
    assert "OpenVINO cannot load " in line and "Conv" in line


def test_it_conforms_as_a_backend(repository):
    openvino_models.write(repository, doubled("twice", [-1, 3]))
    program = Path(nereid_server.binary()).parent / "examples" / "openvino_conformance"
    assert program.exists(), f"{program} is missing: cargo build --workspace --all-targets"
    (library,) = openvino_models.LIBRARY_FOLDER.glob("libopenvino_c.so*")
    run = [program, library, repository / "twice"]
    outcome = subprocess.run(run, capture_output=True, text=True, timeout=120)
    assert outcome.returncode == 0, outcome.stderr
    assert "conforms" in outcome.stdout


def values(kind, shape):
    """Any values of that type, but the least and the greatest among them."""
    count = int(np.prod(shape))
    if kind == "BYTES":
        return np.resize(np.array([b"a", b"", "käse ".encode() * 100], np.object_), shape)
    dtype = np.dtype(kind.lower().replace("fp", "float"))
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.kind == "f":
        return np.resize(np.array([0.1, -np.inf, np.finfo(dtype).max], dtype), shape)
    limits = np.iinfo(dtype)
    return np.resize(np.array([limits.min, 7, limits.max], dtype), count).reshape(shape)


def as_python_takes(array):
    """Strings as OpenVINO's Python takes them."""
    return array if array.dtype != np.object_ else np.vectorize(bytes.decode, otypes=["U"])(array)


def as_bytes(array):
    """Strings as bytes."""
    return array if array.dtype.kind != "U" else np.vectorize(str.encode, otypes=["O"])(array)


def test_every_type_and_shape_goes_through_as_it_is(repository, serve):
    kinds = [kind for kind in TYPES if kind != "BF16"]
    for kind in kinds:
        openvino_models.write(repository, network(f"same_{kind}", [("X", kind, [-1, -1])], lambda x: {"Y": x}))
        openvino_models.write(repository, network(f"scalar_{kind}", [("X", kind, [])], lambda x: {"Y": x}))
    server = serve()
    for kind in kinds:
        for shape in ([1, 3], [3, 1], [4, 5], [3, 0]):
            given = values(kind, shape)
            # OpenVINO computes with 32 bits of these.
            expected = own_python(repository / f"same_{kind}" / "1" / "model.xml", {"X": as_python_takes(given)})["Y"]
            output = answer(server, f"same_{kind}", X=given)["Y"]
            assert output.shape == given.shape
            np.testing.assert_array_equal(output, as_bytes(expected), err_msg=kind)
            if kind not in ("INT64", "UINT64", "UINT32", "FP64"):
                np.testing.assert_array_equal(output, given, err_msg=kind)
        given = np.array([7 if kind != "BYTES" else b"a"], values(kind, [1]).dtype)
        np.testing.assert_array_equal(answer(server, f"scalar_{kind}", X=given)["Y"], given, err_msg=kind)


def test_bf16_goes_through_as_it_is(repository, serve):
    openvino_models.write(repository, network("same", [("X", "BF16", [-1, 3])], lambda x: {"Y": x}))
    server = serve()
    given = np.array([[1.0, -2.5, 3e38], [0.0, np.inf, 1e-30]], ml_dtypes.bfloat16)
    header = {
        "inputs": [tensor("X", "BF16", [2, 3], binary_data_size=given.nbytes)],
        "outputs": [{"name": "Y", "parameters": {"binary_data": True}}],
    }
    got = infer_binary(server, "same", header, given.tobytes())
    assert got.status == 200 and got.body.endswith(given.tobytes())


def test_a_string_with_a_zero_byte_fails_its_request_alone(repository, serve):
    openvino_models.write(repository, network("same", [("X", "BYTES", [-1, 1])], lambda x: {"Y": x}))
    server = serve()
    for text, fails in (("ab", False), ("a\0b", True), ("c", False)):
        got = infer(server, "same", {"inputs": [tensor("X", "BYTES", [1, 1], [text])]})
        if fails:
            assert_refused(got, 400)
            assert "input 'X' has a string with a zero byte" in got.json["error"]
        else:
            assert got.json["outputs"][0]["data"] == [text]


def test_a_configuration_is_completed_from_the_network(repository, serve):
    openvino_models.write(
        repository,
        network("both", [("A", "FP32", [-1, 2]), ("B", "INT64", [-1, -1])], lambda a, b: {"S": a, "T": b}),
    )
    openvino_models.write(repository, doubled("fixed", [1, 3]))
    server = serve("--backend-config=openvino,default-max-batch-size=6")
    both = served_config(server, "both")
    assert (both["backend"], both["max_batch_size"]) == ("openvino", 6) and "dynamic_batching" in both
    assert [(it["name"], it["data_type"], it["dims"]) for it in both["input"] + both["output"]] == [
        ("A", "TYPE_FP32", [2]),
        ("B", "TYPE_INT64", [-1]),
        ("S", "TYPE_FP32", [2]),
        ("T", "TYPE_INT64", [-1]),
    ]
    fixed = served_config(server, "fixed")
    assert fixed["max_batch_size"] == 0 and fixed["input"][0]["dims"] == [1, 3]


def in_batches(server, name, sizes, columns=3):
    """Sends requests of these sizes at once, and checks their answers."""
    inputs = [floats(size, columns) for size in sizes]
    with ThreadPoolExecutor(len(sizes)) as clients:
        outputs = list(clients.map(lambda values: answer(server, name, X=values)["Y"], inputs))
    for values, output in zip(inputs, outputs):
        np.testing.assert_allclose(output, values * 2, rtol=1e-6)


BATCHES = "max_batch_size: 4 dynamic_batching { max_queue_delay_microseconds: 20000 }\n"
KEEPS = parameter("SKIP_OV_DYNAMIC_BATCHSIZE", "YES")
PADS = parameter("ENABLE_BATCH_PADDING", "YES")
RESHAPES = parameter("RESHAPE_IO_LAYERS", "YES")


@pytest.mark.parametrize(
    "shape, extra",
    [([-1, 3], ""), ([1, 3], ""), ([2, 3], ""), ([4, 3], KEEPS), ([1, 3], PADS), ([-1, 3], PADS), ([1, 5], RESHAPES)],
    ids=["variable", "one", "two", "kept", "padded", "padded variable", "reshaped"],
)
def test_batches_of_every_size_whatever_the_file_fixes(repository, serve, shape, extra):
    declared = tensors("input", ("X", "FP32", [3])) + tensors("output", ("Y", "FP32", [3]))
    openvino_models.write(repository, doubled("twice", shape), BATCHES + extra + declared)
    server = serve()
    for sizes in ([1], [4], [1, 2], [3, 2, 1, 4], [1] * 9):
        in_batches(server, "twice", sizes)


def test_a_batch_that_the_file_fixes_otherwise_is_refused(repository, serve):
    declared = tensors("input", ("X", "FP32", [3])) + tensors("output", ("Y", "FP32", [3]))
    openvino_models.write(repository, doubled("twice", [2, 3]), BATCHES + KEEPS + declared)
    assert "the model takes batches of 2 ('X'), but max_batch_size is 4" in reason(repository, serve, "twice")


def test_a_network_that_cannot_take_batches_says_so(repository, serve):
    def flat(x):
        return {"Y": ops.reshape(x, np.array([3], np.int64), False)}

    extra = BATCHES + tensors("input", ("X", "FP32", [3])) + tensors("output", ("Y", "FP32", [3]))
    openvino_models.write(repository, network("flat", [("X", "FP32", [1, 3])], flat), extra)
    line = reason(repository, serve, "flat")
    assert "output 'Y'" in line or "cannot be reshaped" in line


def test_shapes_that_depend_on_the_data(repository, serve):
    def positive(x):
        return {"Y": ops.non_zero(ops.greater(x, np.float32(0)), output_type="i64")}

    extra = tensors("input", ("X", "FP32", [-1])) + tensors("output", ("Y", "INT64", [1, -1]))
    openvino_models.write(repository, network("positive", [("X", "FP32", [-1])], positive), extra)
    server = serve()
    for values in ([1.0, -1.0, 2.0], [-1.0], [], [3.0] * 5):
        values = np.array(values, np.float32)
        np.testing.assert_array_equal(answer(server, "positive", X=values)["Y"], [np.nonzero(values > 0)[0]])


def test_parameters_reach_the_library(repository, serve):
    for name, extra in {
        "threads": parameter("INFERENCE_NUM_THREADS", "1"),
        "streams": parameter("NUM_STREAMS", "2"),
        "instances": "instance_group { count: 2 kind: KIND_CPU }",
    }.items():
        openvino_models.write(repository, doubled(name, [-1, 3]), extra)
    server = serve()
    for name, threads, streams, in_flight in (
        ("threads", "1", 1, 1),
        ("streams", r"\d+", 2, 2),
        ("instances", r"\d+", 2, 1),
    ):
        details = rf"precision: \w+, threads: {threads}, streams: {streams}, in flight: {in_flight} to an instance"
        server.wait_for_log(rf"model '{name}' version 1 is served by OpenVINO \S+ on CPU \({details}\)")
        with ThreadPoolExecutor(8) as clients:
            list(clients.map(lambda size: in_batches(server, name, [size]), [1, 2, 3, 4] * 10))


@pytest.mark.parametrize(
    "key, value, says",
    [
        ("NUM_STREAMS", "several", "parameter 'NUM_STREAMS' is 'several', expected"),
        ("TARGET_DEVICE", "ABACUS", "OpenVINO cannot compile the model for ABACUS: "),
        ("CPU_EXTENSION_PATH", "/no/such.so", "cannot load the CPU extension '/no/such.so': "),
    ],
)
def test_invalid_parameters_are_refused_with_the_reason(repository, serve, key, value, says):
    openvino_models.write(repository, doubled("twice", [-1, 3]), parameter(key, value))
    assert says in reason(repository, serve, "twice")


def test_variables_do_not_carry_values_from_one_request_to_another(repository, serve):
    def counted(x):
        zero = ops.constant(np.zeros((1, 1), np.float32))
        before = ops.read_value(zero, "count", openvino.Type.f32, openvino.PartialShape([1, 1]))
        after = ops.add(before, x)
        return {"Y": after, "assign": ops.assign(after, "count")}

    nodes = counted(x := ops.parameter([1, 1], dtype=openvino.Type.f32, name="X"))
    x.output(0).set_names({"X"})
    result = ops.result(nodes["Y"], name="Y")
    result.output(0).set_names({"Y"})
    model = openvino.Model([result], [nodes["assign"]], [x], "counted")
    openvino_models.write(repository, model)
    server = serve()
    for value in (1.0, 5.0, 2.0):
        assert answer(server, "counted", X=np.full((1, 1), value, np.float32))["Y"].item() == value


def test_a_tensor_of_several_names_answers_to_the_configured_one(repository, serve):
    model = network("named", [("X", "FP32", [-1, 3])], lambda x: {"Y": ops.add(x, x)})
    model.inputs[0].get_tensor().set_names({"X", "X:0", "data"})
    model.outputs[0].get_tensor().set_names({"Y", "Y:0", "result"})
    for name in ("X", "X:0", "data"):
        model.set_friendly_name(f"by_{name[:2].strip(':')}_{len(name)}")
        declared = tensors("input", (name, "FP32", [3])) + tensors("output", ("result", "FP32", [3]))
        openvino_models.write(repository, model, f"max_batch_size: 2\n{declared}")
    server = serve()
    for name, served in (("X", "by_X_1"), ("X:0", "by_X_3"), ("data", "by_da_4")):
        (output,) = infer(server, served, {"inputs": [tensor(name, "FP32", [1, 3], [1.0, 2.0, 3.0])]}).json["outputs"]
        assert (output["name"], output["data"]) == ("result", [2.0, 4.0, 6.0])


@pytest.mark.parametrize("offset", [0, 64, 1])
@pytest.mark.parametrize("shape", [[2, 3], [-1, 3], [-1, -1]], ids=["fixed", "batch", "variable"])
def test_an_output_goes_to_a_region_wherever_that_lies(repository, serve, shape, offset):
    openvino_models.write(repository, doubled("twice", shape), "max_batch_size: 0" if shape == [2, 3] else None)
    server = serve()
    for _ in range(3):
        values = floats(2, 3)
        got, written = in_regions(server, "twice", values, offset, 24)
        assert (got, written[:24], set(written[24:48])) == ([2, 3], (2 * values).tobytes(), {0})
    with pytest.raises(InferenceServerException, match="'Y' has 24 bytes, but only 20"):
        in_regions(server, "twice", values, offset, 20)


def test_without_the_library_the_error_says_how_to_get_it(repository, tmp_path):
    openvino_models.write(repository, doubled("twice", [-1, 3]))
    environment = {"PATH": str(tmp_path), "PYTHONNOUSERSITE": "1"}
    flags = ["--exit-on-error=false", f"--backend-directory={tmp_path}"]
    with nereid_server.running(repository, *flags, ready=False, env=environment) as server:
        assert_refused(request(server, "GET", "/v2/models/twice/ready"), 400)
        (line,) = [line for line in server.complaints if "'twice'" in line]
        assert "no OpenVINO library was found" in line and "`pip install openvino`" in line


def test_the_package_of_the_active_python_environment_is_found(repository, tmp_path):
    openvino_models.write(repository, doubled("twice", [-1, 3]))
    # site-packages, python3.x, lib, and then the environment.
    prefix = openvino_models.LIBRARY_FOLDER.parents[4]
    environment = {"PATH": str(tmp_path), "VIRTUAL_ENV": str(prefix)}
    with nereid_server.running(repository, f"--backend-directory={tmp_path}", env=environment) as server:
        server.wait_for_log(r"OpenVINO \S+ of the active Python environment: \S+/openvino/libs/libopenvino_c.so")
        in_batches(server, "twice", [3])

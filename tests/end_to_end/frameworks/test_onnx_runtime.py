"""ONNX models on ONNX Runtime itself: what the embedded engine does not have, and the options of the backend."""

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
import tritonclient.http
import tritonclient.utils
import tritonclient.utils.shared_memory as shared_memory
from onnx import TensorProto, helper

import nereid_server
import onnx_engines
from http_requests import assert_refused, engine, infer, request, tensor
from model_files import OnnxModel, scale_model, write_model
from tensors import given, wanted

F, S = TensorProto.FLOAT, TensorProto.STRING
node = helper.make_node
ONES = {"inputs": [tensor("X", "FP32", [2, 3], [1.0] * 6)]}


@pytest.fixture
def serve(serve):
    """Servers whose ONNX models run on ONNX Runtime or not at all."""
    return lambda *flags, **how: serve(*onnx_engines.FLAGS["ort"], *flags, **how)


def identity(kind, shape):
    return OnnxModel("same", [node("Identity", ["X"], ["Y"])], [("X", kind, shape)], [("Y", kind, shape)])


def write_bare(repository, model, extra=None):
    """Writes a model whose configuration is completed from its file."""
    write_model(repository, model.name, extra, model.serialized())


def answer(server, model, *inputs, **how):
    with tritonclient.http.InferenceServerClient(server.url) as client:
        return client.infer(model, list(inputs), **how)


def reason(repository, serve, name):
    """Why a model is refused."""
    server = serve("--exit-on-error=false", ready=False)
    assert_refused(request(server, "GET", f"/v2/models/{name}/ready"), 400)
    (line,) = [line for line in server.complaints if f"'{name}'" in line]
    return line


def parameter(key, value):
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'


def test_the_log_says_what_was_found_and_who_serves(repository, serve):
    write_bare(repository, scale_model("twice"))
    server = serve()
    version = onnxruntime.__version__
    server.wait_for_log(rf"ONNX Runtime {version} given by the setting 'library': \S+; execution providers: .*CPU")
    server.wait_for_log(rf"model 'twice' version 1 is served by ONNX Runtime {version} with \d+ threads? to an instance")
    assert engine(server, "twice") == f"ONNX Runtime {version}"


def test_it_conforms_as_a_backend(repository):
    write_bare(repository, scale_model("twice"))
    program = Path(nereid_server.binary()).parent / "examples" / "onnxruntime_conformance"
    assert program.exists(), f"{program} is missing: cargo build --workspace --all-targets"
    run = [program, onnx_engines.LIBRARY, repository / "twice"]
    outcome = subprocess.run(run, capture_output=True, text=True, timeout=120)
    assert outcome.returncode == 0, outcome.stderr
    assert "conforms" in outcome.stdout


def test_bf16_goes_through_as_it_is(repository, serve):
    write_bare(repository, identity(TensorProto.BFLOAT16, ["N", 3]))
    values = np.array([[1.5, -2.0, 65280.0]], ml_dtypes.bfloat16)
    sent = tritonclient.http.InferInput("X", [1, 3], "BF16")
    sent._raw_data = values.tobytes()
    sent._parameters["binary_data_size"] = values.nbytes
    got = answer(serve(), "same", sent)
    assert got.get_output("Y")["datatype"] == "BF16"
    np.testing.assert_array_equal(got.as_numpy("Y").astype(np.float32), values.astype(np.float32))


def in_regions(server, model, contents, offset, size):
    """Infers with the input and the output in one region, the output so far behind the input, with so much room."""
    with tritonclient.http.InferenceServerClient(server.url) as client:
        region = shared_memory.create_shared_memory_region("io", f"/nereid-ort-{os.getpid()}", 1 << 20)
        try:
            shared_memory.set_shared_memory_region(region, [contents])
            client.register_system_shared_memory("io", f"/nereid-ort-{os.getpid()}", 1 << 20)
            sent = tritonclient.http.InferInput("X", list(contents.shape), "FP32")
            sent.set_shared_memory("io", contents.nbytes)
            got = tritonclient.http.InferRequestedOutput("Y")
            got.set_shared_memory("io", size, offset=contents.nbytes + offset)
            output = client.infer(model, [sent], outputs=[got]).get_output("Y")
            written = shared_memory.get_contents_as_numpy(region, np.uint8, [1 << 20])
            return output["shape"], written[contents.nbytes + offset :].tobytes()
        finally:
            client.unregister_system_shared_memory()
            shared_memory.destroy_shared_memory_region(region)


@pytest.mark.parametrize("offset", [0, 64, 1, 3])
@pytest.mark.parametrize("shape", [[2, 3], ["N", 3]], ids=["fixed", "variable"])
def test_an_output_goes_to_a_region_wherever_that_lies(repository, serve, shape, offset):
    """At addresses at which its elements may lie the library writes them itself; at odd ones they are copied."""
    write_bare(repository, OnnxModel("twice", [node("Add", ["X", "X"], ["Y"])], [("X", F, shape)], [("Y", F, shape)]))
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    got, written = in_regions(serve(), "twice", values, offset, 24)
    assert (got, written[:24], set(written[24:48])) == ([2, 3], (2 * values).tobytes(), {0})


def test_an_output_that_does_not_fit_its_region_is_an_error_of_the_request(repository, serve):
    shape = [2, 3]
    write_bare(repository, OnnxModel("twice", [node("Add", ["X", "X"], ["Y"])], [("X", F, shape)], [("Y", F, shape)]))
    server, values = serve(), np.ones(shape, np.float32)
    with pytest.raises(tritonclient.utils.InferenceServerException, match="'Y' has 24 bytes, but only 20"):
        in_regions(server, "twice", values, 0, 20)
    assert in_regions(server, "twice", values, 0, 24)[1][:24] == (2 * values).tobytes()


def test_a_model_that_declares_another_shape_than_it_gives_is_served(repository, serve):
    """The library lets that pass where it chooses the memory, so the request is run once more that way."""
    steps = [node("Add", ["X", "X"], ["Y"])]
    write_bare(repository, OnnxModel("other", steps, [("X", F, ["N", 3])], [("Y", F, [2, 3])]))
    server = serve()
    for rows in (4, 2, 3, 2):
        values = np.arange(3 * rows, dtype=np.float32).reshape(rows, 3)
        got, written = in_regions(server, "other", values, 0, values.nbytes)
        assert (got, written[: values.nbytes]) == ([rows, 3], (2 * values).tobytes())


def test_strings_may_be_any_bytes(repository, serve):
    write_bare(repository, identity(S, ["N", 2]))
    values = np.array([[b"\xff\x00raw\x00", b""], ["zwölf".encode(), b"x" * 5000]], np.object_)
    np.testing.assert_array_equal(answer(serve(), "same", given("X", values)).as_numpy("Y"), values)


def test_a_bool_may_be_sent_as_any_byte(repository, serve):
    write_bare(repository, identity(TensorProto.BOOL, ["N", 4]))
    sent = tritonclient.http.InferInput("X", [1, 4], "BOOL")
    sent.set_data_from_numpy(np.array([[0, 1, 2, 255]], np.uint8).view(np.bool_))
    assert answer(serve(), "same", sent).as_numpy("Y").view(np.uint8).tolist() == [[0, 1, 1, 1]]


def test_an_input_that_is_an_output_outlives_its_request(repository, serve):
    shape = ["N", "length"]
    nodes = [node("Add", ["X", "X"], ["Y"])]
    model = OnnxModel("echo", nodes, [("X", F, shape)], [("Y", F, shape), ("X", F, shape)])
    write_bare(repository, model)
    server = serve()
    values = np.arange(300_000, dtype=np.float32).reshape(3, -1)
    with ThreadPoolExecutor(8) as pool:
        answers = pool.map(lambda k: (k, answer(server, "echo", given("X", values + k))), range(16))
        for k, got in answers:
            np.testing.assert_array_equal(got.as_numpy("X"), values + k)
            np.testing.assert_array_equal(got.as_numpy("Y"), 2 * (values + k))


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (0, 0)])
def test_dimensions_may_be_zero(repository, serve, shape):
    model = OnnxModel(
        "sizes",
        [node("Add", ["X", "X"], ["Y"]), node("ReduceSum", ["X", "axes"], ["SUM"], keepdims=0)],
        [("X", F, ["a", "b"])],
        [("Y", F, ["a", "b"]), ("SUM", F, ["a"])],
        {"axes": np.array([1])},
    )
    write_bare(repository, model, "max_batch_size: 0 backend: 'onnxruntime'" + EXPLICIT)
    got = answer(serve(), "sizes", given("X", np.zeros(shape, np.float32)))
    assert got.as_numpy("Y").shape == shape
    np.testing.assert_array_equal(got.as_numpy("SUM"), np.zeros(shape[0], np.float32))


EXPLICIT = """
input { name: "X" data_type: TYPE_FP32 dims: [ -1, -1 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ -1, -1 ] }
output { name: "SUM" data_type: TYPE_FP32 dims: [ -1 ] }
"""


@pytest.mark.parametrize("operator, gates", [("GRU", 3), ("LSTM", 4), ("RNN", 1)])
def test_a_sequence_of_length_zero_ends_its_request_and_not_the_server(repository, serve, operator, gates):
    weights = {"W": np.ones((1, gates * 2, 3), np.float32), "R": np.ones((1, gates * 2, 2), np.float32)}
    nodes = [node(operator, ["X", "W", "R"], ["Y"], hidden_size=2)]
    inputs, outputs = [("X", F, ["length", "rows", 3])], [("Y", F, ["length", 1, "rows", 2])]
    OnnxModel("recurrent", nodes, inputs, outputs, weights).write(repository)
    server = serve()

    def ask(length, rows):
        values = [0.5] * (length * rows * 3)
        return infer(server, "recurrent", {"inputs": [tensor("X", "FP32", [length, rows, 3], values)]})

    for length, rows in [(0, 1), (1, 0), (0, 0), (0, 2), (3, 0)]:
        if operator == "RNN":
            assert ask(length, rows).json["outputs"][0]["shape"] == [length, 1, rows, 2]
        else:
            told = rf"'X' has no elements \(shape \[{length},{rows},3\]\), on which ONNX Runtime ends .* operator {operator}"
            assert_refused(ask(length, rows), 400, told)
    assert ask(3, 2).json["outputs"][0]["shape"] == [3, 1, 2, 2]


def test_scalars_are_configured_as_one_element(repository, serve):
    model = OnnxModel("scalars", [node("Mul", ["A", "B"], ["Y"])], [("A", F, []), ("B", F, ["N"])], [("Y", F, ["N"])])
    write_bare(repository, model)
    server = serve()
    stated = request(server, "GET", "/v2/models/scalars/config").json
    assert [(it["name"], it["dims"]) for it in stated["input"]] == [("A", [1]), ("B", [-1])]
    got = answer(server, "scalars", given("A", np.array([3.0], np.float32)), given("B", np.ones(2, np.float32)))
    assert got.as_numpy("Y").tolist() == [3.0, 3.0]


def test_a_model_may_be_a_folder_with_its_weights_beside_it(repository, serve):
    factor = np.arange(3000, dtype=np.float32)
    nodes = [node("Mul", ["X", "factor"], ["Y"])]
    model = OnnxModel("large", nodes, [("X", F, ["N", 3000])], [("Y", F, ["N", 3000])], {"factor": factor})
    folder = repository / "large" / "1" / "model.onnx"
    folder.mkdir(parents=True)
    proto = onnx.load_from_string(model.serialized())
    onnx.save(proto, folder / "model.onnx", save_as_external_data=True, location="weights.bin", size_threshold=1000)
    assert (folder / "weights.bin").stat().st_size == factor.nbytes
    got = answer(serve(), "large", given("X", np.full((1, 3000), 2, np.float32)))
    np.testing.assert_array_equal(got.as_numpy("Y")[0], 2 * factor)


def test_a_loop_and_a_sequence_within_the_model_are_fine(repository, serve):
    nodes = [
        node("SequenceConstruct", ["X", "X", "X"], ["three"]),
        node("ConcatFromSequence", ["three"], ["Y"], axis=1),
    ]
    write_bare(repository, OnnxModel("inner", nodes, [("X", F, ["N", 2])], [("Y", F, ["N", 6])]))
    got = answer(serve(), "inner", given("X", np.array([[1, 2]], np.float32)))
    assert got.as_numpy("Y").tolist() == [[1, 2, 1, 2, 1, 2]]


def test_sequences_and_maps_as_inputs_and_outputs_are_refused(repository, serve):
    sequence = helper.make_tensor_sequence_value_info("Y", F, None)
    graph = helper.make_graph(
        [node("SequenceConstruct", ["X"], ["Y"])],
        "sequence",
        [helper.make_tensor_value_info("X", F, ["N"])],
        [sequence],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    write_model(repository, "sequence", None, model.SerializeToString())
    assert "output 'Y' of the model is a sequence, but" in reason(repository, serve, "sequence")


def test_onnx_runtimes_error_for_a_bad_file_is_passed_on(repository, serve):
    write_model(repository, "broken", None, scale_model("broken").serialized().replace(b"Mul", b"Mxl"))
    server = serve("--exit-on-error=false", ready=False)
    server.wait_for_log("failed to load 'broken'.*ONNX Runtime cannot load .*Mxl")


@pytest.mark.parametrize("before", [b"not a model", b"\x38\x01"], ids=["garbage", "graph also as a number"])
def test_a_file_that_cannot_be_checked_is_refused(repository, serve, before):
    write_model(repository, "broken", None, before + scale_model("broken").serialized())
    assert "model.onnx is not a complete ONNX file" in reason(repository, serve, "broken")


def test_a_file_in_onnx_runtimes_own_format_is_served(repository, serve):
    write_model(repository, "own", 'backend: "onnxruntime" default_model_filename: "model.ort"', scale_model("own").serialized())
    file = repository / "own" / "1" / "model.onnx"
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(file.with_suffix(".ort"))
    options.add_session_config_entry("session.save_model_format", "ORT")
    onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    file.unlink()
    got = answer(serve(), "own", given("X", np.ones((1, 3), np.float32)))
    assert got.as_numpy("Y").tolist() == [[2, 2, 2]]


def test_a_run_that_fails_fails_its_requests_only(repository, serve):
    nodes = [node("Gather", ["table", "ids"], ["Y"])]
    table = {"table": np.arange(10, dtype=np.float32)}
    write_bare(repository, OnnxModel("look_up", nodes, [("ids", TensorProto.INT64, ["N", 1])], [("Y", F, ["N", 1])], table))
    server = serve()
    assert_refused(infer(server, "look_up", {"inputs": [tensor("ids", "INT64", [1, 1], [99])]}), 500)
    got = answer(server, "look_up", given("ids", np.array([[7]])))
    assert got.as_numpy("Y").tolist() == [[7.0]]


def test_each_instance_runs_beside_the_others(repository, serve):
    model = scale_model("twice", max_batch_size=0)
    text = model.config().replace("instance_group { count: 1 kind: KIND_CPU }", "instance_group { count: 4 kind: KIND_CPU }")
    write_model(repository, "twice", text, model.serialized())
    server = serve()
    values = np.arange(9, dtype=np.float32).reshape(3, 3)
    with ThreadPoolExecutor(8) as pool:
        for k, got in pool.map(lambda k: (k, answer(server, "twice", given("X", values + k))), range(200)):
            np.testing.assert_array_equal(got.as_numpy("Y"), 2 * (values + k))


def test_one_of_several_outputs_may_be_requested(repository, serve):
    nodes = [node("Add", ["X", "X"], ["A"]), node("Mul", ["X", "X"], ["B"])]
    write_bare(repository, OnnxModel("two", nodes, [("X", F, ["N", 1])], [("A", F, ["N", 1]), ("B", F, ["N", 1])]))
    server = serve()
    got = answer(server, "two", given("X", np.array([[3]], np.float32)), outputs=[wanted("B")])
    assert [output["name"] for output in got.get_response()["outputs"]] == ["B"]
    assert got.as_numpy("B").tolist() == [[9.0]]


OPTIONS = [
    parameter("intra_op_thread_count", 2),
    parameter("inter_op_thread_count", 2),
    parameter("execution_mode", 1),
    parameter("enable_mem_arena", 0),
    parameter("enable_mem_pattern", "false"),
    parameter("memory.enable_memory_arena_shrinkage", "cpu:0"),
    parameter("session.intra_op.allow_spinning", 0),
    "optimization { graph { level: -1 } }",
    "optimization { graph { level: 1 } }",
    "optimization { graph { level: 2 } }",
]


@pytest.mark.parametrize("option", OPTIONS)
def test_the_backends_options_are_accepted(repository, serve, option):
    model = scale_model("twice")
    write_model(repository, "twice", model.config() + option, model.serialized())
    got = answer(serve(), "twice", given("X", np.ones((1, 3), np.float32)))
    assert got.as_numpy("Y").tolist() == [[2.0, 2.0, 2.0]]


@pytest.mark.parametrize(
    ("option", "told"),
    [
        (parameter("execution_mode", 2), "parameter 'execution_mode' is '2', but takes 0"),
        (parameter("intra_op_thread_count", "many"), "'intra_op_thread_count' is 'many'"),
        (parameter("enable_mem_arena", "perhaps"), "'enable_mem_arena' is 'perhaps'"),
        (
            'optimization { execution_accelerators { cpu_execution_accelerator { name: "openvino" } } }',
            "'openvino', which is OpenVINOExecutionProvider, but this ONNX Runtime has only",
        ),
        (
            'optimization { execution_accelerators { gpu_execution_accelerator { name: "tensorrt" } } }',
            "'tensorrt', which is TensorrtExecutionProvider, but this ONNX Runtime has only",
        ),
        (
            'optimization { execution_accelerators { gpu_execution_accelerator { name: "warp" } } }',
            "'warp' is not a gpu_execution_accelerator of this backend",
        ),
        ('model_operations { op_library_filename: "/no/such/library.so" }', "/no/such/library.so"),
    ],
)
def test_impossible_options_are_refused_with_the_reason(repository, serve, option, told):
    model = scale_model("twice")
    write_model(repository, "twice", model.config() + option, model.serialized())
    assert told in reason(repository, serve, "twice")


def test_all_sessions_may_share_one_pool_of_threads(repository, serve):
    write_bare(repository, scale_model("twice"))
    pool = ["enable-global-threadpool=1", "intra_op_thread_count=2", "inter_op_thread_count=1"]
    server = serve(*[f"--backend-config=onnxruntime,{setting}" for setting in pool])
    server.wait_for_log("model 'twice' version 1 is served by ONNX Runtime .* with the global thread pool")
    assert infer(server, "twice", ONES).json["outputs"][0]["data"] == [2.0] * 6


@pytest.mark.parametrize("after", ["loading 'twice_0'", "successfully loaded 'twice_3'", "successfully loaded 'twice_9'"])
def test_a_signal_while_models_are_loaded_ends_the_server_in_order(repository, after):
    for k in range(40):
        write_bare(repository, scale_model(f"twice_{k}"))
    server = nereid_server.Server(repository, *onnx_engines.FLAGS["ort"])
    try:
        server.wait_for_log(after)
        server.terminate()
        assert server.wait_for_exit() == 0, server.log
    finally:
        server.kill()


def test_a_model_sent_with_the_request_to_load_it_is_served(repository, serve):
    server = serve("--model-control-mode=explicit")
    with tritonclient.http.InferenceServerClient(server.url) as client:
        model = scale_model("sent")
        client.load_model("sent", config="{}", files={"file:1/model.onnx": model.serialized()})
        got = client.infer("sent", [given("X", np.ones((1, 3), np.float32))])
    assert got.as_numpy("Y").tolist() == [[2.0, 2.0, 2.0]]

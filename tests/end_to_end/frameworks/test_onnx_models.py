"""Small ONNX models of many kinds in each engine, compared with ONNX Runtime in Python over the same file."""

import numpy as np
import onnxruntime
import pytest
import tritonclient.http
from onnx import TensorProto, helper

import nereid_server
import onnx_engines
from http_requests import assert_refused, infer, tensor
from model_files import OnnxModel
from tensors import given, wanted

node = helper.make_node
F = TensorProto.FLOAT
rng = np.random.default_rng(11)


def floats(*shape):
    return rng.standard_normal(shape, np.float32)


def arithmetic(name, kind, values):
    """Twice the input plus one. Types without arithmetic of their own go through INT64."""
    direct = kind in (TensorProto.FLOAT16, F, TensorProto.DOUBLE, TensorProto.INT32, TensorProto.INT64)
    nodes = [node("Add", ["X", "X"], ["twice"]), node("Add", ["twice", "one"], ["Y"])]
    if not direct:
        nodes = [
            node("Cast", ["X"], ["wide"], to=TensorProto.INT64),
            node("Add", ["wide", "wide"], ["twice"]),
            node("Add", ["twice", "one"], ["sum"]),
            node("Cast", ["sum"], ["Y"], to=kind),
        ]
    one = np.ones(1, values.dtype if direct else np.int64)
    model = OnnxModel(name, nodes, [("X", kind, ["N", 4])], [("Y", kind, ["N", 4])], {"one": one}, 8)
    return model, {"X": values.reshape(1, 4)}


def element_types():
    for kind, dtype in (
        (TensorProto.FLOAT16, np.float16),
        (F, np.float32),
        (TensorProto.DOUBLE, np.float64),
    ):
        yield arithmetic(f"type_{np.dtype(dtype).name}", kind, np.array([-2.5, 0, 0.125, 100], dtype))
    for dtype in ("u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8"):
        name = np.dtype(dtype).name
        values = np.array([0, 1, 42, 63] if dtype[0] == "u" else [-64, -1, 0, 63], dtype)
        yield arithmetic(f"type_{name}", getattr(TensorProto, name.upper()), values)
    yield (
        OnnxModel(
            "type_bool",
            [node("Not", ["X"], ["Y"])],
            [("X", TensorProto.BOOL, ["N", 4])],
            [("Y", TensorProto.BOOL, ["N", 4])],
            max_batch_size=8,
        ),
        {"X": np.array([[True, False, False, True]])},
    )
    yield (
        OnnxModel(
            "type_string",
            [node("Concat", ["X", "X"], ["Y"], axis=1)],
            [("X", TensorProto.STRING, ["N", 2])],
            [("Y", TensorProto.STRING, ["N", 4])],
            max_batch_size=8,
        ),
        {"X": np.array([["", "zwölf"]], np.object_)},
    )


def shapes():
    yield (
        OnnxModel(
            "fixed_without_batch",
            [node("MatMul", ["X", "weight"], ["product"]), node("Add", ["product", "bias"], ["Y"])],
            [("X", F, [2, 3])],
            [("Y", F, [2, 5])],
            {"weight": floats(3, 5), "bias": floats(5)},
        ),
        {"X": floats(2, 3)},
    )
    yield (
        OnnxModel(
            "free_without_batch",
            [node("Transpose", ["X"], ["Y"], perm=[1, 0])],
            [("X", F, ["rows", "columns"])],
            [("Y", F, ["columns", "rows"])],
        ),
        {"X": floats(3, 7)},
    )
    yield (
        OnnxModel(
            "free_with_batch",
            [node("Concat", ["A", "B"], ["Y"], axis=2)],
            [("A", F, ["N", 2, "a"]), ("B", F, ["N", 2, "b"])],
            [("Y", F, ["N", 2, "c"])],
            max_batch_size=4,
        ),
        {"A": floats(3, 2, 1), "B": floats(3, 2, 6)},
    )
    yield (
        OnnxModel("one_dimension", [node("Relu", ["X"], ["Y"])], [("X", F, ["N"])], [("Y", F, ["N"])]),
        {"X": floats(9)},
    )
    yield (
        OnnxModel(
            "output_of_another_rank",
            [node("ReduceMean", ["X"], ["Y"], axes=[1, 2], keepdims=0)],
            [("X", F, ["N", "h", "w"])],
            [("Y", F, ["N"])],
        ),
        {"X": floats(2, 3, 4)},
    )


def networks():
    yield (
        OnnxModel(
            "perceptron",
            [
                node("Gemm", ["X", "w1", "b1"], ["hidden"], transB=1),
                node("Tanh", ["hidden"], ["active"]),
                node("Gemm", ["active", "w2", "b2"], ["logits"]),
                node("Softmax", ["logits"], ["Y"], axis=1),
            ],
            [("X", F, ["N", 6])],
            [("Y", F, ["N", 3])],
            {"w1": floats(16, 6), "b1": floats(16), "w2": floats(16, 3), "b2": floats(3)},
            16,
        ),
        {"X": floats(5, 6)},
    )
    yield (
        OnnxModel(
            "convolution",
            [
                node("Conv", ["X", "weight", "bias"], ["conv"], kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2]),
                node("BatchNormalization", ["conv", "scale", "shift", "mean", "variance"], ["normal"]),
                node("LeakyRelu", ["normal"], ["active"], alpha=0.1),
                node("GlobalAveragePool", ["active"], ["pooled"]),
                node("Flatten", ["pooled"], ["Y"], axis=1),
            ],
            [("X", F, ["N", 3, 16, 16])],
            [("Y", F, ["N", 8])],
            {
                "weight": floats(8, 3, 3, 3),
                "bias": floats(8),
                "scale": floats(8),
                "shift": floats(8),
                "mean": floats(8),
                "variance": np.abs(floats(8)) + 0.5,
            },
            4,
        ),
        {"X": floats(2, 3, 16, 16)},
    )
    yield (
        OnnxModel(
            "embedding",
            [
                node("Gather", ["table", "ids"], ["vectors"], axis=0),
                node("ReduceSum", ["vectors", "axes"], ["Y"], keepdims=0),
            ],
            [("ids", TensorProto.INT64, ["N", "length"])],
            [("Y", F, ["N", 4])],
            {"table": floats(10, 4), "axes": np.array([1])},
            8,
        ),
        {"ids": np.array([[1, 2, 3], [9, 0, 9]])},
    )
    yield (
        OnnxModel(
            "several_results",
            [
                node("ArgMax", ["X"], ["best"], axis=1, keepdims=0),
                node("Greater", ["X", "zero"], ["positive"]),
                node("Where", ["positive", "X", "zero"], ["clipped"]),
            ],
            [("X", F, ["N", 5])],
            [
                ("best", TensorProto.INT64, ["N"]),
                ("positive", TensorProto.BOOL, ["N", 5]),
                ("clipped", F, ["N", 5]),
            ],
            {"zero": np.zeros(1, np.float32)},
        ),
        {"X": floats(3, 5)},
    )


CASES = {model.name: (model, feed) for model, feed in [*element_types(), *shapes(), *networks()]}


@pytest.fixture(scope="module", params=onnx_engines.FLAGS)
def server(request, tmp_path_factory):
    repository = tmp_path_factory.mktemp("onnx")
    for model, _ in CASES.values():
        model.write(repository)
    with nereid_server.running(repository, *onnx_engines.FLAGS[request.param]) as server:
        yield server


@pytest.fixture
def client(server):
    with tritonclient.http.InferenceServerClient(server.url) as client:
        yield client


def reference(model, feed):
    """ONNX Runtime's answer, by output."""
    session = onnxruntime.InferenceSession(model.serialized())
    return dict(zip([tensor.name for tensor in session.get_outputs()], session.run(None, feed)))


def as_sent(values):
    """Strings travel as bytes; everything else as it is."""
    if values.dtype != np.object_:
        return values
    return np.array([text.encode() for text in values.ravel()], np.object_).reshape(values.shape)


@pytest.mark.parametrize("name", CASES)
def test_answers_equal_onnx_runtime(client, name):
    model, feed = CASES[name]
    answer = client.infer(name, [given(tensor, as_sent(values)) for tensor, values in feed.items()])
    expected = reference(model, feed)
    assert expected
    for output, values in expected.items():
        got, values = answer.as_numpy(output), as_sent(values)
        assert (got.dtype, got.shape) == (values.dtype, values.shape)
        if got.dtype.kind == "f":
            tolerance = 1e-3 if got.dtype == np.float16 else 1e-5
            np.testing.assert_allclose(got, values, rtol=tolerance, atol=tolerance)
        else:
            np.testing.assert_array_equal(got, values)


@pytest.mark.parametrize("name", ["free_without_batch", "free_with_batch", "perceptron", "convolution", "embedding"])
def test_one_model_takes_many_shapes_in_turn(client, name):
    model, feed = CASES[name]
    for size in (1, 4, 2, 4, 1):
        resized = {tensor: np.resize(values, (size, *values.shape[1:])) for tensor, values in feed.items()}
        answer = client.infer(name, [given(tensor, values) for tensor, values in resized.items()])
        for output, values in reference(model, resized).items():
            np.testing.assert_allclose(answer.as_numpy(output), values, rtol=1e-5, atol=1e-5)


def test_one_of_several_outputs_can_be_requested(client):
    model, feed = CASES["several_results"]
    answer = client.infer("several_results", [given("X", feed["X"])], outputs=[wanted("best")])
    assert [output["name"] for output in answer.get_response()["outputs"]] == ["best"]
    np.testing.assert_array_equal(answer.as_numpy("best"), reference(model, feed)["best"])


def test_an_error_inside_the_model_is_the_answer_to_that_request_only(client, server):
    outside = {"inputs": [tensor("ids", "INT64", [1, 1], [99])]}
    assert_refused(infer(server, "embedding", outside), 500)
    answer = client.infer("embedding", [given("ids", np.array([[1]]))])
    assert answer.as_numpy("Y").shape == (1, 4)

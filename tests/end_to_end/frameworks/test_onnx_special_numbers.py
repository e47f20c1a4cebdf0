"""NaN, infinities and the ends of the types in the embedded engine: each answer is that of ONNX Runtime, or the model is refused."""

from typing import Any

import numpy as np
import onnx
import onnx_oracle
import pytest
import random_onnx_graphs
from onnx import helper, numpy_helper
from test_random_onnx_graphs import embedded  # noqa: F401 - a fixture

BOOL, I64 = np.dtype(bool), np.dtype(np.int64)
F16, F32, F64 = np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)
FLOATS = [F32, F16, F64]
# How far results may be from those of ONNX Runtime, whose functions are approximations, too.
RELATIVE = {F16: 2e-3, F32: 2e-5, F64: 1e-6}
ABSOLUTE = {F16: 2e-6, F32: 2e-6, F64: 1e-12}
# What several operators that round one after the other add up to.
ROUNDED = {F16: 5e-3, F32: 1e-5}
SIZES = [
    *(
        np.inf,
        3.4028235e38,
        3e38,
        1.7e38,
        1e38,
        5e37,
        1e37,
        1e30,
        1.9e19,
        1.8e19,
        1e15,
        7e12,
        1e10,
        2.2e9,
        65504,
        6e4,
        1e4,
        300,
        105,
    ),
    *(103.9, 90, 88.8, 88.7, 87, 50, 30, 20, 18, 16, 14.6, 12, 10, 9.1, 9, 8, 7, 6, 5, 4.5, 4, 3, 2.5, 2, 1.5, 1, 0.5, 0.1, 1e-3),
    *(1e-5, 1e-10, 1e-30, 1.2e-38, 1.1e-38, 1e-40, 1e-45, 0),
]
NUMBERS = [np.nan, *SIZES, *(-size for size in SIZES), np.nan]
DOUBLES = [1e300, -1e300, 1.79e308, -1.79e308, 1.4e154, 1e-300, 5e-324, 710, 709, -710, -745, -750]
FUNCTIONS: dict[str, list[dict[str, Any]]] = {
    "Abs": [{}], "Acos": [{}], "Acosh": [{}], "Asin": [{}], "Asinh": [{}], "Atan": [{}], "Atanh": [{}], "Ceil": [{}], "Cos": [{}],
    "Cosh": [{}], "Elu": [{}, {"alpha": 0.2}], "Erf": [{}], "Exp": [{}], "Floor": [{}], "Gelu": [{}, {"approximate": "tanh"}],
    "HardSigmoid": [{}, {"alpha": 0.0}, {"alpha": -1.5}], "HardSwish": [{}], "Identity": [{}],
    "IsInf": [{}, {"detect_negative": 0}, {"detect_positive": 0}], "IsNaN": [{}], "LeakyRelu": [{}, {"alpha": 0.0}, {"alpha": 1.5}],
    "Log": [{}], "Mish": [{}], "Neg": [{}], "Reciprocal": [{}], "Relu": [{}], "Round": [{}], "Selu": [{}, {"alpha": -1.5}],
    "Sigmoid": [{}], "Sign": [{}], "Sin": [{}], "Sinh": [{}], "Softplus": [{}], "Softsign": [{}], "Sqrt": [{}], "Swish": [{}],
    "Tan": [{}], "Tanh": [{}], "ThresholdedRelu": [{}, {"alpha": 0.0}],
}  # fmt: skip
PAIRS = ["Add", "Div", "Equal", "Greater", "Less", "LessOrEqual", "Max", "Mean", "Min", "Mod", "Mul", "PRelu", "Pow", "Sub", "Sum"]
CONSTANTS = [0, 2, 0.5, -1, 3, np.inf, np.nan]
BOUNDS = [(-1, 1), (None, 1), (-1, None), (-np.inf, np.inf), (np.nan, 1), (1, -1), (0, 6), (-1, np.nan), (None, None)]
node = helper.make_node


def numbers(dtype):
    """Numbers of all sizes of a type."""
    with np.errstate(over="ignore"):
        return np.array([*NUMBERS, *DOUBLES] if dtype == F64 else NUMBERS).astype(dtype)


def model(nodes, dtype, results, rank=1, opset=22, output_rank=None, **constants):
    """A model of X, with inputs Z if a node reads it, and results of these types by name."""
    read = {name for node in nodes for name in node.input}
    inputs = [random_onnx_graphs.port(name, dtype, [f"{name}{axis}" for axis in range(rank)]) for name in "XZ" if name in read]
    outputs = [random_onnx_graphs.port(name, result, [None] * (output_rank or rank)) for name, result in results.items()]
    initializers = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items() if name in read]
    graph = helper.make_graph(nodes, "special", inputs, outputs, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def check(embedded, model, feed, error=0.0):
    """Compares the answers, which may be `error` apart; returns whether both engines answered."""
    (answer,) = embedded.answers(model, [feed])
    expected = random_onnx_graphs.run(model, feed)
    what = onnx.printer.to_text(model)
    if expected is None:
        return False
    assert isinstance(answer, dict), f"{answer}\n{what}"
    for output, right in zip(model.graph.output, expected.values(), strict=True):
        got = answer[output.name]
        assert got.dtype == right.dtype and got.shape == right.shape, what
        size = np.nan_to_num(np.abs(right.astype(float)), nan=0, posinf=0)
        wrong = onnx_oracle.distance(got, right) > RELATIVE.get(right.dtype, 0) * size + ABSOLUTE.get(right.dtype, 0) + error
        at = [tuple(place) for place in np.argwhere(wrong)[:5]]
        given = {name: [value[place] for place in at] for name, value in feed.items() if value.shape == right.shape}
        assert not at, f"{[got[place] for place in at]} instead of {[right[place] for place in at]} of {given}, at {at}\n{what}"
    return True


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("operator", FUNCTIONS)
def test_a_function_of_special_numbers_is_that_of_onnx_runtime(embedded, operator, dtype):
    x = numbers(dtype)
    if operator == "Sign" and dtype == F16:
        # ONNX Runtime has 0 for NaN in this type only.
        x = x[~np.isnan(x)]
    for attributes in FUNCTIONS[operator]:
        made = model(
            [node(operator, ["X"], ["Y"], **attributes)],
            dtype,
            {"Y": BOOL if operator.startswith("Is") else dtype},
            opset=24 if operator == "Swish" else 22,
        )
        assert check(embedded, made, {"X": x}) or dtype == F64


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("operator", PAIRS)
def test_a_function_of_two_special_numbers_is_that_of_onnx_runtime(embedded, operator, dtype):
    x = numbers(dtype)
    attributes = {"fmod": 1} if operator == "Mod" else {}
    result = BOOL if operator in ("Equal", "Greater", "Less", "LessOrEqual") else dtype
    make = lambda inputs, **constants: model([node(operator, inputs, ["Y"], **attributes)], dtype, {"Y": result}, **constants)  # noqa: E731
    few = x[:: 3 if dtype == F16 else 2]
    one, other = (it.ravel() for it in np.meshgrid(few, few))
    answered = [check(embedded, make(["X", "Z"]), {"X": one, "Z": other})]
    for constant in CONSTANTS:
        # The slope of a PRelu has as many dimensions as its input.
        value = np.array([constant], dtype) if operator == "PRelu" else np.array(constant, dtype)
        answered.append(check(embedded, make(["X", "C"], C=value), {"X": x}))
        if operator != "PRelu":
            answered.append(check(embedded, make(["C", "X"], C=value), {"X": x}))
    assert all(answered) or dtype == F64


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_clip_of_special_numbers_is_that_of_onnx_runtime(embedded, dtype):
    x = numbers(dtype)
    for low, high in BOUNDS:
        given = {name: np.array(bound, dtype) for name, bound in (("low", low), ("high", high)) if bound is not None}
        inputs = ["X", *(name if name in given else "" for name in ("low", "high"))]
        assert check(embedded, model([node("Clip", inputs, ["Y"])], dtype, {"Y": dtype}, **given), {"X": x})
        attributes = {name: float(bound) for name, bound in (("min", low), ("max", high)) if bound is not None}
        check(embedded, model([node("Clip", ["X"], ["Y"], **attributes)], dtype, {"Y": dtype}, opset=6), {"X": x})


def rows(dtype, length):
    """Rows of usual numbers, with one or several special ones."""
    rng = np.random.default_rng(length)
    places = [0, length - 1, length // 2, slice(0, 2), slice(None), slice(1, 3)]
    made = [rng.standard_normal(length) * 2 for _ in range(20)]
    for special in (np.nan, np.inf, -np.inf, 100.0, -100.0, 0.0, 1e-40):
        for place in places:
            made.append(rng.standard_normal(length) * 2)
            made[-1][place] = special
    with np.errstate(over="ignore"):
        return np.array(made).astype(dtype)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("length", [3, 4, 8, 17, 40, 100])
@pytest.mark.parametrize("axis", [0, 1])
def test_functions_of_rows_with_special_numbers_are_those_of_onnx_runtime(embedded, axis, length, dtype):
    x = rows(dtype, length)
    finite = x[~np.isnan(x).any(1)]
    turned = lambda x: np.ascontiguousarray(x if axis else x.T)  # noqa: E731
    axes = np.array([axis])
    for operator in ["Softmax", "LogSoftmax", "Hardmax"]:
        given = finite if operator == "Hardmax" else x
        if operator == "LogSoftmax" and dtype == F64:
            # ONNX Runtime's is wrong in this type only.
            given = finite[np.isfinite(finite).all(1)]
        check(embedded, model([node(operator, ["X"], ["Y"], axis=axis)], dtype, {"Y": dtype}, rank=2), {"X": turned(given)})
    for operator in ["Sum", "Mean", "Prod", "L1", "L2", "SumSquare", "LogSum", "LogSumExp", "Max", "Min"]:
        # ONNX Runtime drops NaN from extremes or keeps it, by its position.
        given = finite if operator in ("Max", "Min") else x
        reduction = [node(f"Reduce{operator}", ["X", "axes"], ["Y"])]
        check(embedded, model(reduction, dtype, {"Y": dtype}, rank=2, axes=axes), {"X": turned(given)})
    for operator in ["ArgMax", "ArgMin"]:
        for last in (0, 1):
            places = [node(operator, ["X"], ["Y"], axis=axis, select_last_index=last)]
            check(embedded, model(places, dtype, {"Y": I64}, rank=2), {"X": turned(x)})
    for largest in (0, 1):
        best = [node("TopK", ["X", "K"], ["Y", "P"], axis=axis, largest=largest)]
        made = model(best, dtype, {"Y": dtype, "P": I64}, rank=2, K=np.array([2]))
        # Of equal numbers, ONNX Runtime may choose any.
        check(embedded, made, {"X": turned(finite[np.isfinite(finite).all(1)])})


@pytest.mark.parametrize("dtype", [F32, F16], ids=str)
@pytest.mark.parametrize("head", ["Relu", "Clip", "Max", "Min", "Sigmoid", "Swish", "HardSwish", "Gelu", "Tanh", "Mish", "Softmax"])
def test_heads_of_products_and_convolutions_with_special_numbers_are_those_of_onnx_runtime(embedded, head, dtype):
    rng = np.random.default_rng(len(head))
    heads = {
        "Relu": [node("Relu", ["A"], ["Y"])],
        "Clip": [node("Clip", ["A", "zero", "six"], ["Y"])],
        "Max": [node("Max", ["A", "columns"], ["Y"])],
        "Min": [node("Neg", ["A"], ["N"]), node("Min", ["A", "N"], ["Y"])],
        "Sigmoid": [node("Sigmoid", ["A"], ["Y"])],
        "Swish": [node("Sigmoid", ["A"], ["S"]), node("Mul", ["A", "S"], ["Y"])],
        "HardSwish": [node("HardSigmoid", ["A"], ["S"], alpha=1 / 6, beta=0.5), node("Mul", ["A", "S"], ["Y"])],
        "Gelu": [
            node("Div", ["A", "root"], ["D"]),
            node("Erf", ["D"], ["E"]),
            node("Add", ["E", "one"], ["F"]),
            node("Mul", ["A", "F"], ["G"]),
            node("Mul", ["G", "half"], ["Y"]),
        ],
        "Tanh": [node("Tanh", ["A"], ["Y"])],
        "Mish": [node("Softplus", ["A"], ["S"]), node("Tanh", ["S"], ["T"]), node("Mul", ["A", "T"], ["Y"])],
        "Softmax": [node("Softmax", ["A"], ["Y"], axis=-1)],
    }
    small = {"zero": 0, "six": 6, "root": 2**0.5, "one": 1, "half": 0.5}
    constants = {name: np.array(value, dtype) for name, value in small.items()}
    for rank, columns in [(2, 7), (2, 40), (4, 1), (4, 6)]:
        if rank == 2:
            shape, weights = (33, 6), (6, columns)
            body = [node("MatMul", ["X", "weights"], ["A"])]
        else:
            shape, weights = (1, columns, 9, 8), (columns, 1, 3, 3)
            body = [node("Conv", ["X", "weights"], ["A"], group=columns, pads=[1, 1, 1, 1])]
        x = rng.standard_normal(shape)
        x.flat[rng.integers(x.size, size=4)] = [np.nan, np.inf, -np.inf, -30.0]
        constants["weights"] = rng.choice([-2.0, -0.5, 0.25, 1.0], weights).astype(dtype)
        constants["columns"] = np.array(0.5, dtype)
        made = model([*body, *heads[head]], dtype, {"Y": dtype}, rank=rank, **constants)
        assert check(embedded, made, {"X": x.astype(dtype)}, ROUNDED[dtype])


@pytest.mark.parametrize(
    ("operator", "gates", "attributes"), [("LSTM", 4, {}), ("GRU", 3, {}), ("GRU", 3, {"linear_before_reset": 1}), ("RNN", 1, {})]
)
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_states_behind_special_numbers_are_those_of_onnx_runtime(embedded, direction, operator, gates, attributes):
    rng = np.random.default_rng(gates)
    directions, hidden, inputs = 2 if direction == "bidirectional" else 1, 5, 4
    weights = {
        name: rng.standard_normal((directions, gates * hidden, size), np.float32) for name, size in (("W", inputs), ("R", hidden))
    }
    recurrence = node(operator, ["X", "W", "R"], ["Y"], hidden_size=hidden, direction=direction, **attributes)
    made = model([recurrence], F32, {"Y": F32}, rank=3, opset=17, output_rank=4, **weights)
    for special in (np.nan, np.inf, -np.inf, 1e38, -100.0):
        x = rng.standard_normal((6, 2, inputs), np.float32)
        x[rng.integers(6), 0, rng.integers(inputs)] = special
        assert check(embedded, made, {"X": x})

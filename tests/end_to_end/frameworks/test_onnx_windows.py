"""Pools and convolutions in the embedded engine, over their attributes: each answer is that of ONNX Runtime, or the model is refused."""

from collections import Counter
from typing import Any

import numpy as np
import onnx_oracle
import pytest
import random_onnx_graphs
from onnx import helper, numpy_helper
from test_random_onnx_graphs import PANIC, embedded  # noqa: F401 - a fixture

F32, U8, I32 = np.dtype(np.float32), np.dtype(np.uint8), np.dtype(np.int32)
# Of each operator, as many models as that; each has inputs of these sizes.
MODELS = 80
SIZES = [1, 2, 3, 5, 6, 7, 8, 9]
CHANNELS = 2


def attributes(operator, axes, rng):
    """A window, and how it moves."""
    choose = lambda options: [options[rng.integers(len(options))] for _ in range(axes)]  # noqa: E731
    kernel, strides = choose([1, 2, 3]), choose([1, 2, 3])
    chosen: dict[str, Any] = {"kernel_shape": kernel, "strides": strides}
    padding = rng.choice(["pads", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"]).item()
    if padding == "pads":
        chosen["pads"] = [rng.integers(0, size).item() for size in (*kernel, *kernel)]
    else:
        chosen["auto_pad"] = padding
    if rng.random() < 0.4:
        chosen["dilations"] = choose([1, 2, 3])
    if operator.endswith("Pool") and rng.random() < 0.3:
        chosen["ceil_mode"] = 1
    if operator == "AveragePool":
        chosen["count_include_pad"] = rng.integers(2).item()
    if operator == "ConvTranspose":
        if rng.random() < 0.3:
            chosen["output_padding"] = choose([0, 1])
        if rng.random() < 0.3:
            chosen["output_shape"] = choose([3, 4, 5, 8, 11])
    return chosen


def window(operator, rng):
    """A model of the operator, with its weights, and its inputs."""
    axes = rng.choice([1, 2]).item()
    chosen = attributes(operator, axes, rng)
    dtype, result = (U8, I32) if operator == "ConvInteger" else (F32, F32)
    constants = []
    if "Conv" in operator:
        weights = rng.integers(0, 9, (CHANNELS, CHANNELS, *chosen["kernel_shape"])).astype(dtype)
        constants.append(numpy_helper.from_array(weights, "weights"))
    node = helper.make_node(operator, ["x", *(constant.name for constant in constants)], ["y"], **chosen)
    dims = [1, CHANNELS, *(f"d{axis}" for axis in range(axes))]
    ports = [[random_onnx_graphs.port("x", dtype, dims)], [random_onnx_graphs.port("y", result, [None] * len(dims))]]
    model = helper.make_model(
        helper.make_graph([node], "window", *ports, constants), opset_imports=[helper.make_opsetid("", 19)], ir_version=8
    )
    shapes = [(1, CHANNELS, size, *rng.choice(SIZES, axes - 1)) for size in SIZES]
    return model, [{"x": rng.integers(0, 50, shape).astype(dtype)} for shape in shapes]


@pytest.mark.parametrize("operator", ["MaxPool", "AveragePool", "Conv", "ConvInteger", "ConvTranspose"])
def test_windows_are_those_of_onnx_runtime_or_refused(embedded, operator):
    rng = np.random.default_rng(11)
    outcomes: Counter[str] = Counter()
    for _ in range(MODELS):
        model, feeds = window(operator, rng)
        for feed, answer in zip(feeds, embedded.answers(model, feeds), strict=True):
            right = random_onnx_graphs.run(model, feed)
            what = f"{model.graph.node[0]}\n{feed['x'].shape}"
            if isinstance(answer, str):
                assert PANIC not in answer, f"{answer}\n{what}"
                outcomes["refused by both" if right is None else "refused"] += 1
            elif right is None:
                outcomes["refused by ONNX Runtime"] += 1
            else:
                outcomes["equal"] += 1
                assert not onnx_oracle.difference(model, feed, answer, right), what
    print(dict(outcomes))
    assert outcomes["equal"] > MODELS * len(SIZES) / 3
    assert outcomes["refused by both"] > MODELS / 10

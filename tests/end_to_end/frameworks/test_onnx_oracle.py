"""The measure of the embedded engine's answers: it passes what rounding explains, and nothing else."""

import numpy as np
import onnx_oracle
import pytest
import random_onnx_graphs
from onnx import helper, numpy_helper

F32 = np.dtype(np.float32)


@pytest.mark.parametrize("scale", [-1.1647353, 0.25, 3.0])
@pytest.mark.parametrize("element", [-26492.766, 9999.5, 12.5, 0.0])
def test_an_instance_of_one_element_is_its_bias_or_off_by_rounding(element, scale):
    ports = [random_onnx_graphs.port(name, F32, ["n", 1, 1, 1]) for name in ("x", "y")]
    constant = numpy_helper.from_array(np.array([scale], np.float32), "c")
    node = helper.make_node("InstanceNormalization", ["x", "c", "c"], ["y"])
    graph = helper.make_graph([node], "normalization", ports[:1], ports[1:], [constant])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    for shape in [(1, 1, 1, 1), (3, 1, 1, 1)]:
        feed = {"x": np.full(shape, element, np.float32)}
        expected = random_onnx_graphs.run(model, feed)
        answer = np.full(shape, scale, np.float32)
        assert onnx_oracle.difference(model, feed, {"y": answer}, expected) == ""
        # Ten times the rounding of the products that cancel.
        wrong = answer + 0.01 * abs(scale) + 10 * np.finfo(np.float32).eps * abs(element * scale) / np.sqrt(1e-5)
        assert onnx_oracle.difference(model, feed, {"y": wrong.astype(np.float32)}, expected)

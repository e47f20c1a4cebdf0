"""Builds the `find_digits` example model: cuts a sheet of 8x8 cells, as of a form, and keeps those that something is written in."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

EXAMPLES = Path(__file__).resolve().parent.parent
MODEL = EXAMPLES / "conditional_repository" / "find_digits" / "1" / "model.onnx"

SIDE = 8
# A cell with no darker pixel is empty.
PAPER_MAX = 4
OPSET = 13
IR_VERSION = 8


def main():
    constants = {
        # The columns of a sheet are those of one cell; its rows are those of all cells.
        "cells_shape": np.array([-1, SIDE, SIDE], np.int64),
        "flat_shape": np.array([-1, SIDE * SIDE], np.int64),
        "paper_max": np.array(PAPER_MAX, np.int32),
        "zero": np.array(0, np.int64),
        "row_axis": np.array([0], np.int64),
    }
    nodes = [
        helper.make_node("Reshape", ["sheet", "cells_shape"], ["cells"]),
        helper.make_node("Reshape", ["sheet", "flat_shape"], ["flat"]),
        helper.make_node("Cast", ["flat"], ["numbers"], to=TensorProto.INT32),
        helper.make_node("ReduceMax", ["numbers"], ["darkest"], axes=[1], keepdims=0),
        helper.make_node("Greater", ["darkest", "paper_max"], ["is_written"]),
        helper.make_node("NonZero", ["is_written"], ["written"]),
        helper.make_node("Squeeze", ["written", "row_axis"], ["places"]),
        helper.make_node("Gather", ["cells", "places"], ["crops"], axis=0),
        helper.make_node("Cast", ["is_written"], ["ones"], to=TensorProto.INT64),
        helper.make_node("ReduceSum", ["ones", "row_axis"], ["count"], keepdims=1),
        helper.make_node("Greater", ["count", "zero"], ["found"]),
    ]
    graph = helper.make_graph(
        nodes,
        "find_digits",
        [helper.make_tensor_value_info("sheet", TensorProto.UINT8, ["rows", SIDE])],
        [
            helper.make_tensor_value_info("crops", TensorProto.UINT8, ["written", SIDE, SIDE]),
            helper.make_tensor_value_info("places", TensorProto.INT64, ["written"]),
            helper.make_tensor_value_info("found", TensorProto.BOOL, [1]),
        ],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    opset = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=IR_VERSION, producer_name="make_find_digits")
    onnx.checker.check_model(model, full_check=True)
    MODEL.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, MODEL)
    print(f"wrote {MODEL.relative_to(EXAMPLES)}, {MODEL.stat().st_size} bytes")


if __name__ == "__main__":
    main()

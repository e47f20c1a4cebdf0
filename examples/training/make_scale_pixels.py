"""Builds the `scale_pixels` example model: pixels from 0 to 16 become what the `digits` model reads, values from 0 to 1."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

EXAMPLES = Path(__file__).resolve().parent.parent
MODEL = EXAMPLES / "model_repository" / "scale_pixels" / "1" / "model.onnx"

SIDE = 8
PIXEL_MAX = 16
OPSET = 13
IR_VERSION = 8


def main():
    nodes = [
        helper.make_node("Cast", ["pixels"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("Div", ["numbers", "pixel_max"], ["values"]),
        # One channel.
        helper.make_node("Unsqueeze", ["values", "channel_axis"], ["image"]),
    ]
    graph = helper.make_graph(
        nodes,
        "scale_pixels",
        [helper.make_tensor_value_info("pixels", TensorProto.UINT8, ["batch", SIDE, SIDE])],
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 1, SIDE, SIDE])],
        [
            numpy_helper.from_array(np.array(PIXEL_MAX, np.float32), "pixel_max"),
            numpy_helper.from_array(np.array([1], np.int64), "channel_axis"),
        ],
    )
    opset = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=IR_VERSION, producer_name="make_scale_pixels")
    onnx.checker.check_model(model, full_check=True)
    MODEL.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, MODEL)
    print(f"wrote {MODEL.relative_to(EXAMPLES)}, {MODEL.stat().st_size} bytes")


if __name__ == "__main__":
    main()

"""Builds the `add_sub` example model: sums and differences of two INT32 and of two FP32 vectors."""

from pathlib import Path

import onnx
from onnx import TensorProto, helper

EXAMPLES = Path(__file__).resolve().parent.parent
MODEL = EXAMPLES / "model_repository" / "add_sub" / "1" / "model.onnx"

LENGTH = 16
KINDS = {"INT": TensorProto.INT32, "FLOAT": TensorProto.FLOAT}
OPSET = 13
IR_VERSION = 8


def main():
    nodes, inputs, outputs = [], [], []
    for name, kind in KINDS.items():
        operands = [f"{name}0", f"{name}1"]
        for operator, result in (("Add", f"{name}_SUM"), ("Sub", f"{name}_DIFF")):
            nodes.append(helper.make_node(operator, operands, [result]))
            outputs.append(helper.make_tensor_value_info(result, kind, ["batch", LENGTH]))
        inputs += [helper.make_tensor_value_info(operand, kind, ["batch", LENGTH]) for operand in operands]
    graph = helper.make_graph(nodes, "add_sub", inputs, outputs)
    opset = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=IR_VERSION, producer_name="make_add_sub")
    onnx.checker.check_model(model, full_check=True)
    MODEL.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, MODEL)
    print(f"wrote {MODEL.relative_to(EXAMPLES)}, {MODEL.stat().st_size} bytes")


if __name__ == "__main__":
    main()

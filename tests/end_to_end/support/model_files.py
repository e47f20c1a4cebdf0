"""Writes model repositories: configurations, and small ONNX models made on the spot."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 13
IR_VERSION = 8

# The protocol's name of each ONNX element type.
PROTOCOL_TYPES = {
    TensorProto.BOOL: "BOOL",
    TensorProto.UINT8: "UINT8",
    TensorProto.UINT16: "UINT16",
    TensorProto.UINT32: "UINT32",
    TensorProto.UINT64: "UINT64",
    TensorProto.INT8: "INT8",
    TensorProto.INT16: "INT16",
    TensorProto.INT32: "INT32",
    TensorProto.INT64: "INT64",
    TensorProto.FLOAT16: "FP16",
    TensorProto.FLOAT: "FP32",
    TensorProto.DOUBLE: "FP64",
    TensorProto.STRING: "BYTES",
}


def config_type(datatype):
    """The configuration's name of a protocol datatype."""
    return "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"


def config(name, backend, inputs, outputs, max_batch_size=0, extra=""):
    """A config.pbtxt. Tensors are `(name, protocol datatype, dims)`."""
    lines = [f'name: "{name}"', f'backend: "{backend}"', f"max_batch_size: {max_batch_size}"]
    for section, tensors in (("input", inputs), ("output", outputs)):
        for tensor, datatype, dims in tensors:
            sizes = ", ".join(map(str, dims))
            lines.append(f'{section} {{ name: "{tensor}" data_type: {config_type(datatype)} dims: [ {sizes} ] }}')
    lines.append("instance_group { count: 1 kind: KIND_CPU }")
    return "\n".join([*lines, extra, ""])


def write_model(repository, name, config_text, model=None, version=1):
    """Writes one model folder. `model` is the content of model.onnx; without one the version's folder stays empty."""
    folder = Path(repository) / name / str(version)
    folder.mkdir(parents=True)
    if config_text is not None:
        (folder.parent / "config.pbtxt").write_text(config_text)
    if model is not None:
        (folder / "model.onnx").write_bytes(model)


def write_identity(repository, name, datatypes, max_batch_size=0, dims=(-1,), **parameters):
    """Writes a model of the identity backend with one pair of tensors for each datatype."""

    def tensors(prefix):
        return [(f"{prefix}{index}", datatype, dims) for index, datatype in enumerate(datatypes)]

    extra = "\n".join(f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}' for key, value in parameters.items())
    text = config(name, "identity", tensors("INPUT"), tensors("OUTPUT"), max_batch_size, extra)
    write_model(repository, name, text)


@dataclass
class OnnxModel:
    """A small ONNX graph. Tensors are `(name, element type, shape)`; a string in a shape is a free dimension."""

    name: str
    nodes: list
    inputs: list
    outputs: list
    constants: dict = field(default_factory=dict)
    # Above 0 the first dimension of every tensor is the batch.
    max_batch_size: int = 0

    def serialized(self):
        """The bytes of model.onnx."""
        graph = helper.make_graph(
            self.nodes,
            self.name,
            [helper.make_tensor_value_info(*tensor) for tensor in self.inputs],
            [helper.make_tensor_value_info(*tensor) for tensor in self.outputs],
            [numpy_helper.from_array(np.asarray(value), name) for name, value in self.constants.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
        onnx.checker.check_model(model, full_check=True)
        return model.SerializeToString()

    def config(self):
        """The configuration that says of the model what the graph says."""

        def declared(tensors):
            for name, kind, shape in tensors:
                dims = [-1 if isinstance(size, str) else size for size in shape]
                yield name, PROTOCOL_TYPES[kind], dims[1:] if self.max_batch_size else dims

        return config(self.name, "onnxruntime", declared(self.inputs), declared(self.outputs), self.max_batch_size)

    def write(self, repository):
        """Writes the model folder."""
        write_model(repository, self.name, self.config(), self.serialized())


def scale_model(name, factor=2.0, max_batch_size=8):
    """FP32 `X` [N,3] times a factor gives `Y` [N,3]: the smallest model that shows that answers are right."""
    return OnnxModel(
        name,
        [helper.make_node("Mul", ["X", "factor"], ["Y"])],
        [("X", TensorProto.FLOAT, ["N", 3])],
        [("Y", TensorProto.FLOAT, ["N", 3])],
        {"factor": np.array(factor, np.float32)},
        max_batch_size,
    )

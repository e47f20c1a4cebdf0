"""OpenVINO's library, and small models in its own format."""

from pathlib import Path

import openvino
from openvino import opset13 as ops

from model_files import config_type

# The folder of the library in the Python package.
LIBRARY_FOLDER = Path(openvino.__file__).parent / "libs"
FLAGS = [f"--backend-config=openvino,library={LIBRARY_FOLDER}"]

# OpenVINO's type for each of the protocol's.
TYPES = {
    "BOOL": openvino.Type.boolean,
    "UINT8": openvino.Type.u8,
    "UINT16": openvino.Type.u16,
    "UINT32": openvino.Type.u32,
    "UINT64": openvino.Type.u64,
    "INT8": openvino.Type.i8,
    "INT16": openvino.Type.i16,
    "INT32": openvino.Type.i32,
    "INT64": openvino.Type.i64,
    "BF16": openvino.Type.bf16,
    "FP16": openvino.Type.f16,
    "FP32": openvino.Type.f32,
    "FP64": openvino.Type.f64,
    "BYTES": openvino.Type.string,
}


def network(name, inputs, compute):
    """A network of inputs `(name, protocol datatype, shape)`. `compute` gets them and gives its outputs by name."""
    nodes = []
    for tensor, datatype, shape in inputs:
        node = ops.parameter(shape, dtype=TYPES[datatype], name=tensor)
        node.output(0).set_names({tensor})
        nodes.append(node)
    results = []
    for output, node in compute(*nodes).items():
        if node in nodes:
            # An input that is an output as well is one tensor, and would have one name.
            node = ops.squeeze(ops.unsqueeze(node, 0), 0)
        result = ops.result(node, name=output)
        result.output(0).set_names({output})
        results.append(result)
    return openvino.Model(results, nodes, name)


def write(repository, network, extra=None, version=1):
    """Writes a model folder. Without a configuration the server completes it; the backend follows from the file."""
    folder = Path(repository) / network.get_friendly_name() / str(version)
    folder.mkdir(parents=True)
    openvino.save_model(network, folder / "model.xml", compress_to_fp16=False)
    if extra is not None:
        (folder.parent / "config.pbtxt").write_text(f'backend: "openvino"\n{extra}')


def tensors(section, *declared):
    """`input` or `output` sections of a configuration, from `(name, protocol datatype, dims)`."""
    return "".join(
        f'{section} {{ name: "{name}" data_type: {config_type(datatype)} dims: {list(dims)} }}\n'
        for name, datatype, dims in declared
    )


def parameter(key, value):
    """A parameter of a configuration."""
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'

"""Small TensorFlow models, written without TensorFlow: GraphDef and SavedModel are encoded by hand."""

from pathlib import Path

import numpy as np

# TensorFlow's number of each of the protocol's types.
TYPES = {
    "FP32": 1,
    "FP64": 2,
    "INT32": 3,
    "UINT8": 4,
    "INT16": 5,
    "INT8": 6,
    "BYTES": 7,
    "INT64": 9,
    "BOOL": 10,
    "BF16": 14,
    "UINT16": 17,
    "FP16": 19,
    "UINT32": 22,
    "UINT64": 23,
}


def _varint(value):
    value &= (1 << 64) - 1
    parts = bytearray()
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])


def _field(number, value):
    """A field of a message: a number, or text or bytes."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    value = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _shape(shape):
    return b"".join(_field(2, _field(1, size) if size else b"") for size in shape)


def node(name, op, inputs=(), **attributes):
    """A node of a GraphDef."""
    entries = (_field(5, _field(1, key) + _field(2, value)) for key, value in attributes.items())
    return _field(1, _field(1, name) + _field(2, op) + b"".join(_field(3, it) for it in inputs) + b"".join(entries))


def type_of(datatype):
    """An attribute that is a type."""
    return _field(6, TYPES[datatype])


def types_of(*datatypes):
    """An attribute that is a list of types."""
    numbers = b"".join(_varint(TYPES[it]) for it in datatypes)
    return _field(1, _varint(6 << 3 | 2) + _varint(len(numbers)) + numbers)


def number(value):
    """An attribute that is an integer."""
    return _field(3, value)


def integers(*values):
    """An attribute that is a list of integers."""
    packed = b"".join(_varint(value) for value in values)
    return _field(1, _field(3, packed))


def truth(value):
    """An attribute that is true or false."""
    return _field(5, int(value))


def text(value):
    """An attribute that is text."""
    return _field(2, value)


def placeholder(name, datatype, shape=None):
    """An input; without a shape, its rank is open."""
    dims = _field(3, 1) if shape is None else _shape(shape)
    return node(name, "Placeholder", dtype=type_of(datatype), shape=_field(7, dims))


def variable(name, datatype, shape):
    """A variable, which an operation has to assign."""
    return node(name, "VariableV2", dtype=type_of(datatype), shape=_field(7, _shape(shape)))


def constant(name, datatype, value):
    """A constant: an array, or text."""
    if datatype == "BYTES":
        tensor = _field(1, TYPES[datatype]) + _field(2, b"") + _field(8, value)
    else:
        array = np.asarray(value)
        tensor = _field(1, TYPES[datatype]) + _field(2, _shape(array.shape)) + _field(4, array.tobytes())
    return node(name, "Const", dtype=type_of(datatype), value=_field(8, tensor))


def graph(*nodes):
    """A GraphDef of these nodes."""
    return b"".join(nodes) + _field(4, _field(1, 1205))


def scaled(shape, factor=3.0):
    """A GraphDef in which `y` is the placeholder `x` of that shape, FP32, times a factor."""
    return graph(
        placeholder("x", "FP32", shape),
        constant("factor", "FP32", np.float32(factor)),
        node("y", "Mul", ["x", "factor"], T=type_of("FP32")),
    )


def convolutions(layers, channels, seed=7):
    """A GraphDef with as many convolutions of images, FP32 [-1,-1,-1,3], `x`. The mean of each channel is `y`."""
    rng = np.random.default_rng(seed)
    nodes, last, depth = [placeholder("x", "FP32", [-1, -1, -1, 3])], "x", 3
    for at in range(layers):
        weights = rng.normal(0, 1 / np.sqrt(9 * depth), (3, 3, depth, channels)).astype(np.float32)
        nodes.append(constant(f"weights{at}", "FP32", weights))
        strides = integers(1, 1, 1, 1)
        nodes.append(node(f"conv{at}", "Conv2D", [last, f"weights{at}"], T=type_of("FP32"), strides=strides, padding=text("SAME")))
        last, depth = f"relu{at}", channels
        nodes.append(node(last, "Relu", [f"conv{at}"], T=type_of("FP32")))
    nodes.append(constant("axes", "INT32", np.array([1, 2], np.int32)))
    nodes.append(node("y", "Mean", [last, "axes"], T=type_of("FP32"), Tidx=type_of("INT32")))
    return graph(*nodes)


def signature(inputs, outputs, datatype="FP32", shape=(-1, 3)):
    """A signature of `(name, tensor)` of that type and shape."""

    def entry(number, name, tensor):
        info = _field(1, tensor) + _field(2, TYPES[datatype]) + _field(3, _shape(shape))
        return _field(number, _field(1, name) + _field(2, info))

    entries = [entry(1, *pair) for pair in inputs] + [entry(2, *pair) for pair in outputs]
    return b"".join(entries) + _field(3, "tensorflow/serving/predict")


def meta_graph(graph, signatures, tags=("serve",)):
    """A graph of a SavedModel with its signatures by name."""
    meta = _field(1, b"".join(_field(4, tag) for tag in tags)) + _field(2, graph)
    return _field(2, meta + b"".join(_field(5, _field(1, name) + _field(2, it)) for name, it in signatures.items()))


def saved_model(graph, shape, inputs=(("given", "x:0"),), outputs=(("scaled", "y:0"),)):
    """A SavedModel of that graph, whose tensors are FP32 of that shape. The signature has `(name, tensor)`."""
    return _field(1, 1) + meta_graph(graph, {"serving_default": signature(inputs, outputs, shape=shape)})


def write(repository, name, graph, config=None, shape=None):
    """Writes a model: a SavedModel if its shape is given, or else a GraphDef."""
    folder = Path(repository) / name / "1"
    folder.mkdir(parents=True)
    if config is not None:
        (folder.parent / "config.pbtxt").write_text(config)
    if shape is None:
        (folder / "model.graphdef").write_bytes(graph)
    else:
        (folder / "model.savedmodel").mkdir()
        (folder / "model.savedmodel" / "saved_model.pb").write_bytes(saved_model(graph, shape))


def write_saved(repository, name, *meta_graphs, config=None):
    """Writes a SavedModel of several graphs."""
    folder = Path(repository) / name / "1" / "model.savedmodel"
    folder.mkdir(parents=True)
    if config is not None:
        (folder.parents[1] / "config.pbtxt").write_text(config)
    (folder / "saved_model.pb").write_bytes(_field(1, 1) + b"".join(meta_graphs))

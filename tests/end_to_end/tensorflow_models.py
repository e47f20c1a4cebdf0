"""Small TensorFlow models, written without TensorFlow: GraphDef and SavedModel are encoded by hand."""

from pathlib import Path

import numpy as np

# TensorFlow's number of each of the protocol's types.
TYPES = {"FP32": 1, "FP64": 2, "INT32": 3, "UINT8": 4, "INT64": 9}


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


def _node(name, op, inputs=(), **attributes):
    entries = (_field(5, _field(1, key) + _field(2, value)) for key, value in attributes.items())
    return _field(1, _field(1, name) + _field(2, op) + b"".join(_field(3, it) for it in inputs) + b"".join(entries))


def _type(datatype):
    return _field(6, TYPES[datatype])


def _constant(name, datatype, value):
    array = np.asarray(value)
    tensor = _field(1, TYPES[datatype]) + _field(2, _shape(array.shape)) + _field(4, array.tobytes())
    return _node(name, "Const", dtype=_type(datatype), value=_field(8, tensor))


def scaled(shape, factor=3.0):
    """A GraphDef in which `y` is the placeholder `x` of that shape, FP32, times a factor."""
    nodes = [
        _node("x", "Placeholder", dtype=_type("FP32"), shape=_field(7, _shape(shape))),
        _constant("factor", "FP32", np.float32(factor)),
        _node("y", "Mul", ["x", "factor"], T=_type("FP32")),
    ]
    return b"".join(nodes) + _field(4, _field(1, 1205))


def saved_model(graph, shape, inputs=(("given", "x:0"),), outputs=(("scaled", "y:0"),)):
    """A SavedModel of that graph, whose tensors are FP32 of that shape. The signature has `(name, tensor)`."""

    def entry(number, name, tensor):
        info = _field(1, tensor) + _field(2, TYPES["FP32"]) + _field(3, _shape(shape))
        return _field(number, _field(1, name) + _field(2, info))

    signature = b"".join(entry(1, *pair) for pair in inputs) + b"".join(entry(2, *pair) for pair in outputs)
    signature += _field(3, "tensorflow/serving/predict")
    meta = _field(1, _field(4, "serve")) + _field(2, graph)
    meta += _field(5, _field(1, "serving_default") + _field(2, signature))
    return _field(1, 1) + _field(2, meta)


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

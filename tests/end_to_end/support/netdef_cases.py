"""The Caffe2 nets of `tests/netdef/operators.bin`, with what Caffe2 computed of their inputs."""

from collections import namedtuple
from pathlib import Path

import numpy as np

CASES = Path(__file__).parents[2] / "netdef" / "operators.bin"
TYPES = {"FP32": np.float32, "FP64": np.float64, "INT32": np.int32, "INT64": np.int64, "BOOL": np.bool_, "UINT8": np.uint8}

# Inputs and outputs are lists of (name, array).
Case = namedtuple("Case", "name init net inputs outputs")


def _varint(message, at):
    number = shift = 0
    while True:
        byte = message[at]
        number |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return number, at


def _fields(message):
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        length, at = _varint(message, at)
        yield key >> 3, message[at : at + length]
        at += length


def _tensor(message):
    name, datatype, dims, contents = (dict(_fields(message)).get(number, b"") for number in (1, 2, 3, 4))
    shape = np.frombuffer(dims, np.int64).tolist()
    return name.decode(), np.frombuffer(contents, TYPES[datatype.decode()]).reshape(shape)


def cases():
    """All of them, by name."""
    found = {}
    for _, message in _fields(CASES.read_bytes()):
        fields = list(_fields(message))
        name, init, net = (next((it for number, it in fields if number == wanted), b"") for wanted in (1, 2, 3))
        inputs, outputs = ([_tensor(it) for number, it in fields if number == wanted] for wanted in (4, 5))
        found[name.decode()] = Case(name.decode(), init, net, inputs, outputs)
    return found


def declared(case):
    """The inputs and outputs in a configuration, with the shapes that they have. A scalar is [1]."""

    def entry(role, name, array):
        datatype = next(key for key, it in TYPES.items() if it == array.dtype)
        dims = ", ".join(map(str, array.shape or (1,)))
        return f'{role} {{ name: "{name}" data_type: TYPE_{datatype} dims: [ {dims} ] }}\n'

    inputs = (entry("input", *it) for it in case.inputs)
    return "".join([*inputs, *(entry("output", *it) for it in case.outputs)])


def write(repository, case, config=None):
    """Writes a model."""
    folder = repository / case.name / "1"
    folder.mkdir(parents=True)
    (folder / "init_model.netdef").write_bytes(case.init)
    (folder / "model.netdef").write_bytes(case.net)
    if config is not None:
        (folder.parent / "config.pbtxt").write_text(config)

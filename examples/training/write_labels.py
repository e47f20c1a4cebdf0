"""Writes the labels of the fetched models, from what their packages and files say.

    python examples/training/write_labels.py examples/fetched_repository

Needs nothing but Python. `cargo xtask fetch examples` runs it.
"""

import json
import sys
from pathlib import Path

# Of onnx.proto: ModelProto.metadata_props, and key and value of an entry.
METADATA, KEY, VALUE = 14, 1, 2


def number(data, at):
    """A protobuf number and where it ends."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def fields(data):
    """The number and content of each length-delimited field of a protobuf message."""
    at = 0
    while at < len(data):
        tag, at = number(data, at)
        kind = tag & 7
        if kind == 0:
            _, at = number(data, at)
        elif kind == 2:
            length, at = number(data, at)
            yield tag >> 3, data[at : at + length]
            at += length
        else:
            at += {1: 8, 5: 4}[kind]


def metadata(model):
    """What an ONNX file says of itself, by key."""
    entries = (dict(fields(entry)) for field, entry in fields(model.read_bytes()) if field == METADATA)
    return {entry[KEY].decode(): entry[VALUE].decode() for entry in entries}


def main(repository):
    kinds = json.loads((repository / "file_type/magika.json").read_text())["target_labels_space"]
    (repository / "file_type/labels.txt").write_text("\n".join(kinds) + "\n")
    characters = metadata(repository / "text_recogniser/1/model.onnx")["character"]
    (repository / "text_recogniser/characters.txt").write_text(characters, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

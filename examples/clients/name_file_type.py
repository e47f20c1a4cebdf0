"""Asks the `file_type` model what kinds of files some are.

    python examples/clients/name_file_type.py README.md Cargo.toml

Give the models with `cargo xtask fetch examples`, and serve examples/fetched_repository.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

# The model sees so many bytes from either end, and this in place of those that a short file lacks.
ENDS, PADDING = 1024, 256


def features(content):
    """The bytes that the model looks at."""
    values = np.full(2 * ENDS, PADDING, np.int32)
    content = content.strip()
    first, last = content[:ENDS], content[-ENDS:]
    values[: len(first)] = np.frombuffer(first, np.uint8)
    values[2 * ENDS - len(last) :] = np.frombuffer(last, np.uint8)
    return values


def name_types(url, contents):
    """The most probable kind of each file and its probability, asked for in one batch."""
    batch = np.stack([features(content) for content in contents])
    looked_at = triton.InferInput("bytes", list(batch.shape), "INT32")
    looked_at.set_data_from_numpy(batch)
    # With a class count the server answers "value:index:label" strings in place of the probabilities.
    wanted = triton.InferRequestedOutput("target_label", class_count=1)
    with triton.InferenceServerClient(url) as client:
        answer = client.infer("file_type", [looked_at], outputs=[wanted])
    for value, _, label in (best.decode().split(":") for best in answer.as_numpy("target_label")[:, 0]):
        yield label, float(value)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", metavar="FILE", help="any file")
    parser.add_argument("--url", default="localhost:8000", help="host and port of the server (default: %(default)s)")
    arguments = parser.parse_args()
    try:
        kinds = list(name_types(arguments.url, [Path(path).read_bytes() for path in arguments.files]))
    except (InferenceServerException, OSError) as error:
        sys.exit(f"name_file_type: {error}")
    for path, (kind, probability) in zip(arguments.files, kinds):
        print(f"{path}: {kind} ({probability:.3f})")


if __name__ == "__main__":
    main()

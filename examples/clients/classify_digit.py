"""Asks the `digits` model which digits some 8x8 images show.

    python examples/clients/classify_digit.py examples/images/digit_3.pgm

Several images travel in one request, as one batch; their lines then begin with the file's name.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

SHAPE = (1, 8, 8)


def read_image(path):
    """A plain (P2) PGM file as values from 0 to 1, in the model's shape."""
    lines = Path(path).read_text().splitlines()
    words = [word for line in lines for word in line.split("#")[0].split()]
    if words[:3] != ["P2", "8", "8"] or len(words) != 4 + np.prod(SHAPE):
        raise ValueError(f"{path} is not a plain PGM image of 8x8 pixels")
    return np.array(words[4:], np.float32).reshape(SHAPE) / np.float32(words[3])


def classify(url, images):
    """The most probable label of each image and its probability."""
    batch = np.stack(images)
    image = triton.InferInput("image", list(batch.shape), "FP32")
    image.set_data_from_numpy(batch)
    # With a class count the server answers "value:index:label" strings in place of the probabilities.
    wanted = triton.InferRequestedOutput("probabilities", class_count=1)
    with triton.InferenceServerClient(url) as client:
        answer = client.infer("digits", [image], outputs=[wanted])
    for value, _, label in (best.decode().split(":") for best in answer.as_numpy("probabilities")[:, 0]):
        yield label, float(value)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("images", nargs="+", metavar="IMAGE", help="a plain PGM file of 8x8 pixels")
    parser.add_argument("--url", default="localhost:8000", help="host and port of the server (default: %(default)s)")
    arguments = parser.parse_args()
    try:
        answers = list(classify(arguments.url, [read_image(path) for path in arguments.images]))
    except (InferenceServerException, OSError, ValueError) as error:
        sys.exit(f"classify_digit: {error}")
    for path, (label, probability) in zip(arguments.images, answers):
        name = f"{path}: " if len(answers) > 1 else ""
        print(f"{name}{label} ({probability:.3f})")


if __name__ == "__main__":
    main()

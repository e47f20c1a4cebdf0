"""Asks the `text_recogniser` model what is written in pictures of single lines of text.

    python examples/clients/read_text.py examples/images/text_line.pgm

Give the models with `cargo xtask fetch examples`, and serve examples/fetched_repository.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

CHARACTERS = Path(__file__).resolve().parents[1] / "fetched_repository/text_recogniser/characters.txt"
# The model reads lines of this height, of any width.
HEIGHT = 48


def read_image(path):
    """A binary PGM (P5) file as the model takes it: three equal channels from -1 to 1, scaled to its height."""
    parts = Path(path).read_bytes().split(maxsplit=4)
    if len(parts) != 5 or parts[0] != b"P5" or parts[3] != b"255":
        raise ValueError(f"{path} is not a binary PGM image of 256 shades")
    width, height = int(parts[1]), int(parts[2])
    shades = np.frombuffer(parts[4], np.uint8)
    if shades.size != width * height:
        raise ValueError(f"{path} has {shades.size} pixels, but says it has {width} times {height}")
    rows = np.arange(HEIGHT) * height // HEIGHT
    columns = np.arange(max(1, width * HEIGHT // height)) * height // HEIGHT
    scaled = shades.reshape(height, width)[rows][:, np.minimum(columns, width - 1)]
    return np.repeat(scaled[None].astype(np.float32) / 127.5 - 1, 3, axis=0)


def written(probabilities, characters):
    """The text of the most probable characters, without repetitions, and the average confidence of the model."""
    best = probabilities.argmax(axis=1)
    # The first class is the gap between characters, which also parts two of a kind; the last is the space.
    classes = ["", *characters, " "]
    kept = [(k, p) for k, p, before in zip(best, probabilities.max(axis=1), [0, *best]) if k not in (0, before)]
    return "".join(classes[k] for k, _ in kept).strip(), float(np.mean([p for _, p in kept] or [0]))


def read_text(url, image, characters):
    """What is written in an image, and how sure the model is."""
    line = triton.InferInput("x", [1, *image.shape], "FP32")
    line.set_data_from_numpy(image[None])
    with triton.InferenceServerClient(url) as client:
        answer = client.infer("text_recogniser", [line])
    return written(answer.as_numpy("softmax_11.tmp_0")[0], characters)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("images", nargs="+", metavar="IMAGE", help="a binary PGM file that shows one line of text")
    parser.add_argument("--url", default="localhost:8000", help="host and port of the server (default: %(default)s)")
    arguments = parser.parse_args()
    try:
        characters = CHARACTERS.read_text(encoding="utf-8").split("\n")
        for path in arguments.images:
            text, sureness = read_text(arguments.url, read_image(path), characters)
            print(f"{text} ({sureness:.3f})")
    except (InferenceServerException, OSError, ValueError) as error:
        sys.exit(f"read_text: {error}")


if __name__ == "__main__":
    main()

"""Asks the `read_picture` model what is written in pictures.

    python examples/clients/read_picture.py examples/images/page.pgm

Give the models with `cargo xtask fetch examples`, and serve examples/fetched_repository and examples/python_repository.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException


def read_image(path):
    """A binary PGM or PPM file (P5, P6) as rows of pixels of three channels."""
    parts = Path(path).read_bytes().split(maxsplit=4)
    if len(parts) != 5 or parts[0] not in (b"P5", b"P6") or parts[3] != b"255":
        raise ValueError(f"{path} is not a binary PGM or PPM image of 256 shades")
    width, height, channels = int(parts[1]), int(parts[2]), 1 if parts[0] == b"P5" else 3
    pixels = np.frombuffer(parts[4], np.uint8)
    if pixels.size != width * height * channels:
        raise ValueError(f"{path} has {pixels.size} values, but says it has {width} times {height} pixels")
    return np.ascontiguousarray(np.broadcast_to(pixels.reshape(height, width, channels), (height, width, 3)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("images", nargs="+", metavar="IMAGE", help="a binary PGM or PPM file")
    parser.add_argument("--url", default="localhost:8000", help="host and port of the server (default: %(default)s)")
    arguments = parser.parse_args()
    try:
        with triton.InferenceServerClient(arguments.url, network_timeout=300) as client:
            for path in arguments.images:
                image = read_image(path)
                picture = triton.InferInput("picture", list(image.shape), "UINT8")
                picture.set_data_from_numpy(image)
                answer = client.infer("read_picture", [picture])
                boxes = answer.as_numpy("boxes").tolist()
                for text, sureness, box in zip(answer.as_numpy("texts"), answer.as_numpy("confidences"), boxes):
                    print(f"{text.decode()} ({sureness:.3f}, at {box[0]},{box[1]})")
    except (InferenceServerException, OSError, ValueError) as error:
        sys.exit(f"read_picture: {error}")


if __name__ == "__main__":
    main()

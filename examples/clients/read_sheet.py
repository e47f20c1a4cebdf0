"""Asks the ensemble `read_sheet` which digits are on a sheet, whose cells are 8x8 images or empty.

    python examples/clients/read_sheet.py examples/images/digit_3.pgm - examples/images/digit_7.pgm

A dash is an empty cell.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

SIDE = 8
PIXEL_MAX = 16


def cell(path):
    """The pixels of a plain (P2) PGM file, from 0 to 16."""
    if path == "-":
        return np.zeros((SIDE, SIDE), np.uint8)
    lines = Path(path).read_text().splitlines()
    words = [word for line in lines for word in line.split("#")[0].split()]
    if words[:3] != ["P2", str(SIDE), str(SIDE)] or len(words) != 4 + SIDE * SIDE:
        raise ValueError(f"{path} is not a plain PGM image of {SIDE}x{SIDE} pixels")
    pixels = np.array(words[4:], np.int64) * PIXEL_MAX // int(words[3])
    return pixels.astype(np.uint8).reshape(SIDE, SIDE)


def read(url, cells):
    """The place of each digit, the digit, and its probability."""
    pixels = np.concatenate(cells)
    sheet = triton.InferInput("sheet", list(pixels.shape), "UINT8")
    sheet.set_data_from_numpy(pixels)
    with triton.InferenceServerClient(url) as client:
        answer = client.infer("read_sheet", [sheet])
    places, probabilities = answer.as_numpy("places"), answer.as_numpy("probabilities")
    if len(probabilities) < len(places):
        raise ValueError(f"{len(places)} cells are not empty, but could not be read in time")
    return [(place, digit.argmax(), digit.max()) for place, digit in zip(places, probabilities, strict=True)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cells", nargs="+", metavar="CELL", help="a plain PGM file of 8x8 pixels, or - for an empty cell")
    parser.add_argument("--url", default="localhost:8000", help="host and port of the server (default: %(default)s)")
    arguments = parser.parse_args()
    try:
        digits = read(arguments.url, [cell(path) for path in arguments.cells])
    except (InferenceServerException, OSError, ValueError) as error:
        sys.exit(f"read_sheet: {error}")
    for place, digit, probability in digits:
        print(f"cell {place}: {digit} ({probability:.3f})")
    if not digits:
        print("nothing is written")


if __name__ == "__main__":
    main()

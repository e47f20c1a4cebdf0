"""Damaged copies of a file, the same ones in each run. NEREID_DAMAGED_FILES says how many of each format are tried: a few
by default, 300 before a release."""

import os

import numpy as np

COUNT = int(os.environ.get("NEREID_DAMAGED_FILES", "10"))


def damaged(source, seed, count=COUNT, text=False):
    """Damaged copies of `source`: one to five bits flipped, or characters replaced in a text, and each fourth cut short."""
    rng = np.random.default_rng(seed)
    for index in range(count):
        copy = bytearray(source[: len(source) - (index % 4 == 3) * int(rng.integers(1, len(source) // 4 + 1))])
        for _ in range(1 + index % 5):
            at = rng.integers(len(copy))
            copy[at] = rng.integers(32, 127) if text else copy[at] ^ 1 << rng.integers(8)
        yield bytes(copy)

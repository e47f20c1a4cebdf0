"""Sends two INT32 and two FP32 vectors to the `add_sub` model and prints their sums and differences."""

import argparse
import sys

import numpy as np
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException, np_to_triton_dtype


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000", help="host and port of the server (default: %(default)s)")
    arguments = parser.parse_args()

    # The first dimension is the batch: one request that holds one pair of vectors.
    count = np.arange(16).reshape(1, 16)
    operands: dict[str, np.ndarray] = {
        "INT0": count.astype(np.int32),
        "INT1": np.full((1, 16), 3, np.int32),
        "FLOAT0": count.astype(np.float32) / 2,
        "FLOAT1": np.full((1, 16), 0.25, np.float32),
    }
    inputs = []
    for name, values in operands.items():
        tensor = triton.InferInput(name, list(values.shape), np_to_triton_dtype(values.dtype))
        tensor.set_data_from_numpy(values)
        inputs.append(tensor)
    try:
        with triton.InferenceServerClient(arguments.url) as client:
            answer = client.infer("add_sub", inputs)
    except (InferenceServerException, OSError) as error:
        sys.exit(f"add_sub: {error}")
    for kind in ("INT", "FLOAT"):
        left, right = operands[f"{kind}0"][0], operands[f"{kind}1"][0]
        sums, differences = answer.as_numpy(f"{kind}_SUM")[0], answer.as_numpy(f"{kind}_DIFF")[0]
        for a, b, total, difference in zip(left, right, sums, differences):
            print(f"{a} + {b} = {total}, {a} - {b} = {difference}")


if __name__ == "__main__":
    main()

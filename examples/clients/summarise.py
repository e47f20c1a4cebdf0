"""Asks the `summarise` models for the most telling sentences of texts.

    python examples/clients/summarise.py README.md --count 2

Serve examples/python_repository.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", metavar="FILE", help="a text file")
    parser.add_argument("--count", type=int, default=3, help="sentences of a summary (default: %(default)s)")
    parser.add_argument("--url", default="localhost:8000", help="host and port of the server (default: %(default)s)")
    arguments = parser.parse_args()
    try:
        with triton.InferenceServerClient(arguments.url) as client:
            for path in arguments.files:
                text = triton.InferInput("text", [1], "BYTES")
                text.set_data_from_numpy(np.array([Path(path).read_bytes()], np.object_))
                count = triton.InferInput("count", [1], "INT32")
                count.set_data_from_numpy(np.array([arguments.count], np.int32))
                for sentence in client.infer("summarise", [text, count]).as_numpy("summary"):
                    print(sentence.decode())
    except (InferenceServerException, OSError) as error:
        sys.exit(f"summarise: {error}")


if __name__ == "__main__":
    main()

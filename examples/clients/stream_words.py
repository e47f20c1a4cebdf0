"""Asks the `stream_words` model for the words of a text, and prints each as it arrives.

    python examples/clients/stream_words.py "one word after the other"

Serve examples/python_repository.
"""

import argparse
import queue
import sys

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException


def words(url, text):
    """The words, as they arrive."""
    arrived: queue.Queue[tuple] = queue.Queue()
    tensor = triton.InferInput("text", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([text.encode()], np.object_))
    with triton.InferenceServerClient(url) as client:
        client.start_stream(lambda result, error: arrived.put((result, error)))
        # A model may send any number of responses, so the server marks the last, which is empty.
        client.async_stream_infer("stream_words", [tensor], enable_empty_final_response=True)
        while True:
            answer, error = arrived.get()
            if error is not None:
                raise error
            if answer.get_response().parameters["triton_final_response"].bool_param:
                break
            yield answer.as_numpy("word")[0].decode()
        client.stop_stream()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", metavar="TEXT")
    parser.add_argument("--url", default="localhost:8001", help="host and gRPC port of the server (default: %(default)s)")
    arguments = parser.parse_args()
    try:
        for word in words(arguments.url, arguments.text):
            print(word, flush=True)
    except InferenceServerException as error:
        sys.exit(f"stream_words: {error}")


if __name__ == "__main__":
    main()

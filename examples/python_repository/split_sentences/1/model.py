"""Cuts a text into its sentences."""

import re

import numpy as np
import triton_python_backend_utils as pb_utils

# A sentence ends at a mark with a blank behind it, and a paragraph at an empty line.
END = re.compile(r"(?<=[.!?])\s+|\n\s*\n")


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([split(request)]) for request in requests]


def split(request):
    text = pb_utils.get_input_tensor_by_name(request, "text").as_numpy()[0].decode(errors="replace")
    sentences = [" ".join(sentence.split()) for sentence in END.split(text)]
    return pb_utils.Tensor("sentences", np.array([it.encode() for it in sentences if it], np.object_))

"""Chooses the sentences that have most in common with the others."""

import re

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([choose(request)]) for request in requests]


def choose(request):
    sentences = pb_utils.get_input_tensor_by_name(request, "sentences").as_numpy()
    count = int(pb_utils.get_input_tensor_by_name(request, "count").as_numpy()[0])
    if count < 1:
        raise pb_utils.TritonModelException(f"count is {count}, but a summary has at least one sentence")
    best = np.sort(np.argsort(-ranks(sentences), kind="stable")[:count])
    return pb_utils.Tensor("chosen", np.array([sentences[index] for index in best], np.object_))


def ranks(sentences):
    """How similar each sentence is to all others: the cosines between the counts of their words, rare words first."""
    words = [re.findall(r"\w\w\w+", sentence.decode().lower()) for sentence in sentences]
    vocabulary = {word: index for index, word in enumerate(sorted({word for each in words for word in each}))}
    counts = np.zeros((len(words), len(vocabulary) or 1))
    for row, each in zip(counts, words):
        for word in each:
            row[vocabulary[word]] += 1
    counts *= np.log1p(len(words) / np.maximum(1, (counts > 0).sum(axis=0)))
    counts /= np.maximum(1e-9, np.linalg.norm(counts, axis=1, keepdims=True))
    similar = counts @ counts.T
    return similar.sum(axis=1) - similar.diagonal()

"""Tensors in the form Triton's HTTP client takes them."""

import tritonclient.http as triton
from tritonclient.utils import np_to_triton_dtype


def given(name, values, binary=True):
    """An input that holds a numpy array."""
    result = triton.InferInput(name, list(values.shape), np_to_triton_dtype(values.dtype))
    result.set_data_from_numpy(values, binary_data=binary)
    return result


def wanted(name, binary=True, classes=0):
    """An output to ask for."""
    return triton.InferRequestedOutput(name, binary_data=binary, class_count=classes)

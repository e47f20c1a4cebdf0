"""Tensors go between models in Python and PyTorch by DLPack, both ways. (This PyTorch has no BOOL there.)"""

import os

import numpy
import pytest
import tritonclient.http

import nereid_server
import python_lab
import torch_package
from python_interpreters import environments

# Debian builds torch for this one.
NAME = "python311"


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    torch_package.fetched()
    repository = tmp_path_factory.mktemp("models")
    environment = environments()[NAME]
    extra = 'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "%s" } }' % environment
    python_lab.write(repository, "lab", f"import sys\nsys.path.append({str(torch_package.PYTHON)!r})\n" + python_lab.LAB, extra)
    variables = os.environ | torch_package.environment()
    with nereid_server.running(repository, env=variables) as server:
        with tritonclient.http.InferenceServerClient(server.url, network_timeout=60) as client:
            yield client


def test_torch_takes_and_gives_tensors_of_every_type_and_layout(client):
    code = """
import torch
result = {}
for name in "uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64".split():
    kind = getattr(torch, name)
    whole = torch.arange(24).reshape(2, 3, 4).to(kind)
    layouts = {
        "whole": whole, "transposed": whole.permute(2, 0, 1), "every other": whole[:, ::2, 1:], "one": whole[1, 2, 3],
        "nothing": whole[:, :0], "turned": whole.flatten().flip(0), "repeated": whole[:1].expand(5, 3, 4),
    }
    for layout, theirs in layouts.items():
        if name == "bfloat16" and not theirs.is_contiguous():
            continue
        for how, given in [("tensor", theirs), ("capsule", torch.utils.dlpack.to_dlpack(theirs))]:
            ours = pb_utils.Tensor.from_dlpack("X", given)
            again = torch.from_dlpack(ours) if how == "tensor" else torch.utils.dlpack.from_dlpack(ours.to_dlpack())
            right = again.dtype == kind and list(ours.shape()) == list(theirs.shape) and torch.equal(again, theirs)
            if not right:
                result[f"{name} {layout} {how}"] = [str(again.dtype), str(again.shape)]
"""
    assert python_lab.run(client, code) == {}


def test_torch_sees_inputs_where_they_lie_and_its_results_are_outputs(client):
    code = """
import torch
given = get(request, "F")
theirs = torch.from_dlpack(given)
result = [theirs.data_ptr() == given.as_numpy().ctypes.data, float(theirs.sum())]
outputs = [pb_utils.Tensor.from_dlpack("OF", (theirs * 2).flip(0))]
"""
    for count in (1, 100, 100_000):
        values = numpy.arange(count, dtype=numpy.float32) % 100
        answer = client.infer("lab", python_lab.inputs(code, F=values))
        assert python_lab.result(answer) == [True, float(values.sum())]
        assert (answer.as_numpy("OF") == values[::-1] * 2).all()


def test_tensors_of_torch_that_are_refused_say_why(client):
    code = """
import torch
wrong = [torch.zeros(2, dtype=torch.complex64), torch.zeros(2, requires_grad=True), torch.zeros(2, device="meta"),
         torch.zeros(2, 3, dtype=torch.bfloat16).t()]
result = [outcome(lambda: pb_utils.Tensor.from_dlpack("X", it)) for it in wrong]
"""
    refused = python_lab.run(client, code)
    expected = ["unsupported DLPack data type", "require gradient", "", "BF16 must be contiguous"]
    assert len(refused) == len(expected)
    for words, part in zip(refused, expected):
        assert isinstance(words, str) and part in words, words

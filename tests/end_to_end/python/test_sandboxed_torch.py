"""PyTorch and numpy in confined models: to load, infer, train, compile, use threads and write temporary files."""

import os
from pathlib import Path
from typing import Any

import numpy
import pytest
import tritonclient.http

import nereid_server
import python_lab
import torch_package
import torch_wheel
from python_interpreters import environments

# A release of Debian, with libraries of the system, and PyPI's newest.
RELEASES: dict[str, tuple[Any, str, Path]] = {
    "1.13": (torch_package, "python311", torch_package.HOME),
    "2": (torch_wheel.NEWEST, "own", torch_wheel.NEWEST.python.parent),
}


def folder_of_packages(release):
    return release.PYTHON if release is torch_package else release.python


@pytest.fixture(scope="module", params=[(name, level) for name in RELEASES for level in ("on", "required")], ids="-".join)
def client(request, tmp_path_factory):
    name, level = request.param
    release, interpreter, readable = RELEASES[name]
    release.fetched()
    repository = tmp_path_factory.mktemp("models")
    code = f"import sys\nsys.path.append({str(folder_of_packages(release))!r})\nimport torch\n" + python_lab.LAB
    extra = 'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "%s" } }' % environments()[interpreter]
    python_lab.write(repository, "lab", code, extra)
    flags = [f"--backend-config=python,{setting}" for setting in (f"sandbox={level}", f"sandbox-read={readable}")]
    with nereid_server.running(repository, *flags, env=os.environ | release.environment()) as server:
        with tritonclient.http.InferenceServerClient(server.url, network_timeout=120) as client:
            yield client


def test_the_sandbox_is_in_force(client):
    """Otherwise the tests below would say nothing."""
    assert "Error" in python_lab.run(client, "result = outcome(lambda: len(os.listdir('/root') + os.listdir('/home')))")
    assert "PermissionError" in python_lab.run(client, "import socket\nresult = outcome(lambda: socket.socket())")


@pytest.mark.parametrize("threads", [1, 4])
def test_tensors_are_computed_by_any_number_of_threads(client, threads):
    code = f"""
import torch
torch.set_num_threads({threads})
values = torch.from_numpy(get(request, "F").as_numpy()).reshape(256, 256)
product = values @ values.T
convolved = torch.nn.functional.conv2d(values[None, None], torch.ones(1, 1, 3, 3), padding=1)[0, 0]
result = [torch.get_num_threads(), bool(torch.allclose(product, product.T)), float(convolved[1, 1] - values[:3, :3].sum())]
outputs = [pb_utils.Tensor.from_dlpack("OF", product.flatten())]
"""
    values = numpy.random.default_rng(1).random(256 * 256, dtype=numpy.float32)
    answer = client.infer("lab", python_lab.inputs(code, F=values))
    count, is_symmetric, difference = python_lab.result(answer)
    assert count == threads and is_symmetric and abs(difference) < 1e-4
    square = values.reshape(256, 256)
    assert numpy.allclose(answer.as_numpy("OF").reshape(256, 256), square @ square.T, rtol=1e-4)


def test_a_network_is_trained_compiled_and_stored(client):
    code = """
import tempfile, torch
torch.manual_seed(1)
network = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
inputs = torch.randn(64, 4)
wanted = inputs.sum(1, keepdim=True)
optimizer = torch.optim.Adam(network.parameters(), 0.05)
losses = []
for _ in range(50):
    loss = torch.nn.functional.mse_loss(network(inputs), wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(float(loss.detach()))
with tempfile.TemporaryDirectory() as folder:
    torch.save(network.state_dict(), folder + "/weights")
    network.load_state_dict(torch.load(folder + "/weights"))
    torch.jit.trace(network, inputs).save(folder + "/traced")
    traced = torch.jit.load(folder + "/traced")
result = [losses[-1] < losses[0] / 4, bool(torch.allclose(traced(inputs), network(inputs)))]
"""
    assert python_lab.run(client, code) == [True, True]


def test_numpy_and_threads_of_the_model_work_beside_it(client):
    code = """
import concurrent.futures, torch
def work(seed):
    values = numpy.random.default_rng(seed).random((120, 120))
    back = numpy.linalg.inv(values) @ values
    theirs = torch.linalg.svdvals(torch.from_numpy(values)).numpy()
    return bool(numpy.allclose(back, numpy.eye(120))) and bool(numpy.allclose(theirs, numpy.linalg.svd(values, compute_uv=False)))
with concurrent.futures.ThreadPoolExecutor(4) as pool:
    result = list(pool.map(work, range(8)))
"""
    assert python_lab.run(client, code) == [True] * 8

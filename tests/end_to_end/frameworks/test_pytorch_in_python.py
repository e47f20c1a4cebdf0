"""TorchScript models with PyTorch's own Python, where the server has no compiler for its shim: the tests of libtorch, and what
is different."""

import os
import subprocess
import sys
import sysconfig

import numpy as np
import pytest
import test_isolation
import test_pytorch
from test_pytorch import (  # noqa: F401 - the same tests, with the servers below
    answer,
    assert_conforms,
    models,
    pair,
    test_a_dictionary_has_the_inputs_by_name,
    test_a_model_that_writes_to_its_input_does_not_change_the_requests,
    test_a_real_model_that_remembers_answers_as_in_pytorchs_own_python,
    test_an_exception_of_a_model_fails_its_request_alone,
    test_an_output_of_another_type_fails_the_request,
    test_every_type_and_shape_goes_through_as_it_is,
    test_inputs_and_outputs_are_named_as_in_triton,
    test_numbers_and_arguments_with_defaults,
    test_requests_join_to_batches,
    test_shapes_that_depend_on_the_data,
    test_strings_go_as_lists,
    write,
)

import torch_package
from http_requests import request
from openvino_models import parameter, tensors


@pytest.fixture(scope="session")
def python(tmp_path_factory):
    """A Python environment with torch."""
    torch_package.fetched()
    folder = tmp_path_factory.mktemp("environment") / "with-torch"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "torch.pth").write_text(f"{sysconfig.get_path('purelib')}\n{torch_package.PYTHON}\n")
    return folder


@pytest.fixture
def serve(serve, python):
    """Servers for which PyTorch's own Python serves TorchScript models."""
    flags = [f"--backend-config=python,python={python}", "--backend-config=pytorch,engine=python"]
    return lambda *more, **how: serve(*flags, *more, env=os.environ | torch_package.environment(), **how)


@pytest.fixture(autouse=True)
def fewer(monkeypatch):
    """Each model takes a process with torch, so there are fewer than where libtorch is in the server."""
    kinds, namings = ("BOOL", "INT64", "FP16", "FP64"), ("turned", "numbers", "mixed")
    monkeypatch.setattr(test_pytorch, "KINDS", {it: test_pytorch.KINDS[it] for it in kinds})
    monkeypatch.setattr(test_pytorch, "NAMINGS", {it: test_pytorch.NAMINGS[it] for it in namings})


def test_a_network_answers_in_batches_and_with_every_parameter(write, serve, models):
    declared = tensors("input", ("x", "FP32", [4, -1])) + tensors("output", ("OUTPUT__0", "FP32", [5]))
    for name, more in {
        "network": "instance_group { count: 2 kind: KIND_CPU }\n",
        "plain": parameter("DISABLE_OPTIMIZED_EXECUTION", "true") + parameter("INFERENCE_MODE", "false"),
        "threads": parameter("INTRA_OP_THREAD_COUNT", "1") + parameter("INTER_OP_THREAD_COUNT", "2"),
    }.items():
        write("Network", name, "max_batch_size: 8 dynamic_batching { }\n" + more + declared)
    server = serve()
    server.wait_for_log("PyTorch's own Python serves TorchScript models and packages: the setting engine=python selects it")
    for name in ("network", "plain", "threads"):
        for values, expected in models[1]["network"] * 2:
            output = answer(server, name, x=np.array(values, np.float32))["OUTPUT__0"]
            np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-6, err_msg=name)


def test_it_conforms_as_a_backend(models, python):
    assert_conforms("python", python, models[0] / "Twice")


@pytest.mark.parametrize("strategy", ["direct { }", "oldest { max_candidate_sequences: 4 }"])
def test_sequences_keep_their_states(write, serve, strategy):
    declared = pair("x", "OUTPUT__0", [1]) + test_isolation.STATES.format(strategy=strategy)
    write("Sum", "sum", "max_batch_size: 4\n" + declared)
    server = serve()
    sums = dict.fromkeys((5, 6, 7), 0.0)
    for step in range(4):
        for sequence in sums:
            sums[sequence] += sequence * (step + 1)
            values = np.array([[sequence * (step + 1)]], np.float32)
            place = (sequence, step == 0, step == 3)
            output = test_isolation.answer(server, "sum", place, x=values)["OUTPUT__0"]
            np.testing.assert_allclose(output, [[sums[sequence]]])


@pytest.mark.parametrize(
    "model, text, says",
    [
        ("Twice", pair("x", "y") + tensors("input", ("z", "FP32", [-1])), "input 'z' is not an argument of the model's forward"),
        ("SumAndDifference", pair("one", "y"), "the model's argument 'other' has no input"),
        ("Twice", pair("x", "y", datatype="BYTES"), "the argument 'x' of the model takes a tensor of numbers"),
        ("Twice", pair("x", "y") + parameter("INTRA_OP_THREAD_COUNT", "all"), "parameter 'INTRA_OP_THREAD_COUNT' is 'all'"),
    ],
    ids=["input", "argument", "type", "parameter"],
)
def test_mismatches_are_refused_with_the_reason(write, serve, model, text, says):
    write(model, "model", text)
    server = serve("--exit-on-error=false", ready=False)
    assert request(server, "GET", "/v2/models/model/ready").status == 400
    assert any(says in line for line in server.complaints), server.complaints


def test_it_serves_where_there_is_no_compiler(write, serve, tmp_path, monkeypatch):
    write("Twice", "twice", pair("x", "y"))
    # Without the shim that other tests have compiled.
    monkeypatch.setattr(
        torch_package,
        "environment",
        lambda original=torch_package.environment: original() | {"CXX": "/nowhere/c++", "XDG_CACHE_HOME": str(tmp_path)},
    )
    server = serve("--backend-config=pytorch,engine=auto", f"--backend-config=pytorch,library={torch_package.LIBRARY_FOLDER}")
    server.wait_for_log("PyTorch's own Python serves TorchScript models and packages: .*`/nowhere/c..` does not start")
    for size in (1, 4, 10_000):
        values = np.arange(size, dtype=np.float32)
        np.testing.assert_array_equal(answer(server, "twice", x=values)["y"], values * 2)

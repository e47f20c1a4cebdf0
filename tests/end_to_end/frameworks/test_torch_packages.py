"""Packages of AOTInductor, beside PyTorch's own Python. The libtorch is that of PyPI's newest PyTorch: older ones of Debian cannot
run them."""

import itertools
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import tritonclient.http
from test_isolation import answer
from test_pytorch import pair, reason
from tritonclient.utils import InferenceServerException

import nereid_server
import torch_wheel
from damaged_files import damaged
from http_requests import engine, request
from openvino_models import parameter, tensors

rng = np.random.default_rng(37)
FLAGS = [f"--backend-config=pytorch,library={torch_wheel.NEWEST.library_folder}"]
KINDS = ("FP32", "FP32", "INT64", "FP16"), ("FP32", "INT64", "INT64", "BOOL")
DIMS = ([8], [4], [3], [16]), ([4], [3], [-1], [4])
# The names that inputs and outputs of `Nested` may have.
NAMES = (
    ("ARGS[0]", "ARGS[1]", "ARGS[2][k]", "KWARGS[scale]"),
    ("RESULT[sum]", "RESULT[more][0]", "RESULT[more][1]", "RESULT[all][0]"),
)
NAMINGS = {
    "names": NAMES,
    "numbers": ([f"INPUT__{at}" for at in range(4)], [f"OUTPUT__{at}" for at in range(4)]),
    "mixed": (["IN__0", "ARGS[1]", "IN__2", "KWARGS[scale]"], ["RESULT[sum]", "Y__1", "Y__2", "RESULT[all][0]"]),
    "places": (list("abcd"), list("pqrs")),
}

STATE = """
sequence_batching { oldest { } state { input_name: "ARGS[1]" output_name: "RESULT[sum]" data_type: TYPE_FP32 dims: [ 4 ]
  initial_state { name: "none" data_type: TYPE_FP32 dims: [ 4 ] zero_data: true } } }
"""


@pytest.fixture(scope="session")
def models():
    """A folder with a folder for each model, and what PyTorch answers."""
    return torch_wheel.NEWEST.models(torch_wheel.MODELS)


@pytest.fixture(scope="session", autouse=True)
def conformance(models):
    """The outcome of the conformance suite. It compiles the shim, for which servers would not wait long enough."""
    program = Path(nereid_server.binary()).parent / "examples" / "pytorch_conformance"
    assert program.exists(), f"{program} is missing: cargo build --workspace --all-targets"
    run = [program, "library", torch_wheel.NEWEST.library_folder / "libtorch_cpu.so", models[0] / "Twice", "torch_aoti"]
    return subprocess.run(run, capture_output=True, text=True, timeout=300, env=os.environ | torch_wheel.NEWEST.environment())


@pytest.fixture(scope="session")
def python(tmp_path_factory, models):
    """A Python environment with torch."""
    return environment_with(torch_wheel.NEWEST, tmp_path_factory.mktemp("environment"))


def environment_with(wheel, folder):
    """Makes a Python environment with the torch of a wheel."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "with-torch"], check=True)
    (packages,) = folder.glob("with-torch/lib/python*/site-packages")
    (packages / "torch.pth").write_text(f"{wheel.python}\n{sysconfig.get_path('purelib')}\n")
    return folder / "with-torch"


@pytest.fixture
def serve(serve):
    """Servers with libtorch; with `python`, they run models in PyTorch's own Python instead. With `checks`, packages check their
    inputs."""

    def start(*flags, python=None, checks=False, **how):
        own = [f"--backend-config=python,python={python}", "--backend-config=pytorch,engine=python"] if python else FLAGS
        more = {"AOTI_RUNTIME_CHECK_INPUTS": "1"} if checks else {}
        return serve(*own, *flags, env=os.environ | torch_wheel.NEWEST.environment() | more, **how)

    return start


@pytest.fixture
def write(repository, models):
    """Puts a model into the repository, under a name of its own."""

    def write(model, name, text):
        shutil.copytree(models[0] / model, repository / name)
        (repository / name / "config.pbtxt").write_text(f'platform: "torch_aoti"\n{text}')

    return write


def nested(sources, targets, order=range(4)):
    """The configuration of `Nested`, whose last result but one does not keep to the batch."""
    inputs = [(sources[at], KINDS[0][at], [-1, *DIMS[0][at]]) for at in order]
    outputs = [(targets[at], KINDS[1][at], [-1, *DIMS[1][at]]) for at in order]
    return tensors("input", *inputs) + tensors("output", *outputs)


def arrays(values, kinds):
    types = {"FP32": np.float32, "INT64": np.int64, "FP16": np.float16, "BOOL": np.bool_}
    return [np.array(value, types[kind]) for value, kind in zip(values, kinds)]


def check_cases(server, name, sources, targets, cases):
    for inputs, expected in cases:
        outputs = answer(server, name, **dict(zip(sources, arrays(inputs, KINDS[0]))))
        for target, value in zip(targets, arrays(expected, KINDS[1])):
            found = outputs[target]
            assert (found.dtype, found.shape[0]) == (value.dtype, value.shape[0])
            np.testing.assert_allclose(found, value.reshape(found.shape), rtol=1e-5, atol=1e-6, err_msg=f"{name} {target}")


def test_packages_answer_as_in_pytorchs_own_python_under_every_name(write, serve, models):
    for name, (sources, targets) in NAMINGS.items():
        write("Nested", name, nested(sources, targets))
    write("Nested", "turned", nested(*NAMES, order=[3, 1, 0, 2]) + parameter("INFERENCE_MODE", "false"))
    server = serve()
    server.wait_for_log("model 'names' version 1 is served by PyTorch with")
    assert re.fullmatch(r"PyTorch 2\.\d+\.\d+\S* \(AOTInductor\)", engine(server, "names"))
    for name, (sources, targets) in (NAMINGS | {"turned": NAMES}).items():
        check_cases(server, name, sources, targets, models[1])


def test_pytorchs_own_python_serves_packages_too(write, serve, models, python):
    for name in ("names", "mixed"):
        write("Nested", name, nested(*NAMINGS[name]))
    server = serve(python=python, checks=True)
    server.wait_for_log("PyTorch's own Python serves TorchScript models and packages: the setting engine=python selects it")
    for name in ("names", "mixed"):
        check_cases(server, name, *NAMINGS[name], models[1])
    check_refusals(server, "names")


def check_refusals(server, name):
    """Inputs that the package was not compiled for fail their request, and no other."""
    sound = dict(zip(NAMES[0], (np.ones((2, size), kind) for (size,), kind in zip(DIMS[0], "fflH".replace("H", "e")))))
    for size in (1, 3, 2):
        wrong = sound | {"ARGS[1]": np.ones((size, 4), np.float32)}
        if size == 2:
            assert answer(server, name, **wrong)["RESULT[sum]"].shape == (2, 4)
        else:
            with pytest.raises(InferenceServerException, match="PyTorch failed: "):
                answer(server, name, **wrong)


@pytest.mark.parametrize("engine", ["library", "python"])
def test_packages_take_and_return_bf16(write, serve, python, engine):
    write("Affine", "affine", tensors("input", ("INPUT__0", "BF16", [-1, 3])) + tensors("output", ("OUTPUT__0", "BF16", [-1, 3])))
    server = serve(python=python if engine == "python" else None)
    with tritonclient.http.InferenceServerClient(server.url, network_timeout=60) as client:
        for rows in (1, 2, 9):
            # Integers up to 256 are exact in BF16.
            values = rng.integers(-80, 80, (rows, 3)).astype(ml_dtypes.bfloat16)
            given = tritonclient.http.InferInput("INPUT__0", [rows, 3], "BF16")
            given.set_data_from_numpy(values)
            answer = client.infer("affine", [given])
            assert answer.get_output("OUTPUT__0")["datatype"] == "BF16"
            found = answer.as_numpy("OUTPUT__0").astype(np.float32)
            np.testing.assert_array_equal(found, values.astype(np.float32) * 3 + 1)


def test_inputs_that_a_package_was_not_compiled_for_fail_their_request_alone(write, serve):
    write("Nested", "nested", nested(*NAMES))
    write("Twice", "wide", pair("x", "y", (-1, -1)))
    write("Twice", "whole", pair("x", "y", (-1, 3), "INT32"))
    server = serve(checks=True)
    check_refusals(server, "nested")
    for width in (4, 1, 3000, 3):
        values = rng.uniform(-1, 1, (2, width)).astype(np.float32)
        if width == 3:
            np.testing.assert_array_equal(answer(server, "wide", x=values)["y"], values * 2)
        else:
            with pytest.raises(InferenceServerException, match="PyTorch failed: "):
                answer(server, "wide", x=values)
    with pytest.raises(InferenceServerException, match="PyTorch failed: "):
        answer(server, "whole", x=np.ones((2, 3), np.int32))


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_requests_join_to_batches_on_instances_that_share_weights(write, serve, isolation):
    batching = "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 20000 }\n"
    for name, more in {"one": "", "shared": parameter("ENABLE_WEIGHT_SHARING", "true") + "instance_group { count: 3 }\n"}.items():
        write("Twice", name, batching + more + pair("ARGS[0]", "RESULT", [3]))
    server = serve(f"--backend-config=pytorch,isolation={isolation}")

    def send(case):
        name, size = case
        values = rng.uniform(-1, 1, (size, 3)).astype(np.float32)
        np.testing.assert_array_equal(answer(server, name, **{"ARGS[0]": values})["RESULT"], values * 2)

    with ThreadPoolExecutor(8) as clients:
        list(clients.map(send, itertools.product(("one", "shared"), [1, 2, 3, 8, 1, 1, 4, 2] * 5)))
    statistics = request(server, "GET", "/v2/models/one/stats").json["model_stats"][0]
    assert statistics["execution_count"] < 40


def test_a_package_conforms_as_a_backend(conformance):
    assert conformance.returncode == 0, conformance.stderr
    assert "conforms" in conformance.stdout


@pytest.mark.parametrize("engine", ["library", "python"])
def test_sequences_keep_states(write, serve, python, engine):
    inputs = tensors("input", *((NAMES[0][at], KINDS[0][at], DIMS[0][at]) for at in (0, 2, 3)))
    outputs = tensors("output", *((NAMES[1][at], KINDS[1][at], DIMS[1][at]) for at in (0, 1)))
    write("Nested", "nested", "max_batch_size: 8\n" + inputs + outputs + STATE)
    server = serve(python=python if engine == "python" else None)
    sums: dict[int, list[np.ndarray]] = {}
    for step in range(3):
        for number in (5, 6):
            sent = {"ARGS[0]": np.full((1, 8), number, np.float32), "ARGS[2][k]": np.full((1, 3), step)}
            sent["KWARGS[scale]"] = np.ones((1, 16), np.float16)
            outputs = answer(server, "nested", (number, step == 0, step == 2), **sent)
            added = sums.setdefault(number, [np.zeros((1, 4)), outputs["RESULT[sum]"]])
            added[0] = added[0] + added[1]
            np.testing.assert_allclose(outputs["RESULT[sum]"], added[0], rtol=1e-5)
            np.testing.assert_array_equal(outputs["RESULT[more][0]"], np.full((1, 3), step + 1))


@pytest.mark.parametrize(
    "text, says",
    [
        (
            pair("ARGS[0]", "y", (-1, 3)) + tensors("input", ("ARGS[1]", "FP32", [3])),
            "input 'ARGS[1]' is not an argument of the model's forward",
        ),
        (
            pair("x", "RESULT[a]", (-1, 3)) + tensors("output", ("RESULT", "FP32", [-1, 3])),
            "output 'RESULT[a]' is not one of the model's results ('RESULT')",
        ),
        (pair("x", "y", (-1, 3), "BYTES"), "the argument 'ARGS[0]' of the model takes a tensor of numbers"),
    ],
    ids=["input", "output", "type"],
)
def test_mismatches_are_refused_with_the_reason(write, serve, text, says):
    write("Twice", "model", text)
    assert says in reason(serve, "model")


def test_damaged_packages_do_not_bring_the_server_down(write, serve, repository):
    write("Twice", "sound", pair("x", "y", (-1, 3)))
    for index, copy in enumerate(damaged((repository / "sound/1/model.pt2").read_bytes(), 11)):
        shutil.copytree(repository / "sound", repository / f"damaged{index}")
        (repository / f"damaged{index}/1/model.pt2").write_bytes(copy)
    server = serve("--exit-on-error=false", "--backend-config=pytorch,load-timeout-seconds=15", ready=False, limit_s=200)
    refused = [line for line in server.complaints if "failed to load 'damaged" in line]
    assert len(refused) >= 8 and any("checksum" in line.lower() for line in refused), server.log
    values = np.array([[1.5, -2.0, 3.0]], np.float32)
    np.testing.assert_array_equal(answer(server, "sound", x=values)["y"], values * 2)

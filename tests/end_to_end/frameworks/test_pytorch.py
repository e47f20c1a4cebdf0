"""TorchScript models on libtorch, beside PyTorch's own Python. The libtorch is Debian's 1.13."""

import os
import re
import shutil
import subprocess
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http
from tritonclient.utils import InferenceServerException

import nereid_server
import silero_package
import torch_package
from http_requests import assert_refused, engine, request
from openvino_models import parameter, tensors
from tensors import given

rng = np.random.default_rng(31)
FLAGS = [f"--backend-config=pytorch,library={torch_package.LIBRARY_FOLDER}"]
# The first server compiles the shim.
COMPILE_LIMIT_S = 300


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """A folder with a folder for each model, and what PyTorch answers."""
    folder = tmp_path_factory.mktemp("torch")
    program = torch_package.MODELS
    return folder, torch_package.run(program, folder, silero_package.torchscript())


@pytest.fixture
def serve(serve):
    """Servers that find libtorch."""
    environment = os.environ | torch_package.environment()
    return lambda *flags, **how: serve(*FLAGS, *flags, env=environment, limit_s=COMPILE_LIMIT_S, **how)


@pytest.fixture
def write(repository, models):
    """Puts a model into the repository, under a name of its own."""

    def write(model, name, text):
        shutil.copytree(models[0] / model, repository / name)
        (repository / name / "config.pbtxt").write_text(f'backend: "pytorch"\n{text}')

    return write


def answer(server, model, **inputs):
    """The outputs of a model by name."""
    with tritonclient.http.InferenceServerClient(server.url) as client:
        result = client.infer(model, [given(name, values) for name, values in inputs.items()])
    return {output["name"]: result.as_numpy(output["name"]) for output in result.get_response()["outputs"]}


def reason(serve, name):
    """Why a model is refused."""
    server = serve("--exit-on-error=false", ready=False)
    assert_refused(request(server, "GET", f"/v2/models/{name}/ready"), 400)
    (line,) = [line for line in server.complaints if f"'{name}'" in line]
    return line


def pair(source, target, dims=(-1,), datatype="FP32"):
    return tensors("input", (source, datatype, dims)) + tensors("output", (target, datatype, dims))


def test_a_network_answers_as_in_pytorchs_own_python(write, serve, models):
    declared = tensors("input", ("x", "FP32", [4, -1])) + tensors("output", ("OUTPUT__0", "FP32", [5]))
    for name, more in {
        "network": "",
        "shared": parameter("ENABLE_WEIGHT_SHARING", "true") + "instance_group { count: 3 kind: KIND_CPU }\n",
        "plain": parameter("DISABLE_OPTIMIZED_EXECUTION", "true") + parameter("INFERENCE_MODE", "false"),
        "threads": parameter("INTRA_OP_THREAD_COUNT", "1") + parameter("INTER_OP_THREAD_COUNT", "2"),
        "other": parameter("INTER_OP_THREAD_COUNT", "3") + parameter("ENABLE_CACHE_CLEANING", "true"),
    }.items():
        write("Network", name, "max_batch_size: 8 dynamic_batching { }\n" + more + declared)
    server = serve()
    server.wait_for_log(r"libtorch given by the setting 'library': \S+/torch/lib/libtorch_cpu.so")
    server.wait_for_log("model 'threads' version 1 is served by PyTorch with 1 threads to an instance")
    assert re.fullmatch(r"PyTorch 1\.13\.\d+\S*", engine(server, "threads"))
    server.wait_for_log("model 'other': ENABLE_CACHE_CLEANING takes effect from PyTorch 2.9 on")
    server.wait_for_log("INTER_OP_THREAD_COUNT has no effect: the process has [23] such threads already, set by another model")
    for name in ("network", "shared", "plain", "threads", "other"):
        for values, expected in models[1]["network"] * 3:
            output = answer(server, name, x=np.array(values, np.float32))["OUTPUT__0"]
            np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-6, err_msg=name)


def test_a_real_model_that_remembers_answers_as_in_pytorchs_own_python(repository, serve, models):
    (repository / "speech" / "1").mkdir(parents=True)
    shutil.copy(silero_package.torchscript(), repository / "speech" / "1" / "model.pt")
    declared = tensors("input", ("x", "FP32", [1, 512]), ("sr", "INT64", [1])) + tensors("output", ("p", "FP32", [1, 1]))
    (repository / "speech" / "config.pbtxt").write_text(f'platform: "pytorch_libtorch"\n{declared}')
    server = serve()
    for sound, expected in models[1]["speech"]:
        output = answer(server, "speech", x=np.array(sound, np.float32), sr=np.array([16000]))["p"]
        np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-6)


def test_nereid_add_takes_declared_tensors_and_refuses_what_libtorch_does(repository, serve, models):
    environment = os.environ | torch_package.environment()

    def add(*arguments):
        command = [nereid_server.binary(), "add", *FLAGS, f"--repository={repository}", "--name=twice", *map(str, arguments)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=COMPILE_LIMIT_S, check=False)

    source = models[0] / "Twice" / "1" / "model.pt"
    declared = ["--input=x:FP32:3", "--output=OUTPUT__0:FP32:3", "--max-batch-size=8"]
    undeclared = add(source)
    assert undeclared.returncode == 1 and "--input=NAME:TYPE:DIMS" in undeclared.stderr, undeclared
    done = add(source, *declared)
    assert done.returncode == 0, done
    server = serve()
    ask = done.stdout.splitlines()[1].removeprefix("ask it: ").replace("localhost:8000", server.url)
    printed = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, timeout=60, check=True)
    assert '"data":[0.0,0.0,0.0]' in printed.stdout, printed
    np.testing.assert_array_equal(answer(server, "twice", x=np.array([[1, 2, 3]], np.float32))["OUTPUT__0"], [[2, 4, 6]])
    pickle = repository.parent / "weights.pt"
    pickle.write_bytes(b"\x80\x02}q\x00." + bytes(10))
    refused = add(pickle)
    assert refused.returncode == 1 and "TorchScript" in refused.stderr, refused
    assert sorted(os.listdir(repository / "twice")) == ["1", "config.pbtxt"]


def test_requests_join_to_batches(write, serve):
    write("Twice", "twice", "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 20000 }\n" + pair("x", "y", [3]))
    server = serve()

    def send(size):
        values = rng.uniform(-1, 1, (size, 3)).astype(np.float32)
        np.testing.assert_array_equal(answer(server, "twice", x=values)["y"], values * 2)

    with ThreadPoolExecutor(8) as clients:
        list(clients.map(send, [1, 2, 3, 8, 1, 1, 4, 2] * 10))
    statistics = request(server, "GET", "/v2/models/twice/stats").json["model_stats"][0]
    assert statistics["execution_count"] < 80


def assert_conforms(engine, program, folder):
    """Runs the conformance suite of backends on an engine: a library, or an interpreter."""
    suite = Path(nereid_server.binary()).parent / "examples" / "pytorch_conformance"
    assert suite.exists(), f"{suite} is missing: cargo build --workspace --all-targets"
    variables = os.environ | torch_package.environment()
    outcome = subprocess.run([suite, engine, program, folder], capture_output=True, text=True, timeout=120, env=variables)
    assert outcome.returncode == 0, outcome.stderr
    assert f"{engine} conforms" in outcome.stdout


def test_it_conforms_as_a_backend(models):
    assert_conforms("library", torch_package.LIBRARY_FOLDER / "libtorch_cpu.so", models[0] / "Twice")


KINDS = {
    "BOOL": np.array([True, False, True]),
    "UINT8": np.array([0, 7, 255], np.uint8),
    "INT8": np.array([-128, 7, 127], np.int8),
    "INT16": np.array([-(2**15), 7, 2**15 - 1], np.int16),
    "INT32": np.array([-(2**31), 7, 2**31 - 1], np.int32),
    "INT64": np.array([-(2**63), 7, 2**63 - 1], np.int64),
    "FP16": np.array([0.1, -np.inf, 65504], np.float16),
    "FP32": np.array([0.1, -np.inf, 3e38], np.float32),
    "FP64": np.array([0.1, -np.inf, 1e308]),
}


def test_every_type_and_shape_goes_through_as_it_is(write, serve):
    for kind in KINDS:
        write("Same", f"same_{kind}", pair("x", "y", [-1, -1], kind))
    server = serve()
    for kind, values in KINDS.items():
        for shape in ([1, 3], [4, 5], [3, 0], [0, 2]):
            sent = np.resize(values, shape)
            output = answer(server, f"same_{kind}", x=sent)["y"]
            assert (output.shape, output.dtype) == (sent.shape, sent.dtype)
            np.testing.assert_array_equal(output, sent, err_msg=kind)


def test_types_that_this_libtorch_lacks_fail_the_request(write, serve):
    write("Same", "same", pair("x", "y", [-1], "UINT32"))
    server = serve()
    with pytest.raises(InferenceServerException, match="PyTorch failed: "):
        answer(server, "same", x=np.arange(3, dtype=np.uint32))


NAMINGS = {
    "names": (("one", "other"), ("OUTPUT__0", "OUTPUT__1")),
    "turned": (("other", "one"), ("OUTPUT__1", "OUTPUT__0")),
    "numbers": (("A__1", "B__0"), ("Y__1", "X__0")),
    "places": (("left", "right"), ("sum", "difference")),
    "mixed": (("INPUT__0", "other"), ("sum", "difference")),
    "fewer": (("one", "other"), ("DIFFERENCE__1",)),
}


def test_inputs_and_outputs_are_named_as_in_triton(write, serve):
    for name, (sources, targets) in NAMINGS.items():
        text = tensors("input", *((it, "FP32", [-1]) for it in sources))
        write("SumAndDifference", name, text + tensors("output", *((it, "FP32", [-1]) for it in targets)))
    server = serve()
    first, second = (rng.uniform(-1, 1, 4).astype(np.float32) for _ in range(2))
    for name, (sources, targets) in NAMINGS.items():
        one, other = (second, first) if name in ("turned", "numbers") else (first, second)
        outputs = answer(server, name, **dict(zip(sources, (first, second))))
        expected = {"0": one + other, "1": one - other, "sum": one + other, "difference": one - other}
        assert set(outputs) == set(targets)
        for target in targets:
            np.testing.assert_array_equal(outputs[target], expected[target.split("__")[-1]], err_msg=f"{name} {target}")


def test_a_dictionary_has_the_inputs_by_name(write, serve):
    text = tensors("input", ("a", "FP32", [-1]), ("b", "INT64", [-1]))
    write("Swapped", "swapped", text + tensors("output", ("second", "FP32", [-1]), ("first", "INT64", [-1])))
    server = serve()
    for size in (1, 5):
        a, b = rng.uniform(size=size).astype(np.float32), rng.integers(0, 9, size)
        outputs = answer(server, "swapped", a=a, b=b)
        np.testing.assert_array_equal(outputs["first"], b)
        np.testing.assert_array_equal(outputs["second"], a)


def test_strings_go_as_lists(write, serve):
    declared = tensors("input", ("words", "BYTES", [-1])) + tensors("output", ("loud", "BYTES", [-1]), ("sizes", "INT64", [-1]))
    write("Shout", "shout", declared)
    server = serve()
    for words in (["a"], ["ab", "", "c" * 1000]):
        outputs = answer(server, "shout", words=np.array([it.encode() for it in words], np.object_))
        assert [it.decode() for it in outputs["loud"]] == [word.upper() + "!" for word in words]
        assert list(outputs["sizes"]) == [len(word) for word in words]


def test_numbers_and_arguments_with_defaults(write, serve):
    plain = tensors("input", ("x", "FP32", [-1]), ("power", "INT64", [1]))
    offset = tensors("input", ("offset", "FP32", [-1]))
    out = tensors("output", ("OUTPUT__0", "FP32", [-1]))
    write("Powers", "powers", plain + out)
    write("Powers", "offset", plain + offset + out)
    write("Powers", "optional", plain + offset.replace("dims:", "optional: true dims:") + out)
    either = tensors("input", ("a", "FP32", [-1]), ("b", "FP32", [-1])).replace("dims:", "optional: true dims:")
    write("Swapped", "either", either + tensors("output", ("first", "FP32", [-1]), ("second", "FP32", [-1])))
    server = serve()
    values = rng.uniform(1, 2, 4).astype(np.float32)
    for power in (0, 1, 3):
        sent = {"x": values, "power": np.array([power])}
        np.testing.assert_allclose(answer(server, "powers", **sent)["OUTPUT__0"], values**power, rtol=1e-5)
        output = answer(server, "offset", **sent, offset=values)["OUTPUT__0"]
        np.testing.assert_allclose(output, values**power + values, rtol=1e-5)
        for more, expected in [({}, values**power), ({"offset": values}, values**power + values)]:
            np.testing.assert_allclose(answer(server, "optional", **sent, **more)["OUTPUT__0"], expected, rtol=1e-5)
    with pytest.raises(InferenceServerException, match="missing 'offset'"):
        answer(server, "offset", x=values, power=np.array([2]))
    with pytest.raises(InferenceServerException, match="missing 'power'"):
        answer(server, "optional", x=values)
    # A dictionary without an entry is up to the model.
    with pytest.raises(InferenceServerException, match="PyTorch failed"):
        answer(server, "either", a=values)
    assert set(answer(server, "either", a=values, b=values)) == {"first", "second"}


def test_an_exception_of_a_model_fails_its_request_alone(write, serve):
    write("Refuses", "refuses", pair("x", "y"))
    server = serve()
    for number in (4.0, -1.0, 9.0, -4.0, 16.0):
        values = np.full(3, number, np.float32)
        if number < 0:
            with pytest.raises(InferenceServerException, match=r"PyTorch failed: .*a negative number"):
                answer(server, "refuses", x=values)
        else:
            np.testing.assert_array_equal(answer(server, "refuses", x=values)["y"], np.sqrt(values))


def test_a_model_that_writes_to_its_input_does_not_change_the_requests(write, serve, repository):
    write("WritesToItsInput", "writes", pair("x", "y"))
    write("Same", "same", pair("x", "y"))
    steps = [
        'step { model_name: "writes" model_version: -1 input_map { key: "x" value: "X" } output_map { key: "y" value: "W" } }',
        'step { model_name: "same" model_version: -1 input_map { key: "x" value: "X" } output_map { key: "y" value: "S" } }',
    ]
    text = 'platform: "ensemble"\n' + tensors("input", ("X", "FP32", [-1]))
    text += tensors("output", ("W", "FP32", [-1]), ("S", "FP32", [-1]))
    text += "ensemble_scheduling { " + " ".join(steps) + " }"
    (repository / "both" / "1").mkdir(parents=True)
    (repository / "both" / "config.pbtxt").write_text(text)
    server = serve()
    for _ in range(20):
        values = rng.uniform(-1, 1, 64).astype(np.float32)
        outputs = answer(server, "both", X=values)
        np.testing.assert_array_equal(outputs["W"], values + 1)
        np.testing.assert_array_equal(outputs["S"], values)


def test_shapes_that_depend_on_the_data(write, serve):
    declared = tensors("input", ("x", "FP32", [-1])) + tensors("output", ("y", "INT64", [-1, 1]))
    write("Positive", "positive", declared)
    server = serve()
    for values in ([1.0, -1.0, 2.0], [-1.0], [], [3.0] * 5):
        values = np.array(values, np.float32)
        np.testing.assert_array_equal(answer(server, "positive", x=values)["y"], np.argwhere(values > 0))


@pytest.mark.parametrize(
    "model, text, says",
    [
        ("Twice", pair("x", "y") + tensors("input", ("z", "FP32", [-1])), "input 'z' is not an argument of the model's forward"),
        ("SumAndDifference", pair("one", "y"), "the model's argument 'other' has no input"),
        ("Twice", pair("x", "y", datatype="BYTES"), "the argument 'x' of the model takes a tensor of numbers"),
        ("Twice", pair("x", "y") + parameter("INTRA_OP_THREAD_COUNT", "all"), "parameter 'INTRA_OP_THREAD_COUNT' is 'all'"),
        (
            "Twice",
            'platform: "torch_aoti" default_model_filename: "model.pt"\n' + pair("x", "y"),
            'it is TorchScript, and not a package of AOTInductor: set platform: \\"pytorch_libtorch\\"',
        ),
        ("Twice", "max_batch_size: 0", "list all inputs and outputs in config.pbtxt"),
    ],
    ids=["input", "argument", "type", "parameter", "platform", "tensors"],
)
def test_mismatches_are_refused_with_the_reason(write, serve, model, text, says):
    write(model, "model", text)
    assert says in reason(serve, "model")


@pytest.mark.parametrize(
    "names, platform, says",
    [
        (["archive/data.pkl", "archive/data/0"], "pytorch_libtorch", "it has pickled Python objects, as torch.save writes them"),
        (["p/data/aotinductor/model/c.so"], "pytorch_libtorch", "it is a package of AOTInductor, and not TorchScript"),
        (["p/data/aotinductor/model/c.so"], "torch_aoti", "packages of AOTInductor need libtorch 2.6 or newer"),
    ],
    ids=["state_dict", "package", "old"],
)
def test_other_files_of_pytorch_are_refused_with_what_they_are(write, serve, repository, names, platform, says):
    write("Twice", "model", f'platform: "{platform}" default_model_filename: "model.pt"\n' + pair("x", "y"))
    with zipfile.ZipFile(repository / "model" / "1" / "model.pt", "w") as archive:
        for name in names:
            archive.writestr(name, "x")
    assert says in reason(serve, "model")


def test_an_output_of_another_type_fails_the_request(write, serve):
    write("Twice", "twice", tensors("input", ("x", "FP32", [-1])) + tensors("output", ("y", "INT32", [-1])))
    server = serve()
    with pytest.raises(InferenceServerException, match="output 'y' is FP32, but INT32 in the configuration"):
        answer(server, "twice", x=np.ones(2, np.float32))


def test_without_the_library_or_a_compiler_the_error_says_what_is_missing(write, repository, tmp_path):
    write("Twice", "twice", pair("x", "y"))
    bare = {"PATH": str(tmp_path), "PYTHONNOUSERSITE": "1"}
    with_torch = torch_package.environment() | bare | {"XDG_CACHE_HOME": str(tmp_path)}
    for flags, environment, says in [
        ([f"--backend-directory={tmp_path}"], bare, "no libtorch was found: .*`pip install torch`"),
        (FLAGS, with_torch, "a C.. compiler, but `c..` does not start: "),
        (FLAGS, with_torch | {"CXX": "/bin/false"}, "`/bin/false` cannot compile the shim"),
    ]:
        with nereid_server.running(repository, "--exit-on-error=false", *flags, ready=False, env=environment) as server:
            server.wait_until_loaded()
            server.wait_for_log("'twice'.*" + says)

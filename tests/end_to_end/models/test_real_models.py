"""Real models in each engine: every answer equals that of ONNX Runtime in Python, and the example clients work.

`cargo xtask fetch examples` brings the models.
"""

import math
import subprocess
import sys
import wave
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnxruntime
import pytest
import tritonclient.http

import nereid_server
import onnx_engines
from places import EXAMPLES
from tensors import given

REPOSITORY = EXAMPLES / "fetched_repository"
CLIENTS = EXAMPLES / "clients"
rng = np.random.default_rng(17)


def floats(*shape):
    return rng.uniform(-1, 1, shape).astype(np.float32)


def speech_detector(batch, sound, rate=16000):
    return {"input": sound, "state": floats(2, batch, 128), "sr": np.array(rate)}


CASES = {
    "text_detector": [{"x": floats(1, 3, 96, 160)}, {"x": floats(2, 3, 64, 64)}],
    "text_recogniser": [{"x": floats(1, 3, 48, 320)}, {"x": floats(3, 3, 48, 100)}],
    "text_direction": [{"x": floats(1, 3, 48, 192)}, {"x": floats(4, 3, 48, 192)}],
    "speech_detector": [
        speech_detector(1, floats(1, 576)),
        speech_detector(3, floats(3, 576)),
        speech_detector(2, floats(2, 288), rate=8000),
    ],
    "file_type": [
        {"bytes": rng.integers(0, 257, (1, 2048)).astype(np.int32)},
        {"bytes": rng.integers(0, 257, (7, 2048)).astype(np.int32)},
    ],
}


@pytest.fixture(scope="module", params=onnx_engines.FLAGS)
def server(request):
    flags = [*onnx_engines.FLAGS[request.param], "--exit-on-error=false"]
    with nereid_server.running(REPOSITORY, *flags, ready=False) as server:
        server.engine = request.param
        yield server


@pytest.fixture(scope="module")
def sessions():
    return {name: onnxruntime.InferenceSession(REPOSITORY / name / "1/model.onnx") for name in CASES}


def expected(session, feed):
    return dict(zip([output.name for output in session.get_outputs()], session.run(None, feed)))


def infer(server, model, feed):
    # A scalar travels as one element.
    inputs = [given(name, np.atleast_1d(values)) for name, values in feed.items()]
    with tritonclient.http.InferenceServerClient(server.url) as client:
        return client.infer(model, inputs)


def assert_equal(answer, outputs):
    for name, values in outputs.items():
        got = answer.as_numpy(name)
        assert (got.dtype, got.shape) == (values.dtype, values.shape)
        np.testing.assert_allclose(got, values, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("model", "case"), [(model, case) for model, cases in CASES.items() for case in range(len(cases))])
def test_answers_equal_onnx_runtime(server, sessions, model, case):
    feed = CASES[model][case]
    assert_equal(infer(server, model, feed), expected(sessions[model], feed))


def test_lines_that_are_read_together_are_read_as_each_alone(server, sessions):
    lines = [{"x": floats(1, 3, 48, width)} for width in (96, 160, 96, 160) * 4]
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda feed: infer(server, "text_recogniser", feed), lines))
    for feed, answer in zip(lines, answers):
        assert_equal(answer, expected(sessions["text_recogniser"], feed))


def run(server, client, *arguments):
    """Runs a client to its end."""
    command = [sys.executable, CLIENTS / client, "--url", server.url, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def shown(server, client, *arguments):
    """What a client prints."""
    done = run(server, client, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_client_reads_text(server):
    (line,) = shown(server, "read_text.py", EXAMPLES / "images/text_line.pgm")
    assert line.startswith("Nereid serves models (0.9")


def test_a_client_names_types_of_files(server):
    root = EXAMPLES.parent
    names = {"README.md": "markdown", "tests/end_to_end/support/tensors.py": "python", "Cargo.toml": "toml"}
    lines = shown(server, "name_file_type.py", *[root / name for name in names])
    for line, (name, kind) in zip(lines, names.items(), strict=True):
        assert line.startswith(f"{root / name}: {kind} (")


def vowel(seconds):
    """A voice that says "ah": pulses of 120 Hz through the formants of the vowel, swelling three times a second."""
    at = np.arange(int(16000 * seconds)) / 16000
    pulses = sum(
        np.cos(2 * math.pi * 120 * k * at) * sum(1 / (1 + ((120 * k - f) / 90) ** 2) for f in (700, 1200, 2600))
        for k in range(1, 30)
    )
    return pulses / np.abs(pulses).max() * (0.55 - 0.45 * np.cos(2 * math.pi * 3 * at))


def test_a_client_hears_speech(server, sessions, tmp_path):
    sound = np.concatenate([np.zeros(16000), vowel(2), np.zeros(16000)])
    with wave.open(str(tmp_path / "sound.wav"), "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", ""))
        file.writeframes((sound * 20000).astype("<i2").tobytes())
    lines = shown(server, "detect_speech.py", tmp_path / "sound.wav")
    assert lines and all(line.startswith("speech from ") for line in lines), lines
    begins = [float(line.split()[2]) for line in lines]
    assert 0.9 < begins[0] < 1.5


@pytest.mark.parametrize(
    ("client", "content", "told"),
    [
        ("read_text.py", b"P2 2 2 255 0 0 0 0", "is not a binary PGM image"),
        ("read_text.py", b"P5 4 2 255 ab", "has 2 pixels, but says it has 4 times 2"),
        ("detect_speech.py", b"RIFF", "detect_speech: "),
    ],
)
def test_a_client_reports_what_is_wrong_with_its_file(server, tmp_path, client, content, told):
    (tmp_path / "file").write_bytes(content)
    done = run(server, client, tmp_path / "file")
    assert done.returncode == 1 and told in done.stderr and "Traceback" not in done.stderr, done.stderr

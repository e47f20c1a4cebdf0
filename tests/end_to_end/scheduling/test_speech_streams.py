"""The example `speech_stream`: recordings that are sent piece by piece, each as a sequence whose state the server keeps.

`cargo xtask fetch examples` brings the models.
"""

import math
import subprocess
import sys
import wave

import numpy as np
import onnxruntime
import pytest
import tritonclient.http
from tritonclient.utils import InferenceServerException

import modules
import nereid_server
import onnx_engines
import silero_package
from places import EXAMPLES
from tensors import given

REPOSITORY = EXAMPLES / "fetched_repository"
CLIENT = EXAMPLES / "clients/stream_speech.py"
STREAMS = 200
rng = np.random.default_rng(29)


@pytest.fixture(scope="module", params=onnx_engines.FLAGS)
def server(request):
    flags = ["--model-control-mode=explicit", "--load-model=speech_stream", *onnx_engines.FLAGS[request.param]]
    with nereid_server.running(REPOSITORY, *flags) as server:
        server.engine = request.param
        yield server


@pytest.fixture(scope="module")
def client():
    """The client's module."""
    return modules.load(CLIENT)


@pytest.fixture(scope="module")
def rules():
    return silero_package.rules()


def vowel(seconds, pitch):
    """A voice that says "ah", swelling three times a second."""
    at = np.arange(int(16000 * seconds)) / 16000
    pulses = sum(
        np.cos(2 * math.pi * pitch * k * at) * sum(1 / (1 + ((pitch * k - f) / 90) ** 2) for f in (700, 1200, 2600))
        for k in range(1, 30)
    )
    return pulses / np.abs(pulses).max() * (0.55 - 0.45 * np.cos(2 * math.pi * 3 * at))


def recording(path, index):
    """A WAV file in which nobody speaks, or somebody once or twice."""
    parts = [np.zeros(rng.integers(2000, 12000))]
    for _ in range(index % 3):
        parts += [vowel(rng.uniform(0.2, 1.2), rng.uniform(90, 200)), np.zeros(rng.integers(300, 9000))]
    sound = (np.concatenate(parts) * rng.uniform(10000, 30000)).astype("<i2")
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", ""))
        file.writeframes(sound.tobytes())
    return path


def package_lines(rules, path, sound):
    """What the client should print: by the package's rules and its model, whose state goes from step to step."""
    session = onnxruntime.InferenceSession(REPOSITORY / "speech_detector/1/model.onnx")
    state, context, steps = np.zeros((2, 1, 128), np.float32), np.zeros(64, np.float32), []
    for step in np.pad(sound, (0, -len(sound) % 512)).reshape(-1, 512):
        feed = {"input": np.concatenate([context, step])[None], "state": state, "sr": np.array(16000)}
        probability, state = session.run(None, feed)
        context = step[-64:]
        steps.append(float(probability[0, 0]))
    found = rules(steps, audio_length_samples=len(sound))
    lines = [f"{path}: speech from {it['start'] / 16000:.2f} s to {it['end'] / 16000:.2f} s" for it in found]
    return lines or [f"{path}: nobody speaks in {len(sound) / 16000:.2f} s"]


def test_many_recordings_are_heard_at_once_as_the_package_hears_each(server, client, rules, tmp_path):
    recordings = [recording(tmp_path / f"{index}.wav", index) for index in range(20)]
    expected = {path: package_lines(rules, path, client.read_sound(path)) for path in recordings}
    paths = [recordings[index % len(recordings)] for index in range(STREAMS)]
    command = [sys.executable, CLIENT, "--url", server.grpc_url, *paths]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [line for path in paths for line in expected[path]]
    spoken = [len(lines) for lines in expected.values() if "speech from" in lines[0]]
    assert len(spoken) >= 10 and max(spoken) == 2


def test_the_client_finds_speech_by_the_rules_of_the_package(client, rules):
    for _ in range(300):
        length = int(rng.integers(1, 60000))
        count = -(-length // 512)
        # Probabilities that stay high or low for a while, and often lie between the two limits.
        levels = np.repeat(rng.choice([0.05, 0.3, 0.4, 0.45, 0.6, 0.95], count), rng.integers(1, 9, count))[:count]
        steps = np.clip(levels + rng.normal(0, 0.05, count), 0, 1).tolist()
        expected = [[it["start"], it["end"]] for it in rules(steps, audio_length_samples=length)]
        assert client.speeches(steps, length) == expected, steps


def test_a_sound_is_heard_the_same_in_pieces_of_any_length(server):
    sound = rng.normal(0, 0.2, (60, 576)).astype(np.float32)
    with tritonclient.http.InferenceServerClient(server.url) as http:

        def infer(sequence, start, end, part):
            answer = http.infer(
                "speech_stream",
                [given("input", part)],
                sequence_id=sequence,
                sequence_start=start,
                sequence_end=end,
            )
            return answer.as_numpy("speech_probs").tolist()

        whole = infer(7, True, True, sound)
        assert len(whole) == 60
        for sequence in (8, 9):
            cuts = [0, *sorted(rng.choice(np.arange(1, 60), 5, replace=False).tolist()), 60]
            heard = [
                probability
                for begin, end in zip(cuts, cuts[1:])
                for probability in infer(sequence, begin == 0, end == 60, sound[begin:end])
            ]
            np.testing.assert_allclose(heard, whole, rtol=0, atol=1e-6)
        # What was heard before matters: without it the answers are others.
        infer(10, True, True, sound[:30])
        alone = infer(11, True, True, sound[30:])
        assert np.abs(np.array(alone) - whole[30:]).max() > 1e-3
        with pytest.raises(InferenceServerException, match="must specify the START flag"):
            infer(12, False, False, sound[:1])


def test_the_client_reports_what_is_wrong_with_its_file(server, tmp_path):
    (tmp_path / "file").write_bytes(b"RIFF")
    done = subprocess.run(
        [sys.executable, CLIENT, "--url", server.grpc_url, tmp_path / "file"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1 and "stream_speech: " in done.stderr and "Traceback" not in done.stderr, done.stderr

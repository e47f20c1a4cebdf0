"""Asks the `speech_detector` model when someone speaks in a recording.

    python examples/clients/detect_speech.py recording.wav

Give the models with `cargo xtask fetch examples`, and serve examples/fetched_repository.
"""

import argparse
import sys
import wave

import numpy as np
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

RATE = 16000
# Samples looked at in one step, and those before them that go along.
STEP, CONTEXT = 512, 64
SURE = 0.5


def read_sound(path):
    """A WAV file of one channel, 16 bits and 16 kHz as values from -1 to 1."""
    with wave.open(str(path)) as sound:
        if (sound.getnchannels(), sound.getsampwidth(), sound.getframerate()) != (1, 2, RATE):
            raise ValueError(f"{path} is not a recording of one channel, 16 bits and {RATE} Hz")
        return np.frombuffer(sound.readframes(sound.getnframes()), "<i2").astype(np.float32) / 32768


def given(name, values):
    """An input that holds these values."""
    datatype = {"float32": "FP32", "int64": "INT64"}[values.dtype.name]
    tensor = triton.InferInput(name, list(values.shape), datatype)
    tensor.set_data_from_numpy(values)
    return tensor


def probabilities(url, sound):
    """How probable speech is in each step of the sound. The model's state goes back to it with the next step."""
    state = np.zeros((2, 1, 128), np.float32)
    steps = np.pad(sound, (CONTEXT, -len(sound) % STEP))
    rate = np.array([RATE])
    with triton.InferenceServerClient(url) as client:
        for start in range(0, len(steps) - CONTEXT, STEP):
            step = steps[None, start : start + CONTEXT + STEP]
            answer = client.infer("speech_detector", [given("input", step), given("state", state), given("sr", rate)])
            state = answer.as_numpy("stateN")
            yield float(answer.as_numpy("output")[0, 0])


def stretches(found):
    """First and last second of each stretch of steps with speech in them."""
    begun = None
    for index, speaks in enumerate([*found, False]):
        if speaks and begun is None:
            begun = index
        elif not speaks and begun is not None:
            yield begun * STEP / RATE, index * STEP / RATE
            begun = None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recording", metavar="RECORDING", help="a WAV file of one channel, 16 bits and 16 kHz")
    parser.add_argument("--url", default="localhost:8000", help="host and port of the server (default: %(default)s)")
    arguments = parser.parse_args()
    try:
        sound = read_sound(arguments.recording)
        found = [probability > SURE for probability in probabilities(arguments.url, sound)]
    except (InferenceServerException, OSError, EOFError, wave.Error, ValueError) as error:
        sys.exit(f"detect_speech: {error}")
    for begin, end in stretches(found):
        print(f"speech from {begin:.2f} s to {end:.2f} s")
    if not any(found):
        print(f"nobody speaks in {len(sound) / RATE:.2f} s")


if __name__ == "__main__":
    main()

"""Sends recordings to the `speech_stream` model piece by piece, all at the same time, and prints when someone speaks in each.

    python examples/clients/stream_speech.py recording.wav another.wav

Each recording is a sequence: the model remembers what it has heard, and the server keeps that from request to request.
Give the models with `cargo xtask fetch examples`, and serve examples/fetched_repository.
"""

import argparse
import asyncio
import sys
import wave

import numpy as np
import tritonclient.grpc.aio as triton
from tritonclient.utils import InferenceServerException

RATE = 16000
# Samples of one step, and those before it that the model hears again.
STEP, CONTEXT = 512, 64
# Steps of one request: half a second.
PIECE = 16

# Speech begins with a step that is at least this probable, and ends with a pause of steps that are less probable than that.
BEGINS, ENDS = 0.5, 0.35
SHORTEST_SPEECH, SHORTEST_PAUSE = RATE // 4, RATE // 10
# Added before and after speech.
MARGIN = RATE * 3 // 100


def read_sound(path):
    """A WAV file of one channel, 16 bits and 16 kHz as values from -1 to 1."""
    with wave.open(str(path)) as sound:
        if (sound.getnchannels(), sound.getsampwidth(), sound.getframerate()) != (1, 2, RATE):
            raise ValueError(f"{path} is not a recording of one channel, 16 bits and {RATE} Hz")
        return np.frombuffer(sound.readframes(sound.getnframes()), "<i2").astype(np.float32) / 32768


def pieces(sound):
    """The sound as the model takes it: arrays of up to PIECE steps, each with its context."""
    padded = np.pad(sound, (CONTEXT, -len(sound) % STEP))
    steps = np.lib.stride_tricks.sliding_window_view(padded, CONTEXT + STEP)[::STEP]
    return [np.ascontiguousarray(steps[at : at + PIECE]) for at in range(0, len(steps), PIECE)]


async def probabilities(client, sequence, sound):
    """How probable speech is in each step of the sound."""
    found = []
    parts = pieces(sound)
    for index, part in enumerate(parts):
        tensor = triton.InferInput("input", list(part.shape), "FP32")
        tensor.set_data_from_numpy(part)
        answer = await client.infer(
            "speech_stream",
            [tensor],
            sequence_id=sequence,
            sequence_start=index == 0,
            sequence_end=index == len(parts) - 1,
        )
        found.extend(answer.as_numpy("speech_probs").tolist())
    return found


def speeches(steps, length):
    """First and last sample of each speech in a sound of this length, with these probabilities of its steps."""
    found = []
    begin = pause = None
    for at, probability in zip(range(0, len(steps) * STEP, STEP), steps):
        if probability >= BEGINS:
            begin = at if begin is None else begin
            pause = None
        elif begin is not None and probability < ENDS:
            # The pause goes on until speech is probable again.
            pause = at if pause is None else pause
            if at - pause >= SHORTEST_PAUSE:
                found.append([begin, pause])
                begin = pause = None
    if begin is not None:
        found.append([begin, length])
    found = [speech for speech in found if speech[1] - speech[0] > SHORTEST_SPEECH]
    # Margins of neighbours share the pause between them where it is short.
    for before, after in zip(found, found[1:]):
        gap = after[0] - before[1]
        margin = gap // 2 if gap < 2 * MARGIN else MARGIN
        before[1] += margin
        after[0] -= margin
    if found:
        found[0][0] = max(0, found[0][0] - MARGIN)
        found[-1][1] = min(length, found[-1][1] + MARGIN)
    return found


async def hear(url, sounds):
    """The speeches of each sound. All are sent at the same time, as if they were spoken now."""
    async with triton.InferenceServerClient(url) as client:
        # A sequence's number must not be in use by anybody else.
        first = int.from_bytes(np.random.default_rng().bytes(6), "little") + 1
        steps = await asyncio.gather(*[probabilities(client, first + at, sound) for at, sound in enumerate(sounds)])
    return [speeches(found, len(sound)) for found, sound in zip(steps, sounds)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recordings", metavar="RECORDING", nargs="+", help="WAV files of one channel, 16 bits and 16 kHz")
    parser.add_argument("--url", default="localhost:8001", help="host and gRPC port of the server (default: %(default)s)")
    arguments = parser.parse_args()
    try:
        sounds = [read_sound(path) for path in arguments.recordings]
        found = asyncio.run(hear(arguments.url, sounds))
    except (InferenceServerException, OSError, EOFError, wave.Error, ValueError) as error:
        sys.exit(f"stream_speech: {error}")
    for path, sound, spoken in zip(arguments.recordings, sounds, found):
        for begin, end in spoken:
            print(f"{path}: speech from {begin / RATE:.2f} s to {end / RATE:.2f} s")
        if not spoken:
            print(f"{path}: nobody speaks in {len(sound) / RATE:.2f} s")


if __name__ == "__main__":
    main()

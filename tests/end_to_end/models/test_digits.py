"""The digits example: a real model, compared with ONNX Runtime, and the client that comes with it."""

import subprocess
import sys

import numpy as np
import onnxruntime
import pytest
import tritonclient.http

from http_requests import infer, tensor
from places import EXAMPLES
from tensors import given, wanted

LABELS = "zero one two three four five six seven eight nine".split()
LARGEST_BATCH = 32
COMPARED = 64


@pytest.fixture(scope="module")
def digits():
    """The digits that training never saw: images and classes."""
    table = np.loadtxt(EXAMPLES / "images" / "held_out.csv", delimiter=",", dtype=np.float32)
    return table[:, 1:].reshape(-1, 1, 8, 8) / 16, table[:, 0].astype(int)


@pytest.fixture(scope="module")
def expected(digits):
    """ONNX Runtime's answers."""
    session = onnxruntime.InferenceSession(EXAMPLES / "model_repository" / "digits" / "1" / "model.onnx")
    return session.run(None, {"image": digits[0]})[0]


def probabilities(client, images, binary_in=True, binary_out=True):
    answer = client.infer("digits", [given("image", images, binary_in)], outputs=[wanted("probabilities", binary_out)])
    return answer.as_numpy("probabilities")


@pytest.mark.parametrize("binary_out", [True, False], ids=["binary out", "JSON out"])
@pytest.mark.parametrize("binary_in", [True, False], ids=["binary in", "JSON in"])
def test_answers_equal_onnx_runtime_in_every_form(client, digits, expected, binary_in, binary_out):
    images = digits[0]
    for start in range(0, COMPARED, LARGEST_BATCH):
        batch = slice(start, start + LARGEST_BATCH)
        got = probabilities(client, images[batch], binary_in, binary_out)
        np.testing.assert_allclose(got, expected[batch], rtol=0, atol=1e-5)


def test_single_images_and_odd_batches_equal_onnx_runtime(client, digits, expected):
    for size in (1, 3, 31):
        got = probabilities(client, digits[0][:size])
        np.testing.assert_allclose(got, expected[:size], rtol=0, atol=1e-5)


def test_the_model_reads_what_it_has_not_seen(client, digits):
    images, classes = digits
    starts = range(0, len(images), LARGEST_BATCH)
    got = np.concatenate([probabilities(client, images[start : start + LARGEST_BATCH]) for start in starts])
    accuracy = (got.argmax(1) == classes).mean()
    assert accuracy >= 0.97


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "JSON"])
def test_classification_gives_value_index_and_label_of_the_best_classes(client, digits, expected, binary):
    answer = client.infer("digits", [given("image", digits[0][:8])], outputs=[wanted("probabilities", binary, classes=3)])
    assert answer.get_output("probabilities")["datatype"] == "BYTES"
    got = answer.as_numpy("probabilities")
    assert got.shape == (8, 3)
    for row, values in zip(got, expected):
        entries = [entry.decode() if isinstance(entry, bytes) else entry for entry in row]
        indices = [int(entry.split(":")[1]) for entry in entries]
        assert indices == np.argsort(-values, kind="stable")[:3].tolist()
        assert [entry.split(":")[2] for entry in entries] == [LABELS[index] for index in indices]
        np.testing.assert_allclose([float(entry.split(":")[0]) for entry in entries], values[indices], atol=2e-6)


def test_classification_of_more_classes_than_there_are_gives_them_all(client, digits):
    answer = client.infer("digits", [given("image", digits[0][:1])], outputs=[wanted("probabilities", classes=99)])
    assert sorted(entry.decode().split(":")[2] for entry in answer.as_numpy("probabilities")[0]) == sorted(LABELS)


def test_nested_json_data_is_read_like_flat_data(examples, digits):
    image = digits[0][:2]
    nested, flat = (
        infer(examples, "digits", {"inputs": [tensor("image", "FP32", [2, 1, 8, 8], data)]})
        for data in (image.tolist(), image.ravel().tolist())
    )
    assert nested.status == 200
    assert nested.json == flat.json


def test_the_example_ensemble_reads_pixels_as_they_are(client, digits, expected):
    pixels = (digits[0][:LARGEST_BATCH, 0] * 16).astype(np.uint8)
    tensor = tritonclient.http.InferInput("pixels", list(pixels.shape), "UINT8")
    tensor.set_data_from_numpy(pixels)
    answer = client.infer("read_digit", [tensor])
    np.testing.assert_allclose(answer.as_numpy("probabilities"), expected[:LARGEST_BATCH], rtol=0, atol=1e-5)


def test_the_documents_show_what_the_example_ensemble_answers(examples):
    words = (EXAMPLES / "images" / "digit_3.pgm").read_text().split()
    pixels = tensor("pixels", "UINT8", [1, 8, 8], [int(word) for word in words[4:]])
    wanted_classes = {"name": "probabilities", "parameters": {"classification": 1}}
    answer = infer(examples, "read_digit", {"inputs": [pixels], "outputs": [wanted_classes]})
    assert answer.json["outputs"][0]["data"][0].endswith(":3:three")
    assert answer.body.decode() in (EXAMPLES.parent / "docs" / "protocols.md").read_text()


def classify(examples, *images):
    """The standard output of the example client."""
    command = [sys.executable, EXAMPLES / "clients" / "classify_digit.py", *images, "--url", examples.url]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_the_example_client_names_the_digit(examples):
    result = classify(examples, EXAMPLES / "images" / "digit_3.pgm")
    assert result.returncode == 0, result.stderr
    label, probability = result.stdout.split()
    assert label == "three"
    assert 0.5 < float(probability.strip("()")) <= 1


def test_the_example_client_names_several_digits_in_one_batch(examples):
    images = sorted((EXAMPLES / "images").glob("digit_*.pgm"))
    result = classify(examples, *images)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert len(lines) == len(images) == 3
    for image, line in zip(images, lines):
        path, answer = line.rsplit(": ", 1)
        assert path == str(image)
        assert answer.split()[0] == LABELS[int(image.stem.removeprefix("digit_"))]


def test_the_example_client_says_what_is_wrong_with_a_file(examples, tmp_path):
    broken = tmp_path / "broken.pgm"
    broken.write_text("P2\n2 2\n16\n0 0 0 0\n")
    result = classify(examples, broken)
    assert result.returncode == 1
    assert "broken.pgm" in result.stderr and "Traceback" not in result.stderr

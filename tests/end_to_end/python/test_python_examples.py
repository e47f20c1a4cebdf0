"""The examples in Python: a model that reads pictures with three others, one that streams, and a pipeline for texts.

`cargo xtask fetch examples` brings the models that are asked.
"""

import json
import subprocess
import sys
from urllib.request import Request, urlopen

import numpy as np
import pytest
import tritonclient.http
from tritonclient.utils import InferenceServerException

import modules
import nereid_server
import onnx_engines
from places import EXAMPLES
from tensors import given

REPOSITORIES = [EXAMPLES / "fetched_repository", EXAMPLES / "python_repository"]
CLIENTS = EXAMPLES / "clients"
MODELS = ["text_detector", "text_direction", "text_recogniser", "read_picture", "stream_words", "summarise"]


@pytest.fixture(scope="module", params=onnx_engines.FLAGS)
def server(request):
    flags = [
        f"--model-repository={REPOSITORIES[1]}",
        f"--backend-config=python,python={sys.executable}",
        "--model-control-mode=explicit",
        *[f"--load-model={name}" for name in [*MODELS, "split_sentences", "rank_sentences"]],
        *onnx_engines.FLAGS[request.param],
    ]
    with nereid_server.running(REPOSITORIES[0], *flags) as server:
        yield server


def load(client):
    """A client's module."""
    return modules.load(CLIENTS / f"{client}.py")


def run(url, client, *arguments):
    command = [sys.executable, CLIENTS / client, "--url", url, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_picture_is_read_line_by_line_also_where_it_stands_on_its_head(server):
    lines = run(server.url, "read_picture.py", EXAMPLES / "images/page.pgm")
    texts = [line.rsplit(" (", 1)[0] for line in lines]
    assert texts == ["Nereid serves models", "written in Python, too", "Room 42, second floor"]
    assert all(float(line.rsplit(" (", 1)[1].split(",")[0]) > 0.9 for line in lines), lines


def test_lines_are_read_wherever_they_are_in_a_picture(server):
    page = load("read_picture").read_image(EXAMPLES / "images/page.pgm")
    line = page[12:50]
    with tritonclient.http.InferenceServerClient(server.url, network_timeout=120) as client:
        for seed in range(4):
            rng = np.random.default_rng(seed)
            top, left = (int(rng.integers(0, limit)) for limit in (150, 250))
            picture = np.full((200, 620, 3), 245, np.uint8)
            picture[top : top + line.shape[0], left : left + line.shape[1]] = line
            answer = client.infer("read_picture", [given("picture", picture)])
            assert answer.as_numpy("texts").tolist() == [b"Nereid serves models"], (top, left)
            ((x, y, right, bottom),) = answer.as_numpy("boxes").tolist()
            assert left <= x < right <= left + line.shape[1] + 20 and top - 10 <= y < bottom <= top + 60


def test_a_picture_without_text_has_no_lines(server):
    with tritonclient.http.InferenceServerClient(server.url) as client:
        answer = client.infer("read_picture", [given("picture", np.full((64, 96, 3), 200, np.uint8))])
        assert [answer.as_numpy(name).shape for name in ("texts", "confidences", "boxes")] == [(0,), (0,), (0, 4)]


def test_words_arrive_one_by_one_over_grpc_and_as_events(server):
    for text in ("one word after the other", "  spaces\n and a line ", "größer als 日本", ""):
        words = text.split()
        assert run(server.grpc_url, "stream_words.py", text) == words
        body = json.dumps({"text": text}).encode()
        with urlopen(Request(f"http://{server.url}/v2/models/stream_words/generate_stream", body), timeout=60) as answer:
            events = [json.loads(line[6:]) for line in answer.read().decode().split("\n") if line]
        assert [event["word"] for event in events] == words


def test_a_text_that_is_no_text_is_an_error_of_its_request(server):
    words = load("stream_words")

    class Bytes(str):
        def encode(self, *_):
            return b"\xff"

    with pytest.raises(InferenceServerException, match="the text is not UTF-8"):
        list(words.words(server.grpc_url, Bytes()))


TEXT = """Ships carry goods over the sea. My cat sleeps! Large ships carry goods between harbours.

Harbours load ships with goods of all kinds? It rained on Tuesday. Nobody saw it."""


def test_a_summary_has_the_sentences_that_have_most_in_common(server, tmp_path):
    path = tmp_path / "text"
    path.write_text(TEXT)
    expected = [
        "Ships carry goods over the sea.",
        "Large ships carry goods between harbours.",
        "Harbours load ships with goods of all kinds?",
    ]
    assert run(server.url, "summarise.py", path) == expected
    assert run(server.url, "summarise.py", path, "--count", "1")[0] in expected
    every = run(server.url, "summarise.py", path, "--count", "100")
    assert len(every) == 6 and every[1] == "My cat sleeps!" and every[-1] == "Nobody saw it."
    for text, sentences in [("", []), (" \n\n ", []), ("one", ["one"]), ("größer? 日本!", ["größer?", "日本!"])]:
        path.write_text(text)
        assert run(server.url, "summarise.py", path) == sentences
    command = [sys.executable, CLIENTS / "summarise.py", "--url", server.url, path, "--count", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "at least one sentence" in done.stderr, done.stderr

"""`nereid tune`: what it finds, writes and refuses."""

import os
import re
import runpy
import signal
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest

import nereid_server
from http_requests import infer, tensor
from model_files import config, write_identity, write_model
from places import EXAMPLES, ROOT
from waiting import eventually

SLOW = """
import time

import triton_python_backend_utils as pb_utils

SECONDS = {seconds}


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            time.sleep(SECONDS)
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy())]))
        return answers
"""
# Models in Python run on the tests' own interpreter.
PYTHON = f"--backend-config=python,python={sys.executable}"
PORTS = ([("INPUT0", "FP32", [1])], [("OUTPUT0", "FP32", [1])])


def write_slow(repository, seconds, **settings):
    """A model that waits for some time in each request."""
    write_model(repository, "slow", config("slow", "python", *PORTS, **settings))
    (repository / "slow/1/model.py").write_text(SLOW.replace("{seconds}", str(seconds)))


def tune(folder, *arguments, limit_s=120):
    """Runs the command in a folder."""
    command = [nereid_server.binary(), "tune", *map(str, arguments)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=limit_s, check=False)


def rows(output):
    """Requests a second by the settings in the table."""
    found = re.findall(r"^[* ] (\S.*?)  +([\d.]+)  +[\d.]+  +[\d.]+  +[\d.]+  +[\d.]+$", output, re.MULTILINE)
    return {name: float(rate) for name, rate in found}


class Elements(HTMLParser):
    """The elements of a page that are open, and those that were."""

    def __init__(self, text):
        super().__init__()
        self.open, self.seen = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def children(pid):
    """The numbers of the processes that a process started."""
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_a_model_that_waits_gets_more_instances(repository):
    write_slow(repository, 0.03)
    before = (repository / "slow/config.pbtxt").read_text()
    done = tune(repository.parent, "slow", "--repository", repository, "--seconds=16", "--clients=8", "--write", "--", PYTHON)
    assert done.returncode == 0, done.stderr
    assert "random INPUT0 FP32 [1]" in done.stderr
    found = rows(done.stdout)
    # One instance answers 33 requests a second at most.
    assert found["present configuration"] < 40
    gain = re.search(r"([\d.]+) times the requests/s", done.stdout)
    assert gain and float(gain.group(1)) > 1.4, done.stdout
    written = (repository / "slow/config.pbtxt").read_text()
    assert re.search(r"count: [2-9]", written), written
    assert (repository / "slow/config.pbtxt.before-tuning").read_text() == before
    page = Elements((repository.parent / "nereid-tune-slow.html").read_text())
    # The second picture, of more clients, takes a quarter of the time, in which a busy machine may not even load the model.
    assert not page.open and page.seen.count("svg") in (1, 2) and "script" not in page.seen
    with nereid_server.running(repository, PYTHON) as server:
        body = {"inputs": [tensor("INPUT0", "FP32", [1], [1.0])]}
        assert infer(server, "slow", body).status == 200


def test_an_onnx_model_is_tried_in_each_engine_that_is_there(tmp_path):
    page = tmp_path / "page.html"
    done = tune(tmp_path, "digits", "--repository", EXAMPLES / "model_repository", "--seconds=12", "--report", page)
    assert done.returncode == 0, done.stderr
    text = page.read_text()
    assert "embedded engine" in text and "ONNX Runtime" in text and "OpenVINO" in text
    assert 'label_filename: "labels.txt"' in done.stdout
    # The script that draws docs/tuning.md's picture reads the page.
    drawing = runpy.run_path(str(ROOT / "docs/pictures/tuning.py"))
    shown = {settings: figures[0] for settings, figures in drawing["candidates"](text).items()}
    assert rows(done.stdout).items() <= shown.items()
    engines = {name for panel in drawing["chart"](text)["panels"] for name, _ in panel["series"]}
    # On a busy machine, some engines measure nothing in so short a time.
    assert "present" in engines and engines <= {"present", *drawing["ENGINES"]}
    assert (EXAMPLES / "model_repository/digits/config.pbtxt.before-tuning").exists() is False


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["missing"], "there is no model 'missing' in"),
        (["sequence"], "'sequence' keeps state between the requests of a sequence"),
        (["many"], "'many' is decoupled"),
        (["broken"], "max_batch_size"),
        (["plain", "--shape=Z=1"], "has no input 'Z' (available: INPUT0"),
        (["plain", "--input=INPUT0=1,2,3"], "do not fit"),
        (["plain", "--load=missing"], "missing"),
        (["plain", "--", "--no-such-option"], "no-such-option"),
    ],
)
def test_what_cannot_be_tuned_is_said(repository, arguments, reason):
    write_identity(repository, "plain", ["FP32"], dims=[2])
    write_model(repository, "sequence", config("sequence", "identity", *PORTS, max_batch_size=2, extra="sequence_batching {}"))
    decoupled = "model_transaction_policy { decoupled: true }"
    write_model(repository, "many", config("many", "identity", *PORTS, extra=decoupled))
    write_model(repository, "broken", 'backend: "identity" max_batch_size: -7')
    done = tune(repository.parent, *arguments[:1], "--repository", repository, "--seconds=60", *arguments[1:])
    assert done.returncode == 1
    assert done.stderr.startswith("nereid tune: ") and reason in done.stderr, done.stderr
    assert not list(repository.parent.glob("*.html"))


def test_the_time_limit_holds_where_requests_are_slow(repository):
    write_slow(repository, 0.5, max_batch_size=4)
    began = time.monotonic()
    done = tune(repository.parent, "slow", "--repository", repository, "--seconds=20", "--", PYTHON)
    took = time.monotonic() - began
    assert done.returncode == 0, done.stderr
    # Two seconds are for the end of the last server, the others for a busy machine.
    assert took < 30, took
    assert len(rows(done.stdout)) >= 2, done.stdout
    # A dozen loads with a second or more of requests do not fit.
    found = re.search(
        r"Not tried for lack of time: (\d+) of (\d+) candidates. --seconds=(\d+) would be enough for all.", done.stdout
    )
    assert found and 0 < int(found[1]) < int(found[2]) and int(found[3]) > 20, done.stdout
    page = (repository.parent / "nereid-tune-slow.html").read_text()
    assert page.count(">not tried for lack of time</td>") == int(found[1])


def test_a_time_limit_that_is_too_short_is_refused(repository):
    write_slow(repository, 4)
    began = time.monotonic()
    done = tune(repository.parent, "slow", "--repository", repository, "--seconds=10", "--", PYTHON)
    took = time.monotonic() - began
    assert done.returncode == 1
    reason = r"nereid tune: --seconds=10 is too short for 'slow': .* \(try --seconds=(\d+)\)\n"
    found = re.fullmatch(rf"(?:slow: .*\n)?{reason}", done.stderr)
    assert found and int(found[1]) > 10, done.stderr
    assert took < 20, took
    assert not list(repository.parent.glob("*.html"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_search_leaves_no_server(repository, number):
    write_identity(repository, "plain", ["FP32"], dims=[2])
    # Longer than the path of a socket may be.
    temporary = repository.parent / ("temporary" * 12)
    temporary.mkdir()
    command = [nereid_server.binary(), "tune", "plain", "--repository", repository, "--seconds=600"]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen(command, cwd=repository.parent, stderr=subprocess.PIPE, text=True, env=environment) as search:
        # The number of candidates follows the first server.
        assert search.stderr is not None
        search.stderr.readline()
        while not (servers := children(search.pid)):
            assert search.poll() is None, search.stderr.read()
            time.sleep(0.01)
        search.send_signal(number)
        assert "interrupted" in search.stderr.read()
        assert search.wait(30) == 1
    assert eventually(lambda: not any(Path("/proc", server).exists() for server in servers))
    assert not list(Path(temporary).iterdir())

"""The examples of docs/export-to-request.md whose frameworks export the model, services of other servers that move, and the backend in
Rust of docs/backends.md. Not among the default tests: `cargo xtask test guides`, which installs the packages of `requirements-guides.txt`."""

import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests

import torch_wheel
from guide_pages import Reader, blocks
from places import ROOT
from ports import free_ports
from waiting import eventually

PAGE = "docs/export-to-request.md"


@pytest.mark.parametrize("section", ["scikit-learn", "XGBoost", "TensorFlow", "Keras"])
def test_an_example_works_as_printed(tmp_path, section):
    Reader(tmp_path).follow(PAGE, section)


def test_a_forest_of_lightgbm_is_served(tmp_path):
    Reader(tmp_path).follow("docs/forests.md", "From training to a request")


def test_a_model_of_tensorflow_serving_is_moved(tmp_path):
    Reader(tmp_path).follow("docs/coming-from-tensorflow-serving.md")


@pytest.mark.parametrize("section", ["PyTorch", "TorchScript", "AOTInductor", "Hugging Face"])
def test_an_example_with_pytorch_works_as_printed(tmp_path, section):
    torch_wheel.NEWEST.fetched()
    variables = torch_wheel.NEWEST.environment() | {"PYTHONPATH": str(torch_wheel.NEWEST.python)}
    Reader(tmp_path, **variables).follow(PAGE, section)


def test_the_backend_in_rust_works_as_printed(tmp_path):
    (tmp_path / "nereid").symlink_to(ROOT)
    Reader(tmp_path).follow("docs/backends.md", "Your own backend", "In Rust")


@contextmanager
def service(folder, command, url):
    """A service of another server, while it runs. It keeps what it writes in the folder."""
    environment = os.environ | {"HOME": str(folder), "BENTOML_HOME": str(folder / "home"), "BENTOML_DO_NOT_TRACK": "True"}
    with open(folder / "log", "w") as log:
        running = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        assert eventually(lambda: answers(url) or running.poll() is not None, 120) and answers(url), (folder / "log").read_text()
        yield
    finally:
        # Both have processes of their own.
        os.killpg(running.pid, signal.SIGTERM)
        try:
            running.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)


def answers(url):
    try:
        return requests.get(url, timeout=5).ok
    except (requests.ConnectionError, requests.Timeout):
        return False


@pytest.mark.parametrize(("name", "file", "health"), [("BentoML", "service.py", "readyz"), ("LitServe", "server.py", "health")])
def test_the_service_that_moved_answers_as_before(tmp_path, name, file, health):
    page = "docs/coming-from-bentoml.md"
    (block,) = (block for block in blocks(page) if f"`{file}`" in block.before)
    (port,) = free_ports(1)
    (tmp_path / file).write_text(block.text.replace("port=8000", f"port={port}, host='127.0.0.1', generate_client_file=False"))
    bentoml = [Path(sys.executable).parent / "bentoml", "serve", "service:Difference", f"--port={port}", "--host=127.0.0.1"]
    command = bentoml if name == "BentoML" else [sys.executable, file]
    row = rf"\| {name} \| `POST (/\S+)` `([^`]+)` \| `([^`]+)` \|"
    ((path, body, answer),) = re.findall(row, (ROOT / page).read_text())
    url = f"http://127.0.0.1:{port}"
    with service(tmp_path, command, f"{url}/{health}"):
        found = requests.post(url + path, body, headers={"Content-Type": "application/json"}, timeout=60)
    assert (found.status_code, found.text) == (200, answer)

"""Fixtures of the end-to-end tests: real clients against the server's real binary.

pip install -r tests/end_to_end/requirements.txt
NEREID_BINARY=target/debug/nereid pytest tests/end_to_end
"""

from contextlib import ExitStack
from pathlib import Path

import pytest
import tritonclient.http

import nereid_server

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def pytest_configure():
    """Ends the run at once, with the reason, if there is no binary to test."""
    try:
        nereid_server.binary()
    except RuntimeError as error:
        pytest.exit(str(error), returncode=2)


@pytest.fixture(scope="session")
def examples():
    """A server of the example repository, shared by all tests that do not change it."""
    with nereid_server.running(EXAMPLES / "model_repository") as server:
        yield server


@pytest.fixture
def client(examples):
    """A Triton client of the example server."""
    with tritonclient.http.InferenceServerClient(examples.url) as client:
        yield client


@pytest.fixture
def repository(tmp_path):
    """An empty repository of the test's own."""
    folder = tmp_path / "models"
    folder.mkdir()
    return folder


@pytest.fixture
def serve(repository):
    """Starts a server over the test's own repository; stopped and checked when the test ends."""
    with ExitStack() as running:
        yield lambda *flags, **how: running.enter_context(nereid_server.running(repository, *flags, **how))

"""Fixtures of the end-to-end tests: real clients against the server's real binary.

pip install -r tests/end_to_end/requirements.txt   (requirements-quick.txt for the files of quick.txt)
NEREID_BINARY=target/debug/nereid pytest tests/end_to_end
"""

from contextlib import ExitStack

import pytest
import tritonclient.http

import nereid_server
from gates import Gate
from places import EXAMPLES

pytest_plugins = ["longest_first"]

LOG_LINES = 60


def pytest_configure():
    """Stops the run with the reason if there is no binary to test."""
    try:
        nereid_server.binary()
    except RuntimeError as error:
        pytest.exit(str(error), returncode=2)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Adds the end of each server's log to the report of a test that failed."""
    report = yield
    if report.failed:
        for server in nereid_server.started:
            lines = server.log.splitlines()[-LOG_LINES:]
            report.sections.append((f"log of server {server.pid}", "\n".join(lines)))
    if report.when == "teardown":
        nereid_server.started[:] = [server for server in nereid_server.started if server.exit_code is None]
    return report


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


@pytest.fixture
def gate(serve):
    """A gate for models of the identity backend. It is open before the servers of the test are stopped."""
    with Gate() as gate:
        yield gate


# Its event loop would be in the way of other files' own.
@pytest.fixture(scope="module")
def browser():
    """A browser for consoles. Each test opens them in profiles of their own."""
    # Environments for other tests alone have no playwright.
    import console_pages

    with console_pages.browser() as started:
        yield started

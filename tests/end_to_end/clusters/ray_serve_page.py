"""The section *Within Ray Serve* of docs/ray.md followed as printed, with Ray's token and without one. Not among the default tests:
`cargo xtask test clusters`.
"""

import json
from contextlib import ExitStack
from http.client import HTTPConnection, HTTPException
from types import SimpleNamespace

import pytest

import python_package
from http_requests import LIMIT_S, tensor
from model_files import write_identity
from places import ROOT
from ports import free_port
from processes import tree
from ray_application import command_line
from ray_reader import HEAD, PAGE, Reader
from waiting import eventually

SECTION = "Within Ray Serve"
TOKEN = "ray get-auth-token --generate"
WITH_TOKEN = "RAY_AUTH_MODE=token"
SERVE = ("ray::ServeController", "ray::ProxyActor")
WAIT_S = 300
BODY = json.dumps({"inputs": [tensor("INPUT0", "INT32", [1], [7])]})


@pytest.fixture(scope="module", params=["without a token", "with a token"])
def page(tmp_path_factory, request):
    """A reader with a running cluster, in the folder where the page begins."""
    folder = tmp_path_factory.mktemp("page")
    models = folder / "models"
    write_identity(models, "same", ["INT32"], execute_delay_ms=20)
    package = python_package.install(folder / "package")
    with ExitStack() as running:
        copy = folder / "application"
        home = folder / "home"
        home.mkdir()
        reader = Reader(folder, dashboard=True, PYTHONPATH=f"{package}:{copy}", HOME=str(home))
        running.callback(reader.close)
        enter, run, deploy = reader.commands(SECTION)
        program, _, place = enter.partition(" ")
        assert (program, run.split()[:2], deploy) == ("cd", ["serve", "run"], "serve deploy serve.yaml")
        if request.param == "with a token":
            reader.run(TOKEN)
            deploy = f"{WITH_TOKEN} {deploy}"
            text = (ROOT / PAGE).read_text()
            assert f"`{TOKEN}`" in text and f"`{deploy}`" in text
        reader.run(HEAD)
        # A copy, because its file names the folder of the models.
        copy.mkdir()
        for file in (ROOT / place).iterdir():
            if file.is_file():
                (copy / file.name).write_text(file.read_text().replace("/models", str(models)))
        yield SimpleNamespace(reader=reader, folder=copy, run=run.replace("/models", str(models)), deploy=deploy)


def inference(port):
    """One request: the error, if there is one."""
    connection = HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    try:
        connection.request("POST", "/v2/models/same/infer", BODY)
        answer = connection.getresponse()
        body = answer.read()
        return None if answer.status == 200 and json.loads(body)["outputs"][0]["data"] == [7] else (answer.status, body)
    except (OSError, HTTPException) as error:
        return error
    finally:
        connection.close()


def serve_at_a_port(page):
    """Starts Serve at a port of the test's own, in place of 8000."""
    port = free_port()
    page.reader.run(f"serve start --http-port={port}")
    return port


def replicas(page):
    processes = page.reader.processes()
    return [pid for pid in processes if command_line(pid).startswith("ray::ServeReplica:")]


def test_one_replica_runs_until_the_command_ends(page):
    port = serve_at_a_port(page)
    running = page.reader.start(page.run, page.folder)
    assert eventually(lambda: inference(port) is None, WAIT_S)
    assert len(replicas(page)) == 1
    members = tree(running.pid)
    page.reader.end(running)
    assert members and eventually(lambda: not replicas(page), WAIT_S)
    # Serve ends with it, and may be started again after that.
    assert eventually(lambda: not [pid for pid in page.reader.processes() if command_line(pid).startswith(SERVE)], WAIT_S)


def test_an_application_is_deployed_on_the_running_cluster(page):
    port = serve_at_a_port(page)
    page.reader.run(page.deploy, page.folder)
    assert eventually(lambda: inference(port) is None, WAIT_S)
    assert len(replicas(page)) == 1

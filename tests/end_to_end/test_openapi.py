"""The OpenAPI document, and schemathesis sending what it says may be sent."""

import subprocess
import sys
from pathlib import Path

import pytest

from http_requests import assert_refused, request
from model_files import write_identity

CHECKS = "status_code_conformance,content_type_conformance,response_schema_conformance"
# What cannot be loaded or opened is answered with 500, as the reference does; the document allows what leads there.
MAY_FAIL = ["/v2/repository/models/{model}/load", "/v2/systemsharedmemory/region/{region}/register"]
LIMIT_S = 240


@pytest.fixture
def server(repository, serve):
    write_identity(repository, "same", ["INT32"])
    return serve("--model-control-mode=explicit", "--load-model=same")


def schemathesis(server, *arguments):
    """Runs it against the document that the server gives; its report if it found something."""
    command = Path(sys.executable).with_name("schemathesis")
    url = f"http://{server.url}/v2/openapi.json"
    settings = ["--mode=positive", "--phases=examples,coverage,fuzzing", "--max-examples=10", "--seed=1", "--no-color"]
    found = subprocess.run(
        [command, "run", url, *settings, *arguments], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert found.returncode == 0, found.stdout[-6000:] + found.stderr[-2000:]


def test_the_document_tells_of_the_routes(server):
    answer = request(server, "GET", "/v2/openapi.json")
    assert answer.headers["Content-Type"] == "application/json"
    paths = answer.json["paths"]
    assert answer.json["openapi"] == "3.1.0"
    assert "post" in paths["/v2/models/{model}/infer"] and set(paths["/v2/logging"]) == {"parameters", "get", "post"}
    for path, item in paths.items():
        if "get" in item and "{" not in path:
            assert request(server, "GET", path).status == 200, path
        assert_refused(request(server, "PATCH", path.replace("{version}", "1")), 405)


def test_nothing_that_may_be_sent_is_a_server_error(server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exclude = [argument for path in MAY_FAIL for argument in ("--exclude-path", path)]
    schemathesis(server, "--checks", f"not_a_server_error,{CHECKS}", *exclude)
    include = [argument for path in MAY_FAIL for argument in ("--include-path", path)]
    schemathesis(server, "--checks", CHECKS, *include)
    assert request(server, "GET", "/v2/health/live").status == 200

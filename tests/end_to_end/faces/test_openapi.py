"""The OpenAPI document, and schemathesis sending what it says may be sent."""

import subprocess
import sys
from pathlib import Path

import pytest

from http_requests import assert_refused, request
from model_files import write_identity

CHECKS = "status_code_conformance,content_type_conformance,response_schema_conformance"
INFERENCE = ["/v2/models/{model}/infer", "/v2/models/{model}/generate", "/v2/models/{model}/generate_stream"]
# What cannot be loaded, opened or parsed is answered with 500, as the reference does, and models of a repository with
# 501; the document allows what leads there.
MAY_FAIL = (
    r"^/v2/(repository/models/\{model\}/load|repository/\{repository\}/models/\{model\}/(load|unload)|(system|cuda)sharedmemory/region/\{region\}/register"
    r"|models/.*/(infer|generate|generate_stream))$"
)
ALL_PHASES = "--phases=examples,coverage,fuzzing"
LIMIT_S = 240


@pytest.fixture
def server(repository, serve):
    write_identity(repository, "same", ["INT32"])
    return serve("--model-control-mode=explicit", "--load-model=same")


def schemathesis(server, *arguments):
    """Runs it against the document that the server gives; its report if it found something."""
    command = Path(sys.executable).with_name("schemathesis")
    url = f"http://{server.url}/v2/openapi.json"
    settings = ["--mode=positive", "--max-examples=10", "--seed=1", "--no-color"]
    found = subprocess.run(
        [command, "run", url, *settings, *arguments], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert found.returncode == 0, found.stdout[-6000:] + found.stderr[-2000:]


def test_the_document_lists_the_routes(server):
    answer = request(server, "GET", "/v2/openapi.json")
    assert answer.headers["Content-Type"] == "application/json"
    paths = answer.json["paths"]
    assert answer.json["openapi"] == "3.1.0"
    assert "post" in paths["/v2/models/{model}/infer"] and set(paths["/v2/logging"]) == {"parameters", "get", "post"}
    for path, item in paths.items():
        if "get" in item and "{" not in path:
            assert request(server, "GET", path).status == 200, path
        assert_refused(request(server, "PATCH", path.replace("{version}", "1")), 405)


def test_no_valid_request_causes_a_server_error(server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    checks = "--checks", f"not_a_server_error,{CHECKS}"
    # A model that is unloaded answers 503 from then on.
    unload = "/v2/repository/models/{model}/unload"
    schemathesis(server, ALL_PHASES, *checks, "--exclude-path-regex", MAY_FAIL, "--exclude-path", unload)
    before = executions(server)
    schemathesis(server, ALL_PHASES, "--checks", CHECKS, "--include-path-regex", MAY_FAIL)
    # Some of them reached a model, too.
    assert executions(server) > before
    schemathesis(server, ALL_PHASES, *checks, "--include-path", unload)
    assert request(server, "GET", "/v2/health/live").status == 200


def test_the_examples_of_inference_are_answered(server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    checks = f"not_a_server_error,positive_data_acceptance,{CHECKS}"
    paths = [argument for path in INFERENCE for argument in ("--include-path", path)]
    schemathesis(server, "--phases=examples", "--checks", checks, *paths)
    assert executions(server) >= len(INFERENCE)


def executions(server):
    """How many requests the model has answered well."""
    statistics = request(server, "GET", "/v2/models/same/stats").json["model_stats"]
    return statistics[0]["inference_stats"]["success"]["count"]

"""Vertex AI: the routes and variables by which it runs a container."""

import json
import os
import struct
import subprocess
from http.client import HTTPConnection

import pytest

import nereid_server
from http_requests import tensor
from model_files import write_identity

BINARY = "application/vnd.vertex-ai-triton.binary+json;json-header-size="
PREDICT = "/v1/endpoints/1/deployedModels/2:predict"
ROUTES = {"AIP_PREDICT_ROUTE": PREDICT, "AIP_HEALTH_ROUTE": "/v1/health"}
ON = ("--allow-vertex-ai=true", "--vertex-ai-port=0")


class Container:
    """A server's port for Vertex AI."""

    def __init__(self, server):
        port = server.wait_for_log(r'Started Vertex AI HTTPService at [^\s"]+:(\d+)').group(1)
        self._address = f"127.0.0.1:{port}"

    def request(self, method, path, body=None, **headers):
        """A request of the platform: status, headers and body."""
        connection = HTTPConnection(self._address, timeout=30)
        try:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, named)
            response = connection.getresponse()
            return response.status, response.headers, response.read()
        finally:
            connection.close()

    def predict(self, body, to=None, **headers):
        """A prediction, or what a redirection makes of it: its status and body."""
        if to is not None:
            headers["X_Vertex_Ai_Triton_Redirect"] = to
        status, _, answer = self.request("POST", PREDICT, body, **headers)
        return status, answer


def request_of(*numbers):
    """A request for the numbers."""
    return json.dumps({"inputs": [tensor("INPUT0", "INT32", [len(numbers)], list(numbers))]})


@pytest.fixture
def container(repository, serve):
    """Starts a server with these flags and the routes of Vertex AI."""
    write_identity(repository, "same", ["INT32"])

    def start(*flags, **variables):
        return Container(serve(*ON, *flags, env={**os.environ, **ROUTES, **variables}))

    return start


@pytest.mark.parametrize("numbers", [[7], [1, -2, 3], list(range(1000))])
def test_the_routes_of_the_environment_answer_json_and_binary_tensors(container, numbers):
    container = container()
    assert container.request("GET", "/v1/health")[0] == 200
    status, answer = container.predict(request_of(*numbers))
    assert (status, json.loads(answer)["outputs"][0]["data"]) == (200, numbers)
    raw = struct.pack(f"<{len(numbers)}i", *numbers)
    inputs = [tensor("INPUT0", "INT32", [len(numbers)], binary_data_size=len(raw))]
    head = json.dumps({"inputs": inputs}).encode()
    status, answer = container.predict(head + raw, Content_Type=f"{BINARY}{len(head)}")
    assert (status, json.loads(answer)["outputs"][0]["data"]) == (200, numbers)
    assert container.predict(head, Content_Type=f"{BINARY}{len(head) + 1}")[0] == 400
    assert container.request("GET", "/v2/health/live")[0] == 400


def test_a_header_reaches_other_routes_that_change_nothing(repository, container):
    write_identity(repository, "other", ["INT32"])
    container = container("--vertex-ai-default-model=same", "--model-control-mode=explicit", "--load-model=*")
    for to, status, part in (
        ("v2/models/other/infer", 200, b'"model_name":"other"'),
        ("v2/models/other/stats", 200, b'"inference_count":1'),
        ("v2/repository/index", 200, b"READY"),
        ("metrics", 200, b'nv_inference_request_success{model="other"'),
        ("v2/repository/models/other/unload", 403, b"error"),
        ("v2/systemsharedmemory/unregister", 403, b"error"),
        ("v2/logging", 400, b""),
    ):
        given, answer = container.predict("" if to.endswith("index") else request_of(1), to)
        assert given == status and part in answer, (to, given, answer)
    assert b'"model_name":"same"' in container.predict(request_of(1))[1]


def test_a_key_holds_for_routes_and_for_what_a_header_names(container):
    container = container("--http-restricted-api=inference:k=v")
    for to in (None, "v2/models/same/infer"):
        assert container.predict(request_of(1), to)[0] == 403
        assert container.predict(request_of(1), to, k="v")[0] == 200
    assert container.predict("", "v2/models/same")[0] == 200


def test_the_mode_of_predictions_serves_nothing_else(repository):
    write_identity(repository, "same", ["INT32"])
    variables = {**ROUTES, "AIP_MODE": "PREDICTION", "AIP_HTTP_PORT": "0", "AIP_STORAGE_URI": str(repository)}
    # Flags would name a repository and ports, so the binary is started as Vertex AI starts it.
    command = [nereid_server.binary(), "--metrics-port=0", "--exit-timeout-secs=5"]
    process = subprocess.Popen(
        command,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout
    lines = []
    try:
        for line in process.stdout:
            lines.append(line)
            if "| same " in line:
                break
    finally:
        process.terminate()
        process.communicate(timeout=nereid_server.STOP_LIMIT_S)
    log = "".join(lines)
    assert process.returncode == 0 and "Started Vertex AI HTTPService at 0.0.0.0:" in log, log
    assert "Started HTTPService" not in log and "GRPCInferenceService" not in log, log


@pytest.mark.parametrize(
    "names, flags, variables, words",
    [
        ([], [], ROUTES, "0 models are served"),
        (["a", "b"], [], ROUTES, "2 models are served"),
        (["a"], ["--vertex-ai-default-model=c"], ROUTES, "--vertex-ai-default-model=c"),
        (["a"], [], {"AIP_PREDICT_ROUTE": "/p"}, "AIP_HEALTH_ROUTE"),
        (["a"], [], {"AIP_HEALTH_ROUTE": "/h"}, "AIP_PREDICT_ROUTE"),
        (["a"], [], {"AIP_PREDICT_ROUTE": "/p(", "AIP_HEALTH_ROUTE": "/h"}, "AIP_PREDICT_ROUTE"),
    ],
)
def test_unusable_settings_are_refused_at_start(repository, monkeypatch, names, flags, variables, words):
    for name in names:
        write_identity(repository, name, ["INT32"])
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    server = nereid_server.refused_start(repository, *ON, *flags)
    assert server.exit_code > 0 and words in server.log, server.log

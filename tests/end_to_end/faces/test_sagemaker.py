"""SageMaker: the requests of AWS's own client, as the platform passes them on to a container."""

import json
import os
import socket
import struct
from http.client import HTTPConnection
from urllib.parse import urlsplit

import boto3
import botocore.exceptions
import pytest
from botocore.config import Config

import nereid_server
from http_requests import tensor
from model_files import config, write_identity, write_model

BINARY = "application/vnd.sagemaker-triton.binary+json;json-header-size="
EXPLICIT = "--model-control-mode=explicit"


class Endpoint:
    """A server's port for SageMaker, behind a client of AWS."""

    def __init__(self, server):
        port = server.wait_for_log(r'Started Sagemaker HTTPService at [^\s"]+:(\d+)').group(1)
        self.address = f"127.0.0.1:{port}"
        self._client = boto3.client(
            "sagemaker-runtime",
            region_name="us-east-1",
            endpoint_url=f"http://{self.address}",
            aws_access_key_id="id",
            aws_secret_access_key="secret",
            config=Config(retries={"max_attempts": 0}),
        )
        self._client.meta.events.register("before-send.sagemaker-runtime", self._pass_on)

    @staticmethod
    def _pass_on(request, **_):
        """What the platform does: an endpoint's path becomes that of its container."""
        target = request.headers.get("X-Amzn-SageMaker-Target-Model")
        path = f"/models/{target.decode()}/invoke" if target else "/invocations"
        request.url = urlsplit(request.url)._replace(path=path).geturl()

    def invoke(self, body, content_type="application/json", **more):
        """`InvokeEndpoint`: the content type and the body of its answer."""
        answer = self._client.invoke_endpoint(EndpointName="e", Body=body, ContentType=content_type, **more)
        return answer["ContentType"], answer["Body"].read()

    def status(self, body, **more):
        """The status that the container answers `InvokeEndpoint` with."""
        with pytest.raises(botocore.exceptions.ClientError) as caught:
            self.invoke(body, **more)
        return caught.value.response["ResponseMetadata"]["HTTPStatusCode"]

    def request(self, method, path, body=None, headers=None):
        """A request of the platform itself."""
        connection = HTTPConnection(self.address, timeout=30)
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def load(self, name, url):
        """Loads a model of a multi-model endpoint; its status."""
        return self.request("POST", "/models", json.dumps({"model_name": name, "url": str(url)}))[0]


def request_of(*numbers, **output):
    """A request for the numbers."""
    body = {"inputs": [tensor("INPUT0", "INT32", [len(numbers)], list(numbers))]}
    return json.dumps(body | ({"outputs": [output]} if output else {}))


@pytest.fixture
def endpoint(repository, serve):
    """Starts a server with these variables, and its endpoint."""

    def start(*flags, ready=True, **variables):
        env = {**os.environ, **{f"SAGEMAKER_TRITON_{name}": value for name, value in variables.items()}}
        return Endpoint(serve("--allow-sagemaker=true", "--sagemaker-port=0", *flags, env=env, ready=ready))

    write_identity(repository, "same", ["INT32"])
    return start


@pytest.mark.parametrize("numbers", [[7], [1, -2, 3], list(range(1000))])
def test_an_endpoint_answers_json_and_binary_tensors(endpoint, numbers):
    endpoint = endpoint(DEFAULT_MODEL_NAME="same")
    assert endpoint.request("GET", "/ping") == (200, "")
    content_type, answer = endpoint.invoke(request_of(*numbers))
    assert content_type == "application/json"
    assert json.loads(answer)["outputs"][0]["data"] == numbers

    raw = struct.pack(f"<{len(numbers)}i", *numbers)
    head = json.dumps(
        {
            "inputs": [tensor("INPUT0", "INT32", [len(numbers)], binary_data_size=len(raw))],
            "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}],
        }
    ).encode()
    content_type, answer = endpoint.invoke(head + raw, f"{BINARY}{len(head)}", CustomAttributes="trace-id=1")
    assert content_type.startswith(BINARY)
    assert answer[int(content_type.removeprefix(BINARY)) :] == raw
    assert endpoint.status(head + raw, content_type=f"{BINARY}{len(head + raw) + 1}") == 400


def test_variables_choose_the_ping_and_the_kind_of_inference(repository, endpoint):
    write_model(repository, "broken", config("broken", "nosuch", [("X", "INT32", [1])], [("Y", "INT32", [1])]))
    tolerant = ("--exit-on-error=false", EXPLICIT, "--load-model=same", "--load-model=broken")
    # Ready only when every model is.
    for mode, status in (("live", 200), ("ready", 400)):
        variables = {"PING_MODE": mode, "DEFAULT_MODEL_NAME": "same", "INFERENCE_TYPE": "generate"}
        started = endpoint(*tolerant, ready=False, **variables)
        assert started.request("GET", "/ping")[0] == status, mode
        assert json.loads(started.invoke('{"INPUT0": [4, 5]}')[1])["OUTPUT0"] == [4, 5]


def test_models_of_a_multi_model_endpoint_come_from_their_folders(tmp_path, endpoint):
    endpoint = endpoint(EXPLICIT, "--model-namespacing=true", PING_MODE="live")
    folders = {}
    for name in ("a", "b"):
        folders[name] = tmp_path / name / "model"
        folders[name].mkdir(parents=True)
        write_identity(folders[name], "inner", ["INT32"])
    # Two models that lie in folders of the same name.
    for name, folder in folders.items():
        assert endpoint.load(name, folder) == 200
        assert endpoint.load(name, folder) == 409
    listed = json.loads(endpoint.request("GET", "/models")[1])["models"]
    assert listed == [{"modelName": name, "modelUrl": str(folder)} for name, folder in folders.items()]
    for name in folders:
        answer = json.loads(endpoint.invoke(request_of(3, 4), TargetModel=name)[1])
        assert (answer["model_name"], answer["outputs"][0]["data"]) == (name, [3, 4])
    assert endpoint.request("DELETE", "/models/a") == (200, "")
    assert endpoint.request("GET", "/models/a")[0] == 404
    assert endpoint.status(request_of(1), TargetModel="a") == 404
    assert endpoint.invoke(request_of(1), TargetModel="b")
    assert endpoint.load("c", folders["a"]) == 200
    assert endpoint.load("d", tmp_path / "nowhere") == 400
    assert endpoint.load("d", "/proc/self/cwd") == 400


def test_a_key_and_the_limit_of_requests_hold(endpoint):
    endpoint = endpoint("--http-restricted-api=inference:k=v", "--http-max-body-size=4000", DEFAULT_MODEL_NAME="same")
    assert endpoint.request("POST", "/invocations", request_of(1))[0] == 403
    assert endpoint.request("POST", "/invocations", request_of(1), {"k": "v"})[0] == 200
    assert endpoint.request("POST", "/invocations", " " * 4001, {"k": "v"})[0] == 413
    assert endpoint.request("GET", "/ping")[0] == 200


def test_nothing_is_served_unless_it_is_allowed(repository, serve):
    write_identity(repository, "same", ["INT32"])
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    server = serve(f"--sagemaker-port={port}")
    assert "Sagemaker" not in server.log
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port), 5).close()


@pytest.mark.parametrize(
    "flags, variables, words",
    [
        (["--sagemaker-safe-port-range=1-2", "--metrics-address=0.0.0.0"], {}, "--sagemaker-safe-port-range"),
        ([], {"SAGEMAKER_TRITON_PING_MODE": "maybe"}, "SAGEMAKER_TRITON_PING_MODE"),
        ([], {"SAGEMAKER_TRITON_INFERENCE_TYPE": "chat"}, "SAGEMAKER_TRITON_INFERENCE_TYPE"),
    ],
)
def test_unusable_settings_are_refused_at_start(repository, monkeypatch, flags, variables, words):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    server = nereid_server.refused_start(repository, "--allow-sagemaker=1", "--sagemaker-port=0", *flags)
    assert server.exit_code > 0 and words in server.log, server.log

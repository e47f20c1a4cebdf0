"""The examples' models, served to the clients of the platforms that run containers: Amazon's, Google's and KServe's."""

import json
import os

import pytest

import kserve_package
import nereid_server
from conftest import EXAMPLES
from http_requests import tensor
from test_sagemaker import Endpoint
from test_vertex_ai import ROUTES, Container

DIGITS = [3, 7]


def pixels(digit):
    """An image of a digit, as values from 0 to 1."""
    words = (EXAMPLES / "images" / f"digit_{digit}.pgm").read_text().split()
    return [int(word) / int(words[3]) for word in words[4:]]


def largest(numbers):
    return max(range(len(numbers)), key=numbers.__getitem__)


@pytest.fixture(scope="module")
def server():
    """A server of the examples on the ports of all platforms at once."""
    flags = ["--allow-sagemaker=true", "--sagemaker-port=0", "--allow-vertex-ai=true", "--vertex-ai-port=0"]
    environment = {**os.environ, **ROUTES, "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "digits"}
    flags += ["--vertex-ai-default-model=digits"]
    with nereid_server.running(EXAMPLES / "model_repository", *flags, env=environment) as server:
        yield server


@pytest.mark.parametrize("digit", DIGITS)
def test_amazons_client_reads_a_digit(server, digit):
    body = json.dumps({"inputs": [tensor("image", "FP32", [1, 1, 8, 8], pixels(digit))]})
    _, answer = Endpoint(server).invoke(body)
    assert largest(json.loads(answer)["outputs"][0]["data"]) == digit


@pytest.mark.parametrize("digit", DIGITS)
def test_googles_route_reads_a_digit(server, digit):
    body = json.dumps({"inputs": [tensor("image", "FP32", [1, 1, 8, 8], pixels(digit))]})
    status, answer = Container(server).predict(body)
    assert (status, largest(json.loads(answer)["outputs"][0]["data"])) == (200, digit)


def test_kserves_clients_read_digits(server):
    images = json.dumps([pixels(digit) for digit in DIGITS])
    found = kserve_package.run(server.port, server.grpc_port, images)
    assert found == {"http": DIGITS, "grpc": DIGITS}

"""The examples' models, served to the clients of the platforms that run containers: Amazon's, Google's and KServe's."""

import json
import os

import httpx
import pytest
from test_http_tls import trusting
from test_sagemaker import Endpoint
from test_vertex_ai import PREDICT, ROUTES, Container

import kserve_package
import nereid_server
from certificates import Authority
from http_requests import tensor
from places import EXAMPLES

DIGITS = [3, 7]


def pixels(digit):
    """An image of a digit, as values from 0 to 1."""
    words = (EXAMPLES / "images" / f"digit_{digit}.pgm").read_text().split()
    return [int(word) / int(words[3]) for word in words[4:]]


def largest(numbers):
    return max(range(len(numbers)), key=numbers.__getitem__)


def running(*flags, **how):
    """A server of the examples on the ports of all platforms at once."""
    ports = ["--allow-sagemaker=true", "--sagemaker-port=0", "--allow-vertex-ai=true", "--vertex-ai-port=0"]
    environment = {**os.environ, **ROUTES, "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "digits"}
    flags = [*ports, "--vertex-ai-default-model=digits", *flags]
    return nereid_server.running(EXAMPLES / "model_repository", *flags, env=environment, **how)


@pytest.fixture(scope="module")
def server():
    with running() as server:
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


# The services over HTTP, and where each takes inference.
PLACES = {
    "HTTPService": "/v2/models/digits/infer",
    "Sagemaker HTTPService": "/invocations",
    "Vertex AI HTTPService": PREDICT,
}


def addresses(server):
    """Where each service takes inference."""
    for service, path in PLACES.items():
        yield server.wait_for_log(rf'Started {service} at [^\s"]+:(\d+)').group(1) + path


LIMITS = {
    "the key": (["--http-restricted-api=inference:k=v"], {"k": "w"}, 0, 403),
    "the size of bodies": (["--http-max-body-size=3000"], {}, 3000, 413),
    "the bytes in memory": (["--max-inflight-bytes=3000"], {}, 3000, 413),
    "the size of JSON": (["--http-max-input-size=3000"], {}, 3000, 400),
}


@pytest.mark.parametrize("limit", LIMITS)
def test_keys_and_limits_hold_on_all_ports(limit):
    flags, headers, blanks, refused = LIMITS[limit]
    body = json.dumps({"inputs": [tensor("image", "FP32", [1, 1, 8, 8], pixels(3))]})
    with running(*flags) as server, httpx.Client(timeout=30) as client:
        for address in addresses(server):
            for more, sent, expected in [("", {"k": "v"}, 200), (" " * blanks, headers, refused)]:
                answer = client.post(f"http://127.0.0.1:{address}", content=body + more, headers=sent)
                assert answer.status_code == expected, (address, answer)


def test_tls_and_traces_hold_on_all_ports(tmp_path):
    authority = Authority(tmp_path, "servers")
    identity = authority.sign("server")
    tls = ["--http-use-ssl=true", f"--http-server-cert={identity.certificate}", f"--http-server-key={identity.key}"]
    traces = tmp_path / "traces.json"
    tracing = [f"--trace-config=triton,file={traces}", "--trace-config=rate=1", "--trace-config=level=TIMESTAMPS"]
    body = {"inputs": [tensor("image", "FP32", [1, 1, 8, 8], pixels(3))]}
    with running(*tls, *tracing, ready=False) as server:
        places = list(addresses(server))
        with httpx.Client(verify=trusting(authority), timeout=30) as client:
            for address in places:
                answer = client.post(f"https://127.0.0.1:{address}", json=body)
                assert largest(answer.json()["outputs"][0]["data"]) == 3
        for address in places:
            with pytest.raises(httpx.HTTPError):
                httpx.post(f"http://127.0.0.1:{address}", json=body)
    traced = [event for event in json.loads(traces.read_text()) if event.get("model_name") == "digits"]
    assert len(traced) == len(places)

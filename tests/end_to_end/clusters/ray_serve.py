"""Nereid's models as an application of Ray Serve, with the files of deploy/ray. Not among the default tests: `cargo xtask test clusters`."""

import json
import os
import signal
import time
from collections import Counter
from contextlib import ExitStack
from functools import partial
from http.client import HTTPConnection, HTTPException

import numpy as np
import pytest
import tritonclient.http

from fleets import WORKERS, load
from gates import Gate
from http_requests import LIMIT_S, tensor
from model_files import write_identity, write_model
from ray_application import Application
from waiting import eventually

WAIT_S = 120
BODY = json.dumps({"inputs": [tensor("INPUT0", "INT32", [1], [7])]})
COUNT = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for number in pb_utils.get_input_tensor_by_name(request, "numbers").as_numpy():
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("number", np.array([number], np.int32))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
COUNT_CONFIG = """name: "count" backend: "python" model_transaction_policy { decoupled: true }
input { name: "numbers" data_type: TYPE_INT32 dims: -1 } output { name: "number" data_type: TYPE_INT32 dims: 1 }
"""


@pytest.fixture(scope="module")
def gate():
    with Gate() as gate:
        yield gate


@pytest.fixture(scope="module")
def application(tmp_path_factory, gate):
    folder = tmp_path_factory.mktemp("serve")
    repository = folder / "models"
    write_identity(repository, "same", ["INT32"], execute_delay_ms=5)
    write_identity(repository, "held", ["INT32"], gate=gate.path)
    write_model(repository, "count", COUNT_CONFIG)
    (repository / "count" / "1" / "model.py").write_text(COUNT)
    with ExitStack() as running:
        application = Application(repository, folder)
        running.callback(application.stop)
        yield application


def request(application, method, path, body=None, headers=None):
    """A request to Serve: status, headers and body."""
    connection = HTTPConnection("127.0.0.1", application.port, timeout=LIMIT_S)
    try:
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        return response.status, response.headers, response.read()
    finally:
        connection.close()


def error_of(application):
    """One inference: the error, if there is one."""
    try:
        status, _, body = request(application, "POST", "/v2/models/same/infer", BODY)
        return None if status == 200 and json.loads(body)["outputs"][0]["data"] == [7] else (status, body)
    except (OSError, HTTPException) as error:
        return error


def test_clients_of_nereid_are_served(application):
    client = tritonclient.http.InferenceServerClient(f"127.0.0.1:{application.port}")
    assert client.is_server_ready() and client.is_model_ready("same")
    numbers = np.arange(1000, dtype=np.int32)
    given = tritonclient.http.InferInput("INPUT0", numbers.shape, "INT32")
    given.set_data_from_numpy(numbers)
    for algorithm in (None, "gzip"):
        answer = client.infer("same", [given], request_compression_algorithm=algorithm, response_compression_algorithm=algorithm)
        assert np.array_equal(answer.as_numpy("OUTPUT0"), numbers)


def test_errors_are_those_of_the_server(application):
    status, headers, body = request(application, "POST", "/v2/models/missing/infer", BODY)
    assert (status, headers["content-type"]) == (404, "application/json") and "missing" in json.loads(body)["error"]
    assert request(application, "GET", "/v2/repository/index?x=%2F")[0] == request(application, "DELETE", "/v2")[0] == 405
    assert request(application, "GET", "/nowhere")[0] == 404
    assert request(application, "POST", "/v2/models/same/infer", '{"inputs": []}')[0] == 400


def test_a_stream_arrives_as_it_is_written(application):
    connection = HTTPConnection("127.0.0.1", application.port, timeout=LIMIT_S)
    connection.request("POST", "/v2/models/count/generate_stream", json.dumps({"numbers": [3, 1, 2]}))
    response = connection.getresponse()
    assert response.headers["content-type"].startswith("text/event-stream")
    events = [json.loads(line[6:])["number"] for line in response if line.startswith(b"data: ")]
    assert events == [3, 1, 2]
    connection.close()


def test_deployments_call_models_by_a_handle(application):
    assert application.command("infer", "same", {"INPUT0": [1, 2, 3]}) == {"OUTPUT0": [1, 2, 3]}
    assert application.command("stream", "count", {"numbers": [5, 6]}) == [{"number": [5]}, {"number": [6]}]


def test_a_client_that_leaves_cancels_its_request(application, gate):
    connection = HTTPConnection("127.0.0.1", application.port, timeout=LIMIT_S)
    connection.request("POST", "/v2/models/held/infer", BODY)
    held = gate.entered()
    connection.close()
    held.release()
    assert eventually(lambda: error_of(application) is None)


def test_no_answer_is_lost_while_replicas_are_replaced_and_their_number_changes(application):
    with load(partial(error_of, application)) as errors:
        for replicas in (3, 1):
            application.command("scale", replicas)
            assert eventually(lambda: len(application.replicas()) == replicas, WAIT_S)
    assert errors == []


def test_serve_replaces_a_replica_that_died(application):
    (dead,) = application.replicas()
    os.kill(dead, signal.SIGKILL)
    assert eventually(lambda: len(new := application.replicas()) == 1 and dead not in new, WAIT_S)
    assert eventually(lambda: error_of(application) is None, WAIT_S)


class Counted:
    """Requests that are counted, by their outcomes."""

    def __init__(self, application):
        self.application = application
        self.outcomes: Counter[str] = Counter()

    def __call__(self):
        error = error_of(self.application)
        self.outcomes["right" if error is None else describe(error)] += 1
        if isinstance(error, ConnectionRefusedError):
            # As clients do before they try again, which leaves the processors to what is starting.
            time.sleep(0.2)
        return error

    @property
    def failed(self):
        return self.outcomes.total() - self.outcomes["right"]

    def settled(self, count=300):
        """Whether so many requests in a row succeed."""
        failed, right = self.failed, self.outcomes["right"]
        return eventually(lambda: self.outcomes["right"] > right + count or self.failed > failed, WAIT_S) and self.failed == failed


def describe(error):
    """An error of a client, in a word."""
    return str(error[0]) if isinstance(error, tuple) else type(error).__name__


def test_of_two_replicas_only_requests_of_the_one_that_is_killed_fail(application):
    application.command("scale", 2)
    assert eventually(lambda: len(application.replicas()) == 2, WAIT_S)
    requests = Counted(application)
    with load(requests):
        assert eventually(lambda: requests.outcomes["right"] > 100, WAIT_S)
        dead = application.replicas()[0]
        os.kill(dead, signal.SIGKILL)
        assert eventually(lambda: len(new := application.replicas()) == 2 and dead not in new, WAIT_S)
        assert eventually(requests.settled, WAIT_S)
    print(f"a replica was killed: {requests.outcomes}")
    # Serve does not repeat what a replica may have begun.
    assert requests.failed <= 2 * WORKERS and requests.outcomes.keys() <= {"right", "500"}, requests.outcomes

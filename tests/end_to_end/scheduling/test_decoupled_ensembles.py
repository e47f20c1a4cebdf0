"""Ensembles with a decoupled member: a model in Python, which NVIDIA's own backend runs."""

import json
import queue
from http.client import HTTPConnection

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

import nereid_server
import python_backend
from http_requests import request
from waiting import eventually

LIMIT_S = 30
# Counts up to its input; below 0, to the absolute value, followed by an error.
COUNTS = """
import threading
import numpy
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            count = int(pb_utils.get_input_tensor_by_name(request, "COUNT").as_numpy()[0])
            threading.Thread(target=self.answer, args=(request.get_response_sender(), count)).start()

    def answer(self, sender, count):
        for number in range(abs(count)):
            tensor = pb_utils.Tensor("NUMBER", numpy.array([number], dtype=numpy.int32))
            sender.send(pb_utils.InferenceResponse([tensor]))
        if count < 0:
            sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("cannot go on")))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
DOUBLES = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "IN").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", value * 2)]) for value in inputs]
"""
ENSEMBLE = """
platform: "ensemble"
input { name: "COUNT" data_type: TYPE_INT32 dims: 1 } output { name: "OUT" data_type: TYPE_INT32 dims: 1 }
ensemble_scheduling {
  step { model_name: "counts" model_version: -1
    input_map { key: "COUNT" value: "COUNT" } output_map { key: "NUMBER" value: "number" } }
  step { model_name: "doubles" model_version: -1
    input_map { key: "IN" value: "number" } output_map { key: "OUT" value: "OUT" } } }
"""


def model(reads, writes, extra=""):
    return f"""backend: "python" instance_group {{ count: 1 kind: KIND_CPU }} {extra}
        input {{ name: "{reads}" data_type: TYPE_INT32 dims: 1 }}
        output {{ name: "{writes}" data_type: TYPE_INT32 dims: 1 }}"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    python_backend.prepare()
    repository = tmp_path_factory.mktemp("decoupled")
    decoupled = "model_transaction_policy { decoupled: true }"
    for name, config, source in (
        ("counts", model("COUNT", "NUMBER", decoupled), COUNTS),
        ("doubles", model("IN", "OUT"), DOUBLES),
        ("both", ENSEMBLE, None),
    ):
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(config)
        if source:
            (repository / name / "1" / "model.py").write_text(source)
    with nereid_server.running(repository, *python_backend.FLAGS, env=python_backend.environment()) as server:
        yield server


def counted(count):
    tensor = tritonclient.grpc.InferInput("COUNT", [1], "INT32")
    tensor.set_data_from_numpy(np.array([count], np.int32))
    return [tensor]


def stream(server, counts):
    """What a stream of one request for each count is answered with: numbers by the requests' ids, and the errors."""
    answers: queue.Queue[tuple] = queue.Queue()
    seen: dict[str, list[int]] = {str(count): [] for count in counts}
    errors = []
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for count in counts:
            how = {"request_id": str(count), "enable_empty_final_response": True}
            client.async_stream_infer("both", counted(count), **how)
        ended = 0
        while ended < len(counts):
            result, error = answers.get(timeout=LIMIT_S)
            if error is not None:
                errors.append(error.message())
                ended += 1
                continue
            response = result.get_response()
            ended += response.parameters["triton_final_response"].bool_param
            if result.as_numpy("OUT") is not None:
                seen[response.id].append(result.as_numpy("OUT").item())
        client.stop_stream()
    return seen, errors


@pytest.mark.parametrize("count", [0, 1, 5, 200])
def test_each_response_of_the_member_is_one_of_the_ensemble_over_grpc(server, count):
    assert stream(server, [count]) == ({str(count): [2 * number for number in range(count)]}, [])


def test_requests_on_one_stream_keep_apart(server):
    seen, errors = stream(server, [20, 3, 0, 50])
    assert seen == {str(count): [2 * number for number in range(count)] for count in (20, 3, 0, 50)} and not errors


def test_an_error_of_the_member_ends_the_request(server):
    seen, (error,) = stream(server, [-3])
    # Those before may have been on their way through the next step, which is taken back.
    assert seen["-3"] == [0, 2, 4][: len(seen["-3"])] and "cannot go on" in error
    assert stream(server, [2]) == ({"2": [0, 2]}, [])


def test_a_call_for_one_answer_is_refused_over_grpc(server):
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        with pytest.raises(InferenceServerException, match="decoupled") as refused:
            client.infer("both", counted(1))
        assert refused.value.status() == "StatusCode.UNIMPLEMENTED"
        assert client.get_model_config("both", as_json=True)["config"]["model_transaction_policy"] == {"decoupled": True}


@pytest.mark.parametrize("count", [0, 1, 5])
def test_each_response_of_the_member_is_an_event_of_generate_stream(server, count):
    connection = HTTPConnection("127.0.0.1", server.port, timeout=LIMIT_S)
    connection.request("POST", "/v2/models/both/generate_stream", json.dumps({"COUNT": count}))
    response = connection.getresponse()
    lines = response.read().splitlines()
    connection.close()
    events = [json.loads(line.removeprefix(b"data: ")) for line in lines if line.startswith(b"data: ")]
    assert (response.status, [event["OUT"] for event in events]) == (200, [2 * number for number in range(count)])
    assert all(event["model_name"] == "both" for event in events)


def test_generate_takes_exactly_one_answer(server):
    assert request(server, "POST", "/v2/models/both/generate", '{"COUNT": 1}').json["OUT"] == 0
    for count in (0, 3):
        answer = request(server, "POST", "/v2/models/both/generate", json.dumps({"COUNT": count}))
        assert "generate takes exactly one" in answer.json["error"]


def test_each_response_counts_as_an_execution_of_the_next_step(server):
    def counts():
        statistics = request(server, "GET", "/v2/models/stats").json["model_stats"]
        return {it["name"]: it["inference_stats"]["success"]["count"] for it in statistics}

    def counted():
        before = counts()
        stream(server, [4])
        after = counts()
        return {name: after[name] - before[name] for name in after}

    # Members may still work on a request that was answered with an error before.
    assert eventually(lambda: counted() == {"both": 1, "counts": 1, "doubles": 4}), counted()

"""The generate extension: flat JSON in, flat JSON out, once or as server-sent events."""

import json

import pytest
from onnx import TensorProto, helper

import nereid_server
from http_requests import assert_refused, request
from model_files import OnnxModel, write_identity


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Identity models: one tensor and several, with and without a batch, and one with the usual names."""
    repository = tmp_path_factory.mktemp("generate")
    write_identity(repository, "text", ["BYTES"], max_batch_size=4, dims=(1,))
    write_identity(repository, "several", ["BYTES", "FP32", "BOOL", "INT64"])
    write_identity(repository, "half", ["FP16"])
    OnnxModel(
        "named",
        [helper.make_node("Identity", ["text_input"], ["text_output"])],
        [("text_input", TensorProto.STRING, [1])],
        [("text_output", TensorProto.STRING, [1])],
    ).write(repository)
    with nereid_server.running(repository) as server:
        yield server


def generate(server, model, body, stream=False, version=None, headers=None):
    """Posts one object, given as what to write as JSON or as text."""
    at = f"/versions/{version}" if version else ""
    path = f"/v2/models/{model}{at}/generate" + ("_stream" if stream else "")
    return request(server, "POST", path, body if isinstance(body, str) else json.dumps(body), headers)


def test_text_goes_in_and_comes_out(server):
    answer = generate(server, "named", {"text_input": "zwölf\n十二"})
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.json == {"model_name": "named", "model_version": "1", "text_output": "zwölf\n十二"}


def test_parameters_of_the_answer_are_members_of_the_json(server):
    assert generate(server, "text", {"INPUT0": "x"}).json["param1"] == 42


def test_the_id_and_the_version_are_the_requests(server):
    answer = generate(server, "text", {"id": "r7", "INPUT0": "x"}, version=1)
    assert (answer.json["id"], answer.json["model_version"]) == ("r7", "1")
    assert_refused(generate(server, "text", {"INPUT0": "x"}, version=2), 404)


def test_lists_are_tensors_and_single_values_stand_alone(server):
    given = {"INPUT0": ["a", "b"], "INPUT1": [1.5, 2], "INPUT2": True, "INPUT3": []}
    answer = generate(server, "several", given)
    outputs = {name: value for name, value in answer.json.items() if name.startswith("OUTPUT")}
    assert outputs == {"OUTPUT0": ["a", "b"], "OUTPUT1": [1.5, 2.0], "OUTPUT2": True, "OUTPUT3": []}


def test_a_list_for_a_batch_is_a_batch(server):
    assert generate(server, "text", {"INPUT0": ["a", "b", "c"]}).json["OUTPUT0"] == ["a", "b", "c"]
    assert_refused(generate(server, "text", {"INPUT0": ["a"] * 5}), 400)
    assert_refused(generate(server, "text", {"INPUT0": []}), 400)


def test_inputs_may_be_given_as_parameters(server):
    parameters = {"INPUT0": "x", "temperature": 0.5, "n": 3, "stop": "y", "go": True}
    answer = generate(server, "text", {"parameters": parameters})
    assert answer.json["OUTPUT0"] == "x"


def test_a_stream_is_made_of_events(server):
    answer = generate(server, "named", {"text_input": "x"}, stream=True)
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    event, end = answer.body.decode().split("\n\n")
    assert end == ""
    assert json.loads(event.removeprefix("data: ")) == {"model_name": "named", "model_version": "1", "text_output": "x"}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("", 500),
        ("[]", 500),
        ('{"INPUT0"', 500),
        ({"INPUT0": 3}, 500),
        ({"INPUT0": None}, 500),
        ({"INPUT0": "x", "parameters": 3}, 500),
        ({"INPUT0": "x", "parameters": {"stop": ["y"]}}, 400),
        ({"INPUT0": "x", "stop": {"y": 1}}, 400),
        ({"id": 3, "INPUT0": "x"}, 500),
        ('{"INPUT0": "x", "INPUT0": "y"}', 400),
        ({}, 400),
    ],
)
def test_an_invalid_request_is_refused_before_the_stream_begins(server, stream, body, status):
    answer = generate(server, "text", body, stream)
    assert_refused(answer, status)
    assert answer.headers["Content-Type"] == "application/json"


def test_tensors_without_a_json_form_are_refused(server):
    assert_refused(generate(server, "half", {"INPUT0": 1.5}), 400)


def test_unknown_models_and_wrong_methods(server):
    assert_refused(generate(server, "nobody", {}), 404)
    assert_refused(generate(server, "nobody", {}, stream=True), 404)
    answer = request(server, "GET", "/v2/models/text/generate")
    assert_refused(answer, 405)
    assert answer.headers["Allow"] == "POST"


def test_a_compressed_body_is_refused(server):
    assert_refused(generate(server, "text", {"INPUT0": "x"}, headers={"Content-Encoding": "gzip"}), 400)


def test_generate_and_infer_count_alike(server):
    def successes():
        statistics = request(server, "GET", "/v2/models/named/stats").json["model_stats"][0]
        return statistics["inference_stats"]["success"]["count"]

    before = successes()
    assert generate(server, "named", {"text_input": "x"}).json["text_output"] == "x"
    assert generate(server, "named", {"text_input": "x"}, stream=True).status == 200
    assert successes() == before + 2

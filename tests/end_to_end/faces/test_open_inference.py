"""The open inference protocol's own definition files hold against what the server answers, over HTTP and gRPC."""

import copy
import json

import grpc
import numpy as np
import pytest
from google.protobuf import descriptor_pool
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from jsonschema import ValidationError
from onnx import TensorProto, helper

import nereid_server
from http_requests import request, tensor
from model_files import OnnxModel, write_identity
from open_inference_definitions import Grpc, Rest

REST, GENERATE, GRPC = Rest("open_inference_rest.yaml"), Rest("generate_rest.yaml"), Grpc()
MODEL = "/v2/models/${MODEL_NAME}/versions/${MODEL_VERSION}"
VALUES: dict[str, list] = {
    "BOOL": [True, False, True, True],
    "UINT8": [0, 1, 2, 255],
    "UINT16": [0, 1, 2, 65535],
    "UINT32": [0, 1, 2, 2**32 - 1],
    "UINT64": [0, 1, 2, 2**64 - 1],
    "INT8": [-128, 0, 1, 127],
    "INT16": [-32768, 0, 1, 32767],
    "INT32": [-(2**31), 0, 1, 2**31 - 1],
    "INT64": [-(2**63), 0, 1, 2**63 - 1],
    "FP32": [-1.5, 0.0, 0.25, 3e38],
    "FP64": [-1.5, 0.0, 0.1, 1e300],
    "BYTES": ["", "a", "zwölf", "十二"],
}
CONTENTS = {
    **dict.fromkeys(["UINT8", "UINT16", "UINT32"], "uint_contents"),
    **dict.fromkeys(["INT8", "INT16", "INT32"], "int_contents"),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """An identity model of each type, one of two types, and one that takes text."""
    repository = tmp_path_factory.mktemp("models")
    for datatype in VALUES:
        write_identity(repository, datatype.lower(), [datatype], dims=(-1, -1))
    write_identity(repository, "two", ["INT32", "BYTES"])
    OnnxModel(
        "text",
        [helper.make_node("Identity", ["text_input"], ["text_output"])],
        [("text_input", TensorProto.STRING, [1])],
        [("text_output", TensorProto.STRING, [1])],
    ).write(repository)
    with nereid_server.running(repository) as server:
        yield server


# What is asked of each operation without a body, and the model that answers.
LOOKS = {
    ("GET", "/v2/health/live"): [],
    ("GET", "/v2/health/ready"): [],
    ("GET", "/v2/"): [],
    ("GET", MODEL): [*map(str.lower, VALUES), "two"],
    ("GET", f"{MODEL}/ready"): [*map(str.lower, VALUES), "two"],
}


@pytest.mark.parametrize("operation", LOOKS, ids=" ".join)
def test_answers_to_requests_without_a_body_are_as_defined(server, operation):
    for model in LOOKS[operation] or [""]:
        status, said = REST.ask(server, *operation, MODEL_NAME=model, MODEL_VERSION="1")
        assert status == 200
        assert said is None or said["name"] == (model or "triton")


def test_every_operation_is_tested():
    assert {*LOOKS, ("POST", f"{MODEL}/infer")} == set(REST.operations)
    assert {("POST", f"{MODEL}/generate"), ("POST", f"{MODEL}/generate_stream")} == set(GENERATE.operations)


def infer(server, model, body):
    """An inference that the definition allows."""
    REST.of_request("POST", f"{MODEL}/infer").validate(body)
    return REST.ask(server, "POST", f"{MODEL}/infer", body, MODEL_NAME=model, MODEL_VERSION="1")


@pytest.mark.parametrize("datatype", VALUES)
@pytest.mark.parametrize("rows", [1, 2, 4])
def test_inference_answers_are_as_defined(server, datatype, rows):
    flat = VALUES[datatype]
    columns = len(flat) // rows
    nested = [flat[start : start + columns] for start in range(0, len(flat), columns)]
    for data in (flat, nested):
        body = {"inputs": [tensor("INPUT0", datatype, [rows, columns], data)], "outputs": [{"name": "OUTPUT0"}], "id": "42"}
        status, said = infer(server, datatype.lower(), body)
        assert (status, said["id"], said["model_name"]) == (200, "42", datatype.lower())
        [output] = said["outputs"]
        assert (output["datatype"], output["shape"]) == (datatype, [rows, columns])
        found = np.array(output["data"], np.float32) if datatype == "FP32" else output["data"]
        assert list(found) == (list(np.array(flat, np.float32)) if datatype == "FP32" else flat)


@pytest.mark.parametrize("elements", [0, 1, 3])
def test_answers_of_several_tensors_are_as_defined(server, elements):
    inputs = [tensor("INPUT0", "INT32", [elements], [7] * elements), tensor("INPUT1", "BYTES", [elements], ["x"] * elements)]
    status, said = infer(server, "two", {"inputs": inputs, "parameters": {"own": "value", "number": 1, "flag": True}})
    assert (status, [output["shape"] for output in said["outputs"]]) == (200, [[elements], [elements]])


# What the definition allows, and a model cannot take.
REFUSED = {
    "no inputs": {"inputs": []},
    "an unknown input": {"inputs": [tensor("OTHER", "INT32", [1, 1], [1])]},
    "another type": {"inputs": [tensor("INPUT0", "FP32", [1, 1], [1.5])]},
    "another number of dimensions": {"inputs": [tensor("INPUT0", "INT32", [1], [1])]},
    "an unknown output": {"inputs": [tensor("INPUT0", "INT32", [1, 1], [1])], "outputs": [{"name": "OTHER"}]},
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_are_as_defined(server, case):
    status, said = infer(server, "int32", REFUSED[case])
    assert status == 400 and said["error"]


@pytest.mark.parametrize("elements", [1, 3])
def test_a_wrong_number_of_elements_is_refused_as_by_triton(server, elements):
    body = {"inputs": [tensor("INPUT0", "INT32", [1, 2], [7] * elements)]}
    REST.of_request("POST", f"{MODEL}/infer").validate(body)
    answer = request(server, "POST", "/v2/models/int32/versions/1/infer", json.dumps(body))
    assert answer.status == 500
    REST.of_schema("inference_error_response").validate(answer.json)


@pytest.mark.parametrize("words", ["", "x", "zwölf\n十二"])
def test_generated_text_is_as_defined(server, words):
    body = {"text_input": words}
    for route in ("generate", "generate_stream"):
        path = f"{MODEL}/{route}"
        GENERATE.of_request("POST", path).validate(body)
        status, said = GENERATE.ask(server, "POST", path, body, MODEL_NAME="text", MODEL_VERSION="1")
        [said] = said if isinstance(said, list) else [said]
        assert (status, said["text_output"]) == (200, words)


def without(name):
    return lambda answer: answer.pop(name)


def with_value(name, value):
    return lambda answer: answer.update({name: value})


DAMAGES = {
    ("inference_response", "no model_name"): without("model_name"),
    ("inference_response", "no outputs"): without("outputs"),
    ("inference_response", "a number as id"): with_value("id", 42),
    ("inference_response", "an output without data"): lambda answer: answer["outputs"][0].pop("data"),
    ("inference_response", "text in a shape"): lambda answer: answer["outputs"][0].update(shape=["1"]),
    ("metadata_model_response", "no platform"): without("platform"),
    ("metadata_model_response", "a number as a version"): with_value("versions", [1]),
    ("metadata_model_response", "an input without a type"): lambda answer: answer["inputs"][0].pop("datatype"),
    ("metadata_server_response", "no extensions"): without("extensions"),
}


@pytest.mark.parametrize("schema,damage", DAMAGES)
def test_the_definition_notices_wrong_answers(server, schema, damage):
    at = {"MODEL_NAME": "int32", "MODEL_VERSION": "1"}
    answers = {
        "inference_response": lambda: infer(server, "int32", {"inputs": [tensor("INPUT0", "INT32", [1, 1], [1])]}),
        "metadata_model_response": lambda: REST.ask(server, "GET", MODEL, **at),
        "metadata_server_response": lambda: REST.ask(server, "GET", "/v2/"),
    }
    _, answer = answers[schema]()
    damaged = copy.deepcopy(answer)
    DAMAGES[schema, damage](damaged)
    REST.of_schema(schema).validate(answer)
    with pytest.raises(ValidationError):
        REST.of_schema(schema).validate(damaged)


@pytest.fixture
def channel(server):
    with grpc.insecure_channel(server.grpc_url) as channel:
        yield channel


@pytest.fixture(scope="module")
def served(server):
    """The protocol that the server says it speaks."""
    with grpc.insecure_channel(server.grpc_url) as channel:
        pool = descriptor_pool.DescriptorPool(ProtoReflectionDescriptorDatabase(channel))
        yield pool.FindServiceByName("inference.GRPCInferenceService"), pool


def described(field):
    """All that counts on the wire and in generated code."""
    of = field.message_type.full_name if field.message_type else None
    return field.number, field.type, field.is_repeated, of, field.containing_oneof and field.containing_oneof.name


def test_every_call_of_the_definition_is_served(served):
    service, _ = served
    for method in GRPC.service.methods:
        ours = service.methods_by_name[method.name]
        for kind in ("input_type", "output_type"):
            assert getattr(ours, kind).full_name == getattr(method, kind).full_name
        assert (ours.client_streaming, ours.server_streaming) == (False, False)


@pytest.mark.parametrize("name", GRPC.messages)
def test_every_message_is_as_defined(served, name):
    _, pool = served
    ours = pool.FindMessageTypeByName(name)
    for field in GRPC.messages[name].fields:
        assert described(ours.fields_by_name[field.name]) == described(field), field.full_name


def test_looks_over_grpc_are_as_defined(channel):
    assert GRPC.call(channel, "ServerLive").live
    assert GRPC.call(channel, "ServerReady").ready
    server = GRPC.call(channel, "ServerMetadata")
    assert server.name == "triton" and server.version and server.extensions
    for datatype in VALUES:
        which = {"name": datatype.lower(), "version": "1"}
        assert GRPC.call(channel, "ModelReady", **which).ready
        model = GRPC.call(channel, "ModelMetadata", **which)
        assert (model.name, list(model.versions), model.platform) == (datatype.lower(), ["1"], "identity")
        for [found], name in [(model.inputs, "INPUT0"), (model.outputs, "OUTPUT0")]:
            assert (found.name, found.datatype, list(found.shape)) == (name, datatype, [-1, -1])
    assert not GRPC.call(channel, "ModelReady", name="none").ready
    assert GRPC.refused(channel, "ModelMetadata", name="none") == grpc.StatusCode.NOT_FOUND


def raw(datatype, values):
    """Elements in their binary form."""
    if datatype == "BYTES":
        return b"".join(len(value).to_bytes(4, "little") + value for value in values)
    kind = {"BOOL": "bool", "FP32": "float32", "FP64": "float64"}.get(datatype, datatype.lower())
    return np.array(values, kind).tobytes()


@pytest.mark.parametrize("binary", [False, True], ids=["typed", "raw"])
@pytest.mark.parametrize("datatype", VALUES)
def test_inference_over_grpc_is_as_defined(channel, datatype, binary):
    values = [value.encode() if datatype == "BYTES" else value for value in VALUES[datatype]]
    given = {"name": "INPUT0", "datatype": datatype, "shape": [2, 2]}
    fields = {"model_name": datatype.lower(), "model_version": "1", "id": "42", "outputs": [{"name": "OUTPUT0"}]}
    if binary:
        fields["raw_input_contents"] = [raw(datatype, values)]
    else:
        given["contents"] = {CONTENTS.get(datatype, f"{datatype.lower()}_contents"): values}
    answer = GRPC.call(channel, "ModelInfer", inputs=[given], **fields)
    assert (answer.model_name, answer.model_version, answer.id) == (datatype.lower(), "1", "42")
    [output] = answer.outputs
    assert (output.name, output.datatype, list(output.shape)) == ("OUTPUT0", datatype, [2, 2])
    assert list(answer.raw_output_contents) == [raw(datatype, values)]


@pytest.mark.parametrize("kind,value", [("bool", True), ("int64", -7), ("string", "x"), ("double", 0.5), ("uint64", 2**63)])
def test_parameters_are_of_the_kinds_that_triton_takes(channel, kind, value):
    given = {"name": "INPUT0", "datatype": "INT32", "shape": [1, 1], "contents": {"int_contents": [1]}}
    fields = {"model_name": "int32", "inputs": [given], "parameters": {"own": {f"{kind}_param": value}}}
    if kind == "uint64":
        assert GRPC.refused(channel, "ModelInfer", **fields) == grpc.StatusCode.INVALID_ARGUMENT
    else:
        assert list(GRPC.call(channel, "ModelInfer", **fields).raw_output_contents) == [raw("INT32", [1])]

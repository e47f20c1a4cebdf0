"""Lists of any kind that a client makes very long: the work they cost grows with their length, not with its square."""

import http.client
import json
import os
from pathlib import Path

import grpc
import pytest
from tritonclient.grpc import service_pb2

import nereid_server
from grpc_requests import stub
from model_files import write_identity

LIMIT_S = 120
SHORT, LONG = 10_000, 100_000
INPUT = {"name": "INPUT0", "datatype": "INT32", "shape": [1], "data": [1]}
OUTPUT = {"name": "OUTPUT0"}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    repository = tmp_path_factory.mktemp("models")
    write_identity(repository, "same", ["INT32"])
    with nereid_server.running(repository) as server:
        yield server


def parameters(count):
    """As many parameters, of every type, half of them mentioned twice."""
    return {f"p{number % (count * 2 // 3)}": [number, f"v{number}", number % 2 == 0][number % 3] for number in range(count)}


def grpc_parameters(message, count):
    for name, value in parameters(count).items():
        kind = {int: "int64_param", str: "string_param", bool: "bool_param"}[type(value)]
        setattr(message.parameters[name], kind, value)


def post(server, path, text):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=LIMIT_S)
    try:
        connection.request("POST", f"/v2/models/same/{path}", text)
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()


def members(pairs):
    """A JSON object with duplicate names left in it."""
    return "{" + ",".join(f"{json.dumps(name)}:{json.dumps(value)}" for name, value in pairs) + "}"


def infer(**fields):
    return json.dumps({"inputs": [INPUT], **fields})


def pairs(count):
    return [(f"p{number % (count * 2 // 3)}", number) for number in range(count)]


# What is posted where, by the number of elements.
OVER_HTTP = {
    "parameters": ("infer", lambda count: infer(parameters=parameters(count))),
    "parameters, some twice": ("infer", lambda count: f'{{"inputs":[{json.dumps(INPUT)}],"parameters":{members(pairs(count))}}}'),
    "the same parameter": ("infer", lambda count: f'{{"inputs":[{json.dumps(INPUT)}],"parameters":{members([("p", 1)] * count)}}}'),
    "unknown members": ("infer", lambda count: members([("inputs", [INPUT]), *pairs(count)])),
    "inputs of other names": ("infer", lambda count: json.dumps({"inputs": [{**INPUT, "name": f"I{n}"} for n in range(count)]})),
    "the same input": ("infer", lambda count: json.dumps({"inputs": [INPUT] * count})),
    "the same output": ("infer", lambda count: infer(outputs=[OUTPUT] * count)),
    "outputs of other names": ("infer", lambda count: infer(outputs=[OUTPUT, *({"name": f"O{n}"} for n in range(count))])),
    "an input's parameters": ("infer", lambda count: json.dumps({"inputs": [{**INPUT, "parameters": parameters(count)}]})),
    "dimensions": ("infer", lambda count: json.dumps({"inputs": [{**INPUT, "shape": [1] * count}]})),
    "generate's parameters": ("generate", lambda count: json.dumps({"INPUT0": [1], **parameters(count)})),
    "a generated object's members": ("generate", lambda count: json.dumps({"INPUT0": [1], "p": parameters(count)})),
}


def over_grpc(kind, count):
    message = service_pb2.ModelInferRequest(model_name="same")
    inputs, outputs = (count if kind == of else 1 for of in ("inputs", "outputs"))
    for number in range(inputs):
        name = f"INPUT{number}"
        message.inputs.add(name=name, datatype="INT32", shape=[1])
        message.raw_input_contents.append(bytes(4))
    for _ in range(outputs):
        message.outputs.add(name="OUTPUT0")
    if kind == "parameters":
        grpc_parameters(message, count)
    if kind == "an input's parameters":
        grpc_parameters(message.inputs[0], count)
    if kind == "an output's parameters":
        grpc_parameters(message.outputs[0], count)
    if kind == "contents":
        message.raw_input_contents.extend([b""] * count)
    return message


def processor_seconds(server):
    """What the server has used of the processors so far."""
    fields = Path(f"/proc/{server.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def assert_linear(server, send):
    """Ten times the length takes about ten times the work; with the square of it, it would take a hundred times."""
    used = []
    for count in (SHORT, LONG):
        before = processor_seconds(server)
        send(count)
        used.append(processor_seconds(server) - before)
    assert used[1] < 30 * max(used[0], 0.1), used


@pytest.mark.parametrize("kind", OVER_HTTP)
def test_long_lists_over_http_take_linear_work(server, kind):
    path, body = OVER_HTTP[kind]
    assert_linear(server, lambda count: post(server, path, body(count)))


@pytest.mark.parametrize("kind", ["parameters", "inputs", "outputs", "contents", "an input's parameters", "an output's parameters"])
@pytest.mark.parametrize("call", ["ModelInfer", "ModelStreamInfer"])
def test_long_lists_over_grpc_take_linear_work(server, kind, call):
    def send(count):
        message = over_grpc(kind, count)
        try:
            if call == "ModelInfer":
                service.ModelInfer(message, timeout=LIMIT_S)
            else:
                list(service.ModelStreamInfer(iter([message]), timeout=LIMIT_S))
        except grpc.RpcError as error:
            # Some of it is wrong otherwise, and refused as such.
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT, error

    with grpc.insecure_channel(server.grpc_url) as channel:
        service = stub(channel)
        assert_linear(server, send)

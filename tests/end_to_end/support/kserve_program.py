"""Drives a server with KServe's own clients, and prints what they found as one line of JSON. The arguments are the ports of
HTTP and gRPC, and perhaps images for the examples' model `digits`, as JSON; without any, it prints the messages of KServe's gRPC
protocol.

Runs in the environment that kserve_package.py makes, which has other packages than the tests.
"""

import asyncio
import json
import sys
import urllib.request

import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig
from kserve.protocol.grpc import grpc_predict_v2_pb2 as messages
from kserve.protocol.infer_type import RequestedOutput
from kserve.protocol.rest import v2_datamodels as models

TENSORS = {
    "BOOL": np.array([[True, False, True]]),
    "INT8": np.array([[-128, 0, 127]], np.int8),
    "INT64": np.array([[-(2**62), 0, 7]], np.int64),
    "UINT64": np.array([[2**63, 0, 7]], np.uint64),
    "FP16": np.array([[0.5, -2.0, 65504.0]], np.float16),
    "FP32": np.array([[0.1, -1.5, 3e38]], np.float32),
    "FP64": np.array([[0.1, -1.5, 1e300]], np.float64),
    "BYTES": np.array([[b"a", b"", "ä€".encode()]], np.object_),
}


def request(datatype, values, binary):
    """A request for one tensor, in binary both ways or not at all."""
    given = InferInput("INPUT0", list(values.shape), datatype)
    given.set_data_from_numpy(values, binary_data=binary)
    outputs = [RequestedOutput("OUTPUT0", {"binary_data": True})] if binary else None
    return InferRequest(datatype.lower(), [given], request_id="7", request_outputs=outputs)


def agrees(values, response):
    """Whether the answer is the tensor of the request."""
    (output,) = response.outputs
    found = output.as_numpy()
    if values.dtype == np.object_:
        as_bytes = [item.encode() if isinstance(item, str) else item for item in found.flatten()]
        return as_bytes == values.flatten().tolist()
    return response.id == "7" and found.dtype == values.dtype and np.array_equal(found, values)


async def over_http(port):
    """What the client over HTTP finds, for JSON and binary tensors."""
    found, base = {}, f"http://127.0.0.1:{port}"
    async with InferenceRESTClient(RESTConfig(protocol="v2", retries=0)) as client:
        # A server of Triton's protocol has no body for health checks unless the client names JSON.
        named = {"Accept": "application/json"}
        found["live"] = await client.is_server_live(base, headers=named)
        found["ready"] = await client.is_server_ready(base, headers=named)
        found["model_ready"] = await client.is_model_ready(base, "fp32")
        found["unknown_ready"] = await client.is_model_ready(base, "nosuch")
        for datatype, values in TENSORS.items():
            # FP16 has no form in JSON.
            for binary in {True, datatype == "FP16"}:
                response = await client.infer(base, request(datatype, values, binary), model_name=datatype.lower())
                found[f"{datatype} {'binary' if binary else 'JSON'}"] = agrees(values, response)
    return found


async def over_grpc(port):
    """What the client over gRPC finds."""
    found = {}
    async with InferenceGRPCClient(f"127.0.0.1:{port}") as client:
        found["live"] = await client.is_server_live()
        found["ready"] = await client.is_server_ready()
        found["model_ready"] = await client.is_model_ready("fp32")
        for datatype, values in TENSORS.items():
            response = await client.infer(request(datatype, values, True))
            found[f"{datatype} raw"] = agrees(values, response)
    return found


def validated(port):
    """Which answers KServe's own definitions of the REST protocol take."""

    def ask(path, body=None):
        data = json.dumps(body).encode() if body else None
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", data) as answer:
            return answer.read()

    body = {"id": "7", "inputs": [{"name": "INPUT0", "datatype": "INT64", "shape": [1, 2], "data": [1, 2]}]}
    answers = {
        models.ServerMetadataResponse: ask("/v2"),
        models.ModelMetadataResponse: ask("/v2/models/int64"),
        models.InferenceResponse: ask("/v2/models/int64/infer", body),
    }
    return {model.__name__: json.loads(model.model_validate_json(text).model_dump_json()) for model, text in answers.items()}


def protocol():
    """The messages of KServe's gRPC protocol: their fields, numbers, types and labels; and its calls."""

    def fields(message):
        for field in message.fields:
            of = field.message_type.full_name if field.message_type else None
            yield field.name, [field.number, field.type, field.is_repeated, of]

    def walk(found):
        for message in found:
            yield message.full_name, dict(fields(message))
            yield from walk(message.nested_types)

    (service,) = messages.DESCRIPTOR.services_by_name.values()
    calls = {method.name: [method.input_type.full_name, method.output_type.full_name] for method in service.methods}
    return {"messages": dict(walk(messages.DESCRIPTOR.message_types_by_name.values())), "calls": calls}


async def digits(http_port, grpc_port, images):
    """What the examples' model `digits` reads in images of 8x8 pixels, for both clients."""
    given = InferInput("image", [len(images), 1, 8, 8], "FP32")
    given.set_data_from_numpy(np.array(images, np.float32).reshape(-1, 1, 8, 8), binary_data=True)
    asked, base = InferRequest("digits", [given]), f"http://127.0.0.1:{http_port}"
    async with InferenceRESTClient(RESTConfig(protocol="v2", retries=0)) as client:
        over_http = await client.infer(base, asked, model_name="digits")
    async with InferenceGRPCClient(f"127.0.0.1:{grpc_port}") as client:
        over_grpc = await client.infer(asked)
    both = {"http": over_http, "grpc": over_grpc}
    return {name: response.outputs[0].as_numpy().argmax(axis=1).tolist() for name, response in both.items()}


if len(sys.argv) == 1:
    print(json.dumps(protocol()))
elif len(sys.argv) == 4:
    print(json.dumps(asyncio.run(digits(int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])))))
else:
    HTTP, GRPC = map(int, sys.argv[1:])
    told = {"http": asyncio.run(over_http(HTTP)), "grpc": asyncio.run(over_grpc(GRPC)), "rest": validated(HTTP)}
    print(json.dumps(told))

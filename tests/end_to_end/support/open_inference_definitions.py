"""The open inference protocol's own definition files: what each operation of the REST protocol answers, and the messages of the
gRPC protocol, compiled from their source.
"""

import json
import re
import tempfile
from pathlib import Path
from urllib.parse import quote

import grpc
import grpc_tools
import yaml
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, unknown_fields
from grpc_tools import protoc
from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

from http_requests import request

FOLDER = Path(__file__).parent / "open_inference"


class Rest:
    """A definition of operations over HTTP, in the form of OpenAPI."""

    def __init__(self, file):
        self.document = yaml.safe_load((FOLDER / file).read_text())
        resource = Resource(contents=self.document, specification=DRAFT202012)
        self._registry = Registry().with_resource("urn:definition", resource)
        self.operations = {
            (method.upper(), path): operation
            for path, item in self.document["paths"].items()
            for method, operation in item.items()
            if method != "parameters"
        }

    def validator(self, pointer):
        """What validates by a schema of the document, such as `/components/schemas/parameters`."""
        return Draft202012Validator({"$ref": f"urn:definition#{pointer}"}, registry=self._registry)

    def of_schema(self, name):
        return self.validator(f"/components/schemas/{name}")

    def of_request(self, method, path):
        """What validates the body of a request."""
        return self.validator(_pointer("paths", path, method.lower(), "requestBody", "content", "application/json", "schema"))

    def ask(self, server, method, path, body=None, **parameters):
        """A request, whose answer is as the definition says. Returns its status and what its body says, event by event if it is
        a stream.
        """
        filled = re.sub(r"\$\{(\w+)\}", lambda name: parameters[name[1]], path)
        headers = {"Content-Type": "application/json"} if body is not None else {}
        answer = request(server, method, filled, json.dumps(body) if body is not None else None, headers)
        responses = self.operations[method, path]["responses"]
        assert str(answer.status) in responses, (answer, list(responses))
        if "content" not in responses[str(answer.status)]:
            return answer.status, None
        [content_type] = responses[str(answer.status)]["content"]
        assert answer.headers["Content-Type"].partition(";")[0] == content_type
        where = _pointer("paths", path, method.lower(), "responses", str(answer.status), "content", content_type, "schema")
        if content_type == "text/event-stream":
            events = answer.body.decode().split("\n\n")
            said = [json.loads(event.removeprefix("data: ")) for event in events if event]
            assert said
        else:
            said = answer.json
        for one in said if isinstance(said, list) else [said]:
            self.validator(where).validate(one)
        return answer.status, said


def _pointer(*names):
    """A JSON pointer in the fragment of an address."""
    return "".join("/" + quote(name.replace("~", "~0").replace("/", "~1"), safe="~") for name in names)


class Grpc:
    """The definition of the gRPC protocol, in a pool of descriptors of its own."""

    def __init__(self):
        with tempfile.TemporaryDirectory() as folder:
            compiled = Path(folder) / "descriptors"
            source = FOLDER / "open_inference_grpc.proto"
            include = Path(grpc_tools.__file__).parent / "_proto"
            arguments = [f"-I{FOLDER}", f"-I{include}", f"--descriptor_set_out={compiled}", str(source)]
            assert protoc.main(["protoc", *arguments]) == 0
            files = descriptor_pb2.FileDescriptorSet.FromString(compiled.read_bytes())
        self.pool = descriptor_pool.DescriptorPool()
        for file in files.file:
            self.pool.Add(file)
        self.service = self.pool.FindServiceByName("inference.GRPCInferenceService")
        [file] = files.file
        self.messages = dict(_messages(self.pool.FindFileByName(file.name).message_types_by_name.values()))

    def call(self, channel, call, /, **fields):
        """Calls a method with a message of these fields."""
        method = self.service.methods_by_name[call]
        asked, answered = (message_factory.GetMessageClass(it) for it in (method.input_type, method.output_type))
        path = f"/{self.service.full_name}/{call}"
        stub = channel.unary_unary(path, request_serializer=asked.SerializeToString, response_deserializer=answered.FromString)
        answer = stub(asked(**fields), timeout=30)
        assert not list(_unknown(answer)), answer
        return answer

    def refused(self, channel, call, /, **fields):
        """The status with which a call fails."""
        try:
            answer = self.call(channel, call, **fields)
        except grpc.RpcError as error:
            return error.code()
        raise AssertionError(answer)


def _messages(found):
    """Messages and those within them, by full name."""
    for message in found:
        yield message.full_name, message
        yield from _messages(message.nested_types)


def _unknown(message):
    """Fields of a message, and of those within it, that its definition lacks."""
    yield from unknown_fields.UnknownFieldSet(message)
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for one in value if field.is_repeated else [value]:
            yield from _unknown(one)

"""Plain HTTP requests, for what a well-behaved client never sends."""

import json
from dataclasses import dataclass
from email.message import Message
from http.client import HTTPConnection

LIMIT_S = 30


@dataclass
class Answer:
    """An HTTP answer, read to its end."""

    status: int
    headers: Message
    body: bytes

    @property
    def json(self):
        """The body as JSON."""
        return json.loads(self.body)


def request(server, method, path, body=None, headers=None):
    """One request over a connection of its own."""
    connection = HTTPConnection("127.0.0.1", server.port, timeout=LIMIT_S)
    try:
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        return Answer(response.status, response.headers, response.read())
    finally:
        connection.close()


def infer(server, model, body, headers=None, version=None):
    """Posts an inference request. `body` is bytes, text, or what to write as JSON."""
    if not isinstance(body, (bytes, str)):
        body = json.dumps(body)
    at = f"/versions/{version}" if version is not None else ""
    return request(server, "POST", f"/v2/models/{model}{at}/infer", body, headers)


def infer_binary(server, model, header, *payloads, header_length=None):
    """Posts an inference request whose tensors follow its JSON. `header_length` overrides the true length."""
    text = json.dumps(header).encode()
    length = len(text) if header_length is None else header_length
    return infer(server, model, text + b"".join(payloads), {"Inference-Header-Content-Length": str(length)})


def tensor(name, datatype, shape, data=None, **parameters):
    """An input of a request."""
    result = {"name": name, "datatype": datatype, "shape": shape}
    if data is not None:
        result["data"] = data
    if parameters:
        result["parameters"] = parameters
    return result


def engine(server, model):
    """What the server says of the engine of a model's first version."""
    models = request(server, "GET", "/console/api/models").json["models"]
    return next(row["engine"] for row in models if row["name"] == model)


def assert_refused(answer, *statuses):
    """An error answer: one of the statuses, and one JSON field that says why."""
    assert answer.status in statuses, answer
    assert set(answer.json) == {"error"} and answer.json["error"], answer.body

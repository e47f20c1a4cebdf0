"""Every face of a server, and the requests of the table of rights to it."""

import json
import os
import ssl
from http.client import HTTPConnection
from types import SimpleNamespace

import grpc
import httpx
import numpy as np
from tritonclient.grpc import service_pb2 as messages

from access_policies import OPENAI_PREFIX, RIGHTS
from http_requests import tensor

LIMIT_S = 30
BODY = json.dumps({"inputs": [tensor("INPUT0", "INT32", [1], [7])]})
PREDICT = "/v1/endpoints/1/deployedModels/2:predict"
CLOUDS = ("--allow-sagemaker=true", "--sagemaker-port=0", "--allow-vertex-ai=true", "--vertex-ai-port=0")
# With a model named `own`.
ALL_FACES = (*CLOUDS, "--vertex-ai-default-model=own")
EXPLICIT = ("--model-control-mode=explicit", "--load-model=*", f"--openai-prefix={OPENAI_PREFIX}")
REFUSED = {401, 403, grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}
# Paths to the model `b-secret`, or that could be taken for one.
TRICKS = (
    "/v2/models//b-secret/infer",
    "/v2//models/b-secret/infer",
    "//v2/models/b-secret/infer",
    "/v2/models/b-secret/infer/",
    "/v2/models/b-secret//infer",
    "/v2/models/b-secret/./infer",
    "/v2/./models/b-secret/infer",
    "/v2/models/a-1/../b-secret/infer",
    "/v2/models/a-1/%2e%2e/b-secret/infer",
    "/v2/models/a-1%2f..%2fb-secret/infer",
    "/v2/models/a-%2F..%2Fb-secret/infer",
    "/v2/models/%62-secret/infer",
    "/v2/models/b%2Dsecret/infer",
    "/v2/models/b%252Dsecret/infer",
    "/v2/models/B-SECRET/infer",
    "/V2/models/b-secret/infer",
    "/v2/models/b-secret/INFER",
    "/v2/models/b-secret%00/infer",
    "/v2/models/a-1%00b-secret/infer",
    "/v2/models/b-secret;a-1/infer",
    "/v2/models/b-secret%20/infer",
    "/v2/models/b-secret/infer?model=a-1",
    "/v2/models/b-secret/infer#a-1",
    "/v2/models/b-secret/versions/1/infer",
    "/v2/models/b-secret/generate",
    "/v2/models/b-secret/generate_stream",
    "\\v2\\models\\b-secret\\infer",
    "http://localhost/v2/models/b-secret/infer",
    "http://a-1/v2/models/b-secret/infer",
    "HTTP://localhost//v2/models/b-secret/infer",
)


def faces_environment():
    """The environment of a server with all faces."""
    vertex_ai = {"AIP_PREDICT_ROUTE": PREDICT, "AIP_HEALTH_ROUTE": "/v1/health", "VERTEX_AI_DEFAULT_MODEL": "own"}
    return {**os.environ, "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "own", **vertex_ai}


class Http2Connection:
    """What `Faces` needs of an HTTPConnection, over HTTP/2. It stays open between requests."""

    is_kept = True

    def __init__(self, address, verify: ssl.SSLContext | bool = False, socket=None):
        """`socket` is the path of a Unix socket, where `address` is only a name."""
        transport = httpx.HTTPTransport(verify=verify, http1=False, http2=True, uds=socket and str(socket))
        self._client = httpx.Client(base_url=address, transport=transport, timeout=LIMIT_S)

    def request(self, method, path, body, headers):
        self._answer = self._client.request(method, path, content=body, headers=headers)
        assert self._answer.http_version == "HTTP/2"

    def getresponse(self):
        return SimpleNamespace(status=self._answer.status_code, read=self._answer.read)

    def close(self):
        self._client.close()


class Faces:
    """Every port of a server, and the requests of the table to it."""

    def __init__(self, server, connect=None, channel=None):
        """`connect` makes a connection to a face, `channel` one of gRPC; without them, they are plain ones to the ports."""
        self.ports: dict = {}
        # By face, those that stay open.
        self._kept: dict = {}
        self._connect = connect or (lambda face: HTTPConnection("127.0.0.1", self.ports[face], timeout=LIMIT_S))
        self._channel = channel or grpc.insecure_channel(server.grpc_url)
        if connect:
            return
        self.ports |= {"HTTP": server.port, "OpenAI": server.port, "metrics": server.metrics_port}
        for face, name in (("SageMaker", "Sagemaker HTTPService"), ("Vertex AI", "Vertex AI HTTPService")):
            self.ports[face] = int(server.wait_for_log(rf'Started {name} at [^\s"]+:(\d+)').group(1))

    def close(self):
        for connection in self._kept.values():
            connection.close()
        self._channel.close()

    def ask(self, row, headers, model="own"):
        """Sends a row's request; its status, as HTTP or gRPC has it, and the text of the answer."""
        if row.face == "gRPC":
            return self.call(row.request, headers, model)
        method, path, more = self.http_request(row, model)
        connection = self._kept.get(row.face) or self._connect(row.face)
        is_kept = getattr(connection, "is_kept", False)
        if is_kept:
            self._kept[row.face] = connection
        try:
            connection.request(method, path, self.body(row, model) if method == "POST" else None, headers | more)
            answer = connection.getresponse()
            return answer.status, answer.read().decode(errors="replace")
        finally:
            if not is_kept:
                connection.close()

    @staticmethod
    def http_request(row, model):
        """The method, path and headers of a row."""
        method, path = row.request.split(" ", 1)
        more = {}
        path, _, target = path.partition(", redirected to ")
        path = {"(health route)": "/v1/health", "(predict route)": PREDICT, "*": "/elsewhere"}.get(path, path)
        names = {"model": model, "version": 1, "region": "r", "repository": "models", "response": "resp_0", "adapter": f"{model}:x"}
        path, target = (text.format(**names) if "{" in text else text for text in (path, target))
        if target:
            more["X-Vertex-Ai-Triton-Redirect"] = target
        return method, path, more

    @staticmethod
    def body(row, model):
        if row.face == "OpenAI":
            return json.dumps({"model": model, "prompt": "a", "messages": [], "input": "a", "query": "a", "documents": ["a"]})
        if row.right == "infer":
            return json.dumps({"INPUT0": [7]}) if "generate" in row.request else BODY
        if row.face == "SageMaker":
            return json.dumps({"model_name": model, "url": "/nowhere"})
        return "{}"

    @staticmethod
    def message(path, model):
        """The message of a call of any method, which names the model where it has a place for it."""
        name = path.rsplit("/", 1)[1]
        types = {"ModelStreamInfer": "ModelInfer", "ServerReflectionInfo": None, "Check": None, "Watch": None}
        kind = getattr(messages, f"{types.get(name, name)}Request", None)
        if kind is None:
            return b""
        message = kind()
        for member in ("model_name", "name"):
            if member in kind.DESCRIPTOR.fields_by_name:
                setattr(message, member, model)
        if kind is messages.ModelInferRequest:
            message.inputs.add(name="INPUT0", datatype="INT32", shape=[1])
            message.raw_input_contents.append(np.array([7], np.int32).tobytes())
        return message.SerializeToString()

    def call(self, path, headers, model):
        """A call of any method."""
        name, sent = path.rsplit("/", 1)[1], self.message(path, model)
        metadata = [(key.lower(), value) for key, value in headers.items()]
        try:
            if name in ("ModelStreamInfer", "ServerReflectionInfo"):
                call = self._channel.stream_stream(f"/{path}")(iter([sent]), metadata=metadata, timeout=LIMIT_S)
                answer = next(iter(call), b"")
                if name == "ModelStreamInfer":
                    error = messages.ModelStreamInferResponse.FromString(answer).error_message
                    if "this needs " in error:
                        return grpc.StatusCode.PERMISSION_DENIED, error
            elif name == "Watch":
                call = self._channel.unary_stream(f"/{path}")(sent, metadata=metadata, timeout=LIMIT_S)
                answer = next(iter(call))
                call.cancel()
            else:
                answer = self._channel.unary_unary(f"/{path}")(sent, metadata=metadata, timeout=LIMIT_S)
            return grpc.StatusCode.OK, answer.decode(errors="replace")
        except grpc.RpcError as error:
            return error.code(), error.details()


def is_granted(row, right, is_everywhere):
    """Whether a client with one right may do what a row says, by what the row says that it needs."""
    if row.needs == "none":
        return True
    if row.face == "SageMaker" and "the request names a folder" in row.further:
        return right == "all"
    if row.needs == "any on the model":
        return True
    return right in ("all", row.right) and (is_everywhere or "on all models" not in row.needs)


def principals():
    """A principal for each right on the model, one for each on all models, and one with all rights on all."""
    here = {f"{right}-here": [([right], ["own"])] for right in RIGHTS}
    everywhere = {f"{right}-everywhere": [([right], ["*"])] for right in RIGHTS}
    return here | everywhere | {"all-everywhere": [(RIGHTS, ["*"])]}

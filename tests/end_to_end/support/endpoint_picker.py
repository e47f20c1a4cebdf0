"""A small picker of endpoints, as the Gateway API Inference Extension has them: Envoy asks it over the protocol ext_proc for each request,
and it names the server with the least load in the header `x-gateway-destination-endpoint`.

Knows of ext_proc what it needs: the heads of requests.
"""

from concurrent import futures
from contextlib import contextmanager

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from scrapes import Scrape

HEADER = "x-gateway-destination-endpoint"
PENDING = "nv_inference_pending_request_count"
_OVERWRITE_IF_EXISTS_OR_ADD = 2
# Messages and their fields: number, name, and the type of a message, or none for bytes and numbers.
_MESSAGES: dict[str, list[tuple]] = {
    "ProcessingRequest": [(2, "request_headers", "HttpHeaders")],
    "HttpHeaders": [],
    "HeaderValue": [(1, "key", bytes), (3, "raw_value", bytes)],
    "HeaderValueOption": [(1, "header", "HeaderValue"), (3, "append_action", int)],
    "HeaderMutation": [(1, "set_headers", ["HeaderValueOption"])],
    "CommonResponse": [(2, "header_mutation", "HeaderMutation"), (5, "clear_route_cache", int)],
    "HeadersResponse": [(1, "response", "CommonResponse")],
    "HttpStatus": [(1, "code", int)],
    "ImmediateResponse": [(1, "status", "HttpStatus")],
    "ProcessingResponse": [(1, "request_headers", "HeadersResponse"), (7, "immediate_response", "ImmediateResponse")],
}


def _messages():
    """The classes of the messages, by their names."""
    file = descriptor_pb2.FileDescriptorProto(name="picker.proto", package="picker", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, field, kind in fields:
            added = message.field.add(name=field, number=number, label=kinds.LABEL_OPTIONAL)
            if isinstance(kind, list):
                added.label, kind = kinds.LABEL_REPEATED, kind[0]
            if isinstance(kind, str):
                added.type, added.type_name = kinds.TYPE_MESSAGE, f".picker.{kind}"
            else:
                added.type = kinds.TYPE_BYTES if kind is bytes else kinds.TYPE_INT32
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"picker.{name}")) for name in _MESSAGES}


_CLASSES = _messages()


def pending(scrape):
    """A load: the waiting requests of all models."""
    return sum(scrape.named(PENDING).values())


def queue_and_cache(scrape):
    """A load, by the names that the extension's own picker knows for Triton: the requests that wait for language models, and at equal
    numbers the part of their caches that is in use."""

    def values(name, label, kind):
        return [value for labels, value in scrape.named(name).items() if (label, kind) in labels]

    waiting = values("nv_trt_llm_request_metrics", "request_type", "waiting")
    fractions = values("nv_trt_llm_kv_cache_block_metrics", "kv_cache_block_type", "fraction")
    assert waiting and fractions
    return sum(waiting), max(fractions)


class Picker:
    """Picks among servers, or refuses if none is left."""

    def __init__(self, servers, load=pending):
        """`load` is what the server with the least of it has, by its metrics."""
        self.servers = list(servers)
        self._load = load
        # How many requests it sent to each, by the port.
        self.picked: dict[int, int] = {}

    def process(self, requests, _):
        """Answers the head of a request."""
        for request in requests:
            if request.HasField("request_headers"):
                yield self._answer()

    def _answer(self):
        response = _CLASSES["ProcessingResponse"]()
        loads = [(load, server.port) for server in self.servers if (load := self._load_of(server)) is not None]
        if not loads:
            response.immediate_response.status.code = 503
            return response
        _, port = min(loads)
        self.picked[port] = self.picked.get(port, 0) + 1
        common = response.request_headers.response
        option = common.header_mutation.set_headers.add(append_action=_OVERWRITE_IF_EXISTS_OR_ADD)
        option.header.key, option.header.raw_value = HEADER.encode(), f"127.0.0.1:{port}".encode()
        common.clear_route_cache = 1
        return response

    def _load_of(self, server):
        """The load of a server; None if it is not there."""
        try:
            return self._load(Scrape(server))
        except OSError:
            return None


@contextmanager
def running(servers, load=pending):
    """Starts a picker; gives it and its port."""
    picker = Picker(servers, load)
    handler = grpc.stream_stream_rpc_method_handler(
        picker.process, _CLASSES["ProcessingRequest"].FromString, _CLASSES["ProcessingResponse"].SerializeToString
    )
    service = grpc.method_handlers_generic_handler("envoy.service.ext_proc.v3.ExternalProcessor", {"Process": handler})
    listener = grpc.server(futures.ThreadPoolExecutor(16))
    listener.add_generic_rpc_handlers([service])
    port = listener.add_insecure_port("127.0.0.1:0")
    listener.start()
    try:
        yield picker, port
    finally:
        listener.stop(None).wait()

"""A collector of OpenTelemetry's traces: takes OTLP over HTTP in protobuf, and keeps the spans.

Decodes them by OpenTelemetry's own messages. Knows nothing of the server under test.
"""

import ssl
import threading
import time
from collections import namedtuple
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

LIMIT_S = 30

Span = namedtuple("Span", "name trace_id span_id parent_id state kind start end attributes events resource scope")


class Collector:
    """The spans that came."""

    def __init__(self, secure=False):
        self._scheme = "https" if secure else "http"
        self.spans = []
        # The number of messages that they came in, and what is answered to each.
        self.messages = 0
        self.status = 200
        self.paths = set()
        self._news = threading.Condition()
        self.port = None

    def take(self, path, body):
        """Takes a message. Gives the status that it is answered with."""
        message = ExportTraceServiceRequest.FromString(body)
        with self._news:
            self.messages += 1
            self.paths.add(path)
            if self.status == 200:
                for resource in message.resource_spans:
                    about = attributes(resource.resource.attributes)
                    for scope in resource.scope_spans:
                        self.spans += [read(span, about, scope.scope.name) for span in scope.spans]
            self._news.notify_all()
            return self.status

    def wait_for(self, condition, what):
        """Waits until the condition holds."""
        with self._news:
            assert self._news.wait_for(lambda: condition(self), LIMIT_S), f"{what}; there are {self.spans}"

    def wait_for_spans(self, count):
        """Waits until this many spans have arrived."""
        self.wait_for(lambda it: len(it.spans) >= count, f"{count} spans did not come")
        return self.spans

    @property
    def url(self):
        """The address for traces."""
        return f"{self._scheme}://127.0.0.1:{self.port}/v1/traces"


def attributes(pairs):
    """Attributes by their names."""
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


def read(span, resource, scope):
    """A span of the protocol's, with ids as text."""
    events = [(event.name, event.time_unix_nano) for event in span.events]
    return Span(
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.trace_state,
        span.kind,
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        attributes(span.attributes),
        events,
        resource,
        scope,
    )


@contextmanager
def running(port=0, identity=None):
    """A collector for the length of a `with` block; with TLS if it is given an identity."""
    collector = Collector(secure=identity is not None)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            assert self.headers["Content-Type"] == "application/x-protobuf"
            status = collector.take(self.path, body)
            answer = ExportTraceServiceResponse().SerializeToString() if status == 200 else b"refused on purpose"
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        collector.port = server.server_address[1]
        if identity is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(identity.certificate, identity.key)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()


def within_the_last(seconds, nanos):
    """Whether a moment since the Unix epoch lies in the last seconds."""
    return 0 <= time.time_ns() - nanos < seconds * 1_000_000_000

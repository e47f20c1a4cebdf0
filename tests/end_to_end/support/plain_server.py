"""A server that has no more than the KServe v2 protocol: no configurations, statistics, metrics, index or binary tensors."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "PlainServer"

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.server.paths.append(self.path)
        self._answer(self.server.documents.get(self.path))

    def do_POST(self):
        self.server.paths.append(self.path)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        model = self.path.removeprefix("/v2/models/").removesuffix("/infer")
        if not self.path.endswith("/infer") or f"/v2/models/{model}" not in self.server.documents:
            return self._answer(None)
        # Fails on anything behind the JSON.
        request = json.loads(body)
        self.server.requests.append(request)
        outputs = [{**tensor, "name": self.server.output_name} for tensor in request["inputs"]]
        return self._answer({"model_name": model, "outputs": outputs})

    def _answer(self, document):
        status, document = (200, document) if document is not None else (404, {"error": "not found"})
        content = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


class PlainServer(ThreadingHTTPServer):
    """Serves one model, `echo`, whose output is its input."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        tensor = {"datatype": "FP32", "shape": [-1, 2]}
        model = {"name": "echo", "versions": ["1"], "platform": "plain"}
        self.output_name = "y"
        self.documents = {
            "/v2": {"name": "plain", "version": "7", "extensions": []},
            "/v2/health/live": {"live": True},
            "/v2/health/ready": {"ready": True},
            "/v2/models/echo": {**model, "inputs": [{"name": "x", **tensor}], "outputs": [{"name": "y", **tensor}]},
            "/v2/models/echo/ready": {"name": "echo", "ready": True},
        }
        # What clients sent.
        self.requests: list[dict] = []
        self.paths: list[str] = []

    @property
    def url(self):
        """Host and port."""
        return f"127.0.0.1:{self.server_port}"


@contextmanager
def plain_server():
    """A plain server for the length of a `with` block."""
    with PlainServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()

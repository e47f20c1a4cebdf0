"""A small proxy that speaks what the proxy of Dragonfly's daemon speaks.

It brings what is asked for with `X-Dragonfly-Use-P2P`, each object once. Objects are distinguished by the header
`X-Dragonfly-Content-For-Calculating-Task-ID`, else by their addresses without the query parameters that the request's filter
names. It counts what it reads from the origin, and fails on demand.
"""

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlencode, urlsplit

import httpx

Fault = Callable[[str], int | bytes | None]


class DragonflyProxy(ThreadingHTTPServer):
    """Runs within a `with` statement."""

    daemon_threads = True

    def __init__(self, by_content=True):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.address = f"http://127.0.0.1:{self.server_address[1]}"
        self.by_content = by_content
        # Contents and headers, by task.
        self.tasks = {}
        self.locks = {}
        self.lock = threading.Lock()
        # The paths that were asked for, and those read from the origin.
        self.requests = []
        self.origin_reads = []
        self.headers = []
        # `fault(path)` gives the status of a failure, contents in place of the right ones, or None.
        self.fault: Fault = lambda path: None
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def __exit__(self, *arguments):
        self.shutdown()
        self.server_close()

    def task(self, url, headers):
        """The contents and headers of an object, read from the origin if nobody has."""
        parts = urlsplit(url)
        filtered = headers["X-Dragonfly-Filtered-Query-Params"].split(",")
        assert headers["X-Dragonfly-Filter"].split("&") == filtered
        kept = urlencode([(name, value) for name, value in parse_qsl(parts.query) if name not in filtered])
        task = f"{parts.netloc}{parts.path}?{kept}"
        if self.by_content:
            task = headers["X-Dragonfly-Content-For-Calculating-Task-ID"]
        with self.lock:
            lock = self.locks.setdefault(task, threading.Lock())
        with lock:
            if task not in self.tasks:
                self.origin_reads.append(parts.path)
                answer = httpx.get(url)
                if answer.status_code != 200:
                    return None, answer.status_code
                self.tasks[task] = (answer.content, {"ETag": answer.headers.get("etag", "")})
            return self.tasks[task]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: DragonflyProxy

    def do_GET(self):
        path = urlsplit(self.path).path
        self.server.requests.append(path)
        self.server.headers.append(self.headers)
        if not self.path.startswith("http://") or self.headers.get("X-Dragonfly-Use-P2P") != "true":
            return self.answer(400, b"", {})
        fault = self.server.fault(path)
        if isinstance(fault, int):
            return self.answer(fault, b"", {"X-Dragonfly-Error-Type": "dfdaemon"})
        contents, headers = self.server.task(self.path, self.headers)
        if contents is None:
            return self.answer(headers, b"", {"X-Dragonfly-Error-Type": "backend"})
        if isinstance(fault, bytes):
            contents = fault
        if wanted := self.headers.get("Range"):
            first, last = map(int, wanted.removeprefix("bytes=").split("-"))
            headers = headers | {"Content-Range": f"bytes {first}-{last}/{len(contents)}"}
            return self.answer(206, contents[first : last + 1], headers)
        return self.answer(200, contents, headers)

    def answer(self, status, body, headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass

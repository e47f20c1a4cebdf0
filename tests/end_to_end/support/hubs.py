"""Stand-ins for Hugging Face's hub, for a registry of OCI artifacts and for a web server. They speak as much of the public
interfaces as is needed to read, hand large files out on another host, as the real ones do, and record what they are asked.
"""

import base64
import hashlib
import io
import json
import re
import ssl
import tarfile
import threading
import zipfile
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit

TITLE = "org.opencontainers.image.title"
LARGE = 1000


def sha256(contents):
    return hashlib.sha256(contents).hexdigest()


class Host:
    """A server that answers GET and HEAD by `answer(path, query, headers)`, which gives a status, headers and a body."""

    def __init__(self, answer, tls=None):
        """With a certificate, it speaks TLS."""
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        # A test may put another in its place.
        self.answer = answer
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                parts = urlsplit(self.path)
                query = parse_qs(parts.query)
                if self.command == "POST":
                    query |= parse_qs(self.rfile.read(int(self.headers.get("content-length") or 0)).decode())
                outer.requests.append((self.command, unquote(parts.path), dict(self.headers.items())))
                status, headers, body = outer.answer(unquote(parts.path), query, self.headers)
                wanted = re.match(r"bytes=(\d+)-(\d+)$", self.headers.get("range", ""))
                if status == 200 and wanted:
                    first, last = int(wanted[1]), min(int(wanted[2]), len(body) - 1)
                    headers = {**headers, "content-range": f"bytes {first}-{last}/{len(body)}"}
                    status, body = 206, body[first : last + 1]
                self.send_response(status)
                for name, value in {"content-length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            do_HEAD = do_PUT = do_POST = do_GET

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tls.certificate, tls.key)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        self.origin = f"{'https' if tls else 'http'}://{self.address}"

    @contextmanager
    def running(self):
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()


class Delivery(Host):
    """Where hubs keep large files, named by their digests."""

    def __init__(self, tls=None):
        self.files = {}
        super().__init__(self._answer, tls)

    def put(self, contents):
        digest = sha256(contents)
        self.files[digest] = contents
        return digest

    def _answer(self, path, query, headers):
        contents = self.files.get(path.strip("/"))
        return (200, {}, contents) if contents is not None else (404, {}, b"")


class HuggingFace(Host):
    """The hub. Repositories are folders of files by revision; those in `private` need the token."""

    token = "hf_the-secret-token"

    def __init__(self, delivery):
        self.delivery = delivery
        self.repositories = {}
        self.private = set()
        super().__init__(self._answer)

    def put(self, repository, folder, revision="main"):
        """A new commit of what is in a folder."""
        paths = [path for path in Path(folder).rglob("*") if path.is_file()]
        self.put_files(repository, {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}, revision)

    def put_files(self, repository, files, revision="main"):
        """A new commit of files, given by their paths."""
        commit = hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()
        revisions = self.repositories.setdefault(repository, {})
        revisions[revision] = revisions[commit] = (commit, files)

    def _answer(self, path, query, headers):
        if found := re.match(r"/api/models/([\w-]+/[\w.-]+)/(revision|tree)/(.+)$", path):
            repository, what, revision = found.groups()
        elif found := re.match(r"/([\w-]+/[\w.-]+)/resolve/(\w+)/(.+)$", path):
            repository, revision, what = found.groups()
        else:
            return 404, {}, b""
        if repository in self.private and headers.get("authorization") != f"Bearer {self.token}":
            return 401, {}, b'{"error": "Invalid username or password."}'
        if revision not in self.repositories.get(repository, {}):
            return 404, {}, b'{"error": "Repository not found"}'
        commit, files = self.repositories[repository][revision]
        if what == "revision":
            return 200, {}, json.dumps({"id": repository, "sha": commit}).encode()
        if what != "tree":
            if what not in files:
                return 404, {}, b"Entry not found"
            contents = files[what]
            # The hub's own client needs these.
            told = {"x-repo-commit": commit, "etag": f'"{sha256(contents)}"'}
            if len(contents) < LARGE:
                return 200, told, contents
            told |= {"x-linked-etag": told["etag"], "x-linked-size": str(len(contents))}
            return 302, told | {"location": f"{self.delivery.origin}/{self.delivery.put(contents)}"}, b""
        # Two to a page.
        begin, names = int(query.get("cursor", ["0"])[0]), sorted(files)
        link = f'<http://{self.address}{quote(path)}?recursive=true&cursor={begin + 2}>; rel="next"'
        items = [{"type": "directory", "path": "x", "oid": "0" * 40, "size": 0}]
        for name in names[begin : begin + 2]:
            contents = files[name]
            blob = hashlib.sha1(b"blob %d\0" % len(contents) + contents).hexdigest()
            item = {"type": "file", "path": name, "size": len(contents), "oid": blob}
            if len(contents) >= LARGE:
                item |= {"oid": "1" * 40, "lfs": {"oid": sha256(contents), "size": len(contents), "pointerSize": 130}}
            items.append(item)
        return 200, {"link": link} if begin + 2 < len(names) else {}, json.dumps(items).encode()


class Registry(Host):
    """A registry. Where a token is needed, it gives one for the password."""

    user, password = "me", "the-secret-password"
    identity = "the-secret-token-for-tokens"

    def __init__(self, delivery, needs_token):
        self.delivery = delivery
        self.needs_token = needs_token
        self.manifests = {}
        super().__init__(self._answer)

    @property
    def login(self):
        return base64.b64encode(f"{self.user}:{self.password}".encode()).decode()

    def put_manifest(self, name, reference, manifest):
        document = json.dumps(manifest).encode()
        digest = f"sha256:{sha256(document)}"
        self.manifests[name, reference] = self.manifests[name, digest] = document
        return {"digest": digest, "size": len(document), "mediaType": manifest["mediaType"]}

    def put(self, name, reference, layers):
        """An artifact of layers: (contents, media type, annotations)."""
        described = []
        for contents, media_type, annotations in layers:
            digest = f"sha256:{self.delivery.put(contents)}"
            described.append({"digest": digest, "size": len(contents), "mediaType": media_type, "annotations": annotations})
        manifest = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "layers": described}
        return self.put_manifest(name, reference, manifest)

    def _answer(self, path, query, headers):
        if path == "/token":
            by_identity = query.get("grant_type") == ["refresh_token"] and query["refresh_token"] == [self.identity]
            if headers.get("authorization") != f"Basic {self.login}" and not by_identity:
                return 401, {}, b'{"errors": [{"message": "who is this"}]}'
            assert query["scope"][0].endswith(":pull") and query["service"] == ["the registry"]
            return 200, {}, b'{"token": "the-secret-token-of-a-registry"}'
        if self.needs_token and headers.get("authorization") != "Bearer the-secret-token-of-a-registry":
            challenge = f'Bearer realm="http://{self.address}/token",service="the registry"'
            return 401, {"www-authenticate": challenge}, b""
        if path == "/v2/":
            return 200, {}, b"{}"
        if found := re.match(r"/v2/(.+)/manifests/(.+)$", path):
            document = self.manifests.get(found.groups())
            return (200, {}, document) if document else (404, {}, b'{"errors": [{"code": "MANIFEST_UNKNOWN"}]}')
        if found := re.match(r"/v2/.+/blobs/sha256:(\w+)$", path):
            return 307, {"location": f"{self.delivery.origin}/{found[1]}"}, b""
        return 404, {}, b""


class Web(Host):
    """A web server of files. With a login, such as `user:password`, it needs that."""

    def __init__(self, login=None):
        self.files = {}
        self.login = login and f"Basic {base64.b64encode(login.encode()).decode()}"
        super().__init__(self._answer)

    def put(self, name, contents):
        self.files[f"/{name}"] = contents
        return f"http://{self.address}/{name}"

    def _answer(self, path, query, headers):
        if self.login and headers.get("authorization") != self.login:
            return 401, {}, b"who is this"
        contents = self.files.get(path)
        if contents is None:
            return 404, {}, b"not here"
        etag = f'"{sha256(contents)[:16]}"'
        if headers.get("if-match", etag) != etag:
            return 412, {}, b""
        return 200, {"etag": etag}, contents


def zstd(contents):
    """Contents as zstd frames them, in blocks that are not compressed."""
    blocks = [contents[begin : begin + 100_000] for begin in range(0, len(contents), 100_000)]
    heads = [(len(block) << 3 | (number == len(blocks) - 1)).to_bytes(3, "little") for number, block in enumerate(blocks)]
    return b"\x28\xb5\x2f\xfd\x00\x58" + b"".join(head + block for head, block in zip(heads, blocks))


def archive(kind, folder, prefix=""):
    """What is in a folder, as an archive."""
    contents = io.BytesIO()
    files = [path for path in sorted(Path(folder).rglob("*")) if path.is_file()]
    if kind == "zip":
        with zipfile.ZipFile(contents, "w", zipfile.ZIP_DEFLATED) as target:
            for path in files:
                target.write(path, prefix + path.relative_to(folder).as_posix())
    else:
        with tarfile.open(fileobj=contents, mode="w" if kind in ("tar", "tar.zst") else "w:gz") as target:
            for path in files:
                target.add(path, prefix + path.relative_to(folder).as_posix())
    return zstd(contents.getvalue()) if kind == "tar.zst" else contents.getvalue()

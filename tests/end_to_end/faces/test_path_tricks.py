"""Requests that are spelled, framed or addressed so that a check could read them otherwise than a route does.

Every protected route and call of the table of rights, on every face, over HTTP/1.1 and HTTP/2: under a policy, and with Triton's
restricted groups. Each is refused or unknown, and leaves the server as it was.
"""

import json
import re
import socket
from pathlib import Path

import grpc
import pytest

from access_faces import CLOUDS, LIMIT_S, Faces, faces_environment
from access_policies import OPENAI_PREFIX, RIGHTS, Policy, rows
from http2_frames import Frames
from http_requests import request
from model_files import write_identity

GROUPS = "health,metadata,inference,shared-memory,model-config,model-repository,statistics,trace,logging"
FREE = "/v2/health/live"
# Statuses of a request that was not carried out.
REFUSED = {400, 401, 403, 404, 405, 413, 414, 431, 501, 505}
# UNKNOWN is no status of a refusal. A message of another call's type is INVALID_ARGUMENT or INTERNAL.
REFUSED_CALLS = {b"3", b"5", b"7", b"12", b"13", b"16"}
# The console answers for a name that the client may use, although no model has it.
NOTHING = re.compile(rb"other-1.*/(advice|trace)$")
REFUSED_BY_GROUPS = {401, 403, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.PERMISSION_DENIED}
# Metrics have no group, nor what the console shows of the machine, nor have paths that are unknown.
IN_NO_GROUP = re.compile(r"metrics|/console/api/gpus|/models//|SageMaker DELETE /models/?$|reflection|Health/")
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "post", "LOAD")
# What proxies and frameworks take for another method, path, client or user.
OVERRIDES = {
    **dict.fromkeys(("X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override"), "GET"),
    **dict.fromkeys(("X-Original-URL", "X-Rewrite-URL", "X-Forwarded-Uri", "X-Forwarded-Path", "X-Original-URI"), FREE),
    **dict.fromkeys(("X-Forwarded-For", "X-Real-IP", "X-Client-IP", "True-Client-IP", "X-Forwarded-Host"), "127.0.0.1"),
    **dict.fromkeys(("X-Forwarded-User", "X-Remote-User", "Remote-User", "X-Principal"), "root"),
    "Forwarded": "for=127.0.0.1;host=localhost;proto=https",
    "X-Forwarded-Prefix": "/v2/health",
    "X-Forwarded-Client-Cert": "Subject=CN=root",
}


def percent(text, pattern=".", form="%{:02X}"):
    """The text with the characters that match percent-encoded."""
    return re.sub(pattern, lambda found: form.format(ord(found.group())), text)


def overlong(text, pattern):
    """The text with the characters that match in two bytes of UTF-8 instead of one."""
    return re.sub(pattern, lambda found: f"%{0xC0 | ord(found.group()) >> 6:02X}%{0x80 | ord(found.group()) & 0x3F:02X}", text)


def spellings(path):
    """Ways to write a path that a server could take for it."""
    behind = path[1:]
    yield from ("/" + path, path.replace("/", "//"), path + "/", path + "//", path + "/.", path + "/x/..", "/./" + behind)
    yield from (path.replace("/", "/./"), "/x/.." + path, FREE + "/../../.." + path, FREE + "/..%2f..%2f.." + path)
    yield from (
        "/x/%2e%2e" + path,
        "/%2e" + path,
        "/x/%252e%252e" + path,
        "/x/..;" + path,
        "/.." + path,
        FREE + "%2f..%2f..%2f.." + path,
    )
    yield from (
        "/" + percent(behind, "[a-z]"),
        "/" + percent(behind, "[^/]"),
        "/" + percent(behind, "/"),
        percent(path, "/", "%{:02x}"),
    )
    yield from (
        "/" + percent(behind, "[a-z]", "%25{:02x}"),
        "/" + percent(behind, "/", "%25{:02X}"),
        "/" + percent(behind, "[.:_-]"),
    )
    yield from (path.upper(), path.title(), path.swapcase(), "/" + percent(behind.upper(), "[A-Z]"))
    yield from (
        f"http://localhost{path}",
        f"HTTP://root@127.0.0.1:1{path}",
        f"https://x{path}",
        f"http://{path}",
        f"x:{path}",
        behind,
    )
    yield from (path + ";x=1", path.replace("/", ";x/"), path.replace("/", "/;/"), "/;" + path, FREE + ";" + path)
    yield from (
        path + "?",
        path + "?model=other-1",
        f"{path}?path={FREE}",
        path + "?x=%2f..%2f",
        path + "%3fx=1",
        path + "#x",
        path + "%23x",
    )
    yield from (
        path + "%00",
        path.replace("/", "%00/"),
        "/%00" + behind,
        path + "%0d%0a",
        "/%0d%0a" + behind,
        path + "%20",
        "/%20" + behind,
    )
    yield from (
        path + "%09",
        path + "\0",
        path + "\t",
        path + "\x0b",
        path + ".json",
        path + "%2ejson",
        path + "\x7f",
        path + "%ff",
        path + "\xe9",
    )
    yield from (
        overlong(path, "/"),
        "/" + overlong(behind, "/"),
        "/" + overlong(behind, "[a-z]"),
        "/x/" + overlong("..", "[.]") + path,
    )
    yield from (
        path.replace("/", "\xc0\xaf"),
        path.replace("/", "\\"),
        "/" + behind.replace("/", "\\"),
        "/" + percent(behind.replace("/", "\\"), r"\\"),
    )
    yield from (
        path.replace("/", "\xef\xbc\x8f"),
        "/" + behind.replace("/", "%ef%bc%8f"),
        "/" + behind.replace("/", "%u002f"),
        "*",
        "",
    )
    # As a model that the client may use, and as this one.
    for name in ("own", "idle", "platform"):
        if f"/{name}" in path:
            for other in (
                "other-1/../{}",
                "other-1%2f..%2f{}",
                "other-1%00{}",
                "{}%00other-1",
                "{}%2f..%2fother-1",
                "{};other-1",
                "%2e%2f{}",
            ):
                yield path.replace(f"/{name}", "/" + other.format(name))


def exchange(port, head, body=b""):
    """Sends bytes; the answer's status and the rest of it. No status if the server only closed the connection."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port), LIMIT_S) as connection:
        try:
            connection.sendall(head + body)
            while piece := connection.recv(65536):
                answer += piece
        except ConnectionError:
            pass
    found = re.match(rb"HTTP/1\.[01] (\d+) ", answer)
    return int(found.group(1)) if found else None, answer


class World:
    """A server with a model that the clients may not use, one that is not loaded, and one of other clients."""

    def __init__(self, server, operator, clients, folder):
        """`clients` has headers by name; `operator` has those of a client who may do everything."""
        self.server, self.operator, self.clients, self._folder = server, operator, clients, folder
        self.faces = Faces(server)
        self.ports = {**self.faces.ports, "gRPC": server.grpc_port}

    def prepare(self, row):
        """A row's method, path, headers and body, which change something if they are carried out."""
        model = "idle" if re.search(r"/load$|POST /models/?$", row.request) else "own"
        if row.face == "SageMaker" and "{model}" in row.request:
            # That of the platform is the only one that it knows.
            model = "platform"
        if row.face == "gRPC":
            model = "idle" if row.request.endswith("ModelLoad") else "own"
            message = Faces.message(row.request, model)
            head = {"content-type": "application/grpc", "te": "trailers"}
            return "POST", f"/{row.request}", head, b"\0" + len(message).to_bytes(4, "big") + message
        method, path, headers = Faces.http_request(row, model)
        body = Faces.body(row, model)
        for end, settings in {
            "/logging": {"log_verbose_level": 1},
            "/trace/setting": {"trace_rate": "77"},
            "/systemsharedmemory/region/r/register": {"key": "/nereid_path_tricks", "offset": 0, "byte_size": 64},
        }.items():
            body = json.dumps(settings) if path.endswith(end) else body
        if row.face == "SageMaker" and model == "idle":
            body = json.dumps({"model_name": model, "url": str(self._folder)})
        return method, path, headers, body.encode() if method == "POST" else b""

    def get(self, method, path):
        return request(self.server, method, path, "{}" if method == "POST" else None, self.operator).json

    def state(self):
        """All that a request could have changed, in which requests of this one change nothing."""
        statistics = [
            {key: model[key] for key in ("name", "version", "inference_count", "execution_count")}
            for model in self.get("GET", "/v2/models/stats")["model_stats"]
        ]
        settings = [self.get("GET", f"/v2/{path}") for path in ("logging", "trace/setting", "models/own/trace/setting")]
        regions = [self.get("GET", f"/v2/{kind}sharedmemory/status") for kind in ("system", "cuda")]
        index = self.get("POST", "/v2/repository/index")
        loads = len(re.findall(r"\bloading '|successfully (?:un)?loaded '", self.server.log))
        return sorted(statistics, key=str), settings, regions, sorted(index, key=str), loads

    def reset(self):
        """Loads the models, and undoes what a row has changed."""
        platform = type("Address", (), {"port": self.ports["SageMaker"]})
        body = json.dumps({"model_name": "platform", "url": str(self._folder)})
        assert request(platform, "POST", "/models", body, self.operator).status in (200, 409)
        for model, change in (("own", "load"), ("idle", "unload")):
            answer = request(self.server, "POST", f"/v2/repository/models/{model}/{change}", "{}", self.operator)
            assert answer.status == 200, answer
        for path, settings in (("logging", {"log_verbose_level": 0}), ("trace/setting", {"trace_rate": "1000"})):
            assert request(self.server, "POST", f"/v2/{path}", json.dumps(settings), self.operator).status == 200
        assert request(self.server, "POST", "/v2/systemsharedmemory/unregister", "{}", self.operator).status == 200

    def send(self, row, client, method, target, headers, body, lines=()):
        """A request over HTTP/1.1 of bytes that no client library would send."""
        sent = {"Host": "x", "Connection": "close", "Content-Length": len(body), **self.clients[client], **headers}
        head = "\r\n".join([f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items()), *lines, "", ""])
        status, answer = exchange(self.ports[row.face], head.encode("latin-1"), body)
        is_nothing = status == 200 and NOTHING.search(target.encode("latin-1")) and b"own" not in answer
        assert status is None or status in REFUSED or is_nothing, (row, client, method, target, headers, lines, answer)
        assert b'"OUTPUT0"' not in answer, (row, client, target)


def needs_more(row, client):
    """Whether the row is refused to a client of a policy."""
    return row.needs != "none" and not (client == "other" and "on any model" in row.needs)


@pytest.fixture(scope="module")
def memory():
    """A shared memory object that could be registered."""
    path = Path("/dev/shm/nereid_path_tricks")
    path.write_bytes(bytes(64))
    yield path
    path.unlink()


@pytest.fixture(params=["policy", "groups"])
def world(request, tmp_path, repository, serve, memory):
    for model in ("own", "idle", "other-1"):
        write_identity(repository, model, ["INT32"])
    write_identity(tmp_path / "platform", "platform", ["INT32"])
    flags = [*CLOUDS, "--vertex-ai-default-model=own", "--model-control-mode=explicit", "--load-model=own", "--load-model=other-1"]
    flags.append(f"--openai-prefix={OPENAI_PREFIX}")
    clients: dict = {"nobody": {}}
    if request.param == "policy":
        grants = {"stranger": [(["infer"], ["zzz"])], "other": [(RIGHTS, ["other-*"])], "root": [(RIGHTS, ["*"])]}
        policy = Policy(tmp_path / "access", grants)
        flags.append(policy.option)
        clients |= {name: {"X-API-Key": policy.keys[name]} for name in ("stranger", "other")}
        operator = {"X-API-Key": policy.keys["root"]}
    else:
        flags += [f"--http-restricted-api={GROUPS}:x-key=secret", f"--grpc-restricted-protocol={GROUPS}:x-key=secret"]
        operator = {"x-key": "secret", "triton-grpc-protocol-x-key": "secret"}
    server = serve(*flags, ready=False, env=faces_environment())
    server.wait_until_loaded()
    world = World(server, operator, clients, tmp_path / "platform")
    world.reset()
    yield world
    world.faces.close()


def protected(world):
    """The rows with the clients to whom each is refused, by the table or by the groups that are restricted."""
    for row in rows():
        if len(world.clients) > 1:
            refused = [client for client in world.clients if needs_more(row, client)]
        else:
            refused = ["nobody"] if world.faces.ask(row, {})[0] in REFUSED_BY_GROUPS else []
            assert refused or IN_NO_GROUP.search(f"{row.face} {row.request}"), row
        if refused:
            yield row, refused


def methods(row):
    """Methods for which the row's path has no row of its own."""
    path = row.request.split(" ", 1)[-1]
    own = {other.request.split(" ", 1)[0] for other in rows() if other.face == row.face and other.request.endswith(f" {path}")}
    # Where there are pages for GET, there are some for HEAD.
    own |= {"HEAD"} & {"HEAD" for method in own if method == "GET"}
    return [method for method in METHODS if method not in own]


def tricks(row, method, path, headers):
    """A request in many forms: its method, target and headers."""
    target = headers.get("X-Vertex-Ai-Triton-Redirect")
    if target is None:
        yield from ((method, spelling, headers) for spelling in spellings(path))
    else:
        for spelling in spellings("/" + target):
            for redirect in {spelling, spelling[1:]}:
                if not re.search("[\0\t\x0b\x7f]", redirect):
                    yield method, path, {"X-Vertex-Ai-Triton-Redirect": redirect}
    yield from ((other, path, headers) for other in methods(row))
    yield method, path, headers
    yield method, path, {**headers, **OVERRIDES}
    yield from ((method, path, {**headers, name: value}) for name, value in OVERRIDES.items())


def test_no_form_of_a_request_passes_a_restriction(world):
    count = 0
    before = world.state()
    for row, refused in protected(world):
        if row.face == "gRPC":
            continue
        method, path, headers, body = world.prepare(row)
        for client in refused:
            for sent in tricks(row, method, path, headers):
                # Preflight requests and unknown methods have no effect, and the route without a redirect needs less.
                world.send(row, client, *sent, body)
                count += 1
            secret = [f"{name}: {value}" for name, value in world.operator.items()]
            for lines in (
                ["Host: localhost"],
                ["X-API-Key: wrong", "X-API-Key: wrong"],
                # Names of headers that a proxy would remove.
                ["Connection: X-API-Key, x-key, Host"],
                # Within another header, in a line that continues one, and with blanks before the colon.
                [f"Cookie: {'; '.join(secret)}"],
                [f"X-A: b\r\n {line}" for line in secret],
                [line.replace(":", " :") for line in secret],
            ):
                world.send(row, client, method, path, headers, body, lines)
            # In trailers, and behind a body that ends sooner for some.
            chunked = {**headers, "Transfer-Encoding": "chunked"}
            chunked.pop("Content-Length", None)
            sent = {"Host": "x", "Connection": "close", **world.clients[client], **chunked}
            head = "\r\n".join([f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items()), "", ""])
            trailers = "\r\n".join(["0", *secret, "", ""]).encode()
            status, answer = exchange(
                world.ports[row.face], head.encode(), b"%x\r\n%s\r\n%s" % (len(body), body, trailers) if body else trailers
            )
            assert status is None or status in REFUSED, (row, client, answer)
            for connect in ("x:1", path, f"http://x{path}"):
                world.send(row, client, "CONNECT", connect, headers, body)
        assert world.state() == before, row
    assert count > 5000 and world.server.exit_code is None


def test_no_form_of_a_request_passes_a_restriction_over_http_2(world):
    before = world.state()
    client = list(world.clients)[-1]
    credentials = [(name.lower(), value) for name, value in world.clients[client].items()]
    secret = [(name.lower(), value) for name, value in world.operator.items()]
    for row, refused in protected(world):
        # The port of metrics has no HTTP/2.
        if row.face == "metrics" or client not in refused:
            continue
        method, path, headers, body = world.prepare(row)
        with Frames(world.ports[row.face]) as frames:

            def ask(head, trailers=None, row=row, body=body, frames=frames):
                head = [(name.encode("latin-1"), str(value).encode("latin-1")) for name, value in head]
                status, answer = frames.ask(head, body, trailers)
                if row.face == "gRPC" and status == 200:
                    found = re.search(rb"b'grpc-status': b'(\d+)'", answer)
                    refused = found and found.group(1) in REFUSED_CALLS
                    # In a stream, a refusal is a message.
                    # For a restricted group, Triton's status is UNAVAILABLE.
                    assert refused or b"this needs " in answer or b"protocol%20is%20restricted" in answer, (row, head, answer)
                else:
                    is_nothing = any(NOTHING.search(value) for name, value in head if name == b":path")
                    refused = status is None or status in REFUSED | {415} or (is_nothing and b"own" not in answer)
                    assert refused, (row, head, answer)
                assert b'"OUTPUT0"' not in answer, (row, head)

            def head(method=method, path=path, authority="x", more=(), headers=headers):
                own = [(name.lower(), value) for name, value in headers.items()]
                pseudo = [(":method", method), (":scheme", "http"), (":authority", authority), (":path", path)]
                return [*pseudo, *credentials, *own, *more]

            for other, target, more in tricks(row, method, path, headers):
                ask(head(other, target, headers=more))
            ask(head(authority=f"root@x{FREE}"))
            ask(head(authority=""))
            free = [(":path", FREE), (":method", "GET"), (":principal", "root"), (":protocol", "websocket")]
            for pseudo in (*free, (":path", path), (":authority", "y"), (":status", "200")):
                ask([pseudo, *head()])
                ask([*head()[:4], pseudo, *head()[4:]])
                ask(head(more=[pseudo]))
            for leaves_out in range(4):
                ask([pair for index, pair in enumerate(head()) if index != leaves_out])
            ask([(":method", "CONNECT"), (":authority", f"x{path}"), *credentials])
            ask([(":method", "CONNECT"), (":authority", "x:1"), (":path", path), (":scheme", "http"), *credentials])
            ask(head(), trailers=secret)
            ask(head(), trailers=[(":path", FREE), *secret])
            ask([(name.upper() if name[0] != ":" else name, value) for name, value in [*head(), *secret]])
        assert world.state() == before, row


def test_the_same_requests_of_an_operator_change_the_server(world):
    """So the tests above would notice."""
    changing = set()
    for row in rows():
        method, path, headers, body = world.prepare(row)
        # Watch never ends.
        if method == "GET" or row.request.endswith("Watch"):
            continue
        world.reset()
        before = world.state()
        pairs = [(name.lower(), value) for name, value in (world.operator | headers).items()]
        with Frames(world.ports[row.face]) as frames:
            frames.ask([(":method", method), (":scheme", "http"), (":authority", "x"), (":path", path), *pairs], body)
        if world.state() != before:
            changing.add(row.request)
    assert changing >= {
        "POST /v2/models/{model}/infer",
        "POST /v2/models/{model}/generate",
        "POST /v2/repository/models/{model}/load",
        "POST /v1/models/{model}/load",
        "POST /v2/logging",
        "POST /v2/trace/setting",
        "POST /v2/systemsharedmemory/region/{region}/register",
        "POST /invocations",
        "POST /models/{model}/invoke",
        "DELETE /models/{model}",
        "POST (predict route)",
        "POST (predict route), redirected to v2/models/{model}/infer",
        "inference.GRPCInferenceService/ModelInfer",
        "inference.GRPCInferenceService/ModelStreamInfer",
        "inference.GRPCInferenceService/RepositoryModelUnload",
    }, changing

"""Rights over HTTP/2, from frames as no client library sends them: pseudo-headers, paths and trailers that contradict each other."""

import pytest
from tritonclient.grpc import service_pb2 as messages

from access_faces import BODY, TRICKS
from access_policies import RIGHTS, Policy, bearer
from grpc_requests import message
from http2_frames import Frames
from http_requests import infer, request
from model_files import write_identity

SENT = BODY.encode()
ALLOWED, HIDDEN = "/v2/models/a-1/infer", "/v2/models/b-secret/infer"


@pytest.fixture
def served(tmp_path, repository, serve):
    for model in ("a-1", "b-secret"):
        write_identity(repository, model, ["INT32"])
    policy = Policy(tmp_path / "access", {"a": [(["infer", "read"], ["a-*"])], "root": [(RIGHTS, ["*"])]})
    return policy, serve(policy.option)


def ask(port, headers, body=SENT, trailers=None):
    """Sends a request as it is; its status, or nothing if the server refused to answer, and its body or trailers."""
    with Frames(port) as frames:
        return frames.ask(headers, body, trailers)


def head(path=HIDDEN, *more, method="POST"):
    return [(":method", method), (":scheme", "http"), (":authority", "x"), (":path", path), *more]


def credentials(policy, name):
    return [(key.lower(), value) for key, value in bearer(policy.keys[name]).items()]


def inferences(server, policy):
    answer = request(server, "GET", "/v2/models/b-secret/stats", headers=bearer(policy.keys["root"]))
    return answer.json["model_stats"][0]["inference_count"]


def test_no_path_or_pseudo_header_reaches_a_model_around_its_right(served):
    policy, server = served
    key = credentials(policy, "a")
    assert ask(server.port, head(ALLOWED, *key))[0] == 200
    assert ask(server.port, head(HIDDEN, *credentials(policy, "root")))[0] == 200
    before = inferences(server, policy)
    tricks = [head(path, *key, method=method) for path in TRICKS for method in ("POST", "GET", "HEAD", "PUT")]
    allowed, hidden = (":path", ALLOWED), (":path", HIDDEN)
    start = [(":method", "POST"), (":scheme", "http"), (":authority", "x")]
    tricks += [
        [*start, allowed, hidden, *key],
        [*start, hidden, allowed, *key],
        [*start, *key, hidden],
        [*start, allowed, *key, hidden],
        [*start, (":authority", "a-1"), hidden, *key],
        [*start, (":method", "GET"), hidden, *key],
        [*start, (":protocol", "websocket"), hidden, *key],
        [*start, (":principal", "root"), hidden, *key],
        [*start, hidden, *key, ("x-http-method-override", "GET")],
        [*start, hidden, *key, ("x-original-url", ALLOWED), ("x-rewrite-url", ALLOWED)],
        [*start, hidden, *key, ("host", "a-1"), ("forwarded", "for=127.0.0.1"), ("x-forwarded-for", "127.0.0.1")],
        [(":method", "CONNECT"), (":authority", HIDDEN), *key],
        [(":method", "POST"), (":scheme", "https"), (":authority", ALLOWED), hidden, *key],
        [(":method", "post"), (":scheme", "http"), (":authority", "x"), hidden, *key],
    ]
    for headers in tricks:
        status, answer = ask(server.port, headers)
        assert status is None or 400 <= status < 600, (headers, status, answer)
        assert b'"OUTPUT0"' not in answer, headers
    assert inferences(server, policy) == before
    assert ask(server.port, head(ALLOWED, *key))[0] == 200


def test_credentials_in_trailers_prove_nothing(served):
    policy, server = served
    root = credentials(policy, "root")
    before = inferences(server, policy)
    for own, trailers, expected in [
        ([], root, 401),
        ([], [("x-api-key", policy.keys["root"])], 401),
        (credentials(policy, "a"), root, 403),
        (credentials(policy, "a"), [("x-api-key", policy.keys["root"])], 403),
        (credentials(policy, "a"), [(":path", ALLOWED)], 403),
    ]:
        status, answer = ask(server.port, head(HIDDEN, *own), trailers=trailers)
        # Pseudo-headers in trailers are a malformed request, which may end the stream.
        assert status == expected or (status is None and trailers[0][0] == ":path"), (own, trailers, status, answer)
    assert inferences(server, policy) == before
    assert infer(server, "b-secret", BODY, bearer(policy.keys["root"])).status == 200


def test_metadata_in_grpc_trailers_proves_nothing(served):
    policy, server = served
    port = int(server.grpc_url.rsplit(":", 1)[1])
    sent = messages.ModelInferRequest()
    sent.CopyFrom(message("b-secret"))
    sent = sent.SerializeToString()
    body = b"\0" + len(sent).to_bytes(4, "big") + sent
    grpc_head = [("content-type", "application/grpc"), ("te", "trailers")]
    path = "/inference.GRPCInferenceService/ModelInfer"
    before = inferences(server, policy)
    for own, expected in [([], b"'16'"), (credentials(policy, "a"), b"'7'")]:
        for trailers in (credentials(policy, "root"), [("x-api-key", policy.keys["root"])]):
            status, answer = ask(port, head(path, *grpc_head, *own), body, trailers)
            assert status == 200 and b"b'grpc-status': b" + expected in answer, (own, trailers, answer)
    assert inferences(server, policy) == before

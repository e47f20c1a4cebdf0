"""A refusal is the same, and takes the same work, for a model that runs, one that could be loaded, a broken one and none.

Times say little on a busy machine. So these tests look at what could take time: no file of the repository is touched, no model is
loaded for the request, and the answers are equal byte for byte.
"""

import re
import socket

import pytest

from access_faces import CLOUDS, LIMIT_S, Faces, faces_environment
from access_policies import OPENAI_PREFIX, RIGHTS, Policy, rows
from http2_frames import Frames
from http_requests import request
from model_files import write_identity
from watched_files import Watch

# Names of the same length, as the length of a request is no secret: of a model that runs, one that is loaded on demand, one whose
# configuration is broken, and of no model.
HIDDEN = ("b-live", "b-cold", "b-poor", "b-none")
# Headers that differ from answer to answer.
CHANGING = re.compile(rb"(?i)^(date|x-request-id): .*\r\n|b'(date|x-request-id)': b'[^']*'", re.M)


@pytest.fixture
def served(tmp_path, repository, serve):
    for name in ("own", "a-cold", *HIDDEN[:3]):
        write_identity(repository, name, ["INT32"])
    (repository / "b-poor" / "config.pbtxt").write_text("max_batch_size: -1 {")
    policy = Policy(tmp_path / "access", {"a": [(RIGHTS, ["a-*"])], "root": [(RIGHTS, ["*"])]})
    flags = ["--model-control-mode=on-demand", "--load-model=own", "--load-model=b-live", "--repository-poll-secs=0"]
    flags.append(f"--openai-prefix={OPENAI_PREFIX}")
    server = serve(*flags, policy.option, *CLOUDS, "--vertex-ai-default-model=own", ready=False, env=faces_environment())
    server.wait_until_loaded()
    return policy, server, repository


def answer_of(faces, ports, row, key, model):
    """The whole answer to a row's request about a model, without what always changes."""
    if row.face == "gRPC":
        message = Faces.message(row.request, model)
        head = [(":method", "POST"), (":scheme", "http"), (":authority", "x"), (":path", f"/{row.request}")]
        head += [("content-type", "application/grpc"), ("te", "trailers"), ("x-api-key", key)]
        with Frames(ports["gRPC"]) as frames:
            status, answer = frames.ask(head, b"\0" + len(message).to_bytes(4, "big") + message)
        return b"%d %s" % (status, CHANGING.sub(b"", answer))
    method, path, headers = faces.http_request(row, model)
    body = faces.body(row, model).encode() if method == "POST" else b""
    sent = {"Host": "x", "Connection": "close", "X-API-Key": key, "Content-Length": len(body), **headers}
    head = "\r\n".join([f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items()), "", ""])
    answer = b""
    with socket.create_connection(("127.0.0.1", ports[row.face]), LIMIT_S) as connection:
        connection.sendall(head.encode() + body)
        while piece := connection.recv(65536):
            answer += piece
    return CHANGING.sub(b"", answer)


def states(server, policy):
    index = request(server, "POST", "/v2/repository/index", "{}", {"X-API-Key": policy.keys["root"]}).json
    return sorted((model["name"], model.get("state")) for model in index)


def test_a_refusal_is_the_same_whatever_the_model_is(served):
    policy, server, repository = served
    faces = Faces(server)
    ports = {**faces.ports, "gRPC": server.grpc_port}
    before = states(server, policy)
    assert {name for name, _ in before} >= set(HIDDEN[:3])
    # A stored answer that does not exist has no model, and neither has a path without its name.
    without = ("{response}", "//")
    about_models = [
        row for row in rows() if row.needs.endswith("on the model") and not any(part in row.request for part in without)
    ]
    assert len(about_models) > 50
    log = server.log
    with Watch(repository) as watch:
        for row in about_models:
            answers = {model: answer_of(faces, ports, row, policy.keys["a"], model) for model in HIDDEN}
            assert len(set(answers.values())) == 1, (row, answers)
            [answer] = set(answers.values())
            assert re.match(rb"HTTP/1\.1 403 |200 .*(grpc-status': b'7'|this needs )", answer, re.S), (row, answer)
            assert b"b-" not in answer, (row, answer)
        assert watch.used() == set()
        # A model that the client may use is loaded for the request, and the watch sees it.
        key = {"X-API-Key": policy.keys["a"]}
        assert request(server, "POST", "/v2/models/a-cold/infer", faces.body(about_models[0], "a-cold"), key).status == 200
        assert any("a-cold" in path for path in watch.used())
    assert not re.search("loading: b-", server.log[len(log) :])
    after = states(server, policy)
    assert [state for state in after if state[0] != "a-cold"] == [state for state in before if state[0] != "a-cold"]
    faces.close()

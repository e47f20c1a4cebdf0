"""The access policy: every route and call with every right, by every way to present a key or a certificate."""

import json
import os
import re
import shlex
import socket
import ssl
import subprocess
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from http.client import HTTPConnection, HTTPSConnection

import grpc
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc import service_pb2_grpc as service

import nereid_server
from access_faces import (
    ALL_FACES,
    BODY,
    EXPLICIT,
    LIMIT_S,
    REFUSED,
    TRICKS,
    Faces,
    Http2Connection,
    faces_environment,
    is_granted,
    principals,
)
from access_policies import PAGE, RIGHTS, Policy, bearer, nereid, rows
from certificates import Authority
from grpc_requests import numbers
from http_requests import infer, request, tensor
from model_files import write_identity
from waiting import eventually

ALL = [(RIGHTS, ["*"])]


@pytest.fixture
def served(tmp_path, repository, serve):
    """Starts a server with these models under a policy, with all faces."""

    def start(principals, anonymous=None, models=("own", "b-secret"), flags=(), clouds=True):
        for model in models:
            write_identity(repository, model, ["INT32"])
        policy = Policy(tmp_path / "access", principals, anonymous)
        more = ALL_FACES if clouds else ()
        return policy, serve(policy.option, *more, *flags, env=faces_environment())

    return start


def clients(policy):
    """The headers of every client, with its right and whether it has that on all models."""
    for number, (name, key) in enumerate(policy.keys.items()):
        headers = bearer(key) if number % 2 else {"X-API-Key": key}
        yield headers, name.split("-")[0], name.endswith("everywhere")


def test_every_request_needs_its_right(served):
    policy, server = served(principals(), flags=EXPLICIT)
    faces = Faces(server)
    table = rows()
    assert {row.face for row in table} == {"HTTP", "OpenAI", "gRPC", "metrics", "SageMaker", "Vertex AI"} and len(table) > 90
    wrong = [{}, {"X-API-Key": "wrong"}, bearer(policy.keys["all-everywhere"][:-1]), {"Authorization": "Basic eDp5"}]
    for row in table:
        for headers in wrong:
            status, text = faces.ask(row, headers)
            if row.face == "gRPC" and row.request.endswith("ModelStreamInfer"):
                assert status in REFUSED, (row, headers, text)
            elif row.needs == "none":
                assert status not in REFUSED, (row, headers, status, text)
            else:
                assert status in (401, grpc.StatusCode.UNAUTHENTICATED), (row, headers, status, text)
        for headers, right, is_everywhere in clients(policy):
            status, text = faces.ask(row, headers)
            granted = is_granted(row, right, is_everywhere)
            assert (status not in REFUSED) == granted, (row, right, is_everywhere, status, text)
            if not granted:
                assert status in (403, grpc.StatusCode.PERMISSION_DENIED), (row, right, status)
                assert row.right is None or f"'{row.right}'" in text or "'files'" in text, (row, text)
                assert "own" not in text.replace("unknown", ""), (row, text)
    faces.close()


def test_every_http_request_needs_its_right_over_http_2(served):
    policy, server = served(principals(), flags=EXPLICIT)
    ports = Faces(server).ports
    faces = Faces(server, lambda face: Http2Connection(f"http://127.0.0.1:{ports[face]}"))
    for row in rows():
        # The port of metrics has no HTTP/2.
        if row.face in ("gRPC", "metrics"):
            continue
        assert (faces.ask(row, {})[0] == 401) == (row.needs != "none"), row
        for headers, right, is_everywhere in clients(policy):
            status, text = faces.ask(row, headers)
            assert (status != 403) == is_granted(row, right, is_everywhere), (row, right, is_everywhere, status, text)
            assert status != 401, (row, right, text)
    faces.close()


A = {"a": [(["infer", "read"], ["a-*"])], "root": ALL}


def test_a_hidden_model_is_nowhere(served):
    policy, server = served(A, models=("a-1", "a-2", "b-secret"), clouds=False, flags=EXPLICIT)
    a, root = bearer(policy.keys["a"]), bearer(policy.keys["root"])
    metrics = HTTPConnection("127.0.0.1", server.metrics_port, timeout=LIMIT_S)

    def scraped(headers):
        metrics.request("GET", "/metrics", headers=headers)
        answer = metrics.getresponse()
        return answer.read().decode() if answer.status == 200 else ""

    def lists(headers):
        yield request(server, "POST", "/v2/repository/index", headers=headers).body.decode()
        yield request(server, "GET", "/v2/models/stats", headers=headers).body.decode()
        yield request(server, "GET", "/v2/openapi.json", headers=headers).body.decode()
        yield scraped(headers)
        metadata = [(name.lower(), value) for name, value in headers.items()]
        with grpc.insecure_channel(server.grpc_url) as channel:
            stub = service.GRPCInferenceServiceStub(channel)
            yield str(stub.RepositoryIndex(messages.RepositoryIndexRequest(), metadata=metadata))
            yield str(stub.ModelStatistics(messages.ModelStatisticsRequest(), metadata=metadata))

    infer(server, "b-secret", BODY, root)
    for of_a, of_root in zip(lists(a), lists(root)):
        assert "a-1" in of_a and "a-2" in of_a and "b-secret" not in of_a, of_a
        assert "b-secret" in of_root
    assert "nv_cpu" in scraped(root) and "nv_cpu" not in scraped(a)
    assert "nereid_access_policy_valid 1" in scraped(root)
    assert scraped({}) == ""
    report = infer(server, "a-1", BODY, a | {"endpoint-load-metrics-format": "json"}).headers["endpoint-load-metrics"]
    assert "cpu_utilization" in report and "secret" not in report and "a-1" not in report

    # A hidden model and one that does not exist are refused alike, whatever is asked of them.
    for method, path in (
        ("POST", "/v2/models/{}/infer"),
        ("POST", "/v2/models/{}/versions/9/generate"),
        ("GET", "/v2/models/{}"),
        ("GET", "/v2/models/{}/config"),
        ("GET", "/v2/models/{}/ready"),
        ("GET", "/v2/models/{}/stats"),
        ("POST", "/v2/repository/models/{}/load"),
        ("POST", "/v2/repository/models/{}/unload"),
        ("GET", "/v2/models/{}/trace/setting"),
    ):
        answers = [request(server, method, path.format(name), "{}", a) for name in ("b-secret", "b-absent")]
        assert {answer.status for answer in answers} == {403}, path
        assert answers[0].body == answers[1].body and b"b-" not in answers[0].body
    # Names within the patterns may be unknown.
    assert infer(server, "a-absent", BODY, a).status == 404


@pytest.mark.parametrize(
    "headers", [{}, {"X-HTTP-Method-Override": "GET", "X-Original-URL": "/v2/health/live", "X-Rewrite-URL": "/v2"}]
)
def test_no_path_reaches_a_model_around_its_right(served, headers):
    policy, server = served(A, models=("a-1", "b-secret"), clouds=False)
    key = bearer(policy.keys["a"])
    for path in TRICKS:
        for method in ("POST", "GET", "PUT", "HEAD", "OPTIONS"):
            lines = [f"{method} {path} HTTP/1.1", "Host: x", "Connection: close", f"Content-Length: {len(BODY)}"]
            lines += [f"{name}: {value}" for name, value in (key | headers).items()]
            with socket.create_connection(("127.0.0.1", server.port), LIMIT_S) as connection:
                connection.sendall(("\r\n".join(lines) + "\r\n\r\n" + BODY).encode())
                answer = b""
                while piece := connection.recv(65536):
                    answer += piece
            assert re.match(rb"HTTP/1.1 (400|401|403|404|405|50\d) ", answer), (method, path, answer)
            assert b'"OUTPUT0"' not in answer
    statistics = request(server, "GET", "/v2/models/b-secret/stats", headers=bearer(policy.keys["root"])).json
    assert statistics["model_stats"][0]["inference_count"] == 0


def test_a_name_with_separators_reaches_no_other_model(served):
    policy, server = served({"a": [(RIGHTS, ["a-*"])]}, models=("a-1", "b-secret"), clouds=False, flags=EXPLICIT)
    key = bearer(policy.keys["a"])
    for name in ("a-%2F..%2Fb-secret", "a-1%2F..%2Fb-secret", "a-1%2F..%2F..%2Fmodels%2Fb-secret", "a-%00%2Fb-secret"):
        for operation in ("load", "unload"):
            answer = request(server, "POST", f"/v2/repository/models/{name}/{operation}", "{}", key)
            assert answer.status in (400, 404), (name, answer)
    assert "successfully" not in "".join(line for line in server.log.splitlines() if "unload" in line)


def answered(server, headers):
    return infer(server, "own", BODY, headers).status


def test_a_key_proves_its_principal_until_it_is_revoked_or_expires(served):
    policy, server = served({"a": [(["infer"], ["*"])]}, clouds=False)
    key = policy.keys["a"]
    expired, second = policy.add_key("a", "--expires=2020-01-01"), policy.add_key("a", "--expires=1d")
    assert eventually(lambda: answered(server, bearer(second)) == 200)
    for headers, status in (
        (bearer(key), 200),
        ({"authorization": f"bearer {key}"}, 200),
        ({"x-api-key": key}, 200),
        ({"X-API-Key": key, **bearer(key)}, 200),
        ({"X-API-Key": key, **bearer(second)}, 401),
        (bearer(expired), 401),
        (bearer(""), 401),
        (bearer(key.upper()), 401),
        (bearer(key + "0"), 401),
        ({"X-API-Key": f"Bearer {key}"}, 401),
        ({"X-API-Key": "x" * 10_000}, 401),
        ({"Authorization": f"Basic {key}"}, 401),
        ({"Authorization": key}, 401),
        ({"Cookie": f"X-API-Key={key}"}, 401),
        ({}, 401),
    ):
        answer = infer(server, "own", BODY, headers)
        assert answer.status == status, (headers, answer)
        if status == 401:
            assert answer.headers["WWW-Authenticate"] == "Bearer" and key not in answer.json["error"]
    # One mebibyte is more than a head may have.
    with socket.create_connection(("127.0.0.1", server.port), LIMIT_S) as connection:
        try:
            connection.sendall(b"GET /v2 HTTP/1.1\r\nHost: x\r\nX-API-Key: " + b"k" * (1 << 20) + b"\r\n\r\n")
            assert connection.recv(100).startswith((b"HTTP/1.1 431 ", b"HTTP/1.1 401 "))
        except ConnectionError:
            pass
    policy.revoke(key)
    assert eventually(lambda: answered(server, bearer(key)) == 401)
    assert answered(server, bearer(second)) == 200
    # Probes go on.
    assert request(server, "GET", "/v2/health/live", headers=bearer(key)).status == 200
    assert key not in server.log and second not in server.log


def test_keys_are_listed_without_their_secrets(tmp_path):
    policy = Policy(tmp_path / "policy", {"a": [(["infer"], ["*"])], "b": [(["read"], ["*"])]})
    expired = policy.add_key("a", "--expires=2020-01-01", "--note=of a laptop")
    keys = [*policy.keys.values(), expired]

    def listed():
        return nereid("keys", "list", policy.file).splitlines()

    def lines(key):
        """The lines about a key: its second part identifies it."""
        return [line for line in listed() if key.split("_")[1] in line]

    assert [len(lines(key)) for key in keys] == [1, 1, 1]
    assert "2020-01-01, expired" in lines(expired)[0] and "of a laptop" in lines(expired)[0]
    assert "expired" not in lines(policy.keys["b"])[0]
    assert not any(key.split("_")[3] in line for key in keys for line in listed())
    policy.revoke(policy.keys["a"])
    assert [len(lines(key)) for key in keys] == [0, 1, 1]


def test_a_revoked_key_ends_on_an_open_stream(served):
    policy, server = served({"a": [(["infer"], ["own"])]}, clouds=False)
    answers, asked = [], threading.Semaphore(0)

    def requests():
        while asked.acquire():
            message = messages.ModelInferRequest(model_name="own", raw_input_contents=[np.array([7], np.int32).tobytes()])
            message.inputs.add(name="INPUT0", datatype="INT32", shape=[1])
            yield message

    with grpc.insecure_channel(server.grpc_url) as channel:
        metadata = [("x-api-key", policy.keys["a"])]
        stream = service.GRPCInferenceServiceStub(channel).ModelStreamInfer(requests(), metadata=metadata, timeout=LIMIT_S)

        def ask():
            asked.release()
            answers.append(next(stream).error_message)
            return answers[-1]

        assert ask() == ""
        policy.revoke(policy.keys["a"])
        assert eventually(lambda: "revoked" in ask())
        stream.cancel()


GRANTS = {"a": [(["infer", "read"], ["own"])], "root": ALL}
# What makes the files of a policy with these rules invalid.
DAMAGES = {
    "half": lambda policy: policy.file.write_text(policy.text(GRANTS)[:40]),
    "emptied": lambda policy: policy.file.write_text(""),
    "removed": lambda policy: policy.file.unlink(),
    "keys emptied": lambda policy: policy.keys_file.write_text(""),
    "keys removed": lambda policy: policy.keys_file.unlink(),
    # Nobody can read a folder, not even the superuser.
    "a folder": lambda policy: (policy.file.unlink(), policy.file.mkdir()),
    "keys a folder": lambda policy: (policy.keys_file.unlink(), policy.keys_file.mkdir()),
}
if os.geteuid() != 0:
    DAMAGES["unreadable"] = lambda policy: policy.file.chmod(0)
    DAMAGES["keys unreadable"] = lambda policy: policy.keys_file.chmod(0)


@contextmanager
def loaded(server, headers):
    """Two clients send requests without a pause; gives the statuses of their answers."""
    stop, statuses = threading.Event(), set()

    def load():
        connection = HTTPConnection("127.0.0.1", server.port, timeout=LIMIT_S)
        while not stop.is_set():
            connection.request("POST", "/v2/models/own/infer", BODY, headers)
            answer = connection.getresponse()
            answer.read()
            statuses.add(answer.status)
        connection.close()

    with ThreadPoolExecutor(2) as pool:
        loaders = [pool.submit(load) for _ in range(2)]
        try:
            yield statuses
        finally:
            stop.set()
    for loader in loaders:
        loader.result()


def damage_and_repair(policy, server, damage):
    a, root = bearer(policy.keys["a"]), bearer(policy.keys["root"])

    def valid():
        connection = HTTPConnection("127.0.0.1", server.metrics_port, timeout=LIMIT_S)
        connection.request("GET", "/metrics", headers=root)
        found = re.search(r"^nereid_access_policy_valid (\d)$", connection.getresponse().read().decode(), re.M)
        connection.close()
        assert found
        return found.group(1) == "1"

    keys = policy.keys_file.read_bytes()
    with loaded(server, a) as statuses:
        damage(policy)
        assert eventually(lambda: not valid())
        ready = request(server, "GET", "/v2/health/ready", headers={"Accept": "application/json"})
        assert ready.status == 200 and "earlier rules are in use" in ready.json["reason"]
        for file in (policy.file, policy.keys_file):
            if file.is_dir():
                file.rmdir()
        policy.keys_file.unlink(missing_ok=True)
        policy.keys_file.write_bytes(keys)
        policy.write(GRANTS)
        assert eventually(valid)
        ready = request(server, "GET", "/v2/health/ready", headers={"Accept": "application/json"})
        assert ready.json == {"ready": True}
    assert "cannot reload the access policy; keeping the previous one" in server.log
    assert statuses == {200}


def take_rights_away(policy, server):
    a = bearer(policy.keys["a"])
    with loaded(server, a) as statuses:
        policy.write({**GRANTS, "a": [(["read"], ["own"])]})
        assert eventually(lambda: answered(server, a) == 403)
        policy.write({"root": ALL})
        assert eventually(lambda: request(server, "GET", "/v2/models/own", headers=a).status == 403)
    assert statuses == {200, 403}


def test_the_policy_is_followed_under_load(tmp_path, repository, serve):
    """No request fails while the files are replaced by the same rules, broken, emptied, removed or made unreadable."""
    write_identity(repository, "own", ["INT32"])
    acts: dict[str, list] = {what: [partial(damage_and_repair, damage=damage)] for what, damage in DAMAGES.items()}
    acts["several"] = [*acts["half"], *acts["keys removed"], take_rights_away]
    # Changed files are noticed after seconds, so each change has a server of its own, and all happen at once.
    policies = {what: Policy(tmp_path / what, GRANTS) for what in acts}
    servers = {what: serve(policy.option) for what, policy in policies.items()}

    def perform(what):
        for act in acts[what]:
            act(policies[what], servers[what])

    with ThreadPoolExecutor(len(acts)) as pool:
        outcomes = {what: pool.submit(perform, what) for what in acts}
    failed = {what: outcome.exception() for what, outcome in outcomes.items() if outcome.exception()}
    assert not failed, failed


def test_anonymous_clients_have_the_rights_that_the_policy_says(served):
    policy, server = served({"a": [(["infer"], ["own"])]}, anonymous=[(["read"], ["own"])], clouds=False)
    for headers, reads, runs in (({}, 200, 401), (bearer(policy.keys["a"]), 403, 200), (bearer("wrong"), 401, 401)):
        assert request(server, "GET", "/v2/models/own", headers=headers).status == reads
        assert answered(server, headers) == runs
    assert request(server, "GET", "/v2/models/b-secret").status == 401


def test_a_certificate_proves_a_principal(tmp_path, repository, serve):
    write_identity(repository, "own", ["INT32"])
    policy = Policy(tmp_path / "access", {"workload": [(["infer"], ["own"])], "root": ALL})
    text = policy.file.read_text().replace("[principals.workload]\n", "[principals.workload]\ncertificates = ['worker']\n")
    policy.file.write_text(text)
    authority = Authority(tmp_path, "all")
    identity = authority.sign("server")
    files = [f"--http-server-cert={identity.certificate}", f"--http-server-key={identity.key}"]
    files.append(f"--http-root-cert={authority.certificate}")
    server = serve("--http-use-ssl-mutual=true", *files, policy.option, ready=False)

    def ask(name, method, path, headers=None):
        context = ssl.create_default_context(cafile=authority.certificate)
        client = authority.sign(name, is_here=False)
        context.load_cert_chain(client.certificate, client.key)
        connection = HTTPSConnection("localhost", server.port, timeout=LIMIT_S, context=context)
        connection.request(method, path, BODY if method == "POST" else None, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read()

    path = "/v2/models/own/infer"
    assert ask("worker", "POST", path)[0] == 200
    assert ask("worker", "GET", "/v2/models/own")[0] == 403
    # Names of principals prove nothing in a certificate.
    for name in ("root", "workload", "stranger"):
        assert ask(name, "POST", path)[0] == 401
    assert ask("stranger", "GET", "/v2/models/own", bearer(policy.keys["root"]))[0] == 200
    assert ask("worker", "POST", path, bearer("wrong"))[0] == 401


def test_tritons_clients_send_keys(served):
    policy, server = served({"a": [(["infer", "read"], ["own"])]}, clouds=False)
    headers = bearer(policy.keys["a"])
    given = tritonclient.http.InferInput("INPUT0", [3], "INT32").set_data_from_numpy(np.array([1, 2, 3], np.int32))
    with tritonclient.http.InferenceServerClient(server.url) as client:
        assert client.infer("own", [given], headers=headers).as_numpy("OUTPUT0").tolist() == [1, 2, 3]
        assert client.get_model_metadata("own", headers=headers)["name"] == "own"
        assert client.is_server_ready() and not client.is_model_ready("own")
        assert client.is_model_ready("own", headers=headers)
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        lower = {"authorization": headers["Authorization"]}
        assert client.infer("own", [numbers([4])], headers=lower).as_numpy("OUTPUT0").tolist() == [4]
        with pytest.raises(tritonclient.grpc.InferenceServerException) as caught:
            client.infer("own", [numbers([4])])
        assert caught.value.status() == "StatusCode.UNAUTHENTICATED"
        with pytest.raises(tritonclient.grpc.InferenceServerException) as caught:
            client.unload_model("own", headers=lower)
        assert caught.value.status() == "StatusCode.PERMISSION_DENIED"


def test_restricted_groups_apply_as_well(served):
    restricted = ("--http-restricted-api=inference:admin-key=1", "--grpc-restricted-protocol=inference:admin-key=1")
    policy, server = served({"a": [(["infer"], ["own"])]}, flags=restricted, clouds=False)
    key = bearer(policy.keys["a"])
    assert answered(server, key) == 403
    assert answered(server, {"admin-key": "1"}) == 401
    assert answered(server, {"admin-key": "1", **key}) == 200


def test_files_and_configurations_need_their_right(served):
    policy, server = served({"a": [(["control", "read"], ["*"])], "root": ALL}, flags=EXPLICIT, clouds=False)
    path = "/v2/repository/models/own/load"
    config = json.dumps({"parameters": {"config": json.dumps({"backend": "identity"})}})
    files = json.dumps({"parameters": {"config": "{}", "file:1/model.py": "aW1wb3J0IG9z"}})
    for body, status in (("", 200), ("{}", 200), (config, 403), (files, 403)):
        answer = request(server, "POST", path, body, bearer(policy.keys["a"]))
        assert answer.status == status, answer
        if status == 403:
            assert "'files'" in answer.json["error"]
    assert request(server, "POST", path, config, bearer(policy.keys["root"])).status != 403
    assert request(server, "POST", "/v2/repository/models/own/unload", "{}", bearer(policy.keys["a"])).status == 200


def test_shared_memory_needs_its_right_in_inferences(served):
    policy, server = served({"a": [(["infer"], ["*"])], "root": ALL}, clouds=False)
    region = {"shared_memory_region": "r", "shared_memory_byte_size": 4}
    body = json.dumps({"inputs": [tensor("INPUT0", "INT32", [1], **region)]})
    refused = infer(server, "own", body, bearer(policy.keys["a"]))
    assert refused.status == 403 and "'admin'" in refused.json["error"]
    assert infer(server, "own", body, bearer(policy.keys["root"])).status not in (401, 403)


def test_what_a_model_does_not_support_is_no_missing_right(served):
    policy, server = served({"a": [(["infer"], ["*"])]}, clouds=False)
    too_long = {"parameters": {"sequence_id": "x" * 1000}}
    answer = infer(server, "own", json.dumps({**json.loads(BODY), **too_long}), bearer(policy.keys["a"]))
    assert answer.status not in (200, 401, 403) and "the correlation ID has 1000 bytes" in answer.json["error"], answer
    message = messages.ModelInferRequest(model_name="own", raw_input_contents=[np.array([7], np.int32).tobytes()])
    message.inputs.add(name="INPUT0", datatype="INT32", shape=[1])
    message.parameters["sequence_id"].string_param = "x" * 1000
    metadata = [("x-api-key", policy.keys["a"])]
    with grpc.insecure_channel(server.grpc_url) as channel:
        stub = service.GRPCInferenceServiceStub(channel)
        with pytest.raises(grpc.RpcError, match="the correlation ID has 1000 bytes"):
            stub.ModelInfer(message, metadata=metadata, timeout=LIMIT_S)
        [streamed] = stub.ModelStreamInfer(iter([message]), metadata=metadata, timeout=LIMIT_S)
        assert "the correlation ID has 1000 bytes" in streamed.error_message


def test_requests_beyond_a_rate_are_refused_with_the_time_of_the_next(served):
    limited = {name: [(["infer", "read"], ["*"], "requests-per-second = 1")] for name in ("a", "b")}
    policy, server = served(limited, clouds=False)
    a, b = (bearer(policy.keys[name]) for name in "ab")
    assert answered(server, a) == 200
    refused = next(answer for answer in (infer(server, "own", BODY, a) for _ in range(100)) if answer.status != 200)
    assert refused.status == 429 and "1 requests a second" in refused.json["error"]
    names = ("Retry-After", "RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset")
    assert [refused.headers[name] for name in names] == ["1", "1", "0", "1"]
    # Other principals, models and requests have limits of their own, or none.
    assert answered(server, b) == 200 and infer(server, "b-secret", BODY, a).status == 200
    assert all(request(server, "GET", "/v2/models/own", headers=a).status == 200 for _ in range(5))
    assert infer(server, "absent", BODY, a).status == 404
    metadata = [("x-api-key", policy.keys["a"])]
    with grpc.insecure_channel(server.grpc_url) as channel:
        stub = service.GRPCInferenceServiceStub(channel)
        message = messages.ModelInferRequest(model_name="own", raw_input_contents=[np.array([7], np.int32).tobytes()])
        message.inputs.add(name="INPUT0", datatype="INT32", shape=[1])
        with pytest.raises(grpc.RpcError) as caught:
            for _ in range(100):
                stub.ModelInfer(message, metadata=metadata)
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert 0 < int(dict(caught.value.trailing_metadata())["grpc-retry-pushback-ms"]) <= 1000
        errors = [answer.error_message for answer in stub.ModelStreamInfer(iter([message] * 5), metadata=metadata)]
        assert any("1 requests a second" in error for error in errors) and len(errors) == 5
    time.sleep(1.1)
    assert answered(server, a) == 200


def test_requests_in_progress_are_limited(tmp_path, repository, serve, gate):
    write_identity(repository, "own", ["INT32"], gate=gate.path)
    limited = [(["infer"], ["*"], "concurrent-requests = 1")]
    policy = Policy(tmp_path / "access", {"a": limited, "b": limited})
    server = serve(policy.option)
    a, b = (bearer(policy.keys[name]) for name in "ab")
    statuses = []
    waiting = [threading.Thread(target=lambda key=key: statuses.append(answered(server, key))) for key in (a, b)]
    waiting[0].start()
    gate.entered()
    waiting[1].start()
    for path, body in (("infer", BODY), ("generate", '{"INPUT0": [1]}'), ("generate_stream", '{"INPUT0": [1]}')):
        refused = request(server, "POST", f"/v2/models/own/{path}", body, a)
        assert refused.status == 429 and "1 requests in progress" in refused.json["error"]
    gate.open()
    for thread in waiting:
        thread.join()
    assert statuses == [200, 200] and answered(server, a) == 200


def test_a_flood_by_one_principal_leaves_others_their_requests(served):
    """Under its quota, a flood is refused before it takes anything from others."""
    flood = [(["infer"], ["*"], "requests-per-second = 20\nconcurrent-requests = 2")]
    policy, server = served({"flood": flood, "calm": [(["infer"], ["*"])]}, clouds=False)
    stop, lock = threading.Event(), threading.Lock()
    statuses: Counter[int] = Counter()

    def storm():
        connection = HTTPConnection("127.0.0.1", server.port, timeout=LIMIT_S)
        while not stop.is_set():
            connection.request("POST", "/v2/models/own/infer", BODY, bearer(policy.keys["flood"]))
            answer = connection.getresponse()
            answer.read()
            with lock:
                statuses[answer.status] += 1

    storms = [threading.Thread(target=storm) for _ in range(8)]
    began = time.monotonic()
    for one in storms:
        one.start()
    try:
        assert all(answered(server, bearer(policy.keys["calm"])) == 200 for _ in range(200))
        assert eventually(lambda: statuses[429] > 200)
    finally:
        stop.set()
        for one in storms:
            one.join()
    # As many as a second may have at once, and then that many each second.
    assert set(statuses) == {200, 429} and statuses[200] <= 20 * (time.monotonic() - began + 1)


def scraped(server, headers):
    """The values of the metrics of principals, by name and principal."""
    connection = HTTPConnection("127.0.0.1", server.metrics_port, timeout=LIMIT_S)
    connection.request("GET", "/metrics", headers=headers)
    lines = connection.getresponse().read().decode().splitlines()
    connection.close()
    found = [re.match(r'nereid_principal_(\w+)\{principal="([^"]+)"\} (\S+)', line) for line in lines]
    return {(match[1], match[2]): float(match[3]) for match in found if match}


def test_bytes_and_computing_are_limited_and_counted_by_principal(tmp_path, repository, serve):
    write_identity(repository, "own", ["INT32"])
    write_identity(repository, "slow", ["INT32"], execute_delay_ms=1300)
    limited = {
        # A minute's worth in one request leaves the time for refusals, and a second's worth is soon given again.
        "bytes": [(["infer"], ["*"], "bytes-per-second = 100")],
        "others": [(["infer"], ["*"], "bytes-per-second = 3000")],
        "compute": [(["infer"], ["slow"], "compute-seconds-per-minute = 2"), (["infer"], ["*"])],
        "root": ALL,
    }
    policy = Policy(tmp_path / "access", limited)
    server = serve(policy.option)
    keys = {name: bearer(key) for name, key in policy.keys.items()}
    large = json.dumps({"inputs": [tensor("INPUT0", "INT32", [2000], [1] * 2000)]})
    assert infer(server, "own", large, keys["bytes"]).status == 200
    refused = infer(server, "own", BODY, keys["bytes"])
    assert refused.status == 429 and "100 bytes a second is used up" in refused.json["error"]
    assert 1 <= int(refused.headers["Retry-After"]) <= len(large) / 100 and refused.headers["RateLimit-Limit"] == "100"
    with grpc.insecure_channel(server.grpc_url) as channel:
        stub = service.GRPCInferenceServiceStub(channel)
        message = messages.ModelInferRequest(model_name="own", raw_input_contents=[np.ones(2000, np.int32).tobytes()])
        message.inputs.add(name="INPUT0", datatype="INT32", shape=[2000])
        metadata = [("x-api-key", policy.keys["bytes"])]
        with pytest.raises(grpc.RpcError) as caught:
            stub.ModelInfer(message, metadata=metadata)
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    for _ in range(2):
        assert eventually(lambda: infer(server, "own", large, keys["others"]).status == 200)
    # Both together take more than the two seconds.
    statuses = [infer(server, "slow", BODY, keys["compute"]).status for _ in range(4)]
    assert statuses == [200, 200, 429, 429]
    assert infer(server, "own", BODY, keys["compute"]).status == 200
    found = scraped(server, keys["root"])
    assert found["requests_total", "compute"] == 3 and found["requests_over_limit_total", "compute"] == 2
    assert 2.6 <= found["compute_seconds_total", "compute"] < LIMIT_S
    assert found["request_bytes_total", "bytes"] >= len(large)
    assert found["request_bytes_total", "compute"] == 3 * len(BODY)
    assert scraped(server, keys["compute"]) == {}


def test_the_log_of_requests_names_the_principal(served):
    policy, server = served({"ann": [(["infer"], ["own"])]}, flags=("--log-requests=true", "--log-format=JSON"), clouds=False)
    answered(server, bearer(policy.keys["ann"]))
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        client.infer("own", [numbers([4])], headers={"x-api-key": policy.keys["ann"]})
    for call in ("HTTP POST /v2/models/own/infer", "gRPC /inference.GRPCInferenceService/ModelInfer"):
        line = server.wait_for_log(rf".*{re.escape(call)}.*").group()
        assert '"ann"' in line, line


def test_a_broken_policy_is_refused_at_start(tmp_path, repository):
    file = tmp_path / "access.toml"
    for text, reason in (
        ("", "neither principals, nor issuers of tokens, nor"),
        ("[principals.a]\nroles = ['b']", r":2: unknown role 'b'"),
        ("[roles.a]\nrights = ['infr']\nmodels = ['*']", r":2: unknown right 'infr'; did you mean 'infer'"),
        ("keys = 'none'\n[anonymous]", "nereid keys add"),
    ):
        file.write_text(text)
        server = nereid_server.refused_start(repository, f"--access={file}")
        assert server.exit_code != 0 and reason in server.log, server.log


def test_the_guide_gives_two_teams_keys_and_a_dashboard(tmp_path, repository, serve):
    """The guide's own policy and keys, with all rights; tests/end_to_end/guides follows it as printed."""
    page = PAGE.read_text()
    policy = re.search(r"```toml\n(.*?)```", page, re.S)
    assert policy
    (tmp_path / "access.toml").write_text(policy.group(1))
    keys = {}
    for line in re.findall(r"^\$ nereid ((?:keys add|access check) .*)$", page, re.M):
        command = [nereid_server.binary(), *shlex.split(line.partition(" > ")[0])]
        outcome = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert outcome.returncode == 0, outcome
        if line.startswith("keys add"):
            keys[command[4]] = bearer(outcome.stdout.strip())
    assert set(keys) == {"vision", "speech", "dashboard", "operator"}
    for model in ("vision-1", "speech-1", "embedder"):
        write_identity(repository, model, ["INT32"])
    server = serve(f"--access={tmp_path / 'access.toml'}", *EXPLICIT)
    runs = {"vision": {"vision-1", "embedder"}, "speech": {"speech-1", "embedder"}, "dashboard": set()}
    everything = {"vision-1", "speech-1", "embedder"}
    reads = runs | {"dashboard": everything, "operator": everything}
    runs["operator"] = everything
    for who, key in keys.items():
        assert {model for model in everything if infer(server, model, BODY, key).status == 200} == runs[who]
        index = request(server, "POST", "/v2/repository/index", headers=key).json
        assert {entry["name"] for entry in index} == reads[who]
        loads = {
            model for model in everything if request(server, "POST", f"/v2/repository/models/{model}/load", "", key).status == 200
        }
        assert loads == {"speech": runs["speech"], "operator": everything}.get(who, set())


def test_access_check_says_who_may_do_what_and_why(tmp_path):
    policy = Policy(tmp_path, {"a": [(["infer"], ["a-*"])]}, anonymous=[])
    assert re.search(r"infer +\| yes +\| role 'a-0' on 'a-\*'", nereid("access", "check", policy.file, "a", "a-1"))
    assert re.search(r"infer +\| no ", nereid("access", "check", policy.file, "a", "b"))
    assert re.search(r"read +\| no ", nereid("access", "check", policy.file, "anonymous", "a-1"))
    assert "a (keys: 1, certificates: 0)" in nereid("access", "check", policy.file)
    policy.file.write_text("[roles.a]\nright = []")
    outcome = subprocess.run([nereid_server.binary(), "access", "check", policy.file], capture_output=True, text=True)
    assert outcome.returncode == 1 and "access.toml:2: roles.a: unknown name 'right'; did you mean 'rights'?" in outcome.stderr


@pytest.mark.parametrize(
    "number, face, row",
    [
        ("CVE-2026-24206", "SageMaker", "POST /invocations"),
        ("CVE-2026-24207", "SageMaker", "POST /models/{model}/invoke"),
        ("CVE-2026-24207", "Vertex AI", "POST (predict route)"),
        ("CVE-2026-47481", "Vertex AI", "POST (predict route), redirected to v2/models/{model}/infer"),
        ("CVE-2026-47481", "HTTP", "POST /v2/models/{model}/generate_stream"),
        ("CVE-2026-47625", "HTTP", "POST /v2/repository/{repository}/models/{model}/load"),
        ("CVE-2026-47625", "SageMaker", "POST /models"),
    ],
)
def test_weaknesses_of_alternate_paths(served, number, face, row):
    """Each was an alternate path, around the keys or rights of the ordinary one, in the reference."""
    policy, server = served({"reader": [(["read"], ["*"])]}, flags=EXPLICIT)
    faces = Faces(server)
    (row,) = [found for found in rows() if (found.face, found.request) == (face, row)]
    for headers, status in (({}, 401), (bearer("wrong"), 401), (bearer(policy.keys["reader"]), 403)):
        assert faces.ask(row, headers)[0] == status, number
    faces.close()

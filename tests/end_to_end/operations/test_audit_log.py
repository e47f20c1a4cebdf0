"""The audit log: every change by a client over every protocol, refusals, rotation, and files that cannot be written."""

import json
import os
import re
import signal
import time
from http.client import HTTPConnection

import grpc
import pytest
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc import service_pb2_grpc as service

import nereid_server
from access_faces import ALL_FACES, BODY, EXPLICIT, Faces, faces_environment
from access_policies import RIGHTS, Policy, bearer, rows
from http_requests import infer, request
from model_files import write_identity
from waiting import eventually

LIMIT_S = 30
CHANGES = re.compile(
    r"/load$|/unload$|register$|POST /v2/logging$|POST .*trace/setting$|POST .*/release$|(POST|DELETE) /models|Repository.*(Load|Unload)$|Register$"
)


@pytest.fixture
def log(tmp_path):
    return tmp_path / "audit.jsonl"


@pytest.fixture
def audited(tmp_path, repository, serve, log):
    """Starts a server with an audit log under a policy, with every face."""

    def start(principals, *flags):
        write_identity(repository, "own", ["INT32"])
        policy = Policy(tmp_path / "access", principals)
        return policy, serve(policy.option, f"--audit-log={log}", *EXPLICIT, *ALL_FACES, *flags, env=faces_environment())

    return start


def lines(log):
    return [json.loads(line) for line in log.read_text().splitlines()]


def last_reason(log):
    """The reason in the last line, if there is one yet."""
    return next((line.get("reason", "") for line in reversed(lines(log))), "")


def test_every_change_is_recorded_with_who_made_it(audited, log):
    policy, server = audited({"root": [(RIGHTS, ["*"])]})
    key, faces = policy.keys["root"], Faces(server)
    changes = [row for row in rows() if CHANGES.search(row.request) and "/invoke" not in row.request]
    assert len(changes) > 25 and {row.face for row in changes} == {"HTTP", "OpenAI", "gRPC", "SageMaker"}
    for row in changes:
        before = len(lines(log))
        status, _ = faces.ask(row, bearer(key))
        assert eventually(lambda before=before: len(lines(log)) > before), row
        line = lines(log)[-1]
        assert line["principal"] == "root" and line["key"] == key.split("_")[1] and line["address"] == "127.0.0.1", line
        succeeded = status == grpc.StatusCode.OK or status in range(200, 300)
        assert line["outcome"] == ("done" if succeeded else "failed"), (row, status, line)
        assert ("status" in line) != succeeded
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", line["time"])
        method, path = row.request.split(" ") if row.face != "gRPC" else ("", f"/{row.request}")
        assert line["request"].startswith(f"{'gRPC' if row.face == 'gRPC' else 'HTTP ' + method} {path[:8]}"), line
        if "{model}" in row.request or "Model" in row.request or (row.face, method) == ("SageMaker", "POST"):
            assert line["subject"] == "own", (row, line)
        if "{region}" in row.request:
            assert line["subject"] == "r"
    # Neither other requests nor refused ones are changes.
    before = len(lines(log))
    for row in rows():
        if row.needs.startswith(("`read`", "`infer`", "none")) or row.request.startswith("GET"):
            faces.ask(row, bearer(key))
    assert len(lines(log)) == before
    faces.close()
    assert key not in log.read_text() and key.split("_")[3] not in log.read_text()


def test_a_line_says_what_a_request_turned_out_to_do(audited, log):
    policy, server = audited({"root": [(RIGHTS, ["*"])]})
    key = policy.keys["root"]
    config = json.dumps({"parameters": {"config": json.dumps({"backend": "identity"})}})
    request(server, "POST", "/v2/repository/models/own/load", config, bearer(key))
    request(server, "POST", "/v2/logging", json.dumps({"log_verbose_level": 0}), bearer(key))
    with grpc.insecure_channel(server.grpc_url) as channel:
        stub, metadata = service.GRPCInferenceServiceStub(channel), [("x-api-key", key)]
        stub.LogSettings(messages.LogSettingsRequest(), metadata=metadata)
        change = messages.LogSettingsRequest(
            settings={"log_verbose_level": messages.LogSettingsRequest.SettingValue(uint32_param=0)}
        )
        stub.LogSettings(change, metadata=metadata)
        stub.TraceSetting(messages.TraceSettingRequest(model_name="own"), metadata=metadata)
        rate = messages.TraceSettingRequest.SettingValue(value=["7"])
        stub.TraceSetting(messages.TraceSettingRequest(model_name="own", settings={"trace_rate": rate}), metadata=metadata)
        load = messages.RepositoryModelLoadRequest(model_name="own")
        load.parameters["config"].string_param = json.dumps({"backend": "identity"})
        with pytest.raises(grpc.RpcError):
            stub.RepositoryModelLoad(messages.RepositoryModelLoadRequest(model_name="absent"), metadata=metadata)
    expected = [
        ("load-files", "own"),
        ("change-log", None),
        ("change-log", None),
        ("change-trace", "own"),
        ("load", "absent"),
    ]
    assert eventually(lambda: [(line["action"], line.get("subject")) for line in lines(log)] == expected), lines(log)
    assert lines(log)[-1]["outcome"] == "failed" and lines(log)[-1]["status"]


def test_refusals_are_recorded_without_secrets(audited, log):
    policy, server = audited({"reader": [(["read"], ["own"])]}, "--http-restricted-api=logging:admin-key=secret-value")
    key = policy.keys["reader"]
    wrong = key[:-1] + ("0" if key[-1] != "0" else "1")
    for headers, outcome, reason in (
        (bearer(key), "reader", "this needs the right 'infer', which 'reader' does not have"),
        (bearer(wrong), None, "unknown or was revoked"),
        ({}, None, "this needs the right 'infer'"),
    ):
        assert infer(server, "own", BODY, headers).status in (401, 403)
        assert eventually(lambda reason=reason: reason in last_reason(log))
        line = lines(log)[-1]
        assert (line["action"], line["outcome"], line["subject"], line.get("principal")) == ("infer", "refused", "own", outcome)
        assert line["address"] == "127.0.0.1"
    with grpc.insecure_channel(server.grpc_url) as channel:
        stub = service.GRPCInferenceServiceStub(channel)
        with pytest.raises(grpc.RpcError):
            stub.RepositoryModelUnload(messages.RepositoryModelUnloadRequest(model_name="own"), metadata=[("x-api-key", key)])
    request(server, "POST", "/v2/logging", "{}", {**bearer(key), "admin-key": "wrong-value"})
    assert eventually(lambda: "admin-key" in last_reason(log))
    assert [line["action"] for line in lines(log)] == ["infer", "infer", "infer", "unload", "change-log"]
    for secret in (key, key.split("_")[3], wrong, "secret-value", "wrong-value"):
        assert secret not in log.read_text()


def test_a_flood_of_refusals_does_not_fill_the_disk(audited, log):
    _, server = audited({"root": [(RIGHTS, ["*"])]})
    began, count = time.monotonic(), 0
    connection = HTTPConnection("127.0.0.1", server.port, timeout=LIMIT_S)
    while time.monotonic() - began < 3 or count < 1000:
        connection.request("GET", "/v2/models/own", headers=bearer(f"nereid_{count}"))
        answer = connection.getresponse()
        assert answer.status == 401 and answer.read()
        count += 1
    seconds = time.monotonic() - began
    connection.close()
    assert len(lines(log)) <= 102 * (seconds + 1)


def test_the_file_is_reopened_by_sighup(audited, log):
    policy, server = audited({"root": [(RIGHTS, ["*"])]})
    key, old = bearer(policy.keys["root"]), log.with_suffix(".1")

    def unload(name):
        request(server, "POST", f"/v2/repository/models/{name}/unload", "{}", key)

    assert log.stat().st_mode & 0o777 == 0o600
    unload("a")
    assert eventually(lambda: len(lines(log)) == 1)
    log.rename(old)
    unload("b")
    assert eventually(lambda: [line["subject"] for line in lines(old)] == ["a", "b"])
    os.kill(server.pid, signal.SIGHUP)
    server.wait_for_log("reopened the audit log")
    unload("c")
    assert eventually(lambda: [line["subject"] for line in lines(log)] == ["c"])
    # A folder in its place: the file goes on.
    log.rename(old)
    log.mkdir()
    os.kill(server.pid, signal.SIGHUP)
    server.wait_for_log("cannot reopen the audit log .*; the old file goes on")
    unload("d")
    assert eventually(lambda: [line["subject"] for line in lines(old)] == ["c", "d"])


def test_a_full_disk_stops_no_request(audited, log):
    log.symlink_to("/dev/full")
    policy, server = audited({"root": [(RIGHTS, ["*"])]})
    key = bearer(policy.keys["root"])
    for number in range(1, 4):
        assert request(server, "POST", "/v2/repository/models/own/load", "{}", key).status == 200

        def lost(number=number):
            connection = HTTPConnection("127.0.0.1", server.metrics_port, timeout=LIMIT_S)
            connection.request("GET", "/metrics", headers=key)
            return f'nereid_audit_events_total{{outcome="lost"}} {number}\n' in connection.getresponse().read().decode()

        assert eventually(lost)
    assert len(re.findall("cannot write the audit log .*No space left on device", server.log)) == 1
    log.unlink()
    os.kill(server.pid, signal.SIGHUP)
    server.wait_for_log("reopened the audit log")
    request(server, "POST", "/v2/repository/models/own/load", "{}", key)
    server.wait_for_log("is written again; 3 lines are lost so far")
    assert [line["action"] for line in lines(log)] == ["load"]


def test_an_unusable_file_is_refused_at_start(repository, tmp_path):
    server = nereid_server.refused_start(repository, f"--audit-log={tmp_path}")
    assert server.exit_code != 0 and "cannot open the audit log" in server.log


def test_changes_are_recorded_without_a_policy(repository, serve, log):
    write_identity(repository, "own", ["INT32"])
    server = serve(f"--audit-log={log}", *EXPLICIT)
    assert request(server, "POST", "/v2/repository/models/own/load", "{}").status == 200
    with grpc.insecure_channel(server.grpc_url) as channel:
        service.GRPCInferenceServiceStub(channel).RepositoryModelLoad(messages.RepositoryModelLoadRequest(model_name="own"))
    assert eventually(lambda: len(lines(log)) == 2)
    for line in lines(log):
        assert (line["action"], line["subject"], line["address"]) == ("load", "own", "127.0.0.1") and "principal" not in line

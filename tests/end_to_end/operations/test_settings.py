"""Log and trace settings over HTTP: Triton's client reads and changes them, and the log follows."""

import json
import os
import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import numpy
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http
from tritonclient.utils import InferenceServerException

import nereid_server
from http_requests import request, tensor
from model_files import scale_model, write_identity
from waiting import eventually

INPUTS = {"inputs": [tensor("X", "FP32", [1, 3], [1.0, 2.0, 3.0])]}


@pytest.fixture
def server(repository, serve):
    write_identity(repository, "same", ["INT32"])
    return serve()


@pytest.fixture
def client(server):
    with tritonclient.http.InferenceServerClient(server.url) as client:
        yield client


def test_the_client_reads_and_changes_log_settings(client):
    expected = {
        "log_file": "",
        "log_info": True,
        "log_warning": True,
        "log_error": True,
        "log_verbose_level": 0,
        "log_format": "default",
    }
    assert client.get_log_settings() == expected
    expected |= {"log_info": False, "log_verbose_level": 1}
    assert client.update_log_settings({"log_info": False, "log_verbose_level": 1}) == expected
    assert client.get_log_settings() == expected
    with pytest.raises(InferenceServerException):
        client.update_log_settings({"log_file": "elsewhere"})


def test_the_log_follows_its_settings_at_once(server, client):
    """A connection that breaks off is a verbose message; when the server ends is information."""

    def break_off():
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(b"nonsense\r\n\r\n")
            # The server logs it when it closes the connection.
            while connection.recv(1000):
                pass

    def verbose_lines():
        return [line for line in server.log.splitlines() if "connection failed" in line]

    break_off()
    assert not verbose_lines()
    client.update_log_settings({"log_verbose_level": 1, "log_format": "ISO8601"})
    break_off()
    server.wait_for_log(r'^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ I \d+ serve\.rs:\d+\] "an HTTP connection failed')
    client.update_log_settings({"log_verbose_level": 0, "log_format": "default", "log_info": False})
    before = verbose_lines()
    break_off()
    # A later one is logged, so this one would have been, too.
    client.update_log_settings({"log_verbose_level": 1})
    break_off()
    assert eventually(lambda: len(verbose_lines()) > len(before))
    assert len(verbose_lines()) == len(before) + 1
    server.stop()
    assert "all requests are answered" not in server.log


def requests_in(server):
    """The lines of the log of requests, without those of the tests' own probes."""
    lines = (json.loads(line) for line in server.log.splitlines() if line.startswith("{"))
    return [line for line in lines if "status" in line and "/health/" not in line["message"]]


def test_requests_are_logged_as_json_where_an_option_says_so(repository):
    scale_model("scale").write(repository)
    with nereid_server.running(repository, "--log-requests=true", "--log-format=JSON") as server:
        body = json.dumps(INPUTS).encode()
        answers = [
            request(server, "POST", "/v2/models/scale/infer?a=b", body),
            request(server, "POST", "/v2/models/none/infer", body),
            request(server, "GET", "/nowhere"),
        ]
        with grpcclient.InferenceServerClient(server.grpc_url) as client:
            client.get_server_metadata()
            with pytest.raises(InferenceServerException):
                client.get_model_metadata("none")
        assert eventually(lambda: len(requests_in(server)) == 5)
        http, grpc = requests_in(server)[:3], requests_in(server)[3:]
    assert [line["message"] for line in http] == [
        "HTTP POST /v2/models/scale/infer",
        "HTTP POST /v2/models/none/infer",
        "HTTP GET /nowhere",
    ]
    assert [(line["status"], line["bytes"]) for line in http] == [(str(it.status), len(it.body)) for it in answers]
    assert [(line["message"].rsplit("/")[-1], line["status"]) for line in grpc] == [
        ("ServerMetadata", "Ok"),
        ("ModelMetadata", "NotFound"),
    ]
    assert all(line["level"] == "info" and line["microseconds"] > 0 for line in http + grpc)


def test_a_hook_delays_answers_over_grpc_but_for_inference(repository):
    scale_model("scale").write(repository)
    env = os.environ | {"TRITONSERVER_SERVER_DELAY_GRPC_RESPONSE_SEC": "3", "TRITON_SERVER_ESCAPE_LOG_MESSAGES": "0"}
    with nereid_server.running(repository, env=env) as server:
        assert re.search(r"\] Started HTTPService at ", server.log)
        with grpcclient.InferenceServerClient(server.grpc_url) as client:
            with pytest.raises(InferenceServerException, match="Deadline Exceeded"):
                client.is_server_live(client_timeout=0.2)
            numbers = grpcclient.InferInput("X", [1, 3], "FP32")
            numbers.set_data_from_numpy(numpy.ones([1, 3], numpy.float32))
            start = time.monotonic()
            with ThreadPoolExecutor(1) as pool:
                live = pool.submit(client.is_server_live)
                client.infer("scale", [numbers])
                assert not live.done()
                assert live.result()
            assert time.monotonic() - start >= 3


def test_a_log_file_takes_the_lines(repository, tmp_path):
    log = tmp_path / "nereid.log"
    log.write_text("what was there\n")
    server = nereid_server.Server(repository, f"--log-file={log}", "--log-format=ISO8601")
    try:
        deadline = time.monotonic() + 30
        while "Started HTTPService" not in log.read_text():
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)
        server.stop()
    finally:
        server.kill()
    lines = log.read_text().splitlines()
    assert lines[0] == "what was there"
    assert lines[-1][:4].isdigit() and "Z I " in lines[-1]
    assert server.log == ""


def test_an_unwritable_log_file_is_refused_at_start(repository, tmp_path):
    server = nereid_server.refused_start(repository, f"--log-file={tmp_path}")
    assert server.exit_code != 0 and str(tmp_path) in server.log


def test_unknown_settings_of_built_in_backends_are_named(repository, serve):
    write_identity(repository, "same", ["INT32"])
    settings = ["python,execute-timeout-second=5", "openvino,foo=1", "python,sandbox.m=on", "own,foo=1", "foo=1"]
    server = serve(*(f"--backend-config={setting}" for setting in settings))
    server.wait_for_log("--backend-config=python,execute-timeout-second has no effect: .* did you mean 'execute-timeout-seconds'")
    server.wait_for_log("--backend-config=openvino,foo has no effect: the built-in backend 'openvino' has no such setting")
    assert server.log.count("has no effect") == 2, server.log


def test_the_client_reads_and_changes_trace_settings(client):
    assert client.get_trace_settings()["trace_rate"] == "1000"
    changed = client.update_trace_settings(settings={"trace_rate": "77", "log_frequency": "9"})
    assert (changed["trace_rate"], changed["log_frequency"]) == ("77", "9")
    assert client.get_trace_settings(model_name="same") == changed
    own = client.update_trace_settings(model_name="same", settings={"trace_rate": "3", "trace_level": None})
    assert own == changed | {"trace_rate": "3"}
    assert client.get_trace_settings() == changed
    client.update_trace_settings(model_name="same", settings={"trace_rate": None})
    assert client.get_trace_settings(model_name="same") == changed
    for wrong in ({"trace_file": "x"}, {"trace_rate": "many"}, {"trace_level": ["TIMESTAMPS"]}):
        with pytest.raises(InferenceServerException):
            client.update_trace_settings(settings=wrong)
    with pytest.raises(InferenceServerException):
        client.get_trace_settings(model_name="other")


def test_trace_settings_begin_as_the_command_line_says(repository, serve):
    write_identity(repository, "same", ["INT32"])
    options = ["level=TIMESTAMPS", "rate=500", "count=7", "triton,file=/tmp/trace.json", "triton,log-frequency=3"]
    server = serve(*[f"--trace-config={option}" for option in options], "--trace-rate=3")
    expected = {
        "trace_level": ["TIMESTAMPS"],
        "trace_rate": "500",
        "trace_count": "7",
        "log_frequency": "3",
        "trace_file": "/tmp/trace.json",
        "trace_mode": "triton",
    }
    assert "--trace-rate has been deprecated" in server.log
    with tritonclient.http.InferenceServerClient(server.url) as client:
        assert client.get_trace_settings() == expected
        client.update_trace_settings(settings={"trace_rate": "2", "trace_level": ["OFF"]})
        assert client.update_trace_settings(settings={"trace_rate": None, "trace_level": None}) == expected


def test_collector_settings_replace_those_of_files(serve):
    options = ["mode=opentelemetry", "opentelemetry,url=http://localhost:4318/v1/traces", "triton,file=unused"]
    server = serve(*[f"--trace-config={option}" for option in options], env=None)
    with tritonclient.http.InferenceServerClient(server.url) as client:
        settings = client.get_trace_settings()
    assert settings["trace_mode"] == "opentelemetry" and settings["url"] == "http://localhost:4318/v1/traces"
    assert {"bsp_max_queue_size", "bsp_schedule_delay", "bsp_max_export_batch_size"} <= set(settings)
    assert not {"log_frequency", "trace_file"} & set(settings)


@pytest.mark.parametrize("option", ["--trace-config=level=ALL", "--trace-config=zipkin,url=x", "--trace-rate=-1"])
def test_invalid_trace_options_are_refused_at_start(repository, option):
    server = nereid_server.refused_start(repository, option)
    assert server.exit_code == 2 and option.split("=", 1)[0] in server.log

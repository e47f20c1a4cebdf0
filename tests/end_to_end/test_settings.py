"""Log and trace settings over HTTP: Triton's client reads and changes them, and the log follows."""

import socket
import time

import pytest
import tritonclient.http
from tritonclient.utils import InferenceServerException

import nereid_server
from model_files import write_identity


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
            connection.recv(1000)

    def verbose_lines():
        return [line for line in server.log.splitlines() if "connection failed" in line]

    break_off()
    assert not verbose_lines()
    client.update_log_settings({"log_verbose_level": 1, "log_format": "ISO8601"})
    break_off()
    server.wait_for_log(r'^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ V \d+ serve\.rs:\d+\] "an HTTP connection failed')
    client.update_log_settings({"log_verbose_level": 0, "log_format": "default", "log_info": False})
    before = verbose_lines()
    break_off()
    time.sleep(0.2)
    assert verbose_lines() == before
    server.stop()
    assert "all requests are answered" not in server.log


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
    assert "--trace-rate is deprecated" in server.log
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

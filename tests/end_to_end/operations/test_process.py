"""The process: start, refused starts, shutdown."""

import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException

import pytest
import tritonclient.grpc as grpcclient

import nereid_server
from http_requests import LIMIT_S, infer, request, tensor
from model_files import scale_model, write_identity
from scrapes import Scrape
from waiting import eventually

GOOD = {"inputs": [tensor("X", "FP32", [1, 3], [1.0, 2.0, 3.0])]}
SLOW = {"inputs": [tensor("INPUT0", "INT32", [2], [7, 8])]}
# Far less than the 30 s the server grants by default to what is in flight.
# Less than the exit timeout, which is 30 seconds.
PROMPT_S = 20


@pytest.fixture
def slow(repository, gate):
    """A model with one instance, whose executions wait at the gate."""
    write_identity(repository, "slow", ["INT32"], gate=gate.path)


def assert_one_clear_complaint(server, about):
    """One line of severity error, the last of the log, with what it is about."""
    assert server.exit_code > 0
    assert len(server.complaints) == 1, server.log
    assert about in server.complaints[0]
    assert server.log.splitlines()[-1] == server.complaints[0]


def test_a_port_in_use_is_refused_with_one_clear_line(repository):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = nereid_server.refused_start(repository, port=port)
    assert_one_clear_complaint(server, str(port))


MODES = ["--model-control-mode=none", "--model-control-mode=explicit", "--model-control-mode=poll"]


@pytest.mark.parametrize("mode", MODES)
def test_a_missing_repository_is_refused_with_one_clear_line(repository, mode):
    missing = repository / "no" / "such" / "folder"
    assert_one_clear_complaint(nereid_server.refused_start(missing, mode), str(missing))
    # Nor does another one help.
    server = nereid_server.refused_start(repository, mode, f"--model-repository={missing}")
    assert_one_clear_complaint(server, str(missing))


def health(server):
    """The statuses of liveness and readiness over HTTP, and the answers over gRPC."""
    http = tuple(request(server, "GET", f"/v2/health/{check}").status for check in ("live", "ready"))
    with grpcclient.InferenceServerClient(server.grpc_url) as client:
        return http, (client.is_server_live(), client.is_server_ready())


@pytest.mark.parametrize("mode", MODES)
def test_a_missing_repository_may_be_survived_without_being_live(repository, mode):
    scale_model("scale").write(repository)
    missing = repository.parent / "missing"
    flags = (mode, "--repository-poll-secs=1", f"--model-repository={missing}", "--exit-on-error=false")
    server = nereid_server.Server(repository, *flags)
    try:
        server.wait_until_listening()
        server.wait_for_log("the server is not live: ")
        assert health(server) == ((400, 400), (False, False))
        assert len(server.complaints) == 1 and str(missing) in server.complaints[0]
        assert infer(server, "scale", GOOD).status == 404
        missing.mkdir()
        if "poll" in mode:
            assert eventually(lambda: health(server) == ((200, 200), (True, True)))
            assert infer(server, "scale", GOOD).status == 200
        server.stop()
    finally:
        server.kill()


def test_a_repository_that_is_a_file_is_refused_with_one_clear_line(repository):
    file = repository / "file"
    file.write_text("")
    assert_one_clear_complaint(nereid_server.refused_start(file), str(file))


def test_an_unknown_flag_is_refused(repository):
    server = nereid_server.refused_start(repository, "--no-such-flag=1")
    assert server.exit_code > 0
    assert "no-such-flag" in server.log


@pytest.mark.parametrize("flag", ["--http-port=many", "--http-port=70000", "--exit-on-error=perhaps"])
def test_a_flag_with_an_impossible_value_is_refused(repository, flag):
    server = nereid_server.refused_start(repository, flag)
    assert server.exit_code > 0
    assert flag.split("=")[0].removeprefix("--") in server.log


def test_options_without_an_effect_start_the_server_with_a_warning_each(repository):
    warned = {
        "--enable-peer-access=true": "--enable-peer-access has no effect: ",
        "--cuda-virtual-address-size=0:1048576": "--cuda-virtual-address-size has no effect: ",
        "--buffer-manager-thread-count=2": "--buffer-manager-thread-count has no effect: ",
    }
    with nereid_server.running(repository, *warned, "--log-warn=1") as server:
        warnings = [line for line in server.log.splitlines() if line.startswith("W")]
    for flag, words in warned.items():
        assert sum(words in line for line in warnings) == 1, (flag, warnings)
    silent = ["--enable-peer-access=false"]
    with nereid_server.running(repository, *silent, "--model-control-mode=POLL", "--repository-poll-secs=0") as server:
        # The repository is empty.
        warnings = [line for line in server.log.splitlines() if line.startswith("W")]
        assert [line for line in warnings if "has no models" not in line] == []


def test_help_lists_the_flags():
    result = subprocess.run([nereid_server.binary(), "--help"], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0
    for flag in ("--model-repository", "--http-port", "--http-address", "--exit-on-error", "--strict-readiness"):
        assert flag in result.stdout


def test_a_server_without_requests_stops_cleanly(serve):
    server = serve()
    server.terminate()
    assert server.wait_for_exit(PROMPT_S) == 0


def test_an_interrupt_stops_the_server_cleanly(serve):
    server = serve()
    server.interrupt()
    assert server.wait_for_exit(PROMPT_S) == 0


def wait_for_pending(server, count):
    assert eventually(lambda: Scrape(server).pending("slow") == count)


def test_stopping_answers_what_is_in_flight_and_takes_nothing_new(slow, serve, gate):
    server = serve()
    with ThreadPoolExecutor() as threads:
        requests = [threads.submit(infer, server, "slow", SLOW) for _ in range(2)]
        # One instance executes them one after the other.
        gate.entered()
        wait_for_pending(server, 1)
        server.terminate()
        assert eventually(lambda: server.ready_status() != 200)
        assert server.exit_code is None, "the server dropped out before its work was done"
        gate.open()
        for answer in (future.result() for future in requests):
            assert (answer.status, answer.json["outputs"][0]["data"]) == (200, [7, 8])
    assert server.wait_for_exit(PROMPT_S) == 0


def test_stopping_answers_what_is_queued(slow, serve, gate):
    server = serve()
    count = 4
    with ThreadPoolExecutor(count) as threads:
        requests = [threads.submit(infer, server, "slow", SLOW) for _ in range(count)]
        gate.entered()
        wait_for_pending(server, count - 1)
        server.terminate()
        assert eventually(lambda: server.ready_status() != 200)
        gate.open()
        assert [future.result().status for future in requests] == [200] * count
    assert server.wait_for_exit(PROMPT_S) == 0


def write_ensemble_of_slow(repository, gate):
    """An ensemble of a model that waits at a gate and one that does not, one after the other."""
    write_identity(repository, "slow", ["INT32"], gate=gate.path)
    write_identity(repository, "quick", ["INT32"])
    steps = " ".join(
        f'step {{ model_name: "{model}" model_version: -1 input_map {{ key: "INPUT0" value: "{read}" }} '
        f'output_map {{ key: "OUTPUT0" value: "{write}" }} }}'
        for model, read, write in (("slow", "INPUT0", "between"), ("quick", "between", "OUTPUT0"))
    )
    (repository / "both" / "1").mkdir(parents=True)
    (repository / "both" / "config.pbtxt").write_text(f"""platform: "ensemble"
        input {{ name: "INPUT0" data_type: TYPE_INT32 dims: -1 }}
        output {{ name: "OUTPUT0" data_type: TYPE_INT32 dims: -1 }}
        ensemble_scheduling {{ {steps} }}""")


def test_stopping_answers_ensembles_with_steps_left(repository, serve, gate):
    write_ensemble_of_slow(repository, gate)
    server = serve()
    with ThreadPoolExecutor() as threads:
        requests = [threads.submit(infer, server, "both", SLOW) for _ in range(2)]
        gate.entered()
        wait_for_pending(server, 1)
        # Both are in their first step: the next one begins when the server is stopping already.
        server.terminate()
        assert eventually(lambda: server.ready_status() != 200)
        gate.open()
        for answer in (future.result() for future in requests):
            assert (answer.status, answer.json["outputs"][0]["data"]) == (200, [7, 8])
    assert server.wait_for_exit(PROMPT_S) == 0


def test_ensembles_in_flight_delay_the_exit_no_longer_than_the_timeout(repository, serve, gate):
    write_ensemble_of_slow(repository, gate)
    server = serve("--exit-timeout-secs=1")
    with ThreadPoolExecutor() as threads:
        requests = [threads.submit(infer, server, "both", SLOW) for _ in range(2)]
        gate.entered()
        wait_for_pending(server, 1)
        server.terminate()
        assert server.wait_for_exit(PROMPT_S) > 0
        assert all(isinstance(future.exception(), (OSError, HTTPException)) for future in requests)
    assert "requests were still in progress after 1 seconds" in server.complaints[-1]


def test_idle_connections_do_not_delay_the_exit(repository, serve):
    scale_model("scale").write(repository)
    server = serve()
    with socket.create_connection(("127.0.0.1", server.port), LIMIT_S) as idle:
        idle.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
        assert idle.recv(1000).startswith(b"HTTP/1.1 200")
        server.terminate()
        assert server.wait_for_exit(PROMPT_S) == 0


def test_a_client_stuck_inside_its_request_does_not_delay_the_exit(repository, serve):
    scale_model("scale").write(repository)
    server = serve("--exit-timeout-secs=1")
    with socket.create_connection(("127.0.0.1", server.port), LIMIT_S) as stuck:
        stuck.sendall(b"POST /v2/models/scale/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
        assert infer(server, "scale", GOOD).status == 200
        server.terminate()
        server.wait_for_exit(PROMPT_S)


def test_two_servers_share_a_repository(repository, serve):
    scale_model("scale").write(repository)
    servers = serve(), serve()
    assert servers[0].port != servers[1].port
    for server in servers:
        assert infer(server, "scale", GOOD).status == 200


def test_the_log_has_tritons_form(serve):
    server = serve()
    server.wait_for_log(r"^I\d{4} \d\d:\d\d:\d\d\.\d{6} \d+ \S+:\d+\] \"Started HTTPService at 127\.0\.0\.1:\d+\"$")


def test_a_model_that_hangs_while_it_loads_leaves_liveness_and_the_other_models_working(repository, gate):
    write_identity(repository, "endless", ["INT32"], creation_gate=gate.path)
    scale_model("scale").write(repository)
    server = nereid_server.Server(repository)
    try:
        server.wait_until_listening()
        server.wait_for_log("loading 'endless'")
        assert eventually(lambda: request(server, "GET", "/v2/models/scale/ready").status == 200)
        assert request(server, "GET", "/v2/health/live").status == 200
        assert server.ready_status() == 400
        assert infer(server, "scale", GOOD).status == 200
        assert request(server, "GET", "/v2/models/endless/ready").status == 400
        server.wait_for_log("still loading 'endless'")
        server.terminate()
        assert server.wait_for_exit(PROMPT_S) == 0, server.log
    finally:
        server.kill()


def test_a_signal_ends_the_server_while_a_model_is_still_loading(repository, gate):
    write_identity(repository, "endless", ["INT32"], creation_gate=gate.path)
    server = nereid_server.Server(repository)
    try:
        gate.entered()
        server.terminate()
        assert server.wait_for_exit(PROMPT_S) == 0, server.log
    finally:
        server.kill()

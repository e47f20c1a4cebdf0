"""`nereid top`: the overview of a server in a terminal, of this server and of others."""

import os
import signal
import subprocess
from contextlib import contextmanager

import pytest

import nereid_server
from access_policies import Policy
from http_requests import infer, request, tensor
from model_files import write_identity
from plain_server import plain_server
from terminals import FullScreen

LIMIT_S = 60
ONE = {"inputs": [tensor("INPUT0", "FP32", [1], [1.0])]}


def environment(**variables):
    return {name: value for name, value in os.environ.items() if not name.startswith("NEREID_")} | variables


def command(server, *arguments):
    metrics = [f"--metrics=127.0.0.1:{server.metrics_port}"] if hasattr(server, "metrics_port") else []
    return [nereid_server.binary(), "top", server.url, "--interval=1", *metrics, *arguments]


def lines(server, *arguments, **variables):
    """What the overview prints where there is no terminal."""
    done = subprocess.run(
        command(server, *arguments), env=environment(**variables), capture_output=True, text=True, timeout=LIMIT_S
    )
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout.splitlines()


@contextmanager
def top(server, *arguments, **how):
    """The overview in a terminal."""
    variables = how.pop("variables", {})
    screen = FullScreen(*command(server, *arguments), env=environment(**variables), **how)
    try:
        yield screen
    finally:
        screen.close()


def models(frame):
    """The names in the table of a frame, in order."""
    table = frame[frame.index(next(line for line in frame if line.startswith("MODEL"))) + 1 :]
    names = [line.split()[0] for line in table if line and "quit" not in line and not line.startswith("filter")]
    return names


@pytest.fixture
def three(repository):
    for name in ("alpha", "beta", "gamma"):
        write_identity(repository, name, ["FP32"])
    (repository / "broken" / "1").mkdir(parents=True)
    (repository / "broken" / "1" / "model.onnx").write_bytes(b"no model")
    return repository


@pytest.fixture
def plain():
    with plain_server() as server:
        yield server


def test_models_rates_and_failures_are_shown(three, serve):
    server = serve("--exit-on-error=false", ready=False)
    server.wait_until_loaded()
    with top(server, width=240) as screen:
        frame = screen.wait_for(lambda lines: any(line.startswith("gamma") for line in lines))
        assert "is not ready, 4 models, 3 ready, 1 failed" in frame[0], frame[0]
        assert models(frame) == ["alpha", "beta", "broken", "gamma"]
        assert any(line.startswith("broken") and "unavailable" in line and "model.onnx" in line for line in frame), frame
        assert "CPU" in frame[2] and "memory" in frame[2], frame[2]

        def is_busy(lines):
            # Requests of this very second are in the next frame.
            assert infer(server, "beta", ONE).status == 200
            rows = {line.split()[0]: line.split() for line in lines if line.startswith(("alpha", "beta"))}
            return rows.get("beta", ["", "", "", "0"])[3] not in ("0", "-") and rows["alpha"][3] == "0"

        busy = screen.wait_for(is_busy)
        assert any(bar in busy[1] for bar in "▂▃▄▅▆▇█"), busy[1]
        # Sorted by requests a second.
        screen.press("\x1b[C\x1b[C\x1b[C")
        screen.wait_for(lambda lines: is_busy(lines) and models(lines)[0] == "beta")
        screen.press("r")
        screen.wait_for(lambda lines: models(lines)[-1] == "beta")
        screen.press("/amm")
        screen.wait_for(lambda lines: models(lines) == ["gamma"] and lines[-1].startswith("filter: amm_"))
        screen.press("\r")
        screen.wait_for(lambda lines: lines[-1].endswith("1-1 of 1, filter: amm"))
        screen.press("q")
        screen.assert_restored()


@pytest.mark.parametrize("end", ["q", "\x1b", "\x03", "signal"])
def test_the_terminal_is_as_before(three, serve, end):
    server = serve("--model-control-mode=explicit")
    with top(server) as screen:
        screen.wait_for(lambda lines: any(line.startswith("alpha") for line in lines))
        if end == "signal":
            screen.process.send_signal(signal.SIGTERM)
        else:
            screen.press(end)
        screen.assert_restored()


def test_a_server_that_goes_away_and_comes_back(three):
    with nereid_server.running(three, "--exit-on-error=false", ready=False) as server:
        server.wait_until_loaded()
        port = server.port
        with top(server) as screen:
            screen.wait_for(lambda lines: any(line.startswith("gamma") for line in lines))
            server.stop()
            away = screen.wait_for(lambda lines: "no answer" in lines[0])
            # What was known stays on the screen.
            assert "gamma" in models(away)
            with nereid_server.running(three, "--exit-on-error=false", f"--http-port={port}", ready=False):
                screen.wait_for(lambda lines: "4 models" in lines[0])


def test_frames_fit_the_window(repository, serve):
    for number in range(60):
        write_identity(repository, f"m{number:02}", ["FP32"])
    server = serve()
    with top(server, width=50, height=12) as screen:
        frame = screen.wait_for(lambda lines: any(line.startswith("m00") for line in lines))
        assert len(frame) == 12 and all(len(line) <= 50 for line in frame), frame
        assert models(frame) == [f"m{number:02}" for number in range(6)]
        screen.press("\x1b[F")
        screen.wait_for(lambda lines: models(lines)[-1] == "m59")
        screen.resize(100, 40)
        screen.wait_for(lambda lines: len(lines) == 40 and len(models(lines)) == 34 and models(lines)[-1] == "m59")


def test_lines_are_printed_once_where_there_is_no_terminal(three, serve):
    server = serve("--exit-on-error=false", ready=False)
    server.wait_until_loaded()
    found = lines(server)
    assert found[0].endswith(f"at http://{server.url} is not ready, 4 models, 3 ready, 1 failed"), found
    assert models(found) == ["alpha", "beta", "broken", "gamma"] and "\x1b" not in "".join(found)
    assert models(lines(server, "--model=beta")) == ["beta"]
    with top(server, "--once") as screen:
        assert screen.process.wait(LIMIT_S) == 0
        assert "\x1b" not in screen.text and "gamma" in screen.text


def test_a_server_with_the_plain_protocol_alone_is_shown(plain):
    found = lines(plain, "--model=echo", "--model=none")
    assert found[0] == f"plain 7 at http://{plain.url} is ready, 2 models, 1 ready"
    assert [line.split()[:2] for line in found if line.startswith(("echo", "none"))] == [
        ["echo", "ready"],
        ["none", "unavailable"],
    ]
    assert "does not list them (--model=NAME)" in "\n".join(lines(plain))
    with top(plain, "--model=echo") as screen:
        screen.wait_for(lambda lines: "is ready" in lines[0] and models(lines) == ["echo"])
        plain.documents["/v2/models/echo/ready"] = {"name": "echo", "ready": False}
        screen.wait_for(lambda lines: any(line.startswith("echo") and "unavailable" in line for line in lines))
        screen.press("q")
        screen.assert_restored()


@pytest.mark.parametrize("variables", [{}, {"NO_COLOR": "1"}])
def test_colors_are_optional(three, serve, variables):
    server = serve("--exit-on-error=false", ready=False)
    server.wait_until_loaded()
    with top(server, variables=variables) as screen:
        screen.wait_for(lambda lines: any(line.startswith("broken") for line in lines))
        assert ("\x1b[31m" in screen.text) == (not variables)


def test_hostile_names_stay_text(repository, serve):
    name = "a\x1b[2J\u202eb"
    write_identity(repository, name, ["FP32"])
    server = serve(ready=False)
    with top(server) as screen:
        screen.wait_for(lambda lines: any("<U+001B>[2J<U+202E>b" in line for line in lines))
        assert "\x1b[2J" not in screen.text


def test_what_is_wrong_is_said(repository, tmp_path, serve):
    policy = Policy(tmp_path / "access", {"reader": [(["read"], ["*"])]})
    server = serve(policy.option, ready=False)
    denied = subprocess.run(command(server), env=environment(), capture_output=True, text=True, timeout=LIMIT_S)
    assert denied.returncode == 1 and "status 401" in denied.stderr, denied
    assert lines(server, NEREID_API_KEY=policy.keys["reader"])
    # Its answer is the same without metrics.
    assert request(server, "GET", "/v2/health/live").status == 200
    away = [nereid_server.binary(), "top", "127.0.0.1:1", "--once"]
    done = subprocess.run(away, env=environment(), capture_output=True, text=True, timeout=LIMIT_S)
    assert (done.returncode, done.stdout) == (1, "") and done.stderr.startswith("nereid top: http://127.0.0.1:1: no answer: "), done

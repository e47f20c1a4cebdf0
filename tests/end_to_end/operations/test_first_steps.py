"""What a newcomer does first: `nereid` alone, `nereid init`, `nereid --version`."""

import json
import os
import re
import shlex
import stat
import subprocess
import tomllib

import pytest

import nereid_server
from http_requests import request
from places import ROOT

LIMIT_S = 60
PORTS = ["--http-address=127.0.0.1", "--http-port=0", "--grpc-address=127.0.0.1", "--grpc-port=0", "--metrics-port=0"]
# Root may write anywhere, unless it gives up what makes it root.
AS_USER = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []


def nereid(*arguments, folder, before=(), **variables):
    """Runs the program in a folder to its end."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NEREID_")} | variables
    command = [*before, nereid_server.binary(), *map(str, arguments)]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_S)


class HereServer(nereid_server.Server):
    """A server that is started in a folder, without the name of a repository."""

    def __init__(self, folder, *flags):
        script = f'cd {shlex.quote(str(folder))} && shift && exec {shlex.quote(nereid_server.binary())} "$@"'
        wrapper = folder / "start"
        wrapper.write_text(f"#!/bin/sh\n{script}\n")
        wrapper.chmod(0o755)
        super().__init__("unused", *flags, program=str(wrapper))


@pytest.fixture
def serve_here(tmp_path):
    """Starts a server in a folder of the test's own, stopped and checked when the test ends."""
    servers = []

    def start(folder, *flags):
        servers.append(HereServer(folder, *flags))
        return servers[-1]

    yield start
    for server in servers:
        if server.exit_code is None:
            server.stop()
        server.kill()


def test_without_a_repository_three_lines_say_what_to_do(tmp_path):
    (tmp_path / "file").mkdir()
    (tmp_path / "file" / "models").write_text("a file")
    for folder in (tmp_path, tmp_path / "file"):
        done = nereid(*PORTS, folder=folder)
        assert (done.returncode, done.stdout) == (2, ""), done
        first, *others = done.stderr.splitlines()
        assert first == "error: --model-repository must be specified, because there is no folder 'models' here"
        assert [line.split()[:2] for line in others] == [
            ["nereid", "init"],
            ["nereid", "add"],
            ["nereid", "--model-repository=FOLDER"],
        ]


def test_the_folder_models_is_served_by_default(tmp_path, serve_here):
    assert nereid("init", folder=tmp_path).returncode == 0
    server = serve_here(tmp_path).wait_until_ready()
    assert "no --model-repository is given: serving the folder 'models'" in server.log
    assert request(server, "GET", "/v2/models/example").status == 200


def test_a_named_repository_is_served_alone(tmp_path):
    assert nereid("init", "models", folder=tmp_path).returncode == 0
    (tmp_path / "other").mkdir()
    done = nereid("--model-repository=none", *PORTS, folder=tmp_path)
    assert done.returncode == 1 and "none" in done.stderr and "'models'" not in done.stderr
    done = nereid(*PORTS, folder=tmp_path, NEREID_MODEL_REPOSITORY="none")
    assert done.returncode == 1 and "serving the folder" not in done.stderr


@pytest.mark.parametrize("name", ["models", "two words", "größe", "it's", "a/b/c", "-dash"])
def test_init_makes_a_repository_whose_commands_work_as_printed(tmp_path, name):
    arguments = ["init", *(["--", name] if name.startswith("-") else [name])]
    done = nereid(*arguments, folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, ""), done
    first, serve, ask, add = done.stdout.splitlines()
    assert name in first
    command = shlex.split(serve.removeprefix("serve it: "))
    assert command[0] == "nereid"
    check = nereid("check", "--json", "--", name, folder=tmp_path)
    assert check.returncode == 0 and json.loads(check.stdout)["warnings"] == [], check
    repository = tmp_path / name
    flags = [flag for flag in command[1:] if not flag.startswith("--model-repository=")]
    named = [flag.removeprefix("--model-repository=") for flag in command[1:] if flag not in flags]
    assert flags == [] and (named or ["models"]) == [name]
    with nereid_server.running(repository) as server:
        script = ask.removeprefix("ask it: ").replace("localhost:8000", server.url)
        answer = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=LIMIT_S, check=True)
        assert '"data":[1.5,2.0,0.1]' in answer.stdout
    assert shlex.split(add)[-1] == "model.onnx"
    # Readable for a server of another user, and nothing else is left.
    assert os.listdir(repository) == ["example"]
    assert stat.S_IMODE((repository / "example" / "config.pbtxt").stat().st_mode) & 0o444 == 0o444


def test_init_keeps_what_is_there(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / ".hidden").write_text("mine")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("empty")
    (tmp_path / "dangling").symlink_to("nowhere")
    for name, reason in [("full", "is not empty"), ("file", "cannot read"), ("file/below", "cannot"), ("dangling", "cannot")]:
        done = nereid("init", name, folder=tmp_path)
        assert done.returncode == 1 and done.stderr.startswith("nereid init: ") and reason in done.stderr, done
        assert done.stderr.count("\n") == 1 and done.stdout == ""
    assert os.listdir(tmp_path / "full") == [".hidden"] and (tmp_path / "file").read_text() == "mine"
    assert nereid("init", "link", folder=tmp_path).returncode == 0
    assert os.listdir(tmp_path / "empty") == ["example"]
    assert nereid("init", "empty", folder=tmp_path).returncode == 1


def test_init_without_permission_leaves_nothing(tmp_path):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o555)
    done = nereid("init", "closed/models", folder=tmp_path, before=AS_USER)
    assert done.returncode == 1 and "Permission denied" in done.stderr, done
    assert os.listdir(closed) == []
    done = nereid("init", "closed", folder=tmp_path, before=AS_USER)
    assert done.returncode == 1 and "Permission denied" in done.stderr, done


@pytest.mark.parametrize("flag", ["--version", "-V"])
def test_the_first_line_of_the_version_is_for_scripts(tmp_path, flag):
    done = nereid(flag, folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, ""), done
    first, *others = done.stdout.splitlines()
    version = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    assert first == f"nereid {version}"
    assert all(line.startswith("  ") and line[16:17] != " " for line in others)
    rows = {line[2:16].strip(): line[16:] for line in others}
    assert set(rows) == {"commit", "built for", "built in", "ONNX Runtime", "OpenVINO", "TensorFlow", "libtorch"}
    assert "profile" in rows["built for"]


def test_the_version_names_libraries_that_are_found(tmp_path):
    library = tmp_path / "lib" / "libonnxruntime.so"
    library.parent.mkdir()
    # The head of this machine's programs is that of its libraries, as far as it is looked at.
    with open(nereid_server.binary(), "rb") as program:
        library.write_bytes(program.read(64))
    done = nereid("--version", folder=tmp_path, ORT_DYLIB_PATH=str(library))
    assert re.search(rf"^  ONNX Runtime  {re.escape(str(library))}$", done.stdout, re.MULTILINE), done
    library.write_bytes(b"text")
    done = nereid("--version", folder=tmp_path, ORT_DYLIB_PATH=str(library))
    assert re.search(r"^  ONNX Runtime  not found$", done.stdout, re.MULTILINE), done

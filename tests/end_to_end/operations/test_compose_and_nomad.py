"""The files for Compose and Nomad: Compose's schema, podman-compose over a stand-in for podman, HCL's grammar, and their options with a
server."""

import json
import os
import re
import shlex
import subprocess

import jsonschema
import pytest
import yaml

import charts
import nereid_server
from http_requests import request
from model_files import write_identity
from places import ROOT

COMPOSE = ROOT / "deploy" / "compose" / "compose.yaml"
NOMAD = ROOT / "deploy" / "nomad" / "nereid.nomad.hcl"


def validate(file):
    jsonschema.Draft7Validator(json.loads(charts.compose_schema())).validate(file)


@pytest.fixture(scope="module")
def compose():
    """The service of the file."""
    file = yaml.safe_load(COMPOSE.read_text())
    validate(file)
    return file["services"]["nereid"]


@pytest.fixture(scope="module")
def group():
    """The group of Nomad's job."""
    (job,) = charts.hcl(NOMAD)["job"]
    return job["nereid"]["group"][0]["nereid"]


def seconds(text):
    (number,) = re.findall(r"^(\d+)s$", text)
    return int(number)


def start(arguments, repository, paths):
    """Starts a server as a container would, and asks it by the paths."""
    write_identity(repository, "same", ["INT32"])
    program, models, *flags = arguments
    assert (program, models) == ("nereid", "--model-repository=/models")
    with nereid_server.running(repository, *flags) as server:
        assert [request(server, "GET", path).status for path in paths] == [200] * len(paths)
    (exit_timeout,) = (int(flag.partition("=")[2]) for flag in flags if flag.startswith("--exit-timeout-secs="))
    return exit_timeout


def test_compose_starts_a_server_and_gives_it_time_to_stop(compose, repository):
    exit_timeout = start(compose["command"], repository, ["/v2/health/ready"])
    assert exit_timeout < seconds(compose["stop_grace_period"])
    assert compose["volumes"] == ["./models:/models:ro"]
    assert [port.split(":")[-1] for port in compose["ports"]] == ["8000", "8001", "8002"]


def test_mistakes_in_compose_would_be_found(compose):
    with pytest.raises(jsonschema.ValidationError):
        validate({"services": {"nereid": compose | {"readonly": True}}})


@pytest.fixture
def podman(tmp_path, compose):
    """Runs podman-compose with the file beside a folder of models: what podman was to do, by its command."""
    bin, record, file = (tmp_path / name for name in ("bin", "record", "compose.yaml"))
    bin.mkdir()
    (tmp_path / "models").mkdir()
    file.write_text(COMPOSE.read_text())
    answers = 'case "$1" in --version) echo "podman version 5.4.2";; ps) echo "[]";; esac'
    (bin / "podman").write_text(f"#!/bin/bash\nprintf '%q ' \"$@\" >> {record}\necho >> {record}\n{answers}\n")
    (bin / "podman").chmod(0o755)

    def run(*arguments):
        record.write_text("")
        command = [charts.podman_compose(), "--file", file, *arguments]
        variables = os.environ | {"PATH": f"{bin}:{os.environ['PATH']}"}
        subprocess.run(command, env=variables, check=True, capture_output=True, timeout=60)
        lines = map(shlex.split, record.read_text().splitlines())
        return {line[0]: line[1:] for line in lines}

    return run


def test_podman_compose_starts_the_server_with_what_the_file_says(podman, compose, tmp_path):
    created = podman("up", "--detach", "--wait")["create"]
    image = created.index("nereid:0.1.0")
    assert created[image + 1 :] == compose["command"]
    pairs = {*zip(created, created[1:])}
    assert "--read-only" in created[:image]
    assert {("--cap-drop", "ALL"), ("--security-opt", "no-new-privileges:true"), ("--tmpfs", "/tmp")} <= pairs
    assert ("-v", f"{tmp_path}/models:/models:ro") in pairs
    assert {value for option, value in pairs if option == "-p"} == {*compose["ports"]}


def test_podman_compose_gives_the_server_its_time_to_stop(podman, compose):
    assert podman("down")["stop"][:2] == ["-t", str(seconds(compose["stop_grace_period"]))]


def test_nomad_starts_servers_and_gives_them_time_to_stop(group, repository):
    task = group["task"][0]["nereid"]
    checks = [check["path"] for service in group["service"] for check in service.get("check", [])]
    assert checks == ["/v2/health/ready"]
    exit_timeout = start(task["config"][0]["args"], repository, checks)
    assert exit_timeout < seconds(task["kill_timeout"])


def test_nomads_ports_and_volumes_fit(group):
    task = group["task"][0]["nereid"]
    declared = {name: port["to"] for entry in group["network"][0]["port"] for name, port in entry.items()}
    assert declared == {"http": 8000, "grpc": 8001, "metrics": 8002}
    assert {*task["config"][0]["ports"]} == {service["port"] for service in group["service"]} == declared.keys()
    assert [mount["volume"] for mount in task["volume_mount"]] == [name for entry in group["volume"] for name in entry]

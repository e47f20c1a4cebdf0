"""What the levels of the sandbox do on a kernel that lacks a feature, or in a container whose profile refuses it."""

import shlex
import sys
from pathlib import Path

import pytest
import tritonclient.http

import lesser_kernel
import nereid_server
import python_lab

NO_LANDLOCK = "the kernel has no Landlock (Linux 5.13, with landlock among the modules of the parameter lsm)"


@pytest.fixture
def kernel(tmp_path):
    """A program that starts the server without a feature of the kernel."""

    def without(feature):
        program = tmp_path / "nereid"
        command = [sys.executable, lesser_kernel.__file__, feature, nereid_server.binary()]
        program.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
        program.chmod(0o755)
        return program

    return without


@pytest.fixture
def repository(tmp_path):
    repository = tmp_path / "models"
    python_lab.write(repository, "lab")
    return repository


def flags(level):
    return [*python_lab.FLAGS, f"--backend-config=python,sandbox={level}", "--exit-on-error=false"]


@pytest.mark.parametrize("level", ["off", "basic", "on"])
def test_models_run_without_landlock_and_the_log_says_what_is_open(repository, kernel, tmp_path, level):
    outside = tmp_path / "outside"
    outside.write_text("of others")
    with nereid_server.running(repository, *flags(level), program=kernel("landlock")) as server:
        with tritonclient.http.InferenceServerClient(server.url, network_timeout=60) as client:
            # The filter of calls is left.
            socket = python_lab.run(client, "import socket\nresult = outcome(lambda: socket.socket().close() or 1)")
            assert (socket == 1) == (level != "on"), socket
            assert python_lab.run(client, f"result = open('{outside}').read()") == "of others"
        assert (NO_LANDLOCK in server.log) == (level != "off")


def test_required_refuses_models_without_landlock(repository, kernel):
    with nereid_server.running(repository, *flags("required"), ready=False, program=kernel("landlock")) as server:
        server.wait_for_log("failed to load 'lab'")
        refusal = next(line for line in server.complaints if "failed to load 'lab'" in line)
        assert f"the setting 'sandbox' is 'required', but {NO_LANDLOCK}" in refusal
        assert not [path for path in Path("/proc").glob(f"{server.pid}/task/*/children") if path.read_text().strip()]


@pytest.mark.parametrize("level", ["off", "basic", "on", "required"])
def test_filters_that_cannot_be_installed_refuse_the_models_that_need_them(repository, kernel, level):
    with nereid_server.running(repository, *flags(level), ready=False, program=kernel("seccomp")) as server:
        if level in ("off", "basic"):
            with tritonclient.http.InferenceServerClient(server.url, network_timeout=60) as client:
                assert python_lab.run(client, "result = 7") == 7
        else:
            server.wait_for_log("failed to load 'lab'")
            refusal = next(line for line in server.complaints if "failed to load 'lab'" in line)
            assert "Invalid argument" in refusal, refusal

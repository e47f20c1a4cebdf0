"""docs/dynamo.md followed as printed, from its installation to the first answer, and on with a second worker, one killed under load. Not among
the default tests: `cargo xtask test clusters`.

In their places are only the ports, the folder of the workers' addresses, and what an older system than the page's needs: its packages and its
Python come for a newer C library.
"""

import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest
import tritonclient.grpc
from dynamo_workers import LOST
from tritonclient.utils import InferenceServerException

import dynamo
import guide_pages
import nvidia_bindings
import python_package
from http_requests import LIMIT_S
from places import ROOT
from ports import free_ports
from waiting import eventually

PAGE = "docs/dynamo.md"
CLIENTS = 4
INSTALL_LIMIT_S = 900
# Models of the example repository.
MODELS = len([*(ROOT / "examples" / "model_repository").iterdir()])


class Terminals:
    """Where a reader enters the page's commands."""

    def __init__(self, folder, running):
        self._folder, self._running = folder, running
        self.port, self._metrics = free_ports(2)

    def install(self):
        """The commands of the installation, in a folder of their own."""
        interpreter, environment = nvidia_bindings.interpreter(), self._folder / "dynamo"
        programs = self._folder / "bin"
        programs.mkdir()
        (programs / "python3.12").symlink_to(interpreter)
        pip = environment / "bin" / "pip"
        for command in self.commands("Install"):
            command = command.replace("target/packages/nereid_server-*.whl", str(python_package.wheel()))
            command = command.replace("deploy/", f"{ROOT}/deploy/")
            path = f"{programs}:{os.environ['PATH']}"
            bash = ["bash", "-euo", "pipefail", "-c", command]
            run = subprocess.run(
                bash, cwd=self._folder, env=os.environ | {"PATH": path}, capture_output=True, text=True, timeout=INSTALL_LIMIT_S
            )
            assert run.returncode == 0, f"$ {command}\n{run.stdout}{run.stderr}"
            if command.endswith("-m venv dynamo"):
                uv = f"exec {sys.executable} -m uv --quiet pip"
                where = " ".join(["--python", str(environment / "bin" / "python3.12"), *dynamo.PLATFORM])
                pip.unlink()
                pip.write_text(f'#!/bin/bash\n{uv} "$1" {where} "${{@:2}}"\n')
                pip.chmod(0o755)
        python = environment / "bin" / "python"
        python.unlink()
        python.write_text(dynamo.starter(environment))
        python.chmod(0o755)

    def commands(self, *sections):
        """The commands of sections."""
        blocks = guide_pages.blocks(PAGE, *sections)
        return [command for block in blocks if block.kind == "console" for command, _ in block.commands()]

    def enter(self, block, log, count=1):
        """The commands of a block in a terminal of their own; waits for a text of the log."""
        text = "; ".join(command for command, _ in block.commands())
        text = text.replace("dynamo/bin", f"{self._folder}/dynamo/bin").replace("/tmp/dynamo", f"{self._folder}/store")
        if "--http-port 8001" in text:
            text = text.replace("--http-port 8001", f"--http-port {self.port} --grpc-metrics-port {self._metrics}")
        environment, _, program = text.rpartition("; ")
        process = dynamo.Process(["bash", "-c", f"{environment}; exec {program}"], {})
        self._running.callback(process.kill)
        process.wait_for_log(log, count=count)
        return process


@pytest.fixture(scope="module")
def terminals(tmp_path_factory):
    with ExitStack() as running:
        terminals = Terminals(tmp_path_factory.mktemp("dynamo"), running)
        terminals.install()
        yield terminals


@pytest.fixture(scope="module")
def workers(terminals):
    """The workers, of which there are two: further ones join with the same command."""
    frontend, worker = [block for block in guide_pages.blocks(PAGE, "Start") if block.kind == "console"]
    terminals.enter(frontend, "Starting KServe gRPC service")
    return [terminals.enter(worker, "Registered endpoint", MODELS) for _ in range(2)]


def test_the_program_of_the_page_reads_the_digit(terminals, workers):
    (program,) = [block.text for block in guide_pages.blocks(PAGE, "Start") if block.kind == "python"]
    assert "127.0.0.1:8001" in program
    code = program.replace("127.0.0.1:8001", f"127.0.0.1:{terminals.port}")
    outcome = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S)
    assert outcome.returncode == 0 and outcome.stdout == "3\n", outcome.stderr


def test_the_other_worker_answers_when_one_is_killed(terminals, workers):
    outcomes: Counter[str] = Counter()
    stop = threading.Event()

    def work(number):
        image = np.random.default_rng(number).random((1, 1, 8, 8), np.float32)
        tensor = tritonclient.grpc.InferInput("image", image.shape, "FP32")
        tensor.set_data_from_numpy(image)
        expected = None
        with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{terminals.port}") as client:
            while not stop.is_set():
                try:
                    found = client.infer("digits", [tensor], client_timeout=LIMIT_S).as_numpy("probabilities")
                except InferenceServerException as error:
                    outcomes[str(error)] += 1
                    continue
                expected = found if expected is None else expected
                outcomes["right" if np.allclose(found, expected, atol=1e-5) else "wrong"] += 1

    with ThreadPoolExecutor(CLIENTS) as pool:
        clients = [pool.submit(work, number) for number in range(CLIENTS)]
        try:
            assert eventually(lambda: outcomes["right"] > 200)
            workers[0].signal(signal.SIGKILL)

            def settled():
                """Whether a row of requests succeeds: the frontend tries the dead worker until its lease of ten seconds ends."""
                before = outcomes.total() - outcomes["right"]
                right = outcomes["right"]
                assert eventually(lambda: outcomes["right"] > right + 500, 4 * LIMIT_S)
                return before == outcomes.total() - outcomes["right"]

            assert eventually(lambda: any(text not in ("right", "wrong") for text in outcomes) and settled(), 4 * LIMIT_S)
        finally:
            stop.set()
    for client in clients:
        client.result()
    print(f"a worker was killed: {outcomes}")
    errors = {text for text in outcomes if text not in ("right", "wrong")}
    assert outcomes["wrong"] == 0 and all(re.search(LOST, text) for text in errors), outcomes

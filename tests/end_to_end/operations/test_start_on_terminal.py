"""A server that is started on a terminal: loads in progress, and where models run once they are loaded."""

import os
import re

import nereid_server
from cloud_repositories import LIMIT_S
from gates import Gate
from model_files import config, write_identity, write_model
from terminals import Terminal
from waiting import eventually

PORTS = ["--http-address=127.0.0.1", "--http-port=0", "--grpc-address=127.0.0.1", "--grpc-port=0", "--metrics-port=0"]


def started(repository, *flags):
    """The server, with its log on a terminal."""
    command = [nereid_server.binary(), f"--model-repository={repository}", *PORTS, "--exit-on-error=false", *flags]
    return Terminal(*command, env={**os.environ, "TERM": "xterm"})


def test_loads_are_shown_and_end_in_a_table(repository):
    tensors = ([("INPUT0", "FP32", [1])], [("OUTPUT0", "FP32", [1])])
    with Gate() as gate:
        write_identity(repository, "quick", ["FP32"])
        held = f'parameters {{ key: "creation_gate" value: {{ string_value: "{gate.path}" }} }}'
        write_model(repository, "slow", config("slow", "identity", *tensors, 0, held))
        (repository / "broken" / "1").mkdir(parents=True)
        (repository / "broken" / "1" / "model.onnx").write_bytes(b"no model")
        terminal = started(repository)
        try:
            load = gate.entered()
            assert eventually(lambda: re.fullmatch(r"loading 'slow' version 1: [1-9] s", terminal.rows()[-1]), LIMIT_S), (
                terminal.text
            )
            load.release()
            assert eventually(lambda: "serving HTTP on" in terminal.text, LIMIT_S), terminal.text
            # The line of the load goes with the next update.
            assert eventually(lambda: not any("loading 'slow' version 1:" in row for row in terminal.rows())), terminal.text
            rows = terminal.rows()
            table = [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows if row.startswith("| ")]
            assert table[0] == ["Model", "Version", "Status", "Engine", "Devices"], rows
            cells = {row[0]: row[1:] for row in table if row[0]}
            assert cells["quick"] == ["1", "READY", "identity", "1 CPU"]
            assert cells["slow"] == ["1", "READY", "identity", "1 CPU"]
            assert cells["broken"][1].startswith("UNAVAILABLE: ") and cells["broken"][2:] == ["", ""]
            addresses = re.search(r"serving HTTP on 127\.0\.0\.1:(\d+), .*127\.0\.0\.1:\d+, .*127\.0\.0\.1:\d+", terminal.text)
            assert addresses, terminal.text
            assert f"Started HTTPService at 127.0.0.1:{addresses.group(1)}" in terminal.text
            # Nothing of it has a colour.
            assert not re.search(r"\x1b\[[\d;]*m", terminal.text)
        finally:
            terminal.process.kill()
            terminal.process.wait()

"""NVIDIA's package nvidia-pytriton serves Python functions. It brings a server and starts it with options of its own; here it
starts this one instead, and its own clients ask for the functions.
"""

import json

import pytriton_package
from ports import free_ports

LIMIT_S = 120


def test_functions_that_pytriton_binds_are_served_to_its_clients():
    ports = free_ports(3)
    done = pytriton_package.run(pytriton_package.PROGRAM, *ports, limit_s=LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout.splitlines()[-1])

    for protocol in ("http", "grpc"):
        answers = report[protocol]
        assert answers["sample"] == {"sum": [0, 11, 22], "difference": [0, -9, -18]}
        assert answers["batch"] == {"sum": [[0, 11, 22], [11, 11, 11]], "difference": [[0, -9, -18], [-9, -9, -9]]}
        assert answers["text"] == ["HELLO", "GRÜN"]
        assert answers["config"] == {"name": "add", "version": 1, "max_batch_size": 16}
        kind, message = answers["error"]
        assert kind == "PyTritonClientInferenceServerError" and "no such digit" in message
        kind, message = answers["unknown"]
        assert kind in ("PyTritonClientTimeoutError", "PyTritonClientModelUnavailableError"), message
        # Clients that ask asynchronously.
        assert answers["asyncio"] == [[11 * i] * 3 for i in range(10)]
    assert report["futures"] == [[11 * i] * 3 for i in range(40)]
    # Requests that come together are executed together.
    assert max(report["batches"]) > 1 and sum(report["batches"]) == 40
    assert report["decoupled"] == [0, 1, 4, 9, 16]
    assert report["without key"] == "refused"
    assert report["alive"] == [True, False]
    # It stopped by itself, for pytriton would have killed it.
    assert "all requests are answered and all models unloaded" in report["log"]
    assert not [line for line in report["log"].splitlines() if line.startswith("E") and "no such digit" not in line]

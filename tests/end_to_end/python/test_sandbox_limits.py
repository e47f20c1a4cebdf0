"""Limits of processors and memory that control groups enforce: a server in a delegated group, on a kernel of the tests' own."""

import json

import nereid_server
import user_mode_linux


def test_processes_of_a_model_share_their_limits(tmp_path):
    output = user_mode_linux.run(tmp_path, "limits_program.py", 300, NEREID_BINARY=nereid_server.binary())
    found = json.loads(output.splitlines()[-1])
    assert found["limits"] == {"lab": [str(256 << 20), "50000 100000"], "neighbour": [str(256 << 20), "max 100000"]}
    assert found["groups"] == ["nereid.service"] * 2 and found["apart"]
    assert found["share"]["lab"] < 0.65 and found["share"]["neighbour"] > 0.8, found
    # Each process alone is within the limit. Together, some are, and others are not.
    assert found["little"] == ["1", "1"]
    assert "SIGKILL" in found["much"] and found["restarted"] and found["neighbour stays"], found
    assert found["left"] == []

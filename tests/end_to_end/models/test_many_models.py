"""Sixty models of real kinds on a server with memory for a part of them, while files change and break, clients load and unload,
and processes and the server are killed. `many_models.py` is the same for longer, with more.
"""

import os

import pytest

import model_kinds
from model_kinds import MIB
from model_stress import Stress
from processes import stop_all_of


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    return model_kinds.prepare(tmp_path_factory.mktemp("backends"))


def test_nothing_is_lost_or_wrong_while_everything_goes_wrong(tmp_path, prepared):
    seed = int(os.environ.get("NEREID_STRESS_SEED") or 1)
    print(f"NEREID_STRESS_SEED={seed}")
    stress = Stress(tmp_path, 60, 200 * MIB, seed, 3, prepared)
    stress.start("tract")
    try:
        with stress.asked():
            stress.run(12)
            stress.kill()
            stress.start("ort")
            stress.run(12)
        problems = stress.report()
        assert not problems, "\n".join(problems[:20])
        stress.recover()
        stress.empty()
        stop_all_of(stress.server)
    finally:
        stress.server.kill()

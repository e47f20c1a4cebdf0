"""Three hundred models of real kinds on a server with memory for a fraction of them, while files change and break, clients load and
unload, processes are killed, other programs take the machine's memory, and the server is killed: for ten minutes.

`cargo xtask test many-models` runs it. It has to be the superuser, who limits the memory by a control group.
"""

import os
import time

import control_groups
import model_kinds
from model_kinds import MIB
from model_stress import Stress, hog
from processes import stop_all_of

SECONDS = int(os.environ.get("NEREID_STRESS_SECONDS") or 600)
MODELS = int(os.environ.get("NEREID_STRESS_MODELS") or 300)
BUDGET = 400 * MIB
# What other programs leave of it suffices for the budget and what the server and its frameworks' libraries take themselves, but for peaks.
MEMORY = 2700 * MIB
HOG = 2048 * MIB


def test_three_hundred_models_while_everything_goes_wrong(tmp_path):
    seed = int(os.environ.get("NEREID_STRESS_SEED") or time.time())
    print(f"\nNEREID_STRESS_SEED={seed}")
    prepared = model_kinds.prepare(tmp_path / "backends")
    with control_groups.memory(MEMORY) as group:
        stress = Stress(tmp_path, MODELS, BUDGET, seed, 6, prepared, group.program(tmp_path))
        stress.start("ort")
        takes = hog(HOG, group.prefix)
        try:
            with stress.asked():
                stress.run(SECONDS / 4, hog=takes)
                stress.kill()
                stress.start("tract")
                stress.run(SECONDS / 4, hog=takes)
            stress.recover()
            first = stress.empty()
            with stress.asked():
                stress.run(SECONDS / 2, hog=takes)
            stress.recover()
            problems = stress.report()
            last = stress.empty()
            print(f"  without models: {first}, later {last}; memory ran out {group.failures()} times")
            stop_all_of(stress.server)
        finally:
            stress.server.kill()
    assert not problems, "\n".join(problems[:50])

"""Three hundred models of real kinds on a server with memory for a fraction of them, while files change and break, clients load and
unload, processes are killed, other programs take the machine's memory until there is none left, and the server is killed: for ten
minutes.

`cargo xtask test many-models` runs it. It has to be the superuser, who limits the memory by a control group.
"""

import os
import sys
import threading
import time

import numpy as np
import tritonclient.http

import control_groups
import model_kinds
import nereid_server
from memory_hogs import exhausted, hog
from model_kinds import MIB, factor
from model_requests import PROCESS_ENDED
from model_stress import Stress
from processes import stop_all_of, tree
from waiting import eventually

SECONDS = int(os.environ.get("NEREID_STRESS_SECONDS") or 600)
MODELS = int(os.environ.get("NEREID_STRESS_MODELS") or 300)
BUDGET = 400 * MIB
# What other programs leave of it suffices for the budget and what the server and its frameworks' libraries take themselves, but for peaks.
MEMORY = 2700 * MIB
HOG = 2048 * MIB
# For the server and its models in Python, where memory runs out.
SMALL_MEMORY = 1024 * MIB
ROUNDS = 10


def test_processes_of_models_end_before_the_server_when_memory_runs_out(tmp_path):
    models = [("network", model_kinds.Onnx())] + [(f"python_{number}", model_kinds.Python()) for number in range(4)]
    for number, (name, kind) in enumerate(models):
        kind.write(tmp_path / "models" / name / "1", number, 1, 32 * MIB)
        (tmp_path / "models" / name / "config.pbtxt").write_text(kind.config(name, ""))
    answered, ended = dict.fromkeys(dict(models), 0), threading.Event()
    wrong: list[str] = []

    def ask(number, name, kind):
        generator = np.random.default_rng(number)
        with tritonclient.http.InferenceServerClient(server.url, network_timeout=60.0, connection_timeout=60.0) as client:
            while not ended.is_set():
                question = kind.question(generator)
                tensor = tritonclient.http.InferInput("X", list(question.inputs["X"].shape), "FP32")
                tensor.set_data_from_numpy(question.inputs["X"])
                try:
                    answer = client.infer(name, [tensor]).as_numpy("Y")
                except Exception as error:
                    if not kind.has_process or not PROCESS_ENDED.search(str(error)):
                        wrong.append(f"{name}: {error}")
                        time.sleep(0.1)
                    continue
                if kind.factor(question, answer) != factor(number, 1):
                    wrong.append(f"{name} answered by another factor")
                answered[name] += 1

    with control_groups.memory(SMALL_MEMORY) as group:
        flags = [f"--backend-config=python,python={sys.executable}"]
        server = nereid_server.Server(tmp_path / "models", *flags, program=group.program(tmp_path)).wait_until_ready()
        threads = [threading.Thread(target=ask, args=(number, *model)) for number, model in enumerate(models)]
        try:
            for thread in threads:
                thread.start()
            assert eventually(lambda: all(answered.values())), answered
            for number in range(ROUNDS):
                before = group.failures()
                processes = set(tree(server.pid))
                with exhausted(group, SMALL_MEMORY) as taken:
                    reached = answered["network"]
                    assert eventually(lambda: answered["network"] > reached + 10), "the server does not answer"
                gone = processes - set(tree(server.pid))
                assert server.exit_code is None, server.log
                print(
                    f"  {number}: {taken.pieces} pieces, of which the system ended {taken.own}; {group.failures() - before} "
                    f"programs in all, {len(gone)} processes of models"
                )
                assert gone, "no process of a model was ended"
                reached = dict(answered)
                assert eventually(lambda: all(answered[name] > reached[name] for name in answered), 60), (reached, answered)
        finally:
            ended.set()
            for thread in threads:
                thread.join()
        assert not wrong, "\n".join(wrong[:20])
        stop_all_of(server)


def test_three_hundred_models_while_everything_goes_wrong(tmp_path):
    seed = int(os.environ.get("NEREID_STRESS_SEED") or time.time())
    print(f"\nNEREID_STRESS_SEED={seed}")
    prepared = model_kinds.prepare(tmp_path / "backends")
    with control_groups.memory(MEMORY) as group:
        stress = Stress(tmp_path, MODELS, BUDGET, seed, 6, prepared, group.program(tmp_path))
        stress.start("ort")
        takes = {"hog": hog(HOG, group.prefix), "group": group}
        try:
            with stress.asked():
                stress.run(SECONDS / 4, **takes)
                stress.kill()
                stress.start("tract")
                stress.run(SECONDS / 4, **takes)
            stress.recover()
            first = stress.empty()
            with stress.asked():
                stress.run(SECONDS / 2, **takes)
            stress.recover()
            problems = stress.report()
            last = stress.empty()
            print(f"  without models: {first}, later {last}; memory ran out {group.failures()} times")
            stop_all_of(stress.server)
        finally:
            stress.server.kill()
    assert not problems, "\n".join(problems[:50])

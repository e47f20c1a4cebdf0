"""Many models on a server with memory for a part of them, while all goes wrong that can: files change and break, clients load and
unload, processes are killed, and so is the server, and other programs take memory.

`Stress` runs it and judges what came of it. All choices follow from a seed; how they meet does not.
"""

import os
import random
import signal
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.http

import model_kinds
import nereid_server
from http_requests import request
from memory_hogs import exhausted
from model_fleet import Fleet
from model_kinds import MIB
from model_requests import LOST_S, Ask, Clients
from processes import holdings, tree
from scrapes import Scrape
from waiting import eventually

#: All models have answered by then after everything is repaired.
RECOVERY_S = 120
_FLAGS = (
    "--model-control-mode=on-demand",
    "--model-max-evictions-per-minute=1000000",
    "--on-demand-retry-secs=1",
    "--repository-poll-secs=1",
    "--repository-watch=true",
    "--exit-on-error=false",
)


def anonymous(processes):
    """The memory of processes that no file backs, in bytes."""
    total = 0
    for process in processes:
        try:
            lines = Path(f"/proc/{process}/status").read_text().splitlines()
        except OSError:
            continue  # It has ended.
        total += sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon:", "RssShmem:")))
    return total * 1024


class Stress:
    """A fleet, its server, and what happens to both."""

    def __init__(self, folder, count, budget, seed, each, prepared, program=None):
        """`prepared` are flags and variables of `model_kinds.prepare`; `program` starts the server in place of the binary."""
        self.random = random.Random(seed)
        repository = folder / "models"
        repository.mkdir()
        self.fleet = Fleet(repository, count, self.random)
        flags, variables = prepared
        self._flags = [*_FLAGS, *flags, f"--model-memory-budget={budget}", f"--model-memory-directory={folder / 'records'}"]
        self._variables, self._program = os.environ | variables, program
        self.budget = budget
        self.server: Any = None
        self.process_killed = float("-inf")
        self._dead: set = set()
        self._clients = Clients(self.fleet, self, seed, each)
        self._watching = threading.Event()
        self.happened: Counter = Counter()
        #: The greatest memory seen, and the greatest of what models count in the budget.
        self.peak = self.peak_counted = 0
        self._largest: list = []
        #: What models counted together at each sample, and the most that each ever counted.
        self._counted: list = []
        self._sizes: dict = {}
        self.problems: list = []
        self._hogs: list = []

    # The server.

    def start(self, engine):
        """Starts a server with an engine for ONNX."""
        flags = [*self._flags, *model_kinds.ENGINES[engine]]
        server = nereid_server.Server(self.fleet.repository, *flags, env=self._variables, program=self._program)
        # Clients know the one before until then.
        self.server = server.wait_until_ready()

    def is_dying(self, server):
        """Whether requests to a server may find no connection."""
        return server in self._dead

    def kill(self):
        """Kills the server with SIGKILL; its processes end by themselves."""
        server, processes = self.server, tree(self.server.pid)
        self._dead.add(server)
        os.kill(server.pid, signal.SIGKILL)
        server.wait_for_exit()
        self.happened["server killed"] += 1
        assert eventually(lambda: not any(Path(f"/proc/{process}").exists() for process in processes)), "processes are left"

    # Everything that goes wrong.

    def _disturb(self, until, kills_processes, hog, group):
        while time.monotonic() < until:
            time.sleep(self.random.uniform(0, 0.4))
            acts = [self._change] * 8 + [self._break] * 3 + [self._mend] * 3 + [self._control] * 4
            acts += [self._kill_process] * 2 * kills_processes + [lambda: self._take_memory(hog)] * bool(hog)
            acts += [lambda: self._take_all_memory(group)] * bool(group)
            try:
                self.random.choice(acts)()
            except Exception as error:
                self.problems.append(f"{type(error).__name__}: {error}")

    def _change(self):
        self.happened[f"files: {self.fleet.change(self.random.choice(self.fleet.of_role('changing')))}"] += 1

    def _break(self):
        self.happened[f"broken: {self.fleet.damage(self.random.choice(self.fleet.of_role('broken')))}"] += 1

    def _mend(self):
        model = self.random.choice(self.fleet.of_role("broken"))
        self.happened["mended"] += bool(model.damage)
        self.fleet.restore(model)

    def _control(self):
        how, model = self.random.choice(("load", "unload")), self.random.choice(self.fleet.models)
        connection = HTTPConnection("127.0.0.1", self.server.port, timeout=LOST_S)
        try:
            connection.request("POST", f"/v2/repository/models/{model.name}/{how}")
            answer = connection.getresponse()
            body = answer.read()
        finally:
            connection.close()
        self.happened[f"{how} by a client: {answer.status}"] += 1
        if answer.status != 200 and how == "unload":
            self.problems.append(f"unload of {model.name}: {answer.status} {body!r}")

    def _kill_process(self):
        processes = tree(self.server.pid)[1:]
        if processes:
            self.process_killed = time.monotonic()
            try:
                os.kill(self.random.choice(processes), signal.SIGKILL)
            except ProcessLookupError:
                return
            self.happened["process killed"] += 1

    def _take_memory(self, hog):
        """Another program takes memory for some seconds, unless it does."""
        self._hogs = [it for it in self._hogs if it.poll() is None]
        if not self._hogs:
            self.process_killed = time.monotonic() + 10
            self._hogs = hog(self.random.uniform(2, 6))
            self.happened["memory taken"] += 1

    def _take_all_memory(self, group):
        """Another program takes what is left of a control group's memory, until the system ends a process of a model."""
        if any(it.poll() is None for it in self._hogs) or len(tree(self.server.pid)) == 1:
            return
        self.process_killed = time.monotonic() + 10
        with exhausted(group, group.limit):
            time.sleep(self.random.uniform(0, 2))
        self.happened["all memory taken"] += 1
        if self.server.exit_code is not None:
            raise AssertionError(f"the system ended the server: {self.server.exit_code}")

    def run(self, seconds, kills_processes=True, hog=None, group=None):
        """Lets everything go wrong for some seconds, while clients ask. `hog` takes memory, and in a group it runs out."""
        self._disturb(time.monotonic() + seconds, kills_processes, hog, group)

    @contextmanager
    def asked(self):
        """Clients ask meanwhile, and memory is watched."""
        self._clients.start()
        self._watching.clear()
        watch = threading.Thread(target=self._watch)
        watch.start()
        try:
            yield
        finally:
            try:
                self._clients.stop()
            finally:
                self._watching.set()
                watch.join()
                for hog in self._hogs:
                    hog.wait()

    def _watch(self):
        while not self._watching.wait(0.5):
            try:
                self.peak = max(self.peak, anonymous(tree(self.server.pid)))
                sizes = Scrape(self.server).named("nereid_model_memory_bytes")
            except (OSError, AssertionError):
                continue  # The server is being killed.
            budgets: Counter = Counter()
            for labels, value in sizes.items():
                if ("kind", "budget") in labels:
                    budgets[dict(labels)["model"]] += value
            counted = budgets.total()
            self._counted.append(counted)
            self._sizes |= {name: max(value, self._sizes.get(name, 0)) for name, value in budgets.items()}
            if counted > self.peak_counted:
                self.peak_counted, self._largest = counted, budgets.most_common(4)

    # What must be true at the end.

    def recover(self):
        """Repairs everything. All models answer then, by their newest versions."""
        for model in self.fleet.models:
            self.fleet.restore(model)
        with ThreadPoolExecutor(16) as threads:
            late = [it for it in threads.map(self._late, self.fleet.models) if it]
        assert not late, late

    def _late(self, model):
        """What a model answers in place of its newest version."""
        newest = model.history[-1][1]
        right = model.expected(newest[0]).keys() if model.role == "changing" else None
        latest, generator = "nothing", random.Random(model.number)

        def has_answered():
            nonlocal latest
            ask = Ask(model, generator)
            ask.version = ""
            try:
                with tritonclient.http.InferenceServerClient(
                    self.server.url, network_timeout=60.0, connection_timeout=60.0
                ) as client:
                    inputs = list(ask.inputs(tritonclient.http.InferInput))
                    result = client.infer(model.name, inputs, parameters=ask.question.parameters)
            except Exception as error:
                latest = f"{type(error).__name__}: {error}"
                return False
            version = int(result.get_response()["model_version"])
            found = model.kind.factor(ask.question, np.asarray(result.as_numpy(ask.question.output)))
            latest = f"version {version} by the factor {found}, and it is {newest}"
            if right is None:
                return found in model.expected(version)
            return (version, found // model_kinds.EDITION) == newest

        return "" if eventually(has_answered, RECOVERY_S) else f"{model.name} ({model.role}): {latest}"

    def empty(self):
        """Unloads all models. Returns what the server still holds, and its memory."""
        for model in self.fleet.models:
            assert request(self.server, "POST", f"/v2/repository/models/{model.name}/unload").status == 200

        def is_empty():
            index = request(self.server, "POST", "/v2/repository/index").json
            return {line["state"] for line in index} <= {"UNLOADED", "UNAVAILABLE"} and len(tree(self.server.pid)) == 1

        if not eventually(is_empty, 60):
            index = request(self.server, "POST", "/v2/repository/index").json
            raise AssertionError([line for line in index if line["state"] not in ("UNLOADED", "UNAVAILABLE")])
        return holdings(self.server.pid), anonymous([self.server.pid])

    def report(self):
        """Prints what happened and how requests ended; returns what must not have been."""
        outcomes: Counter = Counter()
        for (protocol, outcome), count in sorted(self._clients.counts.items()):
            print(f"  {protocol:>9}: {count:>7} {outcome}")
            outcomes[outcome] += count
        for text, count in self._clients.unavailable.most_common(12):
            print(f"  {count:>7} times {text}")
        print(f"  requests: {sum(outcomes.values())}, {dict(outcomes)}")
        print(f"  answered: {dict(sorted(self._clients.answered.items()))}")
        print(f"  happened: {dict(sorted(self.happened.items()))}")
        largest = ", ".join(f"{name} {size / MIB:.0f} MiB" for name, size in self._largest)
        over = sum(counted > self.budget for counted in self._counted)
        print(
            f"  memory: at most {self.peak / MIB:.0f} MiB; models counted {self.peak_counted / MIB:.0f} MiB, most of all {largest}"
        )
        print(f"  {over} of {len(self._counted)} samples were over the budget of {self.budget / MIB:.0f} MiB")
        return self._clients.wrong + self.problems + self._beyond_budget()

    def _beyond_budget(self):
        """The budget may be exceeded by one load, which may take more than was expected of it."""
        load = max(self._sizes.values(), default=0)
        beyond = [counted for counted in self._counted if counted > self.budget + load]
        if not beyond:
            return []
        sizes = ", ".join(f"{counted / MIB:.0f}" for counted in beyond[:10])
        return [f"models counted {sizes} MiB at {len(beyond)} samples; the greatest load is {load / MIB:.0f} MiB"]

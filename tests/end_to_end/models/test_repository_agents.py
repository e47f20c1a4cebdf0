"""Repository agents built for Triton: an agent in C records every call, here and in NVIDIA's server, with equal records."""

import json
import re
import shutil
import subprocess
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

import pytest

import native_backends
import nereid_server
import python_backend
from waiting import eventually

SOURCES = Path(__file__).resolve().parents[2] / "agents"
TENSORS = """
input { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] }
"""


class Agents:
    """A folder of agents that write to one record, and of a backend for their models."""

    def __init__(self, folder, names=("one", "two")):
        self.folder = folder / "agents"
        self.record = self.folder / "record.txt"
        for name in names:
            self.compile(name)
        native_backends.compile_c(folder / "backends", "echo")
        self.flags = [f"--repoagent-directory={self.folder}", f"--backend-directory={folder / 'backends'}"]

    def compile(self, name, source="recorder"):
        (self.folder / name).mkdir(parents=True, exist_ok=True)
        library = self.folder / name / f"libtritonrepoagent_{name}.so"
        flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g", "-shared", "-fPIC"]
        subprocess.run(["cc", *flags, SOURCES / f"{source}.c", "-o", library], check=True)

    def lines(self):
        """What they have recorded."""
        return self.record.read_text().splitlines() if self.record.exists() else []

    def models(self):
        """How many agents have a model."""
        calls = [line.split()[2] for line in self.lines()]
        return calls.count("ModelInitialize") - calls.count("ModelFinalize")

    def are_finalized(self):
        """Whether every agent that was initialized is finalized."""
        calls = [line.split()[2] for line in self.lines()]
        return calls.count("Initialize") == calls.count("Finalize")


def model(repository, name, *agents, config=TENSORS, backend="echo"):
    """Writes a model that names agents, each with its parameters."""
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.txt").write_text(name)
    named = ""
    for agent, parameters in agents:
        given = "".join(f" parameters {{ key: '{key}' value: '{value}' }}" for key, value in parameters.items())
        named += f"  agents {{ name: '{agent}'{given} }}\n"
    agents = f"model_repository_agents {{\n{named}}}\n" if named else ""
    (folder / "config.pbtxt").write_text(f'backend: "{backend}"\n{config}{agents}')
    return folder


class Control:
    """Loads and unloads the models of a server."""

    def __init__(self, url):
        self.url = url

    def post(self, path, body=None):
        connection = HTTPConnection(self.url, timeout=60)
        try:
            connection.request("POST", path, json.dumps(body or {}))
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def load(self, name, **parameters):
        return self.post(f"/v2/repository/models/{name}/load", {"parameters": parameters})

    def unload(self, name):
        return self.post(f"/v2/repository/models/{name}/unload")

    def served(self, name):
        """How large the batches of a model may be; None if it is not served."""
        connection = HTTPConnection(self.url, timeout=60)
        try:
            connection.request("GET", f"/v2/models/{name}/config")
            return json.loads(connection.getresponse().read()).get("max_batch_size")
        finally:
            connection.close()

    def state(self, name):
        _, text = self.post("/v2/repository/index")
        return [(row.get("state"), row.get("reason", "")) for row in json.loads(text) if row["name"] == name]


@contextmanager
def nereid(repository, flags):
    with nereid_server.running(repository, "--model-control-mode=explicit", *flags) as server:
        yield Control(server.url)


@contextmanager
def nvidia(repository, flags):
    with python_backend.nvidia_server(repository, "--model-control-mode=explicit", *flags) as url:
        yield Control(url)


def normalised(lines, folder):
    """The lines, without the folders of the test and of the server. What configurations say is in a form of its own."""
    temporary: dict[str, str] = {}

    def number(match):
        return temporary.setdefault(match[0], f"TEMPORARY{len(temporary)}")

    text = "\n".join(lines).replace(str(folder), "FOLDER")
    lines = re.sub(r"/tmp/(folder\w+|nereid-sent-\w+/\w+)", number, text).splitlines()
    for line in lines:
        agent, _, config = line.partition(" config {")
        yield f"{agent} config " + json.dumps(json.loads("{" + config), sort_keys=True) if config else line


def fnv(contents):
    """The digest that the recorder knows."""
    digest = 0xCBF29CE484222325
    for byte in contents:
        digest = (digest ^ byte) * 0x100000001B3 % 2**64
    return f"{digest:016x}"


def write_scenarios(folder):
    """A model for each scenario, named after it."""
    repository = folder / "models"
    repository.mkdir()
    shutil.copytree(model(repository, "original"), folder / "elsewhere")
    # The configuration that names the agents counts, and not what they bring along.
    (folder / "elsewhere" / "config.pbtxt").write_text('backend: "echo"\nmax_batch_size: 3\n' + TENSORS)
    model(repository, "plain", ("one", {}))
    model(repository, "two_agents", ("one", {"a": "b"}), ("two", {}))
    model(repository, "twice_the_same", ("one", {"a": "b"}), ("one", {}))
    model(repository, "moved", ("one", {"move": "yes"}), ("two", {"move": "yes"}))
    model(repository, "elsewhere", ("one", {"update": str(folder / "elsewhere")}), ("two", {}))
    model(repository, "nowhere", ("one", {"update": "/no/such/folder"}), ("two", {}))
    model(repository, "right_digests", ("one", {"fnv:1/model.txt": fnv(b"right_digests")}), ("two", {"move": "yes"}))
    # One digest: NVIDIA's server gives parameters in no particular order.
    model(repository, "wrong_digest", ("two", {"move": "yes"}), ("one", {"fnv:config.pbtxt": "0" * 16}), ("two", {}))
    model(repository, "digest_of_nothing", ("one", {"fnv:1/none.txt": "0" * 16}), ("two", {"move": "yes"}))
    model(repository, "refused_by_the_first", ("one", {"fail": "LOAD"}), ("two", {}))
    model(repository, "refused_by_the_second", ("one", {}), ("two", {"fail": "LOAD"}))
    model(repository, "not_initialized", ("one", {}), ("two", {"fail": "INITIALIZE"}))
    model(repository, "load_complete_fails", ("one", {}), ("two", {"fail": "LOAD_COMPLETE"}))
    model(repository, "unload_fails", ("one", {"fail": "UNLOAD"}), ("two", {}))
    model(repository, "unload_complete_fails", ("one", {}), ("two", {"fail": "UNLOAD_COMPLETE"}))
    model(repository, "finalize_fails", ("one", {"fail": "FINALIZE"}), ("two", {}))
    model(repository, "missing_agent", ("one", {}), ("missing", {}), ("two", {}))
    model(repository, "invalid", ("one", {}), ("two", {}), config="max_batch_size: -1\n" + TENSORS)
    model(repository, "exercise", ("one", {"exercise": "yes", "home": str(repository / "exercise")}))
    model(repository, "changed", ("one", {}), ("two", {}))
    model(repository, "overridden", ("one", {}), ("two", {}))
    model(repository, "no_backend", ("one", {}), ("two", {}), backend="nowhere")
    return repository


SCENARIOS = [
    "plain", "two_agents", "twice_the_same", "moved", "elsewhere", "nowhere", "right_digests", "wrong_digest",
    "digest_of_nothing", "refused_by_the_first", "refused_by_the_second", "not_initialized", "load_complete_fails",
    "unload_fails", "unload_complete_fails", "finalize_fails", "missing_agent", "invalid", "exercise", "changed", "overridden",
]  # fmt: skip


def play(control, repository, name, agents):
    """Loads a model, perhaps in other ways too, and unloads it. Returns how it was served after the first load."""
    control.load(name)
    served = control.served(name)
    # Nothing has changed.
    control.load(name)
    if name == "changed":
        (repository / name / "1" / "more.txt").write_text("x")
        control.load(name)
        assert eventually(lambda: agents.models() == 2)
    if name == "overridden":
        tensor = {"name": "", "data_type": "TYPE_INT32", "dims": [-1]}
        config = {
            "backend": "echo",
            "input": [{**tensor, "name": "INPUT0"}],
            "output": [{**tensor, "name": "OUTPUT0"}],
            "model_repository_agents": {"agents": [{"name": "two", "parameters": {"x": "y"}}]},
        }
        control.load(name, config=json.dumps(config))
        assert eventually(lambda: agents.models() == 1)
    control.unload(name)
    return served


def by_load(story):
    """The lines of each load of a model for itself."""
    numbers = sorted({int(line.split()[1]) for line in story} - {0})
    return [[line for line in story if int(line.split()[1]) == number] for number in numbers]


def tell(server, folder):
    """What agents record of each scenario in a server."""
    folder.mkdir()
    repository = write_scenarios(folder)
    agents = Agents(folder)
    stories = {}
    with server(repository, agents.flags) as control:
        for name in SCENARIOS:
            before = len(agents.lines())
            served = play(control, repository, name, agents)
            assert eventually(lambda: agents.are_finalized()), (name, agents.lines()[before:])
            stories[name] = list(normalised(agents.lines()[before:], folder))
            if name in ("changed", "overridden"):
                # One load ends while another goes on: each for itself.
                stories[name] = by_load(stories[name])
            stories[name].append(served)
        # The other server finalizes the agents of a model that failed to load when it is loaded again, or never.
        before = len(agents.lines())
        control.load("no_backend")
        story = list(normalised(agents.lines()[before:], folder))
        stories["no_backend"] = [line for line in story if "inalize" not in line]
        # Ended with the server.
        control.load("plain")
    lines = [line for line in normalised(agents.lines()[before:], folder) if "models/plain" in line]
    stories["stopped"] = [re.sub(r" \d+", "", line, count=1) for line in lines]
    return stories


@pytest.fixture(scope="module")
def stories(tmp_path_factory):
    folder = tmp_path_factory.mktemp("agents")
    told = {"nereid": tell(nereid, folder / "nereid")}
    try:
        told["nvidia"] = tell(nvidia, folder / "nvidia")
    except AssertionError:
        # On a busy machine, the other server once left the agents of a replaced load behind.
        told["nvidia"] = tell(nvidia, folder / "nvidia_again")
    return told


@pytest.mark.parametrize("scenario", [*SCENARIOS, "no_backend", "stopped"])
def test_agents_are_called_as_by_nvidias_server(stories, scenario):
    assert stories["nereid"][scenario] == stories["nvidia"][scenario]
    assert stories["nereid"][scenario]


FAILS = {"nowhere", "wrong_digest", "digest_of_nothing", "refused_by_the_first", "refused_by_the_second"}
FAILS |= {"not_initialized", "missing_agent", "invalid"}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_models_that_agents_refuse_are_not_served(stories, scenario):
    assert stories["nereid"][scenario][-1] == (None if scenario in FAILS else 0)


def test_a_refusal_is_told_in_the_agents_words(tmp_path, repository):
    agents = Agents(tmp_path)
    model(repository, "refused", ("one", {}), ("two", {"fail": "LOAD"}))
    model(repository, "missing", ("three", {}))
    with nereid(repository, agents.flags) as control:
        for name, words in [
            ("refused", "repository agent 'two': two refuses LOAD"),
            ("missing", "repository agent 'three' is neither built in (checksum, dragonfly) nor installed"),
        ]:
            status, answer = control.load(name)
            assert status == 500 and words in answer
            assert words in str(control.state(name))


def test_an_agent_that_passes_wrong_arguments_gets_errors(tmp_path, repository):
    agents = Agents(tmp_path, ["one"])
    model(repository, "m", ("one", {"hostile": "yes"}))
    with nereid(repository, agents.flags) as control:
        assert control.load("m") == (200, "")
        lines = [line for line in agents.lines() if ": " in line and "update before" not in line]
        assert len(lines) == 21
        assert all(line.endswith(": Invalid argument") for line in lines[:20]), lines
        assert control.unload("m") == (200, "")
        assert eventually(agents.are_finalized)


@pytest.mark.parametrize("contents", [b"", b"not a library"])
def test_a_library_that_is_no_agent_fails_the_load(tmp_path, repository, contents):
    agents = Agents(tmp_path, ["one"])
    (agents.folder / "one" / "libtritonrepoagent_one.so").write_bytes(contents)
    shutil.copy(agents.flags[1].partition("=")[2] + "/echo/libtriton_echo.so", agents.folder / "one" / "x.so")
    model(repository, "m", ("one", {}))
    with nereid(repository, agents.flags) as control:
        status, answer = control.load("m")
        assert status == 500 and "is not a shared library" in answer
        shutil.move(agents.folder / "one" / "x.so", agents.folder / "one" / "libtritonrepoagent_one.so")
        status, answer = control.load("m")
        assert status == 500 and "it does not export TRITONREPOAGENT_ModelAction" in answer


def test_polls_call_agents_only_for_changes(tmp_path, repository):
    agents = Agents(tmp_path, ["one"])
    model(repository, "m", ("one", {}))
    poll = ["--model-control-mode=poll", "--repository-poll-secs=1", *agents.flags]
    with nereid_server.running(repository, *poll) as server:
        control = Control(server.url)
        # Agents hear that a model is loaded after clients can see it.
        loaded = ["ModelInitialize", "LOAD", "LOAD_COMPLETE"]

        def actions(lines):
            lines = [line for line in lines if " update " not in line]
            return [[line.split()[2] for line in load] for load in by_load(lines)]

        assert eventually(lambda: actions(agents.lines())[-1:] == [loaded]), agents.lines()
        before = agents.lines()
        # Two polls have to see it before it is loaded.
        model(repository, "later")
        assert eventually(lambda: control.state("later") == [("READY", "")])
        assert agents.lines() == before
        (repository / "m" / "1" / "more.txt").write_text("x")
        reloaded = [["UNLOAD", "UNLOAD_COMPLETE", "ModelFinalize"], loaded]
        assert eventually(lambda: actions(agents.lines()[len(before) :]) == reloaded), agents.lines()[len(before) :]

"""`nereid check`: everything that is wrong with a repository in one run, and nothing where nothing is."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from onnx import TensorProto, helper

import nereid_server
from http_requests import request
from model_files import OnnxModel, scale_model, write_identity, write_model
from places import EXAMPLES

LIMIT_S = 120


# Root may read anything, unless it gives up what makes it root.
AS_USER = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []


def check(*arguments, before=()):
    """Runs the command to its end."""
    command = [*before, nereid_server.binary(), "check", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL)


def report(*arguments, code, before=()):
    """The JSON report; the command must exit with `code`."""
    done = check(*arguments, "--json", before=before)
    assert (done.returncode, done.stderr) == (code, ""), done
    return json.loads(done.stdout)


def write(repository, path, text=""):
    """Writes a file and the folders above it."""
    file = Path(repository) / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text if isinstance(text, bytes) else text.encode())


TENSORS = """input { name: "INPUT" data_type: TYPE_FP32 dims: [ 3 ] }
output { name: "OUTPUT" data_type: TYPE_FP32 dims: [ 3 ] }
"""

FILES = {
    # Problems of the text: all of one file are found, and the rules are still checked.
    "text/config.pbtxt": """nmae: "text"
backend: "identity"
max_batch_size: "eight"
input [
  { name: "X" data_type: TYPE_FLOAT32 dims: [ 3, "x" ] },
  { name: "Y" data_type: TYPE_FP32 dims: [ 99999999999999999999 ] },
  { name: "Z" data_type: TYPE_FP32 dims: [ 0 ] }
]
output { name: "Y" data_type: TYPE_FP32 dims: [ 3 ] }
version_policy { latest { num_versions: 1 } }
version_policy { all { } }
""",
    "text/1/": None,
    "unbalanced/config.pbtxt": """backend: "identity"
input {
  name: "X"
""",
    "unbalanced/1/": None,
    # Rules that are broken, several at once.
    "rules/config.pbtxt": """backend: "identity"
max_batch_size: -1
input [
  { name: "X" data_type: TYPE_FP32 dims: [ 3 ] },
  {
    name: "X"
    data_type: TYPE_FP32
    dims: [ 3,
      -2 ]
  }
]
output { name: "Y" data_type: TYPE_FP32 dims: [ 3 ] label_filename: "lables.txt" }
instance_group { kind: KIND_GPU }
parameters { key: "notes" value { string_value: "used.txt" } }
model_warmup {
  name: "w"
  batch_size: 1
  inputs { key: "X" value { data_type: TYPE_FP32 dims: [ 3 ] input_data_file: "raw.bin" } }
}
""",
    "rules/1/": None,
    "rules/labels.txt": "a\nb\nc\n",
    "rules/used.txt": "",
    "rules/warmup/row.bin": "",
    "other_name/config.pbtxt": 'backend: "identity"\nname: "rules"\n' + TENSORS,
    "other_name/1/": None,
    "no_backend/config.pbtxt": 'backend: "onnxruntim"\n' + TENSORS,
    "no_backend/1/": None,
    "incomplete/config.pbtxt": 'backend: "identity"\ninput { name: "X" data_type: TYPE_FP32 }\n',
    "incomplete/1/": None,
    # Layout.
    "no_version/config.pbtxt": 'backend: "identity"\n' + TENSORS,
    "no_version/v1/": None,
    "no_version/02/": None,
    "empty_version/config.pbtxt": 'backend: "onnxruntime"\n',
    "empty_version/1/": None,
    "wrong_file/config.pbtxt": 'backend: "onnxruntime"\nversion_policy { specific { versions: [ 1, 7 ] } }\n',
    "wrong_file/1/net.onnx": b"",
    "wrong_file/2/": None,
    "no_such_version/config.pbtxt": 'backend: "identity"\nversion_policy: { specific { versions: 9 } }\n' + TENSORS,
    "no_such_version/1/": None,
    "no_config/1/": None,
    "no_config/confg.pbtxt": "",
    # An ensemble and its members.
    "pipeline/config.pbtxt": """platform: "ensemble"
input { name: "IN" data_type: TYPE_FP32 dims: [ 3 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] }
ensemble_scheduling {
  step [
    {
      model_name: "membr"
      model_version: -1
      input_map { key: "X" value: "IN" }
      output_map { key: "Y" value: "between" }
    },
    {
      model_name: "member"
      model_version: 5
      input_map { key: "INPUTS" value: "between" }
      output_map {
        key: "OUTPUT"
        value: "OUT"
      }
    },
    {
      model_name: "rules"
      model_version: -1
      input_map { key: "X" value: "between" }
      output_map { key: "Y" value: "third" }
    }
  ]
}
""",
    "pipeline/1/": None,
    "member/config.pbtxt": 'backend: "identity"\n' + TENSORS,
    "member/1/": None,
    "odd_bytes/config.pbtxt": ('backend: "identity"\n' + TENSORS).encode() + b"# caf\xe9\n",
    "odd_bytes/1/": None,
    "stray.txt": "",
}

# Path, line, field, nearest name, and words of the message.
PROBLEMS = [
    ("text/config.pbtxt", 1, "nmae", "name", "no field 'nmae'"),
    ("text/config.pbtxt", 3, "max_batch_size", None, "32-bit integer"),
    ("text/config.pbtxt", 5, "input[0].data_type", "TYPE_FP32", "TYPE_FLOAT32"),
    ("text/config.pbtxt", 5, "input[0].dims[1]", None, "64-bit integer"),
    ("text/config.pbtxt", 6, "input[1].dims[0]", None, "out of range"),
    ("text/config.pbtxt", 7, "input[2].dims[0]", None, "0"),
    ("text/config.pbtxt", 11, "version_policy", None, "set twice"),
    ("unbalanced/config.pbtxt", 2, "input[0]", None, "not closed"),
    ("rules/config.pbtxt", 2, "max_batch_size", None, "-1"),
    ("rules/config.pbtxt", 6, "input[1].name", None, "'X'"),
    ("rules/config.pbtxt", 9, "input[1].dims[1]", None, "-2"),
    ("rules/config.pbtxt", 12, "output[0].label_filename", "labels.txt", "lables.txt"),
    ("rules/config.pbtxt", 13, "instance_group[0].kind", None, "KIND_GPU"),
    ("rules/config.pbtxt", 18, 'model_warmup[0].inputs["X"].input_data_file', "row.bin", "raw.bin"),
    ("other_name/config.pbtxt", 2, "name", "other_name", "another model"),
    ("no_backend/config.pbtxt", 1, "backend", "onnxruntime", "onnxruntim"),
    ("incomplete/config.pbtxt", 2, "input[0].dims", None, ""),
    ("no_version", None, None, None, "version"),
    ("empty_version/1", None, None, None, "model.onnx"),
    ("wrong_file/1", None, None, "net.onnx", "model.onnx"),
    ("no_such_version/config.pbtxt", 2, "version_policy", None, "none of the versions"),
    ("no_config", None, "backend", None, "is required"),
    ("pipeline/config.pbtxt", 7, "ensemble_scheduling.step[0].model_name", "member", "membr"),
    ("pipeline/config.pbtxt", 14, "ensemble_scheduling.step[1].model_version", None, "5"),
    ("pipeline/config.pbtxt", 15, 'ensemble_scheduling.step[1].input_map["INPUTS"]', "INPUT", "INPUTS"),
    ("pipeline/config.pbtxt", 15, "ensemble_scheduling.step[1].input_map", None, "'INPUT'"),
    ("pipeline/config.pbtxt", 16, 'ensemble_scheduling.step[1].output_map["OUTPUT"]', None, "OUT"),
    ("pipeline/config.pbtxt", 22, "ensemble_scheduling.step[2].model_name", None, "would not load"),
]

WARNINGS = [
    ("rules/labels.txt", None, None, "unused file"),
    ("no_version/v1", None, "1", "version"),
    ("no_version/02", None, "2", "version"),
    ("wrong_file/config.pbtxt", 2, None, "7"),
    ("wrong_file/2", None, None, "not served"),
    ("no_config/confg.pbtxt", None, "config.pbtxt", "unused file"),
    ("odd_bytes/config.pbtxt", 4, None, "UTF-8"),
    ("stray.txt", None, None, "unused file"),
]


@pytest.fixture
def planted(repository):
    """The repository with all that is planted in it."""
    for path, text in FILES.items():
        if text is None:
            (repository / path).mkdir(parents=True)
        else:
            write(repository, path, text)
    return repository


def is_problem(found, repository, path, line, field, nearest, words):
    """Whether this is the expected problem."""
    place = (found["path"], found["line"], found["field"], found["nearest"])
    return place == (str(repository / path), line, field, nearest) and words in found["message"]


def test_every_planted_problem_is_found_in_one_run(planted):
    found = report(planted, code=1)["problems"]
    for expected in PROBLEMS:
        matching = [one for one in found if is_problem(one, planted, *expected)]
        assert len(matching) == 1, (expected, json.dumps(found, indent=1))


def test_a_problem_that_does_not_prevent_loading_is_a_warning(planted):
    found = report(planted, code=1)["warnings"]
    for path, line, nearest, words in WARNINGS:
        matching = [one for one in found if (one["path"], one["line"]) == (str(planted / path), line)]
        assert len(matching) == 1, (path, found)
        assert matching[0]["nearest"] == nearest and words in matching[0]["message"]
    assert len(found) == len(WARNINGS), found


def test_models_without_a_problem_are_distinguished_from_others(planted):
    models = {model["name"]: model for model in report(planted, code=1)["models"]}
    assert set(models) == {path.split("/")[0] for path in FILES if "/" in path}
    good = {name for name, model in models.items() if model["would_load"]}
    assert good == {"member", "odd_bytes"}
    assert models["member"]["versions"] == [1] and models["member"]["backend"] == "identity"


def test_the_table_and_the_problems_are_printed(planted):
    done = check(planted)
    assert (done.returncode, done.stderr) == (1, "")
    assert f"\n  {planted}/text/config.pbtxt:5:26: input[0].data_type: 'TYPE_FLOAT32'" in done.stdout
    table, rest = done.stdout.split("\nProblems:\n")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line[0] == "|"]
    assert rows[0] == ["Model", "Versions", "Backend", "State"]
    assert ["member", "1", "identity", "would load"] in rows
    assert ["no_config", "-", "-", "would not load"] in rows or ["no_config", "1", "-", "would not load"] in rows
    problems, warnings = rest.split("\nWarnings:\n")
    found = report(planted, code=1)
    assert len(problems.strip().splitlines()) == len(found["problems"])
    models, last = len(found["models"]), warnings.strip().splitlines()[-1]
    assert last.startswith(f"{models} models ({models - 2} would not load), {len(found['problems'])} problems, ")


DOCUMENTED: dict[str, dict[str, type | tuple[type, ...]]] = {
    "models": {
        "name": str,
        "repository": str,
        "versions": list,
        "backend": (str, type(None)),
        "agents": (dict, type(None)),
        "would_load": bool,
    },
    "problems": {
        "model": (str, type(None)),
        "path": str,
        "line": (int, type(None)),
        "column": (int, type(None)),
        "field": (str, type(None)),
        "message": str,
        "nearest": (str, type(None)),
    },
}
DOCUMENTED["warnings"] = DOCUMENTED["problems"]


def test_the_json_has_its_documented_form(planted):
    found = report(planted, code=1)
    assert list(found) == ["ok", "models", "problems", "warnings"] and found["ok"] is False
    for section, members in DOCUMENTED.items():
        assert found[section]
        for item in found[section]:
            assert list(item) == list(members)
            for name, kind in members.items():
                assert isinstance(item[name], kind), (section, name, item)
            assert (item.get("line") is None) == (item.get("column") is None)
    page = (EXAMPLES.parent / "docs/check.md").read_text()
    for name in {"ok", *DOCUMENTED, *(name for members in DOCUMENTED.values() for name in members)}:
        assert f"`{name}`" in page, name


def test_a_good_repository_has_no_problem():
    found = report(EXAMPLES / "model_repository", code=0)
    assert found["ok"] is True and found["problems"] == [] and found["warnings"] == []
    assert [model["name"] for model in found["models"]] == [
        "add_sub",
        "digits",
        "identity_fp32",
        "read_digit",
        "scale_pixels",
    ]
    assert all(model["would_load"] for model in found["models"])
    assert "would load" in check(EXAMPLES / "model_repository").stdout


def test_warnings_do_not_change_the_status(repository):
    write_identity(repository, "m", ["FP32"])
    write(repository, "notes.txt")
    found = report(repository, code=0)
    assert (found["ok"], len(found["warnings"])) == (True, 1)


def test_a_model_in_two_repositories_is_found_in_both(repository, tmp_path):
    other = tmp_path / "more"
    for folder in (repository, other):
        write_identity(folder, "twice", ["FP32"])
    write_identity(other, "once", ["FP32"])
    found = report(repository, other, code=1)
    assert {one["path"] for one in found["problems"]} == {str(repository / "twice"), str(other / "twice")}
    assert [(model["name"], model["would_load"]) for model in found["models"]] == [
        ("once", True),
        ("twice", False),
        ("twice", False),
    ]


def test_the_check_predicts_the_server(planted, serve):
    would_load = {model["name"]: model["would_load"] for model in report(planted, code=1)["models"]}
    server = serve("--exit-on-error=false", ready=False)
    for name, expected in would_load.items():
        ready = any(f"successfully loaded '{name}'" in line for line in server.log.splitlines())
        assert ready == expected, (name, server.log)


def test_another_configuration_can_be_chosen(repository):
    write_identity(repository, "m", ["FP32"])
    write(repository, "m/configs/small.pbtxt", "max_batch_size: many\n")
    assert report(repository, code=0)["ok"]
    found = report(repository, "--model-config-name=small", code=1)
    assert found["problems"][0]["path"].endswith("m/configs/small.pbtxt")
    found = report(repository, "--model-config-name=smal", code=0)
    assert "configs/smal.pbtxt" in found["warnings"][0]["message"]


def test_without_completion_a_configuration_must_be_complete(repository):
    write_model(repository, "m", 'backend: "onnxruntime"\ninput { name: "X" }', scale_model("m").serialized())
    write_model(repository, "none", None, scale_model("none").serialized())
    assert report(repository, code=0)["ok"]
    found = report(repository, "--disable-auto-complete-config", code=1)["problems"]
    assert {(one["line"], one["field"]) for one in found if one["model"] == "m"} == {
        (2, "input[0].data_type"),
        (2, "input[0].dims"),
    }
    assert [one["path"] for one in found if one["model"] == "none"] == [str(repository / "none")]


def test_unreadable_folders_are_problems(repository):
    for name in ("model", "version"):
        write_model(repository, name, scale_model(name).config(), scale_model(name).serialized())
    closed = [repository / "model", repository / "version" / "1"]
    for folder in closed:
        folder.chmod(0)
    try:
        found = report(repository, code=1, before=AS_USER)["problems"]
    finally:
        for folder in closed:
            folder.chmod(0o755)
    assert {one["path"] for one in found} == set(map(str, closed))
    assert all("Permission denied" in one["message"] for one in found), found


def test_a_missing_repository_is_a_problem(tmp_path):
    found = report(tmp_path / "nowhere", code=1)
    assert found["problems"][0]["path"] == str(tmp_path / "nowhere") and found["models"] == []


@pytest.mark.parametrize("arguments", [[], ["--no-such-flag", "m"], ["m", "--json", "--complete=m"]])
def test_wrong_usage_has_a_status_of_its_own(arguments):
    done = check(*arguments)
    assert (done.returncode, done.stdout) == (2, "") and "Usage" in done.stderr


def test_huge_and_hostile_configurations_are_checked_too(repository):
    write(repository, "deep/config.pbtxt", "optimization { cuda { x { " * 200_000)
    write(repository, "endless/config.pbtxt", "a: 1 " * 2_000_000)
    write(repository, "bytes/config.pbtxt", bytes(range(256)) * 1000)
    write(repository, "long/config.pbtxt", 'backend: "identity" name: "' + "x" * 50_000_000 + '"')
    found = report(repository, code=1)
    assert {one["model"] for one in found["problems"]} == {"bytes", "deep", "endless", "long"}
    assert len(found["problems"]) < 1100


COMPLETED = """input {
  name: "X"
  data_type: TYPE_FP32
  dims: [ 3 ]
}
output {
  name: "Y"
  data_type: TYPE_FP32
  dims: [ 3 ]
}
"""


def test_a_configuration_is_completed_from_the_model(repository, serve):
    write_model(repository, "m", 'backend: "onnxruntime"', scale_model("m").serialized())
    write(repository, "broken/config.pbtxt", "nonsense")
    done = check(repository, "--complete", "m")
    assert (done.returncode, done.stderr) == (0, "")
    assert COMPLETED in done.stdout and "max_batch_size: 4\n" in done.stdout
    done = check(repository, "--complete=m", "--backend-config=onnxruntime,default-max-batch-size=7")
    assert "max_batch_size: 7\n" in done.stdout
    # What is printed is a configuration, and complete.
    write(repository, "m/config.pbtxt", done.stdout)
    (repository / "broken" / "config.pbtxt").unlink()
    (repository / "broken").rmdir()
    assert report(repository, "--disable-auto-complete-config", code=0)["ok"]


@pytest.mark.parametrize(
    ("name", "reason"), [("scal", "did you mean 'scale'?"), ("broken", "config.pbtxt:1:1"), ("wrong", "model.onnx")]
)
def test_incomplete_configurations_are_explained(repository, name, reason):
    scale_model("scale").write(repository)
    write(repository, "broken/config.pbtxt", "nonsense")
    write_model(repository, "wrong", 'backend: "onnxruntime"', b"no model")
    done = check(repository, "--complete", name)
    assert (done.returncode, done.stdout) == (1, "")
    assert reason in done.stderr


def test_a_deep_check_finds_what_only_a_load_tells(repository):
    scale_model("good").write(repository)
    write_identity(repository, "identity", ["FP32"])
    write_model(repository, "torn", scale_model("torn").config(), scale_model("torn").serialized()[:-20])
    write_model(repository, "other", scale_model("other").config().replace('"Y"', '"Z"'), scale_model("other").serialized())
    write(repository, "text/config.pbtxt", "nonsense")
    write(repository, "text/1/model.onnx", "")
    shallow = report(repository, code=1)
    assert [model["name"] for model in shallow["models"] if not model["would_load"]] == ["text"]
    deep = report(repository, "--deep", code=1)
    assert [model["name"] for model in deep["models"] if not model["would_load"]] == ["other", "text", "torn"]
    found = {problem["model"]: problem["message"] for problem in deep["problems"]}
    assert "cannot be loaded: model 'torn'" in found["torn"] and "complete ONNX file" in found["torn"], found
    assert "'Z'" in found["other"], found
    assert len([problem for problem in deep["problems"] if problem["model"] == "text"]) == len(shallow["problems"])
    for name in ("other", "text", "torn"):
        shutil.rmtree(repository / name)
    assert report(repository, "--deep", code=0)["ok"]


CELU = OnnxModel(
    "celu",
    [helper.make_node("Celu", ["X"], ["Y"], alpha=2.0)],
    [("X", TensorProto.FLOAT, [3])],
    [("Y", TensorProto.FLOAT, [3])],
).serialized()

# Backend, more of the configuration, the model's file and contents, an option of the engine, and words of the problem.
WITHOUT_AN_ENGINE = {
    "libtorch": ("pytorch", TENSORS, "model.pt", b"", "pytorch,library=/no/such.so", "the libtorch given by the setting 'library'"),
    "OpenVINO": ("openvino", "", "model.xml", b"", "openvino,library=/no/such.so", "the OpenVINO library given by the setting"),
    "ONNX Runtime": ("onnxruntime", "", "model.onnx", CELU, "onnxruntime,engine=ort", "/no/such.so does not exist"),
    "operator": ("onnxruntime", "", "model.onnx", CELU, "onnxruntime,engine=tract", "does not serve: Celu; install ONNX Runtime"),
    "tensors": ("pytorch", "", "model.pt", b"", "pytorch,engine=python", "list all inputs and outputs"),
    "pickle": ("pytorch", TENSORS, "model.pt", b"\x80\x02" + bytes(20), "pytorch,engine=python", "pickled Python objects"),
    "fil": ("fil", TENSORS, "xgboost.json", b"{}", "onnxruntime,engine=tract", "missing field `learner`"),
}


@pytest.mark.parametrize("case", WITHOUT_AN_ENGINE)
def test_a_model_that_no_engine_would_serve_is_a_problem(repository, case):
    backend, text, file, contents, option, words = WITHOUT_AN_ENGINE[case]
    write(repository, "m/config.pbtxt", f'backend: "{backend}"\n{text}')
    write(repository, f"m/1/{file}", contents)
    options = ["--backend-config=onnxruntime,library=/no/such.so", f"--backend-config={option}"]
    found = report(repository, *options, code=1)
    assert [words in problem["message"] for problem in found["problems"]] == [True], found
    assert not found["models"][0]["would_load"]


def test_the_requirements_of_a_model_in_python_are_used(repository):
    write(repository, "m/config.pbtxt", 'backend: "python"\n' + TENSORS)
    write(repository, "m/1/model.py")
    write(repository, "m/requirements.txt", "numpy")
    found = report(repository, code=0)
    assert found["warnings"] == []


@pytest.mark.parametrize("word", ["help", "--help"])
def test_help_is_understood_as_a_word(word):
    done = subprocess.run([nereid_server.binary(), word], capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0 and "--model-repository" in done.stdout, done


def test_serving_takes_no_command(repository):
    write_identity(repository, "m", ["FP32"])
    done = subprocess.run(
        [nereid_server.binary(), f"--model-repository={repository}", "check", str(repository)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 2


def test_the_agents_of_models_are_named_and_who_names_them(tmp_path):
    for name, agents in [
        ("own", "agents { name: 'checksum' } agents { name: 'missing' }"),
        ("plain", None),
        ("wrong", "agents { name: 'dragonfly' parameters { key: 'proxy' value: 'nowhere' } }"),
    ]:
        named = f"model_repository_agents {{\n {agents} }}\n" if agents else ""
        write(tmp_path, f"one/{name}/config.pbtxt", f'backend: "identity"\n{TENSORS}{named}')
        (tmp_path / "one" / name / "1").mkdir()
    write(tmp_path, "two/other/config.pbtxt", f'backend: "identity"\n{TENSORS}')
    (tmp_path / "two" / "other" / "1").mkdir()
    write(tmp_path, "one/agents.pbtxt", "agents { name: 'checksum' }")
    option = "--repository-agent=dragonfly,proxy=http://127.0.0.1:1"
    found = report(tmp_path / "one", tmp_path / "two", option, code=1)
    assert {model["name"]: model["agents"] for model in found["models"]} == {
        "own": {"names": ["checksum", "missing"], "from": "its configuration"},
        "plain": {"names": ["checksum"], "from": "agents.pbtxt"},
        "wrong": {"names": ["dragonfly"], "from": "its configuration"},
        "other": {"names": ["dragonfly"], "from": "--repository-agent"},
    }
    assert not found["warnings"]
    problems = {problem["model"]: problem for problem in found["problems"]}
    assert set(problems) == {"own", "wrong"}
    assert problems["own"]["field"] == "model_repository_agents.agents[1].name" and problems["own"]["line"] == 5
    assert "repository agent 'missing' is neither built in" in problems["own"]["message"]
    assert "'nowhere' is not of the form http://HOST:PORT" in problems["wrong"]["message"]
    text = check(tmp_path / "two", option).stdout
    assert "Repository agents:\n  other: dragonfly (from --repository-agent)\n" in text
    write(tmp_path, "two/agents.pbtxt", "agents { nam: 'x' }")
    [problem] = report(tmp_path / "two", code=1)["problems"]
    assert problem["path"].endswith("two/agents.pbtxt") and "1:" in problem["message"]


WRONG_PARAMETERS = [
    {"load_on_demand": "yes"},
    {"keep_loaded": "1"},
    {"idle_timeout_secs": "-1"},
    {"memory_byte_size": "5G"},
    {"gpu_memory_byte_size": "0:1,0:2"},
    {"load_schedule": "8:00"},
    {"load_schedule": "0 25 * * *"},
    {"load_schedule": "0 8 * * * Europe/Berlni"},
    {"load_schedule": "0 0 30 2 *"},
    {"load_schedule": "0 8 * * *", "load_schedule_keep": "1s"},
    {"load_schedule_keep": "9h"},
    {"instances_max": "0"},
    {"instances_max": "2", "instances_min": "3"},
    {"instances_min": "2"},
    {"latency_objective_microseconds": "soon"},
    {"release_versions": "1=95, 1=5"},
    {"release_versions": "1=95, 2=5", "release_promote_after": "0"},
    {"release_shadow": "2=10"},
]


def test_parameters_of_the_server_fail_a_check_with_the_words_of_a_load(repository, serve):
    names = [f"m{number}" for number in range(len(WRONG_PARAMETERS))]
    for name, parameters in zip(names, WRONG_PARAMETERS, strict=True):
        write_identity(repository, name, ["INT32"], **parameters)
    problems = {problem["model"]: problem for problem in report(repository, code=1)["problems"]}
    assert sorted(problems) == sorted(names)
    server = serve("--exit-on-error=false", ready=False)
    index = request(server, "POST", "/v2/repository/index").json
    reasons = {line["name"]: line["reason"] for line in index}
    for name, parameters in zip(names, WRONG_PARAMETERS, strict=True):
        problem = problems[name]
        lines = Path(problem["path"]).read_text().splitlines()
        found = [key for key in parameters if problem["field"] == f'parameters["{key}"]' and key in lines[problem["line"] - 1]]
        assert len(found) == 1, problem
        assert problem["message"] in reasons[name], (problem, reasons[name])
        assert found[0] in reasons[name], (problem, reasons[name])


def test_a_mistyped_parameter_is_a_warning(repository):
    write_identity(repository, "typo", ["INT32"], load_schedul="0 8 * * *", idle_timeout="5")
    write_identity(repository, "good", ["INT32"], load_schedule="0 8 * * *", color="blue")
    found = report(repository, code=0)["warnings"]
    assert {(warning["model"], warning["field"], warning["nearest"]) for warning in found} == {
        ("typo", 'parameters["load_schedul"]', "load_schedule"),
        ("typo", 'parameters["idle_timeout"]', "idle_timeout_secs"),
    }

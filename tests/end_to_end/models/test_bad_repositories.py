"""Repositories with broken models: the others are served, and what is wrong is reported."""

import pytest

import nereid_server
from http_requests import assert_refused, infer, request, tensor
from model_files import config, scale_model, write_model

GOOD = {"inputs": [tensor("X", "FP32", [1, 3], [1.0, 2.0, 3.0])]}
INPUTS, OUTPUTS = [("X", "FP32", [3])], [("Y", "FP32", [3])]
GRAPH = scale_model("faulty").serialized()


def backend(inputs, outputs):
    """A configuration of the ONNX backend for the graph above."""
    return config("faulty", "onnxruntime", inputs, outputs, 8)


# What is wrong: the configuration, the model file, and a word that the explanation must have in it.
BROKEN = {
    "a model file that is no ONNX": (backend(INPUTS, OUTPUTS), b"this is not a model", "model.onnx"),
    "an empty model file": (backend(INPUTS, OUTPUTS), b"", "model.onnx"),
    "half a model file": (backend(INPUTS, OUTPUTS), GRAPH[: len(GRAPH) // 2], "model.onnx"),
    "no model file": (backend(INPUTS, OUTPUTS), None, "model.onnx"),
    "an input the model lacks": (backend([("NOT_THERE", "FP32", [3])], OUTPUTS), GRAPH, "NOT_THERE"),
    "an output the model lacks": (backend(INPUTS, [("NOT_THERE", "FP32", [3])]), GRAPH, "NOT_THERE"),
    "another datatype than the model's": (backend([("X", "INT64", [3])], OUTPUTS), GRAPH, "'X'"),
    "another shape than the model's": (backend([("X", "FP32", [4])], OUTPUTS), GRAPH, "'X'"),
    "a configuration that is no configuration": ("this is { not a [ configuration", GRAPH, "config.pbtxt"),
    "a configuration cut short": (backend(INPUTS, OUTPUTS)[:-20], GRAPH, "config.pbtxt"),
    "an unknown field": (backend(INPUTS, OUTPUTS) + "\nno_such_field: 3\n", GRAPH, "no_such_field"),
    "an unknown datatype": (backend([("X", "FP33", [3])], OUTPUTS), GRAPH, "TYPE_FP33"),
    "another name than the folder's": (backend(INPUTS, OUTPUTS).replace('"faulty"', '"other"'), GRAPH, "other"),
    "a backend that does not exist": (config("faulty", "nosuch", INPUTS, OUTPUTS, 8), GRAPH, "nosuch"),
    "a batch size below zero": (config("faulty", "onnxruntime", INPUTS, OUTPUTS, -1), GRAPH, "max_batch_size"),
}


@pytest.fixture(params=BROKEN)
def reason(request, repository):
    """Writes a good model and a broken one; the word that the explanation must have in it."""
    text, model, word = BROKEN[request.param]
    scale_model("good").write(repository)
    write_model(repository, "faulty", text, model)
    return word


def assert_explained(server, word):
    """One line of severity error names the model and says what is wrong with it."""
    lines = [line for line in server.complaints if "'faulty'" in line]
    assert len(lines) == 1 and word in lines[0], server.log


def test_the_good_model_is_served_beside_a_broken_one(serve, reason):
    server = serve("--exit-on-error=false", ready=False)
    assert request(server, "GET", "/v2/models/good/ready").status == 200
    answer = infer(server, "good", GOOD)
    assert (answer.status, answer.json["outputs"][0]["data"]) == (200, [2.0, 4.0, 6.0])
    assert_refused(request(server, "GET", "/v2/models/faulty/ready"), 400)
    assert_refused(request(server, "GET", "/v2/models/faulty"), 404)
    assert_refused(infer(server, "faulty", GOOD), 404)
    assert request(server, "GET", "/v2/health/live").status == 200
    assert_explained(server, reason)


def test_a_broken_model_stops_the_server_unless_exit_on_error_is_off(repository, reason):
    server = nereid_server.refused_start(repository)
    assert server.exit_code > 0
    assert_explained(server, reason)


@pytest.mark.parametrize(("strict", "status"), [("true", 400), ("false", 200)])
def test_strict_readiness_counts_broken_models(repository, serve, strict, status):
    scale_model("good").write(repository)
    write_model(repository, "faulty", backend(INPUTS, OUTPUTS), b"no model")
    server = serve("--exit-on-error=false", f"--strict-readiness={strict}", ready=False)
    assert server.ready_status() == status


def test_an_empty_repository_is_served_with_a_warning(serve):
    server = serve()
    assert request(server, "GET", "/v2").status == 200
    server.wait_for_log(r"^W.* has no models: each needs a folder of its own, such as <model>/1/model.onnx")


def test_a_folder_in_place_of_a_repository_is_explained(repository):
    scale_model("good").write(repository / "models")
    (repository / "docs").mkdir()
    for folder, explanation in [
        (repository, "has no models, but its folder 'models' looks like a repository: name that folder"),
        (repository / "models" / "good", "looks like a model: name the folder above it, which is the repository"),
    ]:
        server = nereid_server.refused_start(folder)
        assert f"model repository '{folder}' {explanation}" in server.log, server.log


def test_the_table_at_the_start_shows_whole_reasons(repository, serve):
    names = {"short": "X", "long" * 40: "NOT_THERE_" * 30}
    for name, tensor_name in names.items():
        text = backend([(tensor_name, "FP32", [4])], OUTPUTS).replace('"faulty"', f'"{name}"')
        write_model(repository, name, text, GRAPH)
    server = serve("--exit-on-error=false", ready=False)
    server.wait_until_loaded()
    server.wait_for_log(r"\| Model +\| Version \| Status")
    # The lines of each row: a part of the model's name, and of its status.
    rows: list[list[tuple[str, str]]] = []
    for line in [line for line in server.log.splitlines() if line.startswith("| ")][1:]:
        model, version, status = (cell.strip() for cell in line.strip("|").split("|"))
        if version:
            rows.append([])
        rows[-1].append((model, status))
    statuses = {"".join(model for model, _ in row): "".join(status for _, status in row) for row in rows}
    index = {it["name"]: it for it in request(server, "POST", "/v2/repository/index").json}
    assert set(index) == set(names)
    for name, entry in index.items():
        whole = f"{entry['state']}: {entry['reason']}"
        assert statuses[name].replace(" ", "") == whole.replace(" ", ""), server.log


def test_only_the_newest_version_is_served_by_default(repository, serve):
    for version, factor in ((1, 10), (2, 20), (10, 100)):
        model = scale_model("versions", factor)
        folder = repository / "versions" / str(version)
        folder.mkdir(parents=True)
        (folder / "model.onnx").write_bytes(model.serialized())
    (repository / "versions" / "config.pbtxt").write_text(scale_model("versions").config())
    server = serve()
    answer = infer(server, "versions", GOOD)
    assert (answer.json["model_version"], answer.json["outputs"][0]["data"]) == ("10", [100.0, 200.0, 300.0])
    assert_refused(infer(server, "versions", GOOD, version="2"), 404)


def test_files_and_odd_folders_in_a_repository_are_not_models(repository, serve):
    scale_model("good").write(repository)
    (repository / "README.md").write_text("not a model")
    (repository / "good" / "notes").mkdir()
    (repository / "good" / "0").mkdir()
    assert infer(serve(), "good", GOOD).status == 200

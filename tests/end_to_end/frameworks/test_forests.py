"""Forests of trees over HTTP and gRPC, beside what the libraries that made them predict."""

import json
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

import nereid_server
from http_requests import assert_refused, infer, request
from places import ROOT
from tensors import given

MODELS = ROOT / "crates/engines/forest/tests/models"
CASES = {
    case["name"]: case
    for file in ("cases.json", "binary_cases.json", "checkpoint_cases.json", "leaf_cases.json", "real_cases.json")
    for case in json.loads((MODELS / file).read_text())
}
FILES = {
    "xgboost_json": "xgboost.json",
    "xgboost_ubj": "xgboost.ubj",
    "xgboost": "xgboost.model",
    "lightgbm": "model.txt",
    "treelite_checkpoint": "checkpoint.tl",
}

#: A configuration as Triton's documentation shows it.
CONFIG = """
backend: "fil"
max_batch_size: 32768
input [
 {
    name: "input__0"
    data_type: TYPE_FP32
    dims: [ 8 ]
  }
]
output [
 {
    name: "output__0"
    data_type: TYPE_FP32
    dims: [ %d ]
  }
]
instance_group [{ kind: KIND_AUTO }]
parameters [
  {
    key: "model_type"
    value: { string_value: "%s" }
  },
  {
    key: "is_classifier"
    value: { string_value: "false" }
  }
]
dynamic_batching {}
"""


def write(repository, case, config, name=None):
    folder = repository / (name or case["name"]) / "1"
    folder.mkdir(parents=True)
    shutil.copy(MODELS / case["file"], folder / FILES[case["model_type"]])
    (folder.parent / "config.pbtxt").write_text(config)


def rows_of(case):
    return np.array([[np.nan if value is None else value for value in row] for row in case["rows"]], dtype=np.float32)


def test_every_kind_of_forest_predicts_what_its_own_library_predicts(repository, serve):
    """On generated rows, on the test rows of XGBoost's and LightGBM's own examples, and on the real data sets of scikit-learn."""
    for case in CASES.values():
        config = CONFIG % (len(case["expected"][0]), case["model_type"])
        write(repository, case, config.replace("dims: [ 8 ]", f"dims: [ {len(case['rows'][0])} ]"))
    server = serve()
    with (
        tritonclient.http.InferenceServerClient(server.url) as http,
        tritonclient.grpc.InferenceServerClient(server.grpc_url) as grpc,
    ):
        for name, case in CASES.items():
            for client in (http, grpc):
                module = tritonclient.http if client is http else tritonclient.grpc
                rows = rows_of(case)
                tensor = module.InferInput("input__0", rows.shape, "FP32")
                tensor.set_data_from_numpy(rows)
                answer = client.infer(name, [tensor]).as_numpy("output__0")
                np.testing.assert_allclose(answer, case["expected"], rtol=1e-6, atol=1e-6, err_msg=name)


def test_numbers_in_double_precision_are_not_rounded(repository, serve):
    cases = json.loads((MODELS / "double_cases.json").read_text())
    case = next(case for case in cases if case["file"] == "lgb_classes.txt")
    config = CONFIG % (4, "lightgbm")
    write(repository, {**case, "name": "m"}, config.replace("FP32", "FP64"))
    server = serve()
    rows, expected = (np.array(case[key], dtype=np.uint64).view(np.float64) for key in ("rows", "expected"))
    with (
        tritonclient.http.InferenceServerClient(server.url) as http,
        tritonclient.grpc.InferenceServerClient(server.grpc_url) as grpc,
    ):
        for client, module in ((http, tritonclient.http), (grpc, tritonclient.grpc)):
            tensor = module.InferInput("input__0", rows.shape, "FP64")
            tensor.set_data_from_numpy(rows)
            answer = client.infer("m", [tensor]).as_numpy("output__0")
            assert answer.dtype == np.float64
            np.testing.assert_allclose(answer, expected, rtol=1e-14)


def test_batches_of_many_clients_do_not_mix(repository, serve):
    case = CASES["lgb_classes"]
    write(
        repository,
        case,
        'backend: "fil" dynamic_batching { max_queue_delay_microseconds: 2000 } max_batch_size: 64 '
        'parameters { key: "predict_proba" value { string_value: "true" } }',
        "m",
    )
    server = serve()
    rows, expected = rows_of(case), np.array(case["expected"])

    def ask(seed):
        chosen = np.random.default_rng(seed).integers(0, len(rows), 1 + seed % 7)
        with tritonclient.http.InferenceServerClient(server.url) as client:
            for _ in range(10):
                answer = client.infer("m", [given("input__0", rows[chosen])]).as_numpy("output__0")
                np.testing.assert_allclose(answer, expected[chosen], rtol=1e-6, atol=1e-6)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(16)))


def test_a_folder_with_a_backend_alone_is_enough_and_explains_itself(repository, serve):
    write(repository, CASES["xgb_categories_ubj"], 'backend: "fil"', "m")
    server = serve()
    config = request(server, "GET", "/v2/models/m/config").json
    assert [(tensor["name"], tensor["dims"]) for tensor in config["input"] + config["output"]] == [
        ("input__0", [8]),
        ("output__0", [1]),
    ]
    assert "a forest of 3 trees" in server.log


@pytest.mark.parametrize(
    "name",
    [
        "xgb_classes_json",
        "xgb_classes_ubj",
        "lgb_binary",
        "sk_isolation",
        "tl2.4.0_forest_classes",
        "tl3.9.1_forest_classes",
        "lightgbm4.7.0_linear",
        "xgboost3.2.0_linear_classes_json",
        "xgboost3.2.0_vector_labels_ubj",
    ],
)
def test_a_forest_is_added_by_one_command_and_needs_no_configuration(repository, serve, name):
    case = CASES[name]
    done = subprocess.run(
        [nereid_server.binary(), "add", str(MODELS / case["file"]), f"--repository={repository}", "--name=m"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done
    (repository / "m/config.pbtxt").unlink()
    server = serve()
    assert ("is a linear model for 8 features" in server.log) == ("_linear_classes" in name)
    with tritonclient.http.InferenceServerClient(server.url) as client:
        answer = client.infer("m", [given("input__0", rows_of(case))]).as_numpy("output__0")
    expected = np.array(case["expected"])
    if name in ("lgb_binary", "xgboost3.2.0_vector_labels_ubj"):
        expected = expected > 0.5
    elif expected.shape[1] > 1:
        expected = expected.argmax(axis=1).reshape(-1, 1)
    np.testing.assert_allclose(answer, expected, rtol=1e-6)


def test_a_check_reads_the_files_of_forests(repository):
    leaves = ("tl3.9.1_forest_classes", "lightgbm4.7.0_linear", "xgboost3.2.0_vectors_json", "xgboost3.2.0_linear_ubj")
    for name in leaves:
        case = CASES[name]
        write(repository, case, CONFIG % (len(case["expected"][0]), case["model_type"]))

    def check():
        command = [nereid_server.binary(), "check", str(repository), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout

    status, report = check()
    assert status == 0, report
    for name in leaves:
        file = repository / name / "1" / FILES[CASES[name]["model_type"]]
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    status, report = check()
    assert status != 0, report
    for name in leaves:
        assert f"{name}/1/{FILES[CASES[name]['model_type']]}': " in report, report


def test_explanations_come_with_the_results(repository, serve):
    case = CASES["lgb_categories"]
    explained = 'output { name: "treeshap_output" data_type: TYPE_FP32 dims: [ 9 ] }'
    write(repository, case, CONFIG % (1, "lightgbm") + explained, "m")
    server = serve()
    with tritonclient.http.InferenceServerClient(server.url) as client:
        answer = client.infer("m", [given("input__0", rows_of(case))])
    np.testing.assert_allclose(answer.as_numpy("treeshap_output"), case["explained"], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(answer.as_numpy("output__0"), case["expected"], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("contents", "words"),
    [
        (b"{}", "missing field `learner`"),
        (b"", "XGBoost"),
        (b"tree\nversion=v4\n", "lightgbm"),
        ((MODELS / "xgb_classes.json").read_bytes()[:4000], "JSON"),
    ],
    ids=["empty document", "empty file", "another format", "truncated"],
)
def test_a_damaged_file_is_refused_and_the_server_goes_on(repository, serve, contents, words):
    good = CASES["xgb_regression_json"]
    config = CONFIG % (1, "xgboost_json")
    write(repository, good, config, "good")
    write(repository, good, config, "bad")
    (repository / "bad/1/xgboost.json").write_bytes(contents)
    server = serve("--exit-on-error=false", ready=False)
    assert_refused(request(server, "GET", "/v2/models/bad/ready"), 400)
    (line,) = [line for line in server.complaints if "'bad'" in line]
    assert words in line, line
    row = rows_of(good)[:1].tolist()
    data = [[0.0 if np.isnan(value) else value for value in row[0]]]
    body = {"inputs": [{"name": "input__0", "datatype": "FP32", "shape": [1, 8], "data": data}]}
    assert infer(server, "good", body).status == 200

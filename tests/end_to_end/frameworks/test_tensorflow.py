"""TensorFlow's formats, served by OpenVINO, and frameworks that only Triton's own backends run."""

import numpy as np
import pytest
import tritonclient.http

import openvino_models
import tensorflow_models
from http_requests import assert_refused, request
from openvino_models import parameter, tensors
from tensors import given

rng = np.random.default_rng(29)


@pytest.fixture
def serve(serve):
    """Servers that find OpenVINO."""
    return lambda *flags, **how: serve(*openvino_models.FLAGS, *flags, **how)


def served_config(server, name):
    return request(server, "GET", f"/v2/models/{name}/config").json


def reason(serve, name):
    """Why a model is refused."""
    server = serve("--exit-on-error=false", ready=False)
    assert_refused(request(server, "GET", f"/v2/models/{name}/ready"), 400)
    (line,) = [line for line in server.complaints if f"'{name}'" in line]
    return line


def assert_scales(server, name, source, target, factor):
    with tritonclient.http.InferenceServerClient(server.url) as client:
        for size in (1, 2, 4):
            values = rng.uniform(-9, 9, (size, 3)).astype(np.float32)
            output = client.infer(name, [given(source, values)]).as_numpy(target)
            np.testing.assert_allclose(output, values * factor, rtol=1e-6)


def test_a_saved_model_is_completed_and_served_by_the_names_of_its_signature(repository, serve):
    for name, factor in (("three", 3.0), ("half", 0.5)):
        tensorflow_models.write(repository, name, tensorflow_models.scaled([-1, 3], factor), shape=[-1, 3])
    server = serve("--backend-config=tensorflow,default-max-batch-size=5")
    config = served_config(server, "three")
    assert (config["backend"], config["platform"]) == ("tensorflow", "tensorflow_savedmodel")
    assert config["max_batch_size"] == 5
    described = [(it["name"], it["data_type"], it["dims"]) for it in config["input"] + config["output"]]
    assert described == [("given", "TYPE_FP32", [3]), ("scaled", "TYPE_FP32", [3])]
    assert_scales(server, "three", "given", "scaled", 3.0)
    assert_scales(server, "half", "given", "scaled", 0.5)
    server.wait_for_log(r"OpenVINO \S+ serves TensorFlow models")
    for name in ("three", "half"):
        server.wait_for_log(rf"model '{name}' version 1 is served by OpenVINO \S+ in place of TensorFlow on CPU \(precision: f32, ")


@pytest.mark.parametrize("configured", [None, "x", "x:0"])
def test_a_graphdef_is_served_by_the_names_of_its_operations(repository, serve, configured):
    config = 'platform: "tensorflow_graphdef"\n'
    if configured is not None:
        config += "max_batch_size: 4\n"
        config += tensors("input", (configured, "FP32", [3]))
        config += tensors("output", (configured.replace("x", "y"), "FP32", [3]))
    tensorflow_models.write(repository, "graph", tensorflow_models.scaled([-1, 3]), config)
    server = serve()
    source = configured or "x"
    assert served_config(server, "graph")["input"][0]["name"] == source
    assert_scales(server, "graph", source, source.replace("x", "y"), 3.0)


@pytest.mark.parametrize(
    "key, value, fails",
    [
        ("TF_SIGNATURE_DEF", "serving_default", False),
        ("TF_SIGNATURE_DEF", "train", True),
        ("TF_GRAPH_TAG", "serve", False),
        ("TF_GRAPH_TAG", "gpu", True),
        ("TF_INIT_OPS_FILE", "init_ops.json", True),
    ],
)
def test_operations_that_only_tensorflow_has_are_refused_by_name(repository, serve, key, value, fails):
    config = 'platform: "tensorflow_savedmodel"\n' + parameter(key, value)
    tensorflow_models.write(repository, "model", tensorflow_models.scaled([-1, 3]), config, shape=[-1, 3])
    if fails:
        assert f"parameter '{key}' is '{value}'" in reason(serve, "model")
    else:
        assert_scales(serve(), "model", "given", "scaled", 3.0)


def test_a_damaged_model_is_refused(repository, serve):
    graph = tensorflow_models.scaled([-1, 3])
    tensorflow_models.write(repository, "sound", graph, 'platform: "tensorflow_graphdef"')
    for index in range(100):
        damaged = bytearray(graph)
        for _ in range(1 + index % 4):
            damaged[rng.integers(len(damaged))] ^= 1 << rng.integers(8)
        tensorflow_models.write(repository, f"damaged{index}", bytes(damaged), 'platform: "tensorflow_graphdef"')
    server = serve("--exit-on-error=false", ready=False)
    server.wait_until_loaded()
    assert any("OpenVINO cannot load" in line for line in server.complaints)
    assert_scales(server, "sound", "x", "y", 3.0)


@pytest.mark.parametrize(
    "file, says",
    [
        ("model.plan", "TensorRT plans need NVIDIA's TensorRT and Triton's backend for it: "),
        ("model.dali", "DALI pipelines need NVIDIA DALI and Triton's backend for it: "),
    ],
)
def test_missing_frameworks_name_what_to_install(repository, serve, file, says):
    folder = repository / "model" / "1"
    folder.mkdir(parents=True)
    (folder / file).write_bytes(b"anything")
    backend = {"model.plan": "tensorrt", "model.dali": "dali"}[file]
    declared = tensors("input", ("X", "FP32", [3])) + tensors("output", ("Y", "FP32", [3]))
    (folder.parent / "config.pbtxt").write_text(f'backend: "{backend}"\n{declared}')
    line = reason(serve, "model")
    assert says in line and "--backend-directory" in line

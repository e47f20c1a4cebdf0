"""Health and metadata of the server and its models."""

import pytest
from tritonclient.utils import InferenceServerException

from http_requests import assert_refused, request


def test_the_server_is_live_and_ready(client):
    assert client.is_server_live()
    assert client.is_server_ready()


def test_models_are_ready_with_and_without_a_version(client):
    for model in ("digits", "add_sub", "identity_fp32", "read_digit", "scale_pixels"):
        assert client.is_model_ready(model)
        assert client.is_model_ready(model, "1")
        assert not client.is_model_ready(model, "2")
    assert not client.is_model_ready("nosuch")


def test_health_answers_have_no_body(examples):
    for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/digits/ready"):
        answer = request(examples, "GET", path)
        assert (answer.status, answer.body) == (200, b"")


def test_a_model_that_is_not_ready_is_answered_with_400(examples):
    for path in ("/v2/models/nosuch/ready", "/v2/models/digits/versions/9/ready"):
        assert_refused(request(examples, "GET", path), 400)


def test_server_metadata_names_the_server_and_its_extensions(client):
    metadata = client.get_server_metadata()
    assert metadata["name"]
    assert metadata["version"]
    extensions = {"binary_tensor_data", "classification", "model_configuration", "parameters", "statistics"}
    assert extensions <= set(metadata["extensions"])


@pytest.mark.parametrize("version", ["", "1"])
def test_model_metadata_lists_tensors_with_the_batch_dimension(client, version):
    metadata = client.get_model_metadata("digits", version)
    assert metadata == {
        "name": "digits",
        "versions": ["1"],
        "platform": metadata["platform"],
        "inputs": [{"name": "image", "datatype": "FP32", "shape": [-1, 1, 8, 8]}],
        "outputs": [{"name": "probabilities", "datatype": "FP32", "shape": [-1, 10]}],
    }


def test_model_metadata_keeps_the_order_of_the_configuration(client):
    metadata = client.get_model_metadata("add_sub")
    assert [tensor["name"] for tensor in metadata["inputs"]] == ["INT0", "INT1", "FLOAT0", "FLOAT1"]
    assert [tensor["name"] for tensor in metadata["outputs"]] == ["INT_SUM", "INT_DIFF", "FLOAT_SUM", "FLOAT_DIFF"]
    assert [tensor["datatype"] for tensor in metadata["inputs"]] == ["INT32", "INT32", "FP32", "FP32"]


def test_variable_dimensions_are_shown_as_minus_one(client):
    metadata = client.get_model_metadata("identity_fp32")
    assert metadata["inputs"] == [{"name": "INPUT0", "datatype": "FP32", "shape": [-1, -1]}]


@pytest.mark.parametrize(("model", "version"), [("nosuch", ""), ("digits", "9")])
def test_metadata_of_an_unknown_model_is_answered_with_404(client, model, version):
    with pytest.raises(InferenceServerException) as error:
        client.get_model_metadata(model, version)
    assert error.value.status() == "404"


@pytest.mark.parametrize("version", ["", "1"])
def test_a_models_configuration_has_its_defaults_filled_in(client, version):
    configuration = client.get_model_config("identity_fp32", version)
    assert configuration["name"] == "identity_fp32"
    assert configuration["backend"] == "identity"
    assert configuration["version_policy"] == {"latest": {"num_versions": 1}}
    assert configuration["optimization"]["input_pinned_memory"] == {"enable": True}
    assert configuration["instance_group"][0]["kind"] == "KIND_CPU"
    assert configuration["instance_group"][0]["count"] == 1
    assert configuration["input"][0]["data_type"] == "TYPE_FP32"
    assert configuration["input"][0]["dims"] == [-1]
    assert configuration["parameters"] == {}


@pytest.mark.parametrize(("model", "version"), [("nosuch", ""), ("digits", "9")])
def test_the_configuration_of_an_unknown_model_is_answered_with_404(client, model, version):
    with pytest.raises(InferenceServerException) as error:
        client.get_model_config(model, version)
    assert error.value.status() == "404"


@pytest.mark.parametrize("path", ["/", "/v2//", "/v2/unknown", "/v2/models", "/v3/models", "/v2/models/digits/versions"])
def test_unknown_paths_are_answered_with_404(examples, path):
    assert_refused(request(examples, "GET", path), 404)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v2"),
        ("POST", "/v2/health/live"),
        ("GET", "/v2/models/digits/infer"),
        ("PUT", "/v2/models/digits/infer"),
    ],
)
def test_the_wrong_method_is_answered_with_405(examples, method, path):
    assert_refused(request(examples, method, path, "{}" if method != "GET" else None), 405)

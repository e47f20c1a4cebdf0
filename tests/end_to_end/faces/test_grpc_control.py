"""Health, metadata, repository control and settings over gRPC."""

import time

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2 as messages
from tritonclient.utils import InferenceServerException

from grpc_requests import LIMIT_S, assert_refused, given, numbers, stub
from model_files import scale_model, write_identity


@pytest.fixture
def server(repository, serve):
    write_identity(repository, "same", ["INT32"], max_batch_size=4)
    scale_model("scale").write(repository)
    return serve("--model-control-mode=explicit", "--load-model=same")


@pytest.fixture
def client(server):
    with triton.InferenceServerClient(server.grpc_url) as client:
        yield client


@pytest.fixture
def call(server):
    with grpc.insecure_channel(server.grpc_url) as channel:
        yield stub(channel)


def test_health_and_metadata(client):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("same")
    assert client.is_model_ready("same", "1")
    assert not client.is_model_ready("same", "2")
    assert not client.is_model_ready("scale")
    metadata = client.get_server_metadata()
    assert metadata.name == "triton"
    assert metadata.version.endswith("+nereid")
    assert {"classification", "system_shared_memory", "statistics"} <= set(metadata.extensions)
    model = client.get_model_metadata("same")
    assert (model.name, list(model.versions), model.platform) == ("same", ["1"], "identity")
    assert [(put.name, put.datatype, list(put.shape)) for put in model.inputs] == [("INPUT0", "INT32", [-1, -1])]
    with pytest.raises(InferenceServerException) as refusal:
        client.get_model_metadata("nobody")
    assert refusal.value.status() == "StatusCode.NOT_FOUND"
    with pytest.raises(InferenceServerException) as refusal:
        client.is_model_ready("same", "first")
    assert refusal.value.status() == "StatusCode.INVALID_ARGUMENT"


def test_the_configuration_includes_its_defaults(client):
    config = client.get_model_config("same").config
    assert (config.name, config.backend, config.max_batch_size) == ("same", "identity", 4)
    assert [(group.name, group.count) for group in config.instance_group] == [("same_0", 1)]
    assert config.version_policy.latest.num_versions == 1
    assert client.get_model_config("same", as_json=True)["config"]["input"][0]["data_type"] == "TYPE_INT32"


def test_statistics_count_requests_and_batches(client, call):
    client.infer("same", [numbers([[1], [2]])])
    with pytest.raises(InferenceServerException):
        client.infer("same", [given("INPUT0", np.array([[1.0]], np.float32))])
    [counted] = client.get_inference_statistics("same").model_stats
    assert (counted.name, counted.version) == ("same", "1")
    assert (counted.inference_count, counted.execution_count) == (2, 1)
    assert counted.inference_stats.success.count == 1
    assert counted.inference_stats.success.ns > 0
    assert [batch.batch_size for batch in counted.batch_stats] == [2]
    assert counted.last_inference > 0
    assert [model.name for model in client.get_inference_statistics().model_stats] == ["same"]
    for request in ({"name": "nobody"}, {"name": "same", "version": "2"}, {"name": "same", "version": "x"}):
        asked = messages.ModelStatisticsRequest(**request)
        assert_refused(lambda: call.ModelStatistics(asked, timeout=LIMIT_S), grpc.StatusCode.INVALID_ARGUMENT)


def index(client):
    return {model.name: (model.version, model.state) for model in client.get_model_repository_index().models}


def test_models_are_loaded_and_unloaded(client):
    assert index(client) == {"same": ("1", "READY"), "scale": ("", "")}
    client.load_model("scale")
    assert index(client)["scale"] == ("1", "READY")
    answer = client.infer("scale", [given("X", np.array([[1, 2, 3]], np.float32))])
    assert answer.as_numpy("Y").tolist() == [[2, 4, 6]]
    client.unload_model("scale")
    assert not client.is_model_ready("scale")
    end = time.monotonic() + LIMIT_S
    while index(client)["scale"] == ("1", "UNLOADING"):
        assert time.monotonic() < end
        time.sleep(0.01)
    [gone] = [model for model in client.get_model_repository_index().models if model.name == "scale"]
    assert (gone.version, gone.state, gone.reason) == ("1", "UNAVAILABLE", "unloaded")
    ready = messages.RepositoryIndexRequest(ready=True)
    assert [model.name for model in client._client_stub.RepositoryIndex(ready).models] == ["same"]


def test_a_configuration_and_files_are_given_with_a_load(client):
    tripled = scale_model("scale", factor=3.0)
    client.load_model("scale", config='{"max_batch_size": 2}', files={"file:1/model.onnx": tripled.serialized()})
    assert client.get_model_config("scale").config.max_batch_size == 2
    answer = client.infer("scale", [given("X", np.array([[1, 2, 3]], np.float32))])
    assert answer.as_numpy("Y").tolist() == [[3, 6, 9]]


def parameters(message, **given):
    """Sets parameters: the name and type of each value in the message."""
    for name, (kind, value) in given.items():
        setattr(message.parameters[name], kind, value)
    return message


def test_an_invalid_load_or_unload_is_refused_with_the_reason(call):
    load, unload = messages.RepositoryModelLoadRequest, messages.RepositoryModelUnloadRequest
    invalid, unsupported = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED
    for request, code in [
        (load(model_name="nobody"), grpc.StatusCode.INTERNAL),
        (load(repository_name="r", model_name="scale"), unsupported),
        (parameters(load(model_name="scale"), config=("bytes_param", b"{}")), invalid),
        (parameters(load(model_name="scale"), other=("string_param", "")), invalid),
        (parameters(load(model_name="scale"), **{"file:1/m": ("string_param", "")}), invalid),
    ]:
        assert_refused(lambda: call.RepositoryModelLoad(request, timeout=LIMIT_S), code)
    for request, code in [
        (unload(repository_name="r", model_name="same"), unsupported),
        (parameters(unload(model_name="same"), unload_dependents=("int64_param", 1)), invalid),
    ]:
        assert_refused(lambda: call.RepositoryModelUnload(request, timeout=LIMIT_S), code)
    assert_refused(lambda: call.RepositoryIndex(messages.RepositoryIndexRequest(repository_name="r")), unsupported)
    ignored = parameters(unload(model_name="nobody"), other=("bool_param", True), config=("int64_param", 3))
    call.RepositoryModelUnload(ignored, timeout=LIMIT_S)


def test_models_stay_as_they_are_without_explicit_control(repository, serve):
    write_identity(repository, "same", ["INT32"])
    with triton.InferenceServerClient(serve().grpc_url) as client:
        for act in (client.load_model, client.unload_model):
            with pytest.raises(InferenceServerException) as refusal:
                act("same")
            assert refusal.value.status() == "StatusCode.UNAVAILABLE"


def test_log_settings_are_read_and_changed(client, call):
    settings = client.get_log_settings(as_json=True)["settings"]
    assert settings == {
        "log_file": {"string_param": ""},
        "log_info": {"bool_param": True},
        "log_warning": {"bool_param": True},
        "log_error": {"bool_param": True},
        "log_verbose_level": {"uint32_param": 0},
        "log_format": {"string_param": "default"},
    }
    changed = client.update_log_settings({"log_verbose_level": 1, "log_format": "ISO8601"}, as_json=True)
    settings |= {"log_verbose_level": {"uint32_param": 1}, "log_format": {"string_param": "ISO8601"}}
    assert changed["settings"] == settings
    for name, kind, value, code in [
        ("log_file", "string_param", "x", grpc.StatusCode.UNIMPLEMENTED),
        ("log_info", "string_param", "true", grpc.StatusCode.INVALID_ARGUMENT),
        ("log_verbose_level", "bool_param", True, grpc.StatusCode.INVALID_ARGUMENT),
        ("log_verbose_level", "uint32_param", 2**31, grpc.StatusCode.INVALID_ARGUMENT),
        ("log_format", "string_param", "iso", grpc.StatusCode.INVALID_ARGUMENT),
        ("log_format", "bool_param", True, grpc.StatusCode.INVALID_ARGUMENT),
    ]:
        request = messages.LogSettingsRequest()
        setattr(request.settings[name], kind, value)
        request.settings["log_info"].SetInParent() if name == "log_info" else None
        assert_refused(lambda: call.LogSettings(request, timeout=LIMIT_S), code)
    assert client.get_log_settings(as_json=True)["settings"] == settings


def test_trace_settings_are_read_and_changed(client, call):
    settings = client.get_trace_settings(as_json=True)["settings"]
    expected = {
        "trace_level": ["OFF"],
        "trace_rate": ["1000"],
        "trace_count": ["-1"],
        "log_frequency": ["0"],
        "trace_file": [""],
        "trace_mode": ["triton"],
    }
    assert {name: setting.get("value", []) for name, setting in settings.items()} == expected
    changed = client.update_trace_settings("same", {"trace_rate": "5"}, as_json=True)["settings"]
    assert changed["trace_rate"]["value"] == ["5"]
    assert client.get_trace_settings(as_json=True)["settings"]["trace_rate"]["value"] == ["1000"]
    cleared = client.update_trace_settings("same", {"trace_rate": None}, as_json=True)["settings"]
    assert cleared["trace_rate"]["value"] == ["1000"]
    invalid = grpc.StatusCode.INVALID_ARGUMENT
    for model, name, values, code in [
        ("nobody", "trace_rate", ["1"], invalid),
        ("", "trace_rate", ["x"], invalid),
        ("", "trace_rate", ["1", "2"], invalid),
        ("", "trace_count", ["-2"], invalid),
        ("", "trace_level", ["OFF", "TENSORS"], invalid),
        ("", "trace_level", ["TIMESTAMPS"], invalid),
        ("", "trace_file", ["x"], grpc.StatusCode.UNIMPLEMENTED),
    ]:
        request = messages.TraceSettingRequest(model_name=model)
        request.settings[name].value.extend(values)
        assert_refused(lambda: call.TraceSetting(request, timeout=LIMIT_S), code)

"""Models whose configuration is missing or partial: the server completes it from the model's file."""

import pytest
from onnx import TensorProto, helper

import nereid_server
import onnx_engines
from http_requests import assert_refused, infer, request, tensor
from model_files import OnnxModel, scale_model, write_identity, write_model

F = TensorProto.FLOAT
ONES = {"inputs": [tensor("X", "FP32", [2, 3], [1.0] * 6)]}
X = 'input { name: "X" data_type: TYPE_FP32 dims: [ 3 ] } '
Y = 'output { name: "Y" data_type: TYPE_FP32 dims: [ 3 ] } '


@pytest.fixture(params=onnx_engines.FLAGS)
def serve(request, serve):
    """Each engine completes, and refuses, alike."""
    return lambda *flags, **how: serve(*onnx_engines.FLAGS[request.param], *flags, **how)


def identity(name, inner, kind=F):
    """`Y` is `X`, of that shape; a string in it is a free dimension."""
    return OnnxModel(name, [helper.make_node("Identity", ["X"], ["Y"])], [("X", kind, inner)], [("Y", kind, inner)])


def write(repository, model, config=None):
    """Writes a model with this configuration, or with none."""
    write_model(repository, model.name, config, model.serialized())


def config_of(server, model):
    answer = request(server, "GET", f"/v2/models/{model}/config")
    assert answer.status == 200, answer
    return answer.json


def tensors(config, field):
    return [(it["name"], it["data_type"], it["dims"], it.get("reshape")) for it in config[field]]


def one_tensor(name, shape, data_type="TYPE_FP32", reshape=None):
    return [(name, data_type, shape, reshape)]


def reason(server, model):
    """The one line of severity error about a model that did not load."""
    lines = [line for line in server.complaints if f"'{model}'" in line]
    assert len(lines) == 1, server.log
    return lines[0]


def refused(server, model):
    """Asserts that a model is known and unavailable, and gives the reason."""
    assert_refused(request(server, "GET", f"/v2/models/{model}/ready"), 400)
    assert_refused(request(server, "GET", f"/v2/models/{model}/config"), 404)
    return reason(server, model)


def test_a_model_without_configuration_gets_all_of_it_from_its_file(repository, serve):
    write(repository, scale_model("bare"))
    server = serve()
    config = config_of(server, "bare")
    assert (config["name"], config["backend"], config["platform"]) == ("bare", "onnxruntime", "onnxruntime_onnx")
    assert config["default_model_filename"] == "model.onnx"
    assert config["max_batch_size"] == 4
    assert config["dynamic_batching"]["preferred_batch_size"] == [4]
    assert tensors(config, "input") == one_tensor("X", [3])
    assert tensors(config, "output") == one_tensor("Y", [3])
    assert config["version_policy"] == {"latest": {"num_versions": 1}}
    assert [(group["name"], group["count"]) for group in config["instance_group"]] == [("bare", 2)]
    metadata = request(server, "GET", "/v2/models/bare").json
    assert metadata["inputs"] == [{"name": "X", "datatype": "FP32", "shape": [-1, 3]}]
    assert metadata["outputs"] == [{"name": "Y", "datatype": "FP32", "shape": [-1, 3]}]
    assert infer(server, "bare", ONES).json["outputs"][0]["data"] == [2.0] * 6
    too_many = {"inputs": [tensor("X", "FP32", [5, 3], [1.0] * 15)]}
    assert_refused(infer(server, "bare", too_many), 400)


# The shape in the file, then what comes of it: batch size, dimensions, reshape.
SHAPES: dict[str, tuple[list, int, list[int], dict | None]] = {
    "batch": (["N", 3], 4, [3], None),
    "variable": (["N", "D"], 4, [-1], None),
    "vector": (["N"], 4, [1], {"shape": []}),
    "fixed": ([2, 3], 0, [2, 3], None),
    "one": ([1, 3], 0, [1, 3], None),
    "inner": ([2, "D"], 0, [2, -1], None),
    "scalar": ([], 0, [1], None),
}


def test_a_model_batches_if_its_tensors_begin_with_a_free_dimension(repository, serve):
    for name, (shape, *_) in SHAPES.items():
        write(repository, identity(name, shape))
    server = serve()
    for name, (_shape, batch, dims, reshape) in SHAPES.items():
        config = config_of(server, name)
        assert config["max_batch_size"] == batch, name
        assert ("dynamic_batching" in config) == (batch > 1), name
        assert tensors(config, "input") == one_tensor("X", dims, reshape=reshape), name
        assert tensors(config, "output") == one_tensor("Y", dims, reshape=reshape), name
        sent = [2] * (batch > 0) + [2 if size == -1 else size for size in dims]
        size = 1
        for dim in sent:
            size *= dim
        answer = infer(server, name, {"inputs": [tensor("X", "FP32", sent, [7.0] * size)]})
        assert answer.status == 200, (name, answer)
        assert (answer.json["outputs"][0]["shape"], answer.json["outputs"][0]["data"]) == (sent, [7.0] * size), name


def test_a_fixed_first_dimension_of_one_tensor_disables_batching(repository, serve):
    nodes = [helper.make_node("Identity", [a], [b]) for a, b in (("A", "C"), ("B", "D"))]
    kinds = (("N", 2), F), ((4,), TensorProto.INT32)
    inputs, outputs = ([(name, kind, list(shape)) for name, (shape, kind) in zip(names, kinds)] for names in ("AB", "CD"))
    write(repository, OnnxModel("mixed", nodes, inputs, outputs))
    config = config_of(serve(), "mixed")
    assert config["max_batch_size"] == 0 and "dynamic_batching" not in config
    assert tensors(config, "input") == one_tensor("A", [-1, 2]) + one_tensor("B", [4], "TYPE_INT32")
    assert tensors(config, "output") == one_tensor("C", [-1, 2]) + one_tensor("D", [4], "TYPE_INT32")


def test_every_element_type_is_completed(repository, serve):
    kinds = {
        "BOOL": TensorProto.BOOL,
        "UINT8": TensorProto.UINT8,
        "UINT16": TensorProto.UINT16,
        "UINT32": TensorProto.UINT32,
        "UINT64": TensorProto.UINT64,
        "INT8": TensorProto.INT8,
        "INT16": TensorProto.INT16,
        "INT32": TensorProto.INT32,
        "INT64": TensorProto.INT64,
        "FP16": TensorProto.FLOAT16,
        "FP32": F,
        "FP64": TensorProto.DOUBLE,
        "STRING": TensorProto.STRING,
    }
    for name, kind in kinds.items():
        write(repository, identity(name, ["N", 2], kind))
    server = serve()
    for name in kinds:
        assert tensors(config_of(server, name), "input") == one_tensor("X", [2], f"TYPE_{name}")


# What the configuration says, then what comes of it: batch size, preferred batch size, instances.
PARTIAL = {
    "empty": ("", 4, [4], [2]),
    "named": ('name: "named"', 4, [4], [2]),
    "backend": ('backend: "onnxruntime"', 4, [4], [2]),
    "platform": ('platform: "onnxruntime_onnx"', 4, [4], [2]),
    "sixteen": ("max_batch_size: 16", 16, [16], [2]),
    "single": ("max_batch_size: 1", 1, None, [2]),
    "dynamic": ("dynamic_batching { max_queue_delay_microseconds: 7 }", 4, [4], [2]),
    "preferred": ("max_batch_size: 8 dynamic_batching { preferred_batch_size: [ 2 ] }", 8, [2], [2]),
    "instances": ("instance_group [ { count: 3 } ]", 4, [4], [3]),
    "input": (X, 4, [4], [2]),
    "output": (Y, 4, [4], [2]),
}


def test_completion_keeps_what_the_configuration_has(repository, serve):
    for name, (text, *_) in PARTIAL.items():
        write(repository, scale_model(name), text)
    server = serve()
    for name, (_, batch, preferred, instances) in PARTIAL.items():
        config = config_of(server, name)
        assert config["max_batch_size"] == batch, name
        assert config.get("dynamic_batching", {}).get("preferred_batch_size") == preferred, name
        assert [group["count"] for group in config["instance_group"]] == instances, name
        assert tensors(config, "input") == one_tensor("X", [3]), name
        assert tensors(config, "output") == one_tensor("Y", [3]), name
        one = {"inputs": [tensor("X", "FP32", [1, 3], [1.0, 2.0, 3.0])]}
        assert infer(server, name, one).json["outputs"][0]["data"] == [2.0, 4.0, 6.0], name
    assert config_of(server, "dynamic")["dynamic_batching"]["max_queue_delay_microseconds"] == 7


def test_a_configuration_that_lists_inputs_and_outputs_is_not_touched(repository, serve):
    write(repository, scale_model("whole"), f"max_batch_size: 4 {X} {Y}")
    assert "dynamic_batching" not in config_of(serve(), "whole")


def test_labels_of_a_given_output_stay(repository, serve):
    output = Y.replace("dims", 'label_filename: "labels.txt" dims')
    write(repository, scale_model("labelled"), output)
    (repository / "labelled" / "labels.txt").write_text("a\nb\nc\n")
    server = serve()
    asked = {
        "inputs": [tensor("X", "FP32", [1, 3], [1.0, 9.0, 3.0])],
        "outputs": [{"name": "Y", "parameters": {"classification": 1}}],
    }
    assert infer(server, "labelled", asked).json["outputs"][0]["data"] == ["18.000000:1:b"]


# The model, what its configuration says, and words of the explanation.
MISFITS = {
    "a batch size for a model that takes no batches": (
        identity("faulty", [2, 3]),
        "max_batch_size: 2",
        ["max_batch_size is 2", "input 'X'", "[2, 3]"],
    ),
    "no batch size, but shapes without the batch dimension": (
        scale_model("faulty"),
        X + Y,
        ["'X' has shape [3]", "[-1,3] in the model"],
    ),
    "a batch dimension listed among the others": (
        scale_model("faulty"),
        "max_batch_size: 4 " + X.replace("[ 3 ]", "[ -1, 3 ]"),
        ["'X'", "[-1,-1,3]", "[-1,3]"],
    ),
    "a free dimension where the model has a fixed one": (
        scale_model("faulty"),
        "max_batch_size: 4 " + X.replace("[ 3 ]", "[ -1 ]"),
        ["'X'", "[-1,-1]", "[-1,3]"],
    ),
    "an input with a name alone": (
        scale_model("faulty"),
        'max_batch_size: 4 input { name: "X" }',
        ["'X' has no data_type", "it is FP32"],
    ),
    "an input that the model lacks": (
        scale_model("faulty"),
        X.replace("X", "OTHER"),
        ["'OTHER'", "inputs: 'X'"],
    ),
    "a preferred batch size without a batch size": (
        scale_model("faulty"),
        "dynamic_batching { preferred_batch_size: [ 2 ] }",
        ["preferred_batch_size"],
    ),
}


@pytest.mark.parametrize("what", MISFITS)
def test_configurations_that_do_not_fit_the_model_are_refused(repository, serve, what):
    model, text, words = MISFITS[what]
    write(repository, model, text)
    why = refused(serve("--exit-on-error=false", ready=False), "faulty")
    assert all(word in why for word in words), why


def test_an_unknown_backend_is_reported_with_the_files_that_would_name_it(repository, serve):
    write_model(repository, "empty", None)
    write_model(repository, "unknown", "max_batch_size: 4")
    server = serve("--exit-on-error=false", ready=False)
    for model in ("empty", "unknown"):
        why = refused(server, model)
        assert "'backend'" in why and "model.onnx" in why, why


def test_the_backend_may_follow_from_the_model_name_but_identity_completes_nothing(repository, serve):
    write_model(repository, "model.identity", None)
    write_identity(repository, "named.identity", ["FP32"])
    text = (repository / "named.identity" / "config.pbtxt").read_text().replace('backend: "identity"\n', "")
    (repository / "named.identity" / "config.pbtxt").write_text(text)
    server = serve("--exit-on-error=false", ready=False)
    assert "no configuration file, and its backend 'identity'" in refused(server, "model.identity")
    assert config_of(server, "named.identity")["backend"] == "identity"
    values = {"inputs": [tensor("INPUT0", "FP32", [2], [1.0, 2.0])]}
    assert infer(server, "named.identity", values).json["outputs"][0]["data"] == [1.0, 2.0]


def test_each_version_is_completed_from_its_own_file(repository, serve):
    for version, shape in ((1, ["N", 3]), (2, [5])):
        write_model(repository, "many", None, identity("many", shape).serialized(), version)
    (repository / "many" / "config.pbtxt").write_text("version_policy { all { } }")
    server = serve()
    batches = [request(server, "GET", f"/v2/models/many/versions/{version}/config").json for version in (1, 2)]
    assert [(it["max_batch_size"], it["input"][0]["dims"]) for it in batches] == [(4, [3]), (0, [5])]


@pytest.mark.parametrize(
    ("flags", "size"),
    [
        (["--backend-config=default-max-batch-size=7"], 7),
        (["--backend-config=onnxruntime,default-max-batch-size=9", "--backend-config=default-max-batch-size=7"], 9),
        (["--backend-config", "identity,default-max-batch-size=9"], 4),
        (["--backend-config=default-max-batch-size=1"], 1),
        (["--backend-config=default-max-batch-size=0"], 0),
    ],
)
def test_the_default_batch_size_is_a_setting_of_the_backend(repository, serve, flags, size):
    write(repository, scale_model("bare"))
    write(repository, scale_model("given"), "max_batch_size: 3")
    server = serve(*flags)
    config = config_of(server, "bare")
    assert config["max_batch_size"] == size
    assert config.get("dynamic_batching", {}).get("preferred_batch_size") == ([size] if size > 1 else None)
    assert config["input"][0]["dims"] == ([3] if size else [-1, 3])
    assert config_of(server, "given")["max_batch_size"] == 3
    row = {"inputs": [tensor("X", "FP32", [1, 3], [1.0] * 3)]}
    assert infer(server, "bare", row).json["outputs"][0]["data"] == [2.0] * 3


def test_an_invalid_default_batch_size_is_reported_with_the_model(repository, serve):
    write(repository, scale_model("bare"))
    server = serve("--backend-config=default-max-batch-size=many", "--exit-on-error=false", ready=False)
    assert "'default-max-batch-size' is 'many'" in refused(server, "bare")


@pytest.mark.parametrize(
    "flags",
    [
        ["--disable-auto-complete-config"],
        ["--strict-model-config=true"],
        ["--disable-auto-complete-config", "--strict-model-config=false"],
    ],
)
def test_without_completion_configurations_must_be_complete(repository, serve, flags):
    write(repository, scale_model("bare"))
    write(repository, scale_model("partial"), "max_batch_size: 4")
    write(repository, scale_model("typeless"), 'max_batch_size: 4 input { name: "X" }')
    # The backend still follows from the file, and defaults are filled in.
    write(repository, scale_model("whole"), f"max_batch_size: 4 {X} {Y}")
    write(repository, scale_model("silent"), f"max_batch_size: 4 {X}")
    server = serve(*flags, "--exit-on-error=false", ready=False)
    why = refused(server, "bare")
    assert "config.pbtxt" in why and "completed" in why, why
    why = refused(server, "partial")
    assert "'X' (FP32 [-1,3])" in why and "'input'" in why, why
    why = refused(server, "typeless")
    assert "input[0].data_type" in why and "input[0].dims" in why, why
    config = config_of(server, "whole")
    assert (config["backend"], config["instance_group"][0]["count"]) == ("onnxruntime", 2)
    assert infer(server, "whole", ONES).json["outputs"][0]["data"] == [2.0] * 6
    # A model need not have outputs: that is nothing to complete.
    assert config_of(server, "silent")["output"] == []
    answer = infer(server, "silent", ONES)
    assert (answer.status, answer.json.get("outputs", [])) == (200, [])


def test_the_deprecated_option_is_advised_against(repository, serve):
    write(repository, scale_model("bare"))
    server = serve("--strict-model-config=false")
    assert config_of(server, "bare")["max_batch_size"] == 4
    server.wait_for_log(r"^W\d{4} .*--strict-model-config has been deprecated")


def test_a_named_configuration_is_used_if_the_model_has_it(repository, serve):
    for name in ("both", "usual", "bare"):
        write(repository, scale_model(name), None if name == "bare" else "max_batch_size: 2")
        (repository / name / "configs").mkdir()
        (repository / name / "configs" / "other.pbtxt").write_text("max_batch_size: 99")
    (repository / "both" / "configs" / "big.pbtxt").write_text("max_batch_size: 64")
    sizes = {}
    for flags in ([], ["--model-config-name=big"]):
        server = serve(*flags)
        sizes[len(flags)] = [config_of(server, name)["max_batch_size"] for name in ("both", "usual", "bare")]
    assert sizes == {0: [2, 2, 4], 1: [64, 2, 4]}


def test_an_invalid_named_configuration_is_not_ignored(repository, serve):
    write(repository, scale_model("faulty"), "max_batch_size: 2")
    (repository / "faulty" / "configs").mkdir()
    (repository / "faulty" / "configs" / "big.pbtxt").write_text("max_batch_size: lots")
    server = serve("--model-config-name=big", "--exit-on-error=false", ready=False)
    assert "configs/big.pbtxt:1:" in refused(server, "faulty")


@pytest.mark.parametrize(
    "flag",
    [
        "--model-config-name=",
        "--backend-config=setting",
        "--backend-config=,setting=value",
        "--backend-config=setting=",
        "--strict-model-config=perhaps",
        "--disable-auto-complete-config=true",
    ],
)
def test_invalid_options_are_refused(repository, flag):
    server = nereid_server.refused_start(repository, flag)
    assert server.exit_code > 0
    assert flag.split("=")[0] in server.log

"""Caffe2's NetDef models on the engines for ONNX: each operator computes what Caffe2 itself computed."""

import numpy as np
import pytest
import tritonclient.http

import netdef_cases
import onnx_engines
from http_requests import assert_refused, request
from tensors import given

CASES = netdef_cases.cases()


@pytest.fixture(params=sorted(onnx_engines.FLAGS))
def serve_netdef(request, serve):
    """Servers with one engine or the other."""
    return lambda *flags, **how: serve(*onnx_engines.FLAGS[request.param], *flags, **how)


def infer(client, case, **options):
    inputs = [given(name, array) for name, array in case.inputs]
    return client.infer(case.name, inputs, **options)


def assert_equals(case, response):
    for name, expected in case.outputs:
        output = response.as_numpy(name)
        assert output.shape == (expected.shape or (1,)), (case.name, name)
        if output.dtype == np.float32:
            np.testing.assert_allclose(output, expected.reshape(output.shape), 1e-5, 1e-5, err_msg=case.name)
        else:
            np.testing.assert_array_equal(output, expected.reshape(output.shape), err_msg=case.name)


def test_every_operator_computes_what_caffe2_computed(repository, serve):
    """On ONNX Runtime. The embedded engine is tested by `crates/engines/caffe2/tests/operators.rs`."""
    for case in CASES.values():
        one = 'platform: "caffe2_netdef" instance_group { count: 1 kind: KIND_CPU }\n'
        netdef_cases.write(repository, case, one + netdef_cases.declared(case))
    server = serve(*onnx_engines.FLAGS["ort"])
    with tritonclient.http.InferenceServerClient(server.url) as client:
        for case in CASES.values():
            assert_equals(case, infer(client, case))


def test_a_net_with_weights_is_completed_and_takes_batches(repository, serve_netdef):
    case = CASES["in_place"]
    netdef_cases.write(repository, case)
    server = serve_netdef("--backend-config=onnxruntime,default-max-batch-size=4")
    config = request(server, "GET", f"/v2/models/{case.name}/config").json
    assert (config["backend"], config["platform"]) == ("caffe2", "caffe2_netdef")
    assert config["default_model_filename"] == "model.netdef"
    described = [(it["name"], it["data_type"], it["dims"]) for it in config["input"]]
    assert described == [("x", "TYPE_FP32", [3, -1, -1])] and config["max_batch_size"] == 4
    (output,) = config["output"]
    assert (output["name"], output["data_type"], len(output["dims"])) == ("s", "TYPE_FP32", 1)
    with tritonclient.http.InferenceServerClient(server.url) as client:
        assert_equals(case, infer(client, case))
        (_, images), (_, expected) = case.inputs[0], case.outputs[0]
        for image, row in zip(images, expected):
            response = client.infer(case.name, [given("x", image[None])])
            np.testing.assert_allclose(response.as_numpy("s"), row[None], 1e-5, 1e-5)


def test_unsupported_models_are_refused_by_name(repository, serve):
    case = CASES["relu"]
    # Another operator's name of the same length.
    netdef_cases.write(repository, case._replace(name="unknown", net=case.net.replace(b"Relu", b"Bell")))
    netdef_cases.write(repository, case._replace(name="open"))
    netdef_cases.write(repository, case._replace(name="damaged", net=case.net[:-3]))
    netdef_cases.write(repository, case._replace(name="without_weights"))
    (repository / "without_weights" / "1" / "init_model.netdef").unlink()
    netdef_cases.write(repository, CASES["fc"])
    server = serve("--exit-on-error=false", ready=False)
    server.wait_until_loaded()
    for name, reason in [
        ("unknown", "these operators have no counterpart in ONNX: Bell"),
        ("open", "a NetDef declares neither type nor dimensions of its input 'x'"),
        ("damaged", "the net is not a complete NetDef"),
        ("without_weights", "init_model.netdef: No such file or directory"),
    ]:
        assert_refused(request(server, "GET", f"/v2/models/{name}/ready"), 400)
        (line,) = [line for line in server.complaints if f"'{name}'" in line]
        assert reason in line
    with tritonclient.http.InferenceServerClient(server.url) as client:
        assert_equals(CASES["fc"], infer(client, CASES["fc"]))

"""NVIDIA's Python packages `tritonserver` and `tritonfrontend` run on our library: a server within Python, and NVIDIA's own
HTTP, gRPC and metrics servers over our core.

`tritonfrontend` brings an empty stand-in for `libtritonserver.so` up to 2.72, and runs on it where no library came first whose
functions it sees.
"""

import json
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc

import native_backends
import nvidia_bindings
from ports import free_ports

APPLICATIONS = Path(__file__).resolve().parents[2] / "applications"
CONFIG = """max_batch_size: 4
input { name: "INPUT0" data_type: TYPE_FP32 dims: 4 }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: 4 }"""
MANY = """model_transaction_policy { decoupled: true }
input { name: "IN" data_type: TYPE_INT32 dims: 1 } output { name: "OUT" data_type: TYPE_INT32 dims: 1 }"""
LIMIT_S = 90
# Since 2.72, applications can hear the log.
HEARS = {"2.71.0": None, "2.72.0": True, "2.73.0": True}

pytestmark = pytest.mark.skipif(
    nvidia_bindings.interpreter() is None, reason="NVIDIA's packages are for CPython 3.12, which this machine has not"
)

each_version = pytest.mark.parametrize("version", nvidia_bindings.VERSIONS)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bindings")
    native_backends.compile_c(folder / "backends", "echo")
    for name in ["echo", "slow"]:
        native_backends.write_model(folder / "models", name, "echo", CONFIG)
    native_backends.compile_c(folder / "backends", "misbehave")
    native_backends.write_model(folder / "models", "many", "misbehave", MANY)
    return folder / "models", folder / "backends"


@each_version
def test_a_server_within_python(version, folders):
    done = nvidia_bindings.run(version, APPLICATIONS / "bindings.py", *folders, limit_s=LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "states": [True, True, "inside"],
        "models": ["echo 1 READY", "many -1 None", "slow -1 None"],
        "metadata": [{"name": "INPUT0", "datatype": "FP32", "shape": [-1, 4]}],
        "answers": [[str(first), [[float(first + i) for i in range(4)]]] for first in range(3)],
        "statistics": 3,
        "metrics": True,
        "wrong shape": True,
        "no model": "InternalError",
        "loaded": True,
        "unloaded": False,
        "ends apart": True,
        "heard": HEARS[version],
    }


@each_version
def test_nvidias_own_servers_over_our_core(version, folders):
    http, grpc, metrics = free_ports(3)
    program = nvidia_bindings.start(version, APPLICATIONS / "frontends.py", *folders, http, grpc, metrics)
    try:
        # NVIDIA's servers log there, too. The output ends with the program.
        assert "serving\n" in iter(program.stdout.readline, ""), program.stderr.read()

        def get(path, body=None, port=http):
            body = None if body is None else json.dumps(body).encode()
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", body, timeout=LIMIT_S) as answer:
                    return answer.status, answer.read().decode()
            except urllib.error.HTTPError as error:
                return error.code, error.read().decode()

        assert get("/v2/health/ready") == (200, "")
        assert json.loads(get("/v2/models/echo")[1])["outputs"][0]["shape"] == [-1, 4]
        for values in [[1, 2, 3, 4], [0.5, -1, 0, 2]]:
            tensor = {"name": "INPUT0", "shape": [1, 4], "datatype": "FP32", "data": values}
            status, answer = get("/v2/models/echo/infer", {"inputs": [tensor]})
            assert status == 200 and json.loads(answer)["outputs"][0]["data"] == values
        assert get("/v2/models/none/infer", {"inputs": []})[0] == 404
        assert get("/v2/models/echo/infer", {"inputs": []})[0] == 400
        states = {model["name"]: model["state"] for model in json.loads(get("/v2/repository/index", {})[1])}
        assert states == {"echo": "READY", "many": "READY", "slow": "READY"}
        assert 'nv_inference_request_success{model="echo",version="1"} 2' in get("/metrics", port=metrics)[1]
        with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{grpc}") as client:
            numbers = np.arange(8, dtype=np.float32).reshape(2, 4)
            given = tritonclient.grpc.InferInput("INPUT0", numbers.shape, "FP32")
            given.set_data_from_numpy(numbers)
            np.testing.assert_array_equal(client.infer("slow", [given]).as_numpy("OUTPUT0"), numbers)
            assert client.get_model_metadata("slow").inputs[0].name == "INPUT0"
        rest, errors = program.communicate(input="", timeout=LIMIT_S)
        assert program.returncode == 0 and rest.endswith("stopped\n"), rest + errors
    finally:
        if program.poll() is None:
            program.kill()
            program.wait()

"""Answers of NVIDIA's own HTTP and gRPC servers over our core, from the package `tritonfrontend`: errors of every kind, and
classification. They are those of our own faces.
"""

import contextlib
import itertools
import json
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from types import SimpleNamespace

import grpc
import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.grpc import service_pb2 as messages

import grpc_requests
import native_backends
import nereid_server
import nvidia_bindings
from gates import Gate
from native_backends import parameter
from ports import free_ports

PROGRAM = Path(__file__).resolve().parents[2] / "applications" / "frontends.py"
LIMIT_S = 90
NUMBER = """input { name: "IN" data_type: TYPE_INT32 dims: 1 } output { name: "OUT" data_type: TYPE_INT32 dims: 1 }"""
PAIR = """input { name: "INPUT0" data_type: TYPE_%s dims: -1 } output { name: "OUTPUT0" data_type: TYPE_%s dims: -1 %s }"""
QUEUE = "dynamic_batching { default_queue_policy { %s } } max_batch_size: 1 instance_group { count: 1 kind: KIND_CPU } "
CODES = range(8)

pytestmark = pytest.mark.skipif(
    nvidia_bindings.interpreter() is None, reason="NVIDIA's packages are for CPython 3.12, which this machine has not"
)


@pytest.fixture(scope="module")
def gate():
    with Gate() as gate:
        yield gate


@pytest.fixture(scope="module")
def folders(tmp_path_factory, gate):
    folder = tmp_path_factory.mktemp("frontends")
    models, backends = folder / "models", folder / "backends"
    native_backends.compile_c(backends, "misbehave")
    native_backends.compile_c(backends, "echo")
    native_backends.write_model(models, "well", "misbehave", NUMBER)
    native_backends.write_model(models, "broken", "misbehave", NUMBER + parameter("fail", "model"))
    native_backends.write_model(models, "unready", "misbehave", NUMBER + parameter("fail", "ready"))
    waits = (PAIR % ("INT32", "INT32", "")) + parameter("gate", gate.path)
    native_backends.write_model(models, "full", "identity", QUEUE % "max_queue_size: 1" + waits)
    # Long enough for a request to reach an idle instance.
    native_backends.write_model(models, "hasty", "identity", QUEUE % "default_timeout_microseconds: 1000000" + waits)
    for data_type in ["FP32", "INT32", "FP64", "UINT8"]:
        labels = 'label_filename: "labels.txt"'
        native_backends.write_model(models, f"classes_{data_type}", "echo", PAIR % (data_type, data_type, labels))
        # The last class has no label, and neither has the second.
        (models / f"classes_{data_type}" / "labels.txt").write_text("ant\n\ncat\n")
    native_backends.write_model(models, "batched", "echo", "max_batch_size: 4 " + PAIR % ("FP32", "FP32", 'label_filename: "l"'))
    (models / "batched" / "l").write_text("ant\nbee\ncat\ndog\n")
    native_backends.write_model(models, "plain", "echo", PAIR % ("FP32", "FP32", ""))
    return models, backends


@pytest.fixture(scope="module")
def own(folders):
    """Our own faces."""
    models, backends = folders
    flags = [f"--backend-directory={backends}", "--exit-on-error=false", "--strict-readiness=false"]
    with nereid_server.running(models, *flags) as server:
        yield SimpleNamespace(http=server.port, grpc=server.grpc_url)


@pytest.fixture(scope="module", params=nvidia_bindings.VERSIONS)
def nvidia(request, folders):
    """NVIDIA's faces over our library."""
    http, grpc_port, metrics = free_ports(3)
    program = nvidia_bindings.start(request.param, PROGRAM, *folders, http, grpc_port, metrics)
    try:
        assert "serving\n" in iter(program.stdout.readline, ""), program.stderr.read()
        yield SimpleNamespace(http=http, grpc=f"127.0.0.1:{grpc_port}")
        rest, errors = program.communicate(input="", timeout=LIMIT_S)
        assert program.returncode == 0 and rest.endswith("stopped\n"), rest + errors
    finally:
        if program.poll() is None:
            program.kill()
            program.wait()


def post(face, model, body):
    """Status and error of a request over HTTP."""
    url = f"http://127.0.0.1:{face.http}/v2/models/{model}/infer"
    try:
        with urllib.request.urlopen(url, json.dumps(body).encode(), timeout=LIMIT_S) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())["error"]


def call(face, model, tensor, **parameters):
    """Status and error of a request over gRPC."""
    name, shape, data = tensor
    request = messages.ModelInferRequest(model_name=model, raw_input_contents=[np.array(data, np.int32).tobytes()])
    request.inputs.add(name=name, datatype="INT32", shape=shape)
    for key, value in parameters.items():
        if isinstance(value, str):
            request.parameters[key].string_param = value
        else:
            request.parameters[key].int64_param = value
    with grpc.insecure_channel(face.grpc) as channel:
        try:
            grpc_requests.stub(channel).ModelInfer(request, timeout=LIMIT_S)
        except grpc.RpcError as error:
            return error.code(), error.details()
    return grpc.StatusCode.OK, ""


def both(face, model, tensor, **parameters):
    """The outcomes of a request over either protocol."""
    name, shape, data = tensor
    given = {"name": name, "shape": shape, "datatype": "INT32", "data": data}
    body = {"inputs": [given], "parameters": parameters}
    return post(face, model, body), call(face, model, tensor, **parameters)


ONE = ("IN", [1], [7])
REFUSED: dict[str, tuple[str, tuple, dict]] = {
    "unknown model": ("none", ONE, {}),
    "model that did not load": ("broken", ONE, {}),
    "unknown input": ("well", ("NONE", [1], [7]), {}),
    "wrong shape": ("well", ("IN", [2], [7, 8]), {}),
    "wrong rank": ("well", ("IN", [1, 1], [7]), {}),
    "failed execution": ("well", ONE, {"do": "error"}),
    "no answer": ("well", ONE, {"do": "drop"}),
    **{f"code {code}": ("well", ONE, {"do": "send_error", "count": code}) for code in CODES},
}


@pytest.mark.parametrize("case", REFUSED)
def test_error_has_the_status_and_text_of_our_own_faces(own, nvidia, case):
    model, tensor, parameters = REFUSED[case]
    (status, text), (code, details) = both(nvidia, model, tensor, **parameters)
    assert status >= 400 and text and code != grpc.StatusCode.OK and details == text
    assert ((status, text), (code, details)) == both(own, model, tensor, **parameters)


@contextlib.contextmanager
def executing(face, model, gate, waiting=0):
    """Holds an execution of a model at the gate. In the end, it and the waiting ones behind it are released."""
    tensor = {"name": "INPUT0", "shape": [1, 1], "datatype": "INT32", "data": [1]}
    with ThreadPoolExecutor() as pool:
        first = pool.submit(post, face, model, {"inputs": [tensor]})
        held = gate.entered()
        try:
            yield pool
        finally:
            held.release()
            for _ in range(waiting):
                gate.entered().release()
        assert first.result()[0] == 200


@pytest.mark.parametrize("protocol", [0, 1], ids=["http", "grpc"])
def test_full_queue_is_reported_as_by_our_own_faces(own, nvidia, gate, protocol):
    tensor = ("INPUT0", [1, 1], [7])
    ask = (post_tensor, call)[protocol]
    outcomes = []
    for face in (own, nvidia):
        with executing(face, "full", gate, waiting=1) as pool:
            # One of these waits in the queue, and the others find it full.
            asked = [pool.submit(ask, face, "full", tensor) for _ in range(3)]
            outcomes.append({one.result() for one in itertools.islice(as_completed(asked), 2)})
    assert outcomes[0] == outcomes[1] and len(outcomes[0]) == 1
    ((status, text),) = outcomes[0]
    assert status in (503, grpc.StatusCode.UNAVAILABLE) and "queue" in text


def post_tensor(face, model, tensor):
    name, shape, data = tensor
    return post(face, model, {"inputs": [{"name": name, "shape": shape, "datatype": "INT32", "data": data}]})


def test_timeout_is_reported_as_by_our_own_faces(own, nvidia, gate):
    outcomes = []
    for face in (own, nvidia):
        with executing(face, "hasty", gate):
            outcomes.append(both(face, "hasty", ("INPUT0", [1, 1], [7])))
    assert outcomes[0] == outcomes[1]
    (status, text), (code, details) = outcomes[0]
    assert (status, code) == (503, grpc.StatusCode.UNAVAILABLE) and text == details and "timeout" in text.lower()


def test_readiness_of_unknown_and_failed_models_is_no_error(own, nvidia):
    for face in (own, nvidia):
        with tritonclient.grpc.InferenceServerClient(face.grpc) as client:
            ready = {model: client.is_model_ready(model) for model in ["well", "none", "broken", "unready"]}
        assert ready == {"well": True, "none": False, "broken": False, "unready": False}


@pytest.mark.parametrize(
    "model, data_type, shape, data",
    [
        ("classes_FP32", "FP32", [4], [0.5, 2.25, -1, 0.75]),
        ("classes_FP64", "FP64", [4], [0.5, 2.25, -1, 0.75]),
        ("classes_INT32", "INT32", [4], [5, -3, 9, 2]),
        ("classes_UINT8", "UINT8", [3], [5, 255, 0]),
        ("batched", "FP32", [2, 4], [1, 4, 3, 2, 8, 6, 7, 5]),
        ("plain", "FP32", [3], [1, 3, 2]),
    ],
)
@pytest.mark.parametrize("count", [1, 2, 9])
def test_classification_has_the_labels_of_our_own_faces(own, nvidia, model, data_type, shape, data, count):
    tensor = {"name": "INPUT0", "shape": shape, "datatype": data_type, "data": data}
    output = {"name": "OUTPUT0", "parameters": {"classification": count}}

    def classes(face):
        status, answer = post(face, model, {"inputs": [tensor], "outputs": [output]})
        assert status == 200, answer
        (given,) = answer["outputs"]
        values = np.array(data, np.dtype(data_type.replace("FP", "float").lower())).reshape(shape)
        sent = tritonclient.grpc.InferInput("INPUT0", shape, data_type)
        sent.set_data_from_numpy(values)
        wanted = tritonclient.grpc.InferRequestedOutput("OUTPUT0", class_count=count)
        with tritonclient.grpc.InferenceServerClient(face.grpc) as client:
            array = client.infer(model, [sent], outputs=[wanted]).as_numpy("OUTPUT0")
        assert [text.decode() for text in array.flatten()] == given["data"] and list(array.shape) == given["shape"]
        return given["shape"], given["data"]

    expected = classes(own)
    assert classes(nvidia) == expected
    has_labels = any(text.count(":") == 2 for text in expected[1])
    assert has_labels == (model != "plain") or count < 9

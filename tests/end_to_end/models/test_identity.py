"""The identity backend: every datatype, in both forms and in odd shapes, comes back unchanged."""

import time
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest
import tritonclient.http

import nereid_server
from http_requests import infer, infer_binary, tensor
from model_files import write_identity
from tensors import given, wanted


def extremes(kind):
    limits = np.iinfo(kind)
    return np.array([limits.min, 0, 1, limits.max], kind)


VALUES = {
    "BOOL": np.array([True, False, True, True]),
    **{np.dtype(kind).name.upper(): extremes(kind) for kind in ("u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8")},
    "FP16": np.array([-1.5, 0, 65504, 6e-8], np.float16),
    "BF16": np.array([-1.5, 0, 3e38, 1e-38], ml_dtypes.bfloat16),
    "FP32": np.array([-1.5, 0.1, 3.4028235e38, 1e-45], np.float32),
    "FP64": np.array([-1.5, 0.1, 1.7976931348623157e308, 5e-324], np.float64),
    "BYTES": np.array([b"", b"plain", "zwölf – 十二".encode(), b'"\\\n\t\x00'], np.object_),
}
# Half-precision numbers have no JSON form.
IN_JSON = [datatype for datatype in VALUES if datatype not in ("FP16", "BF16")]
ELEMENTS_OF_8_MIB = 2 * 1024 * 1024
DELAY_MS = 300


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """One model per datatype, batched and not, and a few with more to them."""
    repository = tmp_path_factory.mktemp("identity")
    for datatype in VALUES:
        write_identity(repository, f"flat_{datatype}", [datatype])
        write_identity(repository, f"batched_{datatype}", [datatype], max_batch_size=4)
    write_identity(repository, "cube", ["FP32"], dims=(-1, 2, -1))
    write_identity(repository, "several", ["FP32", "BYTES", "INT64"])
    write_identity(repository, "slow", ["INT32"], execute_delay_ms=DELAY_MS)
    with nereid_server.running(repository) as server:
        yield server


@pytest.fixture
def client(server):
    with tritonclient.http.InferenceServerClient(server.url) as client:
        yield client


def returned(client, model, values, binary_in=True, binary_out=True):
    """What comes back for one tensor."""
    answer = client.infer(model, [given("INPUT0", values, binary_in)], outputs=[wanted("OUTPUT0", binary_out)])
    got = answer.as_numpy("OUTPUT0")
    if got.dtype == np.object_:
        flat = [element if isinstance(element, bytes) else element.encode() for element in got.ravel()]
        got = np.array(flat, np.object_).reshape(got.shape)
    return got


def assert_same(got, expected):
    """Equal in type and shape, and to the last bit."""
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    if expected.dtype == np.object_:
        assert got.tolist() == expected.tolist()
    else:
        assert got.tobytes() == expected.tobytes()


def test_all_fourteen_datatypes_are_tried():
    assert len(VALUES) == 14


@pytest.mark.parametrize("datatype", VALUES)
def test_binary_tensors_come_back(client, datatype):
    assert_same(returned(client, f"flat_{datatype}", VALUES[datatype]), VALUES[datatype])


@pytest.mark.parametrize("datatype", IN_JSON)
@pytest.mark.parametrize(("binary_in", "binary_out"), [(False, False), (False, True), (True, False)])
def test_json_tensors_come_back(client, datatype, binary_in, binary_out):
    values = VALUES[datatype]
    assert_same(returned(client, f"flat_{datatype}", values, binary_in, binary_out), values)


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_half_precision_is_refused_as_json(server, datatype):
    for model in (f"flat_{datatype}", f"batched_{datatype}"):
        shape = [2] if "flat" in model else [1, 2]
        answer = infer(server, model, {"inputs": [tensor("INPUT0", datatype, shape, [1.0, 2.0])]})
        assert answer.status == 400
        assert "INPUT0" in answer.json["error"]


@pytest.mark.parametrize("datatype", VALUES)
def test_batches_come_back(client, datatype):
    batch = np.stack([VALUES[datatype], VALUES[datatype][::-1], VALUES[datatype]])
    assert_same(returned(client, f"batched_{datatype}", batch), batch)


@pytest.mark.parametrize("datatype", VALUES)
def test_tensors_without_elements_come_back(client, datatype):
    empty = VALUES[datatype][:0]
    assert_same(returned(client, f"flat_{datatype}", empty), empty)
    assert_same(returned(client, f"batched_{datatype}", empty.reshape(2, 0)), empty.reshape(2, 0))


@pytest.mark.parametrize("datatype", IN_JSON)
def test_tensors_without_elements_come_back_as_json(client, datatype):
    empty = VALUES[datatype][:0]
    assert_same(returned(client, f"flat_{datatype}", empty, binary_in=False, binary_out=False), empty)


@pytest.mark.parametrize("shape", [(1, 2, 1), (3, 2, 5), (0, 2, 3), (2, 2, 0)])
def test_shapes_with_fixed_and_variable_dimensions_come_back(client, shape):
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    assert_same(returned(client, "cube", values), values)


def test_bytes_that_are_not_text_come_back(client):
    values = np.array([bytes(range(256)), b"\xff\xfe", b"", b"\xc3("], np.object_)
    assert_same(returned(client, "flat_BYTES", values), values)


def test_a_long_string_among_short_ones_comes_back(client):
    values = np.array([b"a", bytes(300_000), b"", b"z" * 70_000], np.object_)
    assert_same(returned(client, "flat_BYTES", values), values)


def test_numbers_that_are_not_finite_come_back(client):
    values = np.array([np.nan, np.inf, -np.inf, -0.0], np.float32)
    assert_same(returned(client, "flat_FP32", values), values)


def test_8_mib_come_back(client):
    values = np.random.default_rng(1).standard_normal(ELEMENTS_OF_8_MIB, np.float32)
    assert values.nbytes == 8 << 20
    assert_same(returned(client, "flat_FP32", values), values)


def test_8_mib_come_back_in_a_batch(client):
    values = np.random.default_rng(2).standard_normal((4, ELEMENTS_OF_8_MIB // 4), np.float32)
    assert_same(returned(client, "batched_FP32", values), values)


def test_a_large_json_tensor_comes_back(client):
    values = np.random.default_rng(3).standard_normal(50_000, np.float32)
    assert_same(returned(client, "flat_FP32", values, binary_in=False, binary_out=False), values)


def test_several_tensors_of_different_types_and_shapes_come_back(client):
    values = [np.array([1.5, 2.5], np.float32), np.array([b"x"], np.object_), np.arange(5)]
    answer = client.infer("several", [given(f"INPUT{index}", value) for index, value in enumerate(values)])
    for index, value in enumerate(values):
        assert_same(answer.as_numpy(f"OUTPUT{index}"), value)


def test_a_bool_is_any_byte_that_is_not_zero(server):
    header = {"inputs": [tensor("INPUT0", "BOOL", [4], binary_data_size=4)]}
    answer = infer_binary(server, "flat_BOOL", header, b"\x00\x01\x02\xff")
    assert answer.json["outputs"][0]["data"] == [False, True, True, True]


def test_the_delay_parameter_delays_the_answer(client):
    values = np.arange(3, dtype=np.int32)
    start = time.monotonic()
    assert_same(returned(client, "slow", values), values)
    assert time.monotonic() - start >= DELAY_MS / 1000


def test_a_slow_model_does_not_delay_another(repository, serve, gate):
    values = np.arange(3, dtype=np.int32)
    body = {"inputs": [tensor("INPUT0", "INT32", [3], values.tolist())]}
    write_identity(repository, "slow", ["INT32"], gate=gate.path)
    write_identity(repository, "flat_INT32", ["INT32"])
    server = serve()
    with ThreadPoolExecutor() as threads, tritonclient.http.InferenceServerClient(server.url) as client:
        slow = [threads.submit(infer, server, "slow", body) for _ in range(2)]
        gate.entered()
        assert_same(returned(client, "flat_INT32", values), values)
        assert not any(answer.done() for answer in slow)
        gate.open()
        assert [answer.result().status for answer in slow] == [200, 200]

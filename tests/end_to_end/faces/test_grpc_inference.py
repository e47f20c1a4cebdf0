"""Inference over gRPC: every datatype raw and typed, by Triton's clients of all kinds, with and without shared memory."""

import asyncio
import threading
import time

import grpc
import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio
import tritonclient.utils.shared_memory as shm
from tritonclient.grpc import service_pb2 as messages
from tritonclient.utils import InferenceServerException

import nereid_server
from grpc_requests import LIMIT_S, assert_refused, given, message, numbers, stub
from model_files import scale_model, write_identity
from scrapes import Scrape
from waiting import eventually

VALUES = {
    "BOOL": np.array([True, False]),
    **{
        np.dtype(kind).name.upper(): np.array([np.iinfo(kind).min, np.iinfo(kind).max], kind)
        for kind in ("u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8")
    },
    "FP16": np.array([-1.5, 65504], np.float16),
    "BF16": np.array([-1.5, 3e38], ml_dtypes.bfloat16),
    "FP32": np.array([-1.5, 1e-45], np.float32),
    "FP64": np.array([0.1, 5e-324], np.float64),
    "BYTES": np.array([b"", b"\xff\x00 any bytes"], np.object_),
}
FIELDS = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "INT64": "int64_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A model for each datatype, and one that computes."""
    repository = tmp_path_factory.mktemp("grpc")
    for datatype in VALUES:
        write_identity(repository, f"same_{datatype}", [datatype])
    write_identity(repository, "same", ["INT32"])
    write_identity(repository, "several", ["FP32", "BYTES", "INT64"])
    scale_model("double").write(repository)
    with nereid_server.running(repository) as server:
        yield server


@pytest.fixture
def client(server):
    with triton.InferenceServerClient(server.grpc_url) as client:
        yield client


@pytest.fixture
def channel(server):
    with grpc.insecure_channel(server.grpc_url) as channel:
        yield channel


@pytest.mark.parametrize("datatype", VALUES)
def test_every_datatype_comes_back_as_it_went(client, datatype):
    values = VALUES[datatype]
    got = client.infer(f"same_{datatype}", [given("INPUT0", values)]).as_numpy("OUTPUT0")
    assert got.shape == values.shape
    if datatype == "BYTES":
        assert got.tolist() == values.tolist()
    elif datatype == "BF16":
        # The client gives these numbers as FP32.
        assert got.astype(np.float32).tolist() == values.astype(np.float32).tolist()
    else:
        assert (got.dtype, got.tobytes()) == (values.dtype, values.tobytes())


@pytest.mark.parametrize("datatype", FIELDS)
def test_elements_may_be_given_one_by_one(channel, datatype):
    values = VALUES[datatype]
    request = messages.ModelInferRequest(model_name=f"same_{datatype}")
    tensor = request.inputs.add(name="INPUT0", datatype=datatype, shape=[2])
    getattr(tensor.contents, FIELDS[datatype]).extend(values.tolist())
    [raw] = stub(channel).ModelInfer(request, timeout=LIMIT_S).raw_output_contents
    if datatype == "BYTES":
        expected = b"".join(len(value).to_bytes(4, "little") + value for value in values.tolist())
    else:
        expected = values.tobytes()
    assert raw == expected


def test_an_answer_has_model_version_id_and_parameters(client):
    answer = client.infer("same", [numbers([3])], request_id="my id", parameters={"mine": 1}).get_response()
    assert (answer.model_name, answer.model_version, answer.id) == ("same", "1", "my id")
    # What the identity backend sends, one of each type.
    assert answer.parameters["param0"].string_param == "an example string parameter"
    assert answer.parameters["param1"].int64_param == 42
    assert answer.parameters["param2"].WhichOneof("parameter_choice") == "bool_param"
    assert answer.parameters["param3"].double_param == 123.123


def test_outputs_may_be_chosen_and_several_inputs_given(client):
    inputs = [
        given("INPUT0", np.array([1.5], np.float32)),
        given("INPUT1", np.array([b"text"], np.object_)),
        given("INPUT2", np.array([7, 8], np.int64)),
    ]
    wanted = [triton.InferRequestedOutput("OUTPUT2"), triton.InferRequestedOutput("OUTPUT1")]
    answer = client.infer("several", inputs, outputs=wanted)
    assert answer.as_numpy("OUTPUT2").tolist() == [7, 8]
    assert answer.as_numpy("OUTPUT1").tolist() == [b"text"]
    assert answer.as_numpy("OUTPUT0") is None


def test_an_output_may_be_requested_as_classes(client):
    wanted = [triton.InferRequestedOutput("OUTPUT0", class_count=2)]
    answer = client.infer("same", [numbers([3, 9, 5])], outputs=wanted)
    assert answer.as_numpy("OUTPUT0").tolist() == [b"9:1", b"5:2"]


def test_sixteen_mebibytes_come_back(client):
    values = np.random.default_rng(1).integers(0, 1 << 30, 4 << 20, np.int32)
    assert client.infer("same", [numbers(values)]).as_numpy("OUTPUT0").tobytes() == values.tobytes()


def test_many_threads_share_a_client(client):
    def ask(start):
        for value in range(start, start + 50):
            assert client.infer("same", [numbers([value])]).as_numpy("OUTPUT0").tolist() == [value]
        done.append(start)

    done: list[int] = []
    threads = [threading.Thread(target=ask, args=(100 * number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) == 16


def test_async_infer_calls_back(client):
    answers, all_there = {}, threading.Event()

    def called_back(result, error):
        value = error or result.as_numpy("OUTPUT0").tolist()
        answers[result.get_response().id if result else str(error)] = value
        if len(answers) == 100:
            all_there.set()

    for value in range(100):
        client.async_infer("same", [numbers([value])], called_back, request_id=str(value))
    assert all_there.wait(LIMIT_S)
    assert answers == {str(value): [value] for value in range(100)}


def test_the_asyncio_client_works(server):
    async def ask():
        async with triton.aio.InferenceServerClient(server.grpc_url) as client:
            assert await client.is_server_ready()
            answers = await asyncio.gather(*(client.infer("same", [numbers([value])]) for value in range(50)))
            return [answer.as_numpy("OUTPUT0").tolist() for answer in answers]

    assert asyncio.run(asyncio.wait_for(ask(), LIMIT_S)) == [[value] for value in range(50)]


def test_inputs_and_outputs_lie_in_shared_memory_that_http_knows_too(client, server):
    values = np.array([[1.5, -2, 3]], np.float32)
    key = f"/nereid-grpc-{time.monotonic_ns()}"
    handle = shm.create_shared_memory_region("io", key, 2 * values.nbytes)
    try:
        shm.set_shared_memory_region(handle, [values])
        client.register_system_shared_memory("io", key, 2 * values.nbytes)
        [region] = client.get_system_shared_memory_status().regions.values()
        assert (region.name, region.key, region.offset, region.byte_size) == ("io", key, 0, 24)
        with tritonclient.http.InferenceServerClient(server.url) as other:
            assert [region["name"] for region in other.get_system_shared_memory_status()] == ["io"]
        source = triton.InferInput("X", [1, 3], "FP32")
        source.set_shared_memory("io", values.nbytes)
        target = triton.InferRequestedOutput("Y")
        target.set_shared_memory("io", values.nbytes, offset=values.nbytes)
        answer = client.infer("double", [source], outputs=[target]).get_response()
        assert list(answer.outputs[0].shape) == [1, 3]
        assert list(answer.raw_output_contents) == [b""]
        written = shm.get_contents_as_numpy(handle, np.float32, [1, 3], offset=values.nbytes)
        np.testing.assert_array_equal(written, values * 2)
        with pytest.raises(InferenceServerException) as refusal:
            client.register_system_shared_memory("io", key, 4)
        assert refusal.value.status() == "StatusCode.ALREADY_EXISTS"
    finally:
        client.unregister_system_shared_memory()
        shm.destroy_shared_memory_region(handle)
    assert not client.get_system_shared_memory_status().regions


@pytest.fixture
def gated(repository, serve, gate):
    """A server of the model `slow`, whose executions wait at the gate, and a client of it."""
    write_identity(repository, "slow", ["INT32"], gate=gate.path)
    server = serve()
    with triton.InferenceServerClient(server.grpc_url) as client:
        yield server, client


def test_a_call_ends_at_its_deadline(gated):
    _, client = gated
    with pytest.raises(InferenceServerException) as end:
        client.infer("slow", [numbers([1])], client_timeout=0.1)
    assert end.value.status() == "StatusCode.DEADLINE_EXCEEDED"


def test_a_call_that_is_cancelled_in_the_queue_is_not_executed(gated, gate):
    server, client = gated
    outcomes = []

    def ask(value):
        return client.async_infer("slow", [numbers([value])], lambda result, error: outcomes.append(error or value))

    ask(1)
    held = gate.entered()
    cancelled = [ask(2) for _ in range(5)]
    assert eventually(lambda: Scrape(server).pending("slow") == 5)
    for call in cancelled:
        call.cancel()
    assert eventually(lambda: Scrape(server).pending("slow") == 0)
    held.release()
    assert eventually(lambda: len(outcomes) == 6)
    assert [outcome for outcome in outcomes if isinstance(outcome, int)] == [1]
    [counted] = client.get_inference_statistics("slow").model_stats
    assert (counted.inference_count, counted.execution_count) == (1, 1)


def test_unknown_models_and_versions_are_not_found(channel):
    call = stub(channel)
    assert_refused(lambda: call.ModelInfer(message("nobody"), timeout=LIMIT_S), grpc.StatusCode.NOT_FOUND)
    request = message()
    request.model_version = "7"
    assert_refused(lambda: call.ModelInfer(request, timeout=LIMIT_S), grpc.StatusCode.NOT_FOUND)

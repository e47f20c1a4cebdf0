"""Invalid requests over gRPC: each is refused with its status, and the server goes on."""

import grpc
import pytest
from tritonclient.grpc import service_pb2 as messages

import nereid_server
from grpc_requests import LIMIT_S, assert_refused, message, stub
from model_files import write_identity

INVALID = grpc.StatusCode.INVALID_ARGUMENT
NOT_FOUND = grpc.StatusCode.NOT_FOUND
INFER = "/inference.GRPCInferenceService/ModelInfer"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    repository = tmp_path_factory.mktemp("grpc_bad")
    write_identity(repository, "same", ["INT32"])
    write_identity(repository, "texts", ["BYTES"])
    write_identity(repository, "halves", ["FP16"])
    with nereid_server.running(repository) as server:
        yield server


@pytest.fixture
def channel(server):
    with grpc.insecure_channel(server.grpc_url) as channel:
        yield channel
        # Whatever was sent, a good request is answered.
        assert stub(channel).ModelInfer(message(), timeout=LIMIT_S).raw_output_contents


def with_contents(raw=0, **fields):
    """A request whose input has typed contents, and this many raw ones."""
    request = message()
    request.raw_input_contents[:] = [b"\x01\x00\x00\x00\x02\x00\x00\x00"] * raw
    request.inputs[0].contents.SetInParent()
    for name, values in fields.items():
        getattr(request.inputs[0].contents, name).extend(values)
    return request


def changed(**fields):
    """A request whose one input is changed."""
    request = message()
    for name, value in fields.items():
        if name == "shape":
            request.inputs[0].shape[:] = value
        else:
            setattr(request.inputs[0], name, value)
    return request


def raw(*contents):
    request = message()
    request.raw_input_contents[:] = contents
    return request


def of_model(model, datatype, contents):
    request = raw(contents)
    request.model_name = model
    request.inputs[0].datatype = datatype
    return request


def parameter(name, kind, value, on="request"):
    request = message()
    if on == "output":
        request.outputs.add(name="OUTPUT0")
    of = {"request": request, "input": request.inputs[0], "output": next(iter(request.outputs), None)}[on]
    setattr(of.parameters[name], kind, value)
    return request


BAD = {
    "no contents": (raw(), INVALID),
    "contents too short": (raw(b"\x01\x00\x00\x00"), INVALID),
    "contents too long": (raw(b"\x00" * 9), INVALID),
    "empty contents": (raw(b""), INVALID),
    "raw and typed": (with_contents(raw=1, int_contents=[1, 2]), INVALID),
    "raw and empty typed": (with_contents(raw=1), INVALID),
    "too many elements": (with_contents(int_contents=[1, 2, 3]), INVALID),
    "too few elements": (with_contents(int_contents=[1]), INVALID),
    "no elements": (with_contents(), INVALID),
    "elements in another field": (with_contents(int64_contents=[1, 2]), INVALID),
    "elements in two fields": (with_contents(int_contents=[1, 2], bool_contents=[True]), INVALID),
    "unknown datatype": (changed(datatype="INT31"), INVALID),
    "no datatype": (changed(datatype=""), INVALID),
    "another datatype": (changed(datatype="FP32"), INVALID),
    "unknown input": (changed(name="INPUT7"), INVALID),
    "no name": (changed(name=""), INVALID),
    "negative dimension": (changed(shape=[-2]), INVALID),
    "too many dimensions": (changed(shape=[1, 2]), INVALID),
    "no dimensions": (changed(shape=[]), INVALID),
    "a dimension of 2^62": (changed(shape=[2**62]), INVALID),
    "a product that overflows": (changed(shape=[2**40, 2**40]), INVALID),
    "text shorter than it says": (of_model("texts", "BYTES", b"\x05\x00\x00\x00ab\x00\x00\x00\x00"), INVALID),
    "text longer than 2 GiB": (of_model("texts", "BYTES", b"\xff\xff\xff\xff"), INVALID),
    "halves of the wrong size": (of_model("halves", "FP16", b"abc"), INVALID),
    "sequence id of another type": (parameter("sequence_id", "double_param", 1.0), INVALID),
    "sequence flag of another type": (parameter("sequence_start", "int64_param", 1), INVALID),
    "negative priority": (parameter("priority", "int64_param", -1), INVALID),
    "priority of another type": (parameter("priority", "string_param", "1"), INVALID),
    "timeout of another type": (parameter("timeout", "uint64_param", 1), INVALID),
    "reserved parameter": (parameter("triton_own", "bool_param", True), INVALID),
    "unsigned parameter": (parameter("mine", "uint64_param", 1), INVALID),
    "classification of another type": (parameter("classification", "string_param", "1", on="output"), INVALID),
    "no classes": (parameter("classification", "int64_param", 0, on="output"), INVALID),
    "region of another type": (parameter("shared_memory_region", "int64_param", 1, on="input"), INVALID),
    "region without a size": (parameter("shared_memory_region", "string_param", "r", on="input"), INVALID),
    "size without a region": (parameter("shared_memory_byte_size", "int64_param", 8, on="input"), INVALID),
    "offset without a region": (parameter("shared_memory_offset", "int64_param", 8, on="output"), INVALID),
}


@pytest.mark.parametrize("name", BAD)
def test_an_invalid_request_is_refused(channel, name):
    request, code = BAD[name]
    assert_refused(lambda: stub(channel).ModelInfer(request, timeout=LIMIT_S), code)
    [answer] = stub(channel).ModelStreamInfer(iter([request]), timeout=LIMIT_S)
    assert answer.error_message


def test_unknown_outputs_and_inputs_given_twice_are_refused(channel):
    request = message()
    request.outputs.add(name="OUTPUT7")
    assert_refused(lambda: stub(channel).ModelInfer(request, timeout=LIMIT_S), INVALID)
    request = message()
    request.inputs.append(request.inputs[0])
    request.raw_input_contents.append(request.raw_input_contents[0])
    assert_refused(lambda: stub(channel).ModelInfer(request, timeout=LIMIT_S), INVALID)


def test_unknown_regions_are_not_found(channel):
    request = message()
    del request.raw_input_contents[:]
    request.inputs[0].parameters["shared_memory_region"].string_param = "nowhere"
    request.inputs[0].parameters["shared_memory_byte_size"].int64_param = 8
    assert_refused(lambda: stub(channel).ModelInfer(request, timeout=LIMIT_S), NOT_FOUND)
    call = stub(channel)
    for status, wanted in [
        (call.SystemSharedMemoryStatus, messages.SystemSharedMemoryStatusRequest(name="nowhere")),
        (call.CudaSharedMemoryStatus, messages.CudaSharedMemoryStatusRequest(name="nowhere")),
    ]:
        assert_refused(lambda: status(wanted, timeout=LIMIT_S), NOT_FOUND)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"key": "/nereid-no-such-object", "byte_size": 8}, grpc.StatusCode.INTERNAL),
        ({"name": "", "key": "/x", "byte_size": 8}, INVALID),
        ({"key": "triton_python_backend_shm_region_1", "byte_size": 8}, INVALID),
    ],
)
def test_regions_that_cannot_be_registered_are_refused(channel, fields, code):
    request = messages.SystemSharedMemoryRegisterRequest(**({"name": "r"} | fields))
    assert_refused(lambda: stub(channel).SystemSharedMemoryRegister(request, timeout=LIMIT_S), code)


def test_cuda_regions_are_refused(channel):
    call = stub(channel)
    request = messages.CudaSharedMemoryRegisterRequest(name="r", raw_handle=b"x", byte_size=8)
    assert_refused(lambda: call.CudaSharedMemoryRegister(request, timeout=LIMIT_S), INVALID)
    assert not call.CudaSharedMemoryStatus(messages.CudaSharedMemoryStatusRequest()).regions
    call.CudaSharedMemoryUnregister(messages.CudaSharedMemoryUnregisterRequest(name="r"), timeout=LIMIT_S)


@pytest.mark.parametrize("cut", range(1, 30, 4))
def test_messages_that_end_early_are_refused(channel, cut):
    whole = message().SerializeToString()
    send = channel.unary_unary(INFER)
    with pytest.raises(grpc.RpcError) as refusal:
        send(whole[:-cut], timeout=LIMIT_S)
    assert refusal.value.code() in (grpc.StatusCode.INTERNAL, INVALID)


@pytest.mark.parametrize("sent", [b"\xff" * 20, b"\x0a\xff\xff\xff\xff\x0f", b"\x3a" + b"\xff" * 9 + b"\x01"])
def test_bytes_that_are_not_a_message_are_refused(channel, sent):
    with pytest.raises(grpc.RpcError) as refusal:
        channel.unary_unary(INFER)(sent, timeout=LIMIT_S)
    assert refusal.value.code() == grpc.StatusCode.INTERNAL


@pytest.mark.parametrize("name", ["x" * 18_000, "x" * 1_000_000, "\u20ac" * 30_000, "a b\n" * 20_000])
def test_names_too_long_for_a_status_are_shortened_in_it(channel, name):
    call = stub(channel)
    unknown = messages.ModelInferRequest(model_name=name)
    wrong_input = message()
    wrong_input.inputs[0].name = name
    for refused in (
        lambda: call.ModelInfer(unknown, timeout=LIMIT_S),
        lambda: call.ModelInfer(wrong_input, timeout=LIMIT_S),
        lambda: call.ModelMetadata(messages.ModelMetadataRequest(name=name), timeout=LIMIT_S),
        lambda: call.ModelConfig(messages.ModelConfigRequest(name=name), timeout=LIMIT_S),
    ):
        with pytest.raises(grpc.RpcError) as refusal:
            refused()
        assert refusal.value.code() in (grpc.StatusCode.NOT_FOUND, INVALID)
        assert name[:100] in refusal.value.details()


def test_unknown_calls_are_not_implemented(channel):
    for path in ("/inference.GRPCInferenceService/ModelDream", "/inference.Another/ModelInfer"):
        with pytest.raises(grpc.RpcError) as refusal:
            channel.unary_unary(path)(b"", timeout=LIMIT_S)
        assert refusal.value.code() == grpc.StatusCode.UNIMPLEMENTED

"""Requests over gRPC, by Triton's client and by hand: what the client would not send is made from the messages."""

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc import service_pb2_grpc as service
from tritonclient.utils import np_to_triton_dtype

LIMIT_S = 60


def given(name, values):
    """An input that holds a numpy array."""
    result = triton.InferInput(name, list(values.shape), np_to_triton_dtype(values.dtype))
    result.set_data_from_numpy(values)
    return result


def numbers(values):
    """Whole numbers as the one input of an identity model."""
    return given("INPUT0", np.array(values, np.int32))


def message(model="same", values=(1, 2), request_id=""):
    """A request with raw contents, made by hand."""
    contents = np.array(values, np.int32).tobytes()
    request = messages.ModelInferRequest(model_name=model, id=request_id, raw_input_contents=[contents])
    request.inputs.add(name="INPUT0", datatype="INT32", shape=[len(values)])
    return request


def stub(channel):
    """The service, without a client around it."""
    return service.GRPCInferenceServiceStub(channel)


def assert_refused(call, code):
    """The call fails with this status and says why."""
    with pytest.raises(grpc.RpcError) as refusal:
        call()
    assert refusal.value.code() == code, refusal.value.details()
    assert refusal.value.details()

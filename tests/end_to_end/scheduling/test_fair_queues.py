"""Clients of a policy share a model's queue: one that floods it does not delay the others."""

from contextlib import ExitStack

import grpc
import pytest
from tritonclient.grpc import service_pb2_grpc as service

from access_policies import Policy
from grpc_requests import message
from scrapes import Scrape
from waiting import eventually

CONFIG = """
backend: "identity"
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ 2 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 2 ] } ]
parameters { key: "gate" value { string_value: "%s" } }
"""
SCHEDULERS = {"plain": "", "batches": "max_batch_size: 1 dynamic_batching { }"}
# A connection has room for a limited number of calls, so the flood comes over several.
WAITING, CONNECTIONS = 2000, 25
CALM = 100
INFER = {"rights": ["infer", "read"], "models": ["*"]}


@pytest.fixture
def policy(tmp_path):
    grants = [tuple(INFER.values())]
    watch = [(["read"], ["*"])]
    return Policy(tmp_path / "access", {"flood": grants, "calm": grants}, watch)


def requests_to(model):
    request = message(model)
    if model == "batches":
        request.inputs[0].shape[:] = [1, 2]
    return request


@pytest.mark.parametrize("model", SCHEDULERS)
def test_a_flood_of_one_client_does_not_delay_another(repository, serve, gate, policy, model):
    """The order of executions tells it: they alternate between the clients that wait."""
    (repository / model / "1").mkdir(parents=True)
    (repository / model / "config.pbtxt").write_text(CONFIG % gate.path + SCHEDULERS[model])
    server = serve(policy.option)
    with ExitStack() as stack:
        own = [("grpc.use_local_subchannel_pool", 1)]
        channels = [grpc.insecure_channel(server.grpc_url, own) for _ in range(CONNECTIONS + 1)]
        calm, *flood = [service.GRPCInferenceServiceStub(stack.enter_context(channel)) for channel in channels]

        def send(stub, name):
            return stub.ModelInfer.future(requests_to(model), metadata=[("x-api-key", policy.keys[name])])

        calls = [send(flood[number % CONNECTIONS], "flood") for number in range(WAITING + 1)]
        held = gate.entered()
        assert eventually(lambda: Scrape(server).pending(model) == WAITING)
        calm_calls = [send(calm, "calm") for _ in range(CALM)]
        assert eventually(lambda: Scrape(server).pending(model) == WAITING + CALM)
        # The one that executes, and two for each request of the calm client.
        for _ in range(2 * CALM + 1):
            held.release()
            held = gate.entered()
        assert eventually(lambda: all(call.done() for call in calm_calls))
        assert all(call.code() == grpc.StatusCode.OK for call in calm_calls)
        # The flood is served, too.
        assert eventually(lambda: sum(call.done() for call in calls) == CALM + 1)
        assert all(call.code() == grpc.StatusCode.OK for call in calls if call.done())
        for call in calls:
            call.cancel()
        assert eventually(lambda: Scrape(server).pending(model) == 0)

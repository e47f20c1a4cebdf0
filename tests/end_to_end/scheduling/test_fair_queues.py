"""Clients of a policy share a model's queue: one that floods it does not delay the others."""

from contextlib import ExitStack

import grpc
import pytest
from tritonclient.grpc import service_pb2_grpc as service

import nereid_server
from access_policies import Policy
from grpc_requests import message
from scrapes import Scrape
from waiting import eventually

CONFIG = """
backend: "identity"
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ 2 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 2 ] } ]
parameters { key: "execute_delay_ms" value { string_value: "20" } }
"""
# Batches must not clear the queue while the test measures.
SCHEDULERS = {"plain": "", "batches": "max_batch_size: 1 dynamic_batching { }"}
# A connection has room for a limited number of calls, so the flood comes over several.
WAITING, CONNECTIONS, SPARE = 2000, 25, 400
CALM = 100
INFER = {"rights": ["infer", "read"], "models": ["*"]}


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    repository = tmp_path_factory.mktemp("models")
    for name, scheduling in SCHEDULERS.items():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(CONFIG + scheduling)
    return repository


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    grants = [tuple(INFER.values())]
    watch = [(["read"], ["*"])]
    return Policy(tmp_path_factory.mktemp("access"), {"flood": grants, "calm": grants}, watch)


@pytest.fixture(scope="module")
def server(repository, policy):
    with nereid_server.running(repository, policy.option) as server:
        yield server


def requests_to(model):
    request = message(model)
    if model == "batches":
        request.inputs[0].shape[:] = [1, 2]
    return request


def pending(server, model):
    return Scrape(server).value("nv_inference_pending_request_count", model=model, version="1")


@pytest.mark.parametrize("model", SCHEDULERS)
def test_a_flood_of_one_client_does_not_delay_another(server, policy, model):
    """The order of the answers tells it: they alternate between the clients that wait."""
    with ExitStack() as stack:
        own = [("grpc.use_local_subchannel_pool", 1)]
        channels = [grpc.insecure_channel(server.grpc_url, own) for _ in range(CONNECTIONS + 1)]
        calm, *flood = [service.GRPCInferenceServiceStub(stack.enter_context(channel)) for channel in channels]
        answered = []

        def send(stub, name):
            call = stub.ModelInfer.future(requests_to(model), metadata=[("x-api-key", policy.keys[name])])
            call.add_done_callback(lambda call: answered.append(name) if call.code() == grpc.StatusCode.OK else None)
            return call

        calls = [send(flood[number % CONNECTIONS], "flood") for number in range(WAITING + SPARE)]
        eventually(lambda: pending(server, model) >= WAITING)
        before = len(answered)
        calm_calls = [send(calm, "calm") for _ in range(CALM)]
        assert all(call.result() for call in calm_calls)
        eventually(lambda: answered.count("calm") == CALM)
        beside = answered[before : len(answered) - answered[::-1].index("calm")].count("flood")
        # As many again are for those of the flood that were answered while the others were sent.
        assert CALM / 2 <= beside <= 2 * CALM
        assert pending(server, model) >= WAITING - 2 * CALM
        for call in calls:
            call.cancel()
    eventually(lambda: pending(server, model) == 0)

"""KServe's own Python clients and definitions of the open inference protocol, over HTTP and gRPC."""

import grpc
import pytest
from google.protobuf import descriptor_pool
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

import kserve_package
import nereid_server
from model_files import write_identity

TYPES = ["BOOL", "INT8", "INT64", "UINT64", "FP16", "FP32", "FP64", "BYTES"]
# Extensions of KServe's own server, which Triton does not have: it loads models with other messages.
KSERVES_OWN = {"RepositoryModelLoad", "RepositoryModelUnload"}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server with an identity model of each type."""
    repository = tmp_path_factory.mktemp("models")
    for datatype in TYPES:
        write_identity(repository, datatype.lower(), [datatype], max_batch_size=4)
    with nereid_server.running(repository) as server:
        yield server


@pytest.fixture(scope="module")
def found(server):
    """What KServe's clients found."""
    return kserve_package.run(server.port, server.grpc_port)


def test_kserves_client_gets_every_type_over_http(found):
    kinds = {f"{datatype} binary" for datatype in TYPES} | {f"{datatype} JSON" for datatype in TYPES if datatype != "FP16"}
    assert found["http"] == dict.fromkeys({"live", "ready", "model_ready"} | kinds, True) | {"unknown_ready": False}


def test_kserves_client_gets_every_type_over_grpc(found):
    kinds = {f"{datatype} raw" for datatype in TYPES}
    assert found["grpc"] == dict.fromkeys({"live", "ready", "model_ready"} | kinds, True)


def test_answers_are_as_kserve_defines_them(found):
    tensor = {"name": "INPUT0", "datatype": "INT64", "shape": [-1, -1]}
    metadata = found["rest"]["ModelMetadataResponse"]
    assert (metadata["name"], metadata["versions"], metadata["inputs"]) == ("int64", ["1"], [tensor])
    answer = found["rest"]["InferenceResponse"]
    assert (answer["id"], answer["outputs"][0]["data"]) == ("7", [1, 2])
    assert found["rest"]["ServerMetadataResponse"]["name"] == "triton"


def test_kserves_messages_are_a_part_of_ours(server):
    theirs = kserve_package.run()
    with grpc.insecure_channel(server.grpc_url) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        pool = descriptor_pool.DescriptorPool(database)
        service = pool.FindServiceByName("inference.GRPCInferenceService")
        calls = {call.name: [call.input_type.full_name, call.output_type.full_name] for call in service.methods}
        for name, messages in theirs["calls"].items():
            if name not in KSERVES_OWN:
                assert calls[name] == messages, name
        reached = {message for name, both in theirs["calls"].items() if name not in KSERVES_OWN for message in both}
        for name, fields in theirs["messages"].items():
            if not any(name == message or name.startswith(f"{message}.") for message in reached):
                continue
            message = pool.FindMessageTypeByName(name)
            for field, (number, kind, repeated, of) in fields.items():
                ours = message.fields_by_name[field]
                of_ours = ours.message_type.full_name if ours.message_type else None
                assert [ours.number, ours.type, ours.is_repeated, of_ours] == [number, kind, repeated, of], f"{name}.{field}"

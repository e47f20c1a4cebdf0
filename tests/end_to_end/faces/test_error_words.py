"""Words in errors that clients look for, because Triton's have them. The rest of each message is our own."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

import nereid_server
from model_files import config, write_identity, write_model

PROTOCOLS = pytest.mark.parametrize("protocol", [tritonclient.http, tritonclient.grpc], ids=["http", "grpc"])
CORRELATION_ID = "control_input { name: 'ID' control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_%s } }"


def client_of(server, protocol):
    return protocol.InferenceServerClient(server.grpc_url if protocol is tritonclient.grpc else server.url)


def infer(client, protocol, model, **how):
    tensor = protocol.InferInput("INPUT0", [1, 1], "INT32")
    tensor.set_data_from_numpy(np.array([[1]], np.int32))
    return client.infer(model, [tensor], **how)


def write(repository, name, extra):
    """An identity model with this in its configuration."""
    tensors = ([("INPUT0", "INT32", [1])], [("OUTPUT0", "INT32", [1])])
    write_model(repository, name, config(name, "identity", *tensors, 4, extra))


SEQUENCES = "sequence_batching { max_sequence_idle_microseconds: 60000000 %s }"
MODELS = {
    "plain": "",
    "sequences": SEQUENCES % "",
    "numbers": SEQUENCES % (CORRELATION_ID % "UINT64"),
    "texts": SEQUENCES % (CORRELATION_ID % "STRING"),
    "decoupled": "model_transaction_policy { decoupled: true }",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    repository = tmp_path_factory.mktemp("words")
    for name, extra in MODELS.items():
        write(repository, name, extra)
    with nereid_server.running(repository, "--model-control-mode=poll", "--repository-poll-secs=3600") as server:
        yield server


REFUSED = [
    ("correlation ID", lambda client, protocol: infer(client, protocol, "sequences")),
    ("correlation ID", lambda client, protocol: infer(client, protocol, "sequences", sequence_start=True)),
    ("correlation ID", lambda client, protocol: infer(client, protocol, "numbers", sequence_id="a", sequence_start=True)),
    ("correlation ID", lambda client, protocol: infer(client, protocol, "texts", sequence_id=5, sequence_start=True)),
    ("correlation ID", lambda client, protocol: infer(client, protocol, "sequences", sequence_id="a" * 129, sequence_start=True)),
    ("correlation ID", lambda client, protocol: infer(client, protocol, "plain", sequence_id="a" * 5000)),
    ("START flag", lambda client, protocol: infer(client, protocol, "sequences", sequence_id=5)),
    ("START flag", lambda client, protocol: infer(client, protocol, "sequences", sequence_id=6, sequence_end=True)),
    ("START flag", lambda client, protocol: infer(client, protocol, "texts", sequence_id="a" * 128)),
    ("decoupled", lambda client, protocol: infer(client, protocol, "decoupled")),
    ("not allowed", lambda client, protocol: client.load_model("plain")),
    ("not allowed", lambda client, protocol: client.unload_model("plain")),
    ("not allowed", lambda client, protocol: client.load_model("nobody")),
]


@PROTOCOLS
@pytest.mark.parametrize(("word", "call"), REFUSED)
def test_a_refusal_has_the_word_for_its_reason(server, protocol, word, call):
    with client_of(server, protocol) as client, pytest.raises(InferenceServerException, match=word):
        call(client, protocol)


@PROTOCOLS
def test_models_are_neither_loaded_nor_unloaded_by_request_without_control(repository, serve, protocol):
    write_identity(repository, "plain", ["INT32"])
    with client_of(serve("--model-control-mode=none"), protocol) as client:
        for call in (client.load_model, client.unload_model):
            with pytest.raises(InferenceServerException, match="not allowed"):
                call("plain")


@PROTOCOLS
def test_a_restricted_group_says_so(repository, serve, protocol):
    write_identity(repository, "plain", ["INT32"])
    server = serve(
        "--http-restricted-api=metadata,model-repository:k=v", "--grpc-restricted-protocol=metadata,model-repository:k=v"
    )
    with client_of(server, protocol) as client:
        for call in (client.get_server_metadata, client.get_model_repository_index):
            with pytest.raises(InferenceServerException, match="restricted"):
                call()


@PROTOCOLS
@pytest.mark.parametrize("timeout", [1, 1000, 50_000])
def test_a_request_past_its_queue_timeout_says_so(repository, serve, gate, protocol, timeout):
    gated = f'parameters {{ key: "gate" value: {{ string_value: "{gate.path}" }} }}'
    policy = "default_timeout_microseconds: 60000000 allow_timeout_override: true"
    write(repository, "slow", f"dynamic_batching {{ default_queue_policy {{ {policy} }} }} {gated}")
    server = serve()
    with ThreadPoolExecutor(1) as pool, client_of(server, protocol) as client:

        def first():
            with client_of(server, protocol) as other:
                return infer(other, protocol, "slow")

        executing = pool.submit(first)
        gate.entered()
        try:
            with pytest.raises(InferenceServerException, match="Request timeout expired"):
                infer(client, protocol, "slow", timeout=timeout)
        finally:
            gate.open()
        executing.result()

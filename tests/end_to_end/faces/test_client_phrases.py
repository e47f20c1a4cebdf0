"""Phrases that scripts, clients and dashboards made for Triton match in errors and in the log.

The phrases are those of the reference (2.51), recorded at the place where a client sees them.
"""

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import shared_memory

import grpc
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

import nereid_server
from model_files import config, write_identity, write_model
from waiting import eventually

PROTOCOLS = pytest.mark.parametrize("protocol", [tritonclient.http, tritonclient.grpc], ids=["http", "grpc"])
REGION = "phrases"
REGION_BYTES = 64


def client_of(server, protocol):
    return protocol.InferenceServerClient(server.grpc_url if protocol is tritonclient.grpc else server.url)


@contextmanager
def refusal():
    """Catches the error of a call. Its text is in `value` afterwards."""
    with pytest.raises(InferenceServerException) as error:
        yield error


def tensor(protocol, name="INPUT0", shape=(1, 1)):
    given = protocol.InferInput(name, list(shape), "INT32")
    given.set_data_from_numpy(np.zeros(shape, np.int32))
    return given


def cut(protocol, count):
    """A tensor of four bytes with another number of them."""
    given = tensor(protocol)
    if protocol is tritonclient.grpc:
        given._raw_content = bytes(count)
    else:
        given._raw_data, given._parameters = bytes(count), {"binary_data_size": count}
    return given


def in_region(protocol, offset, length):
    given = protocol.InferInput("INPUT0", [1, 1], "INT32")
    given.set_shared_memory(REGION, length, offset)
    return given


def write(repository, name, extra="", inputs=1, optional=0):
    """An identity model, whose last inputs may be optional."""
    inputs, outputs = ([(f"{kind}{index}", "INT32", [1]) for index in range(inputs)] for kind in ("INPUT", "OUTPUT"))
    text = config(name, "identity", inputs, outputs, 4, extra)
    for index in range(len(inputs) - optional, len(inputs)):
        text = text.replace(f'name: "INPUT{index}"', f'name: "INPUT{index}" optional: true')
    write_model(repository, name, text)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    repository = tmp_path_factory.mktemp("phrases")
    write(repository, "plain")
    write(repository, "two", inputs=2)
    write(repository, "some", inputs=3, optional=1)
    write(repository, "decoupled", "model_transaction_policy { decoupled: true }")
    write(repository, "sequences", "sequence_batching { max_sequence_idle_microseconds: 60000000 }")
    with nereid_server.running(repository) as server:
        yield server


@pytest.fixture(scope="module")
def region(server):
    """A shared memory object, registered as a region of its own name."""
    memory = shared_memory.SharedMemory(f"nereid-{REGION}-{server.pid}", create=True, size=REGION_BYTES)
    key = f"/{memory.name.lstrip('/')}"
    try:
        with client_of(server, tritonclient.http) as client:
            client.register_system_shared_memory(REGION, key, REGION_BYTES)
        yield key
    finally:
        memory.close()
        memory.unlink()


def infer(model, *inputs, version="", outputs=None, **how):
    """A call that infers with these inputs: functions of the protocol, or names of zeros."""

    def call(client, protocol):
        given = [tensor(protocol, one) if isinstance(one, str) else one(protocol) for one in inputs]
        wanted = [protocol.InferRequestedOutput(name) for name in outputs] if outputs else None
        client.infer(model, given, version, outputs=wanted, **how)

    return call


def of_shape(*shape):
    return lambda protocol: tensor(protocol, shape=shape)


NO_CONTROL = "explicit model load / unload is not allowed if polling is enabled"
SHAPE = "unexpected shape for input 'INPUT0' for model 'plain'"
SIZE = "input byte size mismatch for input 'INPUT0' for model 'plain'"
SOME = "expected number of inputs between 2 and 3 but got %d inputs for model 'some'"
REFUSED = [
    ("Request for unknown model: 'nosuch' is not found", infer("nosuch", "INPUT0")),
    ("Request for unknown model: 'plain' version 9 is not found", infer("plain", "INPUT0", version="9")),
    ("Request for unknown model: 'nosuch' is not found", lambda client, _: client.get_model_metadata("nosuch")),
    ("Request for unknown model: 'nosuch' is not found", lambda client, _: client.get_model_config("nosuch")),
    ("requested model 'nosuch' is not available", lambda client, _: client.get_inference_statistics("nosuch")),
    ("requested model 'nosuch' is not available", lambda client, _: client.get_inference_statistics("nosuch", "1")),
    (
        "requested model version is not available for model 'plain'",
        lambda client, _: client.get_inference_statistics("plain", "9"),
    ),
    ("unexpected inference input 'X' for model 'plain'", infer("plain", "X")),
    ("unexpected inference input 'X' for model 'two'", infer("two", "INPUT0", "X")),
    ("unexpected inference output 'X' for model 'plain'", infer("plain", "INPUT0", outputs=["X"])),
    ("unexpected inference output 'X' for model 'plain'", infer("plain", "INPUT0", outputs=["OUTPUT0", "X"])),
    ("expected 2 inputs but got 1 inputs for model 'two'", infer("two", "INPUT0")),
    ("expected 2 inputs but got 1 inputs for model 'two'", infer("two", "X")),
    ("expected 2 inputs but got 3 inputs for model 'two'", infer("two", "INPUT0", "INPUT1", "INPUT2")),
    ("expected 1 inputs but got 2 inputs for model 'plain'", infer("plain", "INPUT0", "X")),
    (SOME % 1, infer("some", "INPUT0")),
    (SOME % 1, infer("some", "INPUT2")),
    (SOME % 4, infer("some", "INPUT0", "INPUT1", "INPUT2", "INPUT3")),
    *((SHAPE, infer("plain", of_shape(*shape))) for shape in [(1, 2), (1, 1, 1), (4, 0), (2, 1, 3)]),
    *((SIZE, infer("plain", lambda protocol, count=count: cut(protocol, count))) for count in (1, 3, 5, 8)),
    ("models with decoupled transaction policy", infer("decoupled", "INPUT0")),
    ("doesn't support models with decoupled transaction policy", infer("decoupled", "INPUT0", version="1")),
    ("must specify the START flag on the first request of the sequence", infer("sequences", "INPUT0", sequence_id=5)),
    ("must specify the START flag on the first request of the sequence", infer("sequences", "INPUT0", sequence_id="a")),
    ("must specify a non-zero or non-empty correlation ID", infer("sequences", "INPUT0")),
    ("must specify a non-zero or non-empty correlation ID", infer("sequences", "INPUT0", sequence_start=True)),
    (NO_CONTROL, lambda client, _: client.load_model("plain")),
    (NO_CONTROL, lambda client, _: client.load_model("nosuch")),
    (NO_CONTROL, lambda client, _: client.unload_model("plain")),
    (
        "log file location can not be updated through network protocol",
        lambda client, _: client.update_log_settings({"log_file": "/x"}),
    ),
    (
        "trace file location can not be updated through network protocol",
        lambda client, _: client.update_trace_settings(settings={"trace_file": "/x"}),
    ),
    (
        "Unable to find shared memory region: 'nosuch'",
        lambda client, protocol: client.infer("plain", [unknown_region(protocol)]),
    ),
]


def unknown_region(protocol):
    given = protocol.InferInput("INPUT0", [1, 1], "INT32")
    given.set_shared_memory("nosuch", 4)
    return given


@PROTOCOLS
@pytest.mark.parametrize(("phrase", "call"), REFUSED, ids=[f"{index}-{phrase}" for index, (phrase, _) in enumerate(REFUSED)])
def test_refusal_contains_its_phrase(server, protocol, phrase, call):
    with client_of(server, protocol) as client, refusal() as error:
        call(client, protocol)
    assert phrase in error.value.message()


@PROTOCOLS
@pytest.mark.parametrize(
    ("phrase", "offset", "length"),
    [
        ("Invalid offset for shared memory region: ", REGION_BYTES, 4),
        ("Invalid offset for shared memory region: ", 2**40, 4),
        ("Invalid offset + byte size for shared memory region: ", 0, REGION_BYTES + 1),
        ("Invalid offset + byte size for shared memory region: ", REGION_BYTES - 3, 4),
    ],
)
def test_range_outside_a_region_is_refused_with_its_phrase(server, region, protocol, phrase, offset, length):
    with client_of(server, protocol) as client, refusal() as error:
        client.infer("plain", [in_region(protocol, offset, length)])
    assert f"{phrase}'{REGION}'" in error.value.message()


@PROTOCOLS
def test_region_that_is_registered_twice_is_refused_with_its_phrase(server, region, protocol):
    with client_of(server, protocol) as client, refusal() as error:
        client.register_system_shared_memory(REGION, region, REGION_BYTES)
    assert f"shared memory region '{REGION}' already in manager" in error.value.message()


@PROTOCOLS
def test_polled_server_refuses_loads_with_the_phrase(repository, serve, protocol):
    write(repository, "plain")
    with client_of(serve("--model-control-mode=poll", "--repository-poll-secs=3600"), protocol) as client:
        for call in (client.load_model, client.unload_model):
            with refusal() as error:
                call("plain")
            assert NO_CONTROL in error.value.message()


OVERRIDES = ["{nojson", '{"nosuch": 1}', '{"max_batch_size": "a"}', '{"max_batch_size": -1}', "[]"]


@PROTOCOLS
def test_failed_load_names_its_reason_in_the_error_and_in_the_log(repository, serve, protocol):
    write(repository, "plain")
    server = serve("--model-control-mode=explicit")
    with client_of(server, protocol) as client:
        for override in OVERRIDES:
            with refusal() as error:
                client.load_model("plain", config=override)
            assert "failed to load 'plain'" in error.value.message(), override
            assert "Invalid config override" in error.value.message(), override
            server.wait_for_log("Poll failed for model directory 'plain': .*Invalid config override")
        with refusal() as error:
            client.load_model("nosuch")
        assert "model not found in any model repository" in error.value.message()
        assert "failed to load 'nosuch', failed to poll from model repository" in error.value.message()
        server.wait_for_log("model not found in any model repository")


def test_model_of_two_repositories_and_a_broken_one_are_reported_with_their_phrases(repository, tmp_path):
    other = tmp_path / "other"
    for folder in (repository, other):
        write(folder, "same")
    write_model(repository, "broken", "max_batch_size: [")
    with nereid_server.running(repository, f"--model-repository={other}", "--exit-on-error=false", ready=False) as server:
        server.wait_for_log("Poll failed for model directory 'broken'")
        with client_of(server, tritonclient.http) as client:
            reasons = {model["name"]: model.get("reason", "") for model in client.get_model_repository_index()}
        assert "model appears in two or more repositories" in reasons["same"], reasons


@PROTOCOLS
def test_restricted_group_names_the_expected_header(repository, serve, protocol):
    write(repository, "plain")
    groups = "metadata,model-repository,inference,statistics,logging"
    server = serve(f"--http-restricted-api={groups}:key=v", f"--grpc-restricted-protocol={groups}:key=v")
    phrase = {
        tritonclient.http: "This API is restricted, expecting header 'key'",
        tritonclient.grpc: "This protocol is restricted, expecting header 'triton-grpc-protocol-key'",
    }[protocol]
    with client_of(server, protocol) as client:
        for call in (
            client.get_server_metadata,
            client.get_model_repository_index,
            client.get_inference_statistics,
            client.get_log_settings,
            lambda: infer("plain", "INPUT0")(client, protocol),
        ):
            with refusal() as error:
                call()
            assert phrase in error.value.message()


@PROTOCOLS
def test_queue_timeout_has_exactly_the_message_that_clients_compare(repository, serve, gate, protocol):
    policy = "default_timeout_microseconds: 60000000 allow_timeout_override: true"
    gated = f'parameters {{ key: "gate" value: {{ string_value: "{gate.path}" }} }}'
    write(repository, "slow", f"dynamic_batching {{ default_queue_policy {{ {policy} }} }} {gated}")
    server = serve()
    with ThreadPoolExecutor(1) as pool, client_of(server, protocol) as client, client_of(server, protocol) as other:
        executing = pool.submit(infer("slow", "INPUT0"), other, protocol)
        gate.entered()
        try:
            for timeout in (1, 1000, 50_000):
                with refusal() as error:
                    infer("slow", "INPUT0", timeout=timeout)(client, protocol)
                assert error.value.message() == "Request timeout expired"
        finally:
            gate.open()
        executing.result()


@PROTOCOLS
def test_sequence_without_a_slot_is_refused_with_its_phrase(repository, serve, protocol):
    write_model(
        repository,
        "one",
        config(
            "one",
            "identity",
            [("INPUT0", "INT32", [1])],
            [("OUTPUT0", "INT32", [1])],
            1,
            "sequence_batching { max_sequence_idle_microseconds: 60000000 }",
        ),
    )
    server = serve(nereid_server.OPEN_SEQUENCES)
    with client_of(server, protocol) as client:
        infer("one", "INPUT0", sequence_id=1, sequence_start=True)(client, protocol)
        with refusal() as error:
            infer("one", "INPUT0", sequence_id=2, sequence_start=True, timeout=50_000)(client, protocol)
        assert "timeout of the corresponding sequence has been expired" in error.value.message()
        infer("one", "INPUT0", sequence_id=1, sequence_end=True)(client, protocol)


@PROTOCOLS
def test_stopping_server_refuses_inference_and_logs_what_it_waits_for(repository, serve, gate, protocol):
    write_identity(repository, "slow", ["INT32"], gate=gate.path, max_batch_size=4, dims=(1,))
    write(repository, "plain")
    server = serve()
    with ThreadPoolExecutor(1) as pool, client_of(server, protocol) as client, client_of(server, protocol) as other:
        executing = pool.submit(infer("slow", "INPUT0"), other, protocol)
        gate.entered()
        assert client.is_server_ready()
        server.terminate()
        assert eventually(lambda: not client.is_server_ready())
        for model in ("plain", "slow"):
            with refusal() as error:
                infer(model, "INPUT0")(client, protocol)
            phrase = "Server is stopping, scheduler for model has stopped accepting new inference requests"
            assert phrase in error.value.message()
        server.wait_for_log("Waiting for in-flight requests to complete")
        server.wait_for_log(r"Model 'slow' \(version 1\) has 1 in-flight inferences")
        gate.open()
        executing.result()
    assert server.wait_for_exit() == 0
    assert "Model 'plain'" not in server.log


def test_deadline_of_a_grpc_call_ends_it_with_the_details_of_grpc(repository, serve, gate):
    """The server's own details, which a client sees whose library does not watch the deadline itself."""
    write_identity(repository, "slow", ["INT32"], gate=gate.path, dims=(1,))
    server = serve()
    message = service_pb2.ModelInferRequest(model_name="slow", raw_input_contents=[bytes(4)])
    message.inputs.add(name="INPUT0", datatype="INT32", shape=[1])
    with grpc.insecure_channel(server.grpc_url) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer", lambda message: message.SerializeToString())
        with pytest.raises(grpc.RpcError) as error:
            call(message, metadata=[("grpc-timeout", "100m")])
        assert (error.value.code(), error.value.details()) == (grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
    gate.open()


@pytest.mark.parametrize(
    ("option", "deprecated"),
    [
        ("--strict-model-config=false", "--strict-model-config"),
        ("--strict-model-config=true", "--strict-model-config"),
        ("--response-cache-byte-size=1000000", "--response-cache-byte-size"),
        ("--trace-rate=1", "--trace-rate"),
        ("--trace-level=OFF", "--trace-level"),
    ],
)
def test_deprecated_option_is_reported_with_the_phrase(repository, serve, option, deprecated):
    write(repository, "plain")
    assert f"{deprecated} has been deprecated" in serve(option).log

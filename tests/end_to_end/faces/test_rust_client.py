"""The client library in Rust, against this server, NVIDIA's, and one that has nothing but KServe v2."""

import os
import subprocess
from pathlib import Path

import pytest

import native_backends
import nereid_server
import python_backend
from access_policies import RIGHTS, Policy
from certificates import Authority
from native_backends import parameter, write_model
from plain_server import plain_server

LIMIT_S = 60
TYPES = ["BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "BF16", "BYTES"]


def tensors(data_type, dims):
    sides = [("input", "INPUT0"), ("output", "OUTPUT0")]
    return "\n".join(f'{side} {{ name: "{name}" data_type: {data_type} dims: [{dims}] }}' for side, name in sides)


@pytest.fixture(scope="module")
def flags(tmp_path_factory):
    """The repository, and the flags of a server that serves it."""
    backends = tmp_path_factory.mktemp("backends")
    native_backends.compile_c(backends, "echo")
    native_backends.copy_rust(backends, "words")
    repository = tmp_path_factory.mktemp("models")
    for data_type in TYPES:
        name = "TYPE_STRING" if data_type == "BYTES" else f"TYPE_{data_type}"
        write_model(repository, f"echo_{data_type}", "echo", tensors(name, -1))
    batching = "max_batch_size: 8 dynamic_batching { preferred_batch_size: [4, 8] max_queue_delay_microseconds: 250 }\n"
    write_model(repository, "batched", "echo", batching + parameter("color", "blue") + tensors("TYPE_INT32", 4))
    write_model(repository, "words", "words", "model_transaction_policy { decoupled: true }")
    return repository, f"--backend-directory={backends}", "--model-control-mode=explicit", "--load-model=*", "--id=tested"


def conforms(*arguments, **variables):
    program = Path(nereid_server.binary()).parent / "examples" / "client_conformance"
    assert program.exists(), f"{program} is missing: cargo build --workspace --all-targets"
    command: list[str | Path] = [program, *map(str, arguments)]
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=os.environ | variables)
    assert (outcome.returncode, outcome.stdout) == (0, "conforms\n"), outcome.stderr


def test_it_works_with_this_server(flags):
    with nereid_server.running(*flags) as server:
        conforms("http", f"http://{server.url}")
        conforms("grpc", f"http://{server.grpc_url}")


def test_it_works_with_nvidias_server(flags):
    with python_backend.nvidia_addresses(*flags) as (http, grpc):
        conforms("http", f"http://{http}")
        conforms("grpc", f"http://{grpc}")


def test_it_works_with_a_server_that_has_no_extensions():
    with plain_server() as server:
        conforms("plain", f"http://{server.url}")


def test_it_works_over_tls_with_a_key(flags, tmp_path):
    authority = Authority(tmp_path, "servers")
    identity = authority.sign("server")
    files = [f"--{face}-server-cert={identity.certificate}" for face in ("http", "grpc")]
    files += [f"--{face}-server-key={identity.key}" for face in ("http", "grpc")]
    policy = Policy(tmp_path / "access", {"tester": [(RIGHTS, ["*"])]})
    secure = ["--http-use-ssl=true", "--grpc-use-ssl=true", *files, policy.option]
    server = nereid_server.Server(*flags, *secure).wait_until_listening()
    try:
        server.wait_for_log("echo_UINT8 +\\| 1 +\\| READY")
        for kind, address in [("http", server.url), ("grpc", server.grpc_url)]:
            conforms(kind, f"https://{address}", authority.certificate, API_KEY=policy.keys["tester"])
    finally:
        server.stop()

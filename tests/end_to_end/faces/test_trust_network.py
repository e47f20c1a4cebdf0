"""What clients of other machines may not do by default, over HTTP and gRPC, and the ways to let them in."""

import base64
import json
import uuid
from http.client import HTTPConnection
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

import nereid_server
from access_policies import Policy
from distant import relay
from model_files import write_identity

EXPLICIT = ["--model-control-mode=explicit", "--load-model=plain"]
CONFIG = json.dumps({"backend": "identity", "max_batch_size": 3})
REFUSED = "start the server with --trust-network, or with an access policy (--access)"
OPEN = "every client that reaches a port may do everything"
GROUPS = "model-repository,shared-memory:key=secret"
PROTOCOLS = [(tritonclient.http, "403"), (tritonclient.grpc, "StatusCode.PERMISSION_DENIED")]


@pytest.fixture
def served(repository):
    """A server started with further options."""
    write_identity(repository, "plain", ["FP32"])
    write_identity(repository, "other", ["FP32"])

    def start(*flags):
        return nereid_server.running(repository, *EXPLICIT, *flags)

    return start


@pytest.fixture
def key():
    """The key of a shared memory object."""
    path = Path("/dev/shm") / f"nereid-{uuid.uuid4().hex}"
    path.write_bytes(bytes(64))
    yield f"/{path.name}"
    path.unlink()


def numbers(module, region=None):
    """An input of the models, perhaps in a region."""
    tensor = module.InferInput("INPUT0", [4], "FP32")
    if region:
        tensor.set_shared_memory(region, 16)
    else:
        tensor.set_data_from_numpy(np.ones(4, np.float32))
    return [tensor]


def into(module, region):
    """An output requested in a region."""
    output = module.InferRequestedOutput("OUTPUT0")
    output.set_shared_memory(region, 16)
    return [output]


def forbidden(module, client, key):
    """The calls that could give a stranger the machine, by their names."""
    files = {"file:1/model.py": b"raise SystemExit"}
    return {
        "load with a configuration": lambda: client.load_model("other", config=CONFIG),
        "load with files": lambda: client.load_model("other", config=CONFIG, files=files),
        "register": lambda: client.register_system_shared_memory("r", key, 64),
        "register CUDA memory": lambda: client.register_cuda_shared_memory("r", base64.b64encode(bytes(64)), 0, 64),
        "unregister": lambda: client.unregister_system_shared_memory("r"),
        "unregister all": client.unregister_system_shared_memory,
        "read a region": lambda: client.infer("plain", numbers(module, "r")),
        "write a region": lambda: client.infer("plain", numbers(module), outputs=into(module, "r")),
    }


def test_clients_of_other_machines_load_no_files_and_use_no_shared_memory(served, key):
    with served() as server, relay(server.port) as http, relay(server.grpc_port) as grpc:
        with tritonclient.http.InferenceServerClient(server.url) as local:
            local.register_system_shared_memory("r", key, 64)
            for (module, status), address in zip(PROTOCOLS, [http, grpc], strict=True):
                with module.InferenceServerClient(address) as client:
                    for name, call in forbidden(module, client, key).items():
                        with pytest.raises(InferenceServerException) as caught:
                            call()
                        assert (caught.value.status(), REFUSED in caught.value.message()) == (status, True), (name, caught.value)
                    # Everything else is as on this machine.
                    client.load_model("other")
                    client.unload_model("other")
                    assert client.is_server_ready() and client.get_model_repository_index()
                    assert client.infer("plain", numbers(module)).as_numpy("OUTPUT0").tolist() == [1.0] * 4
            local.load_model("other", config=CONFIG)
            local.infer("plain", numbers(tritonclient.http), outputs=into(tritonclient.http, "r"))
        assert Path("/dev/shm", key[1:]).read_bytes()[:16] == np.ones(4, np.float32).tobytes()
        assert server.log.count("clients of other machines may run, load and unload every model") == 1


def test_addresses_of_this_machine_are_not_another_one(served, key):
    with served() as server:
        for module, address in zip([tritonclient.http, tritonclient.grpc], [server.url, server.grpc_url], strict=True):
            with module.InferenceServerClient(address) as client:
                client.load_model("other", config=CONFIG)
                client.register_system_shared_memory("r", key, 64)
                client.unregister_system_shared_memory("r")


@pytest.mark.parametrize("way", ["trust", "restricted", "policy"])
def test_clients_of_other_machines_are_let_in_on_request(served, key, tmp_path, way):
    if way == "trust":
        flags, headers = ["--trust-network"], {}
    elif way == "restricted":
        flags = [f"--http-restricted-api={GROUPS}", f"--grpc-restricted-protocol={GROUPS}"]
        headers = {"key": "secret", "triton-grpc-protocol-key": "secret"}
    else:
        policy = Policy(tmp_path / "policy", {"ops": [(["infer", "read", "control", "files", "admin"], ["*"])]})
        flags, headers = [f"--access={policy.file}"], {"x-api-key": policy.keys["ops"]}
    with served(*flags) as server, relay(server.port) as http, relay(server.grpc_port) as grpc:
        for (module, _), address in zip(PROTOCOLS, [http, grpc], strict=True):
            with module.InferenceServerClient(address) as client:
                client.load_model("other", config=CONFIG, headers=headers)
                client.register_system_shared_memory("r", key, 64, headers=headers)
                client.infer("plain", numbers(module, "r"), outputs=into(module, "r"), headers=headers)
                client.unregister_system_shared_memory("r", headers=headers)
        assert (OPEN in server.log) == (way == "trust")


def test_the_platform_of_sagemaker_names_folders_from_elsewhere(repository, tmp_path):
    write_identity(tmp_path / "elsewhere", "one", ["FP32"])
    flags = ["--model-control-mode=explicit", "--allow-sagemaker=true", "--sagemaker-port=0"]
    with nereid_server.running(repository, *flags) as server:
        port = server.wait_for_log(r'Started Sagemaker HTTPService at [^\s"]+:(\d+)').group(1)
        with relay(int(port)) as address:
            connection = HTTPConnection(address, timeout=30)
            connection.request("POST", "/models", json.dumps({"model_name": "m", "url": str(tmp_path / "elsewhere")}))
            assert connection.getresponse().status == 200
            connection.close()

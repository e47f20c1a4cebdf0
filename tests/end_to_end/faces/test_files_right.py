"""The right `files`: every way in which a load brings files or a configuration, or names a folder, with the right and without."""

import base64
import gzip
import json

import grpc
import pytest
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc import service_pb2_grpc as service

from access_faces import CLOUDS, EXPLICIT, PREDICT, Faces, faces_environment
from access_policies import Policy, bearer
from http_requests import request
from model_files import config, write_identity

TEXT = config("own", "identity", [("INPUT0", "INT32", [-1])], [("OUTPUT0", "INT32", [-1])], max_batch_size=3)
TENSOR = {"name": "INPUT0", "data_type": "TYPE_INT32", "dims": [-1]}
BASE = {"backend": "identity", "max_batch_size": 3, "input": [TENSOR], "output": [{**TENSOR, "name": "OUTPUT0"}]}
CONFIG = json.dumps(BASE)
CODE = base64.b64encode(b"import os").decode()
AGENT = {"model_repository_agents": {"agents": [{"name": "checksum", "parameters": {"MD5:config.pbtxt": "0"}}]}}
ENVIRONMENT = {"backend": "python", "parameters": {"EXECUTION_ENV_PATH": {"string_value": "/tmp/environment.tar.gz"}}}
CONTROL = ["control", "read", "infer", "admin"]
# What the bodies of loads bring, and whether the model is loaded with it if the client may bring files.
BODIES = {
    "configuration": (json.dumps({"parameters": {"config": CONFIG}}), True),
    "configuration and file": (json.dumps({"parameters": {"config": CONFIG, "file:1/model.py": CODE}}), True),
    "several files": (json.dumps({"parameters": {"file:1/a": CODE, "config": CONFIG, "file:2/b": CODE}}), True),
    "empty file": (json.dumps({"parameters": {"config": CONFIG, "file:1/a": ""}}), True),
    "file without a configuration": (json.dumps({"parameters": {"file:1/model.py": CODE}}), False),
    "escaped names": ('{"\\u0070arameters": {"\\u0063onfig": %s, "f\\u0069le:1/a": "%s"}}' % (json.dumps(CONFIG), CODE), True),
    "behind other members": (json.dumps({"a": {"parameters": {}}, "b": [1], "parameters": {"config": CONFIG}}), True),
    "blanks": (f"\r\n\t {json.dumps({'parameters': {'config': CONFIG}}, indent=8)} ", True),
    "text of a configuration file": (json.dumps({"parameters": {"config": TEXT}}), False),
    "agent": (json.dumps({"parameters": {"config": json.dumps(BASE | AGENT)}}), False),
    "environment": (json.dumps({"parameters": {"config": json.dumps(BASE | ENVIRONMENT)}}), False),
    "file outside": (json.dumps({"parameters": {"config": CONFIG, "file:../../escaped": CODE}}), False),
    "other backend": (json.dumps({"parameters": {"config": json.dumps(BASE | {"backend": "/tmp/libx.so"})}}), False),
    "empty configuration": (json.dumps({"parameters": {"config": ""}}), False),
}
PATH = "/v2/repository/models/own/load"


@pytest.fixture
def served(tmp_path, repository, serve):
    for name in ("own", "other"):
        write_identity(repository, name, ["INT32"])
    grants = {
        "control": [(CONTROL, ["*"])],
        "files": [(["files"], ["*"])],
        "elsewhere": [(CONTROL, ["*"]), (["files"], ["other"])],
        "both": [(["control"], ["own"]), (["files", "read"], ["own"])],
        "root": [([*CONTROL, "files"], ["*"])],
    }
    policy = Policy(tmp_path / "access", grants)
    server = serve(policy.option, *CLOUDS, "--vertex-ai-default-model=own", *EXPLICIT, env=faces_environment())
    return policy, server


def most(server, root):
    """The greatest batch of the model as it is loaded."""
    answer = request(server, "GET", "/v2/models/own/config", headers=root)
    return answer.json["max_batch_size"] if answer.status == 200 else None


@pytest.mark.parametrize("what", BODIES)
def test_a_load_over_http_that_brings_something_needs_the_right(served, what):
    policy, server = served
    body, succeeds = BODIES[what]
    root = bearer(policy.keys["root"])
    loads = server.log.count("loading 'own'")
    for sent, more in (
        (body, {}),
        (gzip.compress(body.encode()), {"Content-Encoding": "gzip"}),
        (body, {"Content-Type": "text/plain"}),
    ):
        for name, right in (("control", "files"), ("elsewhere", "files"), ("files", "control")):
            answer = request(server, "POST", PATH, sent, bearer(policy.keys[name]) | more)
            # Bodies of loads are not decompressed, so such a one is no JSON.
            is_read = not (name != "files" and isinstance(sent, bytes))
            assert answer.status == (403 if is_read else 400), (name, more, answer)
            assert not is_read or f"'{right}'" in answer.body.decode(), (name, more, answer)
        assert request(server, "POST", PATH, sent, more).status == 401
        assert most(server, root) == 0 and server.log.count("loading 'own'") == loads
    # The load of OpenAI's interface takes nothing from its body.
    assert request(server, "POST", "/v1/models/own/load", body, bearer(policy.keys["control"])).status == 200
    assert most(server, root) == 0
    for name in ("both", "root"):
        answer = request(server, "POST", PATH, body, bearer(policy.keys[name]))
        assert (answer.status == 200) == succeeds and answer.status not in (401, 403), answer
        assert (most(server, root) == 3) == succeeds
        # Loads and unloads without anything need no more than `control`.
        assert request(server, "POST", PATH.replace("/load", "/unload"), "", bearer(policy.keys["control"])).status == 200
        for nothing in ("", "{}", '{"parameters": {}}'):
            assert request(server, "POST", PATH, nothing, bearer(policy.keys["control"])).status == 200
        assert most(server, root) == 0


def test_of_members_that_come_twice_none_passes_unseen(served):
    policy, server = served
    filled, empty = f'"parameters": {{"config": {json.dumps(CONFIG)}}}', '"parameters": {}'
    for body in (
        f"{{{filled}, {empty}}}",
        f"{{{empty}, {filled}}}",
        f'{{"parameters": {{"config": {json.dumps(CONFIG)}, "config": ""}}}}',
    ):
        answer = request(server, "POST", PATH, body, bearer(policy.keys["control"]))
        assert answer.status in (200, 400, 403), answer
        assert most(server, bearer(policy.keys["root"])) == 0


CALLS: dict[str, dict[str, str | bytes]] = {
    "configuration": {"config": CONFIG},
    "configuration and file": {"config": CONFIG, "file:1/model.py": b"import os"},
    "empty file": {"config": CONFIG, "file:1/a": b""},
    "file without a configuration": {"file:1/model.py": b"import os"},
    "agent": {"config": json.dumps(BASE | AGENT)},
    "environment": {"config": json.dumps(BASE | ENVIRONMENT)},
    "file as text": {"config": CONFIG, "file:1/a": "text"},
    "unknown": {"folder": "/tmp"},
}


@pytest.mark.parametrize("what", CALLS)
def test_a_load_over_grpc_that_brings_something_needs_the_right(served, what):
    policy, server = served
    root = bearer(policy.keys["root"])
    succeeds = what in ("configuration", "configuration and file", "empty file")
    sent = messages.RepositoryModelLoadRequest(model_name="own")
    for name, value in CALLS[what].items():
        kind = "bytes_param" if isinstance(value, bytes) else "string_param"
        setattr(sent.parameters[name], kind, value)
    with grpc.insecure_channel(server.grpc_url) as channel:
        stub = service.GRPCInferenceServiceStub(channel)

        def load(client, message=sent):
            try:
                stub.RepositoryModelLoad(message, metadata=[("x-api-key", policy.keys[client])])
            except grpc.RpcError as error:
                return error.code(), error.details()
            return grpc.StatusCode.OK, ""

        for name, right in (("control", "files"), ("elsewhere", "files"), ("files", "control")):
            code, text = load(name)
            assert code == grpc.StatusCode.PERMISSION_DENIED and f"'{right}'" in text, (name, code, text)
            assert most(server, root) == 0
        for name in ("both", "root"):
            code, text = load(name)
            assert (code == grpc.StatusCode.OK) == succeeds and code != grpc.StatusCode.PERMISSION_DENIED, (name, code, text)
            assert (most(server, root) == 3) == succeeds
            stub.RepositoryModelUnload(
                messages.RepositoryModelUnloadRequest(model_name="own"), metadata=[("x-api-key", policy.keys["control"])]
            )
            assert load("control", messages.RepositoryModelLoadRequest(model_name="own"))[0] == grpc.StatusCode.OK
            assert most(server, root) == 0


def test_a_load_of_sagemaker_names_a_folder_and_needs_the_right(served, tmp_path):
    policy, server = served
    write_identity(tmp_path / "elsewhere", "x", ["INT32"])
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    port = Faces(server).ports["SageMaker"]
    here = type("Address", (), {"port": port})
    names = {"control": "files", "files": "control", "elsewhere": "files", "both": "control"}
    urls = [tmp_path / "elsewhere", tmp_path / "elsewhere" / "x", tmp_path / "link", f"{tmp_path}/link/../elsewhere", "models"]
    for url in map(str, urls):
        for path in ("/models", "/models/"):
            # Its name is outside of the patterns of those who have the right on one model.
            body = json.dumps({"model_name": "m", "url": url})
            for name, right in names.items():
                answer = request(here, "POST", path, body, bearer(policy.keys[name]))
                assert answer.status == 403 and f"'{right}'" in answer.body.decode(), (name, url, answer)
            assert request(here, "POST", path, body).status == 401
    assert request(here, "GET", "/models", headers=bearer(policy.keys["root"])).json["models"] == []
    body = json.dumps({"model_name": "m", "url": str(tmp_path / "link")})
    assert request(here, "POST", "/models", body, bearer(policy.keys["root"])).status == 200
    listed = request(here, "GET", "/models", headers=bearer(policy.keys["root"])).json["models"]
    assert [model["modelName"] for model in listed] == ["m"]


def test_no_request_through_vertex_ai_loads_anything(served):
    policy, server = served
    here = type("Address", (), {"port": Faces(server).ports["Vertex AI"]})
    for body, _ in BODIES.values():
        redirect = {"X-Vertex-Ai-Triton-Redirect": PATH[1:]}
        assert request(here, "POST", PREDICT, body, bearer(policy.keys["root"]) | redirect).status == 403
    assert most(server, bearer(policy.keys["root"])) == 0

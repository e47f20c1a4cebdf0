"""Rights on models of one namespace: with `--model-namespacing=true`, each repository is one, and names may be in several."""

import json
from http.client import HTTPConnection

import grpc
import pytest
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc import service_pb2_grpc as service

import nereid_server
from access_faces import BODY, CLOUDS, EXPLICIT, LIMIT_S, REFUSED, Faces, faces_environment
from access_policies import RIGHTS, Policy, bearer, nereid, rows
from http_requests import infer, request, tensor
from model_files import write_identity

# The team's own repository has `own` with INT32, the other one `own` with INT64 and `theirs`.
FLOATS = json.dumps({"inputs": [tensor("INPUT0", "INT64", [1], [7])]})


@pytest.fixture(scope="module")
def repositories(tmp_path_factory):
    team, other = (tmp_path_factory.mktemp(name) for name in ("team", "other"))
    write_identity(team, "own", ["INT32"], where="team")
    write_identity(other, "own", ["INT64"], where="other")
    write_identity(other, "theirs", ["INT32"], where="other")
    return team, other


@pytest.fixture(scope="module")
def policy(tmp_path_factory, repositories):
    team, other = repositories
    only = {right: [([right], ["*"], f"namespaces = ['{team}']")] for right in RIGHTS}
    clients = {
        "team": [(RIGHTS, ["*"], f"namespaces = ['{team}']")],
        "other": [(RIGHTS, ["*"], f"namespaces = ['*{other.name}', '/nowhere']")],
        "all": [(RIGHTS, ["*"])],
    }
    return Policy(tmp_path_factory.mktemp("access"), only | clients)


@pytest.fixture
def server(repositories, policy):
    team, other = repositories
    # The server starts only if it can find this model for a client with all rights.
    clouds = (*CLOUDS, "--vertex-ai-default-model=theirs")
    flags = (f"--model-repository={other}", "--model-namespacing=true", policy.option, *EXPLICIT, *clouds)
    with nereid_server.running(team, *flags, env=faces_environment()) as server:
        yield server


def names_a_model(row):
    return "{model}" in row.request or "the model" in row.needs


def test_a_model_of_another_namespace_is_as_unknown_as_one_that_does_not_exist(server, policy):
    """Table by request and right. `theirs` exists in the other namespace, `nosuch` nowhere."""
    faces = Faces(server)
    asked = 0
    for row in filter(names_a_model, rows()):
        for name in (*RIGHTS, "team"):
            headers = bearer(policy.keys[name])
            status, text = faces.ask(row, headers, "theirs")
            expected, unknown = faces.ask(row, headers, "nosuch")
            assert (status, text.replace("theirs", "nosuch")) == (expected, unknown.replace("theirs", "nosuch")), (row, name)
            # SageMaker's own route is for its default model, `own`.
            assert "invocations" in row.request or "INT32" not in text, (row, name, text)
            assert "other" not in text, (row, name, text)
            asked += 1
    assert asked > 200
    assert infer(server, "theirs", BODY, bearer(policy.keys["all"])).status == 200
    faces.close()


def test_names_of_several_namespaces_are_decided_among_those_that_the_client_may_see(server, policy):
    for name, body, status in [
        ("team", BODY, 200),
        ("team", FLOATS, 400),
        ("other", FLOATS, 200),
        ("other", BODY, 400),
        ("infer", BODY, 200),
        ("read", BODY, 403),
        ("all", BODY, 400),
    ]:
        answer = infer(server, "own", body, bearer(policy.keys[name]))
        assert answer.status == status, (name, answer.body)
        assert name == "all" or b"2 models" not in answer.body
    faces = Faces(server)
    for row in filter(names_a_model, rows()):
        # Its paths have no models until SageMaker has loaded some.
        if row.right == "infer" and row.face not in ("OpenAI", "SageMaker"):
            for name in ("team", "infer"):
                status, text = faces.ask(row, bearer(policy.keys[name]))
                assert status not in REFUSED and "several" not in text and "2 models" not in text, (row, name, text)
    read = bearer(policy.keys["read"])
    for row in rows():
        if "/config" in row.request or row.request.endswith("ModelConfig"):
            status, text = faces.ask(row, read)
            assert status in (200, grpc.StatusCode.OK), (row, text)
            assert "team" in text and "other" not in text, (row, text)
    faces.close()


def test_lists_show_the_namespace_alone(server, policy):
    for name in ("team", "other", "all"):
        infer(server, "own", FLOATS if name == "other" else BODY, bearer(policy.keys[name]))
    scraped = HTTPConnection("127.0.0.1", server.metrics_port, timeout=LIMIT_S)

    def lists(headers):
        for method, path in [
            ("POST", "/v2/repository/index"),
            ("GET", "/v2/models/stats"),
            ("GET", "/v2/openapi.json"),
            ("GET", "/console/api/models"),
            ("GET", "/console/api/history"),
            ("GET", "/console/api/states"),
            ("GET", "/v1/models"),
        ]:
            yield path, request(server, method, path, headers=headers).body.decode()
        scraped.request("GET", "/metrics", headers=headers)
        yield "metrics", scraped.getresponse().read().decode()
        metadata = [(name.lower(), value) for name, value in headers.items()]
        with grpc.insecure_channel(server.grpc_url) as channel:
            stub = service.GRPCInferenceServiceStub(channel)
            yield "index", str(stub.RepositoryIndex(messages.RepositoryIndexRequest(), metadata=metadata))
            yield "statistics", str(stub.ModelStatistics(messages.ModelStatisticsRequest(), metadata=metadata))

    for name, hidden in [("team", ("theirs", "/other")), ("read", ("theirs", "/other")), ("other", ("/team",))]:
        for path, text in lists(bearer(policy.keys[name])):
            assert not any(word in text for word in hidden), (name, path, text)
    index = json.loads(request(server, "POST", "/v2/repository/index", headers=bearer(policy.keys["team"])).body)
    assert [entry["name"] for entry in index] == ["own"]
    index = json.loads(request(server, "POST", "/v2/repository/index", headers=bearer(policy.keys["all"])).body)
    assert [entry["name"] for entry in index] == ["own", "own", "theirs"]
    scraped.close()


def test_loads_and_unloads_concern_the_namespace_alone(server, policy, repositories):
    team, other, everything = (bearer(policy.keys[name]) for name in ("team", "other", "all"))

    def change(action, model, headers, body="{}"):
        return request(server, "POST", f"/v2/repository/models/{model}/{action}", body, headers=headers)

    assert change("unload", "own", team).status == 200
    assert infer(server, "own", BODY, team).status == 404
    assert infer(server, "own", FLOATS, other).status == 200
    # For others, the name is no longer ambiguous.
    assert infer(server, "own", FLOATS, everything).status == 200
    assert change("unload", "own", other).status == 200
    assert change("load", "own", team).status == 200
    assert infer(server, "own", BODY, team).status == 200
    assert infer(server, "own", FLOATS, other).status == 404
    unknown = change("load", "nosuch", team)
    for body in ("{}", json.dumps({"parameters": {"config": "{}"}})):
        hidden = change("load", "theirs", team, body)
        assert (hidden.status, hidden.body.replace(b"theirs", b"nosuch")) == (unknown.status, unknown.body)
    assert change("unload", "theirs", team).status == 200
    assert infer(server, "theirs", BODY, everything).status == 200
    # Files of a request are a model of no namespace.
    files = json.dumps({"parameters": {"config": '{"backend": "identity"}', "file:1/x": "aGk="}})
    assert change("load", "theirs", team, files).status == unknown.status
    assert repositories[0].name in server.log


def test_the_command_explains_namespaces(policy, repositories):
    team, other = repositories
    for arguments, expected in [
        ((), True),
        ((team,), True),
        ((other,), False),
    ]:
        text = nereid("access", "check", policy.file, "infer", "own", *arguments)
        line = next(line for line in text.splitlines() if "infer" in line)
        assert ("yes" in line) == expected, text
        assert not expected or str(team) in text
    assert f"on * in {team}" in nereid("access", "check", policy.file)

"""The files for KServe: against the types of KServe's package, and their containers as processes."""

import copy

import pytest

import charts
from http_requests import request
from kserve_containers import RUNTIMES, Container, objects
from model_files import scale_model, write_identity

EXAMPLES = objects("examples.yaml")


MISTAKES = [
    (lambda spec: spec.update(container=[]), "ClusterServingRuntime.spec: unknown field container"),
    (lambda spec: spec["containers"][0].update(arg=[]), "ClusterServingRuntime.spec.containers.0: unknown field arg"),
    (lambda spec: spec.pop("containers"), "ClusterServingRuntime.spec: Invalid value for `containers`, must not be `None`"),
    (lambda spec: spec.update(protocolVersions="v2"), "ClusterServingRuntime.spec.protocolVersions: 'v2' is not a list"),
]


def test_objects_are_valid_and_mistakes_would_be_found():
    broken = [copy.deepcopy(RUNTIMES["nereid"]) for _ in MISTAKES]
    for item, (change, _) in zip(broken, MISTAKES):
        change(item["spec"])
    good = [*RUNTIMES.values(), *EXAMPLES]
    expected: list[list[str]] = [[] for _ in good] + [[problem] for _, problem in MISTAKES]
    assert charts.problems_of_kserve([*good, *broken]) == expected


def test_examples_name_runtimes_and_services_that_exist():
    services = {item["metadata"]["name"]: item for item in EXAMPLES if item["kind"] == "InferenceService"}
    for item in services.values():
        model = item["spec"]["predictor"]["model"]
        spec = RUNTIMES[model["runtime"]]["spec"]
        assert model["modelFormat"]["name"] in {known["name"] for known in spec["supportedModelFormats"]}
        assert model["protocolVersion"] in spec["protocolVersions"]
    (graph,) = [item for item in EXAMPLES if item["kind"] == "InferenceGraph"]
    steps = graph["spec"]["nodes"]["root"]["steps"]
    assert sum(step["weight"] for step in steps) == 100
    for step in steps:
        host, path = step["serviceUrl"].removeprefix("http://").split("/", 1)
        name = host.removesuffix("-predictor.default.svc.cluster.local")
        assert name in services and path == f"v2/models/{name}/infer"


def test_a_repository_is_served_under_its_names(repository, tmp_path):
    write_identity(repository, "one", ["INT32"])
    write_identity(repository, "two", ["INT32"])
    with Container("nereid", repository, tmp_path / "added", "vision") as server:
        assert [server.status(f"/v2/models/{name}/ready") for name in ("one", "two", "vision")] == [200, 200, 400]


@pytest.mark.parametrize("layout", ["file", "versions"])
def test_one_model_is_served_under_the_name_of_its_service(tmp_path, layout):
    models = tmp_path / "models"
    folder = models if layout == "file" else models / "1"
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(scale_model("other").serialized())
    with Container("nereid-model", models, tmp_path / "added", "digits", "--id=vision") as server:
        assert server.status("/v2/models/digits/ready") == 200
        assert request(server, "GET", "/v2").json["name"] == "vision"

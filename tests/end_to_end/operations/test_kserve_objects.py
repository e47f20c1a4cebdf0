"""The files for KServe: against the types of KServe's package, and their containers as processes."""

import copy
import os
import subprocess
from pathlib import Path

import pytest
import yaml

import charts
import nereid_server
from http_requests import LIMIT_S, request
from model_files import scale_model, write_identity
from places import ROOT
from ports import free_ports
from waiting import eventually

FOLDER = ROOT / "deploy" / "kserve"


def objects(name):
    """The objects of a file."""
    return [*yaml.safe_load_all((FOLDER / name).read_text())]


RUNTIMES = {runtime["metadata"]["name"]: runtime for runtime in objects("runtimes.yaml")}
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


class Container:
    """A process in place of a container, with these models below /mnt/models."""

    def __init__(self, runtime, models, folder, name, *more):
        (container,) = RUNTIMES[runtime]["spec"]["containers"]
        self.port, grpc, metrics = free_ports(3)
        self.probes = [container[kind]["httpGet"] for kind in ("startupProbe", "readinessProbe")]
        assert all(probe["port"] == 8080 for probe in self.probes)

        def here(text):
            for place, path in [
                ("/mnt/models", models),
                ("/tmp/models", folder),
                ("{{.Name}}", name),
                ("8080", self.port),
                ("9000", grpc),
            ]:
                text = text.replace(place, str(path))
            return text

        command = [here(part) for part in [*container.get("command", []), *container["args"]]]
        own = [f"--metrics-port={metrics}", "--backend-config=onnxruntime,engine=tract"]
        path = f"{Path(nereid_server.binary()).parent}:{os.environ['PATH']}"
        # Arguments of an InferenceService come after the runtime's.
        self.process = subprocess.Popen([*command, *own, *more], env=os.environ | {"PATH": path})

    def __enter__(self):
        assert eventually(lambda: all(self.status(probe["path"]) == 200 for probe in self.probes), LIMIT_S)
        return self

    def status(self, path):
        try:
            return request(self, "GET", path).status
        except OSError:
            return None

    def __exit__(self, *_):
        self.process.terminate()
        assert self.process.wait(LIMIT_S) == 0


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

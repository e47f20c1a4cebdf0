"""The Helm chart: what Helm renders for many values, against the schemas of Kubernetes and of operators, and with a server."""

import shutil

import pytest

import charts
import nereid_server
from http_requests import request
from model_files import write_identity
from places import ROOT
from scrapes import Scrape

CHART = ROOT / "deploy" / "helm" / "nereid"
GOOD: dict[str, dict] = {
    "defaults": {},
    "bucket": {"models": {"repository": "s3://bucket/models"}, "envFrom": [{"secretRef": {"name": "aws"}}]},
    "explicit": {"models": {"control": "explicit", "load": ["a", "b"]}},
    "on-demand": {"models": {"control": "on-demand"}},
    "poll": {"models": {"control": "poll", "pollSeconds": 7, "volume": {"hostPath": {"path": "/srv/models"}}}},
    "cache": {"cache": {"enabled": True, "size": "7Gi"}},
    "cache on a volume": {"cache": {"enabled": True, "storageClass": "fast"}},
    "gpus": {"gpus": {"count": 2, "runtimeClass": "nvidia"}, "resources": {"limits": {"memory": "9Gi"}}},
    "hpa": {"autoscaling": {"kind": "hpa", "min": 3, "max": 9, "pendingRequests": 5}},
    "keda": {"autoscaling": {"kind": "keda"}},
    "monitor": {"serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}}},
    "bare": {
        "disruptionBudget": {"enabled": False},
        "serviceAccount": {"create": False},
        "stop": {"pauseSeconds": 0, "timeoutSeconds": 3},
    },
    "pods": {
        "args": ["--strict-readiness=false"],
        "env": [{"name": "A", "value": "b"}],
        "podLabels": {"team": "vision"},
        "podAnnotations": {"prometheus.io/port": "1"},
        "nodeSelector": {"pool": "cpu"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}],
        "imagePullSecrets": [{"name": "registry"}],
        "serviceAccount": {"name": "own", "annotations": {"role": "reader"}},
        "service": {"annotations": {"x": "y"}},
        "image": {"tag": "2.0"},
    },
}
BAD: dict[str, tuple[dict, str]] = {
    "unknown value": ({"replica": 3}, "replica"),
    "unknown kind": ({"autoscaling": {"kind": "vpa"}}, "kind"),
    "load without control": ({"models": {"load": ["a"]}}, "models.load needs models.control"),
    "foreign folder": ({"models": {"repository": "/srv"}}, "repository"),
    "not an option": ({"args": ["nereid"]}, "args"),
}


@pytest.fixture(scope="module")
def rendered():
    cases: dict[str, dict] = {name: {"values": values} for name, values in GOOD.items()}
    cases |= {name: {"values": values} for name, (values, _) in BAD.items()}
    return charts.render(CHART, cases | {"long": {"values": {}, "name": "a" * 53}})


def by_kind(case):
    """The objects by their kinds, and the pods' service by its own."""
    return {item["kind"] + ("s" if item["metadata"]["name"].endswith("-pods") else ""): item for item in case["objects"]}


def container(case):
    """The container of the deployment."""
    (found,) = by_kind(case)["Deployment"]["spec"]["template"]["spec"]["containers"]
    return found


@pytest.mark.parametrize("name", [*GOOD, "long"])
def test_objects_are_valid(rendered, name):
    case = rendered[name]
    assert (case["lint"], case["problems"]) == ([], [])
    expected = {"keda": ["ScaledObject"], "monitor": ["ServiceMonitor"]}.get(name, [])
    assert case["unknown"] == expected
    assert all(len(item["metadata"]["name"]) <= 63 for item in case["objects"])


@pytest.mark.parametrize("name", BAD)
def test_wrong_values_are_refused(rendered, name):
    assert BAD[name][1] in rendered[name]["error"]


def test_objects_of_operators_are_valid(rendered):
    customs = [by_kind(rendered["keda"])["ScaledObject"], by_kind(rendered["monitor"])["ServiceMonitor"]]
    assert charts.problems_of_operators(customs) == []
    broken = [customs[0] | {"spec": customs[0]["spec"] | {"minReplicaCount": "2"}}]
    assert charts.problems_of_operators(broken) == ["ScaledObject: data/spec/minReplicaCount must be integer"]


def test_unknown_fields_are_found(rendered):
    service = by_kind(rendered["defaults"])["Service"]
    broken = service | {"spec": service["spec"] | {"port": 1}}
    assert len(charts.problems([broken])["problems"]) == len(charts.RELEASES)


@pytest.mark.parametrize("name", GOOD)
def test_the_server_starts_with_the_options_and_answers_the_probes(rendered, name, repository):
    write_identity(repository, "a", ["INT32"])
    shutil.copytree(repository / "a", repository / "b")
    (repository / "b" / "config.pbtxt").write_text((repository / "a" / "config.pbtxt").read_text().replace('"a"', '"b"'))
    found = container(rendered[name])
    program, model_repository, *flags = found["args"]
    source = GOOD[name].get("models", {}).get("repository", "/models")
    assert (program, model_repository) == ("nereid", f"--model-repository={source}")
    flags = [flag for flag in flags if "cache-directory" not in flag]
    with nereid_server.running(repository, *flags) as server:
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            get = found[probe]["httpGet"]
            assert get["port"] == "http" and request(server, "GET", get["path"]).status == 200
    stop = GOOD[name].get("stop", {"pauseSeconds": 5, "timeoutSeconds": 45})
    pod = by_kind(rendered[name])["Deployment"]["spec"]["template"]["spec"]
    assert sum(stop.values()) < pod["terminationGracePeriodSeconds"]
    assert ("lifecycle" in found) == (stop["pauseSeconds"] > 0)


def test_folders_of_the_options_are_mounted(rendered):
    for name in GOOD:
        found = container(rendered[name])
        values = [flag.partition("=")[2] for flag in found["args"]]
        mounted = {mount["name"]: mount["mountPath"] for mount in found["volumeMounts"]}
        assert {*mounted.values()} == {"/tmp", *(value for value in values if value.startswith("/"))}
        pod = by_kind(rendered[name])["Deployment"]["spec"]["template"]["spec"]
        assert mounted.keys() == {volume["name"] for volume in pod["volumes"]}


def test_services_monitors_and_scalers_find_the_pods(rendered):
    for name in GOOD:
        objects = by_kind(rendered[name])
        deployment = objects["Deployment"]
        labels = deployment["spec"]["template"]["metadata"]["labels"].items()
        selectors = [objects["Service"]["spec"]["selector"], objects["Services"]["spec"]["selector"]]
        selectors.append(deployment["spec"]["selector"]["matchLabels"])
        if "PodDisruptionBudget" in objects:
            selectors.append(objects["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"])
        assert all(selector.items() <= labels for selector in selectors)
        for kind in ("HorizontalPodAutoscaler", "ScaledObject"):
            if kind in objects:
                assert objects[kind]["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
                assert "replicas" not in deployment["spec"]
    monitor = by_kind(rendered["monitor"])["ServiceMonitor"]["spec"]["selector"]["matchLabels"].items()
    services = by_kind(rendered["monitor"])
    # One of the two services, so that no pod is scraped twice.
    assert monitor <= services["Services"]["metadata"]["labels"].items()
    assert not monitor <= services["Service"]["metadata"]["labels"].items()


def test_gpus_are_added_to_the_resources(rendered):
    assert container(rendered["gpus"])["resources"]["limits"] == {"memory": "9Gi", "nvidia.com/gpu": 2}
    assert "nvidia.com/gpu" not in container(rendered["defaults"])["resources"]["limits"]


def test_the_metric_of_the_scalers_is_the_servers(rendered, serve, repository):
    write_identity(repository, "a", ["INT32"])
    scrape = Scrape(serve())
    (metric,) = by_kind(rendered["hpa"])["HorizontalPodAutoscaler"]["spec"]["metrics"]
    name = metric["pods"]["metric"]["name"]
    assert scrape.named(name)
    (trigger,) = by_kind(rendered["keda"])["ScaledObject"]["spec"]["triggers"]
    assert f"sum({name}{{" in trigger["metadata"]["query"]

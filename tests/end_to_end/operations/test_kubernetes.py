"""The files for Kubernetes: their flags and probes with a server, and Envoy's configuration as the guide changes it."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

import envoy
import nereid_server
from http_requests import request
from model_files import write_identity

ROOT = Path(__file__).resolve().parents[3]
MANIFEST = ROOT / "deploy" / "kubernetes" / "nereid.yaml"
GUIDE = ROOT / "docs" / "scaling-out.md"


@pytest.fixture(scope="module")
def objects():
    """The objects of the manifest, by their kinds."""
    return {found["kind"]: found for found in yaml.safe_load_all(MANIFEST.read_text())}


def test_the_container_starts_and_its_probes_are_answered(objects, repository):
    write_identity(repository, "same", ["INT32"])
    pod = objects["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    program, *flags = container["args"]
    assert program == "nereid"
    mounted = [mount["mountPath"] for mount in container["volumeMounts"]]
    assert f"--model-repository={mounted[0]}" in flags
    flags = [flag for flag in flags if not flag.startswith("--model-repository=")]
    with nereid_server.running(repository, *flags) as server:
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            get = container[probe]["httpGet"]
            assert get["port"] == "http" and request(server, "GET", get["path"]).status == 200
    (exit_timeout,) = (int(flag.split("=")[1]) for flag in flags if flag.startswith("--exit-timeout-secs="))
    assert exit_timeout + container["lifecycle"]["preStop"]["sleep"]["seconds"] < pod["terminationGracePeriodSeconds"]


def test_the_service_finds_the_pods_and_their_ports(objects):
    service, deployment = objects["Service"], objects["Deployment"]["spec"]
    labels = deployment["template"]["metadata"]["labels"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == labels == deployment["selector"]["matchLabels"]
    (container,) = deployment["template"]["spec"]["containers"]
    declared = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert declared == {port["name"]: port["port"] for port in service["spec"]["ports"]}
    assert declared == {"http": 8000, "grpc": 8001, "metrics": 8002}


def test_envoy_takes_its_configuration_with_the_service_in_place_of_files(objects, tmp_path):
    (block,) = [text for text in re.findall(r"```yaml\n(.*?)```", GUIDE.read_text(), re.S) if "STRICT_DNS" in text]
    changed = yaml.safe_load(block)
    config = yaml.safe_load(envoy.CONFIG.read_text())
    for cluster in config["static_resources"]["clusters"]:
        protocol = cluster.pop("eds_cluster_config")["service_name"]
        cluster |= yaml.safe_load(block.replace("8000", {"http": "8000", "grpc": "8001"}[protocol]))
    (group,) = changed["load_assignment"]["endpoints"]
    (endpoint,) = group["lb_endpoints"]
    assert endpoint["endpoint"]["address"]["socket_address"]["address"] == objects["Service"]["metadata"]["name"]
    path = tmp_path / "envoy.yaml"
    path.write_text(yaml.safe_dump(config))
    outcome = subprocess.run([envoy.PROGRAM, "--mode", "validate", "-c", path], capture_output=True, text=True)
    assert outcome.returncode == 0 and "OK" in outcome.stdout + outcome.stderr, outcome.stderr

"""The dashboard for Grafana and the alerts for Prometheus in `deploy`: against a real Prometheus that collects from a real server."""

import json
import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import yaml

import nereid_server
import prometheus
from http_requests import infer, request, tensor
from model_files import config, write_identity, write_model
from places import ROOT
from waiting import eventually

LIMIT_S = 90
DASHBOARD = ROOT / "deploy" / "grafana" / "nereid.json"
RULES = ROOT / "deploy" / "prometheus" / "alerts.yml"
FLAGS = [
    f"--backend-config=python,python={sys.executable}",
    "--exit-on-error=false",
    "--model-control-mode=explicit",
    "--load-model=*",
    "--metrics-config=summary_latencies=true",
    "--metrics-config=histogram_latencies=true",
    "--cache-config=local,size=1048576",
]
# Only machines with a GPU, repositories in clouds and policies have these.
ELSEWHERE = """
nv_gpu_utilization{gpu_uuid="GPU-1"} 0.5
nv_gpu_memory_used_bytes{gpu_uuid="GPU-1"} 5
nv_gpu_memory_total_bytes{gpu_uuid="GPU-1"} 9
nereid_repository_reachable{repository="s3://bucket"} 1
nereid_access_policy_valid 1
nereid_principal_requests_total{principal="a"} 5
nereid_principal_requests_over_limit_total{principal="a"} 1
nereid_principal_compute_seconds_total{principal="a"} 0.5
"""
ONE = {"inputs": [tensor("INPUT0", "FP32", [1], [1.0])]}
CRASHING = """
import os
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        if pb_utils.get_input_tensor_by_name(requests[0], "INPUT0").as_numpy()[0] < 0:
            os._exit(1)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy())])
                for request in requests]
"""


def panels():
    """The panels with queries, by their titles."""
    dashboard = json.loads(DASHBOARD.read_text())
    return {panel["title"]: panel for panel in dashboard["panels"] if panel["type"] != "row"}


def expressions(panel):
    """The queries of a panel, as Grafana sends them."""
    values = {"$instance": ".*", "$model": ".*", "$__rate_interval": "20s"}
    for target in panel["targets"]:
        expression = target["expr"]
        for name, value in values.items():
            expression = expression.replace(name, value)
        assert "$" not in expression, expression
        yield expression


@contextmanager
def metrics_of(text):
    """A server of these metrics."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text.encode())

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def collected(tmp_path_factory):
    """Prometheus, with what a server under load reports, whose models fail and die."""
    folder = tmp_path_factory.mktemp("monitoring")
    models = folder / "models"
    tensors = ([("INPUT0", "FP32", [-1])], [("OUTPUT0", "FP32", [-1])])
    write_model(models, "cached", config("cached", "identity", *tensors, 0, "response_cache { enable: true }"))
    write_identity(models, "plain", ["FP32"])
    write_model(models, "dying", config("dying", "python", *tensors))
    (models / "dying" / "1" / "model.py").write_text(CRASHING)
    (models / "broken" / "1").mkdir(parents=True)
    (models / "broken" / "1" / "model.onnx").write_bytes(b"no model")
    with (
        nereid_server.running(models, *FLAGS, ready=False) as server,
        metrics_of(ELSEWHERE) as elsewhere,
        prometheus.running(folder, [f"127.0.0.1:{server.metrics_port}", elsewhere], [RULES]) as collector,
    ):
        server.wait_until_loaded()
        ended = threading.Event()

        def load():
            number = 0
            while not ended.wait(0.01):
                number += 1
                for model in ("cached", "plain"):
                    assert infer(server, model, ONE).status == 200
                if number % 20 == 0:
                    infer(server, "plain", {"inputs": [tensor("INPUT0", "INT32", [1], [1])]})
                    negative = {"inputs": [tensor("INPUT0", "FP32", [1], [-1.0])]}
                    infer(server, "dying", negative)
                    request(server, "POST", "/v2/repository/models/broken/load", "{}")

        with ThreadPoolExecutor() as threads:
            loading = threads.submit(load)
            try:
                yield collector
            finally:
                ended.set()
                loading.result()


def test_rules_are_valid_and_each_alert_fires():
    prometheus.promtool("check", "rules", "--lint-fatal", RULES)
    prometheus.promtool("test", "rules", RULES.parent / "alerts.test.yml")
    alerts = {rule["alert"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]}
    tests = yaml.safe_load((RULES.parent / "alerts.test.yml").read_text())["tests"]
    fired = {alert for test in tests for alert in re.findall(r'alertname="(\w+)"', json.dumps(test).replace('\\"', '"'))}
    assert alerts <= fired, alerts - fired


def test_the_example_configuration_is_valid():
    prometheus.promtool("check", "config", RULES.parent / "prometheus.yml")


@pytest.mark.parametrize("title", panels())
def test_each_query_of_the_dashboard_returns_data(collected, title):
    for expression in expressions(panels()[title]):
        # Not a number is what a share of nothing is.
        assert eventually(lambda: any(value == value for _, value in collected.query(expression)), LIMIT_S), expression


def test_variables_of_the_dashboard_have_values(collected):
    variables = json.loads(DASHBOARD.read_text())["templating"]["list"]
    queries = [variable["definition"] for variable in variables if variable["type"] == "query"]
    assert len(queries) == 2
    for query in queries:
        parts = re.fullmatch(r"label_values\((.*), (\w+)\)", query)
        assert parts, query
        selector, label = parts.groups()
        found = {labels.get(label) for labels, _ in collected.query(selector.replace("$instance", ".*"))}
        assert found and None not in found, query


def test_each_alert_knows_the_metrics_of_the_server(collected):
    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    for rule in rules:
        for name in set(re.findall(r"\b(?:nv|nereid)_[a-z_]+", rule["expr"])):
            assert eventually(lambda: collected.query(name), LIMIT_S), (rule["alert"], name)


def test_a_failing_load_fires_its_alert(collected):
    def is_firing():
        firing = collected.query('ALERTS{alertstate="firing"}')
        return {"NereidModelLoadFails"} <= {labels["alertname"] for labels, _ in firing}

    assert eventually(is_firing, LIMIT_S), collected.query("ALERTS")

"""Metrics: what a collector reads after real traffic, and how the metrics port behaves."""

import os
import resource
import socket
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

import nereid_server
from http_requests import LIMIT_S, assert_refused, infer, request, tensor
from model_files import config, write_identity, write_model
from scrapes import Scrape, get
from waiting import eventually

EXPLICIT = ("--model-control-mode=explicit", "--load-model=*")
COUNTERS = [
    "nv_inference_request_success",
    "nv_inference_request_failure",
    "nv_inference_count",
    "nv_inference_exec_count",
    "nv_inference_request_duration_us",
    "nv_inference_queue_duration_us",
    "nv_inference_compute_input_duration_us",
    "nv_inference_compute_infer_duration_us",
    "nv_inference_compute_output_duration_us",
]
CACHE_COUNTERS = [
    "nv_cache_num_hits_per_model",
    "nv_cache_hit_duration_per_model",
    "nv_cache_num_misses_per_model",
    "nv_cache_miss_duration_per_model",
]
# Load times are in newer releases alone.
GAUGES = [
    "nv_inference_pending_request_count",
    "nv_model_load_duration_secs",
    "nv_pinned_memory_pool_total_bytes",
    "nv_pinned_memory_pool_used_bytes",
    "nv_cpu_utilization",
    "nv_cpu_memory_total_bytes",
    "nv_cpu_memory_used_bytes",
]


def echo(repository, name, *extra, delay_ms=0, gate=None):
    """A model that returns its input, after a delay or at a gate."""
    key, value = ("gate", gate.path) if gate else ("execute_delay_ms", delay_ms)
    delay = f'parameters {{ key: "{key}" value: {{ string_value: "{value}" }} }}'
    tensors = ([("INPUT0", "INT32", [1])], [("OUTPUT0", "INT32", [1])])
    write_model(repository, name, config(name, "identity", *tensors, 8, "\n".join([delay, *extra])))


def ask(server, model, batch=1, **parameters):
    """One request over HTTP."""
    body = {"inputs": [tensor("INPUT0", "INT32", [batch, 1], [[7]] * batch)], "parameters": parameters}
    return infer(server, model, body).status


def test_requests_of_all_protocols_are_counted_before_they_are_answered(repository, serve):
    echo(repository, "echo")
    server = serve()
    assert [ask(server, "echo"), ask(server, "echo", batch=3)] == [200, 200]
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        data = tritonclient.grpc.InferInput("INPUT0", [2, 1], "INT32")
        data.set_data_from_numpy(np.zeros((2, 1), np.int32))
        client.infer("echo", [data])
    scrape = Scrape(server)
    labels = {"model": "echo", "version": "1"}
    counts = ("request_success", "count", "exec_count")
    assert [scrape.value(f"nv_inference_{name}", **labels) for name in counts] == [3, 6, 3]
    assert scrape.failures("echo") == {}
    assert scrape.value("nv_inference_pending_request_count", **labels) == 0
    whole = scrape.value("nv_inference_request_duration_us", **labels)
    parts = ("queue", "compute_input", "compute_infer", "compute_output")
    assert 0 < sum(scrape.value(f"nv_inference_{part}_duration_us", **labels) for part in parts) <= whole


@pytest.mark.parametrize(
    ("extra", "of_cache"),
    [("", []), ("response_cache { enable: false }", []), ("response_cache { enable: true }", CACHE_COUNTERS)],
)
def test_families_are_those_of_the_reference_in_its_order(repository, serve, extra, of_cache):
    echo(repository, "echo", extra)
    server = serve()
    kinds = Scrape(server).kinds
    assert [name for name in kinds if not name.startswith("nereid_")] == COUNTERS + of_cache + GAUGES
    assert set(kinds.values()) == {"counter", "gauge"}
    assert all(kinds[name] == "counter" for name in COUNTERS + of_cache)


def test_metrics_of_the_machine_are_exposed(repository, serve):
    server = serve("--metrics-interval-ms=0")
    scrape = Scrape(server)
    total, used = (scrape.value(f"nv_cpu_memory_{what}_bytes") for what in ("total", "used"))
    assert 0 < used < total == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 <= scrape.value("nv_cpu_utilization") <= 1


@pytest.mark.parametrize("flags", [(), ("--metrics-config=load_durations=true",)])
def test_load_times_are_reported(repository, serve, flags):
    echo(repository, "echo")
    scrape = Scrape(serve(*flags))
    assert scrape.kinds["nv_model_load_duration_secs"] == "gauge"
    assert 0 < scrape.value("nv_model_load_duration_secs", model="echo", version="1") < LIMIT_S


def test_disabled_metrics_are_left_out(repository, serve):
    echo(repository, "echo")
    off = ("--metrics-config=counter_latencies=false", "--metrics-config=load_durations=false")
    server = serve("--allow-cpu-metrics=false", *off)
    assert ask(server, "echo") == 200
    scrape = Scrape(server)
    assert not [name for name in scrape.kinds if "duration" in name or "cpu" in name]
    assert scrape.value("nv_inference_request_success", model="echo", version="1") == 1


def test_failures_are_counted_by_reason(repository, serve, gate):
    timeout = "default_timeout_microseconds: 60000000 allow_timeout_override: true timeout_action: REJECT"
    policy = f"max_queue_size: 2 {timeout}"
    echo(repository, "busy", f"dynamic_batching {{ default_queue_policy {{ {policy} }} }}", gate=gate)
    echo(repository, "idle", gate=gate)
    server = serve()

    def pending(model):
        return Scrape(server).pending(model)

    with ThreadPoolExecutor(8) as pool:
        # As large as a batch may be, so that one is executed and one waits.
        answered = [pool.submit(ask, server, "busy", batch=8) for _ in range(2)]
        held = gate.entered()
        assert eventually(lambda: pending("busy") == 1)
        assert ask(server, "busy", timeout=1000) == 503
        answered.append(pool.submit(ask, server, "busy"))
        assert eventually(lambda: pending("busy") == 2)
        assert ask(server, "busy") == 503
        held.release()
        for _ in range(2):
            gate.entered().release()
        assert [each.result() for each in answered] == [200, 200, 200]
    scrape = Scrape(server)
    assert scrape.failures("busy") == {"REJECTED": 2}
    assert scrape.value("nv_inference_request_success", model="busy", version="1") == 3

    # What does not fit the model never becomes a request of it.
    assert_refused(infer(server, "busy", {"inputs": [tensor("INPUT0", "FP32", [1, 1], [1.0])]}), 400)
    assert Scrape(server).failures("busy") == {"REJECTED": 2}

    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        data = tritonclient.grpc.InferInput("INPUT0", [1, 1], "INT32")
        data.set_data_from_numpy(np.zeros((1, 1), np.int32))
        calls = [client.async_infer("idle", [data], callback=lambda result, error: None) for _ in range(2)]
        held = gate.entered()
        assert eventually(lambda: pending("idle") == 1)
        # The one that is executed is executed to its end.
        for call in calls:
            call.cancel()
        assert eventually(lambda: Scrape(server).failures("idle") == {"CANCELED": 1})
        held.release()
        assert eventually(lambda: Scrape(server).value("nv_inference_count", model="idle", version="1") == 1)
    assert Scrape(server).failures("idle") == {"CANCELED": 1}


FIRST = "nv_inference_first_response_histogram_ms"
PHASES = ("request", "queue", "compute_input", "compute_infer", "compute_output")


def test_latency_histograms_and_summaries_are_kept_if_enabled(repository, serve):
    echo(repository, "slow", delay_ms=30)
    control = f'metric_control {{ metric_identifier {{ family: "{FIRST}" }} histogram_options {{ buckets: [ 1, 2e6 ] }} }}'
    echo(repository, "buckets", f"model_metrics {{ {control} }}")
    quantiles = "--metrics-config=summary_quantiles=0.5:0.05,0.99:0.001"
    latencies = [f"--metrics-config={kind}_latencies=true" for kind in ("histogram", "summary")]
    server = serve(*latencies, quantiles)
    labels = {"model": "slow", "version": "1"}
    assert [ask(server, "slow") for _ in range(3)] == [200] * 3
    scrape = Scrape(server)
    assert scrape.kinds[FIRST] == "histogram"
    assert scrape.value(f"{FIRST}_count", **labels) == 3
    assert 90 <= scrape.value(f"{FIRST}_sum", **labels) < LIMIT_S * 1000
    buckets = [scrape.value(f"{FIRST}_bucket", **labels, le=le) for le in ("100", "500", "2000", "5000", "+Inf")]
    assert buckets == sorted(buckets) and buckets[-1] == 3
    assert scrape.value(f"{FIRST}_bucket", model="buckets", version="1", le="2000000") == 0
    for phase in PHASES:
        name = f"nv_inference_{phase}_summary_us"
        assert scrape.kinds[name] == "summary"
        assert scrape.value(f"{name}_count", **labels) == 3
        assert scrape.value(f"{name}_sum", **labels) == scrape.value(f"nv_inference_{phase}_duration_us", **labels)
        assert scrape.value(name, **labels, quantile="0.99") >= scrape.value(name, **labels, quantile="0.5") >= 0
        # Without samples there is no quantile.
        assert np.isnan(scrape.value(name, model="buckets", version="1", quantile="0.5"))
    assert scrape.value("nv_inference_request_summary_us", **labels, quantile="0.5") >= 29_700


def control(server, model, action):
    answer = request(server, "POST", f"/v2/repository/models/{model}/{action}", "{}")
    assert answer.status == 200, answer


def test_counters_survive_a_reload_and_end_with_an_unload(repository, serve):
    echo(repository, "echo")
    server = serve(*EXPLICIT)
    labels = {"model": "echo", "version": "1"}

    def success():
        return Scrape(server).value("nv_inference_request_success", **labels)

    for round_ in range(5):
        assert ask(server, "echo") == 200
        assert success() == round_ + 1
        text = (repository / "echo" / "config.pbtxt").read_text()
        (repository / "echo" / "config.pbtxt").write_text(f"{text}\n# changed {round_}\n")
        control(server, "echo", "load")
        assert success() == round_ + 1
    control(server, "echo", "unload")
    assert not [labels for _, labels in Scrape(server).samples if ("model", "echo") in labels]
    control(server, "echo", "load")
    assert success() == 0


def test_tags_are_labels_whatever_they_hold(repository, serve):
    tags = r'metric_tags { key: "a-b" value: "say \"so\" \\ and\nso" } metric_tags { key: "__é" value: "ü" }'
    echo(repository, "echo", tags)
    server = serve()
    tags = {"_a_b": 'say "so" \\ and\nso', "_": "ü"}
    assert Scrape(server).value("nv_inference_count", model="echo", version="1", **tags) == 0


def test_models_of_one_name_are_distinguished_by_namespace(tmp_path, repository, serve):
    other = tmp_path / "other"
    other.mkdir()
    echo(repository, "echo")
    echo(other, "echo")
    server = serve(f"--model-repository={other}", "--model-namespacing=true")
    spaces = {dict(labels)["namespace"] for labels in Scrape(server).named("nv_inference_count")}
    assert len(spaces) == 2


def test_the_port_answers_as_the_reference_does(repository, serve):
    server = serve()
    for path in ("/metrics", "/metrics/", "/metrics?name=x"):
        answer = get(server, path, headers={"Accept-Encoding": "gzip"})
        assert (answer.status, answer.headers["Content-Type"]) == (200, "text/plain; charset=utf-8")
        assert answer.headers["Content-Encoding"] is None and b"# HELP" in answer.body
    for path in ("/", "/metric", "/v2"):
        answer = get(server, path)
        assert (answer.status, answer.body) == (200, b"")
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "HEAD"):
        assert get(server, method=method).status == 405


def test_a_collector_keeps_its_connection(repository, serve):
    server = serve()
    connection = HTTPConnection("127.0.0.1", server.metrics_port, timeout=LIMIT_S)
    try:
        for _ in range(3):
            connection.request("GET", "/metrics")
            local = connection.sock.getsockname()
            assert b"nv_cpu_utilization" in connection.getresponse().read()
        assert connection.sock.getsockname() == local
    finally:
        connection.close()


def test_any_number_of_idle_clients_leaves_room_for_collectors(repository, serve):
    """More than there are slots, and all of them silent, on this port and on the others."""
    echo(repository, "any")
    server = serve()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    idle = []
    try:
        for port in (server.metrics_port, server.port, int(server.grpc_url.rsplit(":")[-1])):
            for _ in range(min(1000, hard // 5)):
                idle.append(socket.create_connection(("127.0.0.1", port)))
            assert Scrape(server).value("nv_inference_count", model="any", version="1") == 0
            assert request(server, "GET", "/v2/health/live").status == 200
    finally:
        for client in idle:
            client.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_garbage_and_idle_clients_delay_nobody(repository, serve):
    echo(repository, "echo")
    server = serve()
    address = ("127.0.0.1", server.metrics_port)
    idle = [socket.create_connection(address) for _ in range(100)]
    try:
        for garbage in (b"\0" * 4096, b"GET /metrics HTTP/9.9\r\n\r\n", b"GET " + b"x" * (1 << 20)):
            with socket.create_connection(address) as client:
                try:
                    client.sendall(garbage)
                    client.settimeout(LIMIT_S)
                    assert not client.recv(64).startswith(b"HTTP/1.1 200")
                except ConnectionError:
                    pass
        assert Scrape(server).value("nv_inference_count", model="echo", version="1") == 0
        assert ask(server, "echo") == 200
    finally:
        for client in idle:
            client.close()


def test_metrics_are_not_served_unless_they_are_allowed(repository, serve):
    server = serve("--allow-metrics=false")
    assert server.metrics_port is None


def test_a_port_in_use_is_refused_with_one_clear_line(repository):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = nereid_server.refused_start(repository, f"--metrics-port={port}")
    assert server.exit_code > 0
    assert len(server.complaints) == 1 and f"metrics at 127.0.0.1:{port}" in server.complaints[0], server.log


def test_the_metrics_address_may_differ(repository, serve):
    server = serve("--metrics-address=127.0.0.2")
    with pytest.raises(ConnectionError):
        get(server)
    connection = HTTPConnection("127.0.0.2", server.metrics_port, timeout=LIMIT_S)
    connection.request("GET", "/metrics")
    assert connection.getresponse().status == 200
    connection.close()


@pytest.mark.parametrize(
    "flag",
    [
        "--metrics-port=70000",
        "--metrics-interval-ms=-1",
        "--allow-gpu-metrics=perhaps",
        "--metrics-config=counter_latencies",
        "--metrics-config=counter_latencies=perhaps",
        "--metrics-config=summary_quantiles=0.5",
    ],
)
def test_a_flag_with_an_impossible_value_is_refused(repository, flag):
    server = nereid_server.refused_start(repository, flag)
    assert server.exit_code > 0
    assert flag.split("=")[0].removeprefix("--") in server.log


def test_one_port_for_two_protocols_is_refused(repository):
    server = nereid_server.refused_start(repository, "--http-port=18123", "--metrics-port=18123")
    assert server.exit_code > 0 and "--metrics-port" in server.log


def test_stopping_does_not_wait_for_idle_collectors(repository, serve):
    write_identity(repository, "model", ["INT32"])
    server = serve()
    connection = HTTPConnection("127.0.0.1", server.metrics_port, timeout=LIMIT_S)
    try:
        connection.request("GET", "/metrics")
        connection.getresponse().read()
        server.terminate()
        assert server.wait_for_exit(10) == 0
    finally:
        connection.close()


def test_an_ensemble_and_its_members_are_counted_each(repository, serve, gate):
    # Long enough for a request to reach an idle instance.
    policy = "default_timeout_microseconds: 1000000 timeout_action: REJECT"
    echo(repository, "member", f"dynamic_batching {{ default_queue_policy {{ {policy} }} }}", gate=gate)
    maps = 'input_map { key: "INPUT0" value: "INPUT0" } output_map { key: "OUTPUT0" value: "OUTPUT0" }'
    step = f'ensemble_scheduling {{ step {{ model_name: "member" model_version: -1 {maps} }} }}'
    tensors = ([("INPUT0", "INT32", [1])], [("OUTPUT0", "INT32", [1])])
    text = config("whole", "", *tensors, 8, step).replace('backend: ""', 'platform: "ensemble"')
    write_model(repository, "whole", text.replace("instance_group { count: 1 kind: KIND_CPU }", ""))
    server = serve()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ask, server, "whole", batch=2)
        gate.entered().release()
        assert answer.result() == 200
    scrape = Scrape(server)
    for model in ("whole", "member"):
        labels = {"model": model, "version": "1"}
        counts = [scrape.value(f"nv_inference_{name}", **labels) for name in ("request_success", "count", "exec_count")]
        assert counts == [1, 2, 1], model
    with ThreadPoolExecutor(2) as pool:
        # Both are as large as a batch may be: one has to wait, and times out.
        answers = [pool.submit(ask, server, "whole", batch=8) for _ in range(2)]
        held = gate.entered()
        assert eventually(lambda: any(answer.done() for answer in answers))
        held.release()
        assert sorted(answer.result() for answer in answers) == [200, 503]
    scrape = Scrape(server)
    assert scrape.failures("member") == {"REJECTED": 1}
    assert scrape.failures("whole") == {"OTHER": 1}


def test_readiness_of_versions_is_a_gauge(repository, serve):
    write_identity(repository, "good", ["FP32"])
    (repository / "broken" / "1").mkdir(parents=True)
    (repository / "broken" / "1" / "model.onnx").write_bytes(b"no model")
    server = serve(*EXPLICIT, "--exit-on-error=false", ready=False)
    server.wait_until_loaded()

    def readiness():
        samples = Scrape(server).named("nereid_model_ready")
        return {dict(labels)["model"]: value for labels, value in samples.items()}

    assert readiness() == {"good": 1, "broken": 0}
    # Nobody waits for a version that was unloaded on purpose.
    assert request(server, "POST", "/v2/repository/models/good/unload", "{}").status == 200
    assert eventually(lambda: readiness() == {"broken": 0})
    assert request(server, "POST", "/v2/repository/models/good/load", "{}").status == 200
    assert eventually(lambda: readiness() == {"good": 1, "broken": 0})

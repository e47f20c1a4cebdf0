"""Traces as spans: what reaches an OpenTelemetry collector, and what happens without one."""

import json
import os
import textwrap

import grpc
import pytest
import tritonclient.grpc
import tritonclient.http

import http_requests
import native_backends
import nereid_server
import otlp_collector
import python_backend
from certificates import Authority
from grpc_requests import message, numbers, stub
from http_requests import tensor
from model_files import write_identity
from native_backends import write_model

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
CONTEXT = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1"}
COMPUTED = ["COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END"]


@pytest.fixture
def collector():
    with otlp_collector.running() as collector:
        yield collector


@pytest.fixture
def same(repository):
    """A model that gives back what it gets."""
    write_identity(repository, "same", ["INT32"])


def flags(collector, *settings):
    """Everything is traced, and sent without delay."""
    settings = (
        "mode=opentelemetry",
        f"opentelemetry,url={collector.url}",
        "opentelemetry,bsp_schedule_delay=10",
        *(settings or ("level=TIMESTAMPS", "rate=1")),
    )
    return [f"--trace-config={setting}" for setting in settings]


def ask(server, request_id="", headers=None, model="same"):
    body = json.dumps({"id": request_id, "inputs": [tensor("INPUT0", "INT32", [2], [1, 2])]})
    return http_requests.infer(server, model, body, headers)


def by_name(spans):
    found = {span.name: span for span in spans}
    assert len(found) == len(spans)
    return found


def events(span):
    return [name for name, _ in span.events]


def test_a_request_is_a_span_with_its_computing_within_it(same, serve, collector):
    server = serve(*flags(collector))
    assert ask(server, "mine").status == 200
    spans = by_name(collector.wait_for_spans(3))
    root, model, compute = spans["InferRequest"], spans["same"], spans["compute"]
    assert (root.parent_id, model.parent_id, compute.parent_id) == ("", root.span_id, model.span_id)
    assert {span.trace_id for span in spans.values()} == {root.trace_id} and len(root.trace_id) == 32
    assert sorted(events(root)) == sorted(
        ["HTTP_RECV_START", "HTTP_RECV_END", "INFER_RESPONSE_COMPLETE", "HTTP_SEND_START", "HTTP_SEND_END"]
    )
    assert events(model) == ["REQUEST_START", "QUEUE_START", "REQUEST_END"]
    assert events(compute) == COMPUTED
    (trace_id,) = {span.attributes["triton.trace_id"] for span in (model,)}
    assert model.attributes == {
        "triton.model_name": "same",
        "triton.model_version": 1,
        "triton.trace_id": trace_id,
        "triton.trace_parent_id": 0,
        "triton.request_id": "mine",
    }
    server_kind = 2
    for span in spans.values():
        assert (span.kind, span.scope) == (server_kind, "triton-server")
        assert span.resource["service.name"] == "triton-inference-server"
        assert span.start <= span.end and otlp_collector.within_the_last(60, span.start)
    assert root.start <= model.start <= compute.start and compute.end <= model.end <= root.end
    assert collector.paths == {"/v1/traces"}


@pytest.mark.parametrize("protocol", ["http", "grpc", "stream"])
def test_a_clients_trace_goes_on(same, serve, collector, protocol):
    """Whatever the rate: here only clients have a say."""
    server = serve(*flags(collector, "level=TIMESTAMPS", "rate=0"))
    assert ask(server, "without").status == 200
    if protocol == "http":
        assert ask(server, "with", CONTEXT).status == 200
    elif protocol == "grpc":
        with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
            client.infer("same", [numbers([1, 2])], request_id="with", headers=CONTEXT)
    else:
        with grpc.insecure_channel(server.grpc_url) as channel:
            list(stub(channel).ModelStreamInfer(iter([message(request_id="with")]), metadata=CONTEXT.items()))
    spans = by_name(collector.wait_for_spans(3))
    assert {(span.trace_id, span.state) for span in spans.values()} == {(TRACE, "vendor=1")}
    assert spans["InferRequest"].parent_id == PARENT
    assert spans["same"].attributes["triton.request_id"] == "with"


def test_an_invalid_context_is_ignored(same, serve, collector):
    server = serve(*flags(collector))
    assert ask(server, headers={"traceparent": f"00-{TRACE}-{'0' * 16}-01"}).status == 200
    assert {span.trace_id for span in collector.wait_for_spans(3)}.isdisjoint({TRACE})


def test_the_resource_is_what_was_set(same, serve, collector):
    settings = ["opentelemetry,resource=service.name=mine", "opentelemetry,resource=zone=b=c"]
    server = serve(*flags(collector, "level=TIMESTAMPS", "rate=1", *settings))
    ask(server)
    resource = collector.wait_for_spans(3)[0].resource
    assert (resource["service.name"], resource["zone"]) == ("mine", "b=c")


BLS = """
import numpy
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            value = pb_utils.get_input_tensor_by_name(request, "VALUE")
            inner = pb_utils.InferenceRequest(
                model_name="same", requested_output_names=["OUTPUT0"],
                inputs=[pb_utils.Tensor("INPUT0", value.as_numpy())], trace=request.trace())
            assert not inner.exec().has_error()
            context = numpy.array([request.trace().get_context()], dtype=numpy.object_)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("CONTEXT", context)]))
        return responses
"""


def test_a_python_model_has_the_context_and_what_it_asks_lies_in_its_span(same, repository, serve, collector):
    python_backend.prepare()
    config = 'backend: "python" input { name: "VALUE" data_type: TYPE_INT32 dims: 2 }'
    config += ' output { name: "CONTEXT" data_type: TYPE_STRING dims: 1 }'
    (repository / "outer" / "1").mkdir(parents=True)
    (repository / "outer" / "config.pbtxt").write_text(config)
    (repository / "outer" / "1" / "model.py").write_text(textwrap.dedent(BLS))
    server = serve(*python_backend.FLAGS, *flags(collector), env=python_backend.environment())
    body = json.dumps({"inputs": [tensor("VALUE", "INT32", [2], [1, 2])]})
    answer = http_requests.infer(server, "outer", body, CONTEXT)
    assert answer.status == 200, answer
    context = json.loads(answer.json["outputs"][0]["data"][0])
    spans = collector.wait_for_spans(5)
    (outer,) = [span for span in spans if span.name == "outer"]
    (inner,) = [span for span in spans if span.name == "same"]
    computing = {span.parent_id for span in spans if span.name == "compute"}
    assert inner.parent_id == outer.span_id and computing == {outer.span_id, inner.span_id}
    assert context == {"traceparent": f"00-{TRACE}-{outer.span_id}-01", "tracestate": "vendor=1"}


def test_a_backend_makes_spans_of_its_own(repository, serve, collector, tmp_path):
    native_backends.compile_c(tmp_path, "trace")
    tensors = 'input { name: "IN" data_type: TYPE_INT32 dims: 3 } output { name: "SEEN" data_type: TYPE_STRING dims: 1 }'
    for name in ("callee", "child"):
        write_model(repository, name, "trace", tensors)
    server = serve(f"--backend-directory={tmp_path}", *flags(collector))
    body = {"inputs": [tensor("IN", "INT32", [3], [1, 2, 3])]}
    assert http_requests.infer(server, "child", body).status == 200
    spans = collector.wait_for_spans(6)
    found = {span.name: span for span in spans}
    assert found["WORK"].parent_id == found["child"].span_id
    # It was asked while the work went on.
    assert found["callee"].parent_id == found["WORK"].span_id
    assert events(found["WORK"]) == ["WORK_START", "WORK_END"]
    assert "CALLEE" in events(found["callee"])


def test_settings_take_effect_at_once(same, serve, collector):
    server = serve(*flags(collector, "rate=1"))
    with tritonclient.http.InferenceServerClient(server.url) as client:
        ask(server, "off", CONTEXT)
        client.update_trace_settings(settings={"trace_level": ["TIMESTAMPS"], "trace_count": "1"})
        ask(server, "on")
        ask(server, "too many")
        spans = by_name(collector.wait_for_spans(3))
    assert spans["same"].attributes["triton.request_id"] == "on"
    server.stop()
    assert len(collector.spans) == 3


def test_pending_spans_are_sent_at_shutdown(same, serve, collector):
    server = serve(*flags(collector, "level=TIMESTAMPS", "rate=1", "opentelemetry,bsp_schedule_delay=3600000"))
    ask(server)
    server.stop()
    assert len(collector.spans) == 3


def test_spans_are_sent_in_batches(same, serve, collector):
    settings = ["opentelemetry,bsp_max_export_batch_size=2", "opentelemetry,bsp_schedule_delay=3600000"]
    server = serve(*flags(collector, "level=TIMESTAMPS", "rate=1", *settings))
    ask(server)
    collector.wait_for_spans(2)
    server.stop()
    assert (len(collector.spans), collector.messages) == (3, 2)


def test_a_missing_collector_is_logged_and_delays_nothing(same, serve, collector):
    with otlp_collector.running() as gone:
        pass
    server = serve(*flags(gone))
    for _ in range(20):
        assert ask(server).status == 200
    line = server.wait_for_log("does not take spans").string
    assert line.startswith("E") and gone.url in line
    # It is there now: nothing was lost.
    with otlp_collector.running(gone.port) as back:
        ask(server, "after")
        back.wait_for(lambda it: any(span.attributes.get("triton.request_id") == "after" for span in it.spans), "no")
        server.wait_for_log("spans reach the collector .* again; 0 were lost")
        assert len(back.wait_for_spans(3 * 21)) == 3 * 21


def test_a_collector_is_verified_by_its_certificate(same, serve, tmp_path):
    """SSL_CERT_FILE names the trusted authorities, as for most programs."""
    known = Authority(tmp_path, "known")
    with otlp_collector.running(identity=known.sign("collector")) as collector:
        server = serve(*flags(collector), env=os.environ | {"SSL_CERT_FILE": str(known.certificate)})
        ask(server)
        collector.wait_for_spans(3)
    with otlp_collector.running(identity=Authority(tmp_path, "unknown").sign("impostor")) as impostor:
        server = serve(*flags(impostor), env=os.environ | {"SSL_CERT_FILE": str(known.certificate)})
        ask(server)
        assert "certificate" in server.wait_for_log("does not take spans").string
        assert impostor.spans == []


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_spans_wait_for_a_collector_that_is_unavailable(same, serve, collector, status):
    collector.status = status
    server = serve(*flags(collector))
    ask(server)
    assert str(status) in server.wait_for_log("does not take spans").string
    collector.wait_for(lambda it: it.messages >= 2, "the spans are not sent again")
    collector.status = 200
    collector.wait_for_spans(3)
    server.wait_for_log("spans reach the collector .* again; 0 were lost")


@pytest.mark.parametrize("status", [400, 404, 413, 500])
def test_refused_spans_are_lost_and_counted(same, serve, collector, status):
    collector.status = status
    whole = ["opentelemetry,bsp_schedule_delay=3600000", "opentelemetry,bsp_max_export_batch_size=3"]
    server = serve(*flags(collector, "level=TIMESTAMPS", "rate=1", *whole))
    ask(server)
    assert str(status) in server.wait_for_log("does not take spans").string
    collector.status = 200
    ask(server, "after")
    collector.wait_for_spans(3)
    server.wait_for_log("spans reach the collector .* again; 3 were lost")


@pytest.mark.parametrize("setting", ["url=ftp://x/", "resource=name", "bsp_max_queue_size=many"])
def test_invalid_collector_settings_are_refused_at_start(repository, setting):
    server = nereid_server.refused_start(repository, "--trace-config=mode=opentelemetry", f"--trace-config=opentelemetry,{setting}")
    assert server.exit_code != 0
    assert setting.split("=", 1)[1] in server.log

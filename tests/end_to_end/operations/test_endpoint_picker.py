"""Envoy with an endpoint picker, as the Gateway API Inference Extension has it: the picker reads the servers' metrics, and Envoy sends
each request to the server that it names.
"""

import json
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection

import pytest
import yaml

import endpoint_picker
import envoy
import gguf_models
import llamacpp_package
import nereid_server
from gates import Gate
from http_requests import LIMIT_S, tensor
from model_files import write_identity
from ports import free_port
from scrapes import Scrape
from waiting import eventually

BODY = json.dumps({"inputs": [tensor("INPUT0", "INT32", [1], [7])]})
TYPE = "type.googleapis.com/envoy.extensions"


def config(port, picker):
    """Envoy's configuration for a port and a picker's port."""

    def address(number):
        return {"socket_address": {"address": "127.0.0.1", "port_value": number}}

    processor = {
        "@type": f"{TYPE}.filters.http.ext_proc.v3.ExternalProcessor",
        "grpc_service": {"envoy_grpc": {"cluster_name": "picker"}, "timeout": "5s"},
        "message_timeout": "5s",
        "processing_mode": {"request_header_mode": "SEND", "response_header_mode": "SKIP"},
    }
    manager = {
        "@type": f"{TYPE}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "http",
        "route_config": {
            "virtual_hosts": [
                {"name": "all", "domains": ["*"], "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "servers"}}]}
            ]
        },
        "http_filters": [
            {"name": "picker", "typed_config": processor},
            {"name": "router", "typed_config": {"@type": f"{TYPE}.filters.http.router.v3.Router"}},
        ],
    }
    servers = {
        "name": "servers",
        "type": "ORIGINAL_DST",
        "lb_policy": "CLUSTER_PROVIDED",
        "original_dst_lb_config": {"use_http_header": True, "http_header_name": endpoint_picker.HEADER},
    }
    options = {"@type": f"{TYPE}.upstreams.http.v3.HttpProtocolOptions", "explicit_http_config": {"http2_protocol_options": {}}}
    pickers = {
        "name": "picker",
        "type": "STATIC",
        "typed_extension_protocol_options": {f"{TYPE.partition('/')[2]}.upstreams.http.v3.HttpProtocolOptions": options},
        "load_assignment": {
            "cluster_name": "picker",
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address(picker)}}]}],
        },
    }
    filters = [{"filters": [{"name": "http", "typed_config": manager}]}]
    listeners = [{"name": "http", "address": address(port), "filter_chains": filters}]
    return {"static_resources": {"listeners": listeners, "clusters": [servers, pickers]}}


@pytest.fixture
def pool(tmp_path):
    """Two servers whose models wait at gates, a picker, and Envoy's port."""
    with ExitStack() as running:
        gates, servers = [], []
        for number in range(2):
            repository = tmp_path / f"models{number}"
            repository.mkdir()
            gates.append(Gate())
            write_identity(repository, "same", ["INT32"], gate=gates[-1].path)
            servers.append(running.enter_context(nereid_server.running(repository)))
            running.callback(gates[-1].open)
        picker, port = running.enter_context(balanced(servers, tmp_path))
        yield picker, port, gates, servers


@contextmanager
def balanced(servers, folder, load=endpoint_picker.pending):
    """A picker for servers, by a load, and Envoy's port."""
    with ExitStack() as running:
        picker, picker_port = running.enter_context(endpoint_picker.running(servers, load))
        port = free_port()
        path = folder / "envoy.yaml"
        path.write_text(yaml.safe_dump(config(port, picker_port)))
        process = subprocess.Popen(
            [envoy.PROGRAM, "-c", path, "--disable-hot-restart", "--concurrency", "1", "--log-level", "error"]
        )
        running.callback(process.wait)
        running.callback(process.kill)
        assert eventually(lambda: status(port, "GET", "/v2/health/ready") == 200)
        yield picker, port


def status(port, method, path, body=None):
    connection = HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    try:
        connection.request(method, path, body)
        return connection.getresponse().status
    except OSError:
        return None
    finally:
        connection.close()


def test_requests_go_where_fewest_wait(pool):
    picker, port, gates, servers = pool
    picker.picked.clear()
    count = 8
    with ThreadPoolExecutor(count) as threads:
        answers = []
        for sent in range(1, count + 1):
            answers.append(threads.submit(status, port, "POST", "/v2/models/same/infer", BODY))
            # One of each server is executed, and the others wait.
            assert eventually(lambda: sum(picker.picked.values()) == sent)
            for server in servers:
                waiting = max(picker.picked.get(server.port, 0) - 1, 0)
                assert eventually(lambda: Scrape(server).pending("same") == waiting)
        assert abs(picker.picked[servers[0].port] - picker.picked[servers[1].port]) <= 1
        for gate in gates:
            gate.open()
        assert [answer.result() for answer in answers] == [200] * count


def test_without_a_server_the_picker_refuses(pool):
    picker, port, gates, _ = pool
    for gate in gates:
        gate.open()
    assert status(port, "POST", "/v2/models/same/infer", BODY) == 200
    picker.servers.clear()
    assert status(port, "POST", "/v2/models/same/infer", BODY) == 503


class Holder:
    """Requests that a server of a language model executes, two at a time, until they are dropped."""

    def __init__(self, server):
        self._server, self._held = server, []

    def hold(self, count):
        """Sends so many, or drops those that are too many, and waits until the metrics have them."""
        sampling = {"temperature": 0, "ignore_eos": True, "max_tokens": None}
        body = json.dumps({"text_input": "ab", "stream": True, "sampling_parameters": json.dumps(sampling)})
        while len(self._held) < count:
            connection = HTTPConnection("127.0.0.1", self._server.port, timeout=LIMIT_S)
            connection.request("POST", "/v2/models/writer/generate_stream", body)
            self._held.append(connection)
        while len(self._held) > count:
            self._held.pop().sock.shutdown(socket.SHUT_RDWR)
        assert eventually(lambda: self._load() == (max(count - 2, 0), count > 0)), self._load()

    def _load(self):
        waiting, fraction = endpoint_picker.queue_and_cache(Scrape(self._server))
        return waiting, fraction > 0


def test_requests_for_text_go_where_queues_are_shorter_and_caches_emptier(tmp_path):
    with ExitStack() as running:
        servers = []
        for number in range(2):
            repository = tmp_path / f"models{number}"
            gguf_models.write(repository, config=gguf_models.parameters(max_sequences=2, context_length=100000))
            servers.append(running.enter_context(nereid_server.running(repository, llamacpp_package.flag())))
        picker, port = running.enter_context(balanced(servers, tmp_path, endpoint_picker.queue_and_cache))
        holders = [Holder(server) for server in servers]
        for holder in holders:
            running.callback(holder.hold, 0)
        body = json.dumps({"model": "writer", "prompt": "a", "max_tokens": 1})
        # How many requests each executes, two of them at a time, and which of them the next requests go to.
        for held, expected in [((3, 0), 1), ((0, 3), 0), ((3, 1), 1), ((1, 3), 0), ((1, 0), 1), ((0, 1), 0)]:
            for holder, count in zip(holders, held):
                holder.hold(count)
            picker.picked.clear()
            assert [status(port, "POST", "/v1/completions", body) for _ in range(3)] == [200] * 3
            assert picker.picked == {servers[expected].port: 3}, held

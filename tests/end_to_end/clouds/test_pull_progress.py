"""The progress bars of `nereid pull` and of servers, on a pseudo-terminal: for buckets, hubs, archives and artifacts."""

import json
import os
import re
import subprocess
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace

import pytest

import nereid_server
from cloud_repositories import LIMIT_S, Cloud, environment, until
from cloud_servers import Proxy, Stall, s3
from http_requests import request
from hubs import TITLE, Delivery, HuggingFace, Registry, Web, archive
from model_files import write_identity
from terminals import Terminal

SIZE = 6 << 20
LAYER = "application/vnd.oci.image.layer.v1.tar"


@pytest.fixture
def models(tmp_path):
    write_identity(tmp_path / "models", "a", ["INT32"])
    (tmp_path / "models" / "a" / "1" / "weights").write_bytes(os.urandom(SIZE))
    return tmp_path / "models"


@contextmanager
def bucket(models):
    with s3() as store, Proxy(store.address) as proxy:
        cloud = Cloud(store)
        cloud.put("shown", models)
        yield proxy, cloud.url("shown", proxy.address), "a", cloud.environment()


@contextmanager
def web(models):
    with Web().running() as web, Proxy(web.address) as proxy:
        web.put("models.tar", archive("tar", models))
        url = f"http://{proxy.address}/models.tar"
        yield proxy, url, url, environment()


@contextmanager
def delivered(make):
    """A hub whose large files come by a proxy."""
    with ExitStack() as stack:
        delivery = stack.enter_context(Delivery().running())
        proxy = stack.enter_context(Proxy(delivery.address))
        through = SimpleNamespace(address=proxy.address, origin=proxy.origin, put=delivery.put)
        yield proxy, stack.enter_context(make(through).running())


@contextmanager
def hub(models):
    with delivered(HuggingFace) as (proxy, hub):
        hub.put("owner/a", models / "a")
        yield proxy, "hf://owner/a", "a", environment(HF_ENDPOINT=f"http://{hub.address}")


@contextmanager
def artifact(models):
    with delivered(lambda delivery: Registry(delivery, False)) as (proxy, registry):
        annotations = {TITLE: "models", "io.deis.oras.content.unpack": "true"}
        registry.put("team/models", "v1", [(archive("tar", models), LAYER, annotations)])
        address = f"oci://{registry.address}/team/models:v1"
        yield proxy, address, address, environment()


@contextmanager
def image(models):
    with delivered(lambda delivery: Registry(delivery, False)) as (proxy, registry):
        registry.put("team/car", "v1", [(archive("tar", models, "models/"), LAYER, {})])
        address = f"oci://{registry.address}/team/car:v1"
        yield proxy, address, address, environment()


@pytest.mark.parametrize("source", [bucket, hub, web, artifact, image])
def test_a_bar_on_a_terminal_shows_how_far_a_download_is(source, models, tmp_path):
    with source(models) as (proxy, address, name, env):
        proxy.breaks(lambda line: Stall(3 << 20) if line.startswith("GET") else None)
        terminal = Terminal(nereid_server.binary(), "pull", address, str(tmp_path / "pulled"), env=env)
        try:
            assert proxy.stalled.wait(LIMIT_S)
            bar = re.compile(rf"{re.escape(name)} \[#{{9,15}} {{15,21}}\] [23] of 6 MB, \d+ MB/s, \d+ s left$")
            until(lambda: bar.match(terminal.lines[-1]))
        finally:
            proxy.resume.set()
        assert terminal.wait() == f"{tmp_path / 'pulled' / 'a'}\n"
        last = terminal.lines[-1]
        assert re.fullmatch(rf"{re.escape(name)} \[#{{30}}\] 6 of 6 MB, \d+ MB/s, 0 s left\r\n", last), last
        for path in (models / "a").rglob("*"):
            assert path.is_dir() or (tmp_path / "pulled" / path.relative_to(models)).read_bytes() == path.read_bytes()
        # Not where nobody looks.
        command = [nereid_server.binary(), "pull", address, str(tmp_path / "quiet")]
        quiet = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=True)
        assert (quiet.stdout, quiet.stderr) == (f"{tmp_path / 'quiet' / 'a'}\n", "")


LOG_LINE = re.compile(r"[IWE]\d{4} \d\d:\d\d:\d\d\.\d{6} \d+ [\w.]+:\d+\]( \".*\")?$")
TABLE_LINE = re.compile(r"[+|].*[+|]$")
PORT = re.compile(r"Started HTTPService at [^\s\"]+:(\d+)")


class OnTerminal:
    """A server whose log goes to a terminal."""

    def __init__(self, address, *flags, env):
        ports = ["--http-address=127.0.0.1", "--http-port=0", "--allow-grpc=false", "--allow-metrics=false"]
        command = [nereid_server.binary(), f"--model-repository={address}", *ports, *flags]
        self.terminal = Terminal(*command, env={**env, "TERM": "xterm"})
        self.port = None

    def listens(self):
        """Whether it does. From then on, it can be asked."""
        found = PORT.search(self.terminal.text)
        self.port = found and int(found.group(1))
        return found

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.terminal.process.kill()
        self.terminal.process.wait()


@pytest.mark.parametrize("source", [bucket, hub, web, artifact])
def test_a_server_shows_bars_below_its_log(source, models):
    with source(models) as (proxy, address, name, env):
        proxy.breaks(lambda line: Stall(3 << 20) if line.startswith("GET") else None)
        bar = re.compile(rf"{re.escape(name)} \[#{{9,15}} {{15,21}}\] [23] of 6 MB, \d+ MB/s, \d+ s left$")
        with OnTerminal(address, "--log-requests=true", env=env) as server:
            terminal = server.terminal

            def logged():
                *lines, last = terminal.rows()
                return [line for line in lines if "/v2/health/live" in line], lines, last

            try:
                assert proxy.stalled.wait(LIMIT_S)
                until(lambda: server.listens() and bar.match(terminal.rows()[-1]))
                # Log lines come above it.
                for count in range(1, 4):
                    assert request(server, "GET", "/v2/health/live").status == 200
                    until(lambda: len(logged()[0]) == count and bar.match(logged()[2]))
                    assert all(map(LOG_LINE.match, logged()[1])), terminal.rows()
                # A narrow terminal has it in one row, too.
                until(lambda: re.match(re.escape(name)[:30], terminal.rows(30)[-1]))
                # Programs get none, whenever the format becomes one of theirs.
                for form, is_shown in [("JSON", False), ("default", True)]:
                    assert request(server, "POST", "/v2/logging", json.dumps({"log_format": form})).status == 200
                    until(lambda: bool(bar.match(terminal.rows()[-1])) == is_shown)
            finally:
                proxy.resume.set()
            until(lambda: "READY" in terminal.text)
            terminal.process.terminate()
            assert terminal.wait() == ""
            rows = [row for row in terminal.rows() if row and not row.startswith("{")]
            assert [row for row in rows if not LOG_LINE.match(row) and not TABLE_LINE.match(row)] == []

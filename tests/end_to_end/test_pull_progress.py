"""The progress bar of `nereid pull`, on a pseudo-terminal: for buckets, hubs, archives and artifacts."""

import os
import pty
import re
import subprocess
import threading
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace

import pytest

import nereid_server
from cloud_repositories import LIMIT_S, Cloud, environment, until
from clouds import Proxy, Stall, s3
from hubs import TITLE, Delivery, HuggingFace, Registry, Web, archive
from model_files import write_identity

SIZE = 6 << 20
LAYER = "application/vnd.oci.image.layer.v1.tar"


class Terminal:
    """A program whose errors go to a terminal."""

    def __init__(self, *command, env):
        ours, theirs = pty.openpty()
        self.text = ""
        try:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=theirs, env=env, text=True
            )
        finally:
            os.close(theirs)
        self._reader = threading.Thread(target=self._read, args=(ours,), daemon=True)
        self._reader.start()

    def _read(self, terminal):
        try:
            while received := os.read(terminal, 4096):
                self.text += received.decode()
        except OSError:
            # Nobody has the other end any more.
            pass
        finally:
            os.close(terminal)

    @property
    def lines(self):
        """Each was written over the one before it."""
        return self.text.split("\r\x1b[K")

    def wait(self):
        """What it prints, once it has ended well."""
        printed, _ = self.process.communicate(timeout=LIMIT_S)
        self._reader.join(LIMIT_S)
        assert self.process.returncode == 0, self.text
        return printed


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
        through = SimpleNamespace(address=proxy.address, put=delivery.put)
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

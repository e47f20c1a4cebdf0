"""The containers of deploy/kserve as processes of this machine."""

import os
import subprocess
import sys
from pathlib import Path

import yaml

import nereid_server
from http_requests import LIMIT_S, request
from places import ROOT
from ports import free_ports
from waiting import eventually

FOLDER = ROOT / "deploy" / "kserve"


def objects(name):
    """The objects of a file."""
    return [*yaml.safe_load_all((FOLDER / name).read_text())]


RUNTIMES = {runtime["metadata"]["name"]: runtime for runtime in objects("runtimes.yaml")}


class Container:
    """A process in place of a container, with these models below /mnt/models."""

    def __init__(self, runtime, models, folder, name, *more, limit_s=LIMIT_S, **variables):
        """`more` are the arguments of an InferenceService, and `variables` those of its environment."""
        (container,) = RUNTIMES[runtime]["spec"]["containers"]
        self.port, self.grpc_port, metrics = free_ports(3)
        self.probes = [container[kind]["httpGet"] for kind in ("startupProbe", "readinessProbe")]
        assert all(probe["port"] == 8080 for probe in self.probes)
        self._limit_s = limit_s

        def here(text):
            for place, path in [
                ("/mnt/models", models),
                ("/tmp/models", folder),
                ("{{.Name}}", name),
                ("8080", self.port),
                ("9000", self.grpc_port),
            ]:
                text = text.replace(place, str(path))
            return text

        command = [here(part) for part in [*container.get("command", []), *container["args"]]]
        own = [f"--metrics-port={metrics}", "--backend-config=onnxruntime,engine=tract"]
        path = f"{Path(nereid_server.binary()).parent}:{os.environ['PATH']}"
        # Arguments of an InferenceService come after the runtime's.
        # As in the image.
        environment = os.environ | {"PATH": path, "VIRTUAL_ENV": sys.prefix}
        self.process = subprocess.Popen([*command, *own, *more], env=environment | variables)

    def __enter__(self):
        try:
            assert eventually(lambda: self.process.poll() is not None or self._is_ready(), self._limit_s)
            assert self.process.poll() is None, "the container has ended"
        except AssertionError:
            self.process.kill()
            self.process.wait()
            raise
        return self

    def _is_ready(self):
        return all(self.status(probe["path"]) == 200 for probe in self.probes)

    def status(self, path):
        """The status of a GET; None if there is no connection."""
        try:
            return request(self, "GET", path).status
        except OSError:
            return None

    def __exit__(self, *_):
        self.process.terminate()
        assert self.process.wait(self._limit_s) == 0

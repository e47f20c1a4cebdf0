"""Runs a server in a delegated control group, has its models use processors and memory, and prints what came of it, as JSON.

For a machine whose control groups nobody else uses.
"""

import fcntl
import json
import os
import socket
import struct
from pathlib import Path

import tritonclient.http
from tritonclient.utils import InferenceServerException

import nereid_server
import python_lab
from waiting import eventually

LIMIT = 256 << 20
GROUPS = Path("/sys/fs/cgroup")
SERVICE = GROUPS / "nereid.service"
# Two processes that have this many MiB each at the same time.
TOGETHER = """
import subprocess
code = "x = bytearray({} << 20); print(1, flush=True); input()"
processes = [subprocess.Popen([sys.executable, "-Sc", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(2)]
result = [process.stdout.readline().decode().strip() for process in processes]
for process in processes:
    process.communicate(b"")
"""
# The share of a processor that a loop gets.
BUSY = """
import time
wall, used = time.monotonic(), time.process_time()
while time.monotonic() < wall + 3:
    pass
result = (time.process_time() - used) / (time.monotonic() - wall)
"""


def raise_loopback():
    """Sets the flags IFF_UP and IFF_RUNNING of the device."""
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sH14s", b"lo", 0x41, b""))


def delegate(folder):
    """Makes a group as systemd does with `Delegate=cpu memory`, and a program that runs the server in it."""
    (GROUPS / "cgroup.subtree_control").write_text("+cpu +memory")
    SERVICE.mkdir()
    os.setxattr(SERVICE, "user.delegate", b"1")
    program = folder / "nereid"
    program.write_text(f'#!/bin/sh\necho $$ > {SERVICE}/cgroup.procs\nexec {nereid_server.binary()} "$@"\n')
    program.chmod(0o755)
    return program


def attempt(client, code, model="lab"):
    try:
        return python_lab.run(client, code, model=model)
    except InferenceServerException as error:
        return error.message()


def group_of(client, model):
    return python_lab.run(client, "result = open('/proc/self/cgroup').read()", model=model).strip().removeprefix("0::")


def main():
    raise_loopback()
    folder = Path.cwd()
    repository = folder / "models"
    for model in ("lab", "neighbour"):
        python_lab.write(repository, model)
    settings = [f"sandbox-memory={LIMIT}", "sandbox-cpus.lab=0.5"]
    flags = [*python_lab.FLAGS, *(f"--backend-config=python,{setting}" for setting in settings)]
    found: dict = {}
    with nereid_server.running(repository, *flags, program=delegate(folder)) as server:
        with tritonclient.http.InferenceServerClient(server.url, network_timeout=120, connection_timeout=120) as client:
            groups = {model: group_of(client, model) for model in ("lab", "neighbour")}
            found["limits"] = {
                model: [(GROUPS / group[1:] / file).read_text().strip() for file in ("memory.max", "cpu.max")]
                for model, group in groups.items()
            }
            found["groups"] = [Path(group).parent.name for group in groups.values()]
            found["apart"] = groups["lab"] != groups["neighbour"]
            found["share"] = {model: attempt(client, BUSY, model) for model in groups}
            neighbour = python_lab.run(client, "result = os.getpid()", model="neighbour")
            found["little"] = attempt(client, TOGETHER.format(40))
            found["much"] = attempt(client, TOGETHER.format(150))
            found["restarted"] = eventually(lambda: attempt(client, "result = 7") == 7)
            found["neighbour stays"] = python_lab.run(client, "result = os.getpid()", model="neighbour") == neighbour
    found["left"] = [group.name for group in SERVICE.glob("nereid-model-*")]
    print(json.dumps(found))


main()

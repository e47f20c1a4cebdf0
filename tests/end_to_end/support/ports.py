"""Ports for programs that cannot choose a free one themselves."""

import os
import socket
from contextlib import ExitStack
from itertools import count as numbers

# Below the ports that the system gives to connections, and a range of its own for each worker: nothing else takes a port
# between the moment that it was found free and the moment that the program listens.
SIZE = 1000
FIRST = 20_000 + SIZE * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
following = numbers()


def free_ports(count):
    """Free ports. No port comes twice before all others of the range."""
    ports = []
    with ExitStack() as taken:
        for _ in range(SIZE):
            port = FIRST + next(following) % SIZE
            try:
                taken.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
            ports.append(port)
            if len(ports) == count:
                return ports
    raise AssertionError(f"no {count} free ports between {FIRST} and {FIRST + SIZE - 1}")


def free_port():
    return free_ports(1)[0]

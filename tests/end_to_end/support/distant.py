"""Clients of another machine: a relay on this one, whose connections to a server come from an address that the server does not
take for its own.
"""

import socket
import threading
from contextlib import contextmanager, suppress


def _outer_address():
    """An address of this machine that others reach it by. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        return probe.getsockname()[0]


def _pass_on(source, target):
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)


@contextmanager
def relay(port):
    """The address of a relay to this port of 127.0.0.1."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        with suppress(OSError):
            while True:
                client = listener.accept()[0]
                server = socket.create_connection(("127.0.0.1", port), source_address=(_outer_address(), 0))
                for ends in [(client, server), (server, client)]:
                    threading.Thread(target=_pass_on, args=ends, daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()

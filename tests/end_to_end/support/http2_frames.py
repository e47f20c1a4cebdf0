"""HTTP/2 as no client library sends it: heads, pseudo-headers and trailers that contradict each other."""

import contextlib
import socket

import h2.config
import h2.connection
import h2.events
import h2.exceptions

LIMIT_S = 30
_ENDS = (h2.events.StreamEnded, h2.events.StreamReset, h2.events.ConnectionTerminated)


class Frames:
    """Sends requests to a port as they are, over a connection that is made anew when the server ends it."""

    def __init__(self, port):
        self._port = port
        self._stream: socket.socket | None = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._close()

    def ask(self, headers, body, trailers=None):
        """A request's status, or nothing if the server refused to answer, and its heads and body."""
        status, answer = None, b""
        with contextlib.suppress(ConnectionError, h2.exceptions.ProtocolError):
            stream = self._stream or self._connect()
            number = self._connection.get_next_available_stream_id()
            self._connection.send_headers(number, headers)
            self._connection.send_data(number, body, end_stream=trailers is None)
            if trailers is not None:
                self._connection.send_headers(number, trailers, end_stream=True)
            stream.sendall(self._connection.data_to_send())
            while data := stream.recv(65536):
                for event in self._connection.receive_data(data):
                    if isinstance(event, h2.events.ConnectionTerminated):
                        self._close()
                        return status, answer
                    if getattr(event, "stream_id", None) != number:
                        continue
                    if isinstance(event, (h2.events.ResponseReceived, h2.events.TrailersReceived)):
                        found = {bytes(name): bytes(value) for name, value in event.headers}
                        status = int(found.get(b":status", status or 0))
                        answer += repr(found).encode()
                    elif isinstance(event, h2.events.DataReceived):
                        answer += event.data
                        self._connection.acknowledge_received_data(event.flow_controlled_length, number)
                    elif isinstance(event, _ENDS):
                        stream.sendall(self._connection.data_to_send())
                        return status, answer
                stream.sendall(self._connection.data_to_send())
        self._close()
        return status, answer

    def _connect(self):
        config = h2.config.H2Configuration(validate_outbound_headers=False, normalize_outbound_headers=False)
        self._connection = h2.connection.H2Connection(config)
        self._connection.initiate_connection()
        self._stream = socket.create_connection(("127.0.0.1", self._port), LIMIT_S)
        # Otherwise a request may wait for the server's delayed acknowledgement of the last frame.
        self._stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._stream

    def _close(self):
        if self._stream:
            self._stream.close()
        self._stream = None

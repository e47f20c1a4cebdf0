"""Starts the server's real binary, watches its log, and stops it.

Knows the command line, the log lines that name a port, and exit codes. Knows nothing of what is served.
"""

import os
import re
import select
import signal
import subprocess
import threading
import time
from contextlib import contextmanager
from http.client import HTTPConnection

START_LIMIT_S = 120
STOP_LIMIT_S = 30
_STARTED = re.compile(r'Started HTTPService at [^\s"]+:(\d+)')
_STARTED_METRICS = re.compile(r'Started Metrics Service at [^\s"]+:(\d+)')
_STARTED_GRPC = re.compile(r'Started GRPCInferenceService at [^\s"]+:(\d+)')
# Tests that leave sequences open start their servers with this: a server waits for their end.
OPEN_SEQUENCES = "--exit-timeout-secs=1"
_SEQUENCES_LEFT = "sequences were still open after 1 seconds"
# The head of the table of models.
_LOADED = re.compile(r"^\| Model +\| Version +\| Status +\|$")
# A panic in an engine's library is caught and answered as an error; one in the server's own code is a bug.
_OWN_PANIC = re.compile(r"panicked at (crates|backends)/")
# A log line of severity error begins with E and the date; a refusal to start may also begin with "error:".
_COMPLAINT = re.compile(r"(E\d{4} |error:)", re.IGNORECASE)


def binary():
    """The path of the binary under test."""
    path = os.environ.get("NEREID_BINARY")
    if not path:
        raise RuntimeError("set NEREID_BINARY to the path of the nereid binary to test")
    if not os.access(path, os.X_OK):
        raise RuntimeError(f"NEREID_BINARY is not an executable file: {path}")
    return path


# The servers that were started and not yet stopped, and those that the current test has stopped.
started: list["Server"] = []


class Server:
    """A server process, its log and its addresses."""

    def __init__(self, repository, *flags, port=0, env=None, user=None, program=None):
        """Starts the process. `port` 0 lets the system choose one; `env` None is the environment of the tests; `user`
        None is the user who runs the tests; only the superuser may name another; `program` None is the binary under test."""
        command = [program or binary(), f"--model-repository={repository}", "--http-address=127.0.0.1", f"--http-port={port}"]
        command += ["--grpc-address=127.0.0.1", "--grpc-port=0", "--metrics-port=0"]
        # The same engine on every machine, whatever libraries it has; a test that wants another says so.
        command.append("--backend-config=onnxruntime,engine=tract")
        self._flags = flags
        self._process = subprocess.Popen(
            [*command, *flags],
            env=env,
            user=user,
            # A file size limit is then an error, as a full disk is, and not a signal.
            restore_signals=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        started.append(self)
        self._lines = []
        # The beginning of a line whose end has not arrived.
        self._part = b""
        self._closed = False
        self._news = threading.Condition()
        assert self._process.stdout is not None
        self._output = self._process.stdout.fileno()
        os.set_blocking(self._output, False)
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        self.port = None
        self.grpc_port = None
        self.metrics_port = None

    def _read_log(self):
        arrived = select.poll()
        arrived.register(self._output, select.POLLIN)
        while not self._closed:
            arrived.poll()
            with self._news:
                self._drain()

    def _drain(self):
        """Takes everything that the server has printed. The caller holds the lock."""
        while not self._closed:
            try:
                data = os.read(self._output, 1 << 16)
            except BlockingIOError:
                break
            *lines, self._part = (self._part + (data or b"\n" * bool(self._part))).split(b"\n")
            self._lines += [line.decode(errors="replace") for line in lines]
            self._closed = not data
        self._news.notify_all()

    @property
    def url(self):
        """`host:port`, as Triton's clients take it."""
        return f"127.0.0.1:{self.port}"

    @property
    def grpc_url(self):
        """`host:port` of gRPC, as Triton's clients take it."""
        return f"127.0.0.1:{self.grpc_port}"

    @property
    def pid(self):
        """The process's number."""
        return self._process.pid

    @property
    def log(self):
        """Everything printed so far: also what the thread that waits for it has not seen yet."""
        with self._news:
            self._drain()
            return "\n".join(self._lines)

    @property
    def complaints(self):
        """The log lines of severity error."""
        return [line for line in self.log.splitlines() if _COMPLAINT.match(line)]

    @property
    def exit_code(self):
        """The exit code, or None while the process runs."""
        return self._process.poll()

    def wait_for_log(self, pattern, limit_s=START_LIMIT_S):
        """Waits until a log line matches and returns the match."""
        pattern = re.compile(pattern)

        def found():
            return next(filter(None, map(pattern.search, self._lines)), None)

        with self._news:
            self._news.wait_for(lambda: found() or self._closed, limit_s)
            match = found()
        if match is None:
            raise AssertionError(f"no log line matches {pattern.pattern!r}; the log:\n{self.log}")
        return match

    def wait_until_listening(self):
        """Waits until the server has logged its ports."""
        self.port = int(self.wait_for_log(_STARTED).group(1))
        # Logged before the port of HTTP, if they are served at all.
        started = _STARTED_GRPC.search(self.log)
        self.grpc_port = started and int(started.group(1))
        started = _STARTED_METRICS.search(self.log)
        self.metrics_port = started and int(started.group(1))
        return self

    def wait_until_loaded(self, limit_s=START_LIMIT_S):
        """Waits until the server listens, and each model that it loads at start is loaded or has failed."""
        self.wait_until_listening()
        self.wait_for_log(_LOADED, limit_s)
        return self

    def wait_until_ready(self, limit_s=START_LIMIT_S):
        """Waits until the server answers that it is ready."""
        self.wait_until_listening()
        deadline = time.monotonic() + limit_s
        while self.ready_status() != 200:
            if self.exit_code is not None or time.monotonic() > deadline:
                raise AssertionError(f"the server did not become ready; the log:\n{self.log}")
            time.sleep(0.02)
        return self

    def ready_status(self):
        """The status of the readiness check over a new connection; None if the connection fails."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", "/v2/health/ready")
            return connection.getresponse().status
        except OSError:
            return None
        finally:
            connection.close()

    def terminate(self):
        """Asks the server to stop, as a service manager does."""
        self._process.send_signal(signal.SIGTERM)

    def interrupt(self):
        """Asks the server to stop, as Ctrl-C in a terminal does."""
        self._process.send_signal(signal.SIGINT)

    def wait_for_exit(self, limit_s=STOP_LIMIT_S):
        """Waits for the end of the process and returns its exit code."""
        try:
            self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the server did not exit within {limit_s} s; the log:\n{self.log}") from None
        self._reader.join(limit_s)
        return self._process.returncode

    def stop(self):
        """Stops the server, which must exit cleanly and must not have crashed anywhere on the way."""
        self.terminate()
        code = self.wait_for_exit()
        left = OPEN_SEQUENCES in self._flags and _SEQUENCES_LEFT in self.log
        assert code == int(left), f"exit code {code}; the log:\n{self.log}"
        self.assert_no_panic()

    def assert_no_panic(self):
        """Nothing in the server's own code went wrong unnoticed."""
        assert not _OWN_PANIC.search(self.log), self.log

    def kill(self):
        """Ends whatever is left of the process."""
        if self.exit_code is None:
            self._process.kill()
            self._process.wait()


@contextmanager
def running(repository, *flags, ready=True, env=None, user=None, limit_s=START_LIMIT_S, program=None):
    """A server for the length of a `with` block, stopped and checked at its end."""
    server = Server(repository, *flags, env=env, user=user, program=program)
    try:
        if ready:
            server.wait_until_ready(limit_s)
        else:
            server.wait_until_loaded(limit_s)
        yield server
        if server.exit_code is None:
            server.stop()
    finally:
        server.kill()


def refused_start(repository, *flags, port=0):
    """Starts a server that must give up by itself; returns it after it has exited."""
    server = Server(repository, *flags, port=port)
    try:
        server.wait_for_exit(START_LIMIT_S)
    finally:
        server.kill()
    server.assert_no_panic()
    return server

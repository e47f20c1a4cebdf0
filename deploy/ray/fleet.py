"""Nereids on the nodes of a Ray cluster, with Envoy or HAProxy in front: see docs/ray.md.

    fleet.py start --servers 3 -- --model-repository=models   starts servers, spread over the nodes
    fleet.py addresses /etc/envoy/servers                     keeps Envoy's files of addresses up to date
    fleet.py addresses --haproxy SOCKET /etc/haproxy/nereid   keeps HAProxy's up to date
    fleet.py status | scale N | scale MIN,MAX,PENDING | update -- OPTIONS | stop

An actor on a server's node supervises it. One more, the keeper, replaces servers that died and changes their number; Ray starts it again
if it dies, and the servers do not depend on it. Requests do not pass through Ray.
"""

import argparse
import contextlib
import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayError

NAME = "nereid"
# Between two looks at the servers, and for a server's actor to answer.
INTERVAL_S = 0.5
ANSWER_S = 5
# For Ray to start a keeper that died.
RESTART_S = 60
# Balancers follow their files within this time, so that a server that is to stop gets no more requests.
PAUSE_S = 2
# If so few requests waited for so long that one server less would do, there is one too many.
QUIET_S = 60
# Ray starts an actor within this time if a node has room for it.
ROOM_S = 20
STARTED = {"http": "HTTPService", "grpc": "GRPCInferenceService", "metrics": "Metrics Service"}
PENDING = re.compile(r"^nv_inference_pending_request_count(?:\{.*\})? (\d+)", re.M)


@dataclass
class Settings:
    """What servers are started with, and how many."""

    servers: int = 1
    # The options of each server, and the program.
    options: list = field(default_factory=list)
    program: str = "nereid"
    # What a server takes of its node.
    cpus: float = 1
    gpus: float = 0
    resources: dict = field(default_factory=dict)
    # A model may take long to load, and a request to finish.
    start_s: float = 600
    stop_s: float = 60
    # Between these numbers of servers, so that at most so many requests wait for each; None keeps the number.
    scale: tuple | None = None
    # How often the options were changed, and all of these settings.
    generation: int = 0
    revision: int = 0


@ray.remote(num_cpus=0, max_concurrency=4)
class Supervisor:
    """Runs a server as a process on this node."""

    def __init__(self, name, settings):
        self._name, self._settings, self._generation = name, settings, settings.generation
        self._ports: dict = {}
        ports = [f"--{port}=0" for port in ("http-port", "grpc-port", "metrics-port")]
        command = [settings.program, f"--id={name}", "--load-reports=always", *ports, *settings.options]
        # Ray gives an actor the GPUs that it may use by CUDA_VISIBLE_DEVICES, which the server inherits.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=_end_with_parent,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self._process.stdout:
            # Ray keeps what its actors print.
            print(line, end="", flush=True)
            for protocol, service in STARTED.items():
                if found := re.search(rf"Started {service} at [^\s\"]+:(\d+)", line):
                    self._ports[protocol] = int(found[1])

    def status(self):
        """The server's state, address, and the requests in its queues."""
        state, pending = "starting", 0
        if self._process.poll() is not None:
            state = "ended"
        elif self._ports.keys() == STARTED.keys() and _get(self._ports["http"], "/v2/health/ready") is not None:
            state = "ready"
            pending = sum(map(int, PENDING.findall(_get(self._ports["metrics"], "/metrics") or "")))
        node = ray.get_runtime_context().get_node_id()
        address = {"ip": ray.util.get_node_ip_address(), "node": node, "pid": self._process.pid, **self._ports}
        return {"name": self._name, "generation": self._generation, "state": state, "pending": pending, **address}

    def keep(self, settings):
        """Keeps the settings for a keeper that takes over."""
        # Calls may overtake each other.
        if settings.revision > self._settings.revision:
            self._settings = settings

    def settings(self):
        """The settings that it was given last."""
        return self._settings

    def stop(self, limit_s):
        """Stops the server, which answers the requests that it has, and gives its exit code."""
        self._process.terminate()
        try:
            return self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


def _end_with_parent():
    """The server stops when its actor dies, for whatever reason."""
    prctl_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(prctl_set_pdeathsig, signal.SIGTERM)


def _get(port, path):
    """What the server answers; None if it does not, or with an error."""
    with (
        contextlib.suppress(OSError, urllib.error.URLError),
        urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=2) as answer,
    ):
        return answer.read().decode()
    return None


@dataclass
class Server:
    """A server as the keeper knows it."""

    actor: Any
    started: float
    status: dict
    # Whether another one was stopped because no node had room for this one.
    has_room: bool = False


@ray.remote(num_cpus=0, max_concurrency=8)
class Keeper:
    """Keeps so many servers running. The newest generation has the newest options."""

    def __init__(self, settings):
        self._settings = settings
        self._servers: dict[str, Server] = {}
        self._count = 0
        self._quiet_since = time.monotonic()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._ended = False
        self._recover()
        threading.Thread(target=self._run, daemon=True).start()

    def _recover(self):
        """Takes over the servers and the settings of a keeper that died. A server that does not answer counts until Ray says that it is
        dead: it may have died with the keeper, and then another one takes its place."""
        actors = {}
        for name in ray.util.list_named_actors():
            if name.startswith(f"{NAME}-"):
                with contextlib.suppress(ValueError):
                    actors[name] = ray.get_actor(name)
        calls = {name: actor.settings.remote() for name, actor in actors.items()}
        ray.wait([*calls.values()], num_returns=len(calls), timeout=ANSWER_S) if calls else None
        for name, actor in actors.items():
            self._count = max(self._count, int(name.rpartition("-")[2]))
            with contextlib.suppress(RayError):
                kept = ray.get(calls[name], timeout=0)
                if kept.revision > self._settings.revision:
                    self._settings = kept
            status = {"name": name, "generation": 0, "state": "starting", "pending": 0}
            self._servers[name] = Server(actor, time.monotonic(), status)

    def servers(self):
        """The state of each server, those that are being stopped left out."""
        with self._lock:
            return [server.status for server in self._servers.values()]

    def settings(self):
        """The settings in force."""
        with self._lock:
            return asdict(self._settings)

    def scale(self, servers, scale):
        """Changes the number of servers, or lets it follow the requests that wait."""
        with self._changed:
            number = servers if scale is None else min(max(self._settings.servers, scale[0]), scale[1])
            self._change(servers=number, scale=scale)
            self._quiet_since = time.monotonic()
            self._changed.notify_all()

    def update(self, options):
        """Replaces the servers by some with other options, one after the other."""
        with self._changed:
            self._change(options=options, generation=self._settings.generation + 1)
            self._changed.notify_all()

    def _change(self, **settings):
        """Changes settings, and has the servers' actors keep them."""
        self._settings = replace(self._settings, **settings, revision=self._settings.revision + 1)
        for server in self._servers.values():
            server.actor.keep.remote(self._settings)

    def settled(self):
        """Whether all servers are ready, as many as there should be, and of the newest options."""
        with self._lock:
            wanted = [server for server in self._servers.values() if server.status["generation"] == self._settings.generation]
            ready = sum(server.status["state"] == "ready" for server in wanted)
            return ready == len(self._servers) == self._settings.servers

    def stop(self):
        """Stops all servers, at the same time."""
        with self._changed:
            self._ended = True
            actors = [server.actor for server in self._servers.values()]
            self._servers.clear()
            self._changed.notify_all()
        with contextlib.suppress(RayError):
            ray.get([actor.stop.remote(self._settings.stop_s) for actor in actors])
        for actor in actors:
            ray.kill(actor)

    def _run(self):
        while not self._ended:
            try:
                self._look()
                with self._changed:
                    self._adjust()
                    self._changed.wait(INTERVAL_S)
            except Exception as error:
                # The next turn tries again.
                print(f"keeper: {error!r}", flush=True)
                time.sleep(INTERVAL_S)

    def _look(self):
        """Asks all servers for their state, and drops those that are dead."""
        with self._lock:
            servers = dict(self._servers)
        calls = {name: server.actor.status.remote() for name, server in servers.items()}
        ray.wait([*calls.values()], num_returns=len(calls), timeout=ANSWER_S) if calls else None
        for name, call in calls.items():
            server = servers[name]
            try:
                status = ray.get(call, timeout=0)
            except GetTimeoutError:
                # An actor that has not started yet does not answer. Nor does one that hangs, whose server Envoy checks itself.
                status = server.status
            except RayError:
                status = server.status | {"state": "ended"}
            late = status["state"] == "starting" and time.monotonic() - server.started > self._settings.start_s
            with self._lock:
                if status["state"] == "ended" or late:
                    print(f"keeper: {name} {'did not get ready' if late else 'has ended'}", flush=True)
                    self._servers.pop(name, None)
                    ray.kill(server.actor)
                else:
                    server.status = status

    def _adjust(self):
        """Starts or stops at most one server of many, so that the others can serve."""
        self._rescale()
        missing = self._settings.servers - len(self._servers)
        old = [name for name, server in self._servers.items() if server.status["generation"] < self._settings.generation]
        starting = [name for name, server in self._servers.items() if server.status["state"] != "ready"]
        if missing > 0:
            for _ in range(missing):
                self._start()
        elif missing < 0 and not starting:
            # The oldest first. Where one is being replaced, its successor is ready now.
            self._retire(old[0] if old else next(iter(self._servers)))
        elif old and not starting:
            self._start()
        elif old:
            self._make_room([name for name in old if name not in starting])

    def _make_room(self, old):
        """Stops an old server for a new one that no node has room for, if others serve meanwhile."""
        ready = sum(server.status["state"] == "ready" for server in self._servers.values())
        for server in self._servers.values():
            # The actor of a server that has a place knows its process.
            waits = "pid" not in server.status and time.monotonic() - server.started > ROOM_S
            if waits and not server.has_room and old and ready > 1:
                server.has_room = True
                self._retire(old[0])
                return

    def _rescale(self):
        if self._settings.scale is None:
            return
        least, most, limit = self._settings.scale
        ready = [server.status["pending"] for server in self._servers.values() if server.status["state"] == "ready"]
        now = time.monotonic()
        # Half of what the remaining ones may have, so that their number does not go up and down.
        if sum(ready) > limit * (len(ready) - 1) / 2:
            self._quiet_since = now
        # One at a time: the next turn sees what the last one brought.
        if len(ready) == self._settings.servers < most and sum(ready) > limit * len(ready):
            self._change(servers=self._settings.servers + 1)
        elif self._settings.servers > least and now - self._quiet_since > QUIET_S:
            self._change(servers=self._settings.servers - 1)
            self._quiet_since = now

    def _start(self):
        self._count += 1
        name = f"{NAME}-{self._count}"
        settings = self._settings
        where = {"num_cpus": settings.cpus, "num_gpus": settings.gpus, "resources": settings.resources}
        kind = Supervisor.options(name=name, lifetime="detached", scheduling_strategy="SPREAD", **where)
        actor = kind.remote(name, settings)
        status = {"name": name, "generation": settings.generation, "state": "starting", "pending": 0}
        self._servers[name] = Server(actor, time.monotonic(), status)

    def _retire(self, name):
        server = self._servers.pop(name)

        def stop():
            time.sleep(PAUSE_S)
            with contextlib.suppress(RayError):
                ray.get(server.actor.stop.remote(self._settings.stop_s))
            ray.kill(server.actor)

        threading.Thread(target=stop, daemon=True).start()


def assignment(protocol, servers):
    """Envoy's resource with the addresses of servers, as in deploy/envoy/servers."""
    endpoints = [
        {
            "endpoint": {"address": {"socket_address": {"address": server["ip"], "port_value": server[protocol]}}},
            "metadata": {"filter_metadata": {"envoy.lb": {"hash_key": server["name"]}}},
        }
        for server in servers
    ]
    kind = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
    return {"resources": [{"@type": kind, "cluster_name": protocol, "endpoints": [{"lb_endpoints": endpoints}]}]}


# HAProxy's backends, as in deploy/haproxy/servers.cfg: name, defaults, protocol, and what a server's line ends with.
BACKENDS = [
    ("http", "by_load", "http", "check"),
    ("http_sequences", "by_sequence", "http", "track http/{name}"),
    ("http_sessions", "by_session", "http", "track http/{name}"),
    ("grpc", "by_load", "grpc", "proto h2 check port {http} check-proto h1"),
    ("grpc_sequences", "by_sequence", "grpc", "proto h2 track grpc/{name}"),
]


def backends(servers):
    """HAProxy's file with the addresses of servers."""
    lines = []
    for backend, defaults, protocol, end in BACKENDS:
        lines.append(f"backend {backend} from {defaults}")
        for server in servers:
            number = server["name"].rpartition("-")[2]
            address = f"{server['ip']}:{server[protocol]}"
            lines.append(f"  server {server['name']} {address} id {number} {end.format(**server)}")
    return "\n".join(lines) + "\n"


def files(servers, haproxy):
    """The files with the addresses, by their names."""
    if haproxy:
        return {"servers.cfg": backends(servers)}
    return {f"{protocol}.yaml": json.dumps(assignment(protocol, servers), indent=1) for protocol in ("http", "grpc")}


def reload(path):
    """Has HAProxy read its files, by the socket of its master process. Returns whether it did; before release 2.7, it does not say."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as master:
        master.settimeout(60)
        master.connect(path)
        master.sendall(b"reload\n")
        answer = b"".join(iter(lambda: master.recv(4096), b"")).decode(errors="replace")
        if answer and not answer.startswith("Success=1"):
            print(f"fleet: HAProxy does not reload: {answer}", file=sys.stderr)
            return False
        return True
    print(f"fleet: cannot reach HAProxy at {path}", file=sys.stderr)
    return False


def follow(keeper, folder, haproxy):
    """Writes the balancer's files whenever the servers change. As long as none is ready, or Ray is away, the last ones stay. `haproxy`
    is the socket of HAProxy's master process; None for Envoy, which follows its files."""
    written = None
    while True:
        try:
            known = ray.get(keeper.servers.remote(), timeout=ANSWER_S)
        except (GetTimeoutError, RayError) as error:
            print(f"fleet: the keeper does not answer: {type(error).__name__}", file=sys.stderr)
            time.sleep(INTERVAL_S)
            continue
        ready = sorted((server for server in known if server["state"] == "ready"), key=lambda server: server["name"])
        names = [server["name"] for server in ready]
        if ready and names != written:
            for name, text in files(ready, haproxy is not None).items():
                new = os.path.join(folder, f".{name}")
                with open(new, "w") as file:
                    file.write(text)
                os.replace(new, os.path.join(folder, name))
            # A reload that fails is tried again: the addresses are not yet in use.
            if haproxy is None or reload(haproxy):
                written = names
                print("fleet:", *names, flush=True)
        time.sleep(INTERVAL_S)


def answer(method, *arguments):
    """The keeper's answer. Waits for a keeper that Ray starts again."""
    deadline = time.monotonic() + RESTART_S
    while True:
        try:
            return ray.get(method.remote(*arguments))
        except ActorUnavailableError:
            if time.monotonic() > deadline:
                raise
            time.sleep(INTERVAL_S)


def wait(keeper, limit_s):
    """Waits until all servers are ready."""
    deadline = time.monotonic() + limit_s
    while not answer(keeper.settled):
        if time.monotonic() > deadline:
            sys.exit("fleet: not all servers got ready; see `fleet.py status`, and `ray logs actor` for their logs")
        time.sleep(INTERVAL_S)


def number_or_scale(text):
    """A number of servers, or the least and the most and how many requests may wait for each; the other one is None."""
    numbers = [*map(int, text.split(","))]
    if len(numbers) == 1 and numbers[0] >= 0:
        return numbers[0], None
    if len(numbers) == 3 and 1 <= numbers[0] <= numbers[1] and numbers[2] >= 0:
        return None, tuple(numbers)
    raise ValueError(text)


def arguments():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--address", default="auto", help="Ray's address (default: %(default)s)")
    commands = parser.add_subparsers(dest="command", required=True)
    start = commands.add_parser("start", help="start servers; their options come after --")
    start.add_argument("--servers", type=int, default=1)
    start.add_argument("--program", default="nereid", help="the path of nereid on every node")
    start.add_argument("--cpus", type=float, default=1, help="processors of each server, for Ray's scheduler")
    start.add_argument("--gpus", type=float, default=0, help="GPUs of each server")
    start.add_argument(
        "--resource", action="append", default=[], metavar="NAME=NUMBER", help="a custom resource of Ray that each takes"
    )
    start.add_argument("--start-secs", type=float, default=600, help="time for a server to get ready")
    start.add_argument("options", nargs="*")
    addresses = commands.add_parser("addresses", help="keep the files of Envoy or HAProxy up to date")
    addresses.add_argument("--haproxy", metavar="SOCKET", help="write HAProxy's file, and reload it by its master process's socket")
    addresses.add_argument("folder")
    commands.add_parser("status", help="print the servers as JSON")
    scale = commands.add_parser("scale", help="change the number of servers, or let it follow the requests that wait")
    scale.add_argument("servers", type=number_or_scale, metavar="N | MIN,MAX,PENDING")
    commands.add_parser("update", help="replace the servers by some with other options").add_argument("options", nargs="*")
    commands.add_parser("stop", help="stop all servers")
    return parser.parse_args()


def main():
    given = arguments()
    # Ray prints news of the cluster to standard output at any time, which is for answers here.
    output, sys.stdout = sys.stdout, sys.stderr
    ray.init(address=given.address, namespace=NAME, log_to_driver=False, logging_level="ERROR")
    if given.command == "start":
        resources = {name: float(number) for name, _, number in (text.partition("=") for text in given.resource)}
        settings = Settings(given.servers, given.options, given.program, given.cpus, given.gpus, resources, given.start_secs)
        keeper = Keeper.options(name=NAME, lifetime="detached", max_restarts=-1).remote(settings)
        wait(keeper, given.start_secs)
        return
    keeper = ray.get_actor(NAME)
    if given.command == "addresses":
        follow(keeper, given.folder, given.haproxy)
    elif given.command == "status":
        for server in answer(keeper.servers):
            print(json.dumps(server), file=output)
    elif given.command == "stop":
        answer(keeper.stop)
        ray.kill(keeper)
    else:
        if given.command == "scale":
            answer(keeper.scale, *given.servers)
        else:
            answer(keeper.update, given.options)
        wait(keeper, answer(keeper.settings)["start_s"] * 2)


if __name__ == "__main__":
    main()

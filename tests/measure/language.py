"""Language models: tokens a second, processor time for a token, and time to the first token, at several numbers of clients.

Beside llama.cpp's library alone, which writes as many texts at once in one process, without a server; beside llama.cpp's own server on the
same library; and beside other servers with OpenAI's interface that run already. All answers have the same length. The tables are Markdown.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from statistics import quantiles
from threading import Event
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).parents[1] / "end_to_end/support"))

import gguf_models
import llamacpp_package
import nereid_server
from ports import free_port
from waiting import eventually

# Sequences of the engine: more clients wait in the queue.
SEQUENCES = 16
CONTEXT = 2048
CACHE = SEQUENCES * CONTEXT
ANSWER = 64
LONG_PROMPT = 1500
# As long as the context allows.
REPEATED_PROMPT = 2000
TICKS = os.sysconf("SC_CLK_TCK")


def prompt(number):
    """A text of nearly equal length for each number, which begins differently, lest it be found in a cache."""
    return f"{number * 7919 % 100_000:05d} once upon a time there was"


class Server:
    """A server with OpenAI's interface."""

    def __init__(self, name, url, pid=None):
        self.name, self.address, self.pid = name, urlsplit(url).netloc, pid
        self.model = self._get("/v1/models")["data"][0]["id"]

    def _get(self, path):
        connection = HTTPConnection(self.address, timeout=60)
        connection.request("GET", path)
        return json.load(connection.getresponse())

    def complete(self, text, tokens):
        """Streams an answer. Returns the seconds until its first token, and its number of tokens."""
        body = {"model": self.model, "prompt": text, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        connection = HTTPConnection(self.address, timeout=600)
        started, first, count = time.perf_counter(), None, 0
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        assert response.status == 200, response.read()
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            assert "error" not in event, event
            if first is None and event["choices"]:
                first = time.perf_counter() - started
            if event.get("usage"):
                count = event["usage"]["completion_tokens"]
        connection.close()
        return first, count

    def _processes(self):
        """The server's process and its descendants."""
        found = [self.pid] if self.pid else []
        for pid in found:
            for children in Path(f"/proc/{pid}/task").glob("*/children"):
                found += [int(child) for child in children.read_text().split()]
        return found

    def cpu_s(self):
        """The processor time so far; `None` if the process is unknown."""
        fields = [Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split() for pid in self._processes()]
        return sum(int(it[11]) + int(it[12]) for it in fields) / TICKS if fields else None

    def memory_mb(self):
        """The memory in use, shared parts counted once; `None` if the process is unknown."""
        rollups = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in self._processes()]
        sizes = [int(line.split()[1]) for text in rollups for line in text.splitlines() if line.startswith("Pss:")]
        return sum(sizes) / 1024 if sizes else None


def percentiles(values):
    """The median and the 99th percentile, in milliseconds."""
    values = values if len(values) > 1 else values * 2
    cuts = quantiles(values, n=100, method="inclusive")
    return cuts[49] * 1000, cuts[98] * 1000


def load(server, clients, requests, long_prompts=False):
    """Runs clients that each send requests one after the other. Returns a row of the table."""
    done = Event()

    def disturb():
        number = 0
        while not done.is_set():
            number += 1
            server.complete(f"{number} " + "word " * LONG_PROMPT, 4)

    def client(number):
        return [server.complete(prompt(number * requests + request), ANSWER) for request in range(requests)]

    with ThreadPoolExecutor(clients + 1) as threads:
        disturbing = threads.submit(disturb) if long_prompts else None
        cpu, started = server.cpu_s(), time.perf_counter()
        answers = [answer for answers in threads.map(client, range(clients)) for answer in answers]
        wall = time.perf_counter() - started
        used = None if cpu is None else server.cpu_s() - cpu
        done.set()
        if disturbing:
            disturbing.result()
    tokens = sum(count for _, count in answers)
    assert tokens == clients * requests * ANSWER, (tokens, "an answer has another length")
    return tokens / wall, used and used * 1000 / tokens, *percentiles([first for first, _ in answers])


@contextmanager
def llama_server(program, file, threads):
    """llama.cpp's own server, with as many sequences and as large a cache."""
    port = free_port()
    command = [program, "--model", file, "--host", "127.0.0.1", "--port", port, "--parallel", SEQUENCES, "--ctx-size", CACHE]
    command += ["--threads", threads, "--threads-batch", threads]
    with subprocess.Popen([str(word) for word in command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            assert eventually(lambda: is_healthy(port), 120), "llama.cpp's server did not start"
            yield Server("llama.cpp's server", f"http://127.0.0.1:{port}", process.pid)
        finally:
            process.kill()


def is_healthy(port):
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def alone(file, clients, options):
    """As `load`, by the library without a server, in a process of its own. Without the time to the first token."""
    arguments = [sys.executable, __file__, "--alone", str(clients), "--threads", str(options.threads), "--model", str(file)]
    if options.library:
        arguments += ["--library", str(options.library)]
    rate, cpu_ms = json.loads(subprocess.run(arguments, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
    return rate, cpu_ms, None, None


def measure_alone(file, sequences, options):
    """Prints tokens a second, and milliseconds of processor time for a token."""
    folder = options.library.parent if options.library else llamacpp_package.library_folder()
    oracle = llamacpp_package.Oracle(str(folder), str(file), False, None, sequences, options.threads)
    wall, cpu = time.perf_counter(), time.process_time()
    oracle.write_together([prompt(number) for number in range(sequences)], ANSWER)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(json.dumps([sequences * ANSWER / wall, cpu * 1000 / (sequences * ANSWER)]))


def cell(value, form):
    return "" if value is None else format(value, form)


def print_row(name, clients, row):
    rate, cpu_ms, median, last = row
    columns = [name, str(clients), f"{rate:.1f}", cell(cpu_ms, ".2f"), cell(median, ".0f"), cell(last, ".0f")]
    print(f"| {' | '.join(columns)} |", flush=True)


def measure(servers, options, file):
    """Prints all tables."""
    print("| | clients | tokens/s | CPU ms/token | first token p50 ms | p99 ms |\n|---|---|---|---|---|---|")
    for server in servers:
        server.complete("warm up", 4)
    for clients in options.clients:
        for server in servers:
            print_row(server.name, clients, load(server, clients, options.requests))
        if clients <= SEQUENCES:
            print_row("the library alone", clients, alone(file, clients, options))
    for server in servers:
        print_row(f"{server.name}, with long prompts in between", 4, load(server, 4, options.requests, long_prompts=True))
    print(f"\n| | first token of {REPEATED_PROMPT} tokens, ms | again, ms | CPU of that, ms | memory, MB |\n|---|---|---|---|---|")
    for server in servers:
        text = "again " + "word " * (REPEATED_PROMPT - 10)
        first, _ = server.complete(text, 1)
        before = server.cpu_s()
        again, _ = server.complete(text, 1)
        cpu = None if before is None else server.cpu_s() - before
        columns = [server.name, f"{first * 1000:.0f}", f"{again * 1000:.0f}", cell(cpu and cpu * 1000, ".0f")]
        print(f"| {' | '.join(columns)} | {cell(server.memory_mb(), '.0f')} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=lambda text: [int(number) for number in text.split(",")], default=[1, 4, 16, 64])
    parser.add_argument("--requests", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--beside", action="append", default=[])
    parser.add_argument("--llama-server", type=Path)
    parser.add_argument("--library", type=Path)
    parser.add_argument("--alone", type=int)
    options = parser.parse_args()
    file = options.model or llamacpp_package.model()
    if options.alone:
        return measure_alone(file, options.alone, options)
    others = []
    for text in options.beside:
        name, _, place = text.partition("=")
        url, _, pid = place.partition(",")
        others.append(Server(name, url, int(pid) if pid else None))
    with ExitStack() as stack:
        repository = stack.enter_context(tempfile.TemporaryDirectory())
        folder = Path(repository) / "writer/1"
        folder.mkdir(parents=True)
        (folder / "model.gguf").symlink_to(file)
        config = gguf_models.parameters(
            max_sequences=SEQUENCES, context_length=CONTEXT, cache_tokens=CACHE, threads=options.threads
        )
        (folder.parent / "config.pbtxt").write_text(config)
        library = f"--backend-config=llamacpp,library={options.library}" if options.library else llamacpp_package.flag()
        server = stack.enter_context(nereid_server.running(repository, library))
        servers = [Server("Nereid", f"http://{server.url}", server.pid)]
        if options.llama_server:
            servers.append(stack.enter_context(llama_server(options.llama_server, file, options.threads)))
        measure([*servers, *others], options, file)


if __name__ == "__main__":
    main()

"""Language models: tokens a second, processor time for a token, and time to the first token, at several numbers of clients.

Beside llama.cpp's library alone, which writes as many texts at once in one process, without a server; and beside other servers with
OpenAI's interface that run already. All answers have the same length. The tables are Markdown.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from statistics import quantiles
from threading import Event
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).parents[1] / "end_to_end/support"))

import gguf_models
import llamacpp_package
import nereid_server

# Sequences of the engine: more clients wait in the queue.
SEQUENCES = 16
ANSWER = 64
LONG_PROMPT = 1500
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


def alone(file, clients, threads):
    """As `load`, by the library without a server, in a process of its own. Without the time to the first token."""
    arguments = [sys.executable, __file__, "--alone", str(clients), "--threads", str(threads), "--model", str(file)]
    rate, cpu_ms = json.loads(subprocess.run(arguments, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
    return rate, cpu_ms, None, None


def measure_alone(file, sequences, threads):
    """Prints tokens a second, and milliseconds of processor time for a token."""
    oracle = llamacpp_package.Oracle(str(llamacpp_package.library_folder()), str(file), False, None, sequences, threads)
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
            print_row("the library alone", clients, alone(file, clients, options.threads))
    for server in servers:
        print_row(f"{server.name}, with long prompts in between", 4, load(server, 4, options.requests, long_prompts=True))
    print(f"\n| | first token of {LONG_PROMPT} tokens, ms | again, ms | memory, MB |\n|---|---|---|---|")
    for server in servers:
        text = "again " + "word " * LONG_PROMPT
        first, again = (server.complete(text, 1)[0] * 1000 for _ in range(2))
        print(f"| {server.name} | {first:.0f} | {again:.0f} | {cell(server.memory_mb(), '.0f')} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=lambda text: [int(number) for number in text.split(",")], default=[1, 4, 16, 64])
    parser.add_argument("--requests", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--beside", action="append", default=[])
    parser.add_argument("--alone", type=int)
    options = parser.parse_args()
    file = options.model or llamacpp_package.model()
    if options.alone:
        return measure_alone(file, options.alone, options.threads)
    others = []
    for text in options.beside:
        name, _, place = text.partition("=")
        url, _, pid = place.partition(",")
        others.append(Server(name, url, int(pid) if pid else None))
    with tempfile.TemporaryDirectory() as repository:
        folder = Path(repository) / "writer/1"
        folder.mkdir(parents=True)
        (folder / "model.gguf").symlink_to(file)
        config = gguf_models.parameters(max_sequences=SEQUENCES, context_length=2048, cache_tokens=32768, threads=options.threads)
        (folder.parent / "config.pbtxt").write_text(config)
        with nereid_server.running(repository, llamacpp_package.flag()) as server:
            measure([Server("Nereid", f"http://{server.url}", server.pid), *others], options, file)


if __name__ == "__main__":
    main()

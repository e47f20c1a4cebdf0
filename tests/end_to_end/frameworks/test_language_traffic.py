"""Random traffic to language models: no request is lost or mixed up, and nothing of those that ended stays.

`NEREID_LANGUAGE_REQUESTS=10000` sends that many requests; `cargo xtask test versions` does.
"""

import os
import random
import socket
from http.client import HTTPConnection
from pathlib import Path

from test_language_models import workers

import gguf_models
import llamacpp_package
import nereid_server
import processes
from http_requests import LIMIT_S
from language_traffic import Traffic
from scrapes import Scrape
from waiting import eventually

COUNT = int(os.environ.get("NEREID_LANGUAGE_REQUESTS", "400"))
SEQUENCES = 6
# The cache of one has no room for all sequences, so that requests pause; the other one guesses tokens.
MODELS: dict[str, dict] = {
    "plain": {},
    "crowded": {"cache_tokens": 640},
    "guessing": {"speculative_tokens": 4},
}


def test_no_request_is_lost_or_mixed_and_nothing_stays(tmp_path):
    chosen = random.Random(3)
    beginnings = ["", "the quick brown fox " * 3, "abc" * 30]
    prompts = [chosen.choice(beginnings) + "".join(chosen.choices("abcxyz ", k=chosen.randint(1, 60))) for _ in range(40)]
    for name, parameters in MODELS.items():
        gguf_models.write(tmp_path, name, gguf_models.parameters(max_sequences=SEQUENCES, **parameters))
    with nereid_server.running(tmp_path, llamacpp_package.flag()) as server:
        traffic = Traffic(server, list(MODELS), prompts)

        def resident():
            pids = [server.pid, *workers(server)]
            return [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) >> 8 for pid in pids]

        def load():
            """What the metrics have of requests in progress."""
            scrape = Scrape(server)
            found: dict[tuple, float | None] = {}
            for model in MODELS:
                labels = {"model_name": model, "engine": f"{model}_0"}
                names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
                found |= {(model, name): scrape.value(f"vllm:{name}", **labels) for name in names}
                found[model, "pending"] = scrape.pending(model)
            return {key: value for key, value in found.items() if value != 0}

        # The first requests allocate what the later ones use again.
        start = max(COUNT // 4, 200)
        traffic.run(range(start))
        assert eventually(lambda: load() == {}), load()
        held, megabytes = processes.holdings(server.pid), resident()
        traffic.run(range(start, start + COUNT))
        assert sum(traffic.counts.values()) == start + COUNT
        assert eventually(lambda: load() == {}), load()

        def is_as_before():
            found = processes.holdings(server.pid)
            return all(found[name] <= held[name] + 4 for name in ("processes", "descriptors", "files of shared memory"))

        assert eventually(is_as_before), (held, processes.holdings(server.pid))
        grown = [after - before for after, before in zip(resident(), megabytes, strict=True)]
        print(f"{start} + {COUNT} requests: {dict(traffic.counts)}; MiB: {megabytes} + {grown}")
        assert all(more < 16 for more in grown), (megabytes, grown)
        assert Scrape(server).value("nereid_worker_restarts_total", model="plain", version="1") in (None, 0)

        # Each sequence can still be used, all at once.
        for model in MODELS:
            connections = [HTTPConnection("127.0.0.1", server.port, timeout=LIMIT_S) for _ in range(SEQUENCES)]
            body = traffic.body("ab", {"max_tokens": None, "ignore_eos": True}, stream=True)
            for connection in connections:
                connection.request("POST", f"/v2/models/{model}/generate_stream", body)
                assert connection.getresponse().readline().startswith(b"data: ")
            for connection in connections:
                connection.sock.shutdown(socket.SHUT_RDWR)
        assert eventually(lambda: load() == {}), load()
        # The server works on as at the beginning.
        traffic.run(range(20))

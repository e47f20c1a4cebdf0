"""All families of language models on transformers, and hundreds of requests with random lengths, cancellations and disconnections, for each
promised release of the package. Not among the default tests, because they take minutes: `cargo xtask test versions`.
"""

import json
import random
import socket
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection

import pytest
from test_language_models import events, generate, workers
from test_transformers import LOAD_LIMIT_S, assert_written, write

import nereid_server
import processes
import transformers_package
from http_requests import LIMIT_S
from waiting import eventually

FAMILIES = ["llama", "qwen2", "mistral", "gpt2"]
REQUESTS = 200


@pytest.fixture(scope="module", params=transformers_package.RELEASES, ids=lambda release: release.version)
def server(tmp_path_factory, request):
    """A server with a model of each family, and what transformers itself writes."""
    repository = tmp_path_factory.mktemp("families")
    written = transformers_package.models(request.param)[1]
    for family in FAMILIES:
        write(repository, family, release=request.param)
    how = {"env": transformers_package.environment(), "limit_s": LOAD_LIMIT_S}
    with nereid_server.running(repository, request.param.flag(), **how) as server:
        yield server, written


def answer(server, row, family, **how):
    found = generate(server, row[0], model=family, **{"max_tokens": 24} | how)
    assert found.status == 200, found.body
    return found.json


@pytest.mark.parametrize("family", FAMILIES)
def test_text_is_that_of_transformers_alone_and_together(server, family):
    server, written = server
    rows = written[family]
    for row in rows:
        assert_written(answer(server, row, family), row)
    chosen = random.Random(family)
    several = [(row, chosen.randint(1, 24)) for row in rows * 3]
    with ThreadPoolExecutor(8) as clients:
        found = list(clients.map(lambda one: answer(server, one[0], family, max_tokens=one[1], logprobs=0), several))
    for (row, length), one in zip(several, found, strict=True):
        tokens = [int(next(iter(token))) for token in json.loads(one["logprobs"])]
        assert (tokens, one["num_input_tokens"]) == (row[2][:length], row[1])


def test_no_request_is_lost_or_mixed_and_nothing_stays(server):
    server, written = server
    rows = written["llama"]

    def leave(row):
        """A client that disconnects after some pieces, or at once."""
        connection = HTTPConnection("127.0.0.1", server.port, timeout=LIMIT_S)
        sampling = json.dumps({"temperature": 0, "max_tokens": None, "ignore_eos": True})
        body = json.dumps({"text_input": row[0], "stream": True, "sampling_parameters": sampling})
        connection.request("POST", "/v2/models/llama/generate_stream", body)
        pieces = random.randint(0, 5)
        if pieces:
            response = connection.getresponse()
            for _ in range(pieces):
                response.readline()
        connection.sock.shutdown(socket.SHUT_RDWR)
        connection.close()

    def run(number):
        chosen = random.Random(number)
        row, length = chosen.choice(rows), chosen.randint(1, 24)
        kind = chosen.choice(["whole", "stream", "leave", "wrong"])
        if kind == "leave":
            leave(row)
            return
        if kind == "wrong":
            found = generate(server, row[0], model="llama", temperature=-1)
            assert found.status == 400 and "'temperature' is -1" in found.json["error"]
            return
        found = generate(server, row[0], model="llama", stream=kind == "stream", max_tokens=length, logprobs=0)
        parts = events(found.body) if kind == "stream" else [found.json]
        lists = [json.loads(part["logprobs"]) or [] for part in parts]
        tokens = [int(next(iter(token))) for listed in lists for token in listed]
        assert (tokens, parts[0]["num_input_tokens"]) == (row[2][:length], row[1])
        assert parts[-1]["finish_reason"] in ("stop", "length")

    def all_of_them():
        with ThreadPoolExecutor(24) as clients:
            list(clients.map(run, range(REQUESTS)))
        # All places are free again, and the processes have nothing more to do.
        assert_written(answer(server, rows[0], "llama"), rows[0])

    def resident():
        return sum(int(open(f"/proc/{pid}/statm").read().split()[1]) for pid in workers(server))

    all_of_them()
    held, pages = processes.holdings(server.pid), resident()
    for _ in range(3):
        all_of_them()

    def is_as_before():
        found = processes.holdings(server.pid)
        return all(found[name] <= held[name] + 4 for name in ("processes", "descriptors", "files of shared memory"))

    assert eventually(is_as_before), (held, processes.holdings(server.pid))
    # 600 requests of a few kilobytes each.
    assert resident() - pages < 8 << 20 >> 12

"""The conformance suites of stores and sources on each kind of bucket, also where its server misbehaves all the time."""

import subprocess
from collections import Counter
from pathlib import Path

import pytest

import nereid_server
from cloud_repositories import environment
from clouds import Proxy, azure, google, s3

LIMIT_S = 120


@pytest.fixture(scope="module", params=[s3, google, azure])
def store(request):
    with request.param() as store:
        yield store


def conforms(store, bucket, through=None):
    program = Path(nereid_server.binary()).parent / "examples" / "store_conformance"
    assert program.exists(), f"{program} is missing: cargo build --workspace --all-targets"
    store.bucket(bucket)
    command = [program, store.url(bucket, through), *store.writing(bucket)]
    env = environment(**store.variables(through))
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=env)
    assert outcome.returncode == 0, outcome.stderr
    assert "conforms" in outcome.stdout


def test_it_conforms(store):
    conforms(store, "plain")


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("reset", 0),
        ("cut", 250),
        ("failing", b"HTTP/1.1 500 Oh\r\ncontent-length: 0\r\n\r\n"),
        ("slow-down", b"HTTP/1.1 503 Slow Down\r\nretry-after: 0\r\ncontent-length: 0\r\n\r\n"),
        ("too-many", b"HTTP/1.1 429 Too Many\r\ncontent-length: 0\r\n\r\n"),
        ("nonsense", b"HTTP/1.1 nonsense\r\n\r\n"),
    ],
)
def test_it_conforms_behind_a_proxy_that_breaks_every_other_request(store, name, fault):
    with Proxy(store.address) as proxy:
        seen = Counter()

        def every_other(line):
            seen["requests"] += 1
            return fault if seen["requests"] % 2 else None

        proxy.breaks(every_other)
        conforms(store, name, proxy.address)
        assert seen["requests"] > 20

"""The conformance suites of stores and sources on each kind of bucket, also where its server misbehaves all the time."""

import subprocess
from collections import Counter
from pathlib import Path

import pytest

import nereid_server
from certificates import Authority
from cloud_repositories import environment
from cloud_servers import Proxy, Stall, azure, google, s3

LIMIT_S = 120


@pytest.fixture(scope="module", params=[s3, google, azure])
def store(request):
    with request.param() as store:
        yield store


def conforms(store, bucket, through=None, **more):
    program = Path(nereid_server.binary()).parent / "examples" / "store_conformance"
    assert program.exists(), f"{program} is missing: cargo build --workspace --all-targets"
    store.bucket(bucket)
    command = [program, store.url(bucket, through), *store.writing(bucket)]
    env = environment(**store.variables(through), **more)
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=env)
    assert outcome.returncode == 0, outcome.stderr
    assert "conforms" in outcome.stdout


def test_it_conforms(store):
    conforms(store, "plain")


# What becomes of a request: cut at its beginning or in the middle, or answered by the proxy.
FAULTS = [
    0,
    250,
    b"HTTP/1.1 500 Oh\r\ncontent-length: 0\r\n\r\n",
    b"HTTP/1.1 503 Slow Down\r\nretry-after: 0\r\ncontent-length: 0\r\n\r\n",
    b"HTTP/1.1 429 Too Many\r\ncontent-length: 0\r\n\r\n",
    b"HTTP/1.1 nonsense\r\n\r\n",
    Stall(400),
]
# Without TLS, other tests break connections.
RARE_STALLS = [Stall(400), *[None] * 13]


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"), "storage")


@pytest.mark.parametrize("tls", [False, True])
def test_it_conforms_behind_a_proxy_that_breaks_requests(store, authority, tls):
    faults = FAULTS if tls else RARE_STALLS
    with Proxy(store.address, authority.sign("proxy") if tls else None) as proxy:
        seen: Counter[str] = Counter()

        def every_other(line):
            seen["requests"] += 1
            number, is_good = divmod(seen["requests"], 2)
            return None if is_good else faults[number % len(faults)]

        proxy.breaks(every_other)
        conforms(store, f"broken-{str(tls).lower()}", proxy.origin, SSL_CERT_FILE=str(authority.certificate))
        proxy.resume.set()
        assert proxy.stalled.is_set() and seen["requests"] > 5 * len(faults)

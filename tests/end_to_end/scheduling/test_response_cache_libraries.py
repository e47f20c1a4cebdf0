"""Response caches that are libraries built for Triton: NVIDIA's own local cache."""

import random
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from test_response_cache import Asker, cached

import nereid_server
import python_backend
from scrapes import Scrape
from waiting import eventually


@pytest.fixture
def directory():
    """The folder of NVIDIA's caches."""
    python_backend.prepare_caches()
    return f"--cache-directory={python_backend.CACHES}"


def test_nvidias_cache_conforms(directory):
    program = Path(nereid_server.binary()).parent / "examples" / "cache_conformance"
    assert program.exists(), f"{program} is missing: cargo build --workspace --all-targets"
    run: list[str | Path] = [program, python_backend.CACHES, "local", "size=4194304"]
    outcome = subprocess.run(run, capture_output=True, text=True, timeout=120)
    assert outcome.returncode == 0, outcome.stderr
    assert "conforms" in outcome.stdout


def test_nvidias_cache_keeps_answers(repository, serve, directory):
    cached(repository)
    server = serve(directory, "--cache-config=local,size=1048576")
    assert "loading cache 'local' from" in server.log
    asker = Asker(server)
    for values in ([1, 2], [1, 2, 3], [3, 2, 1], [], [7] * 10_000):
        for number, ask in enumerate([asker.json, asker.binary, asker.unary, asker.streamed]):
            before = asker.counts()
            assert ask(values) == values
            after = asker.counts()
            # Storing takes a moment, so that the second may come too early.
            if number > 1:
                assert after[1] == before[1] + 1, values
    # These metrics are the library's own, and it updates them now and then.
    assert eventually(lambda: Scrape(server).value("nv_cache_num_hits") >= 10)


def test_it_makes_room_and_is_used_by_many_at_once(repository, serve, directory):
    cached(repository)
    asker = Asker(serve(directory, "--cache-config=local,size=200000"))

    def ask(seed):
        numbers = random.Random(seed)
        for _ in range(50):
            values = [numbers.randrange(100)] * numbers.choice([1, 100, 5000, 60_000])
            assert asker.grpc is not None and asker.unary(values) == values

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(8)))
    successes, hits, misses = asker.counts()
    assert successes == 400 and hits + misses == 400 and hits > 0


@pytest.mark.parametrize(
    ("settings", "reason"),
    [(["size=x"], "cache 'local'"), (["other=1"], "cache 'local'"), (["size=1"], "cache 'local'")],
)
def test_refusals_are_passed_on(repository, directory, settings, reason):
    flags = [f"--cache-config=local,{setting}" for setting in settings]
    server = nereid_server.refused_start(repository, directory, *flags)
    assert server.exit_code != 0 and reason in server.log


def test_a_library_that_is_no_cache_is_refused(repository, tmp_path):
    folder = tmp_path / "caches" / "mine"
    folder.mkdir(parents=True)
    for contents in (b"", b"not a library"):
        (folder / "libtritoncache_mine.so").write_bytes(contents)
        flags = [f"--cache-directory={tmp_path / 'caches'}", "--cache-config=mine,a=b"]
        server = nereid_server.refused_start(repository, *flags)
        assert server.exit_code != 0 and "is not a shared library" in server.log

"""Models that come through Dragonfly's real daemon. Not among the default tests, because the daemon takes 20 minutes to build:
`cargo xtask test dragonfly`.
"""

import hashlib
import os
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from test_dragonfly import LENIENT, fetched, write_models

from certificates import Authority
from cloud_repositories import EXPLICIT, Cloud, answers, load
from cloud_servers import Proxy, Stall, s3
from dfdaemon import Dfdaemon, missing_packages
from http_requests import request
from nereid_server import running

NAMES = [f"m{number}" for number in range(20)]
SIZE, LARGE = 2 << 20, 40 << 20
LIMIT_S = 120


@pytest.fixture(scope="module")
def amazon():
    with s3() as store:
        yield Cloud(store)


@pytest.fixture
def daemon(tmp_path):
    with Dfdaemon(tmp_path / "dfdaemon") as daemon:
        yield daemon


@pytest.mark.parametrize(
    ("tools", "library", "missing"),
    [
        (["protoc", "cmake", "cc", "c++"], "libclang-14.so.1", []),
        (["protoc", "cmake", "cc", "c++"], "libclang-cpp.so.14", ["libclang-dev"]),
        (["protoc", "cmake", "cc"], "libclang.so", ["build-essential"]),
        (["cc", "c++"], "libclang.so.13", ["cmake", "protobuf-compiler"]),
        ([], "README", ["build-essential", "cmake", "libclang-dev", "protobuf-compiler"]),
    ],
)
def test_all_that_the_build_lacks_is_named(tmp_path, monkeypatch, tools, library, missing):
    for tool in tools:
        (tmp_path / tool).touch(0o755)
    (tmp_path / library).touch()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("LIBCLANG_PATH", raising=False)
    assert missing_packages([str(tmp_path)]) == missing
    monkeypatch.setenv("LIBCLANG_PATH", str(tmp_path))
    assert missing_packages([]) == missing


def digests(*folders):
    """Those of all files below folders."""
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return {hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def write_repository(folder):
    """20 models, one of them large. Returns the digests and the sizes of their files."""
    write_models(folder, NAMES, SIZE)
    # Not the same bytes everywhere: a range that is put into the wrong place shows.
    (folder / "m7" / "1" / "weights").write_bytes(os.urandom(LARGE))
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    return digests(folder), sum(sizes)


def reads(bucket, prefix):
    """How many bytes of objects were asked of a bucket, and the objects, once for each request. The daemon asks for the first byte of
    an object to learn its size.
    """
    count, paths = 0, []
    for head in bucket.heads:
        path = head.split()[1].split("?")[0]
        if not head.startswith("GET ") or f"/{prefix}/" not in path:
            continue
        paths.append(path)
        asked = re.search(r"(?i)\nrange: bytes=(\d+)-(\d+)", head)
        assert asked, head
        first, last = map(int, asked.groups())
        count += last - first + 1 if last > 0 else 0
    return count, paths


def through(daemon, *settings):
    agents = [f"proxy={daemon.address}", *settings]
    return [f"--repository-agent=dragonfly,{setting}" for setting in agents]


def test_two_servers_read_a_bucket_once(amazon, tmp_path, daemon):
    expected, size = write_repository(tmp_path / "models")
    amazon.put("once", tmp_path / "models")
    with Proxy(amazon.store.address) as bucket:
        url, environment = amazon.url("once", bucket.address), amazon.environment()
        for number in range(2):
            cache = tmp_path / f"cache{number}"
            flags = [*through(daemon, "fallback=false"), f"--repository-cache-directory={cache}"]
            bucket.heads.clear()
            with running(url, *flags, env=environment) as server:
                assert all(answers(server, name) for name in NAMES)
                assert fetched(server) == [size, 0]
            assert expected <= digests(cache)
            count, paths = reads(bucket, "once")
            if number == 0:
                assert (count, len(set(paths))) == (size, 2 * len(NAMES))
            else:
                assert (count, paths) == (0, [])
    # It asked for peers, and found none.
    assert daemon.asked_for_peers > 0


def test_servers_that_start_at_once_share_what_is_read(amazon, tmp_path, daemon):
    expected, size = write_repository(tmp_path / "models")
    amazon.put("together", tmp_path / "models")

    def start(url, number):
        cache = tmp_path / f"cache{number}"
        flags = [*through(daemon, "fallback=false"), f"--repository-cache-directory={cache}"]
        with running(url, *flags, env=amazon.environment()) as server:
            assert all(answers(server, name) for name in NAMES)
            assert fetched(server) == [size, 0]
        return digests(cache)

    with Proxy(amazon.store.address) as bucket, ThreadPoolExecutor() as pool:
        starts = [pool.submit(start, amazon.url("together", bucket.address), number) for number in range(2)]
        assert all(expected <= started.result() for started in starts)
        assert reads(bucket, "together")[0] == size


def test_an_origin_over_tls_is_read_by_the_daemon(tmp_path, daemon):
    identity = Authority(tmp_path, "tests").sign("store", "localhost")
    expected, size = write_repository(tmp_path / "models")
    with s3(identity) as store:
        secure = Cloud(store)
        secure.put("secure", tmp_path / "models")
        environment = secure.environment(AWS_CA_BUNDLE=str(tmp_path / "tests-ca.pem"))
        flags = [*through(daemon, "fallback=false"), f"--repository-cache-directory={tmp_path / 'cache'}"]
        with running(secure.url("secure"), *flags, env=environment) as server:
            assert all(answers(server, name) for name in NAMES)
            assert fetched(server) == [size, 0]
    assert expected <= digests(tmp_path / "cache")


def test_an_object_that_was_overwritten_comes_as_it_is_now(amazon, tmp_path, daemon):
    write_models(tmp_path / "models", ["a"], SIZE)
    amazon.put("overwritten", tmp_path / "models")
    flags = [EXPLICIT, "--load-model=a", *through(daemon), f"--repository-cache-directory={tmp_path / 'cache'}"]
    with running(amazon.url("overwritten"), *flags, env=amazon.environment()) as server:
        before, new = fetched(server), os.urandom(SIZE)
        amazon.store.put("models", "overwritten/a/1/weights", new)
        assert load(server, "a").status == 200
        # By the daemon again: it tells the contents apart.
        assert [now - then for now, then in zip(fetched(server), before)] == [SIZE, 0]
    assert hashlib.sha256(new).hexdigest() in digests(tmp_path / "cache")


def test_a_killed_daemon_leaves_the_rest_to_the_bucket(amazon, tmp_path, daemon):
    expected, size = write_repository(tmp_path / "models")
    amazon.put("killed", tmp_path / "models")
    flags = [EXPLICIT, f"--repository-cache-directory={tmp_path / 'cache'}"]
    with Proxy(amazon.store.address) as bucket:
        url = amazon.url("killed", bucket.address)
        with running(url, *flags, *through(daemon), env=amazon.environment()) as server:
            assert load(server, "m0").status == 200
            by_daemon, by_bucket = fetched(server)
            assert (by_daemon >= SIZE, by_bucket) == (True, 0)
            # It ends while it brings the large file.
            bucket.breaks(lambda line: Stall(1 << 20) if "/m7/1/weights" in line else None)
            with ThreadPoolExecutor() as pool:
                loading = pool.submit(load, server, "m7")
                assert bucket.stalled.wait(LIMIT_S)
                daemon.kill()
                bucket.breaks(None)
                bucket.resume.set()
                assert loading.result(LIMIT_S).status == 200
            for name in NAMES:
                assert load(server, name).status == 200 and answers(server, name)
            assert fetched(server)[1] >= size - SIZE - LARGE
    assert expected <= digests(tmp_path / "cache")


def test_without_fallback_a_killed_daemon_fails_the_load(amazon, tmp_path, daemon):
    write_models(tmp_path / "models", ["a", "b"], SIZE)
    amazon.put("strict", tmp_path / "models")
    flags = [EXPLICIT, *through(daemon, "fallback=false"), *LENIENT]
    with running(amazon.url("strict"), *flags, env=amazon.environment()) as server:
        assert load(server, "a").status == 200
        daemon.kill()
        refused = load(server, "b")
        assert refused.status >= 400 and "Dragonfly's proxy" in refused.json["error"]
        assert fetched(server)[1] == 0
        assert answers(server, "a") and not answers(server, "b")
        assert request(server, "GET", "/v2/health/live").status == 200

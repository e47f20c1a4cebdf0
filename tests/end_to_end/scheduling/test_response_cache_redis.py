"""The response cache in Redis: the real server, killed, paused, emptied and filled with what nobody wrote."""

import random
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from test_response_cache import ON, Asker, cached

import nereid_server
import redis_server
from certificates import Authority
from http_requests import LIMIT_S
from model_files import config, write_model
from scrapes import Scrape
from tensors import given
from waiting import eventually

# For tests that expect hits at once, also of large entries.
PATIENT = "socket_timeout=10000"


@pytest.fixture
def redis_program():
    """The path of redis-server."""
    return redis_server.program()


@pytest.fixture
def redis(tmp_path, redis_program):
    """An empty Redis."""
    folder = tmp_path / "redis"
    folder.mkdir()
    with redis_server.running(folder, server=redis_program) as redis:
        yield redis


def flags(redis, *more):
    """The options of a server that uses it."""
    settings = ["host=127.0.0.1", f"port={redis.port}", *more]
    return [f"--cache-config=redis,{setting}" for setting in settings]


def available(server):
    """Whether the server's cache is there."""
    return Scrape(server).value("nereid_cache_available") == 1


def asker(serve, redis, *more):
    """A server with the cache, once it is connected."""
    server = serve(*flags(redis, *more))
    assert eventually(lambda: available(server))
    return server, Asker(server)


def stored(redis, count):
    """Waits until there are as many entries."""
    return eventually(lambda: redis.run("DBSIZE") >= count)


def test_it_conforms_as_a_cache(redis):
    program = Path(nereid_server.binary()).parent / "examples" / "redis_conformance"
    assert program.exists(), f"{program} is missing: cargo build --workspace --all-targets"
    outcome = subprocess.run([program, str(redis.port)], capture_output=True, text=True, timeout=120)
    assert outcome.returncode == 0, outcome.stderr
    assert "conforms" in outcome.stdout


ELEMENTS = {
    "BOOL": np.array([True, False, True]),
    "UINT8": np.array([0, 7, 255], np.uint8),
    "INT16": np.array([-(2**15), 7, 2**15 - 1], np.int16),
    "INT64": np.array([-(2**63), 7, 2**63 - 1], np.int64),
    "FP16": np.array([0.1, -np.inf, 65504], np.float16),
    "FP32": np.array([0.1, -np.inf, 3e38], np.float32),
    "FP64": np.array([0.1, -np.inf, 1e308]),
    "BYTES": np.array([b"", b"\r\n$-1\r\n", b"\0" * 300], np.object_),
}


def test_every_type_and_size_is_stored_and_found(repository, serve, redis):
    for datatype in ELEMENTS:
        inputs, outputs = [("INPUT0", datatype, [-1])], [("OUTPUT0", datatype, [-1])]
        write_model(repository, datatype, config(datatype, "identity", inputs, outputs, extra=ON))
    server = serve(*flags(redis, PATIENT))
    assert eventually(lambda: available(server))
    with tritonclient.http.InferenceServerClient(server.url, network_timeout=LIMIT_S) as client:
        for datatype, elements in ELEMENTS.items():
            for number, size in enumerate([0, 1, 1000, 300_000]):
                values = np.resize(elements, size)

                def ask():
                    result = client.infer(datatype, [given("INPUT0", values)]).as_numpy("OUTPUT0")
                    np.testing.assert_array_equal(result, values, err_msg=f"{datatype} {size}")
                    assert result.dtype == values.dtype
                    return client.get_inference_statistics(datatype)["model_stats"][0]["inference_stats"]["cache_hit"]["count"]

                assert ask() == number
                assert stored(redis, 1 + number) and eventually(lambda: ask() > number)
        redis.run("FLUSHALL")


def test_servers_share_entries_of_models_with_equal_files(repository, serve, redis, tmp_path):
    cached(repository)
    _, first = asker(serve, redis, PATIENT)
    assert first.binary([1, 2]) == [1, 2]
    assert stored(redis, 1)
    other = tmp_path / "other"
    other.mkdir()
    cached(other)
    with nereid_server.running(other, *flags(redis, PATIENT)) as server:
        assert eventually(lambda: available(server))
        second = Asker(server)
        for ask in (second.json, second.unary, second.streamed):
            assert ask([1, 2]) == [1, 2]
        assert second.counts() == [3, 3, 0]
    changed = tmp_path / "changed"
    changed.mkdir()
    cached(changed)
    (changed / "m" / "1" / "weights").write_text("other")
    with nereid_server.running(changed, *flags(redis, PATIENT)) as server:
        assert eventually(lambda: available(server))
        third = Asker(server)
        assert third.unary([1, 2]) == [1, 2]
        assert third.counts() == [1, 0, 1]


def test_entries_are_dropped_when_their_time_is_over(repository, serve, redis):
    cached(repository)
    _, ask = asker(serve, redis, "ttl=1000", "db=2")
    ask.unary([1])
    assert eventually(lambda: b"db2:keys=1,expires=1" in redis.run("INFO", "keyspace"))


@pytest.mark.parametrize("user", [None, "cache"])
def test_tls_users_and_passwords(repository, serve, tmp_path, user):
    authority = Authority(tmp_path, "of-redis")
    ours, clients = authority.sign("localhost"), authority.sign("nereid")
    settings = ["--tls-cert-file", ours.certificate, "--tls-key-file", ours.key]
    settings += ["--tls-ca-cert-file", authority.certificate]
    settings += ["--user", user, "on", ">secret", "~*", "+@all"] if user else ["--requirepass", "secret"]
    cached(repository)
    tls = [f"cacert={authority.certificate}", f"cert={clients.certificate}", f"key={clients.key}"]
    who = ["password=secret", *([f"user={user}"] if user else [])]
    with redis_server.running(tmp_path, *map(str, settings), tls=True) as redis:
        _, ask = asker(serve, redis, *tls, *who)
        ask.unary([1])
        assert eventually(lambda: ask.unary([1]) == [1] and ask.counts()[1] > 0)
        other = Authority(tmp_path, "of-nobody")
        refused = nereid_server.refused_start(repository, *flags(redis, *tls, "password=other", *who[1:]))
        assert refused.exit_code != 0 and "WRONGPASS" in refused.log
        wrong = [
            ([f"cacert={other.certificate}", *who], "TLS"),
            # Without a certificate of its own.
            ([tls[0], *who], "cannot be used"),
        ]
        for more, reason in wrong:
            with nereid_server.running(repository, *flags(redis, *more)) as server:
                server.wait_for_log(f"the response cache in Redis at .* cannot be used: .*{reason}|{reason}")
                asker_without = Asker(server)
                assert asker_without.unary([1]) == [1] and asker_without.counts() == [1, 0, 1]
                assert not available(server)


@pytest.mark.parametrize(
    ("requires", "settings", "reason"),
    [
        (["--requirepass", "secret"], ["password=other"], "WRONGPASS"),
        (["--requirepass", "secret"], [], "NOAUTH"),
        (["--requirepass", "secret"], ["user=nobody", "password=secret"], "WRONGPASS"),
        ([], ["password=secret"], "ERR AUTH"),
        (["--databases", "2"], ["db=2"], "DB index is out of range"),
        (["--user", "cache", "on", ">secret", "~*", "+get"], ["user=cache", "password=secret"], "NOPERM"),
    ],
)
def test_settings_that_redis_refuses_end_the_start(repository, tmp_path, requires, settings, reason):
    cached(repository)
    with redis_server.running(tmp_path, *requires) as redis:
        refused = nereid_server.refused_start(repository, *flags(redis, *settings))
    assert refused.exit_code != 0 and reason in refused.log


def test_foreign_entries_are_no_answer(repository, serve, redis):
    cached(repository)
    _, ask = asker(serve, redis, PATIENT)
    ask.unary([1, 2])
    ask.unary([3])
    assert stored(redis, 2)
    # The longer one is the first one's.
    values = {redis.run("GET", key): key for key in redis.run("KEYS", "nereid:response:*")}
    value, other_value = sorted(values, key=len, reverse=True)
    one = values[value]
    poisons = [b"", b"x", value[:-1], value + b"x", value[:40], bytes(len(value)), other_value, b"x" * 100_000_000]
    poisons += [value[:place] + bytes([value[place] ^ 1]) + value[place + 1 :] for place in range(0, len(value), 7)]
    for poison in poisons:
        redis.run("SET", one, poison)
        before = ask.counts()
        assert (ask.unary([1, 2]), ask.unary([3])) == ([1, 2], [3])
        assert ask.counts()[2] > before[2], poison[:100]
        # It is repaired.
        assert eventually(lambda: ask.unary([1, 2]) == [1, 2] and redis.run("GET", one) == value)
    redis.run("DEL", one)
    redis.run("LPUSH", one, "a list")
    assert (ask.unary([1, 2]), ask.unary([3])) == ([1, 2], [3])


def test_no_answer_is_wrong_or_missing_whatever_becomes_of_redis(repository, serve, redis):
    cached(repository)
    server, ask = asker(serve, redis, "pool_size=2")
    stop, slowest, answered = threading.Event(), [0.0] * 8, [0] * 8
    wrong: list[list[int] | Exception] = []

    def client(number):
        random_numbers = random.Random(number)
        with tritonclient.grpc.InferenceServerClient(server.grpc_url) as grpc:
            while not stop.is_set():
                values = [random_numbers.randrange(50)] * random_numbers.choice([1, 10, 1000])
                given = tritonclient.grpc.InferInput("INPUT0", [len(values)], "INT32")
                given.set_data_from_numpy(np.array(values, np.int32))
                begin = time.monotonic()
                try:
                    if grpc.infer("m", [given]).as_numpy("OUTPUT0").tolist() != values:
                        wrong.append(values)
                except Exception as error:
                    wrong.append(error)
                slowest[number] = max(slowest[number], time.monotonic() - begin)
                answered[number] += 1

    clients = [threading.Thread(target=client, args=(number,)) for number in range(8)]
    for thread in clients:
        thread.start()

    def hits():
        # Not by `counts`: requests are in progress, whose counts need not agree.
        return ask.http.get_inference_statistics(ask.model)["model_stats"][0]["inference_stats"]["cache_hit"]["count"]

    def goes_on():
        """Requests are answered, from the cache again."""
        before = hits()
        return eventually(lambda: available(server) and hits() > before + 50)

    try:
        assert goes_on()
        for _ in range(2):
            redis.pause()
            assert eventually(lambda: not available(server))
            before = sum(answered)
            assert eventually(lambda: sum(answered) > before + 100)
            redis.go_on()
            assert goes_on()
            redis.kill()
            assert eventually(lambda: not available(server))
            redis.start()
            assert goes_on()
            for key in redis.run("KEYS", "*"):
                redis.run("SET", key, b"foreign")
            assert goes_on()
            redis.run("FLUSHALL")
            assert goes_on()
    finally:
        stop.set()
        for thread in clients:
            thread.join()
    assert not wrong, wrong[:3]
    # A lookup takes a tenth of a second at most; the rest is that of a busy machine.
    assert max(slowest) < 20
    # It is logged once for each time that Redis is away or, on a busy machine, seems to be.
    assert server.log.count("cannot be used") < sum(answered) / 20

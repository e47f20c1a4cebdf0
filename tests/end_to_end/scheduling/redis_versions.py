"""The response cache in every promised release of Redis, and in Valkey. Not among the default tests: `cargo xtask test versions`."""

import re

import pytest
import test_response_cache_redis as default
from test_response_cache import cached

import nereid_server
import redis_releases
import redis_server


@pytest.fixture(params=redis_releases.RELEASES)
def release(request):
    """The release that a test runs with."""
    return request.param


@pytest.fixture
def redis_program(release):
    """The path of its server."""
    return redis_releases.program(release)


redis = default.redis

test_it_conforms_as_a_cache = default.test_it_conforms_as_a_cache
test_every_type_and_size_is_stored_and_found = default.test_every_type_and_size_is_stored_and_found
test_servers_share_entries_of_models_with_equal_files = default.test_servers_share_entries_of_models_with_equal_files
test_entries_are_dropped_when_their_time_is_over = default.test_entries_are_dropped_when_their_time_is_over
test_foreign_entries_are_no_answer = default.test_foreign_entries_are_no_answer
test_no_answer_is_wrong_or_missing_whatever_becomes_of_redis = default.test_no_answer_is_wrong_or_missing_whatever_becomes_of_redis


def test_server_is_of_the_release(redis, release):
    name, _, version = release.rpartition(" ")
    kind = f"{name.lower() or 'redis'}_version:{version}"
    assert kind.encode() in redis.run("INFO", "server").split(), redis.run("INFO", "server")


@pytest.mark.parametrize(
    ("requires", "settings", "reason"),
    [
        (["--requirepass", "secret"], ["password=other"], "WRONGPASS|ERR invalid password"),
        (["--requirepass", "secret"], [], "NOAUTH"),
        # Releases before 6.0 have no users.
        ([], ["user=cache", "password=secret"], "WRONGPASS|ERR wrong number of arguments for 'auth'"),
        ([], ["password=secret"], "ERR AUTH|ERR Client sent AUTH"),
        (["--databases", "2"], ["db=2"], "ERR DB index is out of range"),
    ],
)
def test_settings_that_the_release_refuses_end_the_start(repository, tmp_path, redis_program, requires, settings, reason):
    cached(repository)
    with redis_server.running(tmp_path, *requires, server=redis_program) as redis:
        refused = nereid_server.refused_start(repository, *default.flags(redis, *settings))
    assert refused.exit_code != 0 and re.search(f"refuses its settings: ({reason})", refused.log)


def test_login_that_the_release_takes_is_used(repository, serve, tmp_path, redis_program):
    cached(repository)
    with redis_server.running(tmp_path, "--requirepass", "secret", server=redis_program) as redis:
        server, ask = default.asker(serve, redis, "password=secret", "db=3")
        ask.unary([1])
        assert default.eventually(lambda: ask.unary([1]) == [1] and ask.counts()[1] > 0)
        server.stop()
        assert server.exit_code == 0

"""Model repositories in clouds, against servers that speak the clouds' protocols."""

import json
import os
import resource
import shutil
import time
from contextlib import contextmanager

import pytest

from clouds import AWS, KEY, SECRET, Proxy, free_port, google, put_tree, s3
from http_requests import infer, request, tensor
from model_files import write_identity
from nereid_server import Server, running

EXPLICIT = "--model-control-mode=explicit"
POLL = ("--model-control-mode=poll", "--repository-poll-secs=1")
LIMIT_S = 30


def environment(**more):
    """That of the tests, without what the machine knows of clouds."""
    names = ("AWS_", "AZURE_", "GOOGLE_", "TRITON_", "CLOUD_STORAGE", "STORAGE_EMULATOR")
    own = {name: value for name, value in os.environ.items() if not name.startswith(names)}
    return {**own, "HOME": "/nonexistent", "AWS_EC2_METADATA_DISABLED": "true", **more}


class Cloud:
    """An object store with a bucket `models`, and how servers reach it."""

    def __init__(self, store, variables):
        self.store = store
        self.variables = variables
        store.bucket("models")

    def put(self, prefix, folder):
        put_tree(self.store, "models", prefix, folder)

    def url(self, path, through=None):
        return self.store.url(f"models/{path}", through)

    def environment(self, **more):
        return environment(**{**self.variables, **more})


@pytest.fixture(scope="module")
def amazon():
    with s3() as store:
        yield Cloud(store, AWS)


@pytest.fixture(scope="module", params=["s3", "gs"])
def cloud(request):
    if request.param == "s3":
        yield request.getfixturevalue("amazon")
        return
    with google() as store:
        yield Cloud(store, {"CLOUD_STORAGE_EMULATOR_ENDPOINT": f"http://{store.address}"})


@pytest.fixture
def models(tmp_path):
    """Two models of the identity backend, of which one has three versions."""
    folder = tmp_path / "models"
    for name in ("a", "b"):
        write_identity(folder, name, ["INT32"])
        (folder / name / "1" / "weights").write_bytes(name.encode() * 1000)
    for version in ("2", "10"):
        shutil.copytree(folder / "b" / "1", folder / "b" / version)
    return folder


def answers(server, model):
    """Whether a model returns what it gets."""
    inputs = [tensor("INPUT0", "INT32", [2], [1, 2])]
    answer = infer(server, model, {"inputs": inputs})
    return answer.status == 200 and answer.json["outputs"][0]["data"] == [1, 2]


def versions(server, model):
    return request(server, "GET", f"/v2/models/{model}").json["versions"]


def load(server, model):
    return request(server, "POST", f"/v2/repository/models/{model}/load")


def until(condition):
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@contextmanager
def refused(repository, *flags, env):
    """A server that gives up by itself."""
    server = Server(repository, *flags, env=env)
    try:
        assert server.wait_for_exit() != 0
        server.assert_no_panic()
        yield server
    finally:
        server.kill()


def test_models_are_served_from_a_bucket(cloud, models):
    cloud.put("served", models)
    with running(cloud.url("served"), env=cloud.environment()) as server:
        assert answers(server, "a") and answers(server, "b")
        # The newest version alone, as the version policy has it by default.
        assert versions(server, "b") == ["10"]
        assert load(server, "a").status != 200


def test_only_what_is_served_is_fetched_and_nothing_twice(amazon, models, tmp_path):
    amazon.put("cached", models)
    cache = f"--repository-cache-directory={tmp_path}/cache"
    with Proxy(amazon.store.address) as proxy:

        def fetched():
            lines = [line for line in proxy.requests if "list-type" not in line]
            listings = len(proxy.requests) - len(lines)
            proxy.requests.clear()
            return listings, sorted(line.split()[1].split("/cached/")[1] for line in lines)

        url = amazon.url("cached", proxy.address)
        with running(url, cache, env=amazon.environment()) as server:
            assert answers(server, "b")
        listings, files = fetched()
        assert listings == 1
        # Both have the same contents in two files.
        assert {file.split("/")[0] for file in files} == {"a", "b"} and len(files) <= 4
        assert not [file for file in files if file.startswith(("b/1/", "b/2/"))]
        with running(url, cache, env=amazon.environment()) as server:
            assert answers(server, "a")
        assert fetched() == (1, [])


@pytest.mark.parametrize("slash", ["", "/"])
def test_clients_load_and_unload(cloud, models, slash):
    cloud.put(f"explicit{len(slash)}", models)
    with running(cloud.url(f"explicit{len(slash)}{slash}"), EXPLICIT, env=cloud.environment()) as server:
        names = [entry["name"] for entry in request(server, "POST", "/v2/repository/index").json]
        assert names == ["a", "b"]
        assert load(server, "a").status == 200 and answers(server, "a")
        assert load(server, "nothing").status == 500
        # What is in the bucket when the load is asked for counts.
        cloud.put(f"explicit{len(slash)}/later", models / "a")
        config = (models / "a" / "config.pbtxt").read_text().replace('"a"', '"later"')
        cloud.store.put("models", f"explicit{len(slash)}/later/config.pbtxt", config.encode())
        assert load(server, "later").status == 200 and answers(server, "later")
        assert request(server, "POST", "/v2/repository/models/a/unload").status == 200
        until(lambda: not answers(server, "a"))


def test_polls_take_up_changes_and_keep_everything_while_the_bucket_is_away(amazon, models, tmp_path):
    amazon.put("polled", models)
    local = tmp_path / "local"
    with Proxy(amazon.store.address) as proxy:
        url = amazon.url("polled", proxy.address)
        other = f"--model-repository={local}"
        local.mkdir()
        with running(url, *POLL, other, env=amazon.environment()) as server:
            shutil.copytree(models / "b" / "10", models / "b" / "11")
            put_tree(amazon.store, "models", "polled/b/11", models / "b" / "11")
            until(lambda: versions(server, "b") == ["11"])
            # Many polls later, each was one listing.
            proxy.requests.clear()
            until(lambda: len(proxy.requests) >= 3)
            assert all("list-type" in line for line in proxy.requests)
            proxy.breaks(lambda line: 0)
            server.wait_for_log(f"cannot list '{url}', keeping what it had")
            assert answers(server, "a")
            # Others are polled all the same.
            write_identity(local, "c", ["INT32"])
            until(lambda: answers(server, "c"))
            proxy.breaks(None)
            amazon.store.remove("models", "polled/a/1/weights")
            amazon.store.remove("models", "polled/a/config.pbtxt")
            until(lambda: not answers(server, "a"))


@pytest.mark.parametrize(
    "fault",
    [
        b"HTTP/1.1 503 Slow Down\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 429 Too Many\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 500 Oh\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n",
        0,
        # After the head of the answer, and some bytes of the file.
        700,
    ],
)
def test_a_store_that_breaks_now_and_then_delivers_in_the_end(amazon, models, fault):
    amazon.put("broken", models)
    with Proxy(amazon.store.address) as proxy:
        seen = {}

        def first_two(line):
            seen[line] = seen.get(line, 0) + 1
            return fault if seen[line] <= 2 else None

        proxy.breaks(first_two)
        with running(amazon.url("broken", proxy.address), env=amazon.environment()) as server:
            assert answers(server, "a") and answers(server, "b")
        assert max(seen.values()) >= 3


def test_keys_are_read_from_the_file_and_the_profile_and_shown_nowhere(amazon, models, tmp_path):
    amazon.put("keys", models)
    url = amazon.url("keys")
    entry = {"key_id": KEY, "secret_key": SECRET, "session_token": "the-session-token", "region": "us-east-1"}
    path = tmp_path / "credentials.json"
    path.write_text(json.dumps({"s3": {url[:-2]: entry, "": {"key_id": "x", "secret_key": "y"}}}))
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text(f"[mine]\naws_access_key_id={KEY}\naws_secret_access_key={SECRET}\n")
    for variables in (
        {"TRITON_CLOUD_CREDENTIAL_PATH": str(path)},
        {"HOME": str(tmp_path), "AWS_PROFILE": "mine"},
        AWS,
    ):
        flags = (EXPLICIT, "--load-model=a", "--log-verbose=1")
        with running(url, *flags, env=environment(**variables)) as server:
            assert answers(server, "a")
            index = request(server, "POST", "/v2/repository/index").body
            for secret in (SECRET, "the-session-token"):
                assert secret not in server.log and secret.encode() not in index


@pytest.mark.parametrize(
    ("path", "variables", "message"),
    [
        ("missing/models", AWS, "cannot list .*NoSuchBucket"),
        ("models/missing", AWS, "does not exist"),
        ("models/x", {"TRITON_CLOUD_CREDENTIAL_PATH": "/no/such/file"}, "cannot read the credentials in '/no/such/file'"),
        ("models/x", {**AWS, "AWS_PROFILE": "nobody", "AWS_ACCESS_KEY_ID": ""}, "has the profile 'nobody'"),
    ],
)
def test_a_repository_that_cannot_be_used_is_reported_at_start(amazon, path, variables, message):
    with refused(amazon.store.url(path), env=environment(**variables)) as server:
        server.wait_for_log(message)
        assert SECRET not in server.log


def test_a_repository_whose_server_is_away_is_reported_at_start(tmp_path):
    url = f"s3://127.0.0.1:{free_port()}/models"
    with refused(url, env=environment(**AWS)) as server:
        server.wait_for_log("cannot list .*[Cc]onnect")


def test_more_files_than_a_page_of_a_listing_has(amazon):
    amazon.store.bucket("many")
    for index in range(1003):
        amazon.store.put("many", f"a/1/f{index:04}", b"")
    amazon.store.put("many", "b/1/x", b"")
    with running(amazon.store.url("many"), EXPLICIT, env=amazon.environment()) as server:
        assert [entry["name"] for entry in request(server, "POST", "/v2/repository/index").json] == ["a", "b"]


def test_a_full_disk_fails_the_load_and_leaves_nothing(amazon, models, tmp_path):
    amazon.put("large", models)
    amazon.store.put("models", "large/a/1/weights", bytes(3 << 20))
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    cache = tmp_path / "cache"
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limit[1]))
    try:
        flags = (EXPLICIT, f"--repository-cache-directory={cache}")
        server = Server(amazon.url("large"), *flags, env=amazon.environment()).wait_until_ready()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    try:
        answer = load(server, "a")
        assert answer.status == 500 and "cannot write to the cache: File too large" in answer.json["error"]
        assert load(server, "b").status == 200
        assert max(path.stat().st_size for path in (cache / "files").iterdir()) < 1 << 20
        server.stop()
    finally:
        server.kill()

"""Model repositories in clouds, against servers that speak the clouds' protocols."""

import json
import re
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest

from certificates import Authority
from cloud_repositories import (
    CLOUDS,
    CLOUDS_AND_TLS,
    EXPLICIT,
    LIMIT_S,
    POLL,
    Cloud,
    answers,
    cloud_of,
    environment,
    load,
    name_of,
    refused,
    until,
    versions,
)
from cloud_servers import AWS, KEY, SECRET, Damage, Proxy, Stall, paged_google, put_tree, s3
from google_accounts import UNAUTHORIZED, ServiceAccount
from http_requests import request
from model_files import write_identity
from nereid_server import running
from places import EXAMPLES
from ports import free_port
from scrapes import Scrape


@pytest.fixture(scope="module")
def amazon():
    with s3() as store:
        yield Cloud(store)


@pytest.fixture(scope="module", params=CLOUDS_AND_TLS, ids=name_of)
def cloud(request, tmp_path_factory):
    kind, tls = request.param
    with cloud_of(kind, tmp_path_factory.mktemp("authority") if tls else None) as cloud:
        yield cloud


# All pages of listings are alike, whatever the connection, and so are polls.
WITHOUT_TLS = [(kind, False) for kind in CLOUDS]


@pytest.fixture(scope="module")
def google_in_pages():
    with paged_google() as store:
        yield Cloud(store)


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


def names_in_index(server):
    return [entry["name"] for entry in request(server, "POST", "/v2/repository/index").json]


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
        assert names_in_index(server) == ["a", "b"]
        assert load(server, "a").status == 200 and answers(server, "a")
        assert load(server, "nothing").status == 500
        # What is in the bucket when the load is asked for counts.
        cloud.put(f"explicit{len(slash)}/later", models / "a")
        config = (models / "a" / "config.pbtxt").read_text().replace('"a"', '"later"')
        cloud.store.put("models", f"explicit{len(slash)}/later/config.pbtxt", config.encode())
        assert load(server, "later").status == 200 and answers(server, "later")
        assert request(server, "POST", "/v2/repository/models/a/unload").status == 200
        until(lambda: not answers(server, "a"))


def test_the_readmes_lines_serve_a_bucket(amazon, models, tmp_path):
    """As they are there, with keys, a store and a cache folder of this machine."""
    text = (EXAMPLES.parent / "README.md").read_text()
    lines = [line.removeprefix("$ ") for line in text.splitlines() if line.startswith(("$ export AWS_", "$ nereid --"))]
    keys, serve = lines[:2]
    assert set(re.findall(r"(\w+)=", keys)) == set(AWS)
    program, repository, cache = serve.split()
    url = re.fullmatch(r"--model-repository=s3://([\w-]+)/(\w+)", repository)
    assert url, repository
    bucket, folder = url.groups()
    amazon.store.bucket(bucket)
    put_tree(amazon.store, bucket, folder, models)
    option, place = cache.split("=")
    env = environment(**AWS, AWS_ENDPOINT_URL=amazon.store.origin())
    with running(f"s3://{bucket}/{folder}", f"{option}={tmp_path}{place}", env=env) as server:
        assert program == "nereid" and answers(server, "a") and answers(server, "b")
    assert any((tmp_path / place[1:]).rglob("*"))


@pytest.mark.parametrize("cloud", WITHOUT_TLS, indirect=True, ids=name_of)
def test_polls_take_up_changes_by_one_listing_each(cloud, models):
    cloud.put("polled", models)
    with cloud.proxy() as proxy:
        url = cloud.url("polled", proxy.origin)
        with running(url, *POLL, env=cloud.environment(proxy.origin)) as server:
            shutil.copytree(models / "b" / "10", models / "b" / "11")
            put_tree(cloud.store, "models", "polled/b/11", models / "b" / "11")
            until(lambda: versions(server, "b") == ["11"])
            # Many polls later, each was one listing.
            proxy.requests.clear()
            until(lambda: len(proxy.requests) >= 3)
            assert all("list" in line for line in proxy.requests)
            cloud.store.remove("models", "polled/a/1/weights")
            cloud.store.remove("models", "polled/a/config.pbtxt")
            until(lambda: not answers(server, "a"))


def test_a_bucket_that_is_away_keeps_what_it_had_and_holds_up_no_other(amazon, models, tmp_path):
    amazon.put("away", models)
    local = tmp_path / "local"
    local.mkdir()
    with Proxy(amazon.store.address) as proxy:
        url = amazon.url("away", proxy.address)
        with running(url, *POLL, f"--model-repository={local}", env=amazon.environment()) as server:
            assert Scrape(server).value("nereid_repository_reachable", repository=url) == 1
            proxy.breaks(lambda line: 0)
            server.wait_for_log(f"cannot list '{url}', keeping what it had")
            assert Scrape(server).value("nereid_repository_reachable", repository=url) == 0
            assert answers(server, "a")
            # Others are polled all the same.
            write_identity(local, "c", ["INT32"])
            until(lambda: answers(server, "c"))
            proxy.breaks(None)
            server.wait_for_log(f"'{url}' can be listed again")
            assert Scrape(server).value("nereid_repository_reachable", repository=url) == 1
            assert Scrape(server).value("nereid_repository_fetched_bytes", repository=url) > 1000
            amazon.store.remove("models", "away/a/1/weights")
            amazon.store.remove("models", "away/a/config.pbtxt")
            until(lambda: not answers(server, "a"))


def test_the_index_and_metrics_say_how_far_a_fetch_is(amazon, models):
    amazon.put("progress", models)
    amazon.store.put("models", "progress/a/1/weights", bytes(4 << 20))
    with Proxy(amazon.store.address) as proxy, ThreadPoolExecutor() as pool:
        proxy.breaks(lambda line: Stall(3 << 20) if "a/1/weights" in line else None)
        with running(amazon.url("progress", proxy.address), EXPLICIT, env=amazon.environment()) as server:
            loading = pool.submit(load, server, "a")
            try:
                assert proxy.stalled.wait(LIMIT_S)

                def entry():
                    index = request(server, "POST", "/v2/repository/index").json
                    return next(entry for entry in index if entry["name"] == "a")

                until(lambda: re.match(r"fetching: (2\d{3}|3\d{3}) of 4096 KiB, \d+ KiB/s, \d+ s left$", entry().get("reason", "")))
                assert entry()["state"] == "LOADING" and "version" not in entry()
                assert Scrape(server).value("nereid_model_fetch_bytes", model="a") >= 2 << 20
                config = len((models / "a" / "config.pbtxt").read_bytes())
                assert Scrape(server).value("nereid_model_fetch_total_bytes", model="a") == (4 << 20) + config
            finally:
                proxy.resume.set()
            assert loading.result().status == 200
            assert entry()["state"] == "READY" and not entry().get("reason")
            assert "nereid_model_fetch_bytes" not in Scrape(server).text
            # The log goes to no terminal.
            assert "\x1b" not in server.log


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
        seen: dict[str, int] = {}

        def first_two(line):
            seen[line] = seen.get(line, 0) + 1
            return fault if seen[line] <= 2 else None

        proxy.breaks(first_two)
        with running(amazon.url("broken", proxy.address), env=amazon.environment(proxy.address)) as server:
            assert answers(server, "a") and answers(server, "b")
        assert max(seen.values()) >= 3


def test_damage_in_transit_is_detected(cloud, models):
    cloud.put("damaged", models)
    with cloud.proxy() as proxy:
        url, env = cloud.url("damaged", proxy.origin), cloud.environment(proxy.origin)
        with running(url, EXPLICIT, "--load-model=b", env=env) as server:
            proxy.breaks(lambda line: Damage(500) if "weights" in line else None)
            answer = load(server, "a")
            assert answer.status == 500 and "what arrives of 'damaged/a/1/weights' is damaged" in answer.json["error"]
            proxy.breaks(None)
            assert load(server, "a").status == 200 and answers(server, "a")


@pytest.mark.parametrize("source", ["file", "profile", "profile of the file", "variables"])
def test_keys_are_read_from_where_they_are_and_shown_nowhere(amazon, models, tmp_path, source):
    amazon.put("keys", models)
    path = tmp_path / "credentials.json"
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text(f"[mine]\naws_access_key_id={KEY}\naws_secret_access_key={SECRET}\n")
    with Proxy(amazon.store.address) as proxy:
        url = amazon.url("keys", proxy.address)
        entry = {"key_id": KEY, "secret_key": SECRET, "session_token": "the-session-token", "region": "us-east-1"}
        other = {"key_id": "x", "secret_key": "y"}
        entries = {"profile of the file": {"": {"profile": "mine"}}}.get(source, {url[:-2]: entry, url[:-3]: other, "": other})
        path.write_text(json.dumps({"s3": entries}))
        # With a file, keys in the environment do not count.
        with_file = {"TRITON_CLOUD_CREDENTIAL_PATH": str(path), "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y"}
        variables = {
            "file": with_file,
            "profile": {"HOME": str(tmp_path), "AWS_PROFILE": "mine"},
            "profile of the file": {**with_file, "HOME": str(tmp_path)},
            "variables": {**AWS, "HOME": str(tmp_path)},
        }[source]
        with running(url, EXPLICIT, "--load-model=a", "--log-verbose=1", env=environment(**variables)) as server:
            assert answers(server, "a")
            index = request(server, "POST", "/v2/repository/index").body
            for secret in (SECRET, "the-session-token"):
                assert secret not in server.log and secret.encode() not in index
        assert proxy.in_heads(r"Credential=([^/]+)/") == {KEY}
        tokens = {bool(re.search(r"(?i)x-amz-security-token: the-session-token\r", head)) for head in proxy.heads}
        assert tokens == {source == "file"}


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("source", ["environment", "file"])
def test_a_google_key_that_is_refused_is_shown_nowhere(google_in_pages, models, tmp_path, source, tls):
    google_in_pages.put("signed", models)
    known, other = ServiceAccount(tmp_path), ServiceAccount(tmp_path, "other")
    authority = Authority(tmp_path, "storage")
    credentials = tmp_path / "credentials.json"
    with Proxy(google_in_pages.store.address, authority.sign("proxy") if tls else None) as proxy:
        # The emulators know no keys: what is in front of one checks them as Google does.
        proxy.gate = lambda line, head: None if known.has_signed(head) else UNAUTHORIZED

        def variables(account):
            where = {
                "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE": f"{proxy.origin}/storage/v1/",
                "SSL_CERT_FILE": authority.certificate,
            }
            where = {name: str(value) for name, value in where.items()}
            if source == "environment":
                return environment(**where, GOOGLE_APPLICATION_CREDENTIALS=str(account.path))
            credentials.write_text(json.dumps({"gs": {"": str(account.path)}}))
            return environment(**where, TRITON_CLOUD_CREDENTIAL_PATH=str(credentials), GOOGLE_APPLICATION_CREDENTIALS="/no/such")

        with running("gs://models/signed", "--log-verbose=1", env=variables(known)) as server:
            assert answers(server, "a") and not known.is_shown_in(server.log)
        with refused("gs://models/signed", "--log-verbose=1", env=variables(other)) as server:
            server.wait_for_log("cannot list 'gs://models/signed': Invalid Credentials")
            assert not other.is_shown_in(server.log)


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


# More than the stores list at once: S3 and Google list up to 1,000, Azure up to 5,000.
@pytest.mark.parametrize(("kind", "count"), [("s3", 1003), ("gs", 1003), ("as", 5003)])
def test_thousands_of_models_are_looked_at_by_a_few_requests(kind, count, tmp_path):
    authority = Authority(tmp_path, "storage")
    names = [f"m {number:04} ä+%25" for number in range(count)]
    with {**CLOUDS, "gs": paged_google}[kind]() as store:
        store.bucket("many")
        with ThreadPoolExecutor(8) as putting:
            puts = [putting.submit(store.put, "many", f"{name}/1/x", b"") for name in names]
        for put in puts:
            put.result()
        for identity in (None, authority.sign("proxy")):
            with Proxy(store.address, identity) as proxy:
                url, variables = store.url("many", proxy.origin), store.variables(proxy.origin)
                with running(url, EXPLICIT, env=environment(**variables, SSL_CERT_FILE=str(authority.certificate))) as server:
                    proxy.requests.clear()
                    assert names_in_index(server) == names
                assert len(proxy.requests) == 2 and all("list" in line for line in proxy.requests)


@pytest.mark.parametrize("kept", [True, False], ids=["cached", "uncached"])
def test_models_that_left_the_memory_are_fetched_again_unless_a_folder_keeps_their_files(cloud, tmp_path, kept):
    folder = tmp_path / "models"
    for name in "abc":
        write_identity(folder, name, ["INT32"], memory_byte_size="1000")
        (folder / name / "1" / "weights").write_bytes(name.encode() * 5000)
    prefix = f"left{kept}"
    cloud.put(prefix, folder)
    flags = ["--model-control-mode=on-demand", "--model-memory-budget=1500", "--model-max-evictions-per-minute=1000"]
    flags += ["--model-memory-directory=none"] + [f"--repository-cache-directory={tmp_path / 'cache'}"] * kept
    with cloud.proxy() as proxy:

        def fetches(name):
            pattern = re.compile(rf"GET \S*{prefix}(?:/|%2F){name}(?:/|%2F)1(?:/|%2F)weights")
            return len([line for line in proxy.requests if pattern.match(line)])

        url = cloud.url(prefix, proxy.origin)
        with running(url, *flags, env=cloud.environment(proxy.origin)) as server:
            for name in "abcabbca":
                assert answers(server, name)
            loads = {"a": 3, "b": 2, "c": 2}
            assert {name: server.log.count(f"successfully loaded '{name}'") for name in loads} == loads
            assert {name: fetches(name) for name in loads} == (dict.fromkeys(loads, 1) if kept else loads)
            # Only the listing of the bucket says that the files have changed.
            if kept:
                (folder / "b" / "1" / "weights").write_bytes(b"new" * 5000)
                cloud.put(prefix, folder)
                until(lambda: answers(server, "a") and answers(server, "b") and fetches("b") == 2)
                assert fetches("a") == fetches("c") == 1

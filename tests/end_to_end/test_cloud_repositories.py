"""Model repositories in clouds, against servers that speak the clouds' protocols."""

import json
import re
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from cloud_repositories import EXPLICIT, LIMIT_S, POLL, Cloud, answers, environment, load, refused, until, versions
from clouds import AWS, KEY, SECRET, Damage, Proxy, Stall, azure, free_port, google, put_tree, s3
from http_requests import request
from model_files import write_identity
from nereid_server import running
from scrapes import Scrape

@pytest.fixture(scope="module")
def amazon():
    with s3() as store:
        yield Cloud(store)


@pytest.fixture(scope="module", params=["s3", "gs", "as"])
def cloud(request):
    if request.param == "s3":
        yield request.getfixturevalue("amazon")
        return
    with {"gs": google, "as": azure}[request.param]() as store:
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


def test_polls_take_up_changes_by_one_listing_each(cloud, models):
    cloud.put("polled", models)
    with Proxy(cloud.store.address) as proxy:
        url = cloud.url("polled", proxy.address)
        with running(url, *POLL, env=cloud.environment(proxy.address)) as server:
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
                assert (entry()["state"], entry()["version"]) == ("LOADING", "")
                assert Scrape(server).value("nereid_model_fetch_bytes", model="a") >= 2 << 20
                config = len((models / "a" / "config.pbtxt").read_bytes())
                assert Scrape(server).value("nereid_model_fetch_total_bytes", model="a") == (4 << 20) + config
            finally:
                proxy.resume.set()
            assert loading.result().status == 200
            assert entry()["state"] == "READY" and not entry().get("reason")
            assert "nereid_model_fetch_bytes" not in Scrape(server).text


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
        with running(amazon.url("broken", proxy.address), env=amazon.environment(proxy.address)) as server:
            assert answers(server, "a") and answers(server, "b")
        assert max(seen.values()) >= 3


def test_what_is_damaged_on_the_way_is_noticed(cloud, models):
    cloud.put("damaged", models)
    with Proxy(cloud.store.address) as proxy:
        url, env = cloud.url("damaged", proxy.address), cloud.environment(proxy.address)
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
        assert {re.search(r"Credential=([^/]+)/", head)[1] for head in proxy.heads} == {KEY}
        tokens = {bool(re.search(r"(?i)x-amz-security-token: the-session-token\r", head)) for head in proxy.heads}
        assert tokens == {source == "file"}


def test_wrong_keys_are_refused_and_shown_nowhere(amazon, models):
    amazon.put("wrong", models)
    with amazon.store.checking_keys(), refused(amazon.url("wrong"), env=amazon.environment()) as server:
        server.wait_for_log("cannot list .*InvalidAccessKeyId")
        assert SECRET not in server.log


def test_a_google_key_that_is_refused_is_shown_nowhere(tmp_path):
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    with Proxy("127.0.0.1:1") as proxy:
        body = b'{"error": {"code": 401, "message": "Invalid Credentials"}}'
        proxy.breaks(lambda line: b"HTTP/1.1 401 Unauthorized\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
        account = {"private_key": pem, "private_key_id": "the-id-of-a-key", "client_email": "x@y", "type": "service_account"}
        path = tmp_path / "account.json"
        path.write_text(json.dumps(account))
        credentials = tmp_path / "credentials.json"
        credentials.write_text(json.dumps({"gs": {"": str(path)}}))
        for variables in (
            {"GOOGLE_APPLICATION_CREDENTIALS": str(path)},
            {"TRITON_CLOUD_CREDENTIAL_PATH": str(credentials), "GOOGLE_APPLICATION_CREDENTIALS": "/no/such/file"},
        ):
            endpoint = {"CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE": f"http://{proxy.address}/storage/v1/"}
            with refused("gs://models/wrong", env=environment(**variables, **endpoint)) as server:
                server.wait_for_log("cannot list 'gs://models/wrong': Invalid Credentials")
                assert not [line for line in pem.splitlines() if line in server.log]
                assert "the-id-of-a-key" not in server.log


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


# More than the stores list at once: S3 lists up to 1,000, Azure up to 5,000. Google's emulator lists all.
@pytest.mark.parametrize(("cloud", "count", "pages"), [("s3", 1003, 2), ("gs", 1003, 1), ("as", 5003, 2)], indirect=["cloud"])
def test_thousands_of_models_are_looked_at_by_a_few_requests(cloud, count, pages):
    cloud.store.bucket("many")
    names = [f"m{number:04}" for number in range(count)]
    with ThreadPoolExecutor(8) as putting:
        puts = [putting.submit(cloud.store.put, "many", f"{name}/1/x", b"") for name in names]
    for put in puts:
        put.result()
    with Proxy(cloud.store.address) as proxy:
        url, env = cloud.store.url("many", proxy.address), cloud.environment(proxy.address)
        with running(url, EXPLICIT, env=env) as server:
            proxy.requests.clear()
            assert [entry["name"] for entry in request(server, "POST", "/v2/repository/index").json] == names
        assert len(proxy.requests) == pages and all("list" in line for line in proxy.requests), proxy.requests

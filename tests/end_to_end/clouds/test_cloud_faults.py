"""Stores that misbehave, over TLS and without, and what else may go wrong on the way: each of it with every kind of store."""

import base64
import json
import re
import resource
import shutil
import subprocess
import time
from contextlib import nullcontext
from urllib.parse import quote

import pytest

import nereid_server
from cloud_repositories import (
    CLOUDS_AND_TLS,
    EXPLICIT,
    LIMIT_S,
    answers,
    cloud_of,
    environment,
    load,
    name_of,
    refused,
    until,
    versions,
)
from cloud_servers import SECRET, CutBody, Damage, put_tree
from google_accounts import UNAUTHORIZED, ServiceAccount
from http_requests import request
from hubs import Host
from model_files import write_identity
from nereid_server import Server, running

SIZE = 1500


def status(code, *headers):
    return "".join(f"{line}\r\n" for line in (f"HTTP/1.1 {code} Oh", *headers, "content-length: 0", "")).encode()


@pytest.fixture(scope="module", params=CLOUDS_AND_TLS, ids=name_of)
def cloud(request, tmp_path_factory):
    kind, tls = request.param
    with cloud_of(kind, tmp_path_factory.mktemp("authority") if tls else None) as cloud:
        yield cloud


def weights(name):
    return name.encode() * SIZE


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for name in ("a", "b", "c", "d", "e", "f"):
        write_identity(folder, name, ["INT32"])
        (folder / name / "1" / "weights").write_bytes(weights(name))
    return folder


def test_faults_in_transit_do_no_harm(cloud, models, tmp_path):
    """Every fault is of another model, so that one server is enough."""
    cloud.put("faults", models)
    cache = tmp_path / "cache"
    with cloud.proxy() as proxy:
        url, env = cloud.url("faults", proxy.origin), cloud.environment(proxy.origin)

        def files():
            return [path.read_bytes() for path in (cache / "files").iterdir() if not path.suffix]

        def loads_with(model, rule):
            """What the load brings, and when the request that was sent most often was sent."""
            seen: dict[str, list[float]] = {}

            def counted(line):
                seen.setdefault(line, []).append(time.monotonic())
                return rule(line, len(seen[line]))

            proxy.breaks(counted)
            answer = load(server, model)
            proxy.breaks(None)
            return answer, max(seen.values(), key=len, default=[])

        with running(url, EXPLICIT, f"--repository-cache-directory={cache}", env=env) as server:
            # A reset, and an overloaded server that wants to be left alone; then one that is broken.
            replies = [0, status(503, "retry-after: 1"), status(429, "retry-after: 0")]
            answer, times = loads_with("a", lambda line, count: replies[count - 1] if "weights" in line and count <= 3 else None)
            assert answer.status == 200 and len(times) == 4, answer.json
            assert times[2] - times[1] >= 1
            answer, times = loads_with("f", lambda line, count: status(500) if count == 1 else None)
            assert answer.status == 200 and len(times) == 2, answer.json
            answer, times = loads_with("b", lambda line, count: CutBody(100) if "weights" in line else None)
            assert answer.status == 200 and len(times) >= SIZE // 100, answer.json
            assert weights("b") in files()
            answer, _ = loads_with("c", lambda line, count: Damage(500) if "weights" in line else None)
            assert answer.status == 500 and "/c/1/weights' is damaged: its " in answer.json["error"]
            # No half model, and the next load is as good as the first.
            assert not [contents for contents in files() if len(contents) == SIZE and contents not in map(weights, "abf")]
            assert not answers(server, "c") and load(server, "c").status == 200 and answers(server, "c")

            def changes(line, count):
                if "weights" in line and count == 1:
                    cloud.store.put("models", "faults/d/1/weights", b"others")
                return None

            answer, _ = loads_with("d", changes)
            assert answer.status == 200 and b"others" in files() and weights("d") not in files(), answer.json

            # Somebody edits, cuts and removes files of the cache.
            assert load(server, "e").status == 200
            [path] = [path for path in (cache / "files").iterdir() if not path.suffix and path.read_bytes() == weights("e")]
            damages = [lambda: path.write_bytes(b"y" * SIZE), lambda: path.write_bytes(b"short"), path.unlink]
            for damage in damages:
                assert request(server, "POST", "/v2/repository/models/e/unload").status == 200
                until(lambda: path.stat().st_nlink == 1)
                path.chmod(0o644)
                damage()
                assert load(server, "e").status == 200 and answers(server, "e")
                assert path.read_bytes() == weights("e")


def test_a_disk_that_is_full_fails_the_load_and_leaves_nothing(cloud, models, tmp_path):
    cloud.put("full", models)
    cloud.store.put("models", "full/a/1/weights", bytes(3 << 20))
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    cache = tmp_path / "cache"
    with cloud.proxy() as proxy:
        env = cloud.environment(proxy.origin)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limit[1]))
        try:
            flags = (EXPLICIT, f"--repository-cache-directory={cache}")
            server = Server(cloud.url("full", proxy.origin), *flags, env=env).wait_until_ready()
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


def test_objects_that_only_mark_folders_are_folders(cloud, models, tmp_path):
    """Consoles of clouds make them."""
    folder = tmp_path / "models"
    shutil.copytree(models / "a", folder / "a")
    cloud.put("marked", folder)
    for key in ("marked/", "marked/a/", "marked/a/1/", "marked/a/2/"):
        cloud.store.put("models", key, b"")
    with running(cloud.url("marked"), env=cloud.environment()) as server:
        assert answers(server, "a") and versions(server, "a") == ["2"]
        assert [entry["name"] for entry in request(server, "POST", "/v2/repository/index").json] == ["a"]


def test_a_bucket_that_is_missing_is_named(cloud):
    # Google's emulator has no code for it.
    reason = {"S3": "NoSuchBucket", "Google": ".*no bucket named missing", "Azure": "ContainerNotFound"}[cloud.kind]
    with refused(cloud.store.url("missing/models"), env=cloud.environment()) as server:
        server.wait_for_log(f"cannot list '.*missing/models': {reason}")


def test_wrong_keys_are_refused_and_shown_nowhere(cloud, models, tmp_path):
    """Those of Google are another test's: its emulator knows none."""
    cloud.put("keys", models)
    wrong = base64.b64encode(b"the key of somebody else").decode()
    checking = cloud.store.checking_keys() if cloud.kind == "S3" else nullcontext()
    account = ServiceAccount(tmp_path)
    variables, secret, reason = {
        "S3": ({}, SECRET, "InvalidAccessKeyId"),
        "Azure": ({"AZURE_STORAGE_KEY": wrong}, wrong, "AuthorizationFailure|InvalidAuthenticationInfo"),
        "Google": ({"GOOGLE_APPLICATION_CREDENTIALS": str(account.path)}, account.id, "Invalid Credentials"),
    }[cloud.kind]
    with checking, cloud.proxy() as proxy:
        env = cloud.environment(proxy.origin, **variables)
        if cloud.kind == "Google":
            # The emulator knows no keys: what is in front of it refuses as Google does.
            proxy.gate = lambda line, head: UNAUTHORIZED
            env.pop("CLOUD_STORAGE_EMULATOR_ENDPOINT")
            env["CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE"] = f"{proxy.origin}/storage/v1/"
        with refused(cloud.url("keys", proxy.origin), "--log-verbose=1", env=env) as server:
            server.wait_for_log(f"cannot list '.*/keys': .*({reason})")
            assert secret not in server.log and not account.is_shown_in(server.log)


@pytest.fixture
def odd_names(models, tmp_path):
    """A model with files and folders that have blanks and letters of any language, and what has a meaning in URLs."""
    folder = tmp_path / "odd"
    shutil.copytree(models / "a", folder / "a b ä+%25")
    config = folder / "a b ä+%25" / "config.pbtxt"
    config.write_text(config.read_text().replace('"a"', '"a b ä+%25"'))
    for name in ("ein Gewicht ü", "重み", "50%+x&y=z", "a;b,c@d!e$f(g)'h", "~tilde"):
        (folder / "a b ä+%25" / "1" / name).write_bytes(name.encode())
        (folder / "a b ä+%25" / "1" / f"in {name}").mkdir()
        (folder / "a b ä+%25" / "1" / f"in {name}" / name).write_bytes(b"x")
    return folder


def test_models_are_pulled_and_checked_whatever_their_names(cloud, odd_names, tmp_path):
    cloud.put("pulled/ä b", odd_names)

    def nereid(*arguments):
        command = [nereid_server.binary(), *map(str, arguments)]
        return subprocess.run(command, env=cloud.environment(), capture_output=True, text=True, timeout=LIMIT_S, check=False)

    pulled = nereid("pull", cloud.url("pulled/ä b"), tmp_path / "pulled")
    assert pulled.returncode == 0, pulled.stderr
    files = [path for path in odd_names.rglob("*") if path.is_file()]
    for path in files:
        assert (tmp_path / "pulled" / path.relative_to(odd_names)).read_bytes() == path.read_bytes()
    assert len(files) == sum(path.is_file() for path in (tmp_path / "pulled").rglob("*"))
    checked = nereid("check", cloud.url("pulled/ä b"))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    with running(cloud.url("pulled/ä b"), env=cloud.environment()) as server:
        assert answers(server, quote("a b ä+%25"))


class Tokens:
    """The services that give machines in clouds their credentials. Each that they give has a number."""

    def __init__(self):
        self.given = 0

    def answer(self, path, query, headers):
        if path.endswith(("/token", "/container")):
            self.given += 1
            token = f"the-token-{self.given}-of-the-platform"
            keys = {"AccessKeyId": token, "SecretAccessKey": "secret", "Token": token, "Expiration": "2100-01-01T00:00:00Z"}
            tokens = {"access_token": token, "expires_in": 3600, "expires_on": "4102444800"}
            return 200, {}, json.dumps({**keys, **tokens}).encode()
        return 200, {"metadata-flavor": "Google"}, b""


REFUSALS = {
    "S3": (400, "<Error><Code>ExpiredToken</Code><Message>The token has expired</Message></Error>"),
    "Google": (401, '{"error": {"code": 401, "message": "Invalid Credentials"}}'),
    "Azure": (403, "<Error><Code>AuthenticationFailed</Code><Message>Lifetime validation failed</Message></Error>"),
}


def test_a_token_that_expires_in_the_middle_is_renewed(cloud, models, tmp_path):
    large = bytes(range(256)) * (80 << 10)
    # The store itself lets anybody read; the proxy checks tokens.
    public = {"public": True} if cloud.kind == "Azure" else {}
    bucket = "expiring"
    cloud.store.bucket(bucket, **public)
    put_tree(cloud.store, bucket, "a", models / "a")
    cloud.store.put(bucket, "a/1/weights", large)
    code, text = REFUSALS[cloud.kind]
    refusal = f"HTTP/1.1 {code} No\r\ncontent-length: {len(text)}\r\n\r\n{text}".encode()
    tokens, expired, used = Tokens(), set(), []

    def gate(line, head):
        [token] = set(re.findall(r"the-token-\d+-of-the-platform", head))
        used.append(token)
        if "weights" in line and len(set(used)) == 1 and used.count("a range") == 0:
            # The first range still comes.
            used.append("a range")
            expired.add(token)
            return None
        return refusal if token in expired else None

    with Host(tokens.answer).running() as service, cloud.proxy() as proxy:
        proxy.gate, proxy.is_open = gate, bool(public)
        (tmp_path / "token").write_text("of the container")
        env = environment(
            AWS_DEFAULT_REGION="us-east-1",
            AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE=str(tmp_path / "token"),
            AWS_CONTAINER_CREDENTIALS_FULL_URI=f"http://{service.address}/container",
            GCE_METADATA_HOST=service.address,
            CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE=f"{proxy.origin}/storage/v1/",
            AZURE_STORAGE_SERVICE_ENDPOINT=f"{proxy.origin}/nereidmodels",
            IDENTITY_ENDPOINT=f"http://{service.address}/token",
            IDENTITY_HEADER="x",
            **cloud.trusts,
        )
        cache = tmp_path / "cache"
        url = cloud.store.url(bucket, proxy.origin)
        with running(url, f"--repository-cache-directory={cache}", "--log-verbose=1", env=env) as server:
            assert answers(server, "a")
            assert large in [path.read_bytes() for path in (cache / "files").iterdir()]
            assert "refuses the credentials; reading them again" in server.log
            assert not [token for token in used if token in server.log]
    assert expired and tokens.given >= 2

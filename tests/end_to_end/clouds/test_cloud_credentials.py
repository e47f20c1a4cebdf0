"""Credentials that directories and machines give, and requests without any.

Azurite checks the tokens that it gets over TLS: for whom and until when they are, and who has issued them. Google's emulators check
nothing, so a proxy in front of one does.
"""

import base64
import json
import re
import time

import pytest

from certificates import Authority
from cloud_repositories import EXPLICIT, answers, cloud_of, environment, refused
from cloud_servers import Azure, ForwardProxy, Proxy, paged_google, put_tree, s3
from google_accounts import UNAUTHORIZED
from hubs import Host
from model_files import write_identity
from nereid_server import running
from ports import free_port


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    write_identity(folder, "a", ["INT32"])
    (folder / "a" / "1" / "weights").write_bytes(b"weights")
    return folder


@pytest.fixture(scope="module")
def azure(models, tmp_path_factory):
    with cloud_of("as", tmp_path_factory.mktemp("authority")) as cloud:
        cloud.put("repository", models)
        yield cloud


def token(seconds, audience="https://storage.azure.com"):
    """A token from Azure's directory that expires after this many seconds."""
    now = int(time.time())
    claims = {"aud": audience, "iss": "https://sts.windows.net/the-tenant/", "iat": now - 9, "nbf": now - 9, "exp": now + seconds}
    parts = [{"alg": "RS256", "typ": "JWT"}, claims, "a signature"]
    return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)


class Directory:
    """Azure's directory and its machines' services of identities, for one client with a secret and a token of another issuer.
    Their first token has expired already.
    """

    client, secret, federated = "the-client", "the-secret-of-the-client", "a.token.of-kubernetes"

    def __init__(self, tokens=None):
        self.tokens = tokens or [token(-5), token(600)]
        self.given = []

    def answer(self, path, query, headers):
        asked = {name: values[0] for name, values in query.items()}
        if path == "/the-tenant/oauth2/v2.0/token":
            wanted = {"client_id": self.client, "grant_type": "client_credentials"}
            proof = asked.get("client_secret") == self.secret or asked.get("client_assertion") == self.federated
            is_right = proof and asked["scope"] == "https://storage.azure.com/.default" and wanted.items() <= asked.items()
        elif path == "/metadata/instance":
            return 200, {}, b"{}"
        elif path in ("/metadata/identity/oauth2/token", "/identity"):
            is_machine = path != "/identity"
            sign = headers.get("metadata") == "true" if is_machine else headers.get("x-identity-header") == "the-header"
            is_right = (
                sign and asked["resource"] == "https://storage.azure.com" and asked.get("client_id", self.client) == self.client
            )
        else:
            return 404, {}, b""
        if not is_right:
            return 401, {}, b'{"error": "invalid_client"}'
        self.given.append(self.tokens[min(len(self.given), len(self.tokens) - 1)])
        answer = {"access_token": self.given[-1], "token_type": "Bearer", "expires_in": 86400, "expires_on": "4102444800"}
        return 200, {}, json.dumps(answer).encode()


PRINCIPAL = {"AZURE_TENANT_ID": "the-tenant", "AZURE_CLIENT_ID": Directory.client}


def azure_variables(source, folder, host):
    """The environment of a machine that has its credentials from one of these sources."""
    directory = {**PRINCIPAL, "AZURE_AUTHORITY_HOST": f"http://{host}"}
    assertion = folder / "assertion"
    assertion.write_text(Directory.federated)
    service = {"IDENTITY_ENDPOINT": f"http://{host}/identity", "IDENTITY_HEADER": "the-header"}
    kind, _, where = source.partition(", ")
    variables = {
        "principal": {**directory, "AZURE_CLIENT_SECRET": Directory.secret},
        "workload": {**directory, "AZURE_FEDERATED_TOKEN_FILE": str(assertion)},
        "service": service,
        "machine": {"AZURE_POD_IDENTITY_AUTHORITY_HOST": f"http://{host}"},
    }[kind]
    if where == "by type":
        # Keys do not count then.
        auth_type = "default" if kind in ("principal", "workload") else "managed_identity"
        return {**variables, "AZURE_STORAGE_AUTH_TYPE": auth_type, "AZURE_STORAGE_KEY": Azure.key[::-1]}
    if where == "with a client":
        return {**variables, "AZURE_STORAGE_CLIENT_ID": Directory.client, "AZURE_STORAGE_AUTH_TYPE": "managed_identity"}
    if where == "by the file":
        path = folder / "credentials.json"
        auth_type = "default" if kind in ("principal", "workload") else "managed_identity"
        path.write_text(
            json.dumps({"as": {"": {"account_str": Azure.account, "auth_type": auth_type, "client_id": Directory.client}}})
        )
        return {**variables, "TRITON_CLOUD_CREDENTIAL_PATH": str(path)}
    return variables


SOURCES = [
    f"{kind}{where}" for kind in ("principal", "workload", "service", "machine") for where in ("", ", by type", ", by the file")
]
SOURCES += ["service, with a client", "machine, with a client"]


@pytest.mark.parametrize("source", SOURCES)
def test_azure_accepts_tokens_and_expired_ones_are_renewed(azure, source, tmp_path):
    directory = Directory()
    with Host(directory.answer).running() as host:
        env = environment(**azure.store.endpoint(), **azure.trusts, **azure_variables(source, tmp_path, host.address))
        with running(azure.url("repository"), "--log-verbose=1", env=env) as server:
            assert answers(server, "a")
            assert "refuses the credentials; reading them again" in server.log
            assert not [secret for secret in [*directory.given, directory.secret, directory.federated] if secret in server.log]
    assert directory.given == directory.tokens


@pytest.mark.parametrize(
    ("source", "change", "tokens", "message"),
    [
        ("principal", {"AZURE_CLIENT_SECRET": "a-wrong-secret"}, None, ""),
        ("workload", {"AZURE_CLIENT_ID": "another-client"}, None, ""),
        ("workload", {"AZURE_FEDERATED_TOKEN_FILE": "/no/such/file"}, None, ""),
        ("service", {"IDENTITY_HEADER": "another-header"}, None, ""),
        ("service", {}, [token(-5)], "AuthenticationFailed: .*expired"),
        ("machine", {}, [token(600, "https://vault.azure.net")], "AuthenticationFailed: "),
    ],
)
def test_azure_refuses_other_tokens_and_none_is_shown(azure, source, change, tokens, message, tmp_path):
    directory = Directory(tokens)
    with Host(directory.answer).running() as host:
        variables = {**azure_variables(source, tmp_path, host.address), **change}
        with refused(azure.url("repository"), env=environment(**azure.store.endpoint(), **azure.trusts, **variables)) as server:
            server.wait_for_log(f"cannot list 'as://.*': {message}")
            shown = [secret for secret in [*directory.given, directory.federated, "a-wrong-secret"] if secret in server.log]
            assert not shown, server.log


@pytest.mark.parametrize("source", ["environment", "file", "gcloud"])
def test_googles_users_are_known_by_their_tokens(source, models, tmp_path):
    """A user's file has a token with which Google's host for accounts gives others. It is reached through a proxy here."""
    user = {"type": "authorized_user", "client_id": "an-id", "client_secret": "a-client-secret", "refresh_token": "a-refresh-token"}
    given: list[str] = []

    def accounts(path, query, headers):
        if (
            path != "/o/oauth2/token"
            or query["refresh_token"] != [user["refresh_token"]]
            or query["client_secret"] != [user["client_secret"]]
        ):
            return 401, {}, b""
        given.append(f"the-token-{len(given)}")
        return 200, {}, json.dumps({"access_token": given[-1], "expires_in": 3600, "token_type": "Bearer"}).encode()

    authority = Authority(tmp_path, "accounts")
    home = tmp_path / "home"
    path = home / ".config" / "gcloud" / "application_default_credentials.json" if source == "gcloud" else tmp_path / "user.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(user))
    credentials = tmp_path / "credentials.json"
    credentials.write_text(json.dumps({"gs": {"gs://models": str(path)}}))
    variables = {
        "environment": {"GOOGLE_APPLICATION_CREDENTIALS": str(path)},
        "file": {"TRITON_CLOUD_CREDENTIAL_PATH": str(credentials)},
        "gcloud": {"HOME": str(home)},
    }[source]
    with paged_google() as store:
        store.bucket("models")
        put_tree(store, "models", "repository", models)
        with (
            Host(accounts, authority.sign("accounts", "accounts.google.com")).running() as host,
            ForwardProxy(host.address) as forward,
            Proxy(store.address) as proxy,
        ):
            # The first token has expired.
            proxy.gate = lambda line, head: None if "Bearer the-token-1\r" in head else UNAUTHORIZED
            env = environment(
                CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE=f"{proxy.origin}/storage/v1/",
                SSL_CERT_FILE=str(authority.certificate),
                HTTPS_PROXY=forward.url,
                **variables,
            )
            with running("gs://models/repository", "--log-verbose=1", env=env) as server:
                assert answers(server, "a")
                secrets = [user["client_secret"], user["refresh_token"], *given]
                assert not [secret for secret in secrets if secret in server.log]
    assert given == ["the-token-0", "the-token-1"]


@pytest.mark.parametrize("kind", ["s3", "gs"])
def test_public_buckets_need_no_credentials(kind, models):
    with {"s3": s3, "gs": paged_google}[kind]() as store:
        store.bucket("models", public=True)
        put_tree(store, "models", "repository", models)
        with Proxy(store.address) as proxy:
            env = environment(
                CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE=f"{proxy.origin}/storage/v1/",
                GCE_METADATA_HOST=f"127.0.0.1:{free_port()}",
            )
            url = store.url("models/repository", proxy.origin)
            with running(url, EXPLICIT, "--load-model=a", env=env) as server:
                assert answers(server, "a")
            assert proxy.heads and not [head for head in proxy.heads if re.search("(?i)authorization:|signature", head)]


@pytest.mark.parametrize("source", ["file", "variables", "profile"])
def test_the_region_is_that_of_the_credentials(source, models, tmp_path):
    keys = {"AWS_ACCESS_KEY_ID": "an-id", "AWS_SECRET_ACCESS_KEY": "a-secret-of-them"}
    credentials = tmp_path / "credentials.json"
    credentials.write_text(json.dumps({"s3": {"": {"key_id": "an-id", "secret_key": "a-secret", "region": "eu-north-1"}}}))
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "config").write_text(
        "[default]\nregion = eu-north-1\naws_access_key_id=an-id\naws_secret_access_key=a-secret\n"
    )
    variables = {
        "file": {"TRITON_CLOUD_CREDENTIAL_PATH": str(credentials), "AWS_DEFAULT_REGION": "us-west-1"},
        "variables": {**keys, "AWS_REGION": "eu-north-1"},
        "profile": {"HOME": str(tmp_path)},
    }[source]
    with s3() as store:
        store.bucket("models")
        put_tree(store, "models", "repository", models)
        with Proxy(store.address) as proxy:
            # The endpoint of the environment, where the address has none.
            env = environment(AWS_ENDPOINT_URL_S3=proxy.origin, **variables)
            with running("s3://models/repository", env=env) as server:
                assert answers(server, "a")
            assert proxy.in_heads(r"Credential=an-id/\d+/([^/]+)/s3/") == {"eu-north-1"}

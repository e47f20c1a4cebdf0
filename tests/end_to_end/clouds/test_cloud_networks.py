"""How clouds are reached and by whose credentials: TLS, proxies, and the services that give machines theirs."""

import json

import pytest

from certificates import Authority
from cloud_repositories import answers, environment, refused
from cloud_servers import AWS, ForwardProxy, Proxy, azure, google, put_tree, s3
from google_accounts import ServiceAccount
from hubs import Host
from model_files import write_identity
from nereid_server import running


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"), "storage")


def filled(store, folder):
    write_identity(folder, "a", ["INT32"])
    (folder / "a" / "1" / "weights").write_bytes(b"weights")
    store.bucket("models")
    put_tree(store, "models", "repository", folder)
    return store


@pytest.fixture(scope="module", params=[s3, google, azure])
def secure(request, authority, tmp_path_factory):
    with request.param(authority.sign("store", "store")) as store:
        yield filled(store, tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    with s3() as store:
        yield filled(store, tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def plain_google(tmp_path_factory):
    with google() as store:
        yield filled(store, tmp_path_factory.mktemp("models"))


@pytest.mark.parametrize("variable", ["AWS_CA_BUNDLE", "SSL_CERT_FILE"])
def test_stores_are_reached_over_tls_by_an_authority_of_ones_own(secure, authority, variable):
    trusts = {variable: str(authority.certificate)}
    with running(secure.url("models/repository"), env=environment(**secure.variables(), **trusts)) as server:
        assert answers(server, "a")


def test_a_store_whose_certificate_is_not_trusted_is_refused(secure, authority):
    with refused(secure.url("models/repository"), env=environment(**secure.variables())) as server:
        server.wait_for_log(
            "cannot list .*: the server's certificate is not trusted: UnknownIssuer; AWS_CA_BUNDLE or SSL_CERT_FILE"
        )
    # Nor is one that is of another host.
    trusts = {"SSL_CERT_FILE": str(authority.certificate)}
    with Proxy(secure.address, authority.sign("other", "elsewhere", is_here=False), store_has_tls=True) as proxy:
        url, variables = secure.url("models/repository", proxy.origin), secure.variables(proxy.origin)
        with refused(url, env=environment(**variables, **trusts)) as server:
            server.wait_for_log("cannot list .*: the server's certificate is not trusted: certificate not valid for name")
    with refused(secure.url("models/repository"), env=environment(**secure.variables(), SSL_CERT_FILE="/no/such")) as server:
        server.wait_for_log("No such file or directory .* at '/no/such'")


def test_requests_go_through_the_proxies_of_the_environment(plain):
    url = "s3://http://store:80/models/repository"
    with ForwardProxy(plain.address) as proxy:
        for variable in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            proxy.requests.clear()
            with running(url, env=environment(**AWS, **{variable: proxy.url})) as server:
                assert answers(server, "a")
                assert "a secret" not in server.log and "a%20secret" not in server.log
            assert proxy.requests and all(" http://store:80/models" in line for line in proxy.requests)
        proxy.requests.clear()
        # Those that are near, or that are said to be, are reached directly.
        with running(plain.url("models/repository"), env=environment(**AWS, HTTP_PROXY=proxy.url)) as server:
            assert answers(server, "a")
        with refused(url, env=environment(**AWS, HTTP_PROXY=proxy.url, NO_PROXY="example.com,.store")) as server:
            server.wait_for_log("cannot list .*dns error")
        assert not proxy.requests


def test_encrypted_requests_go_through_a_tunnel(authority, tmp_path):
    with s3(authority.sign("tunnelled", "store")) as store:
        filled(store, tmp_path)
        url, trusts = "s3://https://store:443/models/repository", {"AWS_CA_BUNDLE": str(authority.certificate)}
        with ForwardProxy(store.address) as proxy:
            with running(url, env=environment(**AWS, **trusts, HTTPS_PROXY=proxy.url)) as server:
                assert answers(server, "a")
            assert proxy.requests and set(proxy.requests) == {"CONNECT store:443 HTTP/1.1"}
            without_login = f"http://{proxy.address}"
            with refused(url, env=environment(**AWS, **trusts, HTTPS_PROXY=without_login)) as server:
                server.wait_for_log("cannot list .*no connection to store:443: HTTP/1.1 407")


def test_a_proxy_that_is_none_is_named_at_start():
    with refused("s3://bucket/models", env=environment(**AWS, HTTPS_PROXY="socks5://me:secret@h:1")) as server:
        server.wait_for_log("HTTPS_PROXY is not the URL of a proxy")
        assert "secret" not in server.log


KEYS = {"AccessKeyId": "ASIAPLATFORM", "SecretAccessKey": "a-secret-of-the-platform", "Token": "a-token-of-the-platform"}

ROLE = "arn:aws:iam::123456789012:role/models"


def platform(path, query, headers):
    """The services of machines and containers of Amazon and Google."""
    keys = json.dumps({**KEYS, "Expiration": "2100-01-01T00:00:00Z", "Code": "Success"}).encode()
    if path == "/sts":
        wanted = {"Action": "AssumeRoleWithWebIdentity", "WebIdentityToken": "a.web.identity", "RoleArn": ROLE}
        assert all(query[name] == [value] for name, value in wanted.items()), query
        names = {**KEYS, "SessionToken": KEYS["Token"], "Expiration": "2100-01-01T00:00:00Z"}
        fields = "".join(f"<{name}>{value}</{name}>" for name, value in names.items())
        what = "AssumeRoleWithWebIdentity"
        return (
            200,
            {},
            f"<{what}Response><{what}Result><Credentials>{fields}</Credentials></{what}Result></{what}Response>".encode(),
        )
    if path == "/latest/api/token":
        return 200, {}, b"the-session"
    if path.startswith("/latest/meta-data/iam/security-credentials/") and headers.get("x-aws-ec2-metadata-token") != "the-session":
        return 401, {}, b""
    documents = {
        "/container": keys,
        "/latest/meta-data/iam/security-credentials/": b"the-role",
        "/latest/meta-data/iam/security-credentials/the-role": keys,
    }
    if path.startswith("/computeMetadata/v1/") and headers.get("metadata-flavor") == "Google":
        return 200, {}, b'{"access_token": "a-token-of-the-platform", "expires_in": 3600}'
    return (200, {}, documents[path]) if path in documents else (404, {}, b"")


@pytest.mark.parametrize("source", ["container", "machine", "web identity"])
def test_amazons_platforms_give_credentials(plain, source, tmp_path):
    token = tmp_path / "token"
    token.write_text("a.web.identity")
    with Host(platform).running() as service, Proxy(plain.address) as proxy:
        variables = {
            "container": {"AWS_CONTAINER_CREDENTIALS_FULL_URI": f"http://{service.address}/container"},
            "machine": {"AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://{service.address}", "AWS_EC2_METADATA_DISABLED": ""},
            "web identity": {
                "AWS_WEB_IDENTITY_TOKEN_FILE": str(token),
                "AWS_ROLE_ARN": ROLE,
                "AWS_ENDPOINT_URL_STS": f"http://{service.address}/sts",
            },
        }[source]
        if source == "container":
            variables["AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"] = str(token)
        url = plain.url("models/repository", proxy.address)
        with running(url, env=environment(AWS_DEFAULT_REGION="us-east-1", **variables)) as server:
            assert answers(server, "a")
            assert KEYS["SecretAccessKey"] not in server.log
        users = proxy.in_heads(r"Credential=([^/]+)/")
        tokens = proxy.in_heads(r"(?i)x-amz-security-token: (.+)\r")
        assert (users, tokens) == ({KEYS["AccessKeyId"]}, {KEYS["Token"]})


def test_googles_machines_give_credentials(plain_google):
    with Host(platform).running() as service, Proxy(plain_google.address) as proxy:
        variables = {
            "GCE_METADATA_HOST": service.address,
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE": f"http://{proxy.address}/storage/v1/",
        }
        with running("gs://models/repository", env=environment(**variables)) as server:
            assert answers(server, "a")
        assert all("Bearer a-token-of-the-platform" in head for head in proxy.heads)


@pytest.mark.parametrize("source", ["environment", "file", "file for all"])
def test_googles_service_accounts_sign_what_is_sent(plain_google, tmp_path, source):
    account = ServiceAccount(tmp_path)
    path, credentials = account.path, tmp_path / "credentials.json"
    entries = {"gs://models/repository": str(path), "": "/no/such/file"} if source == "file" else {"": str(path)}
    credentials.write_text(json.dumps({"gs": entries}))
    # With a file of credentials, the environment does not count.
    variables = {"TRITON_CLOUD_CREDENTIAL_PATH": str(credentials), "GOOGLE_APPLICATION_CREDENTIALS": "/no/such/file"}
    if source == "environment":
        variables = {"GOOGLE_APPLICATION_CREDENTIALS": str(path)}
    with Proxy(plain_google.address) as proxy:
        variables["CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE"] = f"{proxy.origin}/storage/v1/"
        with running("gs://models/repository", env=environment(**variables)) as server:
            assert answers(server, "a")
        assert proxy.heads and all(map(account.has_signed, proxy.heads))

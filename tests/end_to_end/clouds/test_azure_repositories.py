"""Which keys and endpoints count for Azure, against Azurite."""

import base64
import json

import pytest

from cloud_repositories import EXPLICIT, Cloud, answers, environment, refused
from cloud_servers import Azure, azure
from model_files import write_identity
from nereid_server import running

WRONG_KEY = base64.b64encode(b"some other key of an account").decode()


@pytest.fixture(scope="module")
def cloud(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    write_identity(folder, "a", ["INT32"])
    (folder / "a" / "1" / "weights").write_bytes(b"weights")
    with azure() as store:
        cloud = Cloud(store)
        cloud.put("repository", folder)
        store.bucket("open", public=True)
        for path in folder.rglob("*"):
            if path.is_file():
                store.put("open", path.relative_to(folder).as_posix(), path.read_bytes())
        yield cloud


def connection(store, **more):
    settings = {
        "AccountName": store.account,
        "AccountKey": store.key,
        "BlobEndpoint": store.endpoint()["AZURE_STORAGE_SERVICE_ENDPOINT"],
    }
    return ";".join(f"{name}={value}" for name, value in {**settings, **more}.items())


@pytest.mark.parametrize("source", ["variables", "key", "connection", "file", "file for all"])
def test_keys_are_found_wherever_they_may_be(cloud, tmp_path, source):
    url, endpoint, wrong = cloud.url("repository"), cloud.store.endpoint(), {"AZURE_STORAGE_KEY": WRONG_KEY}
    entry = {"account_str": Azure.account, "account_key": Azure.key}
    path = tmp_path / "credentials.json"
    file = {url[:-3]: entry, "": {"account_str": "x", "account_key": WRONG_KEY}}
    path.write_text(json.dumps({"as": file if source == "file" else {"": {**entry, "auth_type": "key"}}}))
    with_file = {**endpoint, **wrong, "TRITON_CLOUD_CREDENTIAL_PATH": str(path)}
    variables = {
        "variables": cloud.store.variables(),
        "key": {**cloud.store.variables(), "AZURE_STORAGE_AUTH_TYPE": "key", "AZURE_STORAGE_ACCOUNT": Azure.account},
        "connection": {"AZURE_STORAGE_CONNECTION_STRING": connection(cloud.store)},
        # With a file, keys in the environment do not count.
        "file": with_file,
        "file for all": with_file,
    }[source]
    with running(url, "--log-verbose=1", env=environment(**variables)) as server:
        assert answers(server, "a")
        assert Azure.key not in server.log


def test_the_account_may_be_written_as_a_host_or_be_in_the_environment(cloud):
    for account, more in [
        (f"{Azure.account}.blob.core.windows.net", {}),
        ("someone-else", {"AZURE_STORAGE_ACCOUNT": Azure.account}),
    ]:
        url = f"as://{account}/models/repository"
        with running(url, env=cloud.environment(**more)) as server:
            assert answers(server, "a")


def test_public_containers_need_no_key_and_others_do(cloud):
    endpoint = cloud.store.endpoint()
    with running(cloud.store.url("open"), EXPLICIT, "--load-model=a", env=environment(**endpoint)) as server:
        assert answers(server, "a")
    with refused(cloud.url("repository"), env=environment(**endpoint)) as server:
        server.wait_for_log("cannot list .*Authori[sz]ation|cannot list .*PublicAccess|cannot list .*ResourceNotFound")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"AZURE_STORAGE_KEY": WRONG_KEY}, "cannot list .*AuthorizationFailure"),
        ({"AZURE_STORAGE_KEY": "not base64"}, "cannot list "),
        ({"AZURE_STORAGE_KEY": "", "AZURE_STORAGE_AUTH_TYPE": "key"}, "there is no key: set AZURE_STORAGE_KEY"),
        ({"AZURE_STORAGE_AUTH_TYPE": "password"}, "unknown AZURE_STORAGE_AUTH_TYPE 'password'"),
        ({"AZURE_STORAGE_ACCOUNT": "nobody"}, "cannot list "),
    ],
)
def test_wrong_credentials_are_reported_at_start_without_them(cloud, more, message):
    with refused(cloud.url("repository"), env=cloud.environment(**more)) as server:
        server.wait_for_log(message)
        assert WRONG_KEY not in server.log and Azure.key not in server.log


def test_a_container_that_is_missing_is_named(cloud):
    with refused(cloud.store.url("missing/models"), env=cloud.environment()) as server:
        server.wait_for_log("cannot list 'as://.*missing/models': ContainerNotFound")

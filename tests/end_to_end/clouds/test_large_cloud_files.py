"""A file of 256 MiB from each kind of cloud: every byte of it arrives, and it does not pass through the server's memory as a whole."""

import os
from http.client import HTTPConnection
from pathlib import Path

import pytest

from certificates import Authority
from cloud_repositories import EXPLICIT, Cloud, answers, refused
from cloud_servers import Proxy, azure, google
from model_files import write_identity
from nereid_server import running
from scrapes import Scrape
from seaweedfs import SeaweedFS, seaweedfs

MIB = 1 << 20
SIZE = 256 * MIB
# Over what an idle server has.
MEMORY = 64 * MIB
LOAD_LIMIT_S = 300


@pytest.fixture(scope="module")
def contents():
    """Bytes that are nowhere the same: each MiB begins with its number."""
    block = os.urandom(MIB - 8)
    return b"".join(number.to_bytes(8) + block for number in range(SIZE // MIB))


@pytest.fixture(scope="module", params=[seaweedfs, google, azure])
def cloud(request):
    with request.param() as store:
        yield Cloud(store)


@pytest.fixture
def models(tmp_path):
    write_identity(tmp_path / "models", "a", ["INT32"])
    return tmp_path / "models"


def memory(server, field):
    """In bytes: VmRSS now, VmHWM at its highest."""
    status = Path(f"/proc/{server.pid}/status").read_text()
    return int(status.split(f"{field}:")[1].split()[0]) << 10


def is_whole(path, contents):
    """Whether a file has these contents."""
    view = memoryview(contents)
    with open(path, "rb") as file:
        same = all(file.read(MIB) == view[start : start + MIB] for start in range(0, len(contents), MIB))
        return same and not file.read(1)


def test_a_large_file_arrives_and_takes_no_memory(cloud, models, contents, tmp_path):
    """With TLS and without."""
    cloud.put("large", models)
    cloud.store.http.timeout = LOAD_LIMIT_S
    cloud.store.put("models", "large/a/1/weights", contents)
    authority = Authority(tmp_path, "storage")
    arrives(cloud, models, contents, tmp_path / "plain")
    with Proxy(cloud.store.address, authority.sign("proxy")) as proxy:
        proxy.keeps_host = type(cloud.store) is SeaweedFS
        arrives(cloud, models, contents, tmp_path / "tls", proxy.origin, SSL_CERT_FILE=str(authority.certificate))


def arrives(cloud, models, contents, cache, through=None, **trusts):
    url, env = cloud.url("large", through), cloud.environment(through, **trusts)
    with running(url, EXPLICIT, f"--repository-cache-directory={cache}", env=env) as server:
        idle = memory(server, "VmRSS")
        connection = HTTPConnection("127.0.0.1", server.port, timeout=LOAD_LIMIT_S)
        connection.request("POST", "/v2/repository/models/a/load")
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        assert answers(server, "a")
        assert memory(server, "VmHWM") - idle < MEMORY
        fetched = Scrape(server).value("nereid_repository_fetched_bytes", repository=url)
        assert fetched == SIZE + (models / "a" / "config.pbtxt").stat().st_size
    [large] = [path for path in (cache / "files").iterdir() if path.stat().st_size >= SIZE]
    assert is_whole(large, contents)
    large.unlink()


@pytest.mark.parametrize("cloud", [seaweedfs], indirect=True)
@pytest.mark.parametrize("tls", [False, True])
def test_a_server_that_checks_signatures_refuses_a_wrong_secret(cloud, tls, tmp_path):
    secret = "another-secret-key"
    authority = Authority(tmp_path, "storage")
    with Proxy(cloud.store.address, authority.sign("proxy") if tls else None) as proxy:
        proxy.keeps_host = True
        env = cloud.environment(AWS_SECRET_ACCESS_KEY=secret, SSL_CERT_FILE=str(authority.certificate))
        with refused(cloud.url("large", proxy.origin), env=env) as server:
            server.wait_for_log("cannot list .*SignatureDoesNotMatch")
            assert secret not in server.log

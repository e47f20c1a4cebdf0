"""Models that come through Dragonfly, and other repository agents on models in clouds."""

import json
import shutil
import subprocess
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from test_repository_agents import Agents, model

import nereid_server
from cloud_repositories import EXPLICIT, Cloud, answers, load, refused, until
from cloud_servers import Proxy, azure, google, s3
from dragonfly_proxy import DragonflyProxy, Fault
from http_requests import request
from model_files import write_identity
from nereid_server import running
from places import EXAMPLES
from scrapes import Scrape

# Models that fail to load keep no server from being ready.
LENIENT = ["--exit-on-error=false", "--strict-readiness=false"]
FETCHED = "nereid_dragonfly_fetched_bytes"


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
def proxy():
    with DragonflyProxy() as proxy:
        yield proxy


def write_models(folder, names, size=1000):
    """Models of the identity backend whose files differ. Returns the sizes of their files."""
    for number, name in enumerate(names):
        write_identity(folder, name, ["INT32"])
        (folder / name / "1" / "weights").write_bytes(bytes([number]) * size)
    return [path.stat().st_size for path in folder.rglob("*") if path.is_file()]


def fetched(server):
    """Bytes that came through Dragonfly, and from the bucket."""
    scrape = Scrape(server)
    return [scrape.value(FETCHED, source=source) for source in ("dragonfly", "bucket")]


def test_two_servers_read_a_bucket_once(amazon, tmp_path, proxy):
    names = [f"m{number}" for number in range(20)]
    sizes = write_models(tmp_path / "models", names)
    amazon.put("once", tmp_path / "models")
    with Proxy(amazon.store.address) as bucket:
        url = amazon.url("once", bucket.address)
        flags = [f"--repository-agent=dragonfly,proxy={proxy.address}"]
        for _ in range(2):
            with running(url, *flags, env=amazon.environment()) as server:
                assert all(answers(server, name) for name in names)
                assert fetched(server) == [sum(sizes), 0]
        reads = [line.split("?")[0] for line in bucket.requests if "/once/" in line.split("?")[0]]
        assert len(reads) == len(set(reads)) == len(sizes)
    assert sorted(proxy.origin_reads) == sorted(set(proxy.origin_reads))
    assert len(proxy.requests) == 2 * len(sizes)


def test_large_files_come_in_ranges(cloud, tmp_path, proxy):
    sizes = write_models(tmp_path / "models", ["large"], size=20_000_000)
    cloud.put("large", tmp_path / "models")
    with running(cloud.url("large"), f"--repository-agent=dragonfly,proxy={proxy.address}", env=cloud.environment()) as server:
        assert answers(server, "large")
        assert fetched(server) == [sum(sizes), 0]
    ranges = {headers["Range"] for headers in proxy.headers if "Range" in headers}
    assert len(ranges) == 3
    assert len(proxy.origin_reads) == len(sizes)


FAULTS: dict[str, Fault | None] = {
    "away": None,
    "failing": lambda path: 503,
    "failing for some": lambda path: 500 if path.endswith("weights") else None,
    "damaging": lambda path: b"x" * 1000 if path.endswith("weights") else None,
    "cutting": lambda path: b"x" if path.endswith("weights") else None,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_files_that_the_proxy_fails_to_bring_come_from_the_bucket(amazon, tmp_path, fault):
    prefix = fault.replace(" ", "-")
    sizes = write_models(tmp_path / "models", ["a", "b"])
    amazon.put(prefix, tmp_path / "models")
    with DragonflyProxy() as proxy:
        address = proxy.address
        rule = FAULTS[fault]
        if rule is None:
            proxy.shutdown()
            proxy.server_close()
        else:
            proxy.fault = rule
        agent = f"--repository-agent=dragonfly,proxy={address}"
        with running(amazon.url(prefix), agent, env=amazon.environment()) as server:
            assert answers(server, "a") and answers(server, "b")
            assert fetched(server)[1] >= 2000
            if fault == "failing":
                assert fetched(server) == [0, sum(sizes)]
        if fault not in ("away", "damaging"):
            return
        strict = [agent, "--repository-agent=dragonfly,fallback=false", *LENIENT]
        with running(amazon.url(prefix), *strict, env=amazon.environment()) as server:
            assert not answers(server, "a")
            index = request(server, "POST", "/v2/repository/index").json
            reasons = [entry["reason"] for entry in index]
            assert all("Dragonfly's proxy" in reason or "damaged" in reason for reason in reasons), reasons
            assert fetched(server)[1] == 0


@pytest.mark.parametrize("by_content", [True, False])
def test_an_object_that_was_overwritten_comes_as_it_is_now(amazon, tmp_path, by_content):
    prefix = f"overwritten{by_content}"
    write_models(tmp_path / "models", ["a"])
    amazon.put(prefix, tmp_path / "models")
    # Older daemons do not know the header that tells contents apart.
    with DragonflyProxy(by_content) as proxy:
        agent = f"--repository-agent=dragonfly,proxy={proxy.address}"
        with running(amazon.url(prefix), EXPLICIT, agent, "--load-model=a", env=amazon.environment()) as server:
            assert answers(server, "a")
            before = fetched(server)
            amazon.store.put("models", f"{prefix}/a/1/weights", b"y" * 1000)
            assert load(server, "a").status == 200
            routed, stored = (now - then for now, then in zip(fetched(server), before))
            assert (routed >= 1000) if by_content else (stored >= 1000)


def test_a_file_in_the_form_of_dragonflys_own_agent_is_read(amazon, tmp_path, proxy):
    write_models(tmp_path / "models", ["named", "plain"])
    config = tmp_path / "models" / "named" / "config.pbtxt"
    config.write_text(config.read_text() + "model_repository_agents { agents [ { name: 'dragonfly' } ] }\n")
    amazon.put("file", tmp_path / "models")
    settings = tmp_path / "dragonfly.json"
    signature = ["X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Date", "X-Amz-Expires", "X-Amz-SignedHeaders", "X-Amz-Signature"]
    settings.write_text(json.dumps({"proxy": proxy.address, "header": {"X-Own": "value"}, "filter": signature}))
    environment = amazon.environment() | {"TRITON_DRAGONFLY_CONFIG_PATH": str(settings)}
    with running(amazon.url("file"), env=environment) as server:
        assert answers(server, "named") and answers(server, "plain")
    # Only the files of the model that names the agent, and not its configuration, which names it.
    assert [path.split("/file/")[1] for path in proxy.requests] == ["named/1/weights"]
    assert all(headers["X-Own"] == "value" for headers in proxy.headers)
    assert proxy.headers[0]["X-Dragonfly-Filter"] == "&".join(signature)


def test_a_repositorys_own_file_names_its_agents(amazon, tmp_path, proxy):
    write_models(tmp_path / "models", ["a"])
    amazon.put("own", tmp_path / "models")
    agents = f"agents {{ name: 'dragonfly' parameters {{ key: 'proxy' value: '{proxy.address}' }} }}"
    amazon.store.put("models", "own/agents.pbtxt", agents.encode())
    with running(amazon.url("own"), "--repository-agent=missing", env=amazon.environment()) as server:
        assert answers(server, "a")
        assert "not used" not in server.log
    assert sorted(path.split("/own/")[1] for path in proxy.requests) == ["a/1/weights", "a/config.pbtxt"]
    amazon.store.put("models", "own/agents.pbtxt", b"agents { nam: 'x' }")
    with refused(amazon.url("own"), env=amazon.environment()) as server:
        assert "agents.pbtxt: 1:" in server.log


def test_agents_see_models_in_clouds_at_their_addresses(amazon, tmp_path):
    agents = Agents(tmp_path, ["one", "two"])
    url = amazon.url("agents")
    model(tmp_path / "models", "seen", ("one", {}))
    model(tmp_path / "models", "moved", ("one", {"update": f"{url}/seen"}), ("two", {}))
    elsewhere = model(tmp_path, "elsewhere")
    model(tmp_path / "models", "local", ("one", {"update": str(elsewhere)}), ("two", {}))
    amazon.put("agents", tmp_path / "models")
    with running(url, *agents.flags, env=amazon.environment()) as server:
        assert all(request(server, "GET", f"/v2/models/{name}/ready").status == 200 for name in ("seen", "moved", "local"))
        lines = agents.lines()
        assert any(line.endswith(f"ModelInitialize type 1 at {url}/seen") for line in lines)
        assert any(line.endswith(f"ModelInitialize type 1 at {url}/moved") for line in lines)
        loads = {line.split(" LOAD at ")[1] for line in lines if line.startswith("two ") and " LOAD at " in line}
        assert loads == {f"{url}/seen", str(elsewhere)}


def test_checksums_of_models_in_clouds_are_checked(amazon, tmp_path):
    write_models(tmp_path / "models", ["good", "bad"], size=3)
    for name, digest in [("good", "900150983cd24fb0d6963f7d28e17f72"), ("bad", "0" * 32)]:
        path = tmp_path / "models" / name / "1" / "weights"
        path.write_bytes(b"abc")
        agents = f"agents {{ name: 'checksum' parameters {{ key: 'MD5:1/weights' value: '{digest}' }} }}"
        config = tmp_path / "models" / name / "config.pbtxt"
        config.write_text(config.read_text() + f"model_repository_agents {{ {agents} }}\n")
    amazon.put("checked", tmp_path / "models")
    with running(amazon.url("checked"), *LENIENT, env=amazon.environment()) as server:
        until(lambda: answers(server, "good"))
        assert not answers(server, "bad")
        assert "'1/weights' has MD5 900150983cd24fb0d6963f7d28e17f72, expected 000" in server.log


def test_a_check_of_a_bucket_names_the_agents_of_its_address(amazon, tmp_path):
    write_models(tmp_path / "models", ["m"])
    amazon.put("named", tmp_path / "models")
    url = amazon.url("named")
    for prefix, expected in [(url, "dragonfly"), ("s3://other", None)]:
        options = [f"--repository-agent=dragonfly,{it}" for it in ("proxy=http://127.0.0.1:1", f"repository={prefix}")]
        command = [nereid_server.binary(), "check", "--json", *options, url]
        done = subprocess.run(command, env=amazon.environment(), capture_output=True, text=True, timeout=60, check=True)
        (found,) = json.loads(done.stdout)["models"]
        assert (found.get("agents") or {"names": [None]})["names"] == [expected], found


class Quiet(SimpleHTTPRequestHandler):
    """Serves a folder."""

    def log_message(self, *_):
        pass


def test_a_model_of_the_web_comes_by_the_proxy(tmp_path):
    file = Path(shutil.copy(EXAMPLES / "model_repository" / "digits" / "1" / "model.onnx", tmp_path / "digits.onnx"))
    handler = partial(Quiet, directory=tmp_path)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as web, DragonflyProxy(by_content=False) as proxy:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        try:
            agents = ["dragonfly", f"dragonfly,proxy={proxy.address}", "dragonfly,fallback=false"]
            flags = [f"--repository-agent={agent}" for agent in agents]
            with running(f"http://127.0.0.1:{web.server_address[1]}/digits.onnx", *flags) as server:
                assert request(server, "GET", "/v2/models/digits/ready").status == 200
                assert fetched(server) == [file.stat().st_size, 0]
            assert proxy.origin_reads == ["/digits.onnx"]
        finally:
            web.shutdown()

"""Models from Hugging Face's hub, from registries and from the web, and `nereid pull` and `nereid check` of all of them."""

import json
import os
import re
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import gguf_models
import llamacpp_package
import nereid_server
import sentence_package
from cloud_repositories import EXPLICIT, LIMIT_S, POLL, answers, environment, load, refused, until, versions
from cloud_servers import Proxy, Stall
from http_requests import request
from hubs import TITLE, Delivery, HuggingFace, Registry, Web, archive
from model_files import write_identity
from nereid_server import running
from places import EXAMPLES
from scrapes import Scrape


@pytest.fixture(scope="module")
def delivery():
    with Delivery().running() as host:
        yield host


@pytest.fixture(scope="module")
def hub(delivery):
    with HuggingFace(delivery).running() as host:
        yield host


@pytest.fixture(scope="module", params=["open", "with a token"])
def registry(request, delivery):
    with Registry(delivery, request.param != "open").running() as host:
        yield host


@pytest.fixture(scope="module")
def web():
    with Web().running() as host:
        yield host


@pytest.fixture
def models(tmp_path):
    """Two models: `a`, with a large file, and `b`, with two versions."""
    folder = tmp_path / "models"
    for name in ("a", "b"):
        write_identity(folder, name, ["INT32"])
        (folder / name / "1" / "weights ä").write_bytes(name.encode() * 5000)
    shutil.copytree(folder / "b" / "1", folder / "b" / "2")
    (folder / "README.md").write_text("# Models")
    return folder


def of_hub(hub, **more):
    return environment(HF_ENDPOINT=f"http://{hub.address}", HF_TOKEN=hub.token, **more)


def of_registry(registry, folder, login=None):
    """The environment, with Docker's login in a folder."""
    path = folder / "docker"
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps({"auths": {registry.address: {"auth": login or registry.login}}}))
    return environment(DOCKER_CONFIG=str(path))


def test_a_model_of_the_hub_is_served(hub, delivery, models):
    hub.put("owner/a", models / "a")
    hub.private.add("owner/a")
    delivery.requests.clear()
    with running("hf://owner/a", env=of_hub(hub)) as server:
        assert answers(server, "a")
        assert hub.token not in server.log
    # Large files come from another host, which learns no token.
    assert delivery.requests and not any("authorization" in map(str.lower, headers) for *_, headers in delivery.requests)


def test_a_repository_of_the_hub_may_have_several_models_and_only_what_is_served_is_fetched(hub, models, tmp_path):
    hub.put("owner/several", models)
    hub.put("owner/deep", models.parent)
    cache = f"--repository-cache-directory={tmp_path}/cache"

    def fetched():
        return [path.split("/resolve/")[1].split("/", 1)[1] for _, path, _ in hub.requests if "/resolve/" in path]

    hub.requests.clear()
    with running("hf://owner/several", cache, env=of_hub(hub)) as server:
        assert answers(server, "a") and versions(server, "b") == ["2"]
    assert "b/2/weights ä" in fetched() and "b/1/weights ä" not in fetched() and "README.md" not in fetched()
    # The same files in another place, which the cache has.
    hub.requests.clear()
    with running("hf://owner/deep/models", cache, env=of_hub(hub)) as server:
        assert answers(server, "a")
    assert [path for path in fetched() if "weights" in path] == []


def test_revisions_are_chosen_and_followed(hub, models):
    hub.put("owner/b", models / "b", "v1")
    shutil.copytree(models / "b" / "1", models / "b" / "3")
    hub.put("owner/b", models / "b")
    with running("hf://owner/b@v1", env=of_hub(hub)) as server:
        assert versions(server, "b") == ["2"]
    with running("hf://owner/b", *POLL, env=of_hub(hub)) as server:
        assert versions(server, "b") == ["3"]
        shutil.copytree(models / "b" / "1", models / "b" / "4")
        hub.put("owner/b", models / "b")
        until(lambda: versions(server, "b") == ["4"])


# What sentence-transformers/all-MiniLM-L6-v2 has beside its ONNX files.
SENTENCE_TRANSFORMER = [
    ".gitattributes",
    "1_Pooling/config.json",
    "README.md",
    "config.json",
    "config_sentence_transformers.json",
    "model.safetensors",
    "modules.json",
    "openvino/openvino_model.bin",
    "openvino/openvino_model.xml",
    "pytorch_model.bin",
    "sentence_bert_config.json",
    "tf_model.h5",
    "tokenizer.json",
    "vocab.txt",
]


# How long a stop takes that waits for nothing, on a busy machine.
PROMPT_S = 15


def onnx_model():
    return (EXAMPLES / "model_repository/add_sub/1/model.onnx").read_bytes()


@pytest.mark.parametrize(
    ("files", "path", "model"),
    [
        ([*SENTENCE_TRANSFORMER, "onnx/model_O1.onnx", "onnx/model_qint8_arm64.onnx"], "onnx/model.onnx", "all-MiniLM-L6-v2"),
        (["README.md", "config.json"], "model.onnx", "all-MiniLM-L6-v2"),
        (["onnx/model.onnx", "onnx/model_fp16.onnx"], "onnx/model_quantized.onnx", "all-MiniLM-L6-v2"),
        (["onnx/decoder_model.onnx"], "onnx/encoder_model.onnx", "all-MiniLM-L6-v2-encoder_model"),
        (["model_index.json", "vae_decoder/model.onnx"], "unet/model.onnx", "unet"),
    ],
)
def test_a_repository_in_the_hubs_own_layout_is_one_model(hub, tmp_path, files, path, model):
    hub.put_files("owner/all-MiniLM-L6-v2", {**dict.fromkeys(files, b"not a model"), path: onnx_model()})
    is_main = path in ("model.onnx", "onnx/model.onnx")
    address = "hf://owner/all-MiniLM-L6-v2" + ("" if is_main else f"/{path}" if model != "unet" else "/unet")
    with running(address, env=of_hub(hub)) as server:
        assert versions(server, model) == ["1"]
        assert [entry["name"] for entry in request(server, "POST", "/v2/repository/index").json] == [model]
    folder = tmp_path / "pulled"
    outcome = nereid("pull", address, folder, env=of_hub(hub))
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout.split() == [str(folder / model)]
    assert (folder / model / "1" / "model.onnx").read_bytes() == onnx_model()
    checked = nereid("check", address, env=of_hub(hub))
    assert checked.returncode == 0 and model in checked.stdout, checked.stdout + checked.stderr


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            ["onnx/encoder_model.onnx", "onnx/decoder_model.onnx"],
            "several models; name one of them: hf://owner/odd/onnx/decoder_model.onnx, hf://owner/odd/onnx/encoder_model.onnx",
        ),
        (["unet/model.onnx", "vae/model.onnx"], "name one of them: hf://owner/odd/unet, hf://owner/odd/vae"),
        (["model.safetensors", "pytorch_model.bin"], "only weights in the format PyTorch and safetensors"),
        (["a-Q4_K_M.gguf", "b-Q4_K_M.gguf"], "a-Q4_K_M.gguf"),
    ],
)
def test_a_repository_of_the_hub_without_one_model_is_refused_everywhere(hub, tmp_path, files, message):
    hub.put_files("owner/odd", dict.fromkeys(files, b"x"))
    with refused("hf://owner/odd", env=of_hub(hub)) as server:
        server.wait_for_log(re.escape(message))
    for command in (["pull", "hf://owner/odd", tmp_path / "pulled"], ["check", "hf://owner/odd"]):
        outcome = nereid(*command, env=of_hub(hub))
        assert outcome.returncode == 1 and message in outcome.stderr, outcome.stderr


@pytest.mark.parametrize("count", [1, 3], ids=["whole", "split"])
def test_language_model_of_the_hub_answers(hub, tmp_path, count):
    endings = [f"-{number + 1:05}-of-{count:05}" for number in range(count)] if count > 1 else [""]
    best = {f"Q4_K_M/tiny-Q4_K_M{end}.gguf": part for end, part in zip(endings, gguf_models.parts(count), strict=True)}
    others = ["Q8_0/tiny-Q8_0.gguf", "mmproj-F16.gguf", "README.md"]
    hub.put_files("owner/tiny-GGUF", {**dict.fromkeys(others, b"not a model"), **best})
    flags = [llamacpp_package.flag()]
    body = {"text_input": "ab", "exclude_input_in_output": True, "temperature": 0, "max_tokens": 8, "ignore_eos": True}

    def answer(server):
        return request(server, "POST", "/v2/models/tiny-GGUF/generate", json.dumps(body)).json["text_output"]

    with running("hf://owner/tiny-GGUF", *flags, env=of_hub(hub)) as server:
        served = answer(server)
    (tmp_path / "own").mkdir()
    gguf_models.write(tmp_path / "own", "tiny-GGUF")
    with running(tmp_path / "own", *flags) as server:
        assert answer(server) == served


@pytest.mark.parametrize("graph", ["onnx/model.onnx", "model.onnx"])
def test_sentence_transformer_of_the_hub_embeds_texts(hub, tmp_path, graph):
    models, made = sentence_package.models()
    version = models / "mean" / "1"
    paths = [path for path in version.rglob("*") if path.is_file()]
    files = {str(path.relative_to(version)): path.read_bytes() for path in paths}
    files[graph] = files.pop("model.onnx")
    others = ["README.md", "model.safetensors", "pytorch_model.bin", "onnx/model_qint8_avx512.onnx"]
    hub.put_files("owner/mean", {**dict.fromkeys(others, b"not a model"), **files})

    def assert_embeds(server):
        body = {"model": "mean", "input": made["data"]["texts"]}
        answer = request(server, "POST", "/v1/embeddings", json.dumps(body))
        assert answer.status == 200, answer.body
        vectors = [entry["embedding"] for entry in answer.json["data"]]
        np.testing.assert_allclose(vectors, made["mean"]["texts"], rtol=0, atol=1e-5)

    with running("hf://owner/mean", env=of_hub(hub)) as server:
        assert_embeds(server)
    for command in (
        ["pull", "hf://owner/mean", tmp_path / "pulled"],
        ["add", "hf://owner/mean", f"--repository={tmp_path / 'added'}"],
    ):
        outcome = nereid(*command, env=of_hub(hub))
        assert outcome.returncode == 0, outcome.stderr
        assert (tmp_path / f"{command[0]}ed" / "mean" / "1" / "1_Pooling" / "config.json").exists()
    with running(tmp_path / "added") as server:
        assert_embeds(server)


def test_passwords_and_signatures_of_addresses_are_sent_and_not_shown(models, tmp_path):
    secrets = ("the-password", "the-signature")
    with Web("me:the-password").running() as web:
        web.put("a.zip", archive("zip", models / "a"))
        address = f"http://me:the-password@{web.address}/a.zip?X-Amz-Signature=the-signature"
        with running(address, "--log-verbose=1", env=environment()) as server:
            assert answers(server, "a")
            shown = f"http://{web.address}/a.zip?X-Amz-Signature=***"
            assert Scrape(server).value("nereid_repository_reachable", repository=shown) == 1
            told = server.log + Scrape(server).text + request(server, "POST", "/v2/repository/index").body.decode()
            assert not [secret for secret in secrets if secret in told]
        web.files.clear()
        web.login = "Basic other"
        with refused(address, env=environment()) as server:
            server.wait_for_log("cannot look at 'http://.*401")
            assert not [secret for secret in secrets if secret in server.log]
        for command in (["pull", address, tmp_path / "pulled"], ["check", address]):
            outcome = nereid(*command, env=environment())
            assert outcome.returncode == 1 and "401" in outcome.stderr
            assert not [secret for secret in secrets if secret in outcome.stdout + outcome.stderr]


@pytest.mark.parametrize("what", ["load", "index", "start"])
def test_a_stop_does_not_wait_for_a_slow_store(web, models, what):
    web.put("slow.tar", archive("tar", models))
    with Proxy(web.address) as proxy:
        if what == "start":
            proxy.breaks(lambda line: Stall(3) if line.startswith("GET") else None)
        address = f"http://{proxy.address}/slow.tar"
        flags = [EXPLICIT, "--load-model=*"] if what == "start" else [EXPLICIT]
        server = nereid_server.Server(address, *flags, env=environment())
        try:
            if what != "start":
                server.wait_until_ready()
                web.put("slow.tar", archive("tar", models / "a", "a/"))
                proxy.breaks(lambda line: Stall(3))
            with ThreadPoolExecutor() as pool:
                if what == "load":
                    asking = pool.submit(load, server, "a")
                elif what == "index":
                    asking = pool.submit(request, server, "POST", "/v2/repository/index")
                assert proxy.stalled.wait(LIMIT_S)
                began = time.monotonic()
                server.stop()
                assert time.monotonic() - began < PROMPT_S
                if what == "load":
                    assert asking.result().status != 200
        finally:
            server.kill()
            proxy.resume.set()


@pytest.mark.parametrize(
    ("address", "token", "message"),
    [
        ("hf://owner/secret", "hf_a-wrong-token", "cannot list 'hf://owner/secret': .*Invalid username or password"),
        ("hf://owner/nothing", HuggingFace.token, "cannot list 'hf://owner/nothing': .*Repository not found"),
        ("hf://owner/secret@nothing", HuggingFace.token, "cannot list 'hf://owner/secret@nothing': .*not found"),
        ("hf://owner", HuggingFace.token, "the owner or the name of the repository is missing"),
    ],
)
def test_refusals_of_the_hub_are_reported_at_start(hub, models, address, token, message):
    hub.put("owner/secret", models)
    hub.private.add("owner/secret")
    with refused(address, env={**of_hub(hub), "HF_TOKEN": token}) as server:
        server.wait_for_log(message)
        assert token not in server.log


def test_a_file_that_is_not_what_the_hub_says_is_refused(hub, models):
    hub.put("owner/damaged", models)
    _commit, files = hub.repositories["owner/damaged"]["main"]
    with running("hf://owner/damaged", EXPLICIT, env=of_hub(hub)) as server:
        good = dict(files)

        def damaged(path, query, headers):
            files.update(good)
            if "/resolve/" in path:
                files["a/config.pbtxt"] = good["a/config.pbtxt"].replace(b"INT32", b"INT64")
            return HuggingFace._answer(hub, path, query, headers)

        hub.answer = damaged
        try:
            answer = request(server, "POST", "/v2/repository/models/a/load")
        finally:
            hub.answer = hub._answer
            files.update(good)
        assert answer.status == 500 and "is damaged" in answer.json["error"]
        assert request(server, "POST", "/v2/repository/models/a/load").status == 200


@pytest.mark.parametrize("kind", ["tar.gz", "tgz", "tar.zst", "tar", "zip"])
def test_archives_of_models_are_served(web, models, kind):
    for name, folder, prefix, expected in [
        ("a", models / "a", "", ["a"]),
        ("release-1", models / "a", "a/", ["a"]),
        ("all", models, "", ["a", "b"]),
    ]:
        url = web.put(f"{name}.{kind}", archive(kind, folder, prefix))
        with running(f"{url}?signature=x", EXPLICIT, "--load-model=*", env=environment()) as server:
            assert [entry["name"] for entry in request(server, "POST", "/v2/repository/index").json] == expected
            assert all(answers(server, model) for model in expected)


def unpacked(cache):
    """The folders of archives that the cache keeps for the next start."""
    return [path.with_suffix("") for path in (cache / "unpacked").glob("*.list")]


@pytest.mark.parametrize("kind", ["archive", "artifact", "image"])
def test_unpacked_archives_are_kept_for_the_next_start(web, delivery, models, tmp_path, kind):
    contents = archive("tar.gz", models, "models/" if kind == "image" else "")
    with Registry(delivery, False).running() as registry:
        annotations = {TITLE: "x", "io.deis.oras.content.unpack": "true"} if kind == "artifact" else {}
        registry.put("kept", "v1", [(contents, f"{OF_ORAS}+gzip", annotations)])
        address = web.put("kept.tar.gz", contents) if kind == "archive" else f"oci://{registry.address}/kept:v1"
        cache = tmp_path / "cache"
        flags, env = (EXPLICIT, "--load-model=*", f"--repository-cache-directory={cache}"), environment()

        def serves():
            web.requests.clear(), delivery.requests.clear()
            with running(address, *flags, env=env) as server:
                assert answers(server, "a") and answers(server, "b")
                until(lambda: unpacked(cache))
                fetched = [path for method, path, _ in web.requests if method == "GET"] + delivery.requests
                return bool(fetched), server.log

        assert serves()[0]
        [folder] = unpacked(cache)
        fetched, log = serves()
        assert not fetched and "is unpacked in the cache" in log
        # Somebody edits what is unpacked: it is made anew of the archive, which is in the cache as well.
        weights = next(folder.rglob("weights*"))
        weights.unlink()
        weights.write_bytes(b"other weights")
        fetched, log = serves()
        assert not fetched and "was changed; unpacking it again" in log
        # Two servers share it, and what is unpacked is enough.
        shutil.rmtree(cache / "files")
        with running(address, *flags, env=env) as server:
            fetched, log = serves()
            assert not fetched and answers(server, "a")
        # A server needs no more than a limit allows once it has ended.
        with running(address, *flags, "--repository-cache-byte-size=1", env=env) as server:
            assert request(server, "POST", "/v2/repository/models/a/unload").status == 200
        web.put("other.tar", archive("tar", models))
        with running(f"http://{web.address}/other.tar", *flags, "--repository-cache-byte-size=1", env=env):
            assert folder not in unpacked(cache)


def test_the_index_and_metrics_say_how_far_an_archive_is(web, models):
    web.put("long.tar", archive("tar", models / "a", "a/"))
    with Proxy(web.address) as proxy, ThreadPoolExecutor() as pool:
        with running(f"http://{proxy.address}/long.tar", EXPLICIT, env=environment()) as server:
            (models / "a" / "1" / "more").write_bytes(bytes(6 << 20))
            web.put("long.tar", archive("tar", models / "a", "a/"))
            proxy.breaks(lambda line: Stall(3 << 20) if line.startswith("GET") else None)
            loading = pool.submit(load, server, "a")
            try:
                assert proxy.stalled.wait(LIMIT_S)

                def entry():
                    index = request(server, "POST", "/v2/repository/index").json
                    return next(entry for entry in index if entry["name"] == "a")

                until(
                    lambda: re.match(r"fetching: (2\d{3}|3\d{3}) of 6\d{3} KiB, \d+ KiB/s, \d+ s left$", entry().get("reason", ""))
                )
                repository = {"repository": f"http://{proxy.address}/long.tar"}
                assert Scrape(server).value("nereid_repository_fetch_bytes", **repository) >= 2 << 20
                assert Scrape(server).value("nereid_repository_fetch_total_bytes", **repository) > 6 << 20
            finally:
                proxy.resume.set()
            assert loading.result().status == 200 and answers(server, "a")
            assert "nereid_repository_fetch_bytes" not in Scrape(server).text
            assert re.search("fetched .* MB of .* MB \\(1 files\\) of 'http://.*/long.tar'", server.log)


def test_an_archive_that_changes_is_loaded_again(web, models):
    url = web.put("b.zip", archive("zip", models / "b"))
    with running(url, *POLL, env=environment()) as server:
        assert versions(server, "b") == ["2"]
        shutil.copytree(models / "b" / "1", models / "b" / "3")
        web.put("b.zip", archive("zip", models / "b"))
        until(lambda: versions(server, "b") == ["3"])
        contents = web.files.pop("/b.zip")
        server.wait_for_log("keeping what it had")
        assert answers(server, "b")
        web.files["/b.zip"] = contents


@pytest.mark.parametrize("kind", ["archive", "files"])
def test_models_that_stay_as_they_are_are_not_loaded_again(web, delivery, models, tmp_path, kind):
    with Registry(delivery, False).running() as registry:

        def put():
            web.put("both.tar", archive("tar", models))
            files = [path for path in models.rglob("*") if path.is_file()]
            titles = [{TITLE: path.relative_to(models).as_posix()} for path in files]
            registry.put("both", "v1", [(path.read_bytes(), OF_ORAS, title) for path, title in zip(files, titles)])

        put()
        address = f"http://{web.address}/both.tar" if kind == "archive" else f"oci://{registry.address}/both:v1"
        cache = f"--repository-cache-directory={tmp_path / 'cache'}"
        with running(address, *POLL, cache, env=environment()) as server:
            # Another server makes links to the same files, and removes them.
            with running(address, cache, env=environment()) as other:
                assert answers(other, "a")
            shutil.copytree(models / "b" / "1", models / "b" / "3")
            put()
            until(lambda: versions(server, "b") == ["3"])
            assert answers(server, "a")
            loads = re.findall(r"\bloading '(\w+)' version (\d+)", server.log)
            assert sorted(loads) == [("a", "1"), ("b", "2"), ("b", "3")]


def test_a_models_only_file_is_served(web):
    url = web.put("sums.onnx", onnx_model())
    with running(url, env=environment()) as server:
        assert versions(server, "sums") == ["1"]


def test_archives_that_lead_out_or_are_none_are_refused(web, models, tmp_path):
    for name, contents, message in [
        ("out.zip", archive("zip", models, "../"), "leads out of the folder"),
        ("out.tar.gz", archive("tar.gz", models, "a/../../"), "leads out of the folder"),
        ("page.zip", b"<html>Please log in</html>", "neither a tar file nor a zip file"),
    ]:
        url = web.put(name, contents)
        with refused(url, env=environment()) as server:
            server.wait_for_log(f"cannot fetch '{url}': cannot unpack it: .*{message}")
    with refused(f"http://{web.address}/missing.zip", env=environment()) as server:
        server.wait_for_log("cannot look at .*404")


OF_ORAS = "application/vnd.oci.image.layer.v1.tar"


def artifacts(registry, models):
    """The same model as ORAS pushes files and folders, and as an image, also as one of several."""
    files = [path for path in (models / "a").rglob("*") if path.is_file()]
    titled = [(path.read_bytes(), OF_ORAS, {TITLE: path.relative_to(models / "a").as_posix()}) for path in files]
    registry.put("team/a", "files", titled)
    packed = archive("tar.gz", models / "a", "a/")
    registry.put("team/folder", "v1", [(packed, f"{OF_ORAS}+gzip", {TITLE: "a", "io.deis.oras.content.unpack": "true"})])
    image: list[tuple[bytes, str, dict[str, str]]] = [
        # Of a base image: nothing that models are made of.
        (archive("tar.gz", models / "b", "etc/"), f"{OF_ORAS}+gzip", {}),
        (archive("tar.gz", models / "a" / "1", "models/a/1/"), f"{OF_ORAS}+gzip", {}),
        (archive("tar.zst", models / "a", "./models/a/"), f"{OF_ORAS}+zstd", {}),
    ]
    described = registry.put("team/car", "of-this-machine", image)
    other = {**registry.put("team/car", "of-another", titled[:1]), "platform": {"os": "windows", "architecture": "arm"}}
    this = {**described, "platform": {"os": "linux", "architecture": "amd64"}}
    kind = "application/vnd.oci.image.index.v1+json"
    registry.put_manifest("team/car", "latest", {"schemaVersion": 2, "mediaType": kind, "manifests": [other, this]})
    return ["team/a:files", "team/folder:v1", "team/car:of-this-machine", f"team/car@{described['digest']}", "team/car"]


def test_artifacts_of_registries_are_served(registry, models, tmp_path):
    for artifact in artifacts(registry, models):
        address = f"oci://{registry.address}/{artifact}"
        with running(address, env=of_registry(registry, tmp_path)) as server:
            assert answers(server, "a"), artifact
            assert registry.login not in server.log


@pytest.mark.parametrize("kind", ["store", "helper", "identity", "identity in the file"])
def test_logins_come_from_the_programs_that_docker_uses(delivery, models, tmp_path, kind):
    with Registry(delivery, True).running() as registry:
        artifacts(registry, models)
        user, secret = ("<token>", registry.identity) if kind == "identity" else (registry.user, registry.password)
        login = json.dumps({"ServerURL": registry.address, "Username": user, "Secret": secret})
        config = {
            "store": {"credsStore": "test"},
            "helper": {"credHelpers": {registry.address: "test"}, "credsStore": "missing"},
            "identity": {"credsStore": "test"},
            "identity in the file": {"auths": {registry.address: {"identitytoken": registry.identity}}},
        }[kind]
        (tmp_path / "config.json").write_text(json.dumps(config))
        program = tmp_path / "docker-credential-test"
        program.write_text(f"""#!/bin/sh
[ "$1" = get ] && [ "$(cat)" = {registry.address} ] && echo '{login}'
""")
        program.chmod(0o755)
        env = environment(DOCKER_CONFIG=str(tmp_path), PATH=f"{tmp_path}:{os.environ['PATH']}")
        with running(f"oci://{registry.address}/team/car", "--log-verbose=1", env=env) as server:
            assert answers(server, "a")
            assert not [secret for secret in (registry.password, registry.identity, registry.login) if secret in server.log]


def test_refusals_of_a_registry_are_reported_at_start(registry, models, tmp_path):
    artifacts(registry, models)
    for artifact, message in [("team/nothing:v1", "MANIFEST_UNKNOWN"), (f"team/car@sha256:{'0' * 64}", "MANIFEST_UNKNOWN")]:
        with refused(f"oci://{registry.address}/{artifact}", env=of_registry(registry, tmp_path)) as server:
            server.wait_for_log(f"cannot look at .*{message}")
    wrong = "d3Jvbmc6d3Jvbmc="
    if registry.needs_token:
        with refused(f"oci://{registry.address}/team/car", env=of_registry(registry, tmp_path, wrong)) as server:
            server.wait_for_log("cannot look at .*who is this")
            assert wrong not in server.log


def nereid(*arguments, env):
    command = [nereid_server.binary(), *map(str, arguments)]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def test_all_of_them_are_pulled_and_checked(hub, web, delivery, models, tmp_path):
    hub.put("owner/pulled", models)
    url = web.put("pulled.tar.gz", archive("tar.gz", models))
    with Registry(delivery, False).running() as registry:
        packed = archive("tar.gz", models)
        registry.put("pulled", "v1", [(packed, f"{OF_ORAS}+gzip", {TITLE: "x", "io.deis.oras.content.unpack": "true"})])
        for number, address in enumerate(["hf://owner/pulled", url, f"oci://{registry.address}/pulled:v1"]):
            folder = tmp_path / f"pulled{number}"
            outcome = nereid("pull", address, folder, env=of_hub(hub))
            assert outcome.returncode == 0, outcome.stderr
            assert outcome.stdout.split() == [str(folder / "a"), str(folder / "b")]
            for path in (path for name in "ab" for path in (models / name).rglob("*") if path.is_file()):
                assert (folder / path.relative_to(models)).read_bytes() == path.read_bytes()
            assert sorted(path.name for path in folder.iterdir()) == ["a", "b"]
            # As good as any folder.
            (folder / "a" / "1" / "weights ä").write_bytes(b"others")
            again = nereid("pull", address, folder, env=of_hub(hub))
            assert again.returncode != 0 and "is there already" in again.stderr
            checked = nereid("check", address, env=of_hub(hub))
            assert checked.returncode == 0, checked.stdout + checked.stderr
    (models / "a" / "config.pbtxt").write_text("backend: 'identity' max_batch_size: -1")
    hub.put("owner/broken", models)
    checked = nereid("check", "hf://owner/broken", env=of_hub(hub))
    assert checked.returncode == 1 and "hf://owner/broken/a/config.pbtxt" in checked.stdout


@pytest.mark.parametrize("command", ["pull", "add"])
def test_a_download_that_is_interrupted_goes_on_where_it_was(web, models, tmp_path, command):
    folder = tmp_path / "pulled"
    into = folder if command == "pull" else f"--repository={folder}"
    (models / "a" / "1" / "weights ä").write_bytes(bytes(range(256)) * (70 << 10))
    web.put("large.tar", archive("tar", models / "a", "a/"))
    with Proxy(web.address) as proxy:
        seen = []

        def arrived():
            records = folder.glob(".nereid-pull*/files/*.ranges")
            return sum(record.read_bytes().count(1) for record in records)

        def last_range_fails(line):
            seen.append(line)
            if len(seen) <= 3:
                return None
            until(lambda: arrived() == 2)
            return b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n"

        proxy.breaks(last_range_fails)
        url = f"http://{proxy.address}/large.tar"
        outcome = nereid(command, url, into, env=environment())
        assert outcome.returncode != 0 and "403" in outcome.stderr
        proxy.breaks(None)
        before = len(proxy.requests)
        outcome = nereid(command, url, into, env=environment())
        assert outcome.returncode == 0, outcome.stderr
        # How long it is, and the range that is missing.
        assert len(proxy.requests) - before == 2
        assert (folder / "a/1/weights ä").read_bytes() == (models / "a" / "1" / "weights ä").read_bytes()
        assert os.listdir(folder) == ["a"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["models", "x"], "is not an address"),
        (["s3://", "x"], "the name of the bucket or container is missing"),
        (["https://127.0.0.1:1/x.html", "x"], "not the address of an archive"),
        (["http://127.0.0.1:1/x.zip", "x"], "[Cc]onnect"),
    ],
)
def test_failed_pulls_are_reported(tmp_path, arguments, message):
    address, folder = arguments
    outcome = nereid("pull", address, tmp_path / folder, env=environment())
    assert outcome.returncode == 1
    assert re.search(f"nereid pull: .*{message}", outcome.stderr)

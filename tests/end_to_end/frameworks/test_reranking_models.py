"""Models in GGUF files that score pairs of texts: scores equal to llama.cpp's own, batches, and what is refused."""

import json
import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import gguf_models
import llamacpp_package
import nereid_server
from http_requests import request

QUERY = "a b"
DOCUMENTS = ["abc", "xyz q", "", "hello world", "a b", "zz " * 40]


def assert_close(found, expected):
    # The library computes batches of some sizes by other code.
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-2)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    repository = tmp_path_factory.mktemp("reranking")
    gguf_models.write(repository, "scorer", contents=gguf_models.scorer())
    gguf_models.write(repository, "raw", gguf_models.parameters(normalize="false"), contents=gguf_models.scorer())
    gguf_models.write(repository, "judge", contents=gguf_models.judge())
    gguf_models.write(repository, "single", "max_batch_size: 0", contents=gguf_models.judge())
    with nereid_server.running(repository, llamacpp_package.flag()) as server:
        yield server


def expected(tmp_path, model):
    """The first class of each pair, as the library has it, and between 0 and 1 where the server makes it so."""
    file, classes = tmp_path / "model.gguf", 1 if model in ("scorer", "raw") else 2
    file.write_bytes(gguf_models.scorer() if classes == 1 else gguf_models.judge())
    found = np.array(llamacpp_package.scores(file, [(QUERY, document) for document in DOCUMENTS], classes))[:, 0]
    return 1 / (1 + np.exp(-found)) if model == "scorer" else found


def post(server, path, body):
    return request(server, "POST", path, json.dumps(body))


@pytest.mark.parametrize("model", ["scorer", "raw", "judge", "single"])
def test_scores_are_llama_cpps_own(server, tmp_path, model):
    own = expected(tmp_path, model)
    found = post(server, "/v1/score", {"model": model, "text_1": QUERY, "text_2": DOCUMENTS})
    assert found.status == 200, found.body
    assert_close([entry["score"] for entry in found.json["data"]], own)
    ranked = post(server, "/v1/rerank", {"model": model, "query": QUERY, "documents": DOCUMENTS, "top_n": 3}).json
    assert [entry["index"] for entry in ranked["results"]] == list(np.argsort(-own)[:3])

    def alone(place):
        answer = post(server, f"/v2/models/{model}/generate", {"query": QUERY, "document": DOCUMENTS[place]})
        return answer.json["score"]

    places = random.Random(3).choices(range(len(DOCUMENTS)), k=60)
    with ThreadPoolExecutor(12) as pool:
        assert_close(list(pool.map(alone, places)), own[places])


def test_configuration_is_completed(server):
    config = request(server, "GET", "/v2/models/scorer/config").json
    assert (config["max_batch_size"], "dynamic_batching" in config) == (8, True)
    tensors = [(it["name"], it["data_type"], it["dims"]) for it in config["input"] + config["output"]]
    assert tensors == [("query", "TYPE_STRING", [1]), ("document", "TYPE_STRING", [1]), ("score", "TYPE_FP32", [1])]
    listed = [model["id"] for model in request(server, "GET", "/v1/models").json["data"]]
    assert listed == ["judge", "raw", "scorer", "single"]


def test_pairs_that_are_too_long_are_refused(server):
    for document, message in [
        ("a " * 600, "tokens, but the context holds 512"),
        ("a" * (1 << 20), "bytes, but the context holds 512"),
    ]:
        answer = post(server, "/v1/rerank", {"model": "scorer", "query": QUERY, "documents": ["x", document]})
        assert answer.status == 400 and message in answer.json["error"]["message"], answer.body
    answer = post(server, "/v1/embeddings", {"model": "scorer", "input": "a"})
    assert answer.status == 400 and "makes no embeddings" in answer.json["error"]["message"]
    assert post(server, "/v1/score", {"model": "scorer", "text_1": QUERY, "text_2": "a"}).status == 200

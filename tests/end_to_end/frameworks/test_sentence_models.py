"""Models of sentence-transformers as ONNX models with a tokenizer beside them: embeddings and scores equal to those of the package itself."""

import base64
import json
import random
import shutil
import struct
import subprocess
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from typing import Any

import numpy as np
import openai
import openvino
import pytest
from openai import OpenAI

import nereid_server
import openvino_models
import sentence_package
from http_requests import LIMIT_S, request
from places import EXAMPLES

# What single precision leaves where rows are filled to another length.


def assert_close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


LIMIT = 24


def parameters(**values):
    return "".join(f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n' for key, value in values.items())


def write(repository, model, name=None, config=""):
    """Puts a model into a repository, and returns its folder."""
    folder = repository / (name or model)
    shutil.copytree(sentence_package.models()[0] / model, folder)
    if config:
        (folder / "config.pbtxt").write_text(config)
    return folder


@pytest.fixture(scope="module")
def made():
    """What sentence-transformers makes of the texts and pairs."""
    return sentence_package.models()[1]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    repository = tmp_path_factory.mktemp("sentences")
    for model in ("mean", "dense", "prompted", "last", "rank", "classes", "minilm"):
        write(repository, model)
    write(repository, "mean", "alone", "max_batch_size: 0")
    write(repository, "mean", "cutting", parameters(truncate="true", matryoshka="true"))
    write(repository, "mean", "large", "max_batch_size: 32 dynamic_batching { max_queue_delay_microseconds: 500 }")
    write(repository, "mean", "embedded", 'backend: "onnxruntime" ' + parameters(engine="embedded"))
    with nereid_server.running(repository) as server:
        yield server


@pytest.fixture
def client(server):
    """OpenAI's client, without attempts after the first."""
    with OpenAI(base_url=f"http://{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def post(server, path, body):
    return request(server, "POST", path, json.dumps(body))


def embed(client, model, texts, **fields):
    """The vectors of texts, in base64 as the client asks for it, and the number of tokens."""
    answer = client.embeddings.create(model=model, input=texts, extra_body=fields)
    assert [entry.index for entry in answer.data] == list(range(len(answer.data)))
    return np.array([entry.embedding for entry in answer.data]), answer.usage.total_tokens


@pytest.mark.parametrize("model", ["mean", "alone", "large", "embedded", "dense", "prompted", "last", "minilm"])
def test_embeddings_are_those_of_the_package(client, made, model):
    expected = made[model if model in made else "mean"]
    texts = made["data"]["texts"]
    # The package cuts what is over the limit.
    found, _ = embed(client, model, texts, truncate_prompt_tokens=-1)
    assert_close(found, expected["texts"])
    for place in (0, 7, 41):
        single, _ = embed(client, model, texts[place], truncate_prompt_tokens=-1)
        assert_close(single[0], expected["texts"][place])
    many = 9 if model == "minilm" else 1
    cut, tokens = embed(client, model, made["data"]["long"] * many, truncate_prompt_tokens=-1)
    assert_close(cut[0], expected["long"])
    assert tokens == (256 if model == "minilm" else LIMIT)


def test_prompts_are_those_of_the_package(client, made):
    (name,) = made["prompted"]["prompts"]
    found, _ = embed(client, "prompted", "quick fox", prompt_name=name)
    assert_close(found[0], made["prompted"]["prompts"][name])
    with pytest.raises(openai.BadRequestError, match="has no prompt 'passage'"):
        embed(client, "prompted", "quick fox", prompt_name="passage")


def test_formats_sizes_and_tokens(server, client, made):
    expected = made["mean"]["texts"][3]
    text = made["data"]["texts"][3]
    plain = post(server, "/v1/embeddings", {"model": "mean", "input": text}).json
    assert_close(plain["data"][0]["embedding"], expected)
    encoded = post(server, "/v1/embeddings", {"model": "mean", "input": [text], "encoding_format": "base64"}).json
    raw = base64.b64decode(encoded["data"][0]["embedding"])
    assert_close(struct.unpack(f"<{len(raw) // 4}f", raw), expected)
    shorter = np.array(expected[:8]) / np.linalg.norm(expected[:8])
    assert_close(client.embeddings.create(model="cutting", input=text, dimensions=8).data[0].embedding, shorter)
    with pytest.raises(openai.BadRequestError, match="'dimensions' needs a model that is made for shorter vectors"):
        client.embeddings.create(model="mean", input=text, dimensions=8)
    # The special tokens are in the numbers that a client gives, or they are not there.
    (vectors, tokens) = embed(client, "mean", [[2, 7, 9, 3], [2, 3]])
    assert tokens == 6 and vectors.shape == (2, 32)
    with pytest.raises(openai.BadRequestError, match=r"'input' has the token 5000, which the model's vocabulary lacks"):
        embed(client, "mean", [2, 5000])


def test_tokens_of_texts_are_those_that_count(server, client, made):
    for model in ("mean", "prompted", "last", "minilm"):
        for text in [*made["data"]["texts"][:5], made["data"]["long"]]:
            found = post(server, "/tokenize", {"model": model, "prompt": text, "return_token_strs": True}).json
            assert (found["count"], len(found["token_strs"])) == (len(found["tokens"]), len(found["tokens"]))
            assert found["max_model_len"] == (256 if model == "minilm" else LIMIT)
            if found["count"] <= LIMIT:
                _, tokens = embed(client, model, text)
                assert tokens == found["count"]
                by_tokens, _ = embed(client, model, found["tokens"])
                by_text, _ = embed(client, model, text)
                assert_close(by_tokens, by_text)
    tokens = post(server, "/tokenize", {"model": "mean", "prompt": "the quick fox", "add_special_tokens": False}).json["tokens"]
    assert post(server, "/detokenize", {"model": "mean", "tokens": tokens}).json == {"prompt": "the quick fox"}
    refused = post(server, "/detokenize", {"model": "mean", "tokens": [5000]})
    assert refused.status == 400 and "has the token 5000" in refused.json["error"]["message"]


def test_texts_that_are_too_long_are_refused_unless_they_may_be_cut(client, made):
    with pytest.raises(openai.BadRequestError, match=r"'input\[1\]' has \d+ tokens, but the model takes 24 at most") as refused:
        embed(client, "mean", ["x", made["data"]["long"]])
    assert refused.value.code == "context_length_exceeded"
    found, _ = embed(client, "cutting", made["data"]["long"])
    assert_close(found[0], made["mean"]["long"])


def test_tensors_are_served_as_before(server, made):
    ids, mask = [[2, 7, 9, 3]], [[1, 1, 1, 1]]
    inputs = [
        {"name": name, "datatype": "INT64", "shape": [1, 4], "data": data}
        for name, data in (("input_ids", ids), ("attention_mask", mask), ("token_type_ids", [[0] * 4]))
    ]
    answer = request(server, "POST", "/v2/models/mean/infer", json.dumps({"inputs": inputs}))
    assert answer.status == 200, answer.body
    (output,) = answer.json["outputs"]
    assert output["name"] == "last_hidden_state" and output["shape"] == [1, 4, 32]
    pooled = np.array(output["data"]).reshape(4, 32).mean(axis=0)
    found = post(server, "/v1/embeddings", {"model": "mean", "input": ids}).json
    assert_close(found["data"][0]["embedding"], pooled / np.linalg.norm(pooled))


@pytest.mark.parametrize("model", ["rank", "classes"])
def test_scores_are_those_of_the_package(server, made, model):
    pairs = made["data"]["pairs"]
    scores = made[model]["scores"]
    expected = scores if model == "rank" else [score[1] for score in scores]
    first, second = ([pair[side] for pair in pairs] for side in (0, 1))
    answer = post(server, "/v1/score", {"model": model, "text_1": first, "text_2": second})
    assert answer.status == 200, answer.body
    assert_close([entry["score"] for entry in answer.json["data"]], expected)
    long = made["data"]["long"]
    refused = post(server, "/v1/score", {"model": model, "text_1": "fox", "text_2": long})
    assert refused.status == 400 and "'text_2' has" in refused.json["error"]["message"]
    cut = post(server, "/v1/score", {"model": model, "text_1": "fox", "text_2": long, "truncate": True}).json
    expected = made[model]["long"][0] if model == "rank" else made[model]["long"][0][1]
    assert_close(cut["data"][0]["score"], expected)


def test_documents_are_ordered_by_their_scores(server, made):
    documents = [pair[1] for pair in made["data"]["pairs"]]
    scored = post(server, "/v1/score", {"model": "rank", "text_1": "quick fox", "text_2": documents}).json["data"]
    body = {"model": "rank", "query": "quick fox", "documents": [{"text": text} for text in documents], "top_n": 3}
    ranked = post(server, "/v1/rerank", body).json
    best = sorted(scored, key=lambda entry: -entry["score"])[:3]
    assert [entry["index"] for entry in ranked["results"]] == [entry["index"] for entry in best]
    assert_close([entry["relevance_score"] for entry in ranked["results"]], [entry["score"] for entry in best])
    assert [entry["document"]["text"] for entry in ranked["results"]] == [documents[entry["index"]] for entry in best]
    assert ranked["usage"]["total_tokens"] > 0


def test_models_are_listed(client):
    listed = {model.id for model in client.models.list()}
    assert {"mean", "prompted", "last", "rank", "classes", "minilm"} <= listed


@pytest.mark.parametrize("model", ["mean", "alone", "large"])
def test_requests_at_once_get_their_own_vectors(server, made, model):
    """Requests with lists of different lengths run side by side; some clients leave."""
    texts, expected = made["data"]["texts"], np.array(made["mean"]["texts"])

    def ask(seed):
        chosen = random.Random(seed).choices(range(len(texts)), k=1 + seed % 30)
        with OpenAI(base_url=f"http://{server.url}/v1", api_key="none", max_retries=0) as client:
            if seed % 5 == 4:
                leaving = HTTPConnection(server.url)
                leaving.request("POST", "/v1/embeddings", json.dumps({"model": model, "input": [texts[c] for c in chosen] * 60}))
                leaving.close()
                return
            found, _ = embed(client, model, [texts[place] for place in chosen])
            assert_close(found, expected[chosen])

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(ask, range(60)))


def test_2048_texts_are_one_request(client, made):
    texts, expected = made["data"]["texts"], np.array(made["mean"]["texts"])
    places = [place % len(texts) for place in range(2048)]
    found, _ = embed(client, "mean", [texts[place] for place in places])
    assert_close(found, expected[places])


def test_bad_input_is_refused_and_the_server_goes_on(client, made):
    wrong: str | list[Any]
    for wrong in (["x"] * 2049, ["x"] * 100_000, "x" * (1 << 20), ["", "x"], "", [], [[]]):
        with pytest.raises(openai.BadRequestError, match="'input'"):
            embed(client, "mean", wrong)
    cut, _ = embed(client, "mean", "fox " * (1 << 18), truncate_prompt_tokens=-1)
    assert np.isclose(np.linalg.norm(cut[0]), 1)
    # A word of a megabyte, characters that are none, and what no vocabulary has.
    for strange in ("x" * 4000, "\x00\x01\ufffe", "\u202e" * 9, "\U0010ffff", "   "):
        vector, _ = embed(client, "mean", strange, truncate_prompt_tokens=-1)
        assert np.isfinite(vector).all()
    found, _ = embed(client, "mean", made["data"]["texts"][:2])
    assert_close(found, made["mean"]["texts"][:2])


def test_damaged_files_are_named_and_others_are_served(tmp_path, made):
    damages = {
        "cut": ("tokenizer.json", lambda text: text[: len(text) // 2], "tokenizer.json: EOF while parsing"),
        "kind": ("tokenizer.json", lambda text: text.replace("WordPiece", "Telepathy"), "tokenizer.json: "),
        "huge": ("tokenizer.json", lambda text: text + " " * (64 << 20), "larger than 67108864 bytes"),
        "modules": ("modules.json", lambda text: text.replace("Pooling", "CNN"), "the module 'CNN' is not supported"),
        "config": ("config.json", lambda text: "[", "config.json: EOF"),
        "layer": ("modules.json", lambda text: text.replace("Normalize", "Dense"), "2_Dense/config.json is missing"),
        "pooling": ("1_Pooling/config.json", lambda text: '{"pooling_mode": "median"}', "unknown value 'median'"),
    }
    for name, (file, damage, _) in damages.items():
        path = write(tmp_path, "mean", name) / "1" / file
        path.write_text(damage(path.read_text()))
    write(tmp_path, "mean", "parameter", parameters(context_length="many"))
    write(tmp_path, "mean")
    with nereid_server.running(tmp_path) as server:
        for name, (_, _, message) in damages.items() | {("parameter", (None, None, "context_length: must be a positive number"))}:
            answer = post(server, "/v1/embeddings", {"model": name, "input": "x"})
            assert answer.status == 500 and message in answer.json["error"]["message"], (name, answer.body)
        found = post(server, "/v1/embeddings", {"model": "mean", "input": made["data"]["texts"][0]}).json
        assert_close(found["data"][0]["embedding"], made["mean"]["texts"][0])


@pytest.mark.parametrize(("graph", "model"), [("onnx/model.onnx", "dense"), ("openvino/openvino_model.xml", "mean")])
def test_folder_of_the_hub_is_added_with_all_that_it_needs(tmp_path, made, graph, model):
    """A model of sentence-transformers has its graphs in folders, and everything else beside them."""
    source, repository = tmp_path / "sentences", tmp_path / "models"
    shutil.copytree(sentence_package.models()[0] / model / "1", source)
    (source / graph).parent.mkdir()
    if graph.endswith(".xml"):
        network = openvino.convert_model(source / "model.onnx")
        openvino.save_model(network, source / graph, compress_to_fp16=False)
        (source / "model.onnx").unlink()
    else:
        (source / "model.onnx").rename(source / graph)
    # The weights for PyTorch.
    (source / "model.safetensors").write_bytes(bytes(8) + b"{}")
    command = [nereid_server.binary(), "add", *openvino_models.FLAGS, source, f"--repository={repository}", "--name=sentences"]
    subprocess.run(command, check=True, capture_output=True, timeout=LIMIT_S)
    assert not (repository / "sentences/1/model.safetensors").exists()
    if graph.endswith(".xml"):
        # OpenVINO computes with fewer digits where the processor can.
        with open(repository / "sentences/config.pbtxt", "a") as config:
            config.write(parameters(HINT_BF16="NO"))
    with (
        nereid_server.running(repository, *openvino_models.FLAGS) as server,
        OpenAI(base_url=f"http://{server.url}/v1", api_key="none") as client,
    ):
        expected = "openvino" if graph.endswith(".xml") else "onnxruntime"
        assert request(server, "GET", "/v2/models/sentences/config").json["backend"] == expected
        found, _ = embed(client, "sentences", made["data"]["texts"], truncate_prompt_tokens=-1)
        assert_close(found, made[model]["texts"])


def test_model_with_other_inputs_is_none_of_texts(tmp_path):
    """A tokenizer beside a model of numbers changes nothing."""
    folder = write(tmp_path, "mean")
    shutil.copy(EXAMPLES / "model_repository/digits/1/model.onnx", folder / "1" / "model.onnx")
    with nereid_server.running(tmp_path) as server:
        answer = post(server, "/v1/embeddings", {"model": "mean", "input": "x"})
        assert answer.status == 400 and "makes no embeddings" in answer.json["error"]["message"]
        assert request(server, "GET", "/v1/models").json["data"] == []

"""GGUF files that are not what they say: sizes, counts, places, types, vocabularies and weights. Each is refused with a cause, or its process
ends, or it answers; the server goes on.
"""

import json
import struct

import numpy as np
import pytest
from test_language_models import workers

import gguf_models
import llamacpp_package
import nereid_server
from gguf_models import altered
from http_requests import Answer
from language_traffic import post

HUGE = (1 << 64) - 1


def text(length, content=b""):
    return struct.pack("<Q", length) + content


def pair(key, kind, value):
    """A pair of metadata by hand."""
    return text(len(key), key.encode()) + struct.pack("<I", kind) + value


def weights(value, shape=gguf_models.WIDTH**2):
    return {"contents": np.full(shape, value, "<f4").tobytes()}


QUERY = "blk.0.attn_q.weight"
TOKENS = "tokenizer.ggml.tokens"
ARRAY, STRING, U32 = 9, 8, 4
NAMES = [name for name, _, _ in gguf_models.vocabulary()]

DAMAGED: dict[str, bytes] = {
    "no tensors": altered(counts=(0, 15)),
    "many tensors": altered(counts=(HUGE, 15)),
    "some more tensors": altered(counts=(1 << 20, 15)),
    "no pairs": altered(counts=(21, 0)),
    "many pairs": altered(counts=(21, HUGE)),
    "another version": altered().replace(b"GGUF\3", b"GGUF\x7f", 1),
    "an old version": altered().replace(b"GGUF\3", b"GGUF\1", 1),
    "other bytes first": altered().replace(b"GGUF\3\0\0\0", b"GGUF\0\0\0\3", 1),
    "a long key": altered({"x": text(HUGE, b"x") + struct.pack("<I", U32) + b"1234"}),
    "a long text": altered({"x": pair("x", STRING, text(HUGE))}),
    "a long text that fits no memory": altered({"x": pair("x", STRING, text(1 << 46))}),
    "a long list": altered({"x": pair("x", ARRAY, struct.pack("<IQ", U32, HUGE))}),
    "a long list of texts": altered({"x": pair("x", ARRAY, struct.pack("<IQ", STRING, 1 << 60))}),
    "a list of lists": altered({"x": pair("x", ARRAY, struct.pack("<IQIQ", ARRAY, 1, ARRAY, 1))}),
    "an unknown kind": altered({"x": pair("x", 77, b"12345678")}),
    "a key twice": altered({"x": pair("llama.context_length", U32, struct.pack("<I", 8))}),
    "an alignment of nothing": altered({"general.alignment": ("u32", 0)}),
    "an odd alignment": altered({"general.alignment": ("u32", 3)}),
    "a large alignment": altered({"general.alignment": ("u32", 1 << 31)}),
    "no architecture": altered({"general.architecture": None}),
    "another architecture": altered({"general.architecture": ("text", "x" * 100_000)}),
    "a number as architecture": altered({"general.architecture": ("u32", 7)}),
    "no width": altered({"llama.embedding_length": ("u32", 0)}),
    "a large width": altered({"llama.embedding_length": ("u32", (1 << 32) - 1)}),
    "no layers": altered({"llama.block_count": ("u32", 0)}),
    "many layers": altered({"llama.block_count": ("u32", (1 << 32) - 1)}),
    "more layers": altered({"llama.block_count": ("u32", 3)}),
    "no heads": altered({"llama.attention.head_count": ("u32", 0)}),
    "many heads": altered({"llama.attention.head_count": ("u32", (1 << 32) - 1)}),
    "odd heads": altered({"llama.attention.head_count": ("u32", 3)}),
    "no context": altered({"llama.context_length": ("u32", 0)}),
    "a large context": altered({"llama.context_length": ("u32", (1 << 32) - 1)}),
    "no epsilon": altered({"llama.attention.layer_norm_rms_epsilon": ("f32", float("nan"))}),
    "a negative epsilon": altered({"llama.attention.layer_norm_rms_epsilon": ("f32", -1.0)}),
    "a large epsilon": altered({"llama.attention.layer_norm_rms_epsilon": ("f32", float("inf"))}),
    "unknown pooling": altered({"llama.pooling_type": ("u32", 99)}),
    "no tokenizer": altered({"tokenizer.ggml.model": None}),
    "another tokenizer": altered({"tokenizer.ggml.model": ("text", "gpt2")}),
    "an unknown tokenizer": altered({"tokenizer.ggml.model": ("text", "x")}),
    "no tokens": altered({TOKENS: None}),
    "an empty vocabulary": altered({TOKENS: ("text", [])}),
    "few tokens": altered({TOKENS: ("text", NAMES[:5])}),
    "many tokens": altered({TOKENS: ("text", NAMES + [f"x{number}" for number in range(1000)])}),
    "numbers as tokens": altered({TOKENS: ("u32", list(range(len(NAMES))))}),
    "the same tokens": altered({TOKENS: ("text", ["a"] * len(NAMES))}),
    "empty tokens": altered({TOKENS: ("text", [""] * len(NAMES))}),
    "long tokens": altered({TOKENS: ("text", ["a" * 100_000, *NAMES[1:]])}),
    "tokens that are not text": altered({TOKENS: ("text", NAMES)}).replace(b"\2\0\0\0\0\0\0\0ca", b"\2\0\0\0\0\0\0\0\xff\xfe"),
    "few scores": altered({"tokenizer.ggml.scores": ("f32", [0.0])}),
    "scores that are no numbers": altered({"tokenizer.ggml.scores": ("f32", [float("nan")] * len(NAMES))}),
    "few types": altered({"tokenizer.ggml.token_type": ("i32", [1])}),
    "unknown types": altered({"tokenizer.ggml.token_type": ("i32", [-1] * len(NAMES))}),
    "only control tokens": altered({"tokenizer.ggml.token_type": ("i32", [3] * len(NAMES))}),
    "an unknown first token": altered({"tokenizer.ggml.bos_token_id": ("u32", 1_000_000)}),
    "an unknown last token": altered({"tokenizer.ggml.eos_token_id": ("u32", (1 << 32) - 1)}),
    "a broken template": altered({"tokenizer.chat_template": ("text", "{% for %}")}),
    "an endless template": altered(
        {"tokenizer.chat_template": ("text", "{% for i in range(10000000) %}{{ messages }}{% endfor %}")}
    ),
    "a part of many": altered({"split.count": ("u16", 60_000), "split.no": ("u16", 0)}),
    "a later part": altered({"split.count": ("u16", 2), "split.no": ("u16", 1)}),
    "a tensor less": altered(tensors={QUERY: None}),
    "a tensor twice": altered(tensors={"blk.0.attn_k.weight": {"name": QUERY}}),
    "a long name": altered(tensors={QUERY: {"name": "x" * 100_000}}),
    "no dimensions": altered(tensors={QUERY: {"dims": ()}}),
    "many dimensions": altered(tensors={QUERY: {"rank": (1 << 32) - 1}}),
    "five dimensions": altered(tensors={QUERY: {"dims": (64, 64, 1, 1, 1)}}),
    "no rows": altered(tensors={QUERY: {"dims": (64, 0)}}),
    "negative rows": altered(tensors={QUERY: {"dims": (64, HUGE)}}),
    "many rows": altered(tensors={QUERY: {"dims": (1 << 62, 4)}}),
    "rows past the end": altered(tensors={"output.weight": {"dims": (64, 1 << 24)}}),
    "another shape": altered(tensors={QUERY: {"dims": (4096, 1)}}),
    "a small vocabulary": altered(tensors={"token_embd.weight": {"dims": (64, 2)}}),
    "an unknown type": altered(tensors={QUERY: {"kind": 1000}}),
    "a removed type": altered(tensors={QUERY: {"kind": 4}}),
    "a quantised type": altered(tensors={QUERY: {"kind": 2}}),
    "a type of whole numbers": altered(tensors={QUERY: {"kind": 26}}),
    "a place past the end": altered(tensors={QUERY: {"offset": 1 << 40}}),
    "a negative place": altered(tensors={QUERY: {"offset": HUGE - 31}}),
    "an odd place": altered(tensors={QUERY: {"offset": 5}}),
    "the place of another": altered(tensors={QUERY: {"offset": 0}}),
    "contents cut": altered()[:-100_000],
    "no contents": altered()[: altered().rindex(b"ffn_down.weight") + 60],
    "weights that are no numbers": altered(tensors={QUERY: weights(float("nan"))}),
    "outputs that are no numbers": altered(
        tensors={"output.weight": weights(float("nan"), gguf_models.WIDTH * len(NAMES))},
    ),
    "infinite weights": altered(tensors={QUERY: weights(float("inf")), "blk.0.attn_k.weight": weights(float("-inf"))}),
    "large weights": altered(tensors={QUERY: weights(3e38), "blk.0.attn_k.weight": weights(3e38)}),
    "weights of nothing": altered(tensors={"output.weight": weights(0.0, gguf_models.WIDTH * len(NAMES))}),
}
# Such a file is a model like any other.
SERVED = {"weights of nothing", "a large context"}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server with a model that is not damaged, which loads others on request."""
    repository = tmp_path_factory.mktemp("damaged")
    gguf_models.write(repository, "sound")
    for number, contents in enumerate(DAMAGED.values()):
        # A context of the model's own size, where that is what is wrong, would take all memory.
        gguf_models.write(repository, f"damaged{number}", gguf_models.parameters(context_length=64), contents=contents)
    flags = ["--model-control-mode=explicit", "--load-model=sound", "--backend-config=llamacpp,load-timeout-seconds=120"]
    with nereid_server.running(repository, llamacpp_package.flag(), *flags) as server:
        yield server


def written(server, model) -> Answer:
    sampling = json.dumps({"temperature": 0, "max_tokens": 4, "ignore_eos": True})
    return post(server, f"/v2/models/{model}/generate", {"text_input": "ab", "sampling_parameters": sampling})


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_file_does_not_bring_the_server_down(server, case):
    model = f"damaged{list(DAMAGED).index(case)}"
    before = written(server, "sound")
    loaded = post(server, f"/v2/repository/models/{model}/load", {})
    if loaded.status == 200:
        for path, body in [
            (f"/v2/models/{model}/generate", {"text_input": "ab cd", "max_tokens": 4}),
            ("/v1/chat/completions", {"model": model, "messages": [{"role": "user", "content": "ab"}], "max_tokens": 4}),
            ("/v1/completions", {"model": model, "prompt": [5, 300], "max_tokens": 4, "logprobs": 2}),
            ("/tokenize", {"model": model, "prompt": "ab</s>", "return_token_strs": True}),
            ("/v1/embeddings", {"model": model, "input": "ab"}),
        ]:
            answer = post(server, path, body)
            # A model that cannot answer has an error that says why; its process may have ended.
            assert answer.status in (200, 400, 500, 503), (path, answer)
            assert answer.status == 200 or answer.json["error"], (path, answer)
        print(case, "is served:", written(server, model))
        assert post(server, f"/v2/repository/models/{model}/unload", {}).status == 200
    else:
        assert case not in SERVED, loaded
        cause = loaded.json["error"]
        print(case, "is refused:", cause)
        assert model in cause and len(cause) > 40, cause
        assert any(words in cause for words in ("llama.cpp", "GGUF", "killed", "exited", "generates text", "context")), cause
    assert written(server, "sound") == before or written(server, "sound").json == before.json
    assert len(workers(server)) >= 1


def test_part_that_is_its_own_successor_is_refused(repository, serve):
    """A chain of files that never ends."""
    folder = gguf_models.write(repository, contents=gguf_models.parts(3)[0]).parent
    for number in (2, 3):
        (folder / f"model-0000{number}-of-00003.gguf").symlink_to("model.gguf")
    server = serve(llamacpp_package.flag(), "--exit-on-error=false", ready=False)
    assert any("llama.cpp cannot load" in line for line in server.complaints), server.log

"""Compressed requests and answers: Triton's clients with every algorithm, and bodies that no client sends."""

import asyncio
import gzip
import json
import zlib
from collections.abc import Callable

import numpy as np
import pytest
import tritonclient.http
import tritonclient.http.aio

import nereid_server
from http_requests import assert_refused, infer, request, tensor
from model_files import write_identity
from tensors import given, wanted

LIMIT = 1 << 20
PACK = {"gzip": lambda plain: gzip.compress(plain, mtime=0), "deflate": zlib.compress}
UNPACK: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.decompress, "deflate": zlib.decompress}
BODY = json.dumps({"inputs": [tensor("INPUT0", "INT32", [3], [1, 2, 3])]}).encode()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """An identity model, and a limit that a test can reach."""
    repository = tmp_path_factory.mktemp("compression")
    write_identity(repository, "same", ["INT32"])
    with nereid_server.running(repository, f"--http-max-input-size={LIMIT}") as server:
        yield server


@pytest.mark.parametrize("algorithm", PACK)
@pytest.mark.parametrize("count", [3, 100_000])
@pytest.mark.parametrize("binary", [True, False])
def test_the_client_compresses_both_ways(server, algorithm, count, binary):
    values = np.arange(count, dtype=np.int32)
    with tritonclient.http.InferenceServerClient(server.url) as client:
        answer = client.infer(
            "same",
            [given("INPUT0", values, binary)],
            outputs=[wanted("OUTPUT0", binary)],
            request_compression_algorithm=algorithm,
            response_compression_algorithm=algorithm,
        )
    np.testing.assert_array_equal(answer.as_numpy("OUTPUT0"), values)


def test_the_asyncio_client_compresses_both_ways(server):
    values = np.arange(1000, dtype=np.int32)

    async def ask():
        async with tritonclient.http.aio.InferenceServerClient(server.url) as client:
            return await client.infer(
                "same",
                [given("INPUT0", values)],
                request_compression_algorithm="gzip",
                response_compression_algorithm="deflate",
            )

    np.testing.assert_array_equal(asyncio.run(ask()).as_numpy("OUTPUT0"), values)


@pytest.mark.parametrize("algorithm", PACK)
def test_only_an_answer_that_may_be_compressed_is(server, algorithm):
    compressed = infer(server, "same", BODY, {"Accept-Encoding": algorithm})
    assert compressed.headers["Content-Encoding"] == algorithm
    assert int(compressed.headers["Content-Length"]) == len(compressed.body)
    plain = infer(server, "same", BODY)
    assert "Content-Encoding" not in plain.headers
    assert json.loads(UNPACK[algorithm](compressed.body)) == plain.json


def test_errors_and_other_answers_are_not_compressed(server):
    refused = infer(server, "same", "{}", {"Accept-Encoding": "gzip"})
    assert "Content-Encoding" not in refused.headers
    assert_refused(refused, 500)
    metadata = request(server, "GET", "/v2/models/same", headers={"Accept-Encoding": "gzip"})
    assert metadata.json["name"] == "same"


def test_an_unknown_encoding_is_refused_with_those_that_are_known(server):
    answer = infer(server, "same", BODY, {"Content-Encoding": "br"})
    assert_refused(answer, 501)
    assert answer.headers["Accept-Encoding"] == "gzip, deflate"


@pytest.mark.parametrize(
    "body",
    [b"", BODY, gzip.compress(BODY)[:-4], zlib.compress(BODY)[:-2], gzip.compress(BODY) + b"more"],
    ids=["empty", "plain", "short gzip", "short deflate", "something after it"],
)
def test_a_body_that_is_not_what_it_says_is_refused(server, body):
    assert_refused(infer(server, "same", body, {"Content-Encoding": "gzip"}), 400)


@pytest.mark.parametrize("algorithm", PACK)
def test_a_small_body_does_not_become_a_large_one(server, algorithm):
    bomb = PACK[algorithm](b" " * (200 * LIMIT))
    assert len(bomb) < LIMIT
    answer = infer(server, "same", bomb, {"Content-Encoding": algorithm})
    assert_refused(answer, 400)
    assert "--http-max-input-size" in answer.json["error"]
    assert infer(server, "same", PACK[algorithm](BODY), {"Content-Encoding": algorithm}).status == 200

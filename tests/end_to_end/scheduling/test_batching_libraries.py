"""Libraries that choose which requests share a batch: where they are found, and how they batch.

How batches are limited and where libraries are found holds of the reference too. It does not get over a request that a
library cannot judge, nor over wrong libraries.
"""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection

import pytest

import native_backends
import nereid_server
from native_backends import parameter, write_model

# Batches wait for company until they are full, or for three seconds.
MODEL = """
max_batch_size: 4
input { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] allow_ragged_batch: true }
output { name: "COUNT" data_type: TYPE_UINT32 dims: [ 1 ] }
instance_group { kind: KIND_CPU count: 1 }
dynamic_batching { preferred_batch_size: 4 max_queue_delay_microseconds: 3000000 }
"""
LENIENT = ("--exit-on-error=false", "--strict-readiness=false")


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    """A folder of backends, and in it libraries that have all functions, some and none."""
    folder = tmp_path_factory.mktemp("backends")
    whole = native_backends.compile_c(folder, "volume")
    for kind in ("PARTIAL", "NONE"):
        native_backends.compile_c(folder / kind, "volume", f"-D{kind}")
    return {"whole": whole, **{kind: folder / kind / "volume" / "libtriton_volume.so" for kind in ("PARTIAL", "NONE")}}


@pytest.fixture
def backends(tmp_path, libraries):
    """A folder of backends that a test may add to."""
    folder = tmp_path / "backends"
    (folder / "volume").mkdir(parents=True)
    shutil.copy(libraries["whole"], folder / "volume")
    return folder


def ask(server, path, body):
    connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        connection.request("POST", path, body=json.dumps(body))
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or "null")
    finally:
        connection.close()


def shared(server, model, length, **parameters):
    """The number of requests in the batch of a request with this many numbers."""
    inputs = [{"name": "IN", "shape": [1, length], "datatype": "INT32", "data": [0] * length}]
    status, answer = ask(server, f"/v2/models/{model}/infer", {"inputs": inputs, "parameters": parameters})
    assert status == 200, answer
    return answer["outputs"][0]["data"][0]


def together(server, model, lengths, **parameters):
    with ThreadPoolExecutor(len(lengths)) as threads:
        asked = [threads.submit(shared, server, model, length, **parameters) for length in lengths]
        return sorted(request.result() for request in asked)


def index(server):
    return {row["name"]: row for row in ask(server, "/v2/repository/index", {})[1]}


def test_a_batch_is_full_when_the_library_says_so(tmp_path, backends, libraries):
    repository = tmp_path / "models"
    write_model(repository, "limited", "volume", MODEL + parameter("most_bytes", "48"))
    shutil.copy(libraries["whole"], repository / "limited" / "1" / "batchstrategy.so")
    write_model(repository, "free", "volume", MODEL)
    with nereid_server.running(repository, f"--backend-directory={backends}") as server:
        # Each has 24 bytes: two fit in.
        assert together(server, "limited", [6] * 4) == [2, 2, 2, 2]
        assert together(server, "free", [6] * 4) == [4, 4, 4, 4]
    assert "volume: batches end to be chosen" in server.log


def test_a_request_that_cannot_be_judged_does_not_join_a_batch(tmp_path, backends, libraries):
    repository = tmp_path / "models"
    write_model(repository, "m", "volume", MODEL)
    shutil.copy(libraries["whole"], repository / "m" / "batchstrategy.so")
    with nereid_server.running(repository, f"--backend-directory={backends}") as server:
        assert together(server, "m", [1] * 4) == [4, 4, 4, 4]
        assert together(server, "m", [1] * 2, fail=True) == [1, 1]
    assert "volume: it cannot judge the request" in server.log


def test_the_first_location_with_a_library_wins(tmp_path, backends, libraries):
    repository = tmp_path / "models"
    places = {name: repository / name / "own.so" for name in ("named", "version", "model", "backend")}
    for name, place in places.items():
        named = parameter("TRITON_BATCH_STRATEGY_PATH", place) if name == "named" else ""
        write_model(repository, name, "volume", MODEL + named)
    shutil.copy(libraries["whole"], places["named"])
    folders = {name: (repository / name / "1", repository / name) for name in places}
    expected = {"named": places["named"]}
    for name, count in (("named", 2), ("version", 2), ("model", 1), ("backend", 0)):
        # Those that are wanted last are put there first.
        for folder in folders[name][2 - count :]:
            shutil.copy(libraries["whole"], folder / "batchstrategy.so")
    shutil.copy(libraries["whole"], backends / "volume" / "batchstrategy.so")
    expected["version"] = repository / "version" / "1" / "batchstrategy.so"
    expected["model"] = repository / "model" / "batchstrategy.so"
    expected["backend"] = backends / "volume" / "batchstrategy.so"
    flags = (f"--backend-directory={backends}", "--model-control-mode=explicit")
    for name, library in expected.items():
        with nereid_server.running(repository, *flags, f"--load-model={name}") as server:
            pass
        assert f"volume: batches begin to be chosen by {library}" in server.log, name


def test_a_model_with_an_invalid_library_is_not_served(tmp_path, backends, libraries):
    repository = tmp_path / "models"

    def model(name, body, library=None):
        write_model(repository, name, "volume", body)
        if library is not None:
            shutil.copy(library, repository / name / "batchstrategy.so")

    elsewhere = shutil.copy(libraries["whole"], tmp_path / "elsewhere.so")
    path = "TRITON_BATCH_STRATEGY_PATH"
    model("partial", MODEL, libraries["PARTIAL"])
    model("fails", MODEL + parameter("fail", "yes"), libraries["whole"])
    model("absent", MODEL + parameter(path, repository / "absent" / "own.so"))
    model("outside", MODEL + parameter(path, elsewhere))
    model("no_library", MODEL)
    (repository / "no_library" / "batchstrategy.so").write_text("not a library")
    # One that has none of the functions chooses nothing.
    model("none", MODEL, libraries["NONE"])
    with nereid_server.running(repository, f"--backend-directory={backends}", *LENIENT) as server:
        rows = index(server)
        assert {name for name, row in rows.items() if row["state"] == "READY"} == {"none"}
        assert "volume: it does not start" in rows["fails"]["reason"]
        assert together(server, "none", [1] * 4) == [4, 4, 4, 4]

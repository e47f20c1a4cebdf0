"""The published weaknesses of the reference: each request that crashed it, or gave something away, and what this server does.

Others are beside what they concern: alternate paths around keys and rights (CVE-2026-24206, 24207, 47481, 47625) in
test_access_policy.py, clients of OpenAI's interface that leave (TRI-1664) in test_openai.py, those of models in Python
(CVE-2025-23316, 23329) in test_published_python_weaknesses.py, archives that lead out of their folder (TRI-1019) in
crates/platform/archives. Those of the DALI backend concern no backend of this server.
"""

import base64
import gzip
import json
import os
import socket
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc import service_pb2_grpc as service

import nereid_server
from access_faces import ALL_FACES, BODY, EXPLICIT, LIMIT_S, Faces, faces_environment
from http_requests import Answer, infer, infer_binary, request, tensor
from model_files import write_identity
from waiting import eventually

MEBIBYTE = 1 << 20
DEEP = 100_000
# What a server that serves one model of some bytes may grow by, while it refuses requests.
GROWTH = 200 * MEBIBYTE
# Every path that reads JSON.
JSON_PATHS = (
    "/v2/models/own/infer",
    "/v2/models/own/generate",
    "/v2/models/own/generate_stream",
    "/v2/repository/index",
    "/v2/repository/models/own/load",
    "/v2/repository/models/own/unload",
    "/v2/logging",
    "/v2/trace/setting",
    "/v2/models/own/trace/setting",
    "/v2/systemsharedmemory/region/r/register",
    "/v2/cudasharedmemory/region/r/register",
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
    "/v1/rerank",
    "/v2/rerank",
    "/rerank",
    "/v1/score",
    "/score",
    "/openai/v1/chat/completions",
    "/openai/v1/responses",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("weaknesses")


@pytest.fixture(scope="module")
def shared(folder):
    """A server with every face. All tests use it, so each finds what the one before has left."""
    repository = folder / "models"
    repository.mkdir()
    write_identity(repository, "own", ["INT32"])
    write_identity(repository, "text", ["BYTES"])
    write_identity(repository, "batched", ["INT32"], max_batch_size=8)
    flags = (*EXPLICIT, *ALL_FACES, "--http-max-input-size=16777216")
    with nereid_server.running(repository, *flags, env=faces_environment()) as server:
        yield server


@pytest.fixture
def server(shared):
    """The shared server, which must serve as before when a test ends."""
    before = memory(shared)
    yield shared
    assert shared.exit_code is None
    # Some of the requests are loads and unloads.
    for name in ("own", "text", "batched"):
        assert request(shared, "POST", f"/v2/repository/models/{name}/load", "{}").status == 200
    answer = infer(shared, "own", BODY)
    assert answer.status == 200 and answer.json["outputs"][0]["data"] == [7], answer
    assert memory(shared) - before < GROWTH


def memory(server):
    """The bytes that the process has in memory."""
    with open(f"/proc/{server.pid}/statm") as about:
        return int(about.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def is_error(answer, *statuses):
    """An answer that says what is wrong with the request."""
    assert answer.status in (statuses or (400, 404, 413, 500, 501)), answer
    assert answer.json["error"], answer


def chunked(server, path, pieces, more=b"0\r\n\r\n", headers=""):
    """The first line of the answer to a body in chunks."""
    with socket.create_connection(("127.0.0.1", server.port), LIMIT_S) as connection:
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n{headers}\r\n"
        try:
            connection.sendall(head.encode() + pieces + more)
        except ConnectionError:
            pass
        return connection.makefile("rb").readline().decode()


@pytest.mark.parametrize("path", JSON_PATHS)
@pytest.mark.parametrize("number", ["CVE-2025-23310", "CVE-2025-23311", "CVE-2026-47477"])
def test_bodies_in_very_many_chunks_take_no_stack(server, number, path):
    """The reference allocated on the stack for each chunk of a body, or for each level of its JSON."""
    body = {
        "CVE-2025-23310": b"1\r\n \r\n" * 20_000,
        "CVE-2025-23311": b"".join(b"1\r\n%c\r\n" % byte for byte in (BODY + " " * 5_000).encode()),
        "CVE-2026-47477": b"%x\r\n%s\r\n" % (2 * DEEP, b'[{"a":' * (2 * DEEP // 6) + b" " * (2 * DEEP % 6)),
    }[number]
    status = int(chunked(server, path, body).split(" ")[1])
    assert status in (200, 400, 404, 413, 422, 500, 501), status


@pytest.mark.parametrize("path", JSON_PATHS)
@pytest.mark.parametrize("opening", ["[", '{"a":', '{"inputs":[{"data":[', '{"parameters":{"a":['])
def test_nesting_is_limited_cve_2025_23325(server, path, opening):
    answer = request(server, "POST", path, opening * (DEEP // len(opening)))
    assert answer.status in (200, 400, 404, 413, 422, 500), answer


def test_sizes_that_overflow_are_refused(server):
    """Products of shapes, sums of offsets and sizes, and lengths beyond what a number can hold.

    CVE-2025-23323, CVE-2025-23324, CVE-2025-23326, CVE-2025-23327, CVE-2026-24210, TRI-737
    """
    huge = [2**31, 2**32 - 1, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 2**65]
    for size in huge:
        for shape in ([size], [size, size], [2**32, 2**32], [size, 0], [size, 4, size]):
            is_error(infer(server, "own", {"inputs": [tensor("INPUT0", "INT32", shape, [7])]}))
            is_error(infer_binary(server, "own", {"inputs": [tensor("INPUT0", "INT32", shape, binary_data_size=4)]}, b"abcd"))
        is_error(infer_binary(server, "own", {"inputs": [tensor("INPUT0", "INT32", [1], binary_data_size=size)]}, b"abcd"))
        is_error(infer_binary(server, "own", {"inputs": []}, b"abcd", header_length=size))
        region = {"shared_memory_region": "none", "shared_memory_byte_size": size, "shared_memory_offset": 2**64 - size}
        is_error(infer(server, "own", {"inputs": [tensor("INPUT0", "INT32", [1], **region)]}))
        region = json.dumps({"key": "/none", "offset": size, "byte_size": 2**64 - size + 1})
        is_error(request(server, "POST", "/v2/systemsharedmemory/region/r/register", region))
        text = size.to_bytes(9, "little")[:4] + b"a"
        is_error(infer_binary(server, "text", {"inputs": [tensor("INPUT0", "BYTES", [1], binary_data_size=5)]}, text))


@pytest.mark.parametrize("shape", [[0], [-1], [-(2**63)], [], [0, 0], [1, -1], [-2, -2]])
def test_nothing_is_divided_by_zero_cve_2025_23321(server, shape):
    for model in ("own", "batched", "text"):
        for parameters in ({}, {"binary_data_size": 0}, {"classification": 0}):
            header = {"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": shape, "parameters": parameters}]}
            header["outputs"] = [{"name": "OUTPUT0", "parameters": {"classification": 0, "binary_data": True}}]
            assert infer_binary(server, model, header).status in (200, 400, 500)


def test_contents_and_regions_are_as_large_as_their_shapes_say(server):
    """Contents that are shorter or longer than their shapes, and outputs that are larger than their regions.

    CVE-2025-23328, CVE-2025-33211
    """
    with grpc.insecure_channel(server.grpc_url) as channel:
        stub = service.GRPCInferenceServiceStub(channel)
        for model, datatype, item in (("own", "INT32", b"abcd"), ("text", "BYTES", b"\1\0\0\0a")):
            for count, present in ((1, 0), (1, 2), (2, 1), (1000, 1), (0, 1), (3, 1 << 16)):
                sent = messages.ModelInferRequest(model_name=model, raw_input_contents=[item * present])
                sent.inputs.add(name="INPUT0", datatype=datatype, shape=[count])
                with pytest.raises(grpc.RpcError):
                    stub.ModelInfer(sent)
                header = {"inputs": [tensor("INPUT0", datatype, [count], binary_data_size=len(item) * present)]}
                is_error(infer_binary(server, model, header, item * present))
                data = [7 if model == "own" else "a"] * present
                # Values of a tensor without elements are not read.
                answer = infer(server, model, {"inputs": [tensor("INPUT0", datatype, [count], data)]})
                assert (answer.status == 200) == (count == 0) and answer.status in (200, 400, 500), answer
        for length in (2, 5, 2**16, 2**31, 2**32 - 1):
            text = length.to_bytes(4, "little") + b"a"
            is_error(infer_binary(server, "text", {"inputs": [tensor("INPUT0", "BYTES", [1], binary_data_size=5)]}, text))
    guard = b"\xa5" * 3 * 4096
    memory = Path("/dev/shm/nereid_weaknesses")
    memory.write_bytes(guard)
    try:
        region = json.dumps({"key": "/nereid_weaknesses", "offset": 4096, "byte_size": 1024})
        assert request(server, "POST", "/v2/systemsharedmemory/region/r/register", region).status == 200
        for size, offset in ((4, 0), (1024, 4), (1023, 0), (1024, 1021), (2**40, 0), (2**64 - 4, 8), (1024, 2**63)):
            place = {"shared_memory_region": "r", "shared_memory_byte_size": size, "shared_memory_offset": offset}
            body = {"inputs": [tensor("INPUT0", "INT32", [256], [7] * 256)], "outputs": [{"name": "OUTPUT0", "parameters": place}]}
            is_error(infer(server, "own", body))
            assert memory.read_bytes() == guard, place
        place = {"shared_memory_region": "r", "shared_memory_byte_size": 1024}
        body = {"inputs": [tensor("INPUT0", "INT32", [256], [7] * 256)], "outputs": [{"name": "OUTPUT0", "parameters": place}]}
        assert infer(server, "own", body).status == 200
        assert memory.read_bytes() == guard[:4096] + np.full(256, 7, np.int32).tobytes() + guard[5120:]
    finally:
        request(server, "POST", "/v2/systemsharedmemory/unregister")
        memory.unlink()


def test_cancelled_streams_and_changing_models_leave_no_request_behind(server):
    """Streams that are cancelled before their requests are processed, while models and regions come and go.

    CVE-2025-23322, CVE-2026-24266, CVE-2025-33238, CVE-2025-33254
    """
    message = messages.ModelInferRequest(model_name="own", raw_input_contents=[np.array([7], np.int32).tobytes()])
    message.inputs.add(name="INPUT0", datatype="INT32", shape=[1])
    stop = threading.Event()

    def change():
        key = json.dumps({"key": "/none", "offset": 0, "byte_size": 4})
        while not stop.is_set():
            for name in ("text", "batched"):
                request(server, "POST", f"/v2/repository/models/{name}/unload", "{}")
                request(server, "POST", "/v2/systemsharedmemory/region/r/register", key)
                request(server, "POST", f"/v2/repository/models/{name}/load", "{}")
                request(server, "POST", "/v2/systemsharedmemory/unregister")
                infer(server, name, {"inputs": [tensor("INPUT0", "INT32", [1, 1], [7])]})

    def cancel(_):
        with grpc.insecure_channel(server.grpc_url) as channel:
            stub = service.GRPCInferenceServiceStub(channel)
            for count in range(20):
                stream = stub.ModelStreamInfer(iter([message] * 50))
                for _, _answer in zip(range(count % 3), stream):
                    pass
                stream.cancel()

    changing = threading.Thread(target=change)
    changing.start()
    try:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(cancel, range(8)))
    finally:
        stop.set()
        changing.join()


def test_what_a_request_declares_is_not_allocated(server):
    """Memory and time follow what arrived, not the numbers in it.

    CVE-2025-23331, CVE-2026-47628, CVE-2026-24146, CVE-2026-16497, CVE-2026-47476
    """
    many = [{"name": f"OUTPUT{index}"} for index in range(50_000)]
    for body in (
        {"inputs": [tensor("INPUT0", "INT32", [2**40], [7])]},
        {"inputs": [tensor("INPUT0", "INT32", [1], [7])], "outputs": many},
        {"inputs": [tensor("INPUT0", "INT32", [1], [7])], "outputs": [{"name": "OUTPUT0"}] * 50_000},
        {"inputs": [tensor(f"INPUT{index}", "INT32", [1], [7]) for index in range(50_000)]},
        {
            "inputs": [tensor("INPUT0", "INT32", [1], [7])],
            "outputs": [{"name": "OUTPUT0", "parameters": {"classification": 2**40}}],
        },
    ):
        assert infer(server, "own", body).status in (200, 400, 500)
    for length in (2**31, 2**40, 2**62):
        with socket.create_connection(("127.0.0.1", server.port), LIMIT_S) as connection:
            connection.sendall(f"POST /v2/models/own/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode())
            assert b" 413 " in connection.makefile("rb").readline()


def test_parameters_of_generate_have_the_limit_of_inputs(server):
    """Nested parameters, which are not tensors, count like the rest of a request.

    CVE-2026-47479, CVE-2026-47629
    """
    for value in ("x" * (17 * MEBIBYTE), ["x" * MEBIBYTE] * 17, {"a": {"b": ["x" * MEBIBYTE] * 17}}):
        for path in ("generate", "generate_stream", "infer"):
            body = json.dumps({"INPUT0": [7], "parameters": {"a": value}})
            assert request(server, "POST", f"/v2/models/own/{path}", body).status in (400, 413)


@pytest.mark.parametrize("path", [JSON_PATHS[0], JSON_PATHS[1], JSON_PATHS[3], JSON_PATHS[7], JSON_PATHS[11]])
def test_very_large_payloads_are_answered(server, path):
    """Just within the limit and beyond it, as one text, as many values, and as blanks.

    CVE-2025-33201, CVE-2025-33202
    """
    answered = (200, 400, 404, 422, 500, 501)
    # Loads bring files, so that limit is not for repositories.
    for size, statuses in ((15 * MEBIBYTE, answered), (17 * MEBIBYTE, answered if "repository" in path else (400, 413))):
        for body in ('{"a": "' + "x" * size + '"}', "[" + "0," * (size // 2) + "0]", " " * size):
            try:
                answer = chunked(server, path, b"%x\r\n%s\r\n" % (len(body), body.encode()))
            except ConnectionError:
                # The server answers without reading the rest, and the client may lose the answer while it still sends.
                assert size > 16 * MEBIBYTE
            else:
                assert int(answer.split(" ")[1]) in statuses, answer


@pytest.mark.parametrize("encoding, pack", [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_compressed_bodies_stay_small(server, encoding, pack):
    """CVE-2026-24264, CVE-2026-24158."""
    bomb = pack(b" " * (100 * MEBIBYTE))
    for path in JSON_PATHS:
        answer = request(server, "POST", path, bomb, {"Content-Encoding": encoding})
        assert answer.status in (400, 413, 415, 500, 501), (path, answer)
    cut = pack(BODY.encode())
    for body in (cut[:-5], cut[:3], b"", cut + cut, pack(cut)):
        assert infer(server, "own", body, {"Content-Encoding": encoding}).status in (400, 500)


def test_values_of_the_wrong_type_are_errors_and_no_exceptions(server):
    """CVE-2026-24173, CVE-2026-24174, CVE-2026-24175, CVE-2026-47480, TRI-873."""
    wrong: list = [None, True, -1, 2**64, 1e308, -1e308, 0.5, "", "x", "\u0000", [], [[]], {}, {"a": []}]
    for value in wrong:
        for body in (
            value,
            {"id": value, "inputs": [tensor("INPUT0", "INT32", [1], [7])]},
            {"inputs": value},
            {"inputs": [value]},
            {"inputs": [{"name": value, "datatype": "INT32", "shape": [1], "data": [7]}]},
            {"inputs": [{"name": "INPUT0", "datatype": value, "shape": [1], "data": [7]}]},
            {"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": value, "data": [7]}]},
            {"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [value], "data": [7]}]},
            {"inputs": [tensor("INPUT0", "INT32", [1], value)]},
            {"inputs": [tensor("INPUT0", "INT32", [1], [value])]},
            {"inputs": [tensor("INPUT0", "INT32", [1], [7])], "outputs": value},
            {"inputs": [tensor("INPUT0", "INT32", [1], [7])], "outputs": [{"name": "OUTPUT0", "parameters": value}]},
            *(
                {"inputs": [tensor("INPUT0", "INT32", [1], [7])], "parameters": {name: value}}
                for name in ("sequence_id", "sequence_start", "priority", "timeout", "binary_data_output", "triton_x")
            ),
        ):
            assert infer(server, "own", body).status in (200, 400, 500), body
        for path in JSON_PATHS:
            for body in (value, {"parameters": value}, {"model": "own", "messages": value, "prompt": value, "input": value}):
                answer = request(server, "POST", path, json.dumps(body))
                assert answer.status < 600 and (answer.status < 300 or answer.body), (path, body, answer)
        assert request(server, "POST", "/v2/repository/models/own/load", "{}").status == 200
    for length in ("", "x", "-1", "1e9", "0x10", " 5", "99999999999999999999", "5, 5"):
        answer = infer(server, "own", BODY, {"Inference-Header-Content-Length": length})
        assert answer.status in (200, 400, 500), (length, answer)


OUTSIDE = (
    "..",
    ".",
    "/",
    "//",
    "../own",
    "own/..",
    "own/../own",
    "/etc",
    "..\\own",
    "own%00",
    "~",
    "$HOME",
    "own/1",
    "file:///etc",
    "",
)


def test_no_name_leads_out_of_a_repository(server, folder):
    """Models, versions and files of loads, by relative and by absolute paths.

    CVE-2026-24208, CVE-2026-24209, CVE-2026-47627, CVE-2026-47606, CVE-2026-47630, CVE-2026-47487
    """
    (folder / "outside").mkdir(exist_ok=True)
    write_once = folder / "outside" / "own"
    if not write_once.exists():
        write_identity(folder / "outside", "own", ["FP32"])
    before = sorted(str(path) for path in folder.rglob("*"))
    names = (*OUTSIDE, "../outside/own", str(folder / "outside" / "own"))
    with grpc.insecure_channel(server.grpc_url) as channel:
        stub = service.GRPCInferenceServiceStub(channel)
        for name in names:
            encoded = "".join(f"%{byte:02X}" for byte in name.encode())
            for path in (
                f"/v2/repository/models/{encoded}/load",
                f"/v2/models/{encoded}/infer",
                f"/v2/models/own/versions/{encoded}/infer",
            ):
                assert request(server, "POST", path, BODY if "infer" in path else "{}").status in (400, 404, 405, 500), (name, path)
            with pytest.raises(grpc.RpcError):
                stub.RepositoryModelLoad(messages.RepositoryModelLoadRequest(model_name=name))
    contents = base64.b64encode(b"escaped").decode()
    config = json.dumps({"name": "own", "backend": "identity"})
    for name in (*OUTSIDE, "../../../escaped", "1/../../../escaped", f"{folder}/escaped", "/tmp/escaped-nereid", "1/../../escaped"):
        body = json.dumps({"parameters": {"config": config, f"file:{name}": contents}})
        request(server, "POST", "/v2/repository/models/own/load", body)
    assert sorted(str(path) for path in folder.rglob("*")) == before and not os.path.exists("/tmp/escaped-nereid")


def test_no_configuration_shows_files_from_elsewhere_cve_2026_24147(server, folder):
    """Each field that names a file, with paths to one outside of the model: neither answers nor the log have its contents."""
    secret = folder / "secret"
    secret.write_text("first-secret\nsecond-secret\n")
    config: dict = {"name": "own", "backend": "identity"}
    for kind in ("input", "output"):
        config[kind] = [{"name": f"{kind.upper()}0", "data_type": "TYPE_INT32", "dims": [-1]}]
    for path in (str(secret), "../secret", "../../secret", f"//{secret}", f"1/../../{secret}", f"file://{secret}", "/etc/passwd"):
        warm_up = {"INPUT0": {"data_type": "TYPE_INT32", "dims": [4], "input_data_file": path}}
        for change in (
            {"default_model_filename": path},
            {"cc_model_filenames": {"8.0": path}},
            {"output": [config["output"][0] | {"label_filename": path}]},
            {"model_warmup": [{"name": "w", "batch_size": 1, "inputs": warm_up}]},
            {"backend": path},
            {"platform": path},
            {"runtime": path},
            {"parameters": {"EXECUTION_ENV_PATH": {"string_value": path}}},
            {"model_operations": {"op_library_filename": [path]}},
            {"ensemble_scheduling": {"step": [{"model_name": path, "model_version": -1}]}},
            {"model_repository_agents": {"agents": [{"name": path, "parameters": {"path": path}}]}},
        ):
            for own in ({}, {"name": path}):
                body = json.dumps({"parameters": {"config": json.dumps(config | change | own)}})
                answers = [request(server, "POST", "/v2/repository/models/own/load", body)]
                answers.append(request(server, "GET", "/v2/models/own/config"))
                labels = {"name": "OUTPUT0", "parameters": {"classification": 2}}
                answers.append(infer(server, "own", {"inputs": [tensor("INPUT0", "INT32", [2], [1, 2])], "outputs": [labels]}))
                for answer in answers:
                    assert b"-secret" not in answer.body and b"root:" not in answer.body, (path, change, answer)
    assert "first-secret" not in server.log and "root:x" not in server.log


def test_loads_of_files_run_nothing_for_strangers_cve_2025_23317(server, folder):
    """The way to a shell was a load with files: without a policy it is for this machine only (test_trust_network.py), and files
    of a load are written to no place that the request chooses."""
    marker = folder / "marker"
    code = base64.b64encode(f"open({str(marker)!r}, 'w').close()".encode()).decode()
    config = json.dumps({"name": "own", "backend": "identity"})
    for name in ("file:../model.py", f"file:{folder}/model.py", "file:1/../../model.py"):
        body = json.dumps({"parameters": {"config": config, name: code}})
        request(server, "POST", "/v2/repository/models/own/load", body)
    assert not marker.exists() and not list(folder.rglob("model.py"))


def test_memory_of_models_processes_is_not_for_clients(server):
    """The chain of 2025: an error gave away the name of the memory that the server shares with models in Python, which a client
    could then register, read and overwrite.

    CVE-2025-23318, CVE-2025-23319, CVE-2025-23320, CVE-2025-23333, CVE-2025-23334
    """
    for name in ("triton_python_backend_shm_region_1", "/triton_python_backend_shm_region_1", "nereid-1", "/nereid"):
        body = json.dumps({"key": name, "offset": 0, "byte_size": 64})
        is_error(request(server, "POST", "/v2/systemsharedmemory/region/stolen/register", body), 400, 404, 500)
    large = np.zeros(8 * MEBIBYTE, np.int32).tobytes()
    header = {"inputs": [tensor("INPUT0", "INT32", [8 * MEBIBYTE + 1], binary_data_size=len(large))]}
    answer = infer_binary(server, "own", header, large)
    assert answer.status == 400 and b"shm" not in answer.body and b"/dev/" not in answer.body


def test_configurations_with_odd_sizes_are_refused(server):
    """CVE-2025-23335, CVE-2025-23336."""
    for change in (
        {"max_batch_size": -1},
        {"max_batch_size": 2**31},
        {"input": [{"name": "INPUT0", "data_type": "TYPE_INT32", "dims": [0]}]},
        {"input": [{"name": "INPUT0", "data_type": "TYPE_INT32", "dims": [-2]}]},
        {"input": [{"name": "INPUT0", "data_type": "TYPE_INT32", "dims": [2**62, 2**62]}]},
        {"input": [{"name": "INPUT0", "data_type": "TYPE_INT32", "dims": [4], "reshape": {"shape": [3]}}]},
        {"dynamic_batching": {"preferred_batch_size": [0, -1, 2**31]}},
        {"instance_group": [{"count": -1}]},
        {"instance_group": [{"count": 2**31 - 1}]},
    ):
        config = {"name": "batched", "backend": "identity", "max_batch_size": 8} | change
        body = json.dumps({"parameters": {"config": json.dumps(config)}})
        answer = request(server, "POST", "/v2/repository/models/batched/load", body)
        if answer.status == 200:
            for shape in ([1, 1], [8, 0], [9, 1]):
                infer(server, "batched", {"inputs": [tensor("INPUT0", "INT32", shape, [7] * (shape[0] * shape[1]))]})


def test_clients_that_leave_cost_neither_descriptors_nor_memory(server):
    """CVE-2026-47478, CVE-2026-47482."""

    def descriptors():
        return len(os.listdir(f"/proc/{server.pid}/fd"))

    infer(server, "own", BODY)
    before = descriptors()
    large = json.dumps({"inputs": [tensor("INPUT0", "INT32", [100_000], [7] * 100_000)]})
    head = f"POST /v2/models/own/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(large)}\r\n\r\n"
    for cut in range(200):
        with socket.create_connection(("127.0.0.1", server.port), LIMIT_S) as connection:
            connection.sendall((head + large)[: len(head) + len(large) * cut // 199].encode())
            # The answer cannot be sent any more.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    assert eventually(lambda: descriptors() <= before + 2)


def test_models_of_sagemaker_are_bound_to_their_names_tri_1563(server):
    faces = Faces(server)

    def ask(method, path, headers, body=BODY):
        connection = HTTPConnection("127.0.0.1", faces.ports["SageMaker"], timeout=LIMIT_S)
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return Answer(answer.status, answer.headers, answer.read())

    for method, path in (("POST", "/models/own/invoke"), ("DELETE", "/models/own"), ("POST", "/models/absent/invoke")):
        for target in ("text", "../own", "batched", "own/../text"):
            assert ask(method, path, {"X-Amzn-SageMaker-Target-Model": target}).status in (400, 404)
    assert infer(server, "text", {"inputs": [tensor("INPUT0", "BYTES", [1], ["a"])]}).status == 200
    # Nothing outside of SageMaker's folders gives its contents away.
    for url in ("/etc/passwd", "/proc/self/environ", "file:///etc/passwd", "/etc", "..", "", "s3://bucket/x", "/dev/zero"):
        answer = ask("POST", "/models", {}, json.dumps({"model_name": "stolen", "url": url}))
        assert answer.status in (400, 404, 500, 507), ("TRI-848", url, answer)
        assert b"root:" not in answer.body
    faces.close()


@pytest.mark.parametrize("flags, status", [(["--allow-client-shm=false"], (400, 404, 501, 503)), ([], (400, 404))])
def test_regions_without_shared_memory_are_errors_tri_1698(repository, serve, flags, status):
    write_identity(repository, "own", ["INT32"])
    server = serve(*flags)
    region = {"shared_memory_region": "r", "shared_memory_byte_size": 4}
    for body in (
        {"inputs": [tensor("INPUT0", "INT32", [1], **region)]},
        {"inputs": [tensor("INPUT0", "INT32", [1], [7])], "outputs": [{"name": "OUTPUT0", "parameters": region}]},
    ):
        assert infer(server, "own", body).status in status
    assert infer(server, "own", BODY).status == 200

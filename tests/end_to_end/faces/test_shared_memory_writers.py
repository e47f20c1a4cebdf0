"""Processes that write into shared memory while a model reads it: indices that jump far out of range between two reads.

A library that checks an index and reads it again would read, or write, outside its tensors. Requests may fail; the server
must go on, and what it answers comes from the model's own data.
"""

import ctypes
import json
import mmap
import multiprocessing
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import nereid_server
import onnx_engines
from http_requests import infer, request, tensor
from model_files import write_model

COUNT = 4096
SECONDS = 2.0
FAR = 1 << 40
DATA = np.arange(1, 9, dtype=np.float32)
ALLOWED = {*DATA.tolist(), 0.0, 1.0}
CHAIN = "add_then_gather"
PATTERNS = {
    "gather": ([helper.make_node("Gather", ["data", "X"], ["Y"])], [COUNT]),
    "gather_elements": ([helper.make_node("GatherElements", ["data", "X"], ["Y"])], [COUNT]),
    "gather_nd": (
        [helper.make_node("Reshape", ["X", "column"], ["at"]), helper.make_node("GatherND", ["data", "at"], ["Y"])],
        [COUNT],
    ),
    "scatter_elements": (
        [
            helper.make_node("ScatterElements", ["data", "X", "ones"], ["filled"], reduction="max"),
            helper.make_node("Slice", ["filled", "zero", "eight"], ["Y"]),
        ],
        [8],
    ),
    "one_hot": (
        [
            helper.make_node("OneHot", ["X", "depth", "values"], ["hot"]),
            helper.make_node("ReduceMax", ["hot"], ["Y"], axes=[1], keepdims=0),
        ],
        [COUNT],
    ),
    # The indices come out of a region that is written by the client, too: the first node's output is placed there.
    CHAIN: (
        [helper.make_node("Add", ["X", "zero"], ["I"]), helper.make_node("Gather", ["data", "I"], ["Y"])],
        [COUNT],
    ),
}


def write(repository, name, nodes, dims):
    outputs = [helper.make_tensor_value_info("Y", TensorProto.FLOAT, dims)]
    if any("I" in node.output for node in nodes):
        outputs.append(helper.make_tensor_value_info("I", TensorProto.INT64, [COUNT]))
    constants = {
        "data": DATA,
        "ones": np.ones(COUNT, np.float32),
        "zero": np.zeros(1, np.int64),
        "eight": np.array([8], np.int64),
        "column": np.array([-1, 1], np.int64),
        "depth": np.array(8, np.int64),
        "values": np.array([0, 1], np.float32),
    }
    used = {name for node in nodes for name in node.input}
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("X", TensorProto.INT64, [COUNT])],
        outputs,
        [numpy_helper.from_array(value, name) for name, value in constants.items() if name in used],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    write_model(repository, name, 'backend: "onnxruntime"', model.SerializeToString())


def flip(path, stop):
    """Writes valid and far indices over the whole object in turn, until told to stop."""
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        values = np.frombuffer(memory, np.int64)
        while not stop.value:
            values[:] = FAR
            values[:] = 3
        del values


@pytest.fixture
def flipped():
    """A shared memory object that another process writes all the time."""
    path = Path("/dev/shm") / f"nereid-{uuid.uuid4().hex}"
    path.write_bytes(np.full(2 * COUNT, 3, np.int64).tobytes())
    stop = multiprocessing.RawValue(ctypes.c_bool, False)
    writer = multiprocessing.get_context("fork").Process(target=flip, args=(path, stop))
    writer.start()
    yield path
    stop.value = True
    writer.join(10)
    path.unlink()


def body(*outputs):
    """A request with X in the first half of the region; an output I goes to the second half."""
    where = {"shared_memory_region": "io", "shared_memory_byte_size": 8 * COUNT}
    parameters = {"I": where | {"shared_memory_offset": 8 * COUNT}}
    return {
        "inputs": [tensor("X", "INT64", [COUNT], **where)],
        "outputs": [{"name": name, "parameters": parameters.get(name, {})} for name in outputs],
    }


@pytest.mark.parametrize("engine", sorted(onnx_engines.FLAGS))
def test_indices_that_change_while_a_model_reads_them_do_no_harm(repository, engine, flipped):
    for name, (nodes, dims) in PATTERNS.items():
        write(repository, name, nodes, dims)
    with nereid_server.running(repository, *onnx_engines.FLAGS[engine]) as server:
        key = f"/{flipped.name}"
        region = json.dumps({"key": key, "offset": 0, "byte_size": 2 * 8 * COUNT})
        assert request(server, "POST", "/v2/systemsharedmemory/region/io/register", region).status == 200

        def ask(name):
            statuses = set()
            document = body("Y", "I") if name == CHAIN else body("Y")
            end = time.monotonic() + SECONDS
            while time.monotonic() < end:
                answer = infer(server, name, document)
                statuses.add(answer.status)
                if answer.status == 200:
                    values = next(output["data"] for output in answer.json["outputs"] if output["name"] == "Y")
                    assert set(values) <= ALLOWED, f"{name} answered with foreign memory"
            return statuses

        with ThreadPoolExecutor() as pool:
            for name, statuses in zip(PATTERNS, pool.map(ask, PATTERNS), strict=True):
                # An index that was far when it was checked is refused.
                assert statuses <= {200, 400, 500}, name
        assert server.exit_code is None
        assert request(server, "GET", "/v2/health/live").status == 200

"""Whatever a Python model does in a request, many such requests hold no more than a few: Python objects, shared memory,
descriptors and processes.
"""

import pytest
import tritonclient.http
from test_python_api import REPEAT, REPEAT_CONFIG

import nereid_server
import processes
import python_lab
from model_files import write_identity
from waiting import eventually

FEW, MANY = 10, 150

_ASK = 'ask("identity", [tensor("INPUT0", range(5000), "float32")], ["OUTPUT0"])'
_STREAM = 'ask("repeat", [tensor("COUNT", [%d], "int32")], ["NUMBER"])'

# What a request does: the lab that runs it, and its code.
DONE = {
    "exec": ("lab", f"{_ASK}.exec().output_tensors()[0].as_numpy()"),
    "exec of a model that is unknown": ("lab", "ask('nowhere', [], ['B']).exec()"),
    "exec of a decoupled model": ("lab", f"list({_STREAM % 3}.exec(decoupled=True))"),
    "exec of a decoupled model, read in part": ("lab", f"next({_STREAM % 3}.exec(decoupled=True))"),
    "exec of a decoupled model, unread": ("lab", f"{_STREAM % 3}.exec(decoupled=True)"),
    "exec of a decoupled model, cancelled": ("lab", f"it = {_STREAM % -1}.exec(decoupled=True); next(it); it.cancel(); list(it)"),
    "exec on another thread": ("lab", f"thread = threading.Thread(target=lambda: {_ASK}.exec()); thread.start(); thread.join()"),
    "async_exec": ("async_lab", f"(await {_ASK}.async_exec()).output_tensors()[0].as_numpy()"),
    "async_exec, several at once": ("async_lab", f"await asyncio.gather(*[{_ASK}.async_exec() for _ in range(4)])"),
    "async_exec of a model that is unknown": ("async_lab", "await ask('nowhere', [], ['B']).async_exec()"),
    "exec of a decoupled model with large responses, unread": ("lab", f"{_ASK}.exec(decoupled=True)"),
    "async_exec, cancelled": ("async_lab", f"future = {_ASK}.async_exec(); future.cancel()"),
    "async_exec of a decoupled model": (
        "async_lab",
        f"[response async for response in await {_STREAM % 3}.async_exec(decoupled=True)]",
    ),
    "async_exec of a decoupled model, with a plain for": (
        "async_lab",
        f"[response for response in await {_STREAM % 3}.async_exec(decoupled=True)]",
    ),
    "async_exec of a decoupled model, read in part": (
        "async_lab",
        f"it = await {_STREAM % -1}.async_exec(decoupled=True); await it.__anext__()",
    ),
    "async_exec of a decoupled model, unread": ("async_lab", f"await {_STREAM % 3}.async_exec(decoupled=True)"),
    "async_exec of a decoupled model, cancelled": (
        "async_lab",
        f"task = {_STREAM % -1}.async_exec(decoupled=True); await asyncio.sleep(0.01); task.cancel()",
    ),
    "async_exec of a decoupled model, cancelled at once": (
        "async_lab",
        f"task = {_STREAM % -1}.async_exec(decoupled=True); task.cancel()",
    ),
    "exec of a decoupled model, cancelled at once": ("lab", f"{_STREAM % -1}.exec(decoupled=True).cancel()"),
    "tensors by DLPack": ("lab", 'pb_utils.Tensor.from_dlpack("X", tensor("X", range(5000), "float32").to_dlpack()).as_numpy()'),
    "texts": ("lab", 'texts("X", *["element"] * 100).as_numpy()'),
    "parameters": ("lab", f"{_ASK[:-1]}, parameters={{'a': 1, 'b': 'x'}}).exec()"),
    "metrics": (
        "lab",
        'pb_utils.MetricFamily("leaks", "d", pb_utils.MetricFamily.GAUGE).Metric(labels={"a": "b"}).set(1)',
    ),
    "the log": ("lab", 'pb_utils.Logger.log_info("a line")'),
    "readiness": ("lab", 'pb_utils.is_model_ready("identity")'),
    "exceptions": ("lab", "outcome(lambda: pb_utils.Tensor('', numpy.zeros(1)))"),
}

# What the process holds itself. Cancelled requests may still be ending.
_COUNT = """
import gc
import time
{wait}
gc.collect()
{result} len(gc.get_objects())
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    repository = tmp_path_factory.mktemp("models")
    python_lab.write(repository, "lab")
    python_lab.write(repository, "async_lab", python_lab.ASYNC_LAB)
    write_identity(repository, "identity", ["FP32"])
    (repository / "repeat" / "1").mkdir(parents=True)
    (repository / "repeat" / "1" / "model.py").write_text(REPEAT)
    (repository / "repeat" / "config.pbtxt").write_text(REPEAT_CONFIG)
    with nereid_server.running(repository, *python_lab.FLAGS) as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    with tritonclient.http.InferenceServerClient(server.url, network_timeout=60) as client:
        yield client


@pytest.mark.parametrize("done", DONE)
def test_many_requests_hold_no_more_than_a_few(server, client, done):
    lab, code = DONE[done]
    asynchronous = lab == "async_lab"
    wait = "await asyncio.sleep(0.2)" if asynchronous else "time.sleep(0.2)"
    count = _COUNT.format(wait=wait, result="return" if asynchronous else "result =")

    def held_after(requests):
        for _ in range(requests):
            python_lab.run(client, code, model=lab)
        return {"objects": python_lab.run(client, count, model=lab), **processes.holdings(server.pid)}

    few = held_after(FEW)
    # Each request more would leave one object, or 20,000 bytes of shared memory.
    allowed = {"objects": MANY // 2, "bytes of shared memory": 1 << 20, "descriptors": 4}

    def grown(held):
        return {what: (few[what], held[what]) for what in few if held[what] > few[what] + allowed.get(what, 0)}

    held_after(MANY)
    # Memory of requests that were in progress together is given back after seconds.
    assert eventually(lambda: not grown(held_after(0))), grown(held_after(0))

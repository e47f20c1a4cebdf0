"""The package `nereid` for Python: servers within a program, as the wheel brings them."""

import asyncio
import gc
import json
import os
import re
import shutil
import signal
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

import native_backends
import python_package
from cloud_repositories import Cloud
from cloud_servers import s3
from gates import Gate
from http_requests import LIMIT_S
from http_requests import request as http_request
from model_files import config_type
from places import EXAMPLES
from python_interpreters import NEWEST, OLDEST, environments
from waiting import eventually

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples"
TRACT = {"backend_config": {"onnxruntime": {"engine": "tract"}}}
TYPES = {
    "BOOL": np.bool_, "UINT8": np.uint8, "UINT16": np.uint16, "UINT32": np.uint32, "UINT64": np.uint64,
    "INT8": np.int8, "INT16": np.int16, "INT32": np.int32, "INT64": np.int64,
    "FP16": np.float16, "FP32": np.float32, "FP64": np.float64, "BF16": ml_dtypes.bfloat16,
}  # fmt: skip
NUMBERS = """max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_INT64 dims: -1 } output { name: "OUTPUT0" data_type: TYPE_INT64 dims: -1 }"""
COUNTS = """
import numpy
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            count = int(pb_utils.get_input_tensor_by_name(request, "COUNT").as_numpy()[0])
            for number in range(abs(count)):
                tensor = pb_utils.Tensor("NUMBER", numpy.array([number], dtype=numpy.int32))
                sender.send(pb_utils.InferenceResponse([tensor]))
            if count < 0:
                sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("cannot go on")))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

PREFIX = """
import sys
import numpy
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        tensor = pb_utils.Tensor("OUTPUT0", numpy.array([sys.prefix.encode()], dtype=object))
        return [pb_utils.InferenceResponse([tensor]) for _ in requests]
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    return python_package.install(tmp_path_factory.mktemp("package"))


@pytest.fixture(scope="module")
def nereid(installed):
    sys.path.insert(0, str(installed))
    import nereid

    assert Path(nereid.__file__).is_relative_to(installed)
    yield nereid
    nereid.configure_log()
    sys.path.remove(str(installed))


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for name in [*TYPES, "BYTES"]:
        kind = config_type(name)
        tensors = "".join(f'{way} {{ name: "{way.upper()}0" data_type: {kind} dims: -1 }} ' for way in ["input", "output"])
        native_backends.write_model(folder, name.lower(), "identity", tensors)
    for name in ["numbers", "other"]:
        native_backends.write_model(folder, name, "identity", NUMBERS)
    native_backends.write_model(folder, "sequences", "identity", f"{NUMBERS} sequence_batching {{ }}")
    native_backends.write_model(
        folder,
        "counts",
        "python",
        """model_transaction_policy { decoupled: true } input { name: "COUNT" data_type: TYPE_INT32 dims: 1 }
        output { name: "NUMBER" data_type: TYPE_INT32 dims: 1 }""",
    )
    (folder / "counts" / "1" / "model.py").write_text(COUNTS)
    return folder


@pytest.fixture(scope="module")
def server(nereid, repository):
    with nereid.Server(repository, exit_timeout_secs=2) as server:
        yield server


@pytest.fixture
def gated(nereid, tmp_path):
    """A gate, and a server with a model that waits there."""
    with Gate() as gate:
        config = f"{NUMBERS} {native_backends.parameter('gate', gate.path)}"
        native_backends.write_model(tmp_path / "gated", "slow", "identity", config)
        with nereid.Server(tmp_path / "gated") as server:
            yield gate, server


def numbers(*values):
    return {"INPUT0": np.array([values], dtype=np.int64)}


def answer(response):
    return response["OUTPUT0"].numpy().tolist()


def bits(array):
    return array.shape, np.ascontiguousarray(array).view(np.uint8).tobytes() if array.size else b""


def arrays(dtype):
    """Arrays of one dimension of all kinds: long, of one element, empty, strided, reversed, of one stride 0, read-only, of the
    other byte order."""
    values = (np.arange(60) % 2 if dtype == np.bool_ else np.arange(60)).astype(dtype)
    read_only = values.copy()
    read_only.flags.writeable = False
    yield from [values, values[:1], values[:0], values[::2], values[::-1], values[3:50:7], read_only]
    yield as_strided(values, (4,), (0,))
    if dtype != ml_dtypes.bfloat16:
        yield values.astype(values.dtype.newbyteorder())


def shaped(array):
    """The array in other shapes."""
    yield array
    if array.size == 60:
        yield from [array.reshape(3, 4, 5), array.reshape(6, 10).T, array.reshape(3, 20)[:, 3:7], array.reshape(1, 60, 1)]
    if array.size == 1:
        yield array.reshape(())
    if array.size == 0:
        yield from [array.reshape(0, 5), array.reshape(2, 0, 3)]


@pytest.mark.parametrize("name", TYPES)
def test_arrays_come_back_as_they_were(nereid, server, name):
    model = server.model(name.lower())
    for array in arrays(TYPES[name]):
        expected = bits(array.astype(array.dtype.newbyteorder("=")))
        output = model.infer({"INPUT0": array})["OUTPUT0"]
        assert (output.data_type, output.shape, output.nbytes) == (name, array.shape, array.nbytes)
        assert bits(output.numpy()) == expected and bits(np.asarray(output)) == expected
        assert output.numpy() is output.numpy()
        for other in shaped(array):
            tensor = nereid.Tensor(other)
            own = other.astype(other.dtype.newbyteorder("="))
            assert (tensor.data_type, tensor.shape, tensor.tobytes()) == (name, other.shape, own.tobytes())
            if name != "BF16":
                assert bits(np.from_dlpack(tensor)) == bits(own)
                assert bits(nereid.Tensor.from_dlpack(own).numpy()) == bits(own)


def test_elements_of_bytes_come_back_as_they_were(nereid, server):
    model = server.model("bytes")
    elements = [b"", b"a", b"\0b\0", "\u00e4\u20ac".encode(), bytes(range(256)) * 300]
    objects = np.array(elements, dtype=object)
    texts = np.array(["", "a", "\u00e4\u20ac"])
    for given, expected in [
        (objects, elements),
        (objects[::-2], elements[::-2]),
        (objects[:0], []),
        (elements, elements),
        (texts, [b"", b"a", "\u00e4\u20ac".encode()]),
        (["x", "yz"], [b"x", b"yz"]),
        (np.array([b"fixed", b"x"]), [b"fixed", b"x"]),
        (np.array([1, None], dtype=object), [b"1", b"None"]),
    ]:
        output = model.infer({"INPUT0": given})["OUTPUT0"]
        assert output.numpy().tolist() == expected and output.shape == (len(expected),)
    with pytest.raises(BufferError, match="BYTES"):
        output.__dlpack__()
    assert nereid.Tensor(np.array("x", dtype=object)).shape == ()


def test_nothing_is_copied_that_need_not_be(nereid, server):
    values = np.arange(1000, dtype=np.float32)
    values.flags.writeable = False
    tensor = nereid.Tensor(values)
    assert np.shares_memory(tensor.numpy(), values)
    shared = nereid.Tensor.from_dlpack(np.arange(5))
    assert np.shares_memory(shared.numpy(), np.from_dlpack(shared))
    response = server.model("fp32").infer({"INPUT0": tensor})
    first, second = response["OUTPUT0"].numpy(), np.from_dlpack(response["OUTPUT0"])
    assert np.shares_memory(first, second) and not np.shares_memory(first, values)
    assert first.ctypes.data % 64 == 0
    # The array keeps what it views.
    del response, second
    gc.collect()
    np.testing.assert_array_equal(first, values)
    first += 1
    assert first[0] == 1 and values[0] == 0


def test_an_input_is_kept_until_its_request_is_over_and_no_longer(nereid, gated):
    gate, server = gated

    class Kept(np.ndarray):
        pass

    values = np.array([[1, 2]], dtype=np.int64).view(Kept)
    gone = weakref.ref(values)
    responses = server.model("slow").stream({"INPUT0": values})
    del values
    gate.entered()
    gc.collect()
    assert gone() is not None
    gate.release_all()
    assert answer(next(responses)) == [[1, 2]] and list(responses) == []
    # It is let go when a thread of Python's comes by.
    assert eventually(lambda: server.live() and gone() is None)


def test_values_that_are_no_arrays_take_the_type_that_the_model_declares(nereid, server):
    values: dict[str, list | tuple] = {"fp16": [1, 2.5], "int8": [-1], "uint64": [1, 2], "bool": [True, False], "fp64": (1, 2)}
    for name, value in values.items():
        output = server.model(name).infer({"INPUT0": value})["OUTPUT0"].numpy()
        assert output.dtype == TYPES[name.upper()] and output.tolist() == list(value)
    for value, data_type, error in [
        (np.zeros(2), "FP32", TypeError),
        (np.zeros(2, np.complex64), None, TypeError),
        (np.array(["2020-01-01"], "datetime64[D]"), None, TypeError),
        ([[1], [1, 2]], "INT32", ValueError),
        ([1], "FP33", ValueError),
    ]:
        with pytest.raises(error):
            nereid.Tensor(value, data_type)


def test_bits_of_bfloat16_are_taken_from_numbers(nereid):
    array = np.array([1, 2, 3], dtype=ml_dtypes.bfloat16)
    tensor = nereid.Tensor(array.view(np.uint16), "BF16")
    assert tensor.data_type == "BF16" and tensor.tobytes() == array.tobytes()


def test_models_are_described(server):
    model = server.model("numbers")
    assert model.ready() and not server.model("none").ready() and not model.decoupled() and server.model("counts").decoupled()
    assert model.metadata()["inputs"][0]["name"] == "INPUT0" and model.config()["max_batch_size"] == 8
    before = model.statistics()["model_stats"][0]["inference_count"]
    model.infer(numbers(1, 2))
    assert model.statistics()["model_stats"][0]["inference_count"] == before + 1
    assert re.search(r'nv_inference_request_success{model="numbers",version="1"} \d', server.metrics())
    states = {state.name: (state.version, state.state) for state in server.models(ready=True)}
    assert states["numbers"] == (1, "READY") and len(states) == 18
    assert server.live() and server.ready() and server.addresses() == {} and server.metadata()["name"] == "triton"


def test_requests_have_properties(nereid, server):
    model = server.model("numbers", 1)
    request = {"request_id": "r", "parameters": {"a": 1, "b": 0.5, "c": True, "d": "t"}, "priority": 3, "queue_timeout": 5}
    response = model.infer(numbers(4), outputs=["OUTPUT0"], **request)
    assert (response.model, response.version, response.id, list(response.outputs)) == ("numbers", 1, "r", ["OUTPUT0"])
    assert "OUTPUT0" in repr(response)
    with pytest.raises(KeyError):
        response["OUTPUT1"]
    refused: list[tuple[dict, type[Exception]]] = [
        ({"outputs": ["OUTPUT7"]}, nereid.InvalidArgumentError),
        ({"parameters": {"a": None}}, TypeError),
        ({"parameters": {"a": 1 << 70}}, OverflowError),
        ({"request_id": "a\0b"}, ValueError),
        ({"sequence_start": True}, nereid.InvalidArgumentError),
        ({"priority": -1}, OverflowError),
        ({"unknown": 1}, TypeError),
    ]
    for wrong, error in refused:
        with pytest.raises(error):
            model.infer(numbers(4), **wrong)
    with pytest.raises(nereid.NotFoundError, match="none"):
        server.model("none").infer(numbers(1))
    with pytest.raises(nereid.InvalidArgumentError, match="FP64"):
        model.infer({"INPUT0": np.zeros((1, 1))})
    with pytest.raises(nereid.Error):
        server.model("numbers", 7).infer(numbers(1))


@pytest.mark.parametrize("identity", [7, 1 << 63, "text"])
def test_sequences_begin_and_end(nereid, server, identity):
    model = server.model("sequences")
    with pytest.raises(nereid.InvalidArgumentError):
        model.infer(numbers(1), sequence_id=identity)
    for position in range(3):
        ends = {"sequence_start": position == 0, "sequence_end": position == 2}
        assert answer(model.infer(numbers(position), sequence_id=identity, **ends)) == [[position]]


def test_responses_of_decoupled_models_are_iterated_over(nereid, server):
    model = server.model("counts")

    def count(number):
        return {"COUNT": np.array([number], dtype=np.int32)}

    for number in [0, 1, 5, 200]:
        found = [response["NUMBER"].numpy()[0] for response in model.stream(count(number))]
        assert found == list(range(number))
    responses = model.stream(count(-2))
    assert [next(responses)["NUMBER"].numpy()[0] for _ in range(2)] == [0, 1]
    with pytest.raises(nereid.Error, match="cannot go on"):
        next(responses)
    assert responses.next() is None
    assert model.infer(count(1))["NUMBER"].numpy()[0] == 0
    for number, error in [(0, nereid.UnavailableError), (2, nereid.UnsupportedError)]:
        with pytest.raises(error):
            model.infer(count(number))

    async def all_of(number):
        return [response["NUMBER"].numpy()[0] async for response in model.stream_async(count(number))]

    async def several():
        return await asyncio.gather(*(all_of(number) for number in range(8)))

    assert asyncio.run(several()) == [list(range(number)) for number in range(8)]
    with pytest.raises(nereid.UnsupportedError):
        asyncio.run(model.infer_async(count(2)))


def test_an_event_loop_is_not_blocked_and_a_cancelled_task_cancels_its_request(nereid, gated):
    gate, server = gated
    model = server.model("slow")

    async def program():
        waiting = [asyncio.ensure_future(model.infer_async(numbers(number))) for number in range(3)]
        ticks = 0
        while gate.is_empty():
            await asyncio.sleep(0)
            ticks += 1
        waiting[2].cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting[2]
        opened = asyncio.get_running_loop().run_in_executor(None, gate.open)
        answers = await asyncio.gather(*waiting[:2])
        await opened
        return ticks, [answer(response) for response in answers]

    ticks, answers = asyncio.run(program())
    assert ticks > 0 and answers == [[[0]], [[1]]]
    # Another loop in another thread.
    with ThreadPoolExecutor(2) as threads:
        found = threads.map(lambda number: asyncio.run(model.infer_async(numbers(number))), range(4))
        assert [answer(response) for response in found] == [[[number]] for number in range(4)]


def test_requests_are_cancelled_and_waits_have_limits(nereid, gated):
    gate, server = gated
    model = server.model("slow")
    first = model.stream(numbers(1))
    held = gate.entered()
    second = model.stream(numbers(2))
    with pytest.raises(TimeoutError):
        second.next(timeout=0.01)
    second.cancel()
    with pytest.raises(nereid.CancelledError):
        next(second)
    with pytest.raises(TimeoutError):
        model.infer(numbers(3), timeout=0.01)
    with pytest.raises(TimeoutError):
        asyncio.run(model.infer_async(numbers(3), timeout=0.01))
    with model.stream(numbers(4)) as third:
        pass
    with pytest.raises(nereid.CancelledError):
        next(third)
    held.release()
    assert answer(next(first)) == [[1]]
    gate.open()
    assert answer(model.infer(numbers(5))) == [[5]]


def test_threads_wait_without_the_interpreters_lock(gated):
    gate, server = gated
    model = server.model("slow")
    with ThreadPoolExecutor(3) as threads:
        found = [threads.submit(model.infer, numbers(number)) for number in range(3)]
        gate.entered()
        assert not any(future.done() for future in found)
        gate.open()
        assert [answer(future.result(LIMIT_S)) for future in found] == [[[number]] for number in range(3)]


def test_several_servers_come_and_go(nereid, repository):
    options = {"model_control_mode": "explicit"}
    first = nereid.Server(repository, load_model=["numbers"], **options)
    with pytest.raises(nereid.UnavailableError):
        first.live()
    with first, nereid.Server([repository], load_model="other", **options) as second:
        assert answer(first.model("numbers").infer(numbers(1))) == [[1]]
        assert answer(second.model("other").infer(numbers(2))) == [[2]]
        with pytest.raises(nereid.Error):
            second.model("numbers").infer(numbers(1))
        first.start()
    first.stop()
    with pytest.raises(nereid.UnavailableError):
        first.model("numbers").infer(numbers(1))
    with first:
        assert first.ready()


def test_models_and_repositories_come_and_go(nereid, repository, tmp_path):
    native_backends.write_model(tmp_path / "more", "kept", "identity", NUMBERS)
    with nereid.Server(repository, model_control_mode="explicit") as server:
        assert answer(server.load("numbers").infer(numbers(1))) == [[1]]
        config = {"backend": "identity", **server.model("numbers").config(), "max_batch_size": 3}
        assert server.load("numbers", config=config).config()["max_batch_size"] == 3
        server.unload("numbers")
        assert eventually(lambda: not server.model("numbers").ready())
        with pytest.raises(nereid.Error):
            server.load("kept")
        server.register_repository(tmp_path / "more", {"renamed": "kept"})
        with pytest.raises(nereid.AlreadyExistsError):
            server.register_repository(tmp_path / "more")
        assert answer(server.load("renamed").infer(numbers(2))) == [[2]]
        server.unregister_repository(tmp_path / "more")
        with pytest.raises(nereid.InvalidArgumentError):
            server.unregister_repository(tmp_path / "more")
        with pytest.raises(nereid.UnavailableError):
            server.poll()
        with pytest.raises(nereid.InvalidArgumentError):
            server.register_repository(tmp_path / "none")


def test_a_repository_in_a_cloud_is_registered(nereid, repository, tmp_path, monkeypatch):
    native_backends.write_model(tmp_path / "more", "far", "identity", NUMBERS)
    with s3() as store:
        cloud = Cloud(store)
        (tmp_path / "more" / "far" / "1" / "weights").write_text("x")
        cloud.put("more", tmp_path / "more")
        for name, value in cloud.environment().items():
            monkeypatch.setenv(name, value)
        with nereid.Server(repository, model_control_mode="explicit") as server:
            server.register_repository(cloud.url("more"))
            assert answer(server.load("far").infer(numbers(5))) == [[5]]
            with pytest.raises(nereid.AlreadyExistsError):
                server.register_repository(cloud.url("more"))
            server.unregister_repository(cloud.url("more"))
            server.unload("far")
            with pytest.raises(nereid.Error):
                server.load("far")


def test_wrong_options_are_explained(nereid, repository):
    refused: list[tuple[dict, str]] = [
        ({"no_such_option": 1}, "unknown option 'no-such-option'"),
        ({"exit_timeout_secs": "soon"}, "exit-timeout-secs"),
        ({"load_model": "numbers"}, "model-control-mode"),
        ({"log_verbose": 1}, "configure_log"),
        ({"disable_auto_complete_config": "maybe"}, "disable-auto-complete-config"),
    ]
    for options, reason in refused:
        with pytest.raises(nereid.InvalidArgumentError, match=reason):
            nereid.Server(repository, **options).start()
    with pytest.raises(nereid.Error, match="/nonexistent"):
        nereid.Server("/nonexistent/models").start()


def test_ports_are_opened_if_asked_for(nereid):
    ports = {"http_port": 0, "grpc_port": 0, "metrics_port": 0, "http_address": "127.0.0.1"}
    options = {"model_control_mode": "explicit", "load_model": ["identity_fp32"], **ports}
    with nereid.Server(EXAMPLES / "model_repository", listen=True, **options) as server:
        addresses = server.addresses()
        assert sorted(addresses) == ["HTTP", "gRPC", "metrics"] or len(addresses) == 3
        assert all(int(address.rpartition(":")[2]) > 0 for address in addresses.values())


def test_the_log_is_heard(nereid, repository):
    heard, threads = [], set()

    def hear(record):
        heard.append(record)
        threads.add(threading.current_thread().name)

    nereid.configure_log(verbose=1, info=True, callback=hear)
    with nereid.Server(repository, model_control_mode="explicit") as server:
        with pytest.raises(nereid.Error):
            server.load("absent")
        server.load("numbers")
    nereid.configure_log()
    assert threads == {"nereid-log"}
    assert any(record.level == "error" and "absent" in record.message for record in heard)
    assert any(record.level == "info" and "numbers" in record.message for record in heard)
    assert all(record.line > 0 and record.file and record.micros > 1e15 for record in heard)
    before = len(heard)
    with pytest.raises(nereid.Error):
        nereid.Server("/nonexistent").start()
    assert len(heard) == before
    with pytest.raises(ValueError, match="xml"):
        nereid.configure_log(format="xml")


@pytest.mark.parametrize("rate, expected", [(1, 6), (3, 2)])
def test_requests_are_traced_to_a_file(nereid, repository, tmp_path, rate, expected):
    file = tmp_path / "trace.json"
    settings = {"rate": rate, "level": "TIMESTAMPS", "triton": {"file": file}}
    with nereid.Server(repository, model_control_mode="explicit", load_model="numbers", trace_config=settings) as server:
        for number in range(6):
            server.model("numbers").infer(numbers(number))
    events = json.loads(file.read_text())
    assert sum("model_name" in event for event in events) == expected
    assert any(stamp["name"] == "COMPUTE_START" for event in events for stamp in event.get("timestamps", []))


def test_the_stubs_say_what_is_there(nereid, installed):
    from nereid import nereid_native as native

    stub = (installed / "nereid" / "nereid_native.pyi").read_text()
    assert (installed / "nereid" / "py.typed").exists()
    described = set(re.findall(r"^(?:class|def) (\w+)", stub, re.MULTILINE))
    assert described == {name for name in vars(native) if not name.startswith("_")}
    for name in described:
        found = getattr(native, name)
        if isinstance(found, type) and not issubclass(found, Exception):
            body = re.search(rf"^class {name}.*?:\n((?:    .*\n|\n)*)", stub, re.MULTILINE)
            assert body, name
            own = {key for key in vars(found) if not key.startswith("_")}
            assert {key for key in re.findall(r"def (\w+)", body[1]) if not key.startswith("_")} == own, name
    assert set(nereid.__all__) <= set(vars(nereid))


@pytest.mark.parametrize("minor", range(OLDEST, NEWEST + 1))
def test_one_wheel_is_for_every_python(installed, repository, minor):
    environment = environments().get(f"python3{minor}")
    if environment is None:
        pytest.skip(f"this machine has no CPython 3.{minor}")
    python = environment / "bin" / "python3"
    program = """
import asyncio, sys, numpy, nereid
with nereid.Server(sys.argv[1], model_control_mode="explicit", load_model=["numbers", "bytes"]) as server:
    inputs = {"INPUT0": numpy.array([[1, 2]], dtype=numpy.int64)}
    print(numpy.from_dlpack(server.model("numbers").infer(inputs)["OUTPUT0"]).tolist())
    print(asyncio.run(server.model("bytes").infer_async({"INPUT0": ["a", "b"]}))["OUTPUT0"].numpy().tolist())
    print(sys.version_info[:2])
"""
    code, lines, errors = python_package.run(installed, program, repository, python=python)
    expected = ["[[1, 2]]", "[b'a', b'b']", f"(3, {minor})"]
    assert (code, lines) == (0, expected), errors


@pytest.fixture
def prefix_model(tmp_path, monkeypatch):
    """A repository whose model answers with the folder of its Python. No environment is active, as in a service's unit."""
    active = os.path.join(os.environ.get("VIRTUAL_ENV", sys.prefix), "bin")
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    monkeypatch.setenv("PATH", os.pathsep.join(entry for entry in os.environ["PATH"].split(os.pathsep) if entry != active))
    config = """input { name: "INPUT0" data_type: TYPE_BOOL dims: 1 } output { name: "OUTPUT0" data_type: TYPE_STRING dims: 1 }"""
    native_backends.write_model(tmp_path / "prefixes", "prefix", "python", config)
    (tmp_path / "prefixes" / "prefix" / "1" / "model.py").write_text(PREFIX)
    return tmp_path / "prefixes"


def test_models_run_in_the_environment_of_the_program_that_has_the_server(nereid, prefix_model):
    for options in [{}, {"backend_config": {"python": {"shm-default-byte-size": "1048576"}}}]:
        with nereid.Server(prefix_model, **options) as server:
            assert answer(server.model("prefix").infer({"INPUT0": np.array([True])})) == [sys.prefix.encode()], options
    with pytest.raises(nereid.Error, match="/no/such/python"):
        nereid.Server(prefix_model, backend_config={"python": {"python": "/no/such/python"}}).start()


def test_frameworks_are_those_of_the_environment_of_the_program_that_has_the_server(installed, prefix_model):
    shutil.copytree(EXAMPLES / "model_repository" / "digits", prefix_model / "digits")
    program = """
import sys, time, nereid
lines = []
nereid.configure_log(info=True, callback=lambda record: lines.append(record.message))
with nereid.Server(sys.argv[1], model_control_mode="explicit", load_model="digits"):
    # The log is heard on another thread.
    while not any("successfully loaded" in line for line in lines):
        time.sleep(0.01)
print(*[line for line in lines if line.startswith("ONNX Runtime ")], sep="\\n")
"""
    code, lines, errors = python_package.run(installed, program, prefix_model)
    assert code == 0 and len(lines) == 1 and sys.prefix in lines[0], (lines, errors)


def test_models_run_in_the_environment_of_the_command(installed, prefix_model):
    with python_package.serve(installed, prefix_model) as server:
        request = {"inputs": [{"name": "INPUT0", "shape": [1], "datatype": "BOOL", "data": [True]}]}
        answered = http_request(server, "POST", "/v2/models/prefix/infer", body=json.dumps(request)).json
        assert answered["outputs"][0]["data"] == [sys.prefix]


def test_processes_that_are_forked_have_no_server_but_may_make_one(installed, repository):
    program = """
import os, sys, numpy, nereid
options = {"model_control_mode": "explicit", "load_model": "numbers"}
inputs = {"INPUT0": numpy.array([[1]], dtype=numpy.int64)}
server = nereid.Server(sys.argv[1], **options).start()
server.model("numbers").infer(inputs)
child = os.fork()
if child == 0:
    try:
        server.model("numbers").infer(inputs)
    except nereid.UnavailableError as error:
        print("refused" if "forked" in str(error) else error, flush=True)
    del server
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
print(server.model("numbers").infer(inputs)["OUTPUT0"].numpy().tolist(), flush=True)
"""
    code, lines, errors = python_package.run(installed, program, repository)
    assert (code, lines) == (0, ["refused", "[[1]]"]), errors


def test_programs_are_interrupted_and_end_with_requests_in_progress(installed, tmp_path):
    # Python leaves SIGINT ignored where it inherits that, as from a shell that runs a command in the background.
    program = """
import signal, sys, numpy, nereid
signal.signal(signal.SIGINT, signal.default_int_handler)
server = nereid.Server(sys.argv[1], exit_timeout_secs=1).start()
inputs = {"INPUT0": numpy.array([[1]], dtype=numpy.int64)}
model = server.model("slow")
try:
    model.infer(inputs)
except KeyboardInterrupt:
    print("interrupted", flush=True)
left = model.stream(inputs)
del server, model
"""
    with Gate() as gate:
        config = f"{NUMBERS} {native_backends.parameter('gate', gate.path)}"
        native_backends.write_model(tmp_path / "gated", "slow", "identity", config)
        process = python_package.start(installed, program, tmp_path / "gated")
        gate.entered()
        process.send_signal(signal.SIGINT)
        code, lines, errors = python_package.finish(process)
    assert (code, lines) == (0, ["interrupted"]), errors


def test_a_server_that_is_dropped_answers_what_is_in_progress(nereid, gated, tmp_path):
    gate, _ = gated
    server = nereid.Server(tmp_path / "gated").start()
    responses = server.model("slow").stream(numbers(6))
    gate.entered()
    del server
    gc.collect()
    gate.open()
    assert answer(next(responses)) == [[6]]


def test_the_program_with_types_runs(installed, repository):
    program = (Path(__file__).parent / "typed_program.py").read_text()
    code, lines, errors = python_package.run(installed, program, repository)
    assert (code, lines) == (0, ["r numbers 1", "[1, 2] True"]), errors


def test_the_command_is_the_server(installed, repository):
    with python_package.serve(installed, repository, "--model-control-mode=explicit") as server:
        assert server.ready_status() == 200
        server.stop()
    wrong = python_package.command(installed, "--no-such-option")
    assert wrong.returncode == 2 and "--no-such-option" in wrong.stderr
    checked = python_package.command(installed, "check", repository)
    assert checked.returncode == 0 and "numbers" in checked.stdout + checked.stderr


def test_the_example_of_the_guide_runs(installed):
    guide = (ROOT / "docs" / "embedding.md").read_text()
    (program,) = [code for code in re.findall(r"```python\n(.*?)```", guide, re.DOTALL) if "import nereid" in code]
    code, lines, errors = python_package.run(installed, f"import os; os.chdir({str(ROOT)!r})\n{program}")
    assert (code, lines) == (0, ["3"]), errors

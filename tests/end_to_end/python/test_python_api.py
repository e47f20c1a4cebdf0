"""The module triton_python_backend_utils, from where models see it: each test sends code to a model, which runs it."""

import json
import queue
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

import nereid_server
import python_lab
from model_files import write_identity
from waiting import eventually

TYPES = "bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 float32 float64".split()

# Answers COUNT times, with the numbers from 0 on; -1 waits for its cancellation.
REPEAT = """
import threading
import time
import numpy
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.answer, args=(request.get_response_sender(), request)).start()

    def answer(self, sender, request):
        count = int(pb_utils.get_input_tensor_by_name(request, "COUNT").as_numpy()[0])
        number = 0
        while number < count or (count < 0 and not sender.is_cancelled()):
            tensor = pb_utils.Tensor("NUMBER", numpy.array([number], dtype=numpy.int32))
            sender.send(pb_utils.InferenceResponse([tensor]))
            number += 1
            if count < 0:
                time.sleep(0.01)
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
# Answers once there are COUNT requests.
TOGETHER = """
import numpy
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.senders = []

    def execute(self, requests):
        for request in requests:
            self.senders.append(request.get_response_sender())
            if len(self.senders) == pb_utils.get_input_tensor_by_name(request, "COUNT").as_numpy()[0]:
                while self.senders:
                    tensor = pb_utils.Tensor("NUMBER", numpy.array([7], dtype=numpy.int32))
                    self.senders.pop().send(pb_utils.InferenceResponse([tensor]), flags=1)
"""
REPEAT_CONFIG = """
backend: "python" model_transaction_policy { decoupled: true }
input { name: "COUNT" data_type: TYPE_INT32 dims: 1 } output { name: "NUMBER" data_type: TYPE_INT32 dims: 1 }
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    repository = tmp_path_factory.mktemp("models")
    python_lab.write(repository, "lab")
    python_lab.write(repository, "async_lab", python_lab.ASYNC_LAB)
    decoupled = "model_transaction_policy { decoupled: true }"
    python_lab.write(repository, "stream_lab", python_lab.STREAM_LAB, decoupled)
    python_lab.write(repository, "async_stream_lab", python_lab.ASYNC_STREAM_LAB, decoupled)
    write_identity(repository, "identity", ["FP32"])
    for name, model in [("repeat", REPEAT), ("together", TOGETHER)]:
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "1" / "model.py").write_text(model)
        (repository / name / "config.pbtxt").write_text(REPEAT_CONFIG)
    with nereid_server.running(repository, *python_lab.FLAGS) as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    with tritonclient.http.InferenceServerClient(server.url, network_timeout=60) as client:
        yield client


def test_arrays_of_every_type_become_tensors_and_come_back_by_dlpack(client):
    code = f"""
result = {{}}
for name in {TYPES!r}:
    array = numpy.arange(6).reshape(2, 3).astype(name)
    there = pb_utils.Tensor("X", array)
    views = {{
        "itself": there.as_numpy() is array,
        "transposed": bool((pb_utils.Tensor("X", array.T).as_numpy() == array.T).all()),
        "big-endian": bool((pb_utils.Tensor("X", array.astype(array.dtype.newbyteorder(">"))).as_numpy() == array).all()),
    }}
    for how, back in [("capsule", pb_utils.Tensor.from_dlpack("Y", there.to_dlpack())),
                      ("tensor", pb_utils.Tensor.from_dlpack("Y", there)),
                      ("array", pb_utils.Tensor.from_dlpack("Y", array)),
                      ("strided", pb_utils.Tensor.from_dlpack("Y", numpy.asfortranarray(array)))]:
        again = back.as_numpy()
        views[how] = again.dtype == array.dtype and bool((again == array).all()) and back.shape() == [2, 3]
    views["numpy"] = bool((numpy.from_dlpack(there) == array).all())
    result[name] = [how for how, right in views.items() if not right]
"""
    assert python_lab.run(client, code) == {name: [] for name in TYPES}


def test_a_capsule_is_used_once_and_memory_outlives_its_tensor(client):
    code = """
capsule = tensor("X", range(1000), "float32").to_dlpack()
first = pb_utils.Tensor.from_dlpack("Y", capsule).as_numpy()
second = outcome(lambda: pb_utils.Tensor.from_dlpack("Y", capsule))
for _ in range(100):
    tensor("Z", range(1000), "float32").to_dlpack()
result = [float(first.sum()), second, type(tensor("X", [], "int8").__dlpack__()).__name__]
"""
    total, second, kind = python_lab.run(client, code)
    assert (total, kind) == (499500.0, "PyCapsule") and "was used before" in second


def test_another_library_takes_and_gives_tensors_by_dlpack(client):
    code = """
import tvm_ffi
theirs = tvm_ffi.from_dlpack(get(request, "F"))
outputs = [pb_utils.Tensor.from_dlpack("OF", theirs)]
result = [list(theirs.shape), str(theirs.dtype), str(theirs.device)]
"""
    answer = client.infer("lab", python_lab.inputs(code, F=numpy.arange(5000, dtype=numpy.float32)))
    assert python_lab.result(answer) == [[5000], "float32", "cpu:0"]
    assert answer.as_numpy("OF").tolist() == list(range(5000))


@pytest.mark.parametrize(("device", "is_memory_of_the_cpu"), [(1, True), (3, True), (7, False), (10, False)])
def test_tensors_in_the_memory_of_a_device_are_refused(client, device, is_memory_of_the_cpu):
    code = f"""
class Theirs:
    def __dlpack_device__(self):
        return ({device}, 0)
    def __dlpack__(self, **_):
        return tensor("X", [1, 2], "float32").to_dlpack()
result = outcome(lambda: pb_utils.Tensor.from_dlpack("X", Theirs()).as_numpy().tolist())
"""
    found = python_lab.run(client, code)
    if is_memory_of_the_cpu:
        assert found == [1, 2]
    else:
        assert f"tensor 'X': it is in the memory of a device (DLPack type {device}): copy it to the CPU first" in found


def test_bf16_travels_by_dlpack_and_as_arrays_of_ml_dtypes(client):
    code = """
import ml_dtypes
there = get(request, "B")
array = numpy.array([4, -0.5], dtype=ml_dtypes.bfloat16)
outputs = [pb_utils.Tensor.from_dlpack("OB", there) if len(there.shape()) and there.shape()[0] == 3
           else pb_utils.Tensor("OB", array)]
result = [outcome(there.as_numpy)]
"""
    for values, expected in [([1, -2.5, 3], [1, -2.5, 3]), ([7], [4, -0.5])]:
        value = numpy.array(values, dtype=ml_dtypes.bfloat16)
        tensor = tritonclient.http.InferInput("B", value.shape, "BF16")
        tensor.set_data_from_numpy(value)
        answer = client.infer("lab", [*python_lab.inputs(code), tensor])
        assert "numpy has no type BF16" in python_lab.result(answer)[0]
        assert answer.as_numpy("OB").astype(numpy.float32).tolist() == expected


@pytest.mark.parametrize("count", [1, 4, 60_000])
def test_elements_of_any_length_travel_as_bytes(client, count):
    elements = numpy.array([[b"%d" % number * (number % 7), b"\0\xff" * (number % 3)] for number in range(count)], dtype=object)
    code = """
array = get(request, "S").as_numpy()
result = [list(array.shape), type(array[0, 0]).__name__, sum(len(element) for element in array.flat)]
outputs = [pb_utils.Tensor("OS", array[::-1])]
"""
    answer = client.infer("lab", python_lab.inputs(code, S=elements))
    assert python_lab.result(answer) == [[count, 2], "bytes", sum(map(len, elements.flat))]
    assert (answer.as_numpy("OS") == elements[::-1]).all()


def test_text_numbers_and_fixed_length_bytes_become_elements(client):
    code = """
outputs = [pb_utils.Tensor("OS", numpy.array([["a", "h\\u00e9"], [5, None]], dtype=object))]
fixed = pb_utils.Tensor("X", numpy.array([b"ab", b"c"], dtype="S2"))
result = [type(outputs[0].as_numpy()[1, 0]).__name__, fixed.as_numpy().tolist() == [b"ab", b"c"],
          outcome(lambda: pb_utils.Tensor("X", numpy.array(["text"])))]
"""
    answer = client.infer("lab", python_lab.inputs(code))
    assert python_lab.result(answer) == ["int", True, "TritonModelException: NumPy dtype is not supported."]
    assert answer.as_numpy("OS").tolist() == [[b"a", "h\u00e9".encode()], [b"5", b"None"]]


def test_a_large_input_is_a_view_and_stays_as_it_was_as_long_as_it_is_held(client):
    keep = """
array = get(request, "F").as_numpy()
kept.setdefault("arrays", []).append(array)
result = [array.flags.owndata, array.flags.writeable, type(array.base).__name__]
"""
    for number in range(5):
        values = numpy.full(100_000, number, dtype=numpy.float32)
        assert python_lab.run(client, keep, F=values) == [False, True, "SharedMemory"]
    look = """
result = [[float(array.min()), float(array.max())] for array in kept.pop("arrays")]
"""
    assert python_lab.run(client, look) == [[number, number] for number in range(5)]


def test_outputs_are_as_they_were_when_execute_returned(client):
    code = """
kept.setdefault("array", numpy.zeros(50_000, dtype=numpy.float32))[:] += 1
outputs = [pb_utils.Tensor("OF", kept["array"])]
"""
    answers = [client.infer("lab", python_lab.inputs(code)).as_numpy("OF") for _ in range(3)]
    assert [(answer.min(), answer.max()) for answer in answers] == [(1, 1), (2, 2), (3, 3)]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("pb_utils.Tensor('', numpy.zeros(1))", "TritonModelException: Tensor name cannot be an empty string."),
        ("pb_utils.Tensor('X', [1])", "TypeError: Tensor() takes a str and a numpy.ndarray"),
        ("pb_utils.Tensor(b'\\xff', numpy.zeros(1))", "UnicodeDecodeError: "),
        ("pb_utils.Tensor(5, numpy.zeros(1))", "TypeError: expected str or bytes, found 'int'"),
        ("pb_utils.Tensor('X', numpy.zeros(1, complex))", "TritonModelException: NumPy dtype is not supported."),
        ("pb_utils.Tensor.from_dlpack('X', 5)", "TritonModelException: tensor 'X': expected a DLPack capsule"),
        ("texts('X', 'a').to_dlpack()", "TritonModelException: DLPack does not have support for string tensors."),
        ("pb_utils.InferenceResponse(None)", "TypeError: "),
        ("pb_utils.InferenceResponse([None])", "TritonModelException: Output tensor for inference response"),
        ("pb_utils.InferenceResponse([5])", "TypeError: expected a list of Tensor objects"),
        ("pb_utils.InferenceResponse([], parameters={'a': 1.5})", "TritonModelException: Expect parameters values"),
        ("ask('m', [None], ['B'])", "TritonModelException: Input tensor for request with id '' and model name 'm'"),
        ("ask('m', [], [''])", "TritonModelException: Requested output name for request"),
        ("ask('m', [], ['B'], correlation_id=1.5)", "TritonModelException: Correlation ID must be integer or string"),
        ("ask('m', [], ['B'], correlation_id=-1)", "RuntimeError: a correlation id must be from 0"),
        ("ask('m', [], ['B'], correlation_id=None)", "TypeError: "),
        ("ask('m', [], ['B'], trace=None)", "TypeError: expected an object of type InferenceTrace"),
        ("ask('m', [], ['B'], flags=-1)", "TypeError: expected an int in the range"),
        ("request.set_flags(-1)", "TypeError: expected an int in the range"),
        ("request.set_flags('x')", "TypeError: expected an int"),
        ("ask('m', [], ['B']).get_response_sender()", "TritonModelException: only received requests can be answered"),
        ("ask('m', [], ['B']).async_exec()", "RuntimeError: no running event loop"),
        ("pb_utils.TritonError(None)", "TypeError: "),
        ("pb_utils.TritonError('x', 2)", "TypeError: "),
        ("pb_utils.PreferredMemory('cpu')", "TypeError: "),
        ("pb_utils.Logger.log_info(5)", "TypeError: "),
        ("pb_utils.load_model('x', files=[1])", "TritonModelException: failed to load model 'x', files should be"),
        ("pb_utils.load_model('x', files={'file:1': 'text'})", "TypeError: "),
        ("pb_utils.is_model_ready('lab', 1)", "TypeError: "),
        ("pb_utils.MetricFamily('a', 'b', 0)", "TypeError: "),
        ("pb_utils.deserialize_bytes_tensor(b'\\x09\\0\\0\\0ab')", "error: "),
    ],
)
def test_a_wrong_argument_is_refused_with_the_reason(client, call, error):
    found = python_lab.run(client, f"result = outcome(lambda: {call})")
    assert isinstance(found, str) and found.startswith(error), found


def test_codes_of_errors_are_numbers_with_names(client):
    code = """
codes = [getattr(pb_utils.TritonError, name) for name in
         "UNKNOWN INTERNAL NOT_FOUND INVALID_ARG UNAVAILABLE UNSUPPORTED ALREADY_EXISTS CANCELLED".split()]
result = [[code.name, code.value, int(code), code == number, hash(code) == hash(number), {number: 1}.get(code)]
          for number, code in enumerate(codes)]
"""
    for number, entry in enumerate(python_lab.run(client, code)):
        assert entry[1:] == [number, number, True, True, 1], entry


def test_parameters_travel_with_requests_and_responses(client):
    code = """
response = pb_utils.InferenceResponse([texts("RESULT", request.parameters())], parameters={"a": 1, "b": "x", "c": True})
kept["response"] = json.loads(response.parameters())
result = json.loads(request.parameters())
"""
    given = {"number": 7, "text": "h\u00e9", "flag": False}
    answer = client.infer("lab", python_lab.inputs(code), parameters=given)
    assert python_lab.result(answer) == given
    assert python_lab.run(client, "result = kept['response']") == {"a": 1, "b": "x", "c": True}


def test_inner_requests_are_refused_until_the_model_is_initialised(client):
    assert python_lab.run(client, "result = args and kept.pop('early')") == (
        "TritonModelException: inner requests are for models that are initialised"
    )


def test_an_inner_request_gets_the_answer_of_its_model(client):
    code = """
values = tensor("INPUT0", range(5000), "float32")
answer = ask("identity", [values], ["OUTPUT0"]).exec()
again = pb_utils.get_output_tensor_by_name(answer, "OUTPUT0").as_numpy()
missing = ask("nothing", [values], ["OUTPUT0"]).exec()
result = [bool((again == values.as_numpy()).all()), missing.has_error(), missing.error().message(),
          pb_utils.get_output_tensor_by_name(answer, "OTHER")]
"""
    same, failed, message, other = python_lab.run(client, code)
    assert (same, failed, other) == (True, True, None) and "nothing" in message


def test_inner_requests_of_many_threads_each_get_their_answer(client):
    code = """
def run(thread):
    for number in range(20):
        value = [thread * 100 + number]
        answer = ask("identity", [tensor("INPUT0", value, "float32")], ["OUTPUT0"]).exec()
        found.append(answer.output_tensors()[0].as_numpy().tolist() == value)

found = []
threads = [threading.Thread(target=run, args=(thread,)) for thread in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
result = [len(found), all(found)]
"""
    assert python_lab.run(client, code) == [160, True]


@pytest.mark.parametrize("count", [0, 1, 5])
def test_the_responses_of_a_decoupled_model_are_iterated(client, count):
    code = f"""
responses = ask("repeat", [tensor("COUNT", [{count}], "int32")], ["NUMBER"]).exec(decoupled=True)
numbers = lambda: [int(output.as_numpy()[0]) for response in responses for output in response.output_tensors()]
result = [numbers(), numbers()]
"""
    assert python_lab.run(client, code) == [list(range(count))] * 2


def test_coroutines_await_inner_requests_at_once(client):
    code = """
calls = [ask("identity", [tensor("INPUT0", [number], "float32")], ["OUTPUT0"]).async_exec() for number in range(20)]
answers = [answer.output_tensors()[0].as_numpy().tolist() for answer in await asyncio.gather(*calls)]
streamed = []
async for response in await ask("repeat", [tensor("COUNT", [3], "int32")], ["NUMBER"]).async_exec(decoupled=True):
    streamed += [int(output.as_numpy()[0]) for output in response.output_tensors()]
plain = await ask("repeat", [tensor("COUNT", [2], "int32")], ["NUMBER"]).async_exec(decoupled=True)
later = [int(output.as_numpy()[0]) for response in plain for output in response.output_tensors()]
return [answers, streamed, later]
"""
    expected = [[[number] for number in range(20)], [0, 1, 2], [0, 1]]
    assert python_lab.run(client, code, model="async_lab") == expected


def test_coroutines_wait_for_first_responses_side_by_side(client):
    # One that did not wait for its response before it reads it would hold up the others, and so itself.
    code = """
async def one():
    responses = await ask("together", [tensor("COUNT", [4], "int32")], ["NUMBER"]).async_exec(decoupled=True)
    return [int(output.as_numpy()[0]) for response in responses for output in response.output_tensors()]
return await asyncio.gather(*[one() for _ in range(4)])
"""
    assert python_lab.run(client, code, model="async_lab") == [[7]] * 4


def test_exhausted_responses_start_again_with_iter_alone(client):
    code = """
responses = ask("repeat", [tensor("COUNT", [2], "int32")], ["NUMBER"]).exec(decoupled=True)
def number(response):
    return [int(output.as_numpy()[0]) for output in response.output_tensors()]
whole = [number(response) for response in responses]
result = [whole, outcome(lambda: next(responses)), outcome(lambda: next(responses)), number(next(iter(responses)))]
"""
    assert python_lab.run(client, code) == [[[0], [1], []], "StopIteration: ", "StopIteration: ", [0]]


def test_an_inner_request_is_cancelled_in_the_middle(client):
    code = """
responses = ask("repeat", [tensor("COUNT", [-1], "int32")], ["NUMBER"]).exec(decoupled=True)
first = next(responses).output_tensors()[0].as_numpy().tolist()
responses.cancel()
last = [response for response in responses][-1]
result = [first, last.has_error() or not last.output_tensors()]
"""
    assert python_lab.run(client, code) == [[0], True]


def test_an_inner_request_that_nobody_holds_is_cancelled(client):
    code = """
responses = ask("repeat", [tensor("COUNT", [-1], "int32")], ["NUMBER"]).exec(decoupled=True)
next(responses)
del responses
"""
    assert python_lab.run(client, code) is None
    # A model that never ended would keep its thread, and this one its place in the queue.
    ending = "result = [len(list(ask('repeat', [tensor('COUNT', [2], 'int32')], ['NUMBER']).exec(decoupled=True)))]"
    assert python_lab.run(client, ending) == [3]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("sender.send()", "Inference Response object must be provided when the response flags is set to zero."),
        ("sender.send(pb_utils.InferenceResponse([]), flags=7)", "Unable to send response. Unsupported flag provided."),
        ("sender.send(5)", "TypeError"),
        ("request.get_response_sender() is sender", True),
    ],
)
def test_a_wrong_use_of_the_sender_is_refused_and_the_request_goes_on(server, call, error):
    code = f"""
found = outcome(lambda: {call})
sender.send(pb_utils.InferenceResponse([texts("RESULT", json.dumps(found))]), flags=1)
kept["closed"] = outcome(lambda: sender.send(flags=1))
"""
    found, final = stream(server, code)
    assert final is None and (found[0] == error or error in found[0])
    (closed,), _ = stream(server, 'sender.send(pb_utils.InferenceResponse([texts("RESULT", json.dumps(kept["closed"]))]), flags=1)')
    assert "Response sender has been closed" in closed


def test_a_request_whose_sender_is_dropped_gets_an_error(server):
    found, error = stream(server, 'sender.send(pb_utils.InferenceResponse([texts("RESULT", "1")]))')
    assert found == [1] and error is not None


def test_a_request_that_is_answered_later_keeps_its_inputs(server):
    begin = """
kept["late"] = (request, sender, get(request, "F"))
sender.send(pb_utils.InferenceResponse([texts("RESULT", "1")]))
"""
    end = """
late, late_sender, held = kept.pop("late")
for tensor in (held, get(late, "F")):
    array = tensor.as_numpy()
    late_sender.send(pb_utils.InferenceResponse([texts("RESULT", json.dumps([float(array.min()), float(array.max())]))]))
late_sender.send(flags=1)
sender.send(flags=1)
"""
    # Within a message, and in shared memory.
    for count in (10, 100_000):
        values = numpy.full(count, 7, dtype=numpy.float32)
        with ThreadPoolExecutor() as threads:
            late = threads.submit(stream, server, begin, F=values)
            asked = 'sender.send(pb_utils.InferenceResponse([texts("RESULT", json.dumps("late" in kept))]), flags=1)'
            assert eventually(lambda: stream(server, asked) == ([True], None))
            for number in range(20):
                others = numpy.full(count, number, dtype=numpy.float32)
                assert stream(server, "sender.send(flags=1)", F=others) == ([], None)
            assert stream(server, end) == ([], None)
            assert late.result() == ([1, [7, 7], [7, 7]], None)


def test_an_exception_is_the_clients_and_its_traceback_the_logs(server, client):
    with pytest.raises(InferenceServerException, match="LookupError: nowhere"):
        python_lab.run(client, "raise LookupError('nowhere')")
    server.wait_for_log(r"Traceback")
    server.wait_for_log(r"File ..*/lab/1/model\.py.*, line \d+, in execute")
    with pytest.raises(InferenceServerException, match="SystemExit: 3"):
        python_lab.run(client, "sys.exit(3)")
    assert python_lab.run(client, "result = 1") == 1


def test_the_process_starts_as_the_references_does(client):
    code = """
import sys
result = [sys.flags.isolated, sys.argv, sys.path[0], [path for path in sys.path if "lab" in path],
          sys.modules["__main__"].__name__, type(request).__module__, pb_utils.get_model_dir(), __name__,
          sorted(args), sys.stdin.read()]
"""
    isolated, argv, first, added, main, module, folder, name, keys, stdin = python_lab.run(client, code)
    assert (isolated, argv, first, main, module, name) == (1, [""], "", "__main__", "c_python_backend_utils", "1.model")
    assert added == [folder, folder.removesuffix("/1")] and folder.endswith("/lab/1") and stdin == ""
    names = "config instance_device_id instance_kind instance_name name repository version"
    assert keys == [f"model_{name}" for name in names.split()]


def test_coroutines_of_a_decoupled_model_run_side_by_side(server):
    waiting = """
kept["event"] = asyncio.Event()
await asyncio.wait_for(kept["event"].wait(), 30)
sender.send(pb_utils.InferenceResponse([texts("RESULT", "1")]), flags=1)
"""
    waking = """
while "event" not in kept:
    await asyncio.sleep(0.01)
kept.pop("event").set()
sender.send(pb_utils.InferenceResponse([texts("RESULT", "2")]), flags=1)
"""
    with ThreadPoolExecutor() as threads:
        first, second = [threads.submit(stream, server, code, "async_stream_lab") for code in (waiting, waking)]
        assert (first.result(), second.result()) == (([1], None), ([2], None))


def test_an_exception_of_a_coroutine_in_the_background_ends_its_request(server):
    code = """
sender.send(pb_utils.InferenceResponse([texts("RESULT", "1")]))
await asyncio.sleep(0)
raise LookupError("in the background")
"""
    found, error = stream(server, code, "async_stream_lab")
    assert found == [1] and "LookupError: in the background" in str(error)


@pytest.mark.parametrize(("ready", "expected"), [(False, False), ("raise", False), (5, False), (True, True)])
def test_a_model_says_whether_it_is_ready(server, client, ready, expected):
    code = f"""
kept["ready"] = {ready!r}
sender.send(flags=1)
"""
    assert stream(server, code, "async_stream_lab") == ([], None)
    assert client.is_model_ready("async_stream_lab") is expected


def test_objects_of_the_api_leave_nothing_behind(client):
    code = """
import gc

def resident():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))

def use_everything():
    there = tensor("INPUT0", range(5000), "float32")
    answer = ask("identity", [there], ["OUTPUT0"], parameters={"a": 1}, correlation_id="x").exec()
    pb_utils.Tensor.from_dlpack("X", answer.output_tensors()[0].to_dlpack()).as_numpy()
    answer.output_tensors()[0].to_dlpack()
    numpy.from_dlpack(there)
    texts("X", *["element"] * 100).as_numpy()
    pb_utils.InferenceResponse([there], pb_utils.TritonError("x"), {"a": "b"}).parameters()
    outcome(lambda: pb_utils.Tensor("", there.as_numpy()))
    list(ask("repeat", [tensor("COUNT", [2], "int32")], ["NUMBER"]).exec(decoupled=True))

result = []
for _ in range(2):
    [use_everything() for _ in range(200)]
    gc.collect()
    result.append(resident())
"""
    before, after = python_lab.run(client, code)
    # A leak of one array in each round would be 4 MB.
    assert after - before < 2000, (before, after)


def stream(server, code, model="stream_lab", **arrays):
    """Has a decoupled lab run the code. Returns the results it sent, and the error that ended them, if any."""
    answers: queue.Queue[tuple] = queue.Queue()
    inputs = []
    for name, array in {"CODE": numpy.array([code.encode()], dtype=object), **arrays}.items():
        tensor = tritonclient.grpc.InferInput(name, array.shape, np_to_triton_dtype(array.dtype))
        inputs.append(tensor.set_data_from_numpy(array))
    results: list = []
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        client.async_stream_infer(model, inputs, enable_empty_final_response=True)
        while True:
            answer, error = answers.get(timeout=30)
            if error is not None:
                return results, error
            if answer.get_output("RESULT") is not None:
                results.append(json.loads(answer.as_numpy("RESULT")[0]))
            if answer.get_response().parameters["triton_final_response"].bool_param:
                return results, None

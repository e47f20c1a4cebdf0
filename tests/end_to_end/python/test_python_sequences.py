"""Sequences in models written in Python, in the server's own Python backend and in NVIDIA's: ids, flags, and rescheduled
requests.
"""

import queue
import textwrap

import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

import python_backend
import python_lab
from waiting import eventually

TOLD = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            value = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().item()
            start = pb_utils.get_input_tensor_by_name(request, "START").as_numpy().item()
            told = f"{value} {start} {request.correlation_id()} {request.flags()}"
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([[told]], dtype=np.object_))]))
        return responses
"""
COUNTS_DOWN = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.left = {}

    def execute(self, requests):
        for request in requests:
            sequence = request.correlation_id()
            if sequence == 0:
                continue  # It only fills a slot whose request is not there yet.
            if pb_utils.get_input_tensor_by_name(request, "START").as_numpy().item():
                self.left[sequence] = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().item()
            self.left[sequence] -= 1
            last = self.left[sequence] <= 0
            told = np.array([[f"{request.flags()} {self.left[sequence]}"]], dtype=np.object_)
            flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if last else 0
            request.get_response_sender().send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", told)]), flags=flags)
            if not last:
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
        return None
"""
# Answers a request once a file says so, and accepts further requests meanwhile. Files of its own tell what it has done.
LATER = """
import pathlib
import threading
import time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            value = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().item()
            threading.Thread(target=self.answer, args=[request.get_response_sender(), value], daemon=True).start()
            self.file("began", value).touch()

    def file(self, what, value):
        return pathlib.Path("FOLDER", f"{what}-{value}")

    def answer(self, sender, value):
        while not self.file("go", value).exists():
            time.sleep(0.01)
        tensor = pb_utils.Tensor("OUT", np.array([[str(value)]], dtype=np.object_))
        response = pb_utils.InferenceResponse([tensor])
        sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        self.file("sent", value).touch()
"""
CONFIG = """
backend: "python" max_batch_size: 4 instance_group {{ count: 1 kind: KIND_CPU }}
input {{ name: "IN" data_type: TYPE_INT32 dims: 1 }} output {{ name: "OUT" data_type: TYPE_STRING dims: 1 }}
sequence_batching {{ max_sequence_idle_microseconds: 60000000 {sequences}
  control_input {{ name: "START" control {{ kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] }} }} }} {extra}
"""
DECOUPLED = "model_transaction_policy { decoupled: true }"


def put(repository, name, model, sequences, extra=""):
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "1" / "model.py").write_text(textwrap.dedent(model))
    (repository / name / "config.pbtxt").write_text(CONFIG.format(sequences=sequences, extra=extra))


@pytest.fixture(scope="module", autouse=True)
def backend():
    python_backend.prepare()


def ask(server, requests):
    """The texts that a stream of requests is answered with, by their ids."""
    answers: queue.Queue = queue.Queue()
    texts: dict[str, list[str]] = {}
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        client.start_stream(lambda result, error: answers.put(error or result))
        for model, request_id, value, how in requests:
            tensor = tritonclient.grpc.InferInput("IN", [1, 1], "INT32")
            tensor.set_data_from_numpy(np.array([[value]], np.int32))
            how = {"request_id": request_id, "enable_empty_final_response": True, **how}
            client.async_stream_infer(model, [tensor], **how)
        ended = 0
        while ended < len(requests):
            answer = answers.get(timeout=30)
            assert not isinstance(answer, InferenceServerException), answer
            response = answer.get_response()
            ended += response.parameters["triton_final_response"].bool_param
            if answer.as_numpy("OUT") is not None:
                texts.setdefault(response.id, []).append(answer.as_numpy("OUT").item().decode())
        client.stop_stream()
    return texts


@pytest.fixture(params=python_backend.ENGINES)
def flags(request):
    return python_backend.ENGINES[request.param]


def test_a_python_model_sees_sequences_and_its_requests_come_again(repository, serve, flags):
    for strategy in ("direct", "oldest"):
        put(repository, f"told_{strategy}", TOLD, f"{strategy} {{ }}")
        put(repository, f"down_{strategy}", COUNTS_DOWN, f"{strategy} {{ }} iterative_sequence: true", DECOUPLED)
    server = serve(*flags, env=python_backend.environment())
    for strategy in ("direct", "oldest"):
        model = f"told_{strategy}"
        first = (model, "first", 1, {"sequence_id": 7, "sequence_start": True})
        then = [(model, "then", 2, {"sequence_id": 7}), (model, "last", 3, {"sequence_id": 7, "sequence_end": True})]
        assert ask(server, [first, *then]) == {"first": ["1 1 7 1"], "then": ["2 0 7 0"], "last": ["3 0 7 2"]}
        counted = ask(server, [(f"down_{strategy}", "three", 3, {}), (f"down_{strategy}", "two", 2, {})])
        assert counted == {"three": ["1 2", "0 1", "0 0"], "two": ["1 1", "0 0"]}


def whole_sequence(value):
    """The arguments of a request that is a sequence of its own."""
    tensor = tritonclient.grpc.InferInput("IN", [1, 1], "INT32")
    tensor.set_data_from_numpy(np.array([[value]], np.int32))
    return {"inputs": [tensor], "sequence_id": value, "sequence_start": True, "sequence_end": True}


class Three:
    """Three requests, one after the other, each a sequence of its own, to the model `LATER`."""

    def __init__(self, client, folder, model, first):
        self._folder, self._first = folder, first
        self.answered: list[int | Exception] = []
        for number in (1, 2, 3):
            client.async_infer(model, callback=self._take, **whole_sequence(first + number))
            assert eventually(self._file("began", number).exists)

    def _file(self, what, number):
        return self._folder / f"{what}-{self._first + number}"

    def _take(self, result, error):
        self.answered.append(error or int(result.as_numpy("OUT").item()) - self._first)

    def answer(self, number):
        """Lets the model answer one of them."""
        self._file("go", number).touch()
        assert eventually(self._file("sent", number).exists)

    def are_answered(self, *numbers):
        """Whether these answers arrive, in any order."""
        return eventually(lambda: sorted(map(str, self.answered)) == sorted(map(str, numbers)))


def test_sequences_are_answered_in_the_order_of_their_requests_if_configured(repository, serve, tmp_path, flags):
    model = LATER.replace("FOLDER", str(tmp_path))
    put(repository, "any", model, "oldest { max_candidate_sequences: 4 }")
    put(repository, "ordered", model, "oldest { max_candidate_sequences: 4 preserve_ordering: true }")
    server = serve(*flags, env=python_backend.environment())
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:

        def pass_by(value):
            """A request to the other model, whose answer is later than any that the model has sent before."""
            (tmp_path / f"go-{value}").touch()
            client.infer("any", **whole_sequence(value))

        free = Three(client, tmp_path, "any", 10)
        for number, answered in ((3, [3]), (2, [3, 2]), (1, [3, 2, 1])):
            free.answer(number)
            assert free.are_answered(*answered)
        # Those that wait for the first leave with it, and may reach their client in any order.
        late = Three(client, tmp_path, "ordered", 20)
        late.answer(3)
        late.answer(2)
        pass_by(41)
        assert late.answered == []
        late.answer(1)
        assert late.are_answered(1, 2, 3)
        early = Three(client, tmp_path, "ordered", 30)
        early.answer(1)
        assert early.are_answered(1)
        early.answer(3)
        pass_by(42)
        assert early.answered == [1]
        early.answer(2)
        assert early.are_answered(1, 2, 3)


# Reschedules each request, and answers it as its name says.
RESCHEDULES = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            response = pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([["once"]], dtype=np.object_))])
            if "HOW" == "sends":
                request.get_response_sender().send(response)
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            responses.append(response if "HOW" == "returns" else None)
        return responses
"""
PLAIN = CONFIG.partition("sequence_batching")[0].format()


_REFUSED = "Expected a None object in the execute function return list for rescheduled request, found type"


@pytest.mark.parametrize(
    ("iterative", "how", "expected"),
    [
        (True, "returns", _REFUSED),
        (True, "sends", "once"),
        (False, "returns", _REFUSED),
        (False, "sends", "once"),
        (False, "is silent", "needs sequence_batching with iterative_sequence"),
    ],
)
def test_a_request_that_is_rescheduled_and_answered_ends(repository, serve, iterative, how, expected):
    model = RESCHEDULES.replace("HOW", how)
    put(repository, "model", model, "direct { } iterative_sequence: true")
    if not iterative:
        (repository / "model" / "config.pbtxt").write_text(PLAIN)
    server = serve(*python_lab.FLAGS)
    tensor = tritonclient.grpc.InferInput("IN", [1, 1], "INT32")
    tensor.set_data_from_numpy(np.array([[1]], np.int32))
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        try:
            answer = client.infer("model", [tensor], client_timeout=30).as_numpy("OUT").item().decode()
        except InferenceServerException as error:
            answer = str(error)
    assert expected in answer

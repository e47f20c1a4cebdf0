"""Traces in files: which requests are traced, what is written, and what happens when nothing can be written."""

import json
import textwrap
import time

import grpc
import pytest
import tritonclient.grpc
import tritonclient.http

import http_requests
import native_backends
import nereid_server
import python_backend
from grpc_requests import message, numbers, stub
from http_requests import tensor
from model_files import write_identity
from native_backends import write_model

COMPUTED = ["COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END"]
EXECUTED = ["REQUEST_START", "QUEUE_START", *COMPUTED, "REQUEST_END"]
HTTP = ["HTTP_RECV_START", "HTTP_RECV_END", "INFER_RESPONSE_COMPLETE", "HTTP_SEND_START", "HTTP_SEND_END"]
GRPC = ["GRPC_WAITREAD_START", "GRPC_WAITREAD_END", "INFER_RESPONSE_COMPLETE", "GRPC_SEND_START", "GRPC_SEND_END"]


@pytest.fixture
def file(tmp_path):
    """The file that traces go to."""
    return tmp_path / "trace.json"


@pytest.fixture
def same(repository):
    """A model that gives back what it gets."""
    write_identity(repository, "same", ["INT32"])


def flags(file, *settings):
    return [f"--trace-config={setting}" for setting in (f"triton,file={file}", *settings)]


ALWAYS = ("level=TIMESTAMPS", "rate=1")


def ask(server, request_id="", values=(1, 2), model="same"):
    body = {"id": request_id, "inputs": [tensor("INPUT0", "INT32", [len(values)], list(values))]}
    return http_requests.infer(server, model, body)


def traces(file):
    """What is written, by the trace's id: the request, the times by their names in the order written, the tensors."""
    found: dict[str, dict] = {}
    for line in json.loads(file.read_text()):
        trace = found.setdefault(line.pop("id"), {"about": None, "times": [], "tensors": []})
        if "timestamps" in line:
            trace["times"] += [(stamp["name"], stamp["ns"]) for stamp in line["timestamps"]]
        elif "activity" in line:
            trace["tensors"].append((line["activity"], line["tensor"]))
        else:
            assert trace["about"] is None
            trace["about"] = line
    return found


def names(trace):
    return [name for name, _ in trace["times"]]


def request_ids(file):
    return [trace["about"].get("request_id") for trace in traces(file).values()]


def test_a_request_over_http_is_traced(same, serve, file):
    server = serve(*flags(file, *ALWAYS))
    assert ask(server, 'say "a"').status == 200
    server.stop()
    (trace,) = traces(file).values()
    assert trace["about"] == {"model_name": "same", "model_version": 1, "request_id": 'say "a"'}
    times = dict(trace["times"])
    assert sorted(times) == sorted([*HTTP, *EXECUTED])
    in_way = ["HTTP_RECV_START", "HTTP_RECV_END", "REQUEST_START", "QUEUE_START", *COMPUTED]
    assert [times[name] for name in in_way] == sorted(times[name] for name in in_way)
    assert times["QUEUE_START"] <= times["INFER_RESPONSE_COMPLETE"] <= times["HTTP_SEND_START"]
    assert times["HTTP_SEND_START"] <= times["HTTP_SEND_END"]
    assert times["COMPUTE_OUTPUT_START"] <= times["REQUEST_END"]
    assert trace["tensors"] == []


def test_a_request_over_grpc_is_traced(same, serve, file):
    server = serve(*flags(file, *ALWAYS))
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        client.infer("same", [numbers([1, 2])], request_id="g")
    server.stop()
    (trace,) = traces(file).values()
    assert trace["about"] == {"model_name": "same", "model_version": 1, "request_id": "g"}
    assert sorted(names(trace)) == sorted([*GRPC, *EXECUTED])
    times = dict(trace["times"])
    assert [times[name] for name in GRPC] == sorted(times[name] for name in GRPC)


def test_requests_of_a_stream_are_traced_each_by_itself(same, serve, file):
    server = serve(*flags(file, *ALWAYS))
    with grpc.insecure_channel(server.grpc_url) as channel:
        answers = stub(channel).ModelStreamInfer(iter([message(request_id="1"), message(request_id="2")]))
        assert [answer.infer_response.id for answer in answers] == ["1", "2"]
    server.stop()
    assert sorted(request_ids(file)) == ["1", "2"]
    for trace in traces(file).values():
        assert sorted(names(trace)) == sorted([*GRPC, *EXECUTED])


def test_generate_is_traced(repository, serve, file):
    write_identity(repository, "same", ["INT32"])
    server = serve(*flags(file, *ALWAYS))
    for route in ("generate", "generate_stream"):
        body = json.dumps({"INPUT0": [1, 2], "id": route})
        assert http_requests.request(server, "POST", f"/v2/models/same/{route}", body).status == 200
    server.stop()
    assert sorted(request_ids(file)) == ["generate", "generate_stream"]
    for trace in traces(file).values():
        assert sorted(names(trace)) == sorted([*HTTP, *EXECUTED])


def test_tensors_are_written_as_text(repository, serve, file):
    write_identity(repository, "same", ["FP32", "BYTES", "UINT8"])
    server = serve(*flags(file, "level=TENSORS", "rate=1"))
    inputs = [
        tensor("INPUT0", "FP32", [3], [1.5, 2, -1e30]),
        tensor("INPUT1", "BYTES", [2], ['a"b\n', "c\\"]),
        tensor("INPUT2", "UINT8", [2], [65, 0]),
    ]
    assert http_requests.infer(server, "same", {"inputs": inputs}).status == 200
    server.stop()
    (trace,) = traces(file).values()
    assert trace["about"] is None and trace["times"] == []
    texts = [("FP32", "1.5,2,-1e30", "3"), ("BYTES", '"a"b\n","c\\"', "2"), ("UINT8", "65,0", "2")]
    expected = [
        (activity, {"name": f"{name}{index}", "data": data, "shape": shape, "dtype": datatype})
        for activity, name in (("TENSOR_QUEUE_INPUT", "INPUT"), ("TENSOR_BACKEND_OUTPUT", "OUTPUT"))
        for index, (datatype, data, shape) in enumerate(texts)
    ]
    assert trace["tensors"] == expected


def test_rate_and_count_limit_the_traced_requests(same, serve, file):
    server = serve(*flags(file, "level=TIMESTAMPS", "rate=3", "count=2"))
    for number in range(1, 13):
        assert ask(server, str(number)).status == 200
    with tritonclient.http.InferenceServerClient(server.url) as client:
        assert client.get_trace_settings()["trace_count"] == "0"
    # A count that is reached is written at once, into a file of its own.
    numbered = file.with_name("trace.json.0")
    assert request_ids_when_there(numbered) == ["3", "6"]
    server.stop()
    assert not file.exists()


def request_ids_when_there(file):
    """The ids in a file that the server is about to write."""
    deadline = time.monotonic() + nereid_server.START_LIMIT_S
    while time.monotonic() < deadline:
        try:
            # It begins as an empty array.
            if found := request_ids(file):
                return found
        except (FileNotFoundError, ValueError):
            pass
        time.sleep(0.01)
    raise AssertionError(f"{file} was not written")


def test_log_frequency_splits_the_trace_file(same, serve, file):
    server = serve(*flags(file, *ALWAYS, "triton,log-frequency=2"))
    for number in range(5):
        ask(server, str(number))
    server.stop()
    files = [file.with_name(f"trace.json.{number}") for number in range(3)]
    ids = [request_ids(numbered) for numbered in files]
    # A trace ends after its answer has been sent, when the next request may have begun.
    assert [len(some) for some in ids] == [2, 2, 1] and sorted(number for some in ids for number in some) == [*"01234"]
    assert not file.exists()


def test_settings_take_effect_at_once_for_each_model(same, repository, serve, file):
    write_identity(repository, "other", ["INT32"])
    server = serve(*flags(file, "rate=1"))
    with (
        tritonclient.http.InferenceServerClient(server.url) as client,
        tritonclient.grpc.InferenceServerClient(server.grpc_url) as over_grpc,
    ):
        ask(server, "off")
        client.update_trace_settings(settings={"trace_level": ["TIMESTAMPS"]})
        ask(server, "on")
        over_grpc.update_trace_settings(model_name="same", settings={"trace_level": ["OFF"]})
        ask(server, "off for this model")
        ask(server, "on for others", model="other")
        client.update_trace_settings(model_name="same", settings={"trace_level": None})
        ask(server, "on again")
        over_grpc.update_trace_settings(settings={"trace_count": "1"})
        ask(server, "counted")
        ask(server, "too many")
    server.stop()
    assert sorted(request_ids(file)) == ["on", "on again", "on for others"]
    assert request_ids(file.with_name("trace.json.0")) == ["counted"]


def test_requests_that_fail_are_traced_as_far_as_they_came(repository, serve, file):
    write_identity(repository, "same", ["INT32"])
    server = serve(*flags(file, *ALWAYS))
    assert ask(server, "missing", model="none").status == 404
    assert http_requests.infer(server, "same", "{").status in (400, 500)
    assert http_requests.infer(server, "same", {"inputs": []}).status == 400
    server.stop()
    found = list(traces(file).values())
    assert [trace["about"] for trace in found] == [None, None]
    assert all(set(names(trace)) <= set(HTTP) for trace in found)


@pytest.mark.parametrize("path", ["/proc/none/trace.json", "/dev/full"])
def test_an_unwritable_trace_file_is_logged_and_delays_nothing(same, serve, path):
    server = serve(*flags(path, *ALWAYS))
    assert ask(server).status == 200
    server.stop()
    assert f"1 traces are lost: they cannot be written to '{path}'" in server.log


def test_a_full_disk_keeps_the_traces_written_before(same, serve, file, tmp_path):
    """Numbered files are written one after the other: a folder that goes away in between is as good as a full disk."""
    folder = tmp_path / "traces"
    folder.mkdir()
    path = folder / "t"
    server = serve(*flags(path, *ALWAYS, "triton,log-frequency=1"))
    ask(server, "before")
    assert request_ids_when_there(folder / "t.0") == ["before"]
    moved = folder.rename(tmp_path / "moved")
    ask(server, "lost")
    server.wait_for_log("1 traces are lost")
    moved.rename(folder)
    ask(server, "after")
    assert request_ids_when_there(folder / "t.2") == ["after"]
    server.wait_for_log("traces are written to '.*' again")


# ---- backends that have to do with traces ----

BLS = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            value = pb_utils.get_input_tensor_by_name(request, "VALUE")
            inner = pb_utils.InferenceRequest(
                model_name="same", request_id="inner", requested_output_names=["OUTPUT0"],
                inputs=[pb_utils.Tensor("INPUT0", value.as_numpy())], trace=request.trace())
            answer = inner.exec()
            output = pb_utils.get_output_tensor_by_name(answer, "OUTPUT0").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("RESULT", output)]))
        return responses
"""


def test_inner_requests_of_a_python_model_are_traced_within_its_own(same, repository, serve, file):
    python_backend.prepare()
    config = 'backend: "python" input { name: "VALUE" data_type: TYPE_INT32 dims: 2 }'
    config += ' output { name: "RESULT" data_type: TYPE_INT32 dims: 2 }'
    (repository / "outer" / "1").mkdir(parents=True)
    (repository / "outer" / "config.pbtxt").write_text(config)
    (repository / "outer" / "1" / "model.py").write_text(textwrap.dedent(BLS))
    server = serve(*python_backend.FLAGS, *flags(file, *ALWAYS), env=python_backend.environment())
    body = {"id": "o", "inputs": [tensor("VALUE", "INT32", [2], [1, 2])]}
    answer = http_requests.infer(server, "outer", body)
    assert answer.status == 200 and answer.json["outputs"][0]["data"] == [1, 2]
    server.stop()
    (outer_id, outer), (_, inner) = traces(file).items()
    assert outer["about"] == {"model_name": "outer", "model_version": 1, "request_id": "o"}
    expected = {"model_name": "same", "model_version": 1, "request_id": "inner", "parent_id": outer_id}
    assert inner["about"] == expected
    assert names(inner) == EXECUTED
    assert sorted(names(outer)) == sorted([*HTTP, *EXECUTED])


def test_the_steps_of_an_ensemble_are_traces_within_its_own(same, repository, serve, file):
    """An ensemble itself is not executed: its trace has the times of its request alone."""
    step = 'step {{ model_name: "same" model_version: -1 input_map {{ key: "INPUT0" value: "{}" }} {} }}'
    output = 'output_map {{ key: "OUTPUT0" value: "{}" }}'
    steps = [step.format("INPUT0", output.format("MIDDLE")), step.format("MIDDLE", output.format("OUTPUT0"))]
    config = 'platform: "ensemble" input { name: "INPUT0" data_type: TYPE_INT32 dims: -1 }'
    config += f' output {{ name: "OUTPUT0" data_type: TYPE_INT32 dims: -1 }} ensemble_scheduling {{ {" ".join(steps)} }}'
    (repository / "both" / "1").mkdir(parents=True)
    (repository / "both" / "config.pbtxt").write_text(config)
    server = serve(*flags(file, *ALWAYS))
    assert ask(server, "e", model="both").status == 200
    server.stop()
    (outer_id, outer), *inner = traces(file).items()
    assert outer["about"] == {"model_name": "both", "model_version": 1, "request_id": "e"}
    assert sorted(names(outer)) == sorted([*HTTP, "REQUEST_START", "QUEUE_START", "REQUEST_END"])
    expected = {"model_name": "same", "model_version": 1, "request_id": "e", "parent_id": outer_id}
    assert [trace["about"] for _, trace in inner] == [expected] * 2
    assert [sorted(names(trace)) for _, trace in inner] == [sorted(EXECUTED)] * 2


@pytest.fixture
def native(repository, tmp_path):
    """The backend in C that uses traces, and its models."""
    folder = tmp_path / "backends"
    native_backends.compile_c(folder, "trace")
    tensors = 'input { name: "IN" data_type: TYPE_INT32 dims: 3 } output { name: "SEEN" data_type: TYPE_STRING dims: 1 }'
    for name in ("callee", "child", "told", "told_tensors"):
        write_model(repository, name, "trace", tensors)
    return f"--backend-directory={folder}"


def seen(server, model):
    body = {"id": "outer", "inputs": [tensor("IN", "INT32", [3], [1, 2, 3])]}
    answer = http_requests.infer(server, model, body)
    assert answer.status == 200, answer
    return answer.json["outputs"][0]["data"][0].splitlines()


def test_a_backend_adds_to_a_trace_and_derives_others(native, serve, file):
    server = serve(native, *flags(file, *ALWAYS))
    assert seen(server, "child") == [
        "own: has id 1, parent none, model child 1, request outer",
        "derived: has id 1, parent as it should be, model  -1, request ",
        'context: {"mine":1}',
    ]
    server.stop()
    (outer_id, outer), (_, inner) = traces(file).items()
    assert inner["about"]["parent_id"] == outer_id
    assert names(inner) == ["REQUEST_START", "QUEUE_START", "CALLEE", *COMPUTED, "REQUEST_END"]
    times = dict(outer["times"])
    assert sorted(times) == sorted([*HTTP, *EXECUTED, "WORK_START", "WORK_END"])
    started = [times["WORK_START"], dict(inner["times"])["REQUEST_START"], times["WORK_END"]]
    assert started == sorted(started)


def test_a_request_that_is_not_traced_has_no_trace_for_its_backend(native, serve):
    assert seen(serve(native), "child") == ["no trace"]


# Triton 2.51 reports the same to this backend.
TOLD = "told: has id 1, parent as it should be, model callee 1, request inner"


def test_a_backend_hears_of_a_trace_that_it_made(native, serve):
    """Whether the server itself traces makes no difference."""
    custom = ["REQUEST_START", "QUEUE_START", "CUSTOM_ACTIVITY CALLEE", *COMPUTED, "REQUEST_END"]
    server = serve(native)
    assert seen(server, "told") == [TOLD, *custom]
    tensors = list(custom)
    tensors.insert(2, "TENSOR_QUEUE_INPUT IN INT32, 12 bytes, 1 dimensions, last 3, memory 0, first value 41")
    tensors.insert(4, "TENSOR_BACKEND_OUTPUT SEEN BYTES, 4 bytes, 1 dimensions, last 1, memory 0, first value 0")
    assert seen(server, "told_tensors") == [TOLD, *tensors]

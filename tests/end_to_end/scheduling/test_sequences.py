"""Sequences as clients see them: slots, controls, ids, states, refusals, and statistics.

The ONNX models run in both engines. One gives its controls back, another adds up what it was given, in a state.
"""

import itertools
import queue
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from onnx import TensorProto, helper
from tritonclient.utils import InferenceServerException

import nereid_server
import onnx_engines
from model_files import OnnxModel, write_model
from scrapes import Scrape
from waiting import eventually

INT32 = TensorProto.INT32
FLAGS = ["START", "END", "READY"]


def write_controls(repository, name, strategy="direct { }", max_batch_size=4, extra="", corrid="TYPE_UINT64"):
    """A model that answers its input, its controls, and its correlation id."""
    kind = {"TYPE_UINT64": TensorProto.UINT64, "TYPE_INT32": INT32}[corrid]
    batch = ["N"] if max_batch_size else []
    shape = [*batch, 1]
    axis = len(shape) - 1
    nodes = [
        helper.make_node("Cast", ["CORRID"], ["ID"], to=INT32),
        helper.make_node("Concat", ["IN", *FLAGS, "ID"], ["OUT"], axis=axis),
    ]
    inputs = [("IN", INT32, shape), *((flag, INT32, shape) for flag in FLAGS), ("CORRID", kind, shape)]
    model = OnnxModel(name, nodes, inputs, [("OUT", INT32, [*batch, 5])], max_batch_size=max_batch_size)
    controls = [
        f'control_input {{ name: "{flag}" control {{ kind: CONTROL_SEQUENCE_{flag} int32_false_true: [ 0, 1 ] }} }}'
        for flag in FLAGS
    ]
    controls.append(f'control_input {{ name: "CORRID" control {{ kind: CONTROL_SEQUENCE_CORRID data_type: {corrid} }} }}')
    config = f"""
        backend: "onnxruntime" max_batch_size: {max_batch_size}
        input {{ name: "IN" data_type: TYPE_INT32 dims: 1 }} output {{ name: "OUT" data_type: TYPE_INT32 dims: 5 }}
        instance_group {{ count: 1 kind: KIND_CPU }}
        sequence_batching {{ {strategy} {extra} {" ".join(controls)} }}
    """
    write_model(repository, name, config, model.serialized())


def write_adder(repository, name, strategy="direct { }", initial="", answered=False, extra="", dims="1"):
    """A model that adds its input to a state of its sequence, and answers the sum."""
    nodes = [
        helper.make_node("Add", ["IN", "SUM_IN"], ["SUM_OUT"]),
        helper.make_node("Identity", ["SUM_OUT"], ["OUT"]),
    ]
    shape = ["N", 1] if dims == "1" else ["N", "M"]
    tensors = [("IN", INT32, ["N", 1]), ("SUM_IN", INT32, shape)], [("SUM_OUT", INT32, shape), ("OUT", INT32, shape)]
    model = OnnxModel(name, nodes, *tensors, max_batch_size=4)
    also = f'output {{ name: "SUM_OUT" data_type: TYPE_INT32 dims: {dims} }}' if answered else ""
    config = f"""
        backend: "onnxruntime" max_batch_size: 4
        input {{ name: "IN" data_type: TYPE_INT32 dims: 1 }}
        output {{ name: "OUT" data_type: TYPE_INT32 dims: {dims} }} {also}
        instance_group {{ count: 1 kind: KIND_CPU }}
        sequence_batching {{ {strategy} {extra}
          state {{ input_name: "SUM_IN" output_name: "SUM_OUT" data_type: TYPE_INT32 dims: {dims} {initial} }} }}
    """
    write_model(repository, name, config, model.serialized())


def given(protocol, value, shape=(1, 1), name="IN"):
    tensor = protocol.InferInput(name, list(shape), "INT32")
    tensor.set_data_from_numpy(np.full(shape, value, np.int32))
    return [tensor]


class Client:
    """Asks over HTTP or gRPC."""

    def __init__(self, server, protocol):
        self.protocol = protocol
        url = server.url if protocol is tritonclient.http else server.grpc_url
        self.client = protocol.InferenceServerClient(url)

    def ask(self, model, value, sequence_id=0, start=False, end=False, output="OUT", **how):
        flags = {"sequence_id": sequence_id, "sequence_start": start, "sequence_end": end}
        answer = self.client.infer(model, given(self.protocol, value, **how), **flags)
        return answer.as_numpy(output).flatten().tolist()

    def refused(self, *arguments, **how):
        with pytest.raises(InferenceServerException) as error:
            self.ask(*arguments, **how)
        return error.value


PROTOCOLS = pytest.mark.parametrize("protocol", [tritonclient.http, tritonclient.grpc])
ENGINES = pytest.mark.parametrize("engine", onnx_engines.FLAGS)
STRATEGIES = pytest.mark.parametrize("strategy", ["direct { }", "oldest { max_candidate_sequences: 4 }"])


@ENGINES
@STRATEGIES
def test_a_model_knows_the_position_of_a_request_in_its_sequence(repository, serve, engine, strategy):
    write_controls(repository, "batched", strategy)
    write_controls(repository, "single", strategy, max_batch_size=0, corrid="TYPE_INT32")
    server = serve(*onnx_engines.FLAGS[engine])
    for protocol in (tritonclient.http, tritonclient.grpc):
        client = Client(server, protocol)
        for model, shape in (("batched", (1, 1)), ("single", (1,))):
            assert client.ask(model, 5, 7, start=True, shape=shape) == [5, 1, 0, 1, 7]
            assert client.ask(model, 6, 7, shape=shape) == [6, 0, 0, 1, 7]
            assert client.ask(model, 7, 7, end=True, shape=shape) == [7, 0, 1, 1, 7]
            assert client.ask(model, 8, 9, start=True, end=True, shape=shape) == [8, 1, 1, 1, 9]


@ENGINES
@STRATEGIES
def test_a_sequence_finds_its_own_state(repository, serve, engine, strategy):
    write_adder(repository, "adder", strategy)
    client = Client(serve(*onnx_engines.FLAGS[engine]), tritonclient.http)
    for total, (value, sequence, flags) in {
        1: (1, "a", {"start": True}),
        100: (100, "b", {"start": True}),
        3: (2, "a", {}),
        300: (200, "b", {}),
        6: (3, "a", {"end": True}),
        600: (300, "b", {"end": True}),
        # What was before does not show.
        10: (10, "a", {"start": True}),
        # A start restarts the sequence, wherever it stood.
        20: (20, "a", {"start": True}),
        25: (5, "a", {"end": True}),
    }.items():
        assert client.ask("adder", value, sequence, **flags) == [total]


@ENGINES
def test_states_begin_as_configured_and_may_be_answered(repository, serve, engine):
    zero = 'initial_state { name: "zero" data_type: TYPE_INT32 dims: 1 zero_data: true }'
    file = 'initial_state { name: "seed" data_type: TYPE_INT32 dims: 1 data_file: "seed" }'
    wide = 'initial_state { name: "wide" data_type: TYPE_INT32 dims: 3 data_file: "three" }'
    write_adder(repository, "zero", initial=zero, answered=True)
    write_adder(repository, "file", initial=file)
    write_adder(repository, "wide", initial=wide, dims="-1")
    for model, name, values in (("file", "seed", [500]), ("wide", "three", [1, 2, 3])):
        folder = repository / model / "initial_state"
        folder.mkdir()
        (folder / name).write_bytes(struct.pack(f"<{len(values)}i", *values))
    client = Client(serve(*onnx_engines.FLAGS[engine]), tritonclient.http)
    assert client.ask("zero", 4, 1, start=True, output="SUM_OUT") == [4]
    assert client.ask("zero", 5, 1, end=True, output="SUM_OUT") == [9]
    assert client.ask("file", 4, 1, start=True) == [504]
    assert client.ask("file", 6, 1, end=True) == [510]
    assert client.ask("wide", 10, 1, start=True) == [11, 12, 13]
    assert client.ask("wide", 10, 1, end=True) == [21, 22, 23]
    # An output that is only a state is none of the client's.
    http = client.client
    assert [output["name"] for output in http.get_model_metadata("file")["outputs"]] == ["OUT"]
    with pytest.raises(InferenceServerException, match="SUM_OUT"):
        http.infer(
            "file",
            given(tritonclient.http, 1),
            sequence_id=1,
            sequence_start=True,
            outputs=[tritonclient.http.InferRequestedOutput("SUM_OUT")],
        )


@ENGINES
def test_states_that_the_model_does_not_have_are_refused_at_load(repository, serve, engine):
    write_adder(repository, "type", initial='initial_state { name: "z" data_type: TYPE_INT32 dims: 1 zero_data: true }')
    write_adder(repository, "short", initial='initial_state { name: "z" data_type: TYPE_INT32 dims: 1 data_file: "f" }')
    write_adder(repository, "name")
    for model, old, new in (("type", "TYPE_INT32 dims: 1 initial", "TYPE_INT32 dims: 2 initial"), ("name", '"SUM_OUT"', '"NOPE"')):
        path = repository / model / "config.pbtxt"
        path.write_text(path.read_text().replace(old, new).replace("dims: 1 zero", "dims: 2 zero"))
    (repository / "short" / "initial_state").mkdir()
    (repository / "short" / "initial_state" / "f").write_bytes(b"\0\0\0")
    server = serve(*onnx_engines.FLAGS[engine], "--exit-on-error=false", ready=False)
    with tritonclient.http.InferenceServerClient(server.url) as client:
        reasons = {model["name"]: model["reason"] for model in client.get_model_repository_index()}
    assert "'NOPE'" in reasons["name"]
    assert "SUM_IN" in reasons["type"]
    assert "takes 4 bytes, but file 'f' has 3" in reasons["short"]


@PROTOCOLS
def test_requests_that_belong_to_no_sequence_are_refused_and_change_nothing(repository, serve, protocol):
    write_controls(repository, "number", extra="max_sequence_idle_microseconds: 60000000")
    write_adder(repository, "any", extra="max_sequence_idle_microseconds: 60000000")
    client = Client(serve(), protocol)
    status = "400" if protocol is tritonclient.http else "StatusCode.INVALID_ARGUMENT"

    def refused(expected, *arguments, **how):
        error = client.refused(*arguments, **how)
        assert expected in error.message() and error.status() == status

    refused("must specify a non-zero or non-empty correlation ID", "any", 1)
    refused("sequence 5 of model 'any' is not open", "any", 1, 5)
    refused("sequence 5 of model 'any' is not open", "any", 1, 5, end=True)
    refused("must be a number", "number", 1, "text", start=True)
    refused("must have batch size 1, not 2", "any", 1, 5, start=True, shape=(2, 1))
    assert client.ask("any", 1, 5, start=True) == [1]
    refused("unexpected shape for input", "any", 1, 5, shape=(1, 2))
    refused("must have batch size 1", "any", 1, 5, shape=(2, 1))
    assert client.ask("any", 2, 5, end=True) == [3]
    refused("is not open", "any", 1, 5)
    # Controls and states are the server's to give.
    tensors = given(protocol, 1) + given(protocol, 1, name="SUM_IN")
    with pytest.raises(InferenceServerException, match="unexpected inference input 'SUM_IN'"):
        client.client.infer("any", tensors, sequence_id=5, sequence_start=True)


@pytest.mark.parametrize("same_buffer", ["", "use_same_buffer_for_input_output: true"])
@pytest.mark.parametrize("dims", ["1", "-1"])
def test_states_that_may_grow_are_kept_without_a_gpu(repository, serve, same_buffer, dims):
    write_adder(repository, "adder", initial=f"use_growable_memory: true {same_buffer}", dims=dims)
    client = Client(serve(), tritonclient.http)
    assert client.ask("adder", 1, 1, start=True) == [1]
    assert client.ask("adder", 2, 2, start=True) == [2]
    assert client.ask("adder", 10, 1) == [11]
    assert client.ask("adder", 20, 2, end=True) == [22]
    assert client.ask("adder", 100, 1, end=True) == [111]


def test_an_idle_sequence_ends(repository, serve):
    write_adder(repository, "adder", extra="max_sequence_idle_microseconds: 300000")
    client = Client(serve(), tritonclient.http)
    last = time.monotonic()
    assert client.ask("adder", 1, 1, start=True) == [1]
    # Each request resets the idle time, until one comes later than the sequence may be idle.
    for pause_s in (0.1, 0.1, 0.1, 0.1, 0.6, 1.2, 2.4):
        time.sleep(pause_s)
        before, last = last, time.monotonic()
        try:
            client.ask("adder", 1, 1)
        except InferenceServerException as error:
            assert "was idle for too long" in error.message()
            assert time.monotonic() - before >= 0.3
            break
    else:
        pytest.fail("the sequence did not end")


def test_streams_carry_sequences_in_order(repository, serve):
    write_adder(repository, "adder", "oldest { max_candidate_sequences: 2 }")
    server = serve()
    answers: queue.Queue = queue.Queue()
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        client.start_stream(lambda result, error: answers.put(error or result.as_numpy("OUT").item()))
        for value in range(1, 51):
            for sequence, weight in (("a", 1), ("b", 1000), ("c", 1000000)):
                flags = {"sequence_id": sequence, "sequence_start": value == 1, "sequence_end": value == 50}
                client.async_stream_infer("adder", given(tritonclient.grpc, value * weight), **flags)
        got = [answers.get(timeout=30) for _ in range(150)]
        client.stop_stream()
    totals = [value * (value + 1) // 2 for value in range(1, 51)]
    assert len(got) == 150
    for weight in (1, 1000, 1000000):
        expected = [total * weight for total in totals]
        assert [answer for answer in got if answer in set(expected)] == expected


def test_empty_slots_are_filled_and_counted_as_the_reference_counts_them(repository, serve):
    wait = "direct { max_queue_delay_microseconds: 20000000 minimum_slot_utilization: 0.5 }"
    write_controls(repository, "controls", wait, extra="max_sequence_idle_microseconds: 60000000")
    server = serve(nereid_server.OPEN_SEQUENCES)
    client = Client(server, tritonclient.http)
    with ThreadPoolExecutor(4) as pool:

        def ask(value, sequence, **flags):
            return pool.submit(lambda: Client(server, tritonclient.http).ask("controls", value, sequence, **flags))

        # Two of four slots make a batch: the first two sequences, in their slots.
        assert [answer.result() for answer in [ask(1, 11, start=True), ask(2, 12, start=True)]] == [
            [1, 1, 0, 1, 11],
            [2, 1, 0, 1, 12],
        ]
        assert [answer.result() for answer in [ask(3, 13, start=True), ask(4, 14, start=True)]] == [
            [3, 1, 0, 1, 13],
            [4, 1, 0, 1, 14],
        ]
    statistics = client.client.get_inference_statistics("controls")["model_stats"][0]
    # The second batch has two fillers before its two requests.
    assert {it["batch_size"]: it["compute_infer"]["count"] for it in statistics["batch_stats"]} == {2: 1, 4: 1}
    assert (statistics["inference_count"], statistics["execution_count"]) == (4, 2)


def test_sequences_without_a_slot_wait_until_one_ends_or_their_timeout_is_over(repository, serve):
    write_adder(repository, "adder", "direct { }", extra="max_sequence_idle_microseconds: 60000000")
    server = serve(nereid_server.OPEN_SEQUENCES)
    client = Client(server, tritonclient.http)
    for sequence in (1, 2, 3, 4):
        client.ask("adder", sequence, sequence, start=True)
    answered = threading.Event()

    def wait_for_a_slot():
        answer = Client(server, tritonclient.http).ask("adder", 50, 5, start=True)
        answered.set()
        return answer

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait_for_a_slot)
        with pytest.raises(InferenceServerException) as error:
            client.client.infer("adder", given(tritonclient.http, 1), sequence_id=6, sequence_start=True, timeout=100000)
        assert error.value.status() == "503" and "waited for a slot" in error.value.message()
        assert not answered.is_set()
        assert client.ask("adder", 10, 3, end=True) == [13]
        assert waiting.result(timeout=20) == [50]
    assert client.ask("adder", 1, 5) == [51]


def test_a_warm_up_gives_controls_and_states_too(repository, serve):
    def sample(name, datatype="TYPE_INT32"):
        return f'inputs {{ key: "{name}" value {{ data_type: {datatype} dims: 1 zero_data: true }} }}'

    def warm_up(name, *samples):
        config = repository / name / "config.pbtxt"
        warm_up = f'model_warmup {{ name: "w" batch_size: 2 {" ".join(samples)} }}'
        config.write_text(config.read_text() + warm_up)

    write_controls(repository, "controls")
    warm_up("controls", sample("IN"), *map(sample, FLAGS), sample("CORRID", "TYPE_UINT64"))
    write_adder(repository, "adder")
    warm_up("adder", sample("IN"), sample("SUM_IN"))
    write_adder(repository, "unknown")
    warm_up("unknown", sample("IN"), sample("SUM_OUT"))
    server = serve("--exit-on-error=false", ready=False)
    client = Client(server, tritonclient.http)
    assert client.ask("controls", 5, 7, start=True) == [5, 1, 0, 1, 7]
    assert client.ask("adder", 5, 7, start=True) == [5]
    reasons = {model["name"]: model.get("reason", "") for model in client.client.get_model_repository_index()}
    assert "unexpected inference input 'SUM_OUT'" in reasons["unknown"]
    assert client.client.get_inference_statistics("adder")["model_stats"][0]["inference_count"] == 3


def test_open_sequences_delay_the_exit_no_longer_than_they_may_be_idle(repository, serve):
    models = {"direct": "direct { }", "oldest": "oldest { max_candidate_sequences: 4 }"}
    for model, strategy in models.items():
        write_adder(repository, model, strategy, extra="max_sequence_idle_microseconds: 4000000")
    server = serve()
    client = Client(server, tritonclient.http)
    # As many as there are slots.
    for model, sequence in itertools.product(models, range(1, 5)):
        assert client.ask(model, sequence, sequence, start=True) == [sequence]
    with ThreadPoolExecutor(4) as threads:
        # They wait for slots whose sequences end when they were idle for four seconds.
        waiting = [
            threads.submit(Client(server, protocol).ask, model, sequence, sequence, start=True)
            for model in models
            for sequence, protocol in ((5, tritonclient.http), (6, tritonclient.grpc))
        ]
        assert eventually(lambda: all(Scrape(server).pending(model) == 2 for model in models))
        server.terminate()
        assert [future.result(30) for future in waiting] == [[5], [6]] * 2
    assert server.wait_for_exit() == 0


def test_sequence_is_among_the_extensions(examples):
    with tritonclient.http.InferenceServerClient(examples.url) as client:
        assert "sequence" in client.get_server_metadata()["extensions"]

"""Sequences as a backend in C sees them: fillers, controls, states, and rescheduled requests.

What is expected of fillers, controls and requests that come again is what Triton 2.51 gives the same backend.
"""

import queue
import re

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

import native_backends
import nereid_server

INT32 = "int32_false_true: [ 0, 1 ]"
KEPT = (
    'state { input_name: "SUM_IN" output_name: "SUM_OUT" data_type: TYPE_INT32 dims: 1 '
    'initial_state { name: "zero" data_type: TYPE_INT32 dims: 1 zero_data: true } %s }'
)
# Two of four slots make a batch.
BY_TWO = "direct { max_queue_delay_microseconds: 30000000 minimum_slot_utilization: 0.5 }"


def control(kind, form):
    return f'control_input {{ name: "{kind}" control {{ kind: CONTROL_SEQUENCE_{kind} {form} }} }}'


def all_controls(form=INT32, corrid="TYPE_UINT64"):
    flags = [control(kind, form) for kind in ("START", "END", "READY")]
    return " ".join([*flags, control("CORRID", f"data_type: {corrid}")])


class Models:
    """Writes models of the backend and serves them."""

    def __init__(self, repository, serve, folder):
        self._repository, self._serve, self._folder = repository, serve, folder
        native_backends.compile_c(folder, "sequences")

    def write(self, name, *batching, max_batch_size=4):
        decoupled = "model_transaction_policy { decoupled: true }" if "iterative" in " ".join(batching) else ""
        body = f"""
            max_batch_size: {max_batch_size} instance_group {{ count: 1 kind: KIND_CPU }} {decoupled}
            input {{ name: "IN" data_type: TYPE_INT32 dims: 1 }} output {{ name: "TEXT" data_type: TYPE_STRING dims: 1 }}
            sequence_batching {{ max_sequence_idle_microseconds: 60000000 {" ".join(batching)} }}
        """
        native_backends.write_model(self._repository, name, "sequences", body)

    def serve(self, *flags):
        return self._serve(f"--backend-directory={self._folder}", nereid_server.OPEN_SEQUENCES, *flags)


@pytest.fixture
def models(repository, serve, tmp_path):
    return Models(repository, serve, tmp_path / "backends")


def given(protocol, value, shape=(1, 1)):
    tensor = protocol.InferInput("IN", list(shape), "INT32")
    tensor.set_data_from_numpy(np.full(shape, value, np.int32))
    return [tensor]


def ask(server, model, value, sequence_id, start=False, end=False, shape=(1, 1), **parameters):
    flags = {"sequence_id": sequence_id, "sequence_start": start, "sequence_end": end}
    with tritonclient.http.InferenceServerClient(server.url, network_timeout=60) as client:
        answer = client.infer(model, given(tritonclient.http, value, shape), **flags, parameters=parameters or None)
        return answer.as_numpy("TEXT").item().decode()


def side_by_side(server, model, *requests):
    """Asks one after the other, without waiting for answers; the batch that all of them were in."""
    stream = Stream(server)
    for value, sequence, flags in requests:
        stream.send(model, value, request_id=str(sequence), sequence_id=sequence, **flags)
    texts = stream.read(len(requests))
    stream.close()
    batches = {text for answers in texts.values() for text in answers}
    assert len(texts) == len(requests) and len(batches) == 1, texts
    return batches.pop().split("|")


def values(part):
    """The inputs of a request, by name."""
    return dict(re.findall(r"(\w+):\w+\[[\d,]*\]=(\S+)", part))


def test_empty_slots_are_filled_and_have_no_states(models):
    models.write("m", BY_TWO, all_controls(), KEPT % "")
    server = models.serve()
    start = {"sequence_start": True}
    first = side_by_side(server, "m", (1, 11, start), (2, 12, start))
    assert first == [
        "id 11 flags 1 inputs 6 outputs 1 IN:INT32[1,1]=1 SUM_IN:INT32[1,1]=0 START:INT32[1,1]=1 END:INT32[1,1]=0 "
        "READY:INT32[1,1]=1 CORRID:UINT64[1,1]=11",
        "id 12 flags 1 inputs 6 outputs 1 IN:INT32[1,1]=2 SUM_IN:INT32[1,1]=0 START:INT32[1,1]=1 END:INT32[1,1]=0 "
        "READY:INT32[1,1]=1 CORRID:UINT64[1,1]=12",
    ]
    filler = (
        "id 0 flags 0 inputs 6 outputs 0 IN:INT32[1,1]=0 SUM_IN:INT32[1,1]=0 START:INT32[1,1]=0 END:INT32[1,1]=0 "
        "READY:INT32[1,1]=0 CORRID:UINT64[1,1]=0"
    )
    second = side_by_side(server, "m", (3, 13, start), (4, 14, start))
    assert second[:2] == [filler, filler] and [values(part)["CORRID"] for part in second[2:]] == ["13", "14"]
    third = side_by_side(server, "m", (5, 12, {}), (6, 14, {}))
    assert [values(part)["READY"] for part in third] == ["0", "1", "0", "1"]
    # The fillers in their slots did not touch the sums.
    assert (values(third[1])["SUM_IN"], values(third[3])["SUM_IN"]) == ("2", "4")
    last = side_by_side(server, "m", (1, 11, {"sequence_end": True}), (1, 12, {"sequence_end": True}))
    assert [values(part)["SUM_IN"] for part in last] == ["1", "7"]


@pytest.mark.parametrize(
    "form, no, yes",
    [
        ("int32_false_true: [ 7, -3 ]", "7", str(2**32 - 3)),
        ("fp32_false_true: [ -1, 2.5 ]", "-1", "2.5"),
        ("bool_false_true: [ true, false ]", "1", "0"),
    ],
)
def test_controls_have_the_values_of_the_configuration(models, form, no, yes):
    models.write("m", "oldest { }", all_controls(form, "TYPE_STRING"), max_batch_size=0)
    server = models.serve()
    told = [values(ask(server, "m", 1, "my id", shape=(1,), **flags)) for flags in ({"start": True}, {}, {"end": True})]
    assert [(it["START"], it["END"], it["READY"]) for it in told] == [(yes, no, yes), (no, no, yes), (no, yes, yes)]
    assert ask(server, "m", 1, "é", start=True, shape=(1,)).endswith("CORRID:BYTES[1]='é'")


@pytest.mark.parametrize(
    "data_type, number, told",
    [
        ("TYPE_UINT64", 2**64 - 1, "-1"),
        ("TYPE_INT64", 2**40 + 7, str(2**40 + 7)),
        ("TYPE_UINT32", 2**31 + 5, str(2**31 + 5)),
        # As in the reference the lower half is what fits.
        ("TYPE_UINT32", 2**40 + 7, "7"),
        ("TYPE_INT32", 12, "12"),
    ],
)
def test_correlation_ids_have_the_configured_type(models, data_type, number, told):
    models.write("m", control("CORRID", f"data_type: {data_type}"))
    text = ask(models.serve(), "m", 1, number, start=True)
    assert text.startswith(f"id {number} ") and values(text)["CORRID"] == told


def test_states_last_and_may_share_their_memory(models):
    models.write("own", "direct { }", KEPT % "")
    models.write("shared", "oldest { }", KEPT % "use_same_buffer_for_input_output: true", max_batch_size=0)
    server = models.serve()
    for model, shape in (("own", (1, 1)), ("shared", (1,))):
        sums = [values(ask(server, model, v, "s", start=v == 1, end=v == 4, shape=shape))["SUM_IN"] for v in (1, 2, 3, 4)]
        assert sums == ["0", "1", "3", "6"]


@pytest.mark.parametrize("does", ["write", "write_update"])
@pytest.mark.parametrize("strategy, max_batch_size", [("direct { }", 4), ("oldest { }", 0)])
def test_state_that_shares_its_buffer_is_written_in_place(models, strategy, max_batch_size, does):
    models.write("own", strategy, KEPT % "", max_batch_size=max_batch_size)
    models.write("shared", strategy, KEPT % "use_same_buffer_for_input_output: true", max_batch_size=max_batch_size)
    server = models.serve()
    shape = (1, 1) if max_batch_size else (1,)

    def written(model, sequence):
        texts = [ask(server, model, v, sequence, start=v == 1, shape=shape, do=does) for v in (1, 2, 3)]
        # What was written is the input of a request that only reads.
        return [*texts, values(ask(server, model, 0, sequence, end=True, shape=shape))["SUM_IN"]]

    in_place = ["same buffer, 1", "same buffer, 3", "same buffer, 6", "6"]
    # Another sequence begins with the initial value.
    assert written("shared", 7) == in_place == written("shared", 8)
    if does == "write_update":
        assert written("own", 7) == ["another buffer, 1", "another buffer, 3", "another buffer, 6", "6"]
    else:
        assert written("own", 7) == ["another buffer, 1", "another buffer, 2", "another buffer, 3", "0"]


def test_states_used_wrongly_give_errors_and_stay_what_they_were(models):
    models.write("m", "direct { }", KEPT % "", max_batch_size=0)
    models.write("stateless", "direct { }", max_batch_size=0)
    server = models.serve()
    ask(server, "m", 5, 1, start=True, shape=(1,))
    told = dict(re.findall(r"([\w ]+): ([\w ]+); ", ask(server, "m", 0, 1, shape=(1,), do="bad_states")))
    told = {what.strip(): outcome for what, outcome in told.items()}
    assert told.pop("new") == "ok" and told.pop("short") == "ok"
    assert told.pop("huge") == "Unavailable"
    assert set(told.values()) == {"Invalid argument"} and len(told) == 11
    assert values(ask(server, "m", 1, 1, shape=(1,)))["SUM_IN"] == "5"
    without = ask(server, "stateless", 0, 1, start=True, shape=(1,), do="bad_states")
    assert "ok" not in without


class Stream:
    """A gRPC stream: what it answered, until each request had its last answer."""

    def __init__(self, server):
        self._client = tritonclient.grpc.InferenceServerClient(server.grpc_url)
        self._answers: queue.Queue = queue.Queue()
        self._client.start_stream(lambda result, error: self._answers.put(error or result))

    def send(self, model, value, **how):
        self._client.async_stream_infer(model, given(tritonclient.grpc, value), enable_empty_final_response=True, **how)

    def read(self, requests=1):
        """The texts, by the requests' ids, or the error."""
        texts: dict[str, list[str]] = {}
        ended = 0
        while ended < requests:
            answer = self._answers.get(timeout=30)
            if isinstance(answer, InferenceServerException):
                return answer
            response = answer.get_response()
            ended += response.parameters["triton_final_response"].bool_param
            text = answer.as_numpy("TEXT")
            if text is not None:
                texts.setdefault(response.id, []).append(text.item().decode())
        return texts

    def close(self):
        self._client.stop_stream()
        self._client.close()


STRATEGIES = pytest.mark.parametrize(
    "strategy",
    [
        "direct { }",
        "oldest { max_candidate_sequences: 4 }",
        "oldest { max_candidate_sequences: 4 preserve_ordering: true }",
    ],
)


@STRATEGIES
def test_a_request_is_rescheduled_until_its_model_finishes_it(models, strategy):
    models.write("m", strategy, all_controls(), KEPT % "", "iterative_sequence: true")
    stream = Stream(models.serve())
    stream.send("m", 3, request_id="r")
    texts = stream.read()["r"]
    assert [text.split(" IN:")[0] for text in texts] == [
        "id 1 flags 1 inputs 6 outputs 1",
        "id 1 flags 0 inputs 6 outputs 1",
        "id 1 flags 0 inputs 6 outputs 1",
    ]
    seen = [values(text) for text in texts]
    assert [(it["SUM_IN"], it["START"], it["END"], it["CORRID"]) for it in seen] == [
        ("0", "1", "0", "1"),
        ("1", "0", "0", "1"),
        ("2", "0", "0", "1"),
    ]
    # A sequence that the client named is over, too, when its request is.
    stream.send("m", 2, request_id="r", sequence_id=77, sequence_start=True)
    assert len(stream.read()["r"]) == 2
    for _ in range(100):
        # The backend answers before it releases: a request that comes in between still goes on with the sequence.
        stream.send("m", 2, request_id="r", sequence_id=77)
        answer = stream.read()
        if isinstance(answer, InferenceServerException):
            break
    assert "sequence 77 of model 'm' is not open" in answer.message()
    stream.close()


@STRATEGIES
def test_concurrent_generations_are_independent(models, strategy):
    models.write("m", strategy, KEPT % "", "iterative_sequence: true")
    stream = Stream(models.serve())
    for number in range(1, 21):
        stream.send("m", number, request_id=str(number), parameters={"do": "keep_factories"} if number % 5 == 0 else None)
    texts = stream.read(20)
    assert {int(number): len(answers) for number, answers in texts.items()} == {n: n for n in range(1, 21)}
    stream.close()


def test_a_long_generation_does_not_grow_memory(models):
    models.write("m", "oldest { }", KEPT % "", "iterative_sequence: true")
    stream = Stream(models.serve())
    # A thousand steps, each of which leaves a way to answer alive.
    stream.send("m", 1000, request_id="r", parameters={"do": "keep_factories"})
    assert len(stream.read()["r"]) == 1000
    stream.close()


def test_a_request_that_is_given_back_without_a_last_answer_fails(models):
    models.write("m", "direct { }", KEPT % "", "iterative_sequence: true")
    stream = Stream(models.serve())
    stream.send("m", 2, request_id="r", parameters={"do": "forget"})
    assert "without answering" in stream.read().message()
    stream.close()

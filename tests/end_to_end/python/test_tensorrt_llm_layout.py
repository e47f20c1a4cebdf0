"""The layout of Triton's TensorRT-LLM backend behind OpenAI's interface: an ensemble of preprocessing, engine and postprocessing with the usual
tensors, and the same by business logic in Python. The engine is a stand-in: it writes the prompt's words backwards."""

import json
import sys

import openai
import pytest
from openai import OpenAI

import nereid_server
from http_requests import request

PREPROCESSING = """
import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            texts = [row[0].decode() for row in pb_utils.get_input_tensor_by_name(request, "QUERY").as_numpy()]
            (text,) = texts
            tokens = numpy.array([[ord(character) for character in text]], dtype=numpy.int32)
            words = pb_utils.get_input_tensor_by_name(request, "STOP_WORDS_DICT")
            stops = [] if words is None else [word.decode() for word in words.as_numpy().reshape(-1)]
            flat = [ord(character) for word in stops for character in word]
            ends = [sum(map(len, stops[: number + 1])) for number in range(len(stops))]
            ends += [-1] * (len(flat) - len(ends))
            responses.append(pb_utils.InferenceResponse([
                pb_utils.Tensor("INPUT_ID", tokens),
                pb_utils.Tensor("REQUEST_INPUT_LEN", numpy.array([[tokens.shape[1]]], dtype=numpy.int32)),
                pb_utils.Tensor("STOP_WORDS_IDS", numpy.array([[flat, ends]], dtype=numpy.int32)),
            ]))
        return responses
"""

ENGINE = """
import threading

import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.answer, args=(request, request.get_response_sender())).start()

    def answer(self, request, sender):
        def given(name, default):
            tensor = pb_utils.get_input_tensor_by_name(request, name)
            return default if tensor is None else tensor.as_numpy().reshape(-1)[0]

        length = given("input_lengths", 0)
        tokens = pb_utils.get_input_tensor_by_name(request, "input_ids").as_numpy()[0][:length]
        words = "".join(map(chr, tokens)).split()[::-1]
        if words and words[-1] == "parameters":
            words = [f"{given('temperature', 1):.1f}", str(given("seed", 0))]
        if words and words[-1] == "fail":
            sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("the engine is broken")))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            return
        words = words[: given("request_output_len", 16)]
        pieces = [word if number == 0 else f" {word}" for number, word in enumerate(words)]
        for piece in pieces if given("streaming", False) else ["".join(pieces)]:
            ids = numpy.array([[[ord(character) for character in piece]]], dtype=numpy.int32)
            sender.send(pb_utils.InferenceResponse([
                pb_utils.Tensor("output_ids", ids),
                pb_utils.Tensor("sequence_length", numpy.array([[ids.shape[2]]], dtype=numpy.int32)),
            ]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

POSTPROCESSING = """
import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            tokens = pb_utils.get_input_tensor_by_name(request, "TOKENS_BATCH").as_numpy()
            lengths = pb_utils.get_input_tensor_by_name(request, "SEQUENCE_LENGTH").as_numpy()
            texts = [
                "".join(map(chr, beam[:length])).encode()
                for beams, row in zip(tokens, lengths) for beam, length in zip(beams, row)
            ]
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", numpy.array([texts], dtype=numpy.object_))]))
        return responses
"""

LOGIC = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            try:
                self.answer(request, sender)
            except Exception as error:
                sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error))))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def answer(self, request, sender):
        def renamed(names):
            tensors = [(new, pb_utils.get_input_tensor_by_name(request, old)) for old, new in names.items()]
            return [pb_utils.Tensor(new, tensor.as_numpy()) for new, tensor in tensors if tensor is not None]

        first = pb_utils.InferenceRequest(
            model_name="preprocessing",
            inputs=renamed({"text_input": "QUERY", "max_tokens": "REQUEST_OUTPUT_LEN", "stop_words": "STOP_WORDS_DICT"}),
            requested_output_names=["INPUT_ID", "REQUEST_INPUT_LEN"],
        ).exec()
        prepared = {tensor.name(): tensor.as_numpy() for tensor in first.output_tensors()}
        inputs = [
            pb_utils.Tensor("input_ids", prepared["INPUT_ID"]),
            pb_utils.Tensor("input_lengths", prepared["REQUEST_INPUT_LEN"]),
            *renamed({"max_tokens": "request_output_len", "temperature": "temperature", "seed": "seed", "stream": "streaming"}),
        ]
        engine = pb_utils.InferenceRequest(
            model_name="tensorrt_llm", inputs=inputs, requested_output_names=["output_ids", "sequence_length"]
        )
        for response in engine.exec(decoupled=True):
            if response.has_error():
                raise RuntimeError(response.error().message())
            if not response.output_tensors():
                continue
            tokens = {tensor.name(): tensor.as_numpy() for tensor in response.output_tensors()}
            last = pb_utils.InferenceRequest(
                model_name="postprocessing",
                inputs=[
                    pb_utils.Tensor("TOKENS_BATCH", tokens["output_ids"]),
                    pb_utils.Tensor("SEQUENCE_LENGTH", tokens["sequence_length"]),
                ],
                requested_output_names=["OUTPUT"],
            ).exec()
            text = pb_utils.get_output_tensor_by_name(last, "OUTPUT").as_numpy()
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("text_output", text)]))
"""


def tensor(name, kind, dims, more=""):
    return f'{{ name: "{name}" data_type: TYPE_{kind} dims: [ {dims} ] {more} }}'


OPTIONAL = "optional: true"
SCALAR = "reshape: { shape: [ ] }"
TEXT = [
    tensor("text_input", "STRING", "1"),
    tensor("max_tokens", "INT32", "1"),
    tensor("stop_words", "STRING", "-1", OPTIONAL),
    tensor("temperature", "FP32", "1", OPTIONAL),
    tensor("seed", "UINT64", "1", OPTIONAL),
    tensor("stream", "BOOL", "1", OPTIONAL),
]
DECOUPLED = "model_transaction_policy { decoupled: true }"
MODELS = {
    "preprocessing": (
        PREPROCESSING,
        "",
        [
            tensor("QUERY", "STRING", "1"),
            tensor("REQUEST_OUTPUT_LEN", "INT32", "1"),
            tensor("STOP_WORDS_DICT", "STRING", "-1", OPTIONAL),
        ],
        [tensor("INPUT_ID", "INT32", "-1"), tensor("REQUEST_INPUT_LEN", "INT32", "1"), tensor("STOP_WORDS_IDS", "INT32", "2, -1")],
    ),
    "tensorrt_llm": (
        ENGINE,
        DECOUPLED,
        [
            tensor("input_ids", "INT32", "-1"),
            tensor("input_lengths", "INT32", "1", SCALAR),
            tensor("request_output_len", "INT32", "1"),
            tensor("stop_words_list", "INT32", "2, -1", OPTIONAL),
            tensor("temperature", "FP32", "1", f"{SCALAR} {OPTIONAL}"),
            tensor("seed", "UINT64", "1", f"{SCALAR} {OPTIONAL}"),
            tensor("streaming", "BOOL", "1", OPTIONAL),
        ],
        [tensor("output_ids", "INT32", "-1, -1"), tensor("sequence_length", "INT32", "-1")],
    ),
    "postprocessing": (
        POSTPROCESSING,
        "",
        [tensor("TOKENS_BATCH", "INT32", "-1, -1"), tensor("SEQUENCE_LENGTH", "INT32", "-1")],
        [tensor("OUTPUT", "STRING", "-1")],
    ),
    "tensorrt_llm_bls": (LOGIC, DECOUPLED, TEXT, [tensor("text_output", "STRING", "-1")]),
}


def step(model, inputs, outputs):
    maps = "".join(f'input_map {{ key: "{key}" value: "{value}" }} ' for key, value in inputs.items())
    maps += "".join(f'output_map {{ key: "{key}" value: "{value}" }} ' for key, value in outputs.items())
    return f'step {{ model_name: "{model}" model_version: -1 {maps} }}'


ENSEMBLE = f"""
platform: "ensemble"
max_batch_size: 4
input [ {", ".join(TEXT)} ]
output [ {tensor("text_output", "STRING", "-1")} ]
ensemble_scheduling {{
  {
    step(
        "preprocessing",
        {"QUERY": "text_input", "REQUEST_OUTPUT_LEN": "max_tokens", "STOP_WORDS_DICT": "stop_words"},
        {"INPUT_ID": "_INPUT_ID", "REQUEST_INPUT_LEN": "_REQUEST_INPUT_LEN", "STOP_WORDS_IDS": "_STOP_WORDS_IDS"},
    )
}
  {
    step(
        "tensorrt_llm",
        {
            "input_ids": "_INPUT_ID",
            "input_lengths": "_REQUEST_INPUT_LEN",
            "request_output_len": "max_tokens",
            "stop_words_list": "_STOP_WORDS_IDS",
            "temperature": "temperature",
            "seed": "seed",
            "streaming": "stream",
        },
        {"output_ids": "_TOKENS_BATCH", "sequence_length": "_SEQUENCE_LENGTH"},
    )
}
  {step("postprocessing", {"TOKENS_BATCH": "_TOKENS_BATCH", "SEQUENCE_LENGTH": "_SEQUENCE_LENGTH"}, {"OUTPUT": "text_output"})}
}}
"""
TEMPLATE = """
parameters { key: "chat_template" value { string_value: "{% for message in messages %}{{ message.content }} {% endfor %}" } }
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    repository = tmp_path_factory.mktemp("models")
    for name, (source, extra, inputs, outputs) in MODELS.items():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "1/model.py").write_text(source)
        config = f'backend: "python" max_batch_size: 4 {extra} instance_group {{ count: 1 kind: KIND_CPU }}\n'
        config += f"input [ {', '.join(inputs)} ]\noutput [ {', '.join(outputs)} ]\n"
        (repository / name / "config.pbtxt").write_text(config + (TEMPLATE if name == "tensorrt_llm_bls" else ""))
    (repository / "ensemble/1").mkdir(parents=True)
    (repository / "ensemble/config.pbtxt").write_text(ENSEMBLE + TEMPLATE)
    with nereid_server.running(repository, f"--backend-config=python,python={sys.executable}") as server:
        yield server


@pytest.fixture
def client(server):
    """OpenAI's client, without attempts after the first."""
    with OpenAI(base_url=f"http://{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def ask(client, model, text, **how):
    return client.chat.completions.create(model=model, messages=[{"role": "user", "content": text}], **how)


BOTH = pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])


@BOTH
@pytest.mark.parametrize(("limit", "text"), [(10, "three two one"), (2, "three two")])
def test_chat_is_answered_whole_and_streamed(client, model, limit, text):
    assert ask(client, model, "one two three", max_tokens=limit).choices[0].message.content == text
    chunks = list(ask(client, model, "one two three", max_tokens=limit, stream=True))
    pieces = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]
    assert ("".join(pieces), len(pieces)) == (text, len(text.split()))


@BOTH
def test_parameters_reach_the_engine(client, model):
    answer = ask(client, model, "parameters", temperature=0.5, seed=7, max_tokens=5, n=2)
    assert [choice.message.content for choice in answer.choices] == ["0.5 7", "0.5 8"]


@BOTH
def test_stop_texts_end_the_answer(client, model):
    assert ask(client, model, "one two three", max_tokens=9, stop=["two", "x"]).choices[0].message.content == "three "


@BOTH
@pytest.mark.parametrize("stream", [False, True])
def test_error_of_the_engine_is_the_answer(client, model, stream):
    with pytest.raises(openai.APIError, match="the engine is broken"):
        list(ask(client, model, "fail", max_tokens=5, stream=stream))
    assert ask(client, model, "one", max_tokens=5).choices[0].message.content == "one"


@BOTH
def test_texts_are_completed_and_generated(client, server, model):
    assert client.completions.create(model=model, prompt="a b", max_tokens=5).choices[0].text == "b a"
    body = json.dumps({"text_input": "a b", "max_tokens": 5, "stream": True})
    answer = request(server, "POST", f"/v2/models/{model}/generate_stream", body)
    events = [json.loads(line.removeprefix("data: ")) for line in answer.body.decode().split("\n") if line]
    assert "".join(event["text_output"] for event in events) == "b a"


def test_inner_models_are_not_listed(client):
    assert sorted(model.id for model in client.models.list()) == ["ensemble", "tensorrt_llm_bls"]

"""Traffic to language models: requests of random forms and lengths, of which some are wrong and some clients leave.

The answers are compared with those that the model gave alone, at temperature 0.
"""

import json
import random
import re
import socket
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPConnection

import grpc
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc import service_pb2_grpc as service

from http_requests import Answer

LIMIT_S = 300
# Two tokens that are nearly as likely as each other change places with the size of a batch.
CLEAR = 0.05
LONGEST = 48


@dataclass(frozen=True)
class Case:
    """What a model writes alone after a prompt, in this many tokens at most."""

    prompt: str
    length: int
    text: str
    finish: str
    prompt_tokens: int


def post(server, path, body, headers=None):
    """The answer to a body, which may take long: bytes, text, or what to write as JSON."""
    connection = HTTPConnection("127.0.0.1", server.port, timeout=LIMIT_S)
    try:
        connection.request("POST", path, body if isinstance(body, (bytes, str)) else json.dumps(body), headers or {})
        response = connection.getresponse()
        return Answer(response.status, response.headers, response.read())
    finally:
        connection.close()


def events(body):
    """The documents of server-sent events."""
    return [json.loads(line[6:]) for line in body.decode().split("\n") if line.startswith("data: {")]


class Traffic:
    """Random requests to some of a server's models, all of which write the same."""

    def __init__(self, server, models, prompts, seed=1):
        self.server, self.models = server, models
        self.counts: Counter[str] = Counter()
        self.channel = grpc.insecure_channel(server.grpc_url)
        self.stub = service.GRPCInferenceServiceStub(self.channel)
        chosen = random.Random(seed)
        lengths = [chosen.randint(1, LONGEST) for _ in range(4)]
        cases = [self.alone(prompt, length) for prompt in prompts for length in lengths]
        self.cases = [case for case in cases if case]
        assert len(self.cases) > len(cases) / 4

    def alone(self, prompt, length):
        """The case of a prompt; None unless each of its tokens is clearly the likeliest."""
        answer = self.post(self.models[0], "generate", prompt, {"max_tokens": length, "logprobs": 2})
        assert answer.status == 200, answer.body
        found = answer.json
        tokens = [list(token.values()) for token in json.loads(found["logprobs"])]
        if any(first["logprob"] - second["logprob"] < CLEAR for first, second, *_ in tokens):
            return None
        return Case(prompt, length, found["text_output"], found["finish_reason"], found["num_input_tokens"])

    def run(self, numbers, clients=24):
        """Sends the requests of these numbers; the same number is always the same request. Fails with the first wrong answer."""
        with ThreadPoolExecutor(clients) as pool:
            for _ in pool.map(self.one, numbers):
                pass

    def one(self, number):
        chosen = random.Random(number)
        case, model = chosen.choice(self.cases), chosen.choice(self.models)
        kind = chosen.choice(self.KINDS)
        try:
            kind(self, chosen, model, case)
        except Exception as error:
            raise AssertionError(f"request {number} ({kind.__name__} to '{model}'): {case}") from error
        self.counts[kind.__name__] += 1

    @staticmethod
    def body(prompt, sampling, stream=False):
        flags = {f"return_{name}": True for name in ("finish_reason", "num_input_tokens", "num_output_tokens")}
        flags |= {"return_logprobs": "logprobs" in sampling, "exclude_input_in_output": True}
        given = json.dumps({"temperature": 0} | sampling)
        return json.dumps({"text_input": prompt, "stream": stream, "sampling_parameters": given} | flags)

    def post(self, model, operation, prompt, sampling):
        body = self.body(prompt, sampling, stream=operation == "generate_stream")
        return post(self.server, f"/v2/models/{model}/{operation}", body)

    def openai(self, path, **body):
        answer = post(self.server, f"/v1/{path}", {"temperature": 0} | body)
        assert answer.status == 200, answer.body
        return answer

    def whole(self, chosen, model, case):
        answer = self.post(model, "generate", case.prompt, {"max_tokens": case.length})
        assert answer.status == 200, answer.body
        found = answer.json
        assert (found["text_output"], found["finish_reason"]) == (case.text, case.finish)
        assert found["num_input_tokens"] == case.prompt_tokens

    def streamed(self, chosen, model, case):
        parts = events(self.post(model, "generate_stream", case.prompt, {"max_tokens": case.length}).body)
        assert "".join(part["text_output"] for part in parts) == case.text
        assert [part["finish_reason"] for part in parts] == ["None"] * (len(parts) - 1) + [case.finish]
        assert {part["num_input_tokens"] for part in parts} == {case.prompt_tokens}

    def completed(self, chosen, model, case):
        """Several choices and prompts, as OpenAI's clients ask for them."""
        cases = [case, *chosen.sample([other for other in self.cases if other.length == case.length], chosen.randint(0, 2))]
        count = chosen.randint(1, 3)
        prompts = [one.prompt for one in cases]
        found = self.openai("completions", model=model, prompt=prompts, n=count, max_tokens=case.length).json
        texts = [(choice["text"], choice["finish_reason"]) for choice in found["choices"]]
        assert texts == [(one.text, one.finish) for one in cases for _ in range(count)]
        assert found["usage"]["prompt_tokens"] == sum(one.prompt_tokens for one in cases)

    def completed_in_a_stream(self, chosen, model, case):
        how = {"stream_options": {"include_usage": True}, "stream": True}
        body = self.openai("completions", model=model, prompt=case.prompt, max_tokens=case.length, **how).body
        assert body.endswith(b"data: [DONE]\n\n")
        *parts, last = events(body)
        assert "".join(part["choices"][0]["text"] for part in parts) == case.text
        assert parts[-1]["choices"][0]["finish_reason"] == case.finish
        assert last["usage"]["prompt_tokens"] == case.prompt_tokens

    def stopped(self, chosen, model, case):
        """A text that ends at a stop string."""
        start = chosen.randrange(max(1, len(case.text) - 2))
        stop = case.text[start : start + chosen.randint(1, 3)]
        if not stop or "\ufffd" in stop:
            return
        found = self.openai("completions", model=model, prompt=case.prompt, max_tokens=case.length, stop=["\t\t\t", stop]).json
        choice = found["choices"][0]
        assert (choice["text"], choice["finish_reason"]) == (case.text[: case.text.index(stop)], "stop")

    def formed(self, chosen, model, case):
        """An output that has to have a form."""
        forms = {"choice": (["yes", "no"], "yes|no"), "regex": ("[a-c]{2,4}", "[a-c]{2,4}")}
        name, (form, expected) = chosen.choice(list(forms.items()))
        answer = self.post(model, "generate", case.prompt, {"max_tokens": 20, "structured_outputs": {name: form}})
        assert answer.status == 200 and re.fullmatch(expected, answer.json["text_output"]), answer.body

    def wrong(self, chosen, model, case):
        sampling, message = chosen.choice(
            [({"temperature": -1}, "'temperature' is -1"), ({"warmth": 1}, "unknown sampling parameter")]
        )
        answer = self.post(model, "generate", case.prompt, sampling)
        assert answer.status == 400 and message in answer.json["error"], answer

    def left(self, chosen, model, case):
        """A client that disconnects, at once or after some pieces."""
        operation = chosen.choice(["generate", "generate_stream"])
        sampling = {"max_tokens": None, "ignore_eos": True}
        connection = HTTPConnection("127.0.0.1", self.server.port, timeout=LIMIT_S)
        body = self.body(case.prompt, sampling, stream=operation == "generate_stream")
        connection.request("POST", f"/v2/models/{model}/{operation}", body)
        pieces = chosen.randint(0, 5) if operation == "generate_stream" else 0
        if pieces:
            response = connection.getresponse()
            for _ in range(pieces):
                response.readline()
        connection.sock.shutdown(socket.SHUT_RDWR)
        connection.close()

    def message(self, model, prompt, sampling, identifier=""):
        """A request of a gRPC stream."""
        given = messages.ModelInferRequest(model_name=model, id=identifier)
        sampling = json.dumps({"temperature": 0} | sampling).encode()
        tensors = [
            ("text_input", prompt.encode()),
            ("sampling_parameters", sampling),
            ("stream", True),
            ("return_finish_reason", True),
        ]
        for name, value in tensors:
            is_flag = value is True
            given.inputs.add(name=name, datatype="BOOL" if is_flag else "BYTES", shape=[1])
            given.raw_input_contents.append(b"\1" if is_flag else len(value).to_bytes(4, "little") + value)
        return given

    def streamed_over_grpc(self, chosen, model, case):
        """Several requests of one stream, whose answers come in any order."""
        cases = [case, *chosen.sample(self.cases, chosen.randint(0, 3))]
        given = [self.message(model, one.prompt, {"max_tokens": one.length}, str(place)) for place, one in enumerate(cases)]
        texts, ends = [b""] * len(cases), [b""] * len(cases)
        for answer in self.stub.ModelStreamInfer(iter(given), timeout=LIMIT_S):
            assert not answer.error_message, answer.error_message
            place = int(answer.infer_response.id)
            for output, contents in zip(answer.infer_response.outputs, answer.infer_response.raw_output_contents, strict=True):
                if output.name == "text_output":
                    texts[place] += contents[4:]
                if output.name == "finish_reason":
                    ends[place] = contents[4:]
        assert [(text.decode(), end.decode()) for text, end in zip(texts, ends, strict=True)] == [
            (one.text, one.finish) for one in cases
        ]

    def cancelled_over_grpc(self, chosen, model, case):
        call = self.stub.ModelStreamInfer(
            iter([self.message(model, case.prompt, {"max_tokens": None, "ignore_eos": True})]), timeout=LIMIT_S
        )
        for _ in range(chosen.randint(0, 5)):
            assert not next(call).error_message
        call.cancel()

    KINDS = (
        whole,
        streamed,
        completed,
        completed_in_a_stream,
        stopped,
        formed,
        wrong,
        left,
        streamed_over_grpc,
        cancelled_over_grpc,
    )

"""Models in Python that need no weights: of text, with the tensors of Triton's vLLM backend, and of embeddings."""

CONFIG = """
backend: "python"
model_transaction_policy { decoupled: true }
input [
  { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "stream" data_type: TYPE_BOOL dims: [ 1 ] optional: true },
  { name: "sampling_parameters" data_type: TYPE_STRING dims: [ 1 ] optional: true },
  { name: "exclude_input_in_output" data_type: TYPE_BOOL dims: [ 1 ] optional: true },
  { name: "return_finish_reason" data_type: TYPE_BOOL dims: [ 1 ] optional: true },
  { name: "return_num_input_tokens" data_type: TYPE_BOOL dims: [ 1 ] optional: true },
  { name: "return_num_output_tokens" data_type: TYPE_BOOL dims: [ 1 ] optional: true }
]
output [
  { name: "text_output" data_type: TYPE_STRING dims: [ -1 ] },
  { name: "finish_reason" data_type: TYPE_STRING dims: [ -1 ] },
  { name: "num_input_tokens" data_type: TYPE_UINT32 dims: [ 1 ] },
  { name: "num_output_tokens" data_type: TYPE_UINT32 dims: [ -1 ] }
]
instance_group [{ kind: KIND_CPU }]
"""

# Each request has a thread of its own, as vLLM's engine executes many at once. A token is a word.
MODEL = '''
import json
import threading
import time

import numpy
import triton_python_backend_utils as pb_utils


def texts(name, *values):
    return pb_utils.Tensor(name, numpy.array([value.encode() for value in values], dtype=numpy.object_))


def count(name, value):
    return pb_utils.Tensor(name, numpy.array([value], dtype=numpy.uint32))


def given(request, name, default):
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return default if tensor is None else tensor.as_numpy().reshape(-1)[0]


class TritonPythonModel:
    """Answers `count N` with the numbers from 1 to N, `say X` with X, `endless` with ticks until it is cancelled, `started?` and
    `cancelled?` with the numbers of such requests, `parameters` with the sampling parameters, `fail` with an error, the
    result of a tool with what it is, other prompts with themselves."""

    def initialize(self, args):
        self.started = self.cancelled = 0
        self.threads = []

    def execute(self, requests):
        for request in requests:
            thread = threading.Thread(target=self.answer, args=(request,))
            thread.start()
            self.threads.append(thread)
        return None

    def words(self, request, prompt, parameters):
        command, _, rest = prompt.partition(" ")
        if command == "count":
            return [f"{number} " for number in range(1, int(rest) + 1)]
        if command == "say":
            return [rest[at : at + 3] for at in range(0, len(rest), 3)]
        if command == "started?":
            return [str(self.started)]
        if command == "cancelled?":
            return [str(self.cancelled)]
        if command == "parameters":
            return [json.dumps(parameters)]
        return [word + " " for word in prompt.split()]

    def answer(self, request):
        sender = request.get_response_sender()
        prompt = given(request, "text_input", b"").decode()
        parameters = json.loads(given(request, "sampling_parameters", b"{}"))
        stream = bool(given(request, "stream", False))
        # Of a conversation, the last message counts.
        *_, last = prompt.removesuffix("<assistant>").split("<user>")
        command = last.strip()
        _, is_called, result = command.rpartition("<tool> ")
        if is_called:
            command = f"say The tool says: {result}"
        if command == "fail":
            error = pb_utils.TritonError("the model is broken")
            sender.send(pb_utils.InferenceResponse(error=error), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            return
        if command == "endless":
            self.started += 1
            while not request.is_cancelled():
                self.send(sender, prompt, "tick ", 1, None)
                time.sleep(0.005)
            self.cancelled += 1
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            return
        words = self.words(request, command, parameters)
        reason = "length" if len(words) > parameters["max_tokens"] else "stop"
        words = words[: parameters["max_tokens"]]
        if stream:
            for word in words[:-1]:
                self.send(sender, prompt, word, 1, None)
            self.send(sender, prompt, words[-1], 1, reason)
        else:
            self.send(sender, prompt, "".join(words), len(words), reason)
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def send(self, sender, prompt, text, tokens, reason):
        outputs = [
            texts("text_output", text),
            texts("finish_reason", str(reason)),
            count("num_input_tokens", len(prompt.split())),
            count("num_output_tokens", tokens),
        ]
        sender.send(pb_utils.InferenceResponse(outputs))

    def finalize(self):
        for thread in self.threads:
            thread.join()
'''

EMBEDDING_CONFIG = """
backend: "python"
max_batch_size: 4
input [ { name: "text" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "embedding" data_type: TYPE_FP32 dims: [ 3 ] } ]
instance_group [{ kind: KIND_CPU }]
"""

EMBEDDING_MODEL = '''
import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """The vector of a text: its length, its first byte, and one half."""

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        texts = pb_utils.get_input_tensor_by_name(request, "text").as_numpy().reshape(-1)
        vectors = numpy.array([[len(text), text[0], 0.5] for text in texts], dtype=numpy.float32)
        return pb_utils.InferenceResponse([pb_utils.Tensor("embedding", vectors)])
'''

TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}\n{% endif %}"
    "{% for message in messages %}<{{ message.role }}> {{ message.content }}\n{% endfor %}<assistant>"
)


def write(repository, name, more="", template=TEMPLATE):
    """Writes the model into a repository: `more` is added to its configuration; `template` None leaves out the chat template."""
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(CONFIG + more)
    (folder / "1" / "model.py").write_text(MODEL)
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)


def write_embedding(repository, name):
    """Writes a model of embeddings into a repository."""
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(EMBEDDING_CONFIG)
    (folder / "1" / "model.py").write_text(EMBEDDING_MODEL)

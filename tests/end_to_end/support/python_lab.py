"""A Python model that runs the code which a request carries, and reports what came of it."""

import json
import sys
from pathlib import Path

import numpy
from tritonclient.http import InferInput
from tritonclient.utils import np_to_triton_dtype

# The models' interpreter is the tests' own: it has the packages that the code imports.
FLAGS = [f"--backend-config=python,python={sys.executable}"]

_PREAMBLE = '''
import asyncio
import json
import os
import sys
import threading

import numpy
import triton_python_backend_utils as pb_utils


def tensor(name, values, dtype):
    return pb_utils.Tensor(name, numpy.array(values, dtype=dtype))


def texts(name, *values):
    return pb_utils.Tensor(name, numpy.array([value.encode() for value in values], dtype=numpy.object_))


def get(request, name):
    return pb_utils.get_input_tensor_by_name(request, name)


def ask(model, inputs, outputs, **more):
    return pb_utils.InferenceRequest(model_name=model, inputs=inputs, requested_output_names=outputs, **more)


def code_of(request):
    return get(request, "CODE").as_numpy().reshape(-1)[0].decode()


def outcome(function):
    """What a call returns, or the type and the text of what it raises."""
    try:
        return function()
    except BaseException as error:
        return type(error).__name__ + ": " + str(error)
'''

LAB = (
    _PREAMBLE
    + """

class TritonPythonModel:
    def initialize(self, args):
        self.args = args
        self.kept = {"early": outcome(lambda: ask("identity", [], ["OUTPUT0"]).exec())}

    def execute(self, requests):
        responses = []
        for request in requests:
            scope = dict(globals(), request=request, args=self.args, kept=self.kept, result=None, outputs=[])
            exec(code_of(request), scope)
            result = texts("RESULT", json.dumps(scope["result"]))
            responses.append(pb_utils.InferenceResponse([result, *scope["outputs"]]))
        return responses
"""
)

ASYNC_LAB = (
    _PREAMBLE
    + """

class TritonPythonModel:
    async def run(self, request):
        scope = dict(globals(), request=request)
        body = "".join("    " + line + "\\n" for line in code_of(request).splitlines())
        exec("async def body():\\n" + body, scope)
        return pb_utils.InferenceResponse([texts("RESULT", json.dumps(await scope["body"]()))])

    async def execute(self, requests):
        return list(await asyncio.gather(*[self.run(request) for request in requests]))
"""
)

STREAM_LAB = (
    _PREAMBLE
    + """

class TritonPythonModel:
    def initialize(self, args):
        self.kept = {}

    def execute(self, requests):
        for request in requests:
            scope = dict(globals(), request=request, sender=request.get_response_sender(), kept=self.kept)
            exec(code_of(request), scope)
        return None
"""
)

ASYNC_STREAM_LAB = (
    _PREAMBLE
    + """

class TritonPythonModel:
    def initialize(self, args):
        self.kept = {"ready": True}

    def is_ready(self):
        ready = self.kept["ready"]
        if ready == "raise":
            raise RuntimeError("not now")
        return ready

    async def execute(self, requests):
        for request in requests:
            scope = dict(globals(), request=request, sender=request.get_response_sender(), kept=self.kept)
            body = "".join("    " + line + "\\n" for line in code_of(request).splitlines())
            exec("async def body():\\n" + body, scope)
            await scope["body"]()
"""
)

_TENSORS = """
input { name: "CODE" data_type: TYPE_STRING dims: 1 }
input { name: "F" data_type: TYPE_FP32 dims: -1 optional: true }
input { name: "B" data_type: TYPE_BF16 dims: -1 optional: true }
input { name: "S" data_type: TYPE_STRING dims: [ -1, -1 ] optional: true }
output { name: "RESULT" data_type: TYPE_STRING dims: 1 }
output { name: "OF" data_type: TYPE_FP32 dims: -1 }
output { name: "OB" data_type: TYPE_BF16 dims: -1 }
output { name: "OS" data_type: TYPE_STRING dims: [ -1, -1 ] }
"""


def write(repository, name, code=LAB, extra=""):
    """Writes a lab into a repository."""
    folder = Path(repository) / name / "1"
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(code)
    (folder.parent / "config.pbtxt").write_text(f'backend: "python" {extra} {_TENSORS}')


def inputs(code, **arrays):
    """The inputs of a request that has a lab run the code; `arrays` are further inputs."""
    tensors = []
    for name, array in {"CODE": numpy.array([code.encode()], dtype=object), **arrays}.items():
        tensor = InferInput(name, array.shape, np_to_triton_dtype(array.dtype))
        tensors.append(tensor.set_data_from_numpy(array))
    return tensors


def run(client, code, model="lab", **arrays):
    """Has a lab run the code; returns what it left in `result`."""
    return result(client.infer(model, inputs(code, **arrays)))


def result(answer):
    """What the code left in `result`."""
    return json.loads(answer.as_numpy("RESULT")[0])

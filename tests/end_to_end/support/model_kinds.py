"""Models of many kinds whose answers name the model, the version and the edition of its files that gave them.

Each multiplies its input by a whole number that encodes its own number and the edition. All calculate exactly, forests to a few
millionths. Knows how each kind is written and asked, and nothing of what is done with the models.
"""

import json
import re
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper

import native_backends
import onnx_engines
import openvino_models
import silero_package
import tensorflow_models
import tensorflow_package
import torch_package
from model_files import OnnxModel, config
from places import ROOT
from tensorflow_models import constant, node, placeholder, type_of

# Of a factor: the model's number is below.
EDITION = 1000
# The width of a row.
ROW = 16
MIB = 1 << 20
_FORESTS = ROOT / "crates/engines/forest/tests/models"
_TORCH = Path(__file__).with_name("scaling_torch_models.py")

PYTHON = """
import os
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        folder = os.path.join(args["model_repository"], args["model_version"])
        with open(os.path.join(folder, "factor")) as file:
            self.factor = float(file.read())
        self.held = bytes([1]) * int({size})

    def execute(self, requests):
        arrays = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", array * self.factor)]) for array in arrays]
"""


def factor(number, edition):
    """By what an edition of a model multiplies."""
    return EDITION * edition + number


@dataclass
class Question:
    """What a model is sent, and how its answer is read."""

    #: Arrays by the names of inputs.
    inputs: dict
    output: str
    parameters: dict = field(default_factory=dict)


class Kind:
    """A kind of models. `size` is about what the files of one take."""

    #: Whether each version of a model runs in a process of its own.
    has_process = False
    backend = ""

    def config(self, name, extra):
        """The configuration, or None where the server completes it all."""
        return config(name, self.backend, [("X", "FP32", [ROW])], [("Y", "FP32", [ROW])], 8, extra)

    def write(self, folder, number, edition, size):
        """Writes the folder of a version."""
        raise NotImplementedError

    def question(self, random):
        values = random.integers(1, 9, (int(random.integers(1, 4)), ROW)).astype(np.float32)
        return Question({"X": values}, "Y")

    def factor(self, question, output):
        """The factor of an answer; None if it is not the input times a whole number."""
        (values,) = question.inputs.values()
        if output.shape != values.shape:
            return None
        found = output[0, 0] / values[0, 0]
        return int(found) if found == int(found) and np.array_equal(output, values * found) else None


def weights(number, edition, size):
    """Two matrices whose product is the unit matrix times the factor; together they have that many bytes."""
    width = max(ROW, size // (8 * ROW))
    one = np.random.default_rng(number).normal(size=(ROW, width)).astype(np.float32)
    one[:, :ROW] = np.eye(ROW)
    other = np.zeros((width, ROW), np.float32)
    other[:ROW] = np.eye(ROW) * factor(number, edition)
    return one, other


class Onnx(Kind):
    """On the engine that the server has for ONNX."""

    backend = "onnxruntime"

    def write(self, folder, number, edition, size):
        one, other = weights(number, edition, size)
        nodes = [helper.make_node("MatMul", ["X", "A"], ["H"]), helper.make_node("MatMul", ["H", "B"], ["Y"])]
        inputs, outputs = ([(edge, TensorProto.FLOAT, ["N", ROW])] for edge in "XY")
        model = OnnxModel("scaling", nodes, inputs, outputs, {"A": one, "B": other})
        folder.mkdir(parents=True)
        (folder / "model.onnx").write_bytes(model.serialized())


class OpenVino(Kind):
    backend = "openvino"

    def config(self, name, extra):
        # Processors that have BF16 would round otherwise.
        return super().config(name, extra + openvino_models.parameter("HINT_BF16", "NO"))

    def write(self, folder, number, edition, size):
        one, other = weights(number, edition, size)
        ops = openvino_models.ops

        def compute(x):
            return {"Y": ops.matmul(ops.matmul(x, one, False, False), other, False, False)}

        network = openvino_models.network("scaling", [("X", "FP32", [-1, ROW])], compute)
        folder.mkdir(parents=True)
        openvino_models.openvino.save_model(network, folder / "model.xml", compress_to_fp16=False)


class TensorFlow(Kind):
    def config(self, name, extra):
        return f'platform: "tensorflow_savedmodel"\nmax_batch_size: 8\n{extra}'

    def write(self, folder, number, edition, size):
        one, other = weights(number, edition, size)
        kind = type_of("FP32")
        graph = tensorflow_models.graph(
            placeholder("x", "FP32", [-1, ROW]),
            constant("a", "FP32", one),
            constant("b", "FP32", other),
            node("h", "MatMul", ["x", "a"], T=kind),
            node("y", "MatMul", ["h", "b"], T=kind),
        )
        (folder / "model.savedmodel").mkdir(parents=True)
        saved = tensorflow_models.saved_model(graph, (-1, ROW), [("X", "x:0")], [("Y", "y:0")])
        (folder / "model.savedmodel" / "saved_model.pb").write_bytes(saved)


class Torch(Kind):
    """TorchScript, which PyTorch's own Python writes: see `write_torch`."""

    backend = "pytorch"

    def write(self, folder, number, edition, size):
        write_torch([(folder, number, edition, size)])


def write_torch(versions):
    """Writes versions, each `(folder, number, edition, size)`, in one run of PyTorch."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump([(str(folder), factor(number, edition), ROW, size) for folder, number, edition, size in versions], file)
        file.flush()
        torch_package.run(_TORCH, file.name)


class Python(Kind):
    backend = "python"
    has_process = True

    def write(self, folder, number, edition, size):
        folder.mkdir(parents=True)
        (folder / "factor").write_text(str(factor(number, edition)))
        (folder / "model.py").write_text(PYTHON.format(size=size))


class Forest(Kind):
    """A forest of LightGBM; an edition has other values in the leaves."""

    def __init__(self):
        cases = json.loads((_FORESTS / "cases.json").read_text())
        case = next(case for case in cases if case["name"] == "lgb_regression")
        self._text = (_FORESTS / case["file"]).read_text()
        rows = [(row, expected) for row, expected in zip(case["rows"], case["expected"]) if None not in row]
        self._rows, self._expected = (np.array(values, np.float32) for values in zip(*rows))

    def config(self, name, extra):
        return f'backend: "fil"\nmax_batch_size: 64\n{extra}'

    def write(self, folder, number, edition, size):
        by = factor(number, edition)

        def scaled(line):
            return "leaf_value=" + " ".join(repr(float(value) * by) for value in line[1].split())

        folder.mkdir(parents=True)
        (folder / "lightgbm.txt").write_text(re.sub(r"^leaf_value=(.*)$", scaled, self._text, flags=re.MULTILINE))

    def question(self, random):
        return Question({"input__0": self._rows[random.integers(0, len(self._rows), int(random.integers(1, 4)))]}, "output__0")

    def factor(self, question, output):
        asked = question.inputs["input__0"]
        places = [int(np.flatnonzero((self._rows == row).all(1))[0]) for row in asked]
        expected = self._expected[places]
        if output.shape != expected.shape:
            return None
        found = round(float(output[0, 0] / expected[0, 0]))
        return found if np.allclose(output, expected * found, rtol=1e-5) else None


class Rust(Kind):
    """The backend `trial`, through Triton's C interface. It says which version of which model it is."""

    def config(self, name, extra):
        return f'backend: "trial"\n{extra}'

    def write(self, folder, number, edition, size):
        folder.mkdir(parents=True)

    def question(self, random):
        return Question({"IN": random.integers(0, 9, 3).astype(np.int32)}, "OUT", {"do": "facts"})

    def factor(self, question, output):
        found = re.match(rb"model \D*(\d+) version (\d+) in", output[0])
        return found and factor(int(found[1]), int(found[2]))


class C(Kind):
    """The backend `echo`, through Triton's C interface. Its answers say which version gave them as all answers do."""

    def config(self, name, extra):
        return config(name, "echo", [("INPUT0", "INT32", [-1])], [("OUTPUT0", "INT32", [-1])], 0, extra)

    def write(self, folder, number, edition, size):
        folder.mkdir(parents=True)

    def question(self, random):
        return Question({"INPUT0": random.integers(0, 99, 5).astype(np.int32)}, "OUTPUT0")

    def factor(self, question, output):
        return 0 if np.array_equal(output, question.inputs["INPUT0"]) else None


class Ensemble(Kind):
    """Two models in a row. Their numbers are `members` by the ensemble's number."""

    def __init__(self):
        self.members = {}

    def config(self, name, extra):
        raise NotImplementedError

    def config_of(self, name, one, other):
        """The configuration of two members, by their names."""
        head = config(name, "", [("X", "FP32", [ROW])], [("Y", "FP32", [ROW])], 8)
        head = head.replace('backend: ""', 'platform: "ensemble"').replace("instance_group { count: 1 kind: KIND_CPU }", "")
        steps = [(one, "X", "between"), (other, "between", "Y")]
        lines = (
            f'step {{ model_name: "{member}" model_version: -1 input_map {{ key: "X" value: "{source}" }} '
            f'output_map {{ key: "Y" value: "{target}" }} }}'
            for member, source, target in steps
        )
        return f"{head}ensemble_scheduling {{ {' '.join(lines)} }}\n"

    def write(self, folder, number, edition, size):
        folder.mkdir(parents=True)


def prepare(backends):
    """Fetches and compiles what the kinds need, with backends in that folder. Returns the flags and the variables of a server."""
    torch_package.fetched()
    tensorflow_package.fetched()
    silero_package.torchscript()
    native_backends.compile_c(backends, "echo", "-O2")
    native_backends.copy_rust(backends, "trial")
    flags = [*openvino_models.FLAGS, *tensorflow_package.FLAGS, f"--backend-directory={backends}"]
    flags += [
        f"--backend-config=python,python={sys.executable}",
        f"--backend-config=pytorch,library={torch_package.LIBRARY_FOLDER}",
    ]
    return flags, torch_package.environment()


ENGINES = onnx_engines.FLAGS

"""ONNX's own conformance cases of single operators: their models as a repository, and their answers compared.

The package `onnx` has the cases. Knows nothing of how the results are recorded.
"""

import warnings
from copy import deepcopy
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path

import numpy as np
import onnx
import tritonclient.http
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test.case.test_case import TestCase
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

import nereid_server
from model_files import write_model

RECURRENT = {"GRU", "LSTM", "RNN"}
# Without batching; inputs and outputs are completed from the file.
CONFIG = 'name: "{}"\nbackend: "onnxruntime"\nmax_batch_size: 0\ninstance_group {{ kind: KIND_CPU }}\n'
CASES_OF_A_SERVER = 500
PASSED, REFUSED, WRONG = "passed", "refused", "wrong"


@dataclass
class Result:
    """What became of a case: the model's operators, passed, refused or wrong, and why."""

    name: str
    operators: frozenset
    outcome: str
    why: str = ""


def collect():
    """All cases."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases
        from onnx.backend.test.loader import load_model_tests

        cases = collect_testcases(None)
    for kind in ("simple", "pytorch-converted", "pytorch-operator"):
        cases += map(_read, load_model_tests(kind=kind))
    return [*cases, *filter(None, map(_with_constants, cases)), *_casts()]


def _casts():
    """A cast between each two types of numbers, of values that both have."""
    numbers = ["bool", "float16", "float32", "float64"] + [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
    values = np.array([0, 1, 2, 100])
    for source, target in product(numbers, numbers):
        given, expected = values.astype(source), values.astype(source).astype(target)
        kinds = [helper.np_dtype_to_tensor_dtype(array.dtype) for array in (given, expected)]
        ports = [helper.make_tensor_value_info(name, kind, [4]) for name, kind in zip(("X", "Y"), kinds)]
        node = helper.make_node("Cast", ["X"], ["Y"], to=kinds[1])
        graph = helper.make_graph([node], "cast", ports[:1], ports[1:])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        name = f"own_cast_{source}_to_{target}"
        yield TestCase(name, name, None, None, model, [([given], [expected])], "own", 1e-3, 1e-7)


def _read(case):
    """A case that comes as files."""
    folder = Path(case.model_dir)
    case.model = onnx.load(folder / "model.onnx")
    case.data_sets = []
    for data in sorted(folder.glob("test_data_set_*")):
        read = [sorted(data.glob(f"{role}_*.pb"), key=_number) for role in ("input", "output")]
        case.data_sets.append(tuple([onnx.load_tensor(path) for path in paths] for paths in read))
    return case


def _number(path):
    return int(path.stem.rpartition("_")[2])


def _with_constants(case):
    """A variant of a case whose inputs are constants of the model, all but the first; none for a case with one input
    or one that is another case in other operators.
    That is how exporters write axes, shapes and weights."""
    inputs, _ = case.data_sets[0]
    ports = case.model.graph.input
    if case.name.endswith("_expanded") or case.model.graph.initializer or len(ports) < 2 or not all(map(_is_tensor, inputs)):
        return None
    variant = deepcopy(case)
    graph = variant.model.graph
    graph.initializer.extend(
        value if isinstance(value, TensorProto) else numpy_helper.from_array(np.asarray(value), port.name)
        for port, value in list(zip(ports, inputs, strict=True))[1:]
    )
    for initializer, port in zip(graph.initializer, ports[1:], strict=True):
        initializer.name = port.name
    del graph.input[1:]
    variant.name += "_with_constants"
    variant.data_sets = [(inputs[:1], case.data_sets[0][1])]
    return variant


def _is_tensor(value):
    return isinstance(value, (np.ndarray, np.generic, int, float, TensorProto))


def operators(model):
    """The operators of a model and of the bodies in it, as `Op` or `domain.Op`."""

    def of(graph):
        for node in graph.node:
            yield f"{node.domain}.{node.op_type}" if node.domain else node.op_type
            for attribute in node.attribute:
                yield from of(attribute.g)
                for body in attribute.graphs:
                    yield from of(body)

    return frozenset(of(model.graph))


def run(folder, cases, flags):
    """The result of each case on servers with these flags, which load what they can of them."""
    results = []
    for number, some in enumerate(batched(cases, CASES_OF_A_SERVER)):
        repository = Path(folder) / f"cases_{number}"
        for case in some:
            write_model(repository, case.name, CONFIG.format(case.name), case.model.SerializeToString())
        with nereid_server.running(repository, *flags, "--exit-on-error=false", ready=False) as server:
            with tritonclient.http.InferenceServerClient(server.url) as client:
                states = {model["name"]: model for model in client.get_model_repository_index()}
                results += [_run_case(client, states[case.name], case) for case in some]
    return results


def batched(items, size):
    """The items in lists of at most that size."""
    items = iter(items)
    while some := list(islice(items, size)):
        yield some


def _run_case(client, state, case):
    def result(outcome, why=""):
        return Result(case.name, operators(case.model), outcome, why)

    if state.get("state") != "READY":
        return result(REFUSED, state.get("reason", ""))
    names = [port.name for port in case.model.graph.output]
    for inputs, expected in case.data_sets:
        try:
            answer = client.infer(case.name, list(_inputs(case.model, inputs)))
        except InferenceServerException as error:
            return result(REFUSED, str(error))
        for name, values in zip(names, expected, strict=True):
            # The engines approximate the functions within a recurrent operator, whose state is near one.
            atol = max(case.atol, 2e-6) if RECURRENT & operators(case.model) else case.atol
            why = _difference(answer.as_numpy(name), _array(values), case.rtol, atol)
            if why:
                return result(WRONG, f"{name}: {why}")
    return result(PASSED)


def _inputs(model, values):
    free = [port.name for port in model.graph.input]
    constants = {tensor.name for tensor in model.graph.initializer}
    for name, value in zip(free, values, strict=False):
        if name not in constants:
            value = _array(value)
            # The protocol has no tensors without dimensions: a scalar is a vector of one element.
            shape = list(value.shape) or [1]
            result = tritonclient.http.InferInput(name, shape, np_to_triton_dtype(value.dtype))
            yield result.set_data_from_numpy(value.reshape(shape))


def _array(value):
    """A tensor of a case, which may be a serialised one."""
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else np.asarray(value)


def _difference(got, expected, rtol, atol):
    """How a tensor differs from the expected one; empty if it does not."""
    if got is None:
        return "missing"
    if got.shape != (expected.shape or (1,)):
        return f"shape {list(got.shape)} instead of {list(expected.shape)}"
    expected = expected.reshape(got.shape)
    if expected.dtype.kind in "OUS":
        texts = [text if isinstance(text, str) else text.decode() for text in got.ravel()]
        return "" if texts == [str(text) for text in expected.ravel()] else "other strings"
    if got.dtype != expected.dtype:
        return f"{got.dtype} instead of {expected.dtype}"
    if expected.dtype.kind not in "fc":
        return "" if np.array_equal(got, expected) else "other values"
    got, exact = got.astype(np.float64), expected.astype(np.float64)
    # A sum is rounded relative to the largest of what is added, and so may be an element near zero.
    largest = np.max(np.abs(exact), initial=0, where=np.isfinite(exact))
    rounding = 4 * np.finfo(expected.dtype).eps * largest
    return "" if np.allclose(got, exact, rtol, max(atol, rounding), equal_nan=True) else "other values"

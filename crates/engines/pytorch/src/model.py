"""Runs a TorchScript model, or a package of AOTInductor, with PyTorch's own Python, where the server has no shim to run it on
libtorch. Names of tensors and parameters of the configuration mean the same as there (`naming.rs`, `options.rs`).
"""

import json
import os

import numpy as np
import torch
import torch_naming
import triton_python_backend_utils as pb_utils
from torch.utils.dlpack import from_dlpack

_TYPES = {
    "TYPE_BOOL": torch.bool,
    "TYPE_UINT8": torch.uint8,
    "TYPE_INT8": torch.int8,
    "TYPE_INT16": torch.int16,
    "TYPE_INT32": torch.int32,
    "TYPE_INT64": torch.int64,
    "TYPE_FP16": torch.float16,
    "TYPE_BF16": torch.bfloat16,
    "TYPE_FP32": torch.float32,
    "TYPE_FP64": torch.float64,
}
_NUMBERS = ("IntType", "FloatType", "BoolType", "NumberType")


def _refuse(message):
    raise pb_utils.TritonModelException(message)


def _plain(kind):
    return kind.getElementType() if kind.kind() == "OptionalType" else kind


def _takes(kind):
    """What an argument takes, in the words of `torch_naming`."""
    kind = _plain(kind)
    name = kind.kind()
    if name == "ListType":
        return "texts" if kind.getElementType().kind() == "StringType" else "unknown"
    words = {"TensorType": "tensor", "DictType": "tensors", "StringType": "texts"} | dict.fromkeys(_NUMBERS, "number")
    return words.get(name, "unknown")


class _Parameters:
    """The parameters of a configuration."""

    def __init__(self, config):
        self._values = {key: value["string_value"].strip() for key, value in config.get("parameters", {}).items()}

    def flag(self, key, default):
        value = self._values.get(key)
        if value is None:
            return default
        if value.lower() not in ("true", "1", "false", "0"):
            _refuse("parameter '%s' is '%s', expected true or false" % (key, value))
        return value.lower() in ("true", "1")

    def threads(self, key):
        value = self._values.get(key, "0")
        if not (value.isascii() and value.isdigit()):
            _refuse("parameter '%s' is '%s', expected a non-negative integer" % (key, value))
        return int(value)


def _controls(config):
    return config.get("sequence_batching", {}).get("control_input", [])


def _of_control(control):
    """What a configuration would say of an input that the server adds."""
    kinds = [it["data_type"] for it in control["control"] if it.get("data_type", "TYPE_INVALID") != "TYPE_INVALID"]
    is_bool = any(it.get("bool_false_true") for it in control["control"])
    is_integer = any(it.get("int32_false_true") for it in control["control"])
    kind = kinds[0] if kinds else "TYPE_BOOL" if is_bool else "TYPE_INT32" if is_integer else "TYPE_FP32"
    return {"name": control["name"], "data_type": kind}


def _device(args):
    """Where an instance runs; None for wherever the file says."""
    kind = args["model_instance_kind"]
    if kind == "MODEL" and torch.cuda.is_available():
        return None
    if kind != "GPU":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        _refuse("instance '%s' is for a GPU, but PyTorch %s finds none" % (args["model_instance_name"], torch.__version__))
    return torch.device("cuda", int(args["model_instance_device_id"]))


def _load_script(path, device):
    """Reads a TorchScript file. torchvision is imported only for a model that has its operators."""
    try:
        return torch.jit.load(path, map_location=device)
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
    try:
        import torchvision  # noqa: F401
    except ImportError as error:
        _refuse("the model has operators of torchvision, which cannot be imported: %s" % error)
    return torch.jit.load(path, map_location=device)


class _Script:
    """A TorchScript model."""

    names = None

    def __init__(self, path, optimized, device):
        self.device = device or torch.device("cpu")
        self._module = _load_script(path, device).eval()
        self._optimized = optimized
        self._schema = self._module.forward.schema.arguments[1:]
        self.arguments = [(it.name, _takes(it.type), not it.has_default_value()) for it in self._schema]

    def __call__(self, values, places):
        """Its results for values by place, None for an argument that keeps its default; or for a dictionary."""
        with torch.jit.optimized_execution(self._optimized):
            if places is None:
                return self._module(values)
            arguments = {}
            for argument, value in zip(self._schema, values):
                if value is not None:
                    arguments[argument.name] = _argument(value, _plain(argument.type).kind())
            return self._module(**arguments)


class _Package:
    """What AOTInductor compiled."""

    def __init__(self, path, device):
        self.device = torch.device("cpu")
        if device is None or device.type == "cuda":
            # The file says for which kind of device it was compiled.
            with torch.cuda.device(device or 0):
                self._loader = torch._inductor.aoti_load_package(path).loader
                if self._loader.get_metadata().get("AOTI_DEVICE_KEY") != "cpu":
                    self.device = torch.device("cuda", torch.cuda.current_device())
        else:
            self._loader = torch._inductor.aoti_load_package(path).loader
        names, self.names = torch_naming.call_spec(*self._loader.get_call_spec())
        self.arguments = [(name, "tensor", True) for name in names]

    def __call__(self, values, _places):
        return tuple(self._loader.run(values))


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        parameters = _Parameters(config)
        instances = sum(max(1, group.get("count", 1)) for group in config.get("instance_group", [])) or 1
        shared = max(1, len(os.sched_getaffinity(0)) // instances)
        torch.set_num_threads(parameters.threads("INTRA_OP_THREAD_COUNT") or shared)
        if parameters.threads("INTER_OP_THREAD_COUNT"):
            torch.set_num_interop_threads(parameters.threads("INTER_OP_THREAD_COUNT"))
        self._guard = torch.inference_mode if parameters.flag("INFERENCE_MODE", True) else torch.no_grad
        optimized = not parameters.flag("DISABLE_OPTIMIZED_EXECUTION", False)
        is_package = config.get("platform") == "torch_aoti"
        filename = config.get("default_model_filename") or ("model.pt2" if is_package else "model.pt")
        path = os.path.join(args["model_repository"], args["model_version"], filename)
        device = _device(args)
        self._module = _Package(path, device) if is_package else _Script(path, optimized, device)
        self._batching = config.get("max_batch_size", 0) > 0
        states = config.get("sequence_batching", {}).get("state", [])
        self._inputs = config.get("input", []) + list(map(_of_control, _controls(config)))
        self._inputs += [{"name": it["input_name"], "data_type": it["data_type"]} for it in states]
        self._kinds = {it["name"]: it["data_type"] for it in self._inputs}
        self._outputs = config.get("output", [])
        names = [it["name"] for it in self._outputs]
        kept = [it for it in states if it["output_name"] not in names]
        self._outputs = self._outputs + [{"name": it["output_name"], "data_type": it["data_type"]} for it in kept]
        # The server reads the states of a sequence from the responses.
        self._states = {it["output_name"] for it in states}
        given = [(it["name"], it["data_type"] == "TYPE_STRING") for it in self._inputs]
        try:
            self._places = torch_naming.call(given, self._module.arguments)
            self._results = torch_naming.results([it["name"] for it in self._outputs], self._module.names)
        except torch_naming.Misfit as error:
            _refuse(str(error))

    def execute(self, requests):
        responses = [None] * len(requests)
        for members in self._groups(requests):
            try:
                answers = self._run([requests[member] for member in members])
            except Exception as error:
                failure = pb_utils.TritonError("PyTorch failed: " + " ".join(str(error).split()))
                answers = [pb_utils.InferenceResponse(error=failure)] * len(members)
            for member, answer in zip(members, answers):
                responses[member] = answer
        return responses

    def _groups(self, requests):
        """The requests that go through the model together: their inputs differ in the first dimension only."""
        groups: dict[tuple, list[int]] = {}
        for index, request in enumerate(requests):
            shapes = {tensor.name(): tuple(tensor.shape())[1:] for tensor in request.inputs()}
            has_texts = any(it["data_type"] == "TYPE_STRING" for it in self._inputs)
            alone = index if has_texts or not self._batching else None
            groups.setdefault((alone, tuple(sorted(shapes.items()))), []).append(index)
        return groups.values()

    def _run(self, requests):
        values = [{it.name(): _value(it, self._kinds.get(it.name())) for it in request.inputs()} for request in requests]
        sizes = [next((len(value) for value in given.values()), 1) for given in values] if self._batching else None
        joined = values[0]
        if len(values) > 1:
            joined = {name: torch.cat([given[name] for given in values]) for name in joined}
        joined = {name: value.to(self._module.device) if torch.is_tensor(value) else value for name, value in joined.items()}
        with self._guard():
            results = self._module(self._values(joined), self._places)
            parts = [self._parts(output, place, results, sizes) for output, place in zip(self._outputs, self._results)]
        answers = []
        for index, request in enumerate(requests):
            wanted = self._states.union(request.requested_output_names())
            named = zip(self._outputs, parts)
            tensors = [_tensor(output["name"], part[index]) for output, part in named if output["name"] in wanted]
            answers.append(pb_utils.InferenceResponse(tensors))
        return answers

    def _values(self, given):
        """The values of the arguments in their order, or by name for a dictionary."""
        if self._places is None:
            return given
        names = [None if place is None else self._inputs[place]["name"] for place in self._places]
        return [given.get(name) for name in names]

    def _parts(self, output, place, results, sizes):
        """An output of each request."""
        name = output["name"]
        if isinstance(results, dict):
            found, count = results.get(name), len(results)
        else:
            is_many = isinstance(results, tuple) or (isinstance(results, list) and all(map(torch.is_tensor, results)))
            many = results if is_many else (results,)
            found, count = many[place] if place < len(many) else None, len(many)
        if found is None:
            raise ValueError("the model returned %d results, without output '%s'" % (count, name))
        if isinstance(found, (bool, int, float)):
            found = torch.tensor(found)
        if torch.is_tensor(found):
            kind = next((it for it, dtype in _TYPES.items() if dtype == found.dtype), str(found.dtype))
            if kind != output["data_type"]:
                kinds = kind.removeprefix("TYPE_"), output["data_type"].removeprefix("TYPE_")
                raise ValueError("output '%s' is %s, but %s in the configuration" % (name, *kinds))
            found = found.detach().cpu()
        elif output["data_type"] != "TYPE_STRING":
            raise ValueError("output '%s' is not a tensor" % name)
        if sizes is None or len(sizes) == 1:
            return [found]
        return torch.split(found, sizes)


def _value(tensor, kind):
    """A tensor as torch has it, or strings."""
    if kind == "TYPE_STRING":
        return [element.decode() for element in tensor.as_numpy().reshape(-1)]
    if kind == "TYPE_BOOL":
        array = tensor.as_numpy()
        return torch.tensor(array.reshape(-1).tolist(), dtype=torch.bool).reshape(array.shape)
    # The model may write to it.
    return from_dlpack(tensor.to_dlpack()).clone()


def _argument(value, kind):
    if kind == "StringType":
        if len(value) != 1:
            raise ValueError("a single string is needed, not %d" % len(value))
        return value[0]
    return value.item() if kind in _NUMBERS else value


def _tensor(name, value):
    """A result as the server takes it."""
    if isinstance(value, str):
        value = [value]
    if isinstance(value, list):
        return pb_utils.Tensor(name, np.array([text.encode() for text in value], dtype=np.object_))
    if value.dtype == torch.bool:
        array = np.array(value.reshape(-1).tolist(), dtype=np.bool_)
        return pb_utils.Tensor(name, array.reshape(tuple(value.shape)))
    return pb_utils.Tensor.from_dlpack(name, value.contiguous().clone() if value.is_inference() else value.contiguous())

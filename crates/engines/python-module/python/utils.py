"""triton_python_backend_utils: the interface of models to the server."""

import struct
import sys

import c_python_backend_utils as _native
from c_python_backend_utils import (
    TRITONSERVER_MEMORY_CPU,
    TRITONSERVER_MEMORY_GPU,
    InferenceRequest,
    InferenceResponse,
    InferenceResponseSender,
    InferenceTrace,
    LogLevel,
    MetricKind,
    PreferredMemory,
    Tensor,
    TritonError,
    TritonModelException,
    get_input_tensor_by_name,
)

try:
    import numpy as np
except ModuleNotFoundError as error:
    if error.name != "numpy":
        raise
    hint = "models need numpy, which '%s -m pip install numpy' installs" % sys.executable
    raise ModuleNotFoundError("%s; %s" % (error, hint), name="numpy") from None

TRITON_STRING_TO_NUMPY = {
    "TYPE_BOOL": bool,
    "TYPE_UINT8": np.uint8,
    "TYPE_UINT16": np.uint16,
    "TYPE_UINT32": np.uint32,
    "TYPE_UINT64": np.uint64,
    "TYPE_INT8": np.int8,
    "TYPE_INT16": np.int16,
    "TYPE_INT32": np.int32,
    "TYPE_INT64": np.int64,
    "TYPE_FP16": np.float16,
    "TYPE_FP32": np.float32,
    "TYPE_FP64": np.float64,
    "TYPE_STRING": np.object_,
}

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2
TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
TRITONSERVER_REQUEST_RELEASE_ALL = 1
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE = 2

# Indexed by the C interface's type numbers, which start at 1.
_NUMPY_TYPES = [np.bool_, *list(TRITON_STRING_TO_NUMPY.values())[1:]]


def serialize_byte_tensor(input_tensor):
    """The elements of an array of bytes or text, each after its length (32 bits, little-endian), in C order.

    Returns `()` for an empty array, and None for an array of something else.
    """
    if input_tensor.size == 0:
        return ()
    if input_tensor.dtype != np.object_ and input_tensor.dtype.type != np.bytes_:
        return None
    pieces = []
    for element in input_tensor.flatten().tolist():
        if not isinstance(element, bytes):
            element = str(element).encode("utf-8")
        pieces.append(struct.pack("<I", len(element)))
        pieces.append(element)
    return b"".join(pieces)


def deserialize_bytes_tensor(encoded_tensor):
    """The elements that `serialize_byte_tensor` encoded, as a flat array of bytes objects."""
    encoded = memoryview(encoded_tensor).cast("B")
    elements = []
    place = 0
    while place < len(encoded):
        (length,) = struct.unpack_from("<I", encoded, place)
        place += 4
        elements.append(struct.unpack_from("%ds" % length, encoded, place)[0])
        place += length
    array = np.empty(len(elements), dtype=np.object_)
    array[:] = elements
    return array


def get_output_tensor_by_name(inference_response, name):
    """The output of that name; None if missing."""
    for tensor in inference_response.output_tensors():
        if tensor.name() == name:
            return tensor
    return None


def _by_name(entries, name):
    return next((entry for entry in entries if entry["name"] == name), None)


def get_input_config_by_name(model_config, name):
    """The input's entry in the configuration, a dictionary; None if missing."""
    return _by_name(model_config.get("input", ()), name)


def get_output_config_by_name(model_config, name):
    """The output's entry in the configuration, a dictionary; None if missing."""
    return _by_name(model_config.get("output", ()), name)


def using_decoupled_model_transaction_policy(model_config):
    """Whether the configuration, a dictionary, declares a decoupled model."""
    return model_config.get("model_transaction_policy", {"decoupled": False})["decoupled"]


def triton_to_numpy_type(data_type):
    """numpy's type for the number of a Triton type; None if it has none."""
    return _NUMPY_TYPES[data_type - 1] if 1 <= data_type <= len(_NUMPY_TYPES) else None


def numpy_to_triton_type(data_type):
    """The number of the Triton type for a numpy type; None if it has none."""
    if data_type == np.bytes_:
        return 13
    return next((number for number, known in enumerate(_NUMPY_TYPES, 1) if data_type == known), None)


def triton_string_to_numpy(triton_type_string):
    """numpy's type for a type in a configuration, such as "TYPE_FP32"."""
    return TRITON_STRING_TO_NUMPY[triton_type_string]


_model_dir = None


def get_model_dir():
    """The folder of the model's version."""
    return _model_dir


def load_model(model_name, config="", files=None):
    """Loads or reloads a model, and waits until it is ready.

    `config` is a configuration in JSON to take in place of the model's own. `files` are files to take in place of the model's
    own: bytes, by their paths, each of which begins with "file:".
    """
    if files is None:
        files = {}
    if not isinstance(files, dict):
        raise TritonModelException(
            "failed to load model '%s', files should be a dictionary of file paths and file contents" % model_name
        )
    _native.load(model_name, config, [_file(path, contents) for path, contents in files.items()])


def _file(path, contents):
    if isinstance(path, bytes):
        path = path.decode()
    if not isinstance(path, str):
        raise RuntimeError("load_model(): the paths of files must be str, not %s" % type(path).__name__)
    if not isinstance(contents, bytes):
        raise TypeError("load_model(): the contents of file '%s' must be bytes, not %s" % (path, type(contents).__name__))
    return path, contents


def unload_model(model_name, unload_dependents=False):
    """Unloads a model; with `unload_dependents`, also the models that only it uses."""
    _native.unload(model_name, unload_dependents)


def is_model_ready(model_name, model_version=""):
    """Whether a model, or that version of it, would answer requests."""
    return _native.model_ready(model_name, model_version)


class Logger:
    """The server's log."""

    LogLevel = LogLevel
    INFO = LogLevel.INFO
    WARNING = LogLevel.WARNING
    ERROR = LogLevel.ERROR
    VERBOSE = LogLevel.VERBOSE

    def __new__(cls, *arguments, **named):
        raise TypeError("Logger has no instances: use its static methods")

    @staticmethod
    def log(message, level=LogLevel.INFO):
        _native.log(message, level)

    @staticmethod
    def log_info(message):
        _native.log(message, LogLevel.INFO)

    @staticmethod
    def log_warn(message):
        _native.log(message, LogLevel.WARNING)

    @staticmethod
    def log_error(message):
        _native.log(message, LogLevel.ERROR)

    @staticmethod
    def log_verbose(message):
        _native.log(message, LogLevel.VERBOSE)


class Metric:
    """One metric of a family."""

    def __init__(self, handle, kind):
        self._handle = handle
        self._kind = kind

    def increment(self, value):
        """Adds to a counter or gauge."""
        self._refuse("increment", MetricKind.HISTOGRAM)
        self._handle.increment(value)

    def set(self, value):
        """Sets a gauge."""
        self._refuse("set", MetricKind.COUNTER, MetricKind.HISTOGRAM)
        self._handle.set(value)

    def observe(self, value):
        """Adds an observation to a histogram."""
        self._refuse("observe", MetricKind.COUNTER, MetricKind.GAUGE)
        self._handle.observe(value)

    def value(self):
        """The value of a counter or gauge."""
        self._refuse("value", MetricKind.HISTOGRAM)
        return self._handle.value()

    def _refuse(self, operation, *kinds):
        if self._kind in kinds:
            raise TritonModelException("%s() does not support metrics of kind %s" % (operation, self._kind.name))


def _label(text):
    if isinstance(text, (bytes, bytearray, memoryview)):
        raise TypeError("the names and values of labels must be str, not %s" % type(text).__name__)
    try:
        text.encode()
    except (AttributeError, UnicodeEncodeError):
        raise TritonModelException("the names and values of labels must be str") from None
    return text


class MetricFamily:
    """Metrics of one name and kind, which differ by their labels."""

    COUNTER = MetricKind.COUNTER
    GAUGE = MetricKind.GAUGE
    HISTOGRAM = MetricKind.HISTOGRAM

    def __init__(self, name, description, kind):
        self._handle = _native.new_family(name, description, kind)
        self._kind = kind

    def Metric(self, labels=None, buckets=None):
        """The metric with these labels, a dictionary. A histogram needs the upper bounds of its buckets, a list."""
        labels = {} if labels is None else labels
        if not isinstance(labels, dict):
            raise TritonModelException("labels must be a dictionary, not %s" % type(labels).__name__)
        labels = [(_label("None" if key is None else key), _label(value)) for key, value in labels.items()]
        if self._kind == MetricKind.HISTOGRAM:
            if not isinstance(buckets, list):
                raise TritonModelException("a histogram needs its buckets, a list of numbers")
        elif buckets is not None:
            raise TritonModelException("only histograms have buckets")
        return Metric(self._handle.metric(labels, [float(bound) for bound in buckets or ()]), self._kind)


_COMPLETION = "auto-complete-config function for model"


class ModelConfig:
    """A model's configuration, which `auto_complete_config` completes."""

    def __init__(self, model_config):
        import json

        self._model_config = json.loads(model_config)

    def as_dict(self):
        """The configuration as it is now."""
        return self._model_config

    def set_max_batch_size(self, max_batch_size):
        """Sets the largest batch. ValueError if the configuration has a larger one."""
        configured = self._model_config["max_batch_size"]
        if configured > max_batch_size:
            raise ValueError(
                "configuration specified max_batch_size %s, but in %s '%s' specified max_batch_size %s"
                % (configured, _COMPLETION, self._model_config["name"], max_batch_size)
            )
        self._model_config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self):
        """Enables dynamic batching. ValueError if the configuration has another scheduler."""
        for scheduler in ("sequence_batching", "ensemble_scheduling"):
            if scheduler in self._model_config:
                raise ValueError(
                    "Configuration specified scheduling_choice as '%s', but %s '%s' tries to set scheduling_choice as "
                    "'dynamic_batching'" % (scheduler, _COMPLETION, self._model_config["name"])
                )
        self._model_config.setdefault("dynamic_batching", {})

    def add_input(self, input):
        """Adds an input: a dictionary of name, data_type, dims and, if it may be missing, optional.

        ValueError if something is missing or unknown, or contradicts the configuration.
        """
        self._add("input", input, ("name", "data_type", "dims", "optional"))

    def add_output(self, output):
        """Adds an output: a dictionary of name, data_type and dims. ValueError as for `add_input`."""
        self._add("output", output, ("name", "data_type", "dims"))

    def _add(self, kind, tensor, properties):
        model = self._model_config["name"]
        named = "%s '%s'" % (kind, tensor["name"]) if "name" in tensor else kind
        if any(known not in properties for known in tensor):
            listed = "%s and '%s'" % (", ".join("'%s'" % name for name in properties[:-1]), properties[-1])
            raise ValueError("%s in %s '%s' contains property other than %s." % (named, _COMPLETION, model, listed))
        for needed in ("name", "data_type", "dims"):
            if needed not in tensor:
                raise ValueError("%s in %s '%s' is missing '%s' property." % (named, _COMPLETION, model, needed))
        configured = _by_name(self._model_config[kind], tensor["name"])
        if configured is None:
            self._model_config[kind].append(tensor)
            return
        if configured["data_type"] not in ("TYPE_INVALID", tensor["data_type"]):
            raise ValueError(
                "unable to load model '%s', configuration expects datatype %s for %s, model provides %s"
                % (model, configured["data_type"], named, tensor["data_type"])
            )
        for name in ("dims", "optional"):
            known, given = configured.get(name), tensor.get(name)
            # Empty dimensions are not configured.
            agrees = not known if name == "dims" else known is None or given is None
            if not agrees and known != given:
                raise ValueError(
                    "model '%s', tensor '%s': the model expects %s %s but the model configuration specifies %s %s"
                    % (model, tensor["name"], name, given, name, known)
                )
        configured.update(tensor)

    def set_model_transaction_policy(self, transaction_policy_dict):
        """Sets whether the model is decoupled: {"decoupled": True}. ValueError if the configuration contradicts that."""
        model = self._model_config["name"]
        if any(name != "decoupled" for name in transaction_policy_dict):
            raise ValueError(
                "model transaction property in %s '%s' contains property other than 'decoupled'." % (_COMPLETION, model)
            )
        policy = self._model_config.setdefault("model_transaction_policy", {})
        if "decoupled" in transaction_policy_dict:
            decoupled = transaction_policy_dict["decoupled"]
            if policy.get("decoupled", decoupled) != decoupled:
                raise ValueError(
                    "trying to change decoupled property in auto-complete-config for model '%s', which is already "
                    "set to '%s'." % (model, policy["decoupled"])
                )
            policy["decoupled"] = decoupled

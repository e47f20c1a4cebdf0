"""The cells of the table of `triton_python_backend_utils`: each calls one place of the interface with one kind of argument, and
describes the outcome. `python_api_table.json` in the folder of the tests has the outcomes in NVIDIA's server.

To record them there, serve the repository that `write` makes, and run `python python_api_cells.py HOST:PORT FILE`.
"""

import json
import sys
from pathlib import Path

import numpy
import tritonclient.http

# Expressions for an argument, by the name of their kind.
TEXTS = {
    "str": "'a'",
    "bytes": "b'a'",
    "bytearray": "bytearray(b'a')",
    "memoryview": "memoryview(b'a')",
    "numpy.str_": "numpy.str_('a')",
    "numpy.bytes_": "numpy.bytes_(b'a')",
    "element of an array of objects": "numpy.array([b'a'], dtype=object)[0]",
    "empty str": "''",
    "empty bytes": "b''",
    "bytes that are not UTF-8": "b'\\xff'",
    "str beyond ASCII": "'h\\u00e9'",
    "bytes beyond ASCII": "'h\\u00e9'.encode()",
    "str with a lone surrogate": "'\\ud800'",
    "str with a zero": "'a\\0b'",
    "int": "5",
    "list": "['a']",
    "None": "None",
}
NUMBERS = {
    "0": "0",
    "7": "7",
    "-1": "-1",
    "-2": "-2",
    "2**31": "2**31",
    "2**32 - 1": "2**32 - 1",
    "2**32": "2**32",
    "2**63 - 1": "2**63 - 1",
    "2**63": "2**63",
    "2**64 - 1": "2**64 - 1",
    "2**64": "2**64",
    "2**70": "2**70",
    "-(2**63)": "-(2**63)",
    "-(2**70)": "-(2**70)",
    "True": "True",
    "float": "1.5",
    "whole float": "2.0",
    "numpy.int64": "numpy.int64(3)",
    "numpy.uint8": "numpy.uint8(3)",
    "numpy.bool_": "numpy.bool_(True)",
    "numpy.float32": "numpy.float32(1)",
    "object with __index__": "Index()",
    "object with __int__": "Int()",
    "str": "'5'",
    "bytes": "b'5'",
    "None": "None",
}
FLAGS = {
    "True": "True",
    "False": "False",
    "0": "0",
    "1": "1",
    "None": "None",
    "float": "1.5",
    "str": "'x'",
    "empty str": "''",
    "list": "[1]",
    "numpy.bool_": "numpy.bool_(True)",
    "object with __bool__": "Bool()",
}
TENSORS = {
    "list": "[X]",
    "empty list": "[]",
    "tuple": "(X,)",
    "empty tuple": "()",
    "generator": "(tensor for tensor in [X])",
    "set": "{X}",
    "dict": "{X: 1}",
    "iterator": "iter([X])",
    "object with __getitem__": "Sequence(X)",
    "tensor": "X",
    "str": "'a'",
    "empty str": "''",
    "bytes": "b'a'",
    "array": "X.as_numpy()",
    "None": "None",
    "int": "5",
    "list with None": "[X, None]",
    "list with an int": "[X, 5]",
    "list of lists": "[[X]]",
    "list of a subclass": "[SubTensor('SUB', numpy.zeros(1))]",
}
NAMES = {
    "list": "['B']",
    "empty list": "[]",
    "tuple": "('B', 'B')",
    "generator": "(name for name in ['B'])",
    "iterator": "iter(['B'])",
    "set": "{'B'}",
    "frozenset": "frozenset({'B'})",
    "dict": "{'B': 1}",
    "keys of a dict": "{'B': 1}.keys()",
    "object with __getitem__": "Sequence('B')",
    "str": "'BC'",
    "bytes": "b'BC'",
    "array of str": "numpy.array(['B'])",
    "array of objects": "numpy.array([b'B'], dtype=object)",
    "list of bytes": "[b'B']",
    "list of the same name": "['B', 'B']",
    "list with an empty str": "['B', '']",
    "list with None": "['B', None]",
    "list with an int": "['B', 5]",
    "None": "None",
    "int": "5",
}
PARAMETERS = {
    "None": "None",
    "empty dict": "{}",
    "bool, int and str": "{'a': True, 'b': 7, 'c': 'x'}",
    "OrderedDict": "collections.OrderedDict(a=1)",
    "list": "[]",
    "list of pairs": "[('a', 1)]",
    "str": "'{}'",
    "int": "5",
    "float value": "{'a': 1.5}",
    "None value": "{'a': None}",
    "bytes value": "{'a': b'x'}",
    "list value": "{'a': [1]}",
    "numpy.str_ value": "{'a': numpy.str_('x')}",
    "numpy.int64 value": "{'a': numpy.int64(1)}",
    "numpy.bool_ value": "{'a': numpy.bool_(True)}",
    "enum value": "{'a': Number.ONE}",
    "value of 2**31": "{'a': 2**31}",
    "value of 2**63 - 1": "{'a': 2**63 - 1}",
    "value of 2**63": "{'a': 2**63}",
    "value of 2**70": "{'a': 2**70}",
    "value of -(2**63)": "{'a': -(2**63)}",
    "value of -(2**63) - 1": "{'a': -(2**63) - 1}",
    "str value beyond ASCII": "{'a': 'h\\u00e9'}",
    "str value with a zero": "{'a': 'x\\0y'}",
    "str value with a lone surrogate": "{'a': '\\ud800'}",
    "bytes key": "{b'a': 1}",
    "int key": "{5: 1}",
    "None key": "{None: 1}",
    "empty key": "{'': 1}",
    "key beyond ASCII": "{'h\\u00e9': 1}",
}
ARRAYS = {
    "array": "numpy.zeros(2, 'float32')",
    "list": "[1]",
    "None": "None",
    "number": "5",
    "numpy number": "numpy.float32(1)",
    "array without dimensions": "numpy.array(3)",
    "empty array": "numpy.zeros((0, 2), 'int8')",
    "array of 32 dimensions": "numpy.zeros((1,) * 32)",
    "array of str": "numpy.array(['a'])",
    "array of bytes": "numpy.array([b'a'])",
    "array of objects": "numpy.array(['a', b'b', 5, None], dtype=object)",
    "array of dates": "numpy.array(['2000-01-01'], dtype='datetime64[D]')",
    "array of complex numbers": "numpy.zeros(1, complex)",
    "array of records": "numpy.zeros(1, 'i4,f4')",
    "matrix": "numpy.matrix([[1]])",
    "subclass of an array": "numpy.zeros(1).view(SubArray)",
    "masked array": "numpy.ma.masked_array([1, 2], [False, True])",
    "array that is not contiguous": "numpy.arange(6)[::2]",
    "big-endian array": "numpy.array([1], '>i4')",
    "read-only array": "numpy.frombuffer(b'ab', 'int8')",
    "tensor": "X",
}
OBJECTS = {
    "None": "None",
    "TritonError": "pb_utils.TritonError('e')",
    "subclass of TritonError": "SubError('e')",
    "str": "'e'",
    "exception": "ValueError('e')",
    "TritonModelException": "pb_utils.TritonModelException('e')",
    "int": "5",
    "tensor": "X",
    "request": "request",
    "trace": "request.trace()",
    "PreferredMemory": "pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU)",
    "memory type": "pb_utils.TRITONSERVER_MEMORY_CPU",
    "code": "pb_utils.TritonError.INTERNAL",
    "log level": "pb_utils.Logger.INFO",
    "kind of metric": "pb_utils.MetricFamily.GAUGE",
}


def without(kinds, kind):
    return {name: argument for name, argument in kinds.items() if name != kind}


# Places that take an argument, and the kinds that are tried there.
PLACES = {
    "Tensor(name)": (TEXTS, "pb_utils.Tensor({}, numpy.zeros(1)).name()"),
    "Tensor(array)": (ARRAYS, "pb_utils.Tensor('X', {})"),
    "Tensor.from_dlpack(name)": (TEXTS, "pb_utils.Tensor.from_dlpack({}, X.to_dlpack()).name()"),
    "InferenceRequest(request_id)": (TEXTS, "ask('m', [X], ['B'], request_id={}).request_id()"),
    "InferenceRequest(model_name)": (TEXTS, "type(ask({}, [X], ['B'])).__name__"),
    "InferenceRequest(model_name) for exec": (TEXTS, "ask({}, [X], ['B']).exec()"),
    "InferenceRequest(requested_output_names)": (NAMES, "sorted(ask('m', [X], {}).requested_output_names())"),
    "InferenceRequest(inputs)": (TENSORS, "[tensor.name() for tensor in ask('m', {}, ['B']).inputs()]"),
    "InferenceRequest(correlation_id), a text": (TEXTS, "ask('m', [X], ['B'], correlation_id={}).correlation_id()"),
    "InferenceRequest(correlation_id)": (NUMBERS, "ask('m', [X], ['B'], correlation_id={}).correlation_id()"),
    "InferenceRequest(model_version)": (NUMBERS, "type(ask('m', [X], ['B'], model_version={})).__name__"),
    "InferenceRequest(flags)": (NUMBERS, "ask('m', [X], ['B'], flags={}).flags()"),
    "InferenceRequest(timeout)": (NUMBERS, "ask('m', [X], ['B'], timeout={}).timeout()"),
    "InferenceRequest(parameters)": (PARAMETERS, "ask('m', [X], ['B'], parameters={}).parameters()"),
    "InferenceRequest(preferred_memory)": (OBJECTS, "type(ask('m', [X], ['B'], preferred_memory={})).__name__"),
    "InferenceRequest(trace)": (OBJECTS, "type(ask('m', [X], ['B'], trace={})).__name__"),
    "InferenceRequest.set_flags": (NUMBERS, "own.set_flags({}), own.flags()"),
    "InferenceResponse(output_tensors)": (TENSORS, "pb_utils.InferenceResponse({}).output_tensors()"),
    "InferenceResponse(error)": (OBJECTS, "pb_utils.InferenceResponse([X], {})"),
    "InferenceResponse(error) alone": (OBJECTS, "pb_utils.InferenceResponse(error={})"),
    "TritonError(message)": (TEXTS, "pb_utils.TritonError({}).message()"),
    "TritonError(code)": (OBJECTS, "pb_utils.TritonError('e', {}).code()"),
    "TritonModelException": (without(TEXTS, "memoryview"), "str(pb_utils.TritonModelException({}))"),
    "get_input_tensor_by_name(name)": (TEXTS, "pb_utils.get_input_tensor_by_name(own, {})"),
    "get_input_tensor_by_name(request)": (OBJECTS, "pb_utils.get_input_tensor_by_name({}, 'X')"),
    "get_output_tensor_by_name(name)": (TEXTS, "pb_utils.get_output_tensor_by_name(pb_utils.InferenceResponse([X]), {})"),
    "get_output_tensor_by_name(response)": (OBJECTS, "pb_utils.get_output_tensor_by_name({}, 'X')"),
    "Logger.log(message)": (TEXTS, "pb_utils.Logger.log({})"),
    "Logger.log(level)": (OBJECTS, "pb_utils.Logger.log('a', {})"),
    "Logger.log_info": (TEXTS, "pb_utils.Logger.log_info({})"),
    "PreferredMemory(type)": (OBJECTS, "type(pb_utils.PreferredMemory({}, 0)).__name__"),
    "PreferredMemory(device)": (
        NUMBERS,
        "type(pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU, {})).__name__",
    ),
    "exec(decoupled)": (FLAGS, "ask('echo', [A], ['B']).exec(decoupled={})"),
    "is_model_ready(name)": (TEXTS, "pb_utils.is_model_ready({})"),
    "is_model_ready(version)": (TEXTS, "pb_utils.is_model_ready('echo', {})"),
    "is_model_ready(version), a number": (
        {text: f"'{text}'" for text in ("1", "01", "+1", " 1", "1 ", "2", "0", "-1", "-2", "1.0", "x", "1x")}
        | {"9 in all places": "'9' * 30", "1, in bytes": "b'1'", "1, an int": "1"},
        "pb_utils.is_model_ready('echo', {})",
    ),
    "load_model(name)": (TEXTS, "pb_utils.load_model({})"),
    "load_model(config)": (TEXTS, "pb_utils.load_model('nowhere', config={})"),
    "load_model(files)": (PARAMETERS, "pb_utils.load_model('nowhere', files={})"),
    "unload_model(name)": (TEXTS, "pb_utils.unload_model({})"),
    "unload_model(unload_dependents)": (FLAGS, "pb_utils.unload_model('nowhere', unload_dependents={})"),
    "MetricFamily(name)": (TEXTS, "type(pb_utils.MetricFamily({}, 'd', GAUGE)).__name__"),
    "MetricFamily(description)": (TEXTS, "type(pb_utils.MetricFamily('described', {}, GAUGE)).__name__"),
    "MetricFamily(kind)": (OBJECTS, "type(pb_utils.MetricFamily('of_a_kind', 'd', {})).__name__"),
    "MetricFamily.Metric(label)": (TEXTS, "type(family().Metric(labels={{{}: 'x'}})).__name__"),
    "MetricFamily.Metric(label's value)": (TEXTS, "type(family().Metric(labels={{'x': {}}})).__name__"),
    "Metric.increment": (NUMBERS, "measure('increment', {})"),
    "Metric.set": (NUMBERS, "measure('set', {})"),
}

# Cells of their own.
SINGLE = {
    "Tensor()": "pb_utils.Tensor()",
    "Tensor('X')": "pb_utils.Tensor('X')",
    "Tensor(name=, numpy_array=)": "pb_utils.Tensor(name='X', numpy_array=numpy.zeros(1))",
    "Tensor in the other order": "pb_utils.Tensor(numpy.zeros(1), 'X')",
    "Tensor.shape": "X.shape()",
    "Tensor.as_numpy twice": "X.as_numpy() is X.as_numpy()",
    "Tensor.as_numpy of what was given": "(lambda array: pb_utils.Tensor('X', array).as_numpy() is array)(numpy.zeros(1))",
    "Tensor.is_cpu": "X.is_cpu()",
    "Tensor.triton_dtype": "X.triton_dtype()",
    "Tensor.__dlpack_device__": "X.__dlpack_device__()",
    "Tensor with an attribute": "setattr(X, 'more', 1)",
    "Tensor == Tensor": "X == pb_utils.Tensor('X', X.as_numpy())",
    "Tensor copied": "copy.copy(X).name()",
    "Tensor pickled": "pickle.loads(pickle.dumps(X)).name()",
    "Tensor.from_dlpack of a number": "pb_utils.Tensor.from_dlpack('X', 5)",
    "Tensor.from_dlpack(name=, tensor=)": "pb_utils.Tensor.from_dlpack(name='X', tensor=X.to_dlpack()).name()",
    "InferenceRequest()": "pb_utils.InferenceRequest()",
    "InferenceRequest without a name": "pb_utils.InferenceRequest(inputs=[X], requested_output_names=['B'])",
    "InferenceRequest without outputs": "pb_utils.InferenceRequest(inputs=[X], model_name='m')",
    "InferenceRequest without inputs": "pb_utils.InferenceRequest(requested_output_names=['B'], model_name='m')",
    "InferenceRequest by position": "pb_utils.InferenceRequest('i', 3, [X], ['B'], 'm', 1, 1, 9).timeout()",
    "InferenceRequest, something unknown": "ask('m', [X], ['B'], more=1)",
    "InferenceRequest.flags unset": "own.flags()",
    "InferenceRequest.correlation_id unset": "own.correlation_id()",
    "InferenceRequest.request_id unset": "own.request_id()",
    "InferenceRequest.timeout unset": "own.timeout()",
    "InferenceRequest.parameters unset": "own.parameters()",
    "InferenceRequest.requested_output_names": "own.requested_output_names()",
    "InferenceRequest.trace of one's own": "own.trace().get_context()",
    "InferenceRequest.preferred_memory": "own.preferred_memory()",
    "InferenceRequest.model_name": "own.model_name()",
    "inputs with the same name": "[tensor.name() for tensor in ask('m', [X, X], ['B']).inputs()]",
    "InferenceRequest.inputs twice": "[own.inputs()[0] is own.inputs()[0], own.inputs()[0] is X]",
    "InferenceResponse()": "pb_utils.InferenceResponse()",
    "InferenceResponse() with an error": "pb_utils.InferenceResponse(error=pb_utils.TritonError('e'))",
    "InferenceResponse with tensors and an error": "pb_utils.InferenceResponse([X], pb_utils.TritonError('e'))",
    "InferenceResponse.error without one": "pb_utils.InferenceResponse([X]).error()",
    "InferenceResponse.has_error": "pb_utils.InferenceResponse([X]).has_error()",
    "InferenceResponse, something unknown": "pb_utils.InferenceResponse([X], more=1)",
    "outputs with the same name": "pb_utils.InferenceResponse([X, X]).output_tensors()",
    "InferenceResponse.output_tensors twice": "(lambda it: it.output_tensors()[0] is it.output_tensors()[0])(pb_utils.InferenceResponse([X]))",
    "TritonError()": "pb_utils.TritonError()",
    "TritonError.code unset": "pb_utils.TritonError('e').code()",
    "TritonError(message=, code=)": "pb_utils.TritonError(message='e', code=pb_utils.TritonError.NOT_FOUND).code()",
    "TritonError raised": "(lambda: (_ for _ in ()).throw(pb_utils.TritonError('e')))()",
    "TritonError in text": "str(pb_utils.TritonError('e')).startswith('<')",
    "TritonModelException without a text": "str(pb_utils.TritonModelException())",
    "TritonModelException of two": "str(pb_utils.TritonModelException('a', 'b'))",
    "TritonModelException is": "[base.__name__ for base in pb_utils.TritonModelException.__mro__]",
    "names of the codes": "[[str(code), int(code), code.name] for code in [pb_utils.TritonError.INTERNAL, pb_utils.TritonError.CANCELLED]]",
    "code from a number": "type(pb_utils.TritonError.INTERNAL)(3)",
    "members of the codes": "sorted(type(pb_utils.TritonError.INTERNAL).__members__)",
    "code == number": "[pb_utils.TritonError.NOT_FOUND == 2, 2 == pb_utils.TritonError.NOT_FOUND, pb_utils.TritonError.NOT_FOUND != 2]",
    "code < code": "pb_utils.TritonError.INTERNAL < pb_utils.TritonError.NOT_FOUND",
    "names of the levels": "[[str(level), level.value] for level in (pb_utils.Logger.INFO, pb_utils.Logger.WARNING, pb_utils.Logger.ERROR, pb_utils.Logger.VERBOSE)]",
    "names of the kinds of memory": "[[str(kind), kind.value] for kind in (pb_utils.TRITONSERVER_MEMORY_GPU, pb_utils.TRITONSERVER_MEMORY_CPU)]",
    "get_input_tensor_by_name(inference_request=, name=)": "pb_utils.get_input_tensor_by_name(inference_request=own, name='X')",
    "get_output_tensor_by_name(inference_response=, name=)": "pb_utils.get_output_tensor_by_name(inference_response=pb_utils.InferenceResponse([X]), name='X')",
    "get_output_tensor_by_name of an error": "pb_utils.get_output_tensor_by_name(pb_utils.InferenceResponse(error=pb_utils.TritonError('e')), 'X')",
    "Logger()": "type(pb_utils.Logger()).__name__",
    "Logger.log()": "pb_utils.Logger.log()",
    "Logger.log(message=, level=)": "pb_utils.Logger.log(message='a', level=pb_utils.Logger.WARNING)",
    "Logger.log_info(message=)": "pb_utils.Logger.log_info(message='a')",
    "PreferredMemory()": "pb_utils.PreferredMemory()",
    "PreferredMemory of a type alone": "type(pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU)).__name__",
    "PreferredMemory by keywords": "type(pb_utils.PreferredMemory(preferred_memory_type=pb_utils.TRITONSERVER_MEMORY_CPU, preferred_device_id=0)).__name__",
    "MetricFamily(name=, description=, kind=)": "type(pb_utils.MetricFamily(name='by_name', description='d', kind=GAUGE)).__name__",
    "MetricFamily of a name and another kind": "(family(), pb_utils.MetricFamily('a_family', 'd', pb_utils.MetricFamily.COUNTER))",
    "Metric without labels": "type(family().Metric()).__name__",
    "Metric with a list for labels": "family().Metric(labels=['a'])",
    "Metric.value": "measure('set', 3)",
    "exec of an unknown model": "ask('nowhere', [A], ['B']).exec()",
    "exec of an unknown version": "ask('echo', [A], ['B'], model_version=9).exec()",
    "exec of version -1": "ask('echo', [A], ['B'], model_version=-1).exec()",
    "exec of version -2": "ask('echo', [A], ['B'], model_version=-2).exec()",
    "exec without inputs": "ask('echo', [], ['B']).exec()",
    "exec with an unknown output": "ask('echo', [A], ['C']).exec()",
    "exec without outputs": "ask('echo', [A], []).exec()",
    "exec with the wrong type": "ask('echo', [tensor('A', [1], 'int8')], ['B']).exec()",
    "exec with bytes for all names": "pb_utils.InferenceRequest(request_id=b'i', model_name=b'echo', inputs=[A], requested_output_names=[b'B']).exec()",
    "exec twice": "[own_echo.exec(), own_echo.exec()]",
    "exec of a decoupled model": "ask('repeat', [count(1)], ['B']).exec()",
    "exec of a model that fails": "ask('fails', [A], ['B']).exec()",
    "exec of a model that raises": "ask('raises', [A], ['B']).exec()",
    "exec, something unknown": "ask('echo', [A], ['B']).exec(more=1)",
    "exec(True)": "type(ask('echo', [A], ['B']).exec(True)).__name__",
    "exec of a received request": "request.exec()",
    "async_exec without a loop": "ask('echo', [A], ['B']).async_exec()",
    "responses of a plain model": "responses('echo', [A])",
    "responses of none": "responses('repeat', [count(0)])",
    "responses of one": "responses('repeat', [count(1)])",
    "responses of three": "responses('repeat', [count(3)])",
    "responses of an unknown model": "responses('nowhere', [A])",
    "responses of an error": "responses('repeat', [count(-2)])",
    "responses iterated twice": "(lambda it: [[describe(response) for response in it] for _ in range(2)])(stream('repeat', [count(2)]))",
    "responses iterated in part, and again": "(lambda it: [describe(next(it)), [describe(response) for response in it]])(stream('repeat', [count(2)]))",
    "next after the last": "(lambda it: [[describe(response) for response in it], describe(next(it)), describe(next(it))])(stream('repeat', [count(2)]))",
    "StopIteration, and next": "(lambda it: [attempt(lambda: next(it)) for _ in range(8)])(stream('repeat', [count(1)]))",
    "iter of responses": "(lambda it: iter(it) is it)(stream('repeat', [count(1)]))",
    "len of responses": "len(stream('repeat', [count(1)]))",
    "responses[0]": "stream('repeat', [count(1)])[0]",
    "two iterators of the same responses": "(lambda it: [describe(next(iter(it))), describe(next(iter(it))), describe(next(it))])(stream('repeat', [count(2)]))",
    "iter after the last, before StopIteration": "(lambda it: [describe(next(it)), describe(next(it)), attempt(lambda: next(iter(it)))])(stream('repeat', [count(1)]))",
    "iter after StopIteration, and next": "(lambda it: [len(list(it)), attempt(lambda: next(it)), describe(next(iter(it)))])(stream('repeat', [count(1)]))",
    "exec with a parameter of 2**63": "ask('shows', [A], ['B'], parameters={'a': 2**63}).exec()",
    "exec with a parameter of 2**70": "ask('shows', [A], ['B'], parameters={'a': 2**70}).exec()",
    "exec with a parameter of -(2**63) - 1": "ask('shows', [A], ['B'], parameters={'a': -(2**63) - 1}).exec()",
    "exec with a parameter that has a lone surrogate": "ask('shows', [A], ['B'], parameters={'a': '\\ud800'}).exec()",
    "exec with parameters": "ask('shows', [A], ['B'], parameters={'a': 7, 'b': True, 'c': 'x', 'h\u00e9': 'y'}).exec()",
    "type of responses": "type(stream('repeat', [count(1)])).__name__",
    "set_release_flags of a received request": "request.set_release_flags(0)",
    "set_release_flags of ALL": "request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_ALL)",
    "set_release_flags of 5": "request.set_release_flags(5)",
    "set_release_flags of -1": "request.set_release_flags(-1)",
    "set_release_flags of a str": "request.set_release_flags('x')",
    "set_release_flags of RESCHEDULE": "(request.set_release_flags(2), request.set_release_flags(0))",
    "received request: inputs": "[[tensor.name(), tensor.shape()] for tensor in request.inputs()]",
    "received request: id, correlation, flags, timeout": "[request.request_id(), request.correlation_id(), request.flags(), request.timeout()]",
    "received request: is_cancelled": "request.is_cancelled()",
    "received request: get_response_sender": "type(request.get_response_sender()).__name__",
    "received request: parameters": "request.parameters()",
    "received request: outputs": "sorted(request.requested_output_names())",
    "received request: trace": "request.trace().get_context()",
    "get_model_dir": "pb_utils.get_model_dir().endswith('/cells/1')",
    "triton_string_to_numpy of something unknown": "pb_utils.triton_string_to_numpy('TYPE_X')",
    "triton_string_to_numpy": "[numpy.dtype(pb_utils.triton_string_to_numpy(text)).name for text in ('TYPE_BOOL', 'TYPE_STRING', 'TYPE_FP16')]",
    "triton_to_numpy_type": "[numpy.dtype(pb_utils.triton_to_numpy_type(number)).name for number in range(1, 14)]",
    "triton_to_numpy_type of 14": "pb_utils.triton_to_numpy_type(14)",
    "triton_to_numpy_type of 0": "pb_utils.triton_to_numpy_type(0)",
    "numpy_to_triton_type": "[pb_utils.numpy_to_triton_type(kind) for kind in (numpy.bool_, numpy.float32, numpy.object_, numpy.bytes_)]",
    "numpy_to_triton_type of something unknown": "pb_utils.numpy_to_triton_type(complex)",
    "get_input_config_by_name": "pb_utils.get_input_config_by_name({'input': [{'name': 'a'}]}, 'a')",
    "get_input_config_by_name of something unknown": "pb_utils.get_input_config_by_name({'input': [{'name': 'a'}]}, 'b')",
    "using_decoupled_model_transaction_policy": "pb_utils.using_decoupled_model_transaction_policy({})",
    "serialize_byte_tensor": "pb_utils.serialize_byte_tensor(numpy.array([b'ab', 'c'], dtype=object))",
    "serialize_byte_tensor of nothing": "pb_utils.serialize_byte_tensor(numpy.array([], dtype=object))",
    "serialize_byte_tensor of numbers": "pb_utils.serialize_byte_tensor(numpy.zeros(1))",
    "deserialize_bytes_tensor": "pb_utils.deserialize_bytes_tensor(b'\\x01\\0\\0\\0a').tolist()",
    "deserialize_bytes_tensor of nothing": "pb_utils.deserialize_bytes_tensor(b'').tolist()",
}

CELLS = {
    f"{place}: {kind}": template.format(argument)
    for place, (arguments, template) in PLACES.items()
    for kind, argument in arguments.items()
} | SINGLE

_MODEL = """
import collections
import copy
import enum
import json
import pickle

import numpy
import triton_python_backend_utils as pb_utils


class Index:
    def __index__(self):
        return 3


class Int:
    def __int__(self):
        return 3


class Bool:
    def __bool__(self):
        return True


class Number(enum.IntEnum):
    ONE = 1


class Sequence:
    def __init__(self, *elements):
        self.elements = elements

    def __getitem__(self, place):
        return self.elements[place]

    def __len__(self):
        return len(self.elements)


class SubArray(numpy.ndarray):
    pass


def tensor(name, values, dtype):
    return pb_utils.Tensor(name, numpy.array(values, dtype=dtype))


def count(number):
    return tensor("A", [number], "float32")


def ask(model, inputs, outputs, **more):
    return pb_utils.InferenceRequest(model_name=model, inputs=inputs, requested_output_names=outputs, **more)


def stream(model, inputs):
    return ask(model, inputs, ["B"]).exec(decoupled=True)


def responses(model, inputs):
    return list(stream(model, inputs))


families = {}


def family():
    if not families:
        families["a"] = pb_utils.MetricFamily("a_family", "d", pb_utils.MetricFamily.GAUGE)
    return families["a"]


def measure(operation, value):
    metric = family().Metric(labels={"a": "b"})
    metric.set(0)
    getattr(metric, operation)(value)
    return metric.value()


def describe(value):
    if isinstance(value, (list, tuple)):
        return [describe(element) for element in value]
    if isinstance(value, dict):
        return {str(key): describe(element) for key, element in value.items()}
    if isinstance(value, set):
        return sorted(value)
    if isinstance(value, (bytes, bytearray)):
        return "bytes " + repr(bytes(value))
    if isinstance(value, pb_utils.Tensor):
        array = value.as_numpy()
        return "Tensor %s %s %s" % (value.name(), array.dtype, value.shape())
    if isinstance(value, pb_utils.InferenceResponse):
        error = value.error()
        code = None if error is None else int(error.code())
        shown = error.message() if error is not None and error.message().startswith("{") else code
        return {"tensors": describe(value.output_tensors()), "has_error": value.has_error(), "error": shown}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if hasattr(value, "__members__"):
        return "%s %s" % (type(value).__name__, value.name)
    return type(value).__name__


def attempt(function):
    try:
        return describe(function())
    except BaseException as error:
        return "raises " + type(error).__name__


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            code = pb_utils.get_input_tensor_by_name(request, "CODE").as_numpy().reshape(-1)[0].decode()
            X = tensor("X", [1, 2], "float32")
            A = tensor("A", [1, 2], "float32")
            own = ask("m", [X], ["B", "C"])
            own_echo = ask("echo", [A], ["B"])
            scope = dict(globals(), X=X, A=A, own=own, own_echo=own_echo, request=request)
            # In NVIDIA's server, these classes are missing while it completes the configuration.
            scope["GAUGE"] = pb_utils.MetricFamily.GAUGE
            scope["SubTensor"] = type("SubTensor", (pb_utils.Tensor,), {})
            scope["SubError"] = type("SubError", (pb_utils.TritonError,), {})
            result = json.dumps(attempt(lambda: eval(code, scope)))
            output = pb_utils.Tensor("RESULT", numpy.array([result.encode()], dtype=object))
            answers.append(pb_utils.InferenceResponse([output]))
        return answers
"""

_ECHO = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        outputs = [pb_utils.Tensor("B", request.inputs()[0].as_numpy()) for request in requests]
        return [pb_utils.InferenceResponse([output]) for output in outputs]
"""

# Answers with its parameters, as an error.
_SHOWS = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        errors = [pb_utils.TritonError(request.parameters()) for request in requests]
        return [pb_utils.InferenceResponse(error=error) for error in errors]
"""

_FAILS = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse(error=pb_utils.TritonError("as it was asked to")) for _ in requests]
"""

_RAISES = """
class TritonPythonModel:
    def execute(self, requests):
        raise ValueError("as it was asked to")
"""

_REPEAT = """
import numpy
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            count = int(request.inputs()[0].as_numpy()[0])
            if count < 0:
                sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("as it was asked to")), flags=1)
                continue
            for number in range(count):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("B", numpy.full(number + 1, number, "float32"))]))
            sender.send(flags=1)
"""

_CONFIG = """backend: "python" %s
input { name: "A" data_type: TYPE_FP32 dims: -1 } output { name: "B" data_type: TYPE_FP32 dims: -1 }
"""
_CELLS_CONFIG = """backend: "python"
input { name: "CODE" data_type: TYPE_STRING dims: 1 } output { name: "RESULT" data_type: TYPE_STRING dims: 1 }
"""


def write(repository):
    """Writes the model that runs cells, and the models that it calls."""
    decoupled = "model_transaction_policy { decoupled: true }"
    for name, code, config in [
        ("cells", _MODEL, _CELLS_CONFIG),
        ("echo", _ECHO, _CONFIG % ""),
        ("shows", _SHOWS, _CONFIG % ""),
        ("fails", _FAILS, _CONFIG % ""),
        ("raises", _RAISES, _CONFIG % ""),
        ("repeat", _REPEAT, _CONFIG % decoupled),
    ]:
        folder = Path(repository) / name / "1"
        folder.mkdir(parents=True)
        (folder / "model.py").write_text(code)
        (folder.parent / "config.pbtxt").write_text(config)


def outcome(client, cell):
    """The outcome of a cell in a server."""
    code = tritonclient.http.InferInput("CODE", [1], "BYTES")
    code.set_data_from_numpy(numpy.array([CELLS[cell].encode("utf-8", "surrogatepass")], dtype=object))
    return json.loads(client.infer("cells", [code]).as_numpy("RESULT")[0])


# The outcome of a cell whose process or server ends.
ENDS = "ends the process"


def record(url, path):
    """Adds the outcomes that are missing in a file, up to a cell whose process or server ends; that one is noted."""
    path = Path(path)
    table = json.loads(path.read_text()) if path.exists() else {}
    with tritonclient.http.InferenceServerClient(url, network_timeout=15, connection_timeout=15) as client:
        for cell in CELLS:
            if cell in table:
                continue
            try:
                table[cell] = outcome(client, cell)
            except Exception as error:
                print(f"{cell}: {error}")
                table[cell] = ENDS
                break
    rows = [f" {json.dumps(cell)}: {json.dumps(found)}" for cell, found in sorted(table.items())]
    path.write_text("{\n" + ",\n".join(rows) + "\n}\n")
    return len(table) < len(CELLS)


if __name__ == "__main__":
    sys.exit(record(*sys.argv[1:]))

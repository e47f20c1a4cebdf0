"""TensorFlow's C interface from Python, to run a GraphDef without the server, and without TensorFlow's own package for Python,
which takes 1.6 GB.
"""

import ctypes
from ctypes import POINTER, Structure, byref, c_char_p, c_int, c_int64, c_size_t, c_void_p

import numpy as np

import tensorflow_package

FLOAT = 1


class _Output(Structure):
    _fields_ = [("operation", c_void_p), ("index", c_int)]


class _Buffer(Structure):
    _fields_ = [("data", c_char_p), ("length", c_size_t), ("free", c_void_p)]


def _library():
    library = ctypes.CDLL(str(tensorflow_package.LIBRARY))
    functions: list[tuple] = [
        ("TF_NewStatus", c_void_p),
        ("TF_GetCode", c_int, c_void_p),
        ("TF_Message", c_char_p, c_void_p),
        ("TF_NewGraph", c_void_p),
        ("TF_NewImportGraphDefOptions", c_void_p),
        ("TF_GraphImportGraphDef", None, c_void_p, POINTER(_Buffer), c_void_p, c_void_p),
        ("TF_GraphOperationByName", c_void_p, c_void_p, c_char_p),
        ("TF_NewSessionOptions", c_void_p),
        ("TF_NewSession", c_void_p, c_void_p, c_void_p, c_void_p),
        ("TF_AllocateTensor", c_void_p, c_int, POINTER(c_int64), c_int, c_size_t),
        ("TF_TensorData", c_void_p, c_void_p),
        ("TF_TensorByteSize", c_size_t, c_void_p),
        ("TF_NumDims", c_int, c_void_p),
        ("TF_Dim", c_int64, c_void_p, c_int),
        ("TF_DeleteTensor", None, c_void_p),
        (
            "TF_SessionRun",
            None,
            c_void_p,
            c_void_p,
            POINTER(_Output),
            POINTER(c_void_p),
            c_int,
            POINTER(_Output),
            POINTER(c_void_p),
            c_int,
            c_void_p,
            c_int,
            c_void_p,
            c_void_p,
        ),
    ]
    for name, result, *arguments in functions:
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def runner(graph, source, target):
    """A function that runs a GraphDef: from an FP32 array for the operation `source` to that of the operation `target`."""
    tensorflow_package.fetched()
    tf = _library()
    status = tf.TF_NewStatus()

    def check():
        if tf.TF_GetCode(status):
            raise RuntimeError(tf.TF_Message(status).decode())

    loaded = tf.TF_NewGraph()
    buffer = _Buffer(graph, len(graph), None)
    tf.TF_GraphImportGraphDef(loaded, byref(buffer), tf.TF_NewImportGraphDefOptions(), status)
    check()
    session = tf.TF_NewSession(loaded, tf.TF_NewSessionOptions(), status)
    check()
    places = [_Output(tf.TF_GraphOperationByName(loaded, name.encode()), 0) for name in (source, target)]

    def run(values):
        dims = (c_int64 * values.ndim)(*values.shape)
        given = c_void_p(tf.TF_AllocateTensor(FLOAT, dims, values.ndim, values.nbytes))
        ctypes.memmove(tf.TF_TensorData(given), values.ctypes.data, values.nbytes)
        made = c_void_p()
        tf.TF_SessionRun(session, None, places[0], byref(given), 1, places[1], byref(made), 1, None, 0, None, status)
        tf.TF_DeleteTensor(given)
        check()
        shape = [tf.TF_Dim(made, at) for at in range(tf.TF_NumDims(made))]
        output = np.empty(shape, np.float32)
        ctypes.memmove(output.ctypes.data, tf.TF_TensorData(made), tf.TF_TensorByteSize(made))
        tf.TF_DeleteTensor(made)
        return output

    return run

"""Arrays in memory of a GPU, as libraries that compute there have them: they exchange them by DLPack. For models in Python.

The driver is NVIDIA's library, or the stand-in of `tests/gpu`.
"""

import ctypes

import numpy

import gpu_memory

CUDA = 2
_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_uint64), ("kind", ctypes.c_int32), ("device", ctypes.c_int32), ("dimensions", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)), ("offset", ctypes.c_uint64),
    ]  # fmt: skip


class _Managed(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter)]

_new = ctypes.pythonapi.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_rename = ctypes.pythonapi.PyCapsule_SetName
_rename.restype, _rename.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]
# Capsules keep the addresses of their names.
_NAME, _USED = b"dltensor", b"used_dltensor"

# What consumers of tensors have not released.
_exported: dict[int, tuple] = {}


def exported():
    """How many tensors are in use by consumers."""
    return len(_exported)


@_Deleter
def _release(managed):
    _exported.pop(ctypes.addressof(managed.contents))


class Array:
    """The elements of a numpy array in memory of a GPU, some bytes into an allocation. `strides` are for consumers."""

    def __init__(self, driver, values, skip=0, strides=None, kind=CUDA):
        self.values, self.skip, self.strides, self.kind = numpy.array(values), skip, strides, kind
        self.memory = driver.allocate(bytes(skip) + self.values.tobytes(), skip + max(self.values.nbytes, 1))
        self.device, self.streams = driver.device, []

    def __dlpack_device__(self):
        return (self.kind, self.device)

    def __dlpack__(self, stream=None, **_):
        self.streams.append(stream)
        many = ctypes.c_int64 * max(self.values.ndim, 1)
        managed, shape = _Managed(), many(*self.values.shape)
        strides = many(*self.strides) if self.strides else None
        code, bits = _CODES[self.values.dtype.kind], self.values.dtype.itemsize * 8
        managed.tensor = _Tensor(
            self.memory.address, self.kind, self.device, self.values.ndim, code, bits, 1, shape, strides, self.skip
        )
        managed.deleter = _release
        _exported[ctypes.addressof(managed)] = (managed, shape, strides, self)
        return _new(ctypes.addressof(managed), _NAME, None)


def consume(driver, tensor):
    """Where a tensor's elements are, as DLPack says, and a copy of them: kind, device, address, array."""
    capsule = tensor if type(tensor).__name__ == "PyCapsule" else tensor.__dlpack__(stream=1)
    managed = ctypes.cast(_pointer(capsule, _NAME), ctypes.POINTER(_Managed))
    _rename(capsule, _USED)
    tensor = managed.contents.tensor
    kind = {code: letter for letter, code in _CODES.items()}[tensor.code]
    array = numpy.empty(tensor.shape[: tensor.dimensions], f"{kind}{tensor.bits // 8}")
    address = tensor.data + tensor.offset
    if array.nbytes:
        driver.copy_out(array.ctypes.data, address, array.nbytes)
    where = tensor.kind, tensor.device, address
    managed.contents.deleter(managed)
    return *where, array


def driver(library, device=0):
    """The driver in this process."""
    return gpu_memory.Driver(library, device)

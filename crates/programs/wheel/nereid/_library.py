"""Loads the server's library, then the native module, which uses its functions."""

import ctypes
import os
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
LIBRARY = PACKAGE / "lib" / "libtritonserver.so"

# Keeps the library loaded. Backends that the server loads find its functions, too.
_library = ctypes.CDLL(os.fspath(LIBRARY), mode=ctypes.RTLD_GLOBAL)

from . import nereid_native as native
from .nereid_native import (
    AlreadyExistsError,
    CancelledError,
    Error,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    Response,
    Tensor,
    UnavailableError,
    UnknownError,
    UnsupportedError,
)

__all__ = [
    "AlreadyExistsError",
    "CancelledError",
    "Error",
    "InternalError",
    "InvalidArgumentError",
    "NotFoundError",
    "Response",
    "Tensor",
    "UnavailableError",
    "UnknownError",
    "UnsupportedError",
    "native",
]

# The classes belong to the package; the module that defines them is an implementation detail.
for _exception in [
    AlreadyExistsError,
    CancelledError,
    Error,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
    UnknownError,
    UnsupportedError,
]:
    _exception.__module__ = "nereid"

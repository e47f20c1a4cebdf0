"""Nereid, an inference server, within a Python program.

    import nereid

    with nereid.Server("examples/model_repository") as server:
        response = server.model("digits").infer({"image": pixels})
        print(response["probabilities"].numpy())

A server opens no ports unless `listen` is set, handles no signals, and several may run in one process. Outputs are not
copied: arrays view the memory that the server wrote them to. Contiguous inputs are not copied either: do not change them
before the request is answered.
"""

from ._library import (
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
from ._log import LogRecord, configure_log
from ._options import Options
from ._requests import AsyncResponses, RequestArguments, Responses
from ._server import Model, ModelState, Server

__all__ = [
    "AlreadyExistsError",
    "AsyncResponses",
    "CancelledError",
    "Error",
    "InternalError",
    "InvalidArgumentError",
    "LogRecord",
    "Model",
    "ModelState",
    "NotFoundError",
    "Options",
    "RequestArguments",
    "Response",
    "Responses",
    "Server",
    "Tensor",
    "UnavailableError",
    "UnknownError",
    "UnsupportedError",
    "configure_log",
]

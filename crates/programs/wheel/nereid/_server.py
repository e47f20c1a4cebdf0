"""Servers and their models."""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import sys
import weakref
from typing import TYPE_CHECKING, Any, Iterable, Mapping, NamedTuple, Optional, Union

from ._library import InvalidArgumentError, Response, Tensor, UnavailableError, UnsupportedError, native
from ._options import Options
from ._requests import AsyncResponses, RequestArguments, Responses

if TYPE_CHECKING:
    # Known to type checkers without the package.
    from typing_extensions import Unpack

_Path = Union[str, "os.PathLike[str]"]
_started: weakref.WeakSet[Server]

# The setting that names the interpreter of Python models.
_INTERPRETER = "python,python="


class ModelState(NamedTuple):
    """A version of a model in the repositories."""

    name: str
    version: Optional[int]
    """None if no version was loaded."""
    state: Optional[str]
    """`READY`, `LOADING`, `UNLOADING` or `UNAVAILABLE`; None if it has not been loaded."""
    reason: Optional[str]
    """The reason why the model is unavailable."""


class Server:
    """An inference server within this process.

    `model_repository` is a folder or an address such as `s3://bucket/models`, or a list of them. Options are those of the
    command line, with underscores: `Server("models", model_control_mode="explicit", load_model=["a", "b"])`. A dictionary
    holds settings: `backend_config={"onnxruntime": {"engine": "tract"}}`. With `listen=True` the server opens the ports that
    the options configure. Models in Python run with this interpreter unless they or
    `backend_config={"python": {"python": PATH}}` name another, and frameworks are those of its environment: a start sets
    `VIRTUAL_ENV` to it.
    """

    def __init__(
        self,
        model_repository: Union[_Path, Iterable[_Path]],
        *,
        listen: bool = False,
        **options: Unpack[Options],
    ) -> None:
        repositories: Iterable[_Path]
        repositories = [model_repository] if isinstance(model_repository, (str, os.PathLike)) else model_repository
        self._options = [("model-repository", os.fspath(path)) for path in repositories]
        for name, value in options.items():
            name = name.replace("_", "-")
            if name.startswith("log-"):
                raise InvalidArgumentError(f"logging is per process: use nereid.configure_log() instead of {name}")
            self._options += [(name, text) for text in _texts(value)]
        if sys.executable and not any(text.startswith(_INTERPRETER) for _, text in self._options):
            # Models see the packages of this interpreter, also if its environment is not activated.
            self._options.append(("backend-config", _INTERPRETER + sys.executable))
        self._listen = listen
        self._server: Optional[native.Server] = None

    def start(self) -> Server:
        """Starts the server, and waits until its models are loaded or have failed. Has no effect on a running server."""
        if self._server is None:
            if sys.prefix != sys.base_prefix:
                # Frameworks are those of this interpreter's environment, which need not be activated.
                os.environ["VIRTUAL_ENV"] = sys.prefix
            self._server = native.Server(self._options, self._listen)
            _started.add(self)
        return self

    def stop(self, timeout: Optional[float] = None) -> None:
        """Answers requests in progress, unloads the models, and stops. The server may be started again afterwards.

        Raises an error if stopping takes longer than `timeout` seconds or, without one, than the option `exit_timeout_secs`;
        call it again to retry.
        """
        if self._server is not None:
            if timeout is not None:
                self._server.set_exit_timeout(round(timeout))
            self._server.stop()
            self._server = None
            _started.discard(self)

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _running(self) -> native.Server:
        if self._server is None:
            raise UnavailableError("the server is not running")
        return self._server

    def live(self) -> bool:
        """Whether the server is live."""
        return self._running().is_live()

    def ready(self) -> bool:
        """Whether the server accepts requests and, unless `strict_readiness` is false, all models are ready."""
        return self._running().is_ready()

    def model(self, name: str, version: Optional[int] = None) -> Model:
        """A model; without a version, the one that its version policy serves. It need not be loaded yet."""
        return Model(self, name, version)

    def models(self, *, ready: bool = False) -> list[ModelState]:
        """The models in the repositories; with `ready`, only those that are ready."""
        rows = json.loads(self._running().index(ready))
        known = [(row["name"], row.get("version"), row.get("state"), row.get("reason")) for row in rows]
        return [
            ModelState(name, int(version) if version and int(version) > 0 else None, state or None, reason or None)
            for name, version, state, reason in known
        ]

    def load(self, name: str, *, config: Optional[Mapping[str, Any]] = None, files: Optional[Mapping[str, bytes]] = None) -> Model:
        """Loads or reloads a model, with this configuration, and these files by their paths in the model's folder."""
        text = None if config is None else json.dumps(config)
        contents = {f"file:{path}": bytes(content) for path, content in (files or {}).items()}
        self._running().load(name, text, contents)
        return Model(self, name, None)

    def unload(self, name: str, *, with_members: bool = False) -> None:
        """Unloads a model once its requests are answered. `with_members` also unloads those members of an ensemble that
        nothing else uses."""
        self._running().unload(name, with_members)

    def poll(self) -> None:
        """Polls the repositories for changes now, with `model_control_mode="poll"`."""
        self._running().poll()

    def register_repository(self, path: _Path, names: Optional[Mapping[str, str]] = None) -> None:
        """Adds a repository, with `model_control_mode="explicit"`. `names` maps the names of models to their folders if
        they differ."""
        self._running().register(os.fspath(path), dict(names or {}))

    def unregister_repository(self, path: _Path) -> None:
        """Removes a repository. Its models are served until they are unloaded."""
        self._running().unregister(os.fspath(path))

    def metadata(self) -> dict[str, Any]:
        """The server's metadata, as KServe defines it."""
        return _document(self._running().metadata())

    def metrics(self) -> str:
        """The metrics, in Prometheus' text format."""
        return self._running().metrics()

    def addresses(self) -> dict[str, str]:
        """The listening addresses, by protocol; empty unless `listen` is set."""
        return _document(self._running().addresses())


class Model:
    """A model of a server."""

    def __init__(self, server: Server, name: str, version: Optional[int]) -> None:
        self.server, self.name, self.version = server, name, version
        self._number = -1 if version is None else version
        self._types: Optional[dict[str, str]] = None

    def __repr__(self) -> str:
        return f"Model({self.name!r}, version={self.version})"

    def infer(self, inputs: Mapping[str, Any], *, timeout: Optional[float] = None, **request: Unpack[RequestArguments]) -> Response:
        """Sends a request, and waits for its single response. Raises `TimeoutError` after `timeout` seconds.

        Inputs are numpy arrays, tensors of other libraries with `__dlpack__`, or values that numpy converts to an array of
        the type that the model declares. Further arguments, all by name:

        - `outputs`: the names of the outputs to return; by default, all
        - `request_id`: a string that the response contains, too
        - `parameters`: a dictionary of strings, numbers and booleans for the model
        - `sequence_id`, `sequence_start`, `sequence_end`: makes the request part of the sequence with this id
        - `priority`: 1 is the highest; 0 the model's default
        - `queue_timeout`: the longest wait in the queue, in seconds, if the model's queue policy allows an override
        """
        return self._send(inputs, **request).single(timeout)

    def stream(self, inputs: Mapping[str, Any], **request: Unpack[RequestArguments]) -> Responses:
        """Sends a request, and returns an iterator over its responses at once. Takes the arguments of `infer`."""
        return Responses(self._send(inputs, **request))

    async def infer_async(
        self, inputs: Mapping[str, Any], *, timeout: Optional[float] = None, **request: Unpack[RequestArguments]
    ) -> Response:
        """As `infer`, in an event loop. Cancelling the task cancels the request."""
        try:
            return await asyncio.wait_for(_single(self.stream_async(inputs, **request)), timeout)
        except asyncio.TimeoutError as error:
            # Before Python 3.11, asyncio's error is another.
            raise TimeoutError("no response within the timeout") from error

    def stream_async(self, inputs: Mapping[str, Any], **request: Unpack[RequestArguments]) -> AsyncResponses:
        """As `stream`, for `async for`."""
        return AsyncResponses(self._send(inputs, **request))

    def _send(
        self,
        inputs: Mapping[str, Any],
        *,
        outputs: Optional[Iterable[str]] = None,
        request_id: Optional[str] = None,
        parameters: Optional[Mapping[str, Union[str, int, float, bool]]] = None,
        sequence_id: Optional[Union[int, str]] = None,
        sequence_start: bool = False,
        sequence_end: bool = False,
        priority: int = 0,
        queue_timeout: Optional[float] = None,
    ) -> native.Responses:
        sequence = None if sequence_id is None else (sequence_id, sequence_start, sequence_end)
        if sequence is None and (sequence_start or sequence_end):
            raise InvalidArgumentError("sequence_start and sequence_end need sequence_id")
        return self.server._running().send(
            self.name,
            self._number,
            {name: value if type(value) is Tensor else self._tensor(name, value) for name, value in inputs.items()},
            outputs=None if outputs is None else list(outputs),
            id=request_id,
            parameters=None if parameters is None else dict(parameters),
            sequence=sequence,
            priority=priority,
            timeout=0 if queue_timeout is None else max(1, round(queue_timeout * 1e6)),
        )

    def _tensor(self, name: str, value: Any) -> Tensor:
        if not isinstance(value, (list, tuple, str, bytes, int, float)):
            return Tensor(value)
        if self._types is None:
            self._types = {tensor["name"]: tensor["datatype"] for tensor in self.metadata()["inputs"]}
        return Tensor(value, self._types.get(name))

    def ready(self) -> bool:
        """Whether the model is ready."""
        return self.server._running().model_is_ready(self.name, self._number)

    def decoupled(self) -> bool:
        """Whether the model is decoupled: sends any number of responses to a request."""
        return self.server._running().model_is_decoupled(self.name, self._number)

    def metadata(self) -> dict[str, Any]:
        """The model's metadata (inputs and outputs), as KServe defines it."""
        return _document(self.server._running().model_metadata(self.name, self._number))

    def config(self) -> dict[str, Any]:
        """The served configuration, with all defaults."""
        return _document(self.server._running().model_config(self.name, self._number))

    def statistics(self) -> dict[str, Any]:
        """The statistics of requests and executions, in Triton's form."""
        return _document(self.server._running().model_statistics(self.name, self._number))


def _document(text: str) -> dict[str, Any]:
    """A document of the server."""
    document: dict[str, Any] = json.loads(text)
    return document


async def _single(responses: AsyncResponses) -> Response:
    """The only response to a request."""
    async with responses:
        first = await responses.next()
        if first is None:
            raise UnavailableError("the model sent no response")
        if await responses.next() is not None:
            raise UnsupportedError("the model sent several responses: use stream_async()")
        return first


def _texts(value: Any) -> list[str]:
    """An option's values as command-line arguments."""
    if isinstance(value, bool):
        return ["true" if value else "false"]
    if isinstance(value, Mapping):
        settings = []
        for name, setting in value.items():
            if isinstance(setting, Mapping):
                settings += [f"{name},{key}={text}" for key, each in setting.items() for text in _texts(each)]
            else:
                settings += [f"{name}={text}" for text in _texts(setting)]
        return settings
    if isinstance(value, (list, tuple)):
        return [text for each in value for text in _texts(each)]
    return [os.fspath(value) if isinstance(value, os.PathLike) else str(value)]


_started = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    """Answers requests in progress before the interpreter exits."""
    for server in list(_started):
        try:
            server.stop()
        except Exception:
            # The process ends, and so does the server.
            pass

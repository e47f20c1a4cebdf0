"""Requests in progress: their responses one by one, in threads and in event loops."""

from __future__ import annotations

import asyncio
import itertools
import weakref
from typing import ClassVar, Iterable, Mapping, Optional, TypedDict, Union

from ._library import Response, native


class RequestArguments(TypedDict, total=False):
    """Arguments of a request: see `Model.infer`."""

    outputs: Optional[Iterable[str]]
    request_id: Optional[str]
    parameters: Optional[Mapping[str, Union[str, int, float, bool]]]
    sequence_id: Optional[Union[int, str]]
    sequence_start: bool
    sequence_end: bool
    priority: int
    queue_timeout: Optional[float]


class Responses:
    """The responses to a request, as they arrive: an iterator. Leaving it unfinished cancels the request."""

    def __init__(self, responses: native.Responses) -> None:
        self._responses = responses

    def __iter__(self) -> Responses:
        return self

    def __next__(self) -> Response:
        response = self._responses.next()
        if response is None:
            raise StopIteration
        return response

    def next(self, timeout: Optional[float] = None) -> Optional[Response]:
        """The next response, or None after the last one. Raises `TimeoutError` if none arrives within `timeout` seconds."""
        return self._responses.next(timeout)

    def cancel(self) -> None:
        """Cancels the request. If the model supports that, `CancelledError` is raised in place of the response."""
        self._responses.cancel()

    def __enter__(self) -> Responses:
        return self

    def __exit__(self, *_: object) -> None:
        self._responses.cancel()


class AsyncResponses:
    """The responses to a request, as they arrive: an iterator for `async for`. Leaving it unfinished cancels the request."""

    def __init__(self, responses: native.Responses) -> None:
        self._responses = responses

    def __aiter__(self) -> AsyncResponses:
        return self

    async def __anext__(self) -> Response:
        response = await self.next()
        if response is None:
            raise StopAsyncIteration
        return response

    async def next(self) -> Optional[Response]:
        """The next response, or None after the last one."""
        while True:
            response, finished = self._responses.poll()
            if finished or response is not None:
                return response
            await _Loop.running().arrival(self._responses)

    def cancel(self) -> None:
        """Cancels the request. If the model supports that, `CancelledError` is raised in place of the response."""
        self._responses.cancel()

    async def __aenter__(self) -> AsyncResponses:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._responses.cancel()


class _Loop:
    """The requests that an event loop waits for. The server's threads wake it through a pipe."""

    _all: ClassVar[weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Loop]] = weakref.WeakKeyDictionary()

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._signal = native.Signal()
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._keys = itertools.count()
        loop.add_reader(self._signal.fileno(), self._wake)

    @classmethod
    def running(cls) -> _Loop:
        """The instance of the running event loop."""
        loop = asyncio.get_running_loop()
        found = cls._all.get(loop)
        if found is None:
            found = cls._all[loop] = cls(loop)
        return found

    async def arrival(self, responses: native.Responses) -> None:
        """Waits until a response arrives."""
        key, future = next(self._keys), asyncio.get_running_loop().create_future()
        self._waiting[key] = future
        try:
            responses.listen(self._signal, key)
            await future
        finally:
            self._waiting.pop(key, None)

    def _wake(self) -> None:
        for key in self._signal.take():
            future = self._waiting.get(key)
            if future is not None and not future.done():
                future.set_result(None)

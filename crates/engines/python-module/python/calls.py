"""Inner requests, from a model to other models."""

import asyncio
import weakref

from c_python_backend_utils import InnerCall


class ResponseIterator:
    """The responses to an inner request, in order, for `for` and `async for`.

    After the last response, `iter` starts with the first one again.
    """

    def __init__(self, request, notified=False):
        self._arrived = asyncio.Event() if notified else None
        self._responses = []
        self._place = 0
        self._ended = False
        self._exhausted = False
        notify = _notifier(asyncio.get_running_loop(), weakref.ref(self)) if notified else None
        self._call = InnerCall(request, True, notify)

    def _rewind(self):
        if self._place == len(self._responses) and (self._ended or self._call.is_over()):
            self._place = 0
            self._exhausted = False

    def __iter__(self):
        self._rewind()
        return self

    def __next__(self):
        if self._exhausted or (self._place == len(self._responses) and not self._read()):
            self._exhausted = True
            raise StopIteration
        self._place += 1
        return self._responses[self._place - 1]

    def _read(self):
        response = None if self._ended else self._call.next()
        if response is None:
            self._ended = True
            return False
        self._responses.append(response)
        return True

    def __aiter__(self):
        self._rewind()
        return self

    async def __anext__(self):
        if not self._exhausted and self._place == len(self._responses) and not self._ended:
            await self._wait()
        try:
            return next(self)
        except StopIteration:
            raise StopAsyncIteration from None

    async def _wait(self):
        if self._arrived is None:
            if self._call.would_wait():
                # Created by `exec`, without notifications.
                await asyncio.get_running_loop().run_in_executor(None, self._call.wait)
            return
        while self._call.would_wait():
            self._arrived.clear()
            await self._arrived.wait()

    async def _begun(self):
        try:
            await self._wait()
        except BaseException:
            # The caller stops waiting. The traceback refers to this object, so it may live on for a while.
            self._call.cancel()
            raise
        return self

    def cancel(self):
        """Cancels the request. The model's answer to the cancellation can be read."""
        self._call.cancel()


def _notifier(loop, iterator):
    """Wakes the coroutine that waits for responses, without keeping the iterator: dropping it cancels the request."""

    def wake():
        found = iterator()
        if found is not None:
            found._arrived.set()

    return _in_loop(loop, wake)


def _in_loop(loop, callback):
    """A function for threads of the module, which has the loop call `callback`."""

    def notify():
        try:
            loop.call_soon_threadsafe(callback)
        except RuntimeError:
            # The loop has ended, so nothing waits.
            pass

    return notify


def async_exec(request, decoupled):
    """A future of the response, or of the responses' iterator once the first one has arrived."""
    loop = asyncio.get_running_loop()
    if decoupled:
        return loop.create_task(ResponseIterator(request, notified=True)._begun())
    future = loop.create_future()

    def resolve():
        if future.done():
            return
        try:
            future.set_result(call.next())
        except Exception as error:
            future.set_exception(error)

    call = InnerCall(request, False, _in_loop(loop, resolve))
    # Cancel the request if its caller stops waiting.
    future.add_done_callback(lambda future: call.cancel() if future.cancelled() else None)
    return future

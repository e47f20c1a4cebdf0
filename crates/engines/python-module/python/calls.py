"""Inner requests, from a model to other models."""

import asyncio

from c_python_backend_utils import InnerCall


class ResponseIterator:
    """The responses to an inner request, in order, for `for` and `async for`. Iterating again starts with the first."""

    def __init__(self, request, notified=False):
        self._loop = asyncio.get_running_loop() if notified else None
        self._arrived = asyncio.Event() if notified else None
        self._pending = 0
        self._responses = []
        self._place = 0
        self._ended = False
        self._call = InnerCall(request, True, self._notify if notified else None)

    def _notify(self):
        # On a thread of the module.
        try:
            self._loop.call_soon_threadsafe(self._note)
        except RuntimeError:
            # The loop has ended, so nothing waits.
            pass

    def _note(self):
        self._pending += 1
        self._arrived.set()

    def __iter__(self):
        self._place = 0
        return self

    def __next__(self):
        if self._place == len(self._responses) and not self._read():
            self._place = 0
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
        self._place = 0
        return self

    async def __anext__(self):
        if self._place == len(self._responses) and not self._ended:
            if self._call.would_wait():
                await self._wait()
        try:
            return next(self)
        except StopIteration:
            raise StopAsyncIteration from None

    async def _wait(self):
        if self._arrived is None:
            # Created by `exec`, without notifications.
            await asyncio.get_running_loop().run_in_executor(None, self._call.wait)
            return
        while self._call.would_wait():
            self._arrived.clear()
            await self._arrived.wait()

    def cancel(self):
        """Cancels the request. The model's answer to the cancellation can be read."""
        self._call.cancel()


def async_exec(request, decoupled):
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    if decoupled:
        future.set_result(ResponseIterator(request, notified=True))
        return future
    call = None

    def resolve():
        if future.done():
            return
        try:
            future.set_result(call.next())
        except Exception as error:
            future.set_exception(error)

    def notify():
        # On a thread of the module.
        try:
            loop.call_soon_threadsafe(resolve)
        except RuntimeError:
            # The loop has ended, so nothing waits.
            pass

    call = InnerCall(request, False, notify)
    # Cancel the request if its caller stops waiting.
    future.add_done_callback(lambda future: call.cancel() if future.cancelled() else None)
    return future

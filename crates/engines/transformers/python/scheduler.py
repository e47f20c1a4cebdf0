"""Continuous batching: which tokens of which requests are evaluated next.

Each step evaluates a part of a prompt, and then the next token of every request that writes. Requests join and leave between two steps. The
scheduler runs on a thread of its own, which sleeps while there are no requests.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import Any, Callable, Iterable, Protocol

import torch

from .cache import RowCache
from .parameters import SamplingParameters
from .refusal import Refusal
from .sampler import Sampler, TokenLogprob, logprobs
from .text import TextStream


class Client(Protocol):
    """Who receives the output of a request."""

    def is_cancelled(self) -> bool: ...

    def part(self, text: str, logprobs: list[TokenLogprob] | None) -> None:
        """A token, with text that became certain."""

    def finish(self, text: str, reason: str) -> None:
        """The rest of the text, and why it ended."""

    def fail(self, refusal: Refusal) -> None: ...


class Network(Protocol):
    """Evaluates tokens."""

    ends: frozenset[int]

    def read(self, tokens: list[int], cache: RowCache) -> Any: ...

    def write(self, tokens: list[int], cache: RowCache) -> Any: ...


@dataclass(eq=False)
class Generation:
    """A request to generate text."""

    prompt: list[int]
    parameters: SamplingParameters
    client: Client


class Active:
    """A request in progress."""

    def __init__(self, generation: Generation, decode: Callable[[list[int], bool], str], ends: frozenset[int]) -> None:
        self.client, self.prompt, parameters = generation.client, generation.prompt, generation.parameters
        self.parameters = parameters
        self.cache = RowCache()
        # Tokens of the prompt that were read.
        self.read = 0
        self.next = 0
        self._sampler = Sampler(parameters, self.prompt)
        skips = parameters.skip_special_tokens
        self._text = TextStream(
            lambda tokens: decode(tokens, skips), self.prompt, parameters.stop, parameters.include_stop_str_in_output
        )
        self._ends = frozenset(parameters.stop_token_ids) | (frozenset() if parameters.ignore_eos else ends)
        self._generated = 0

    @property
    def is_plain(self) -> bool:
        """Whether the most likely token follows, whatever it is."""
        return self.parameters.is_greedy and self._generated >= self.parameters.min_tokens

    def advance(self, logits: Any, likely: int | None, room: int) -> bool:
        """Chooses the next token, and delivers it. `likely` is the most likely one, if that is to follow. `room` is how many tokens the
        context can take. Returns whether more follow."""
        may_end = self._generated >= self.parameters.min_tokens
        if likely is not None:
            token: int | None = likely
            self._sampler.observe(likely)
        else:
            token = self._sampler.choose(logits, () if may_end else self._ends)
        if token is None:
            raise Refusal("the model gave no token that may follow", "INTERNAL")
        count = self.parameters.logprobs
        found = None if count is None else logprobs(logits, token, count)
        self._generated += 1
        self.next = token
        is_end = token in self._ends
        has_text = not is_end or self.parameters.include_stop_str_in_output
        text, is_stopped = self._text.push(token if has_text else None, may_end)
        self.client.part(text, found)
        if is_end or is_stopped:
            self.client.finish(self._text.finish(), "stop")
        elif room <= 1 or self._generated == self.parameters.max_tokens:
            self.client.finish(self._text.finish(), "length")
        else:
            return True
        return False


class Scheduler:
    """Executes up to `sequences` requests together, each with at most `context` tokens."""

    def __init__(
        self, network: Network, decode: Callable[[list[int], bool], str], sequences: int, context: int, batch: int
    ) -> None:
        self._network, self._decode = network, decode
        self._sequences, self._context = sequences, context
        self._pace = Pace(batch)
        self._changed = threading.Condition()
        # Requests that wait for a place.
        self._waiting: deque[Generation] = deque()
        self._is_ending = False
        self._reading: list[Active] = []
        # In the order of the rows.
        self._writing: list[Active] = []
        self._rows = RowCache()
        self._steps = 0
        self._thread = threading.Thread(target=self._run, name="nereid-language", daemon=True)
        self._thread.start()

    def submit(self, generation: Generation) -> None:
        """Executes a request. Returns when it has a place, so that further ones wait in the server's queue."""
        with self._changed:
            self._waiting.append(generation)
            self._changed.notify_all()
            self._changed.wait_for(lambda: generation not in self._waiting)

    def end(self) -> None:
        """Ends the thread, once all requests have ended."""
        with self._changed:
            self._is_ending = True
            self._changed.notify_all()
        self._thread.join()

    @torch.inference_mode()
    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._reading or self._writing or self._is_ending)
                arrived = self._admit()
                if not (arrived or self._reading or self._writing or self._waiting):
                    return
            for generation in arrived:
                self._guard([generation], partial(self._begin, generation))
            self._step()

    def _begin(self, generation: Generation) -> bool:
        self._reading.append(Active(generation, self._decode, self._network.ends))
        return True

    def _admit(self) -> list[Generation]:
        """Requests that get a place now. Those that were cancelled get one, too: they end before they are read."""
        arrived: list[Generation] = []
        while self._waiting and len(self._reading) + len(self._writing) + len(arrived) < self._sequences:
            arrived.append(self._waiting.popleft())
        if arrived:
            self._changed.notify_all()
        return arrived

    def _step(self) -> None:
        self._drop_cancelled()
        if self._reading:
            # The shortest prompt and the oldest one take turns, so that neither holds up the other for long.
            self._steps += 1
            active = min(self._reading, key=lambda one: len(one.prompt) - one.read) if self._steps % 2 else self._reading[0]
            if not self._guard([active], partial(self._read, active)):
                self._reading.remove(active)
        if self._writing and not self._guard(list(self._writing), self._write):
            self._writing, self._rows = [], RowCache()

    def _drop_cancelled(self) -> None:
        with self._changed:
            waiting = list(self._waiting)
        cancelled = [one for one in waiting if one.client.is_cancelled()]
        with self._changed:
            for generation in cancelled:
                self._waiting.remove(generation)
            self._changed.notify_all()
        left = [one for one in self._reading if one.client.is_cancelled()]
        self._reading = [one for one in self._reading if one not in left]
        for active in [one for one in self._writing if one.client.is_cancelled()]:
            self._leave(active)
            left.append(active)
        refusal = Refusal("the request was cancelled", "CANCELLED")
        for client in [one.client for one in cancelled] + [one.client for one in left]:
            client.fail(refusal)

    def _read(self, active: Active) -> bool:
        """Evaluates a part of a prompt. After the last one, the request joins those that write. Returns whether more of it follows."""
        count = self._pace.tokens(is_alone=not self._writing)
        part = active.prompt[active.read : active.read + count]
        started = time.monotonic()
        logits = self._network.read(part, active.cache)
        active.read += len(part)
        self._pace.observe(len(part), time.monotonic() - started)
        if active.read < len(active.prompt):
            return True
        likely = int(logits.argmax(-1).item()) if active.is_plain and not logits.isnan().any() else None
        if active.advance(logits, likely, self._context - active.read):
            self._writing.append(active)
            if not self._guard(self._writing, partial(self._rows.join, active.cache)):
                # There was no memory for all rows: some of them may be incomplete.
                self._writing, self._rows = [], RowCache()
            active.cache = RowCache()
        return False

    def _write(self) -> bool:
        """Evaluates the next token of each request that writes."""
        logits = self._network.write([active.next for active in self._writing], self._rows)
        best, likely = logits.max(-1)
        tokens, is_defined = likely.tolist(), (best == best).tolist()
        for row, active in enumerate(list(self._writing)):
            plain = tokens[row] if active.is_plain and is_defined[row] else None
            room = self._context - self._rows.lengths[self._writing.index(active)]
            if not self._guard([active], partial(active.advance, logits[row], plain, room)):
                self._leave(active)
        return True

    def _leave(self, active: Active) -> None:
        row = self._writing.index(active)
        self._rows.leave(row)
        last = self._writing.pop()
        if row < len(self._writing):
            self._writing[row] = last

    def _guard(self, members: Iterable[Active | Generation], act: Callable[[], bool]) -> bool:
        """What `act` returns. If it fails, these requests fail, and the outcome is false."""
        try:
            return act()
        except Refusal as refusal:
            failure = refusal
        except Exception as error:
            import traceback

            traceback.print_exc()
            failure = Refusal(" ".join(f"{type(error).__name__}: {error}".split()), "INTERNAL")
        for one in members:
            one.client.fail(failure)
        return False


class Pace:
    """How many tokens of a prompt are read at once: as many as take about a tenth of a second, so that requests that write do not wait
    longer for their next token; or a second, if there are none."""

    _BUDGET_S = 0.1
    _BUDGET_ALONE_S = 1.0
    _FEWEST = 16
    _UNMEASURED = 128

    def __init__(self, most: int) -> None:
        self._most = most
        # The time of one token, as a moving average.
        self._per_token: float | None = None

    def tokens(self, is_alone: bool) -> int:
        if self._per_token is None:
            return min(self._most, self._UNMEASURED)
        budget = self._BUDGET_ALONE_S if is_alone else self._BUDGET_S
        return max(min(self._most, self._FEWEST), min(self._most, int(budget / max(self._per_token, 1e-9))))

    def observe(self, count: int, seconds: float) -> None:
        # Short parts have other costs.
        if count >= self._FEWEST:
            measured = seconds / count
            self._per_token = measured if self._per_token is None else (3 * self._per_token + measured) / 4

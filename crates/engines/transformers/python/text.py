"""The text of a generation as it grows: whole characters only, up to a stop string."""

from __future__ import annotations

from typing import Callable, Sequence

# Stands for bytes that are no character, or not yet one.
_REPLACEMENT = "�"
# The most replacement characters for the beginning of a character: one for each of its bytes.
_LONGEST_BEGINNING = 3
# Tokens in front of the next one that decide how it is written, such as with a space.
_CONTEXT = 5
# Tokens that are decoded again with each further one.
_WINDOW = 16
# The same where no place to begin was found, because the bytes are not text.
_WIDEST_WINDOW = 64


class TextStream:
    """Turns tokens into text.

    Holds back the bytes of an incomplete character, and text that may begin a stop string. `decode` turns a list of tokens into text;
    `prompt` are the tokens in front of the text.
    """

    def __init__(
        self, decode: Callable[[list[int]], str], prompt: Sequence[int], stops: Sequence[str] = (), includes_stop: bool = False
    ) -> None:
        self._decode = decode
        self._tokens = list(prompt[-_WINDOW:])
        # Characters of the decoded tokens that were passed on.
        self._passed = 0
        self._shorten()
        self._passed = len(decode(self._tokens).rstrip(_REPLACEMENT))
        self._stops = [stop for stop in stops if stop]
        self._includes_stop = includes_stop
        # Text that may begin a stop string.
        self._held = ""

    def push(self, token: int | None, watches: bool) -> tuple[str, bool]:
        """Appends a token; `None` has no text. Returns text that is certain now, and whether a stop string ended it. Unless `watches`,
        stop strings are part of the text."""
        if token is not None:
            self._held += self._decoded(token)
        if not watches:
            text, self._held = self._held, ""
            return text, False
        found = self._first_stop()
        if found is not None:
            start, length = found
            text, self._held = self._held[: start + length if self._includes_stop else start], ""
            self._passed = -1
            return text, True
        certain = len(self._held) - self._longest_beginning()
        text, self._held = self._held[:certain], self._held[certain:]
        return text, False

    def finish(self) -> str:
        """The rest of the text, when no token follows."""
        rest = "" if self._passed < 0 else self._decode(self._tokens)[self._passed :]
        text, self._held, self._passed = self._held + rest, "", -1
        return text

    def _decoded(self, token: int) -> str:
        self._tokens.append(token)
        text = self._decode(self._tokens)
        beginning = min(len(text) - len(text.rstrip(_REPLACEMENT)), _LONGEST_BEGINNING)
        end = max(len(text) - beginning, self._passed)
        new, self._passed = text[self._passed : end], end
        if beginning == 0 and len(self._tokens) > _WINDOW:
            self._shorten()
        return new

    def _shorten(self) -> None:
        """Forgets tokens, but begins with a whole character."""
        for count in range(_CONTEXT, len(self._tokens)):
            text = self._decode(self._tokens[-count:])
            if not text.startswith(_REPLACEMENT):
                self._tokens, self._passed = self._tokens[-count:], len(text)
                return
        if len(self._tokens) > _WIDEST_WINDOW:
            self._tokens = self._tokens[-_CONTEXT:]
            self._passed = len(self._decode(self._tokens))

    def _first_stop(self) -> tuple[int, int] | None:
        """The place and length of the stop string that begins first; of several, the longest."""
        found = [(self._held.find(stop), -len(stop)) for stop in self._stops if stop in self._held]
        if not found:
            return None
        start, length = min(found)
        return start, -length

    def _longest_beginning(self) -> int:
        """The length of the longest end of the text that begins a stop string."""
        lengths = [
            length
            for stop in self._stops
            for length in range(1, min(len(stop), len(self._held) + 1))
            if self._held.endswith(stop[:length])
        ]
        return max(lengths, default=0)

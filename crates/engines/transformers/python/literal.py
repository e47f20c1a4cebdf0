"""Texts within a prompt that have no control tokens: a client wrote them, and not the chat template."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

from .refusal import Refusal

# Text in front of which no tokenizer adds a space to another one.
_BEFORE = "a"


def unmarked(text: str, mark: str) -> tuple[str, list[tuple[int, int]]]:
    """A text without its marks, and the places of what is between two of them."""
    parts = text.split(mark)
    places, at = [], 0
    for number, part in enumerate(parts):
        if number % 2 == 1:
            places.append((at, at + len(part)))
        at += len(part)
    return "".join(parts), places


class LiteralTokenizer:
    """Makes tokens of a text, with plain ones for the control tokens at some places. `tokenizer` is one of the package `transformers`."""

    def __init__(self, tokenizer: Any) -> None:
        if not tokenizer.is_fast:
            raise Refusal("input 'literal_mark' needs a model with tokenizer.json")
        from tokenizers import Tokenizer

        self._tokenizer = tokenizer
        self._control = {token for token, added in tokenizer.added_tokens_decoder.items() if added.special}
        # A copy, as another thread may be using the tokenizer.
        self._plain = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        self._plain.no_truncation()
        self._plain.no_padding()
        self._plain.encode_special_tokens = True

    def tokenize(self, text: str, places: list[tuple[int, int]], has_special: bool) -> list[int]:
        found = self._tokenizer(text, add_special_tokens=has_special, return_offsets_mapping=True, verbose=False)
        begins = [begin for begin, _ in places]
        literals: dict[str, list[int]] = {}
        tokens = []
        for token, (start, end) in zip(found["input_ids"], found["offset_mapping"], strict=True):
            # Only the last place that begins before the token's end may reach into it. One without a length is between two texts.
            place = bisect_left(begins, end) - 1
            if token in self._control and place >= 0 and places[place][1] > start:
                written = text[start:end]
                literals[written] = literals.get(written) or self._literal(written)
                tokens += literals[written]
            else:
                tokens.append(token)
        return tokens

    def _literal(self, text: str) -> list[int]:
        before = self._encode(_BEFORE)
        tokens = self._encode(_BEFORE + text)
        return tokens[len(before) :] if tokens[: len(before)] == before else self._encode(text)

    def _encode(self, text: str) -> list[int]:
        tokens: list[int] = self._plain.encode(text, add_special_tokens=False).ids
        return tokens

"""Keys and values of several sequences, which evaluate their next tokens together."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicLayer

# The least number of columns that are allocated beyond those in use.
_LEAST_HEADROOM = 64


class RowCache(Cache):
    """A sequence in each row. All end in the same column, so that the next tokens of all are one column.

    The columns from `start` to `end` are in use; a row that is shorter has nothing in the first of them. Columns that all rows have left
    are reused when there is no room for further ones. Rows and columns are allocated as they are needed.
    """

    def __init__(self) -> None:
        super().__init__(layer_class_to_replicate=partial(_Layer, self))
        # The tokens in each row.
        self.lengths: list[int] = []
        self.start = 0
        self.end = 0
        # How many rows and columns are allocated.
        self.rows = 0
        self.columns = 0

    @property
    def width(self) -> int:
        """The tokens of the longest row."""
        return self.end - self.start

    def mask(self, device: Any) -> Any:
        """Which columns each row has, with the next one. `None` if each has all."""
        if all(length == self.width for length in self.lengths):
            return None
        empty = torch.tensor([[self.width - length] for length in self.lengths], device=device)
        return torch.arange(self.width + 1, device=device)[None] >= empty

    def begin(self, rows: int, count: int) -> None:
        """Makes room for `count` further tokens of each row. `rows` is how many there are."""
        if not self.lengths:
            self.lengths = [0] * rows
        self._reserve(rows, self.width, count)

    def advance(self, count: int) -> None:
        """Adds the tokens that were evaluated since `begin`."""
        self.end += count
        self.lengths = [length + count for length in self.lengths]
        self._refresh()

    def join(self, other: RowCache) -> bool:
        """Appends the only row of another cache. Returns true."""
        (length,) = other.lengths
        self._reserve(len(self.lengths) + 1, max(self.width, length), 1)
        for number, source in enumerate(other.layers):
            if len(self.layers) <= number:
                self.layers.append(_Layer(self))
            if source.stored:
                self.layers[number].take(source, len(self.lengths), other.start, other.end)
        self.lengths.append(length)
        self._refresh()
        return True

    def leave(self, row: int) -> None:
        """Removes a row. The last one takes its place."""
        last = len(self.lengths) - 1
        if last == 0:
            # Frees the memory.
            self.layers.clear()
            self.lengths.clear()
            self.start = self.end = self.rows = self.columns = 0
            return
        if row != last:
            for layer in self.layers:
                layer.move(last, row)
        self.lengths[row] = self.lengths[last]
        self.lengths.pop()
        self.start = self.end - max(self.lengths)
        self._refresh()

    def _reserve(self, rows: int, width: int, count: int) -> None:
        """Makes room for `rows` rows of `width` tokens up to the last column, and for `count` further columns."""
        if rows > self.rows or self.end < width or self.end + count > self.columns:
            self.rows = rows if rows <= self.rows else max(rows, 2 * self.rows)
            self.columns = width + count + max(width // 2, _LEAST_HEADROOM)
            for layer in self.layers:
                layer.reallocate(len(self.lengths), self.start, self.end, width)
            self.start, self.end = width - self.width, width
        # Rows that are shorter have nothing in the columns before.
        self.start = self.end - width

    def _refresh(self) -> None:
        for layer in self.layers:
            layer.show(len(self.lengths), self.start, self.end)


class _Layer(DynamicLayer):
    """Keys and values of a layer of the model. Those in use are views of larger tensors."""

    def __init__(self, cache: RowCache) -> None:
        super().__init__()
        self._cache = cache
        # Keys and values, with room for more.
        self.stored: list[Any] = []

    def update(self, key_states: Any, value_states: Any, *_more: Any, **_options: Any) -> tuple[Any, Any]:
        cache = self._cache
        if not self.stored:
            self._allocate([key_states, value_states])
        rows, end = key_states.shape[0], cache.end + key_states.shape[-2]
        for stored, states in zip(self.stored, (key_states, value_states)):
            stored[:rows, :, cache.end : end] = states
        self.show(rows, cache.start, end)
        return self.keys, self.values

    def _allocate(self, like: list[Any]) -> None:
        """Allocates keys and values like these. What is in no row is zero: undefined numbers would spread through sums."""
        rows, columns = self._cache.rows, self._cache.columns
        self.stored = [states.new_zeros((rows, states.shape[1], columns, states.shape[3])) for states in like]
        self.device, self.dtype, self.is_initialized = like[0].device, like[0].dtype, True

    def show(self, rows: int, start: int, end: int) -> None:
        """Sets what the model sees."""
        if self.stored:
            self.keys, self.values = (stored[:rows, :, start:end] for stored in self.stored)

    def reallocate(self, rows: int, start: int, end: int, new_end: int) -> None:
        """Moves what is in use to new tensors, where it ends in another column."""
        if self.stored:
            old = self.stored
            self._allocate(old)
            for new, stored in zip(self.stored, old):
                new[:rows, :, new_end - (end - start) : new_end] = stored[:rows, :, start:end]

    def take(self, source: _Layer, row: int, start: int, end: int) -> None:
        """Copies the first row of a layer of another cache."""
        if not self.stored:
            self._allocate(source.stored)
        own_end = self._cache.end
        for stored, other in zip(self.stored, source.stored):
            stored[row, :, : own_end - (end - start)] = 0
            stored[row, :, own_end - (end - start) : own_end] = other[0, :, start:end]

    def move(self, row: int, to: int) -> None:
        for stored in self.stored:
            stored[to] = stored[row]

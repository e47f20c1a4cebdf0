"""The parameters of a model's configuration: how many sequences, how long, on how many threads."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from .refusal import Refusal

# The longest context that a model gets by default.
_CONTEXT = 4096
_DTYPES = ("auto", "float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Options:
    """The choices of a model's configuration."""

    # Requests that are executed together.
    sequences: int
    # The most tokens of a request, with those of its answer.
    context: int
    # The most tokens of a prompt that are read at once.
    batch: int
    threads: int
    dtype: str

    @classmethod
    def of(cls, config: dict[str, Any], trained: int | None) -> Options:
        """Reads a configuration, for a model that was trained with contexts of this length, if that is known."""
        texts = {key: value["string_value"].strip() for key, value in config.get("parameters", {}).items()}

        def number(key: str, least: int, most: int, default: int) -> int:
            text = texts.get(key)
            if text is None:
                return default
            if not (text.isascii() and text.isdigit() and len(text) < 20 and least <= int(text) <= most):
                raise Refusal(f"parameter '{key}' is '{text}', but must be a number from {least} to {most}")
            return int(text)

        instances = sum(max(1, group.get("count", 1)) for group in config.get("instance_group", [])) or 1
        processors = len(os.sched_getaffinity(0))
        context = number("context_length", 8, 1 << 24, min(trained or _CONTEXT, _CONTEXT))
        if trained is not None and context > trained:
            raise Refusal(f"parameter 'context_length' is {context}, but the model has positions for {trained} tokens")
        dtype = texts.get("dtype", "auto")
        if dtype not in _DTYPES:
            raise Refusal(f"parameter 'dtype' is '{dtype}', but must be {', '.join(_DTYPES[:-1])} or {_DTYPES[-1]}")
        return cls(
            sequences=number("max_sequences", 1, 256, 8),
            context=context,
            batch=number("batch_tokens", 1, 1 << 16, 512),
            threads=min(number("threads", 1, 1024, max(1, processors // instances)), processors),
            dtype=dtype,
        )

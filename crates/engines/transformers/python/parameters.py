"""The sampling parameters of a request: JSON with the names of vLLM's `SamplingParams`.

Numbers and truth values may also be text, as in requests for Triton's vLLM backend. Parameters that this engine lacks are refused by
name, unless they have the value that makes no difference.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any, Callable

from .refusal import Refusal, shortened

# The tokens of a request that sets no limit, as in vLLM.
_DEFAULT_MAX_TOKENS = 16
# The most alternatives that a request may list for each token.
_MAX_LOGPROBS = 20
# The most stop strings of a request, and the longest in bytes: all of them are searched after each token.
_MAX_STOPS = 64
_MAX_STOP_LENGTH = 4096
# Below this temperature, the most likely token is taken.
_GREEDY = 1e-5
_MOST = 1 << 63


@dataclass
class SamplingParameters:
    """How a request's tokens are chosen, and when they end."""

    # 0 for the most likely token.
    temperature: float = 1.0
    # 0 for no limit.
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    seed: int | None = None
    stop: list[str] = field(default_factory=list)
    stop_token_ids: list[int] = field(default_factory=list)
    include_stop_str_in_output: bool = False
    # None for no limit but the context's.
    max_tokens: int | None = _DEFAULT_MAX_TOKENS
    min_tokens: int = 0
    ignore_eos: bool = False
    # How many alternatives are listed for each token; None for no probabilities at all.
    logprobs: int | None = None
    skip_special_tokens: bool = True

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token of the unchanged logits is taken."""
        return self.temperature == 0 and not self.logit_bias and not self.has_penalties

    @property
    def has_penalties(self) -> bool:
        return (self.repetition_penalty, self.frequency_penalty, self.presence_penalty) != (1, 0, 0)


def parse(text: str, vocabulary: int) -> SamplingParameters:
    """Reads the JSON of a request for a model with a vocabulary of this size."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Refusal(f"input 'sampling_parameters': not a JSON object: {error}") from None
    if not isinstance(values, dict):
        raise Refusal(f"input 'sampling_parameters': not a JSON object: {shortened(values)}")
    return read(values, vocabulary)


def read(values: dict[str, Any], vocabulary: int) -> SamplingParameters:
    """Reads parameters by their names."""
    parameters = SamplingParameters()
    for name, value in values.items():
        if value is None:
            # Parameters without a value keep their default, except for the one that then has no limit.
            if name == "max_tokens":
                parameters.max_tokens = None
        elif name in _READERS:
            setattr(parameters, name, _READERS[name](_Value(name, value, vocabulary)))
        elif name not in _WITHOUT_MEANING:
            _refuse_unless_neutral(_Value(name, value, vocabulary))
    if parameters.max_tokens is not None and parameters.min_tokens > parameters.max_tokens:
        raise Refusal(f"sampling parameter 'min_tokens' is {parameters.min_tokens}, but 'max_tokens' is {parameters.max_tokens}")
    if parameters.temperature < _GREEDY:
        parameters.temperature = 0.0
    return parameters


@dataclass
class _Value:
    """A parameter of a request, as JSON."""

    name: str
    value: Any
    vocabulary: int

    def wrong(self, expected: str) -> Refusal:
        return Refusal(f"sampling parameter '{self.name}' is {shortened(self.value)}, but must be {expected}")

    def number(self, least: float, most: float, expected: str) -> float:
        return _number(self.value, least, most, self.wrong(expected))

    def above_zero(self, most: float, expected: str) -> float:
        number = self.number(0, most, expected)
        if number == 0:
            raise self.wrong(expected)
        return number

    def integer(self, least: int, expected: str) -> int:
        value = self.value
        if isinstance(value, str):
            try:
                value = int(value.strip()) if len(value) <= 64 else None
            except ValueError:
                value = None
        if isinstance(value, bool) or not isinstance(value, int) or not max(least, -_MOST) <= value < 2 * _MOST:
            raise self.wrong(expected)
        return value

    def count(self, least: int) -> int:
        return self.integer(least, f"{least} or more")

    def truth(self) -> bool:
        value = self.value
        if isinstance(value, str):
            value = {"true": True, "false": False}.get(value.lower())
        if value is None or value not in (0, 1):
            raise self.wrong("true or false")
        return bool(value)

    def logprobs(self) -> int:
        count = self.count(0)
        if count > _MAX_LOGPROBS:
            raise self.wrong(f"at most {_MAX_LOGPROBS}")
        return count

    def stops(self) -> list[str]:
        stops = [self.value] if isinstance(self.value, str) else self.value
        are_texts = isinstance(stops, list) and len(stops) <= _MAX_STOPS and all(isinstance(stop, str) for stop in stops)
        if not are_texts or any(len(stop.encode(errors="replace")) > _MAX_STOP_LENGTH for stop in stops):
            raise self.wrong(f"text, or at most {_MAX_STOPS} texts, each of at most {_MAX_STOP_LENGTH} bytes")
        return stops

    def token(self, token: Any) -> int:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < self.vocabulary:
            raise self.wrong(f"made of tokens from 0 to {self.vocabulary - 1}")
        return token

    def tokens(self) -> list[int]:
        if not isinstance(self.value, list) or len(self.value) > _MAX_STOPS:
            raise self.wrong(f"a list of at most {_MAX_STOPS} tokens")
        return [self.token(token) for token in self.value]

    def biases(self) -> dict[int, float]:
        if not isinstance(self.value, dict):
            raise self.wrong("an object of tokens and numbers")
        wrong = self.wrong("made of numbers from -100 to 100")
        return {
            self.token(int(token) if token.isascii() and token.isdigit() and len(token) < 20 else None): _number(
                bias, -100, 100, wrong
            )
            for token, bias in self.value.items()
        }


def _number(value: Any, least: float, most: float, wrong: Refusal) -> float:
    try:
        number = math.nan if isinstance(value, bool) or not isinstance(value, (int, float, str)) else float(value)
    except (ValueError, OverflowError):
        number = math.nan
    # Comparisons with NaN are false.
    if not least <= number <= most:
        raise wrong
    return number


_FLOAT_MAX = 3.4e38
_PENALTY = (-2, 2, "between -2 and 2")
_READERS: dict[str, Callable[[_Value], Any]] = {
    "temperature": lambda given: given.number(0, _FLOAT_MAX, "0 or more"),
    "top_p": lambda given: given.above_zero(1, "above 0 and at most 1"),
    "top_k": lambda given: max(0, given.integer(-1, "-1, 0 or more")),
    "min_p": lambda given: given.number(0, 1, "between 0 and 1"),
    "repetition_penalty": lambda given: given.above_zero(_FLOAT_MAX, "above 0"),
    "frequency_penalty": lambda given: given.number(*_PENALTY),
    "presence_penalty": lambda given: given.number(*_PENALTY),
    "logit_bias": _Value.biases,
    "seed": lambda given: given.integer(-_MOST, "an integer"),
    "stop": _Value.stops,
    "stop_token_ids": _Value.tokens,
    "include_stop_str_in_output": _Value.truth,
    "max_tokens": lambda given: given.count(1),
    "min_tokens": lambda given: given.count(0),
    "ignore_eos": _Value.truth,
    "logprobs": _Value.logprobs,
    "skip_special_tokens": _Value.truth,
}

# Triton's faces and clients send these with the others; they do not concern sampling. No prefixes are cached, so none are shared.
_WITHOUT_MEANING = ("spaces_between_special_tokens", "detokenize", "output_kind", "cache_salt")

# Parameters of vLLM that this engine lacks, and the values with which they make no difference.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1, "1"),
    "best_of": (1, "1"),
    "use_beam_search": (False, "false", "False", 0),
    "early_stopping": (False, "false", "False", 0),
    "length_penalty": (1, "1", "1.0"),
    "bad_words": ([],),
    "speculative_tokens": (0, "0"),
}
_LACKING = (
    "prompt_logprobs",
    "allowed_token_ids",
    "truncate_prompt_tokens",
    "logits_processors",
    "extra_args",
    "lora_name",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
)


def _refuse_unless_neutral(given: _Value) -> None:
    if given.name not in _NEUTRAL and given.name not in _LACKING:
        raise Refusal(f"unknown sampling parameter '{given.name}'")
    if given.value not in _NEUTRAL.get(given.name, ()):
        message = (
            f"backend 'transformers' does not support sampling parameter '{given.name}' with the value {shortened(given.value)}"
        )
        raise Refusal(message, "UNSUPPORTED")

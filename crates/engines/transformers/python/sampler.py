"""Chooses the next token from logits.

The order is vLLM's: bias, tokens that may not follow yet, penalties, temperature, `min_p`, `top_k`, `top_p`. Reported probabilities follow
from the unchanged logits.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any, Iterable, Sequence

import torch

from .parameters import SamplingParameters

# How many of the most likely tokens `top_p` considers first: sorting all of them would take longer.
_FIRST_NUCLEUS = 256


@dataclass
class TokenLogprob:
    """The probability of a token. The most likely token has the rank 1."""

    token: int
    logprob: float
    rank: int


class Sampler:
    """Chooses the tokens of one request."""

    def __init__(self, parameters: SamplingParameters, prompt: Sequence[int]) -> None:
        self._parameters = parameters
        # Python takes seeds without their sign.
        self._random = random.Random(None if parameters.seed is None else parameters.seed % (1 << 64))
        self._prompt = set(prompt) if parameters.repetition_penalty != 1 else set()
        # How often each token occurred in the output.
        self._counts: dict[int, int] = {}

    def choose(self, logits: Any, excluded: Iterable[int] = ()) -> int | None:
        """Chooses a token. Those that are `excluded` may not follow. `None` if no token may. `logits` are FP32, and left unchanged."""
        parameters = self._parameters
        # Undefined logits never follow.
        scores = torch.nan_to_num(logits, nan=-math.inf, posinf=math.inf, neginf=-math.inf)
        for token, bias in parameters.logit_bias.items():
            scores[token] += bias
        for token in excluded:
            scores[token] = -math.inf
        if parameters.has_penalties:
            self._penalise(scores)
        best, token = (it.item() for it in scores.max(-1))
        if best == -math.inf:
            return None
        chosen = token if parameters.temperature == 0 else self._draw(scores, best, token)
        self.observe(chosen)
        return chosen

    def observe(self, token: int) -> None:
        """Counts a token that was chosen."""
        if self._parameters.has_penalties:
            self._counts[token] = self._counts.get(token, 0) + 1

    def _penalise(self, scores: Any) -> None:
        parameters = self._parameters
        seen = list(self._prompt.union(self._counts))
        if not seen:
            return
        index = torch.tensor(seen, device=scores.device)
        values = scores[index]
        if parameters.repetition_penalty != 1:
            penalty = parameters.repetition_penalty
            values = torch.where(values > 0, values / penalty, values * penalty)
        counts = torch.tensor([self._counts.get(token, 0) for token in seen], dtype=scores.dtype, device=scores.device)
        values -= parameters.frequency_penalty * counts + parameters.presence_penalty * (counts > 0)
        scores[index] = values

    def _draw(self, scores: Any, best: float, token: int) -> int:
        """Draws a token at random. `best` is the highest score, of `token`."""
        parameters, tokens = self._parameters, None
        if best == math.inf:
            return token
        if parameters.min_p > 0:
            # A token with the fraction `min_p` of the highest probability is this far below the highest logit.
            scores = scores.masked_fill(scores < best + math.log(parameters.min_p) * parameters.temperature, -math.inf)
        if 0 < parameters.top_k < len(scores):
            scores, tokens = scores.topk(parameters.top_k)
        weights = torch.exp((scores.double() - best) / parameters.temperature)
        if parameters.top_p < 1:
            weights, nucleus = _nucleus(weights, parameters.top_p)
            tokens = nucleus if tokens is None else tokens[nucleus]
        sums = weights.cumsum(-1)
        place = int(torch.searchsorted(sums, self._random.random() * sums[-1], right=True).item())
        # Rounding may lead past the end, where the weights are zero.
        if place >= len(sums) or weights[place] == 0:
            return token
        return place if tokens is None else int(tokens[place].item())


def _nucleus(weights: Any, top_p: float) -> tuple[Any, Any]:
    """The largest weights that add up to the fraction `top_p`, and their places."""
    wanted, considered = weights.sum() * top_p, _FIRST_NUCLEUS
    while True:
        head, places = weights.topk(min(considered, len(weights)))
        enough = int(torch.searchsorted(head.cumsum(-1), wanted).item())
        if enough < len(head) or len(head) == len(weights):
            return head[: enough + 1], places[: enough + 1]
        considered *= 4


def logprobs(logits: Any, token: int, count: int) -> list[TokenLogprob]:
    """The probability of a token, and then those of the `count` most likely ones, without it."""
    logits = torch.nan_to_num(logits, nan=-math.inf)
    values = torch.log_softmax(logits, -1)
    own = logits[token]
    above = int((logits > own).sum().item()) + int((logits[:token] == own).sum().item())
    found = [TokenLogprob(token, values[token].item(), above + 1)]
    best, tokens = values.topk(min(count, len(values)))
    ranked = enumerate(zip(tokens.tolist(), best.tolist()), 1)
    return found + [TokenLogprob(other, value, rank) for rank, (other, value) in ranked if other != token]

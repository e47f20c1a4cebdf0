"""The model and its tokenizer, as the package `transformers` has them."""

from __future__ import annotations

import inspect
import os
import warnings
from typing import Any, Sequence

# Models are files of the repository: nothing is fetched.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"

import torch
import transformers

from .cache import RowCache
from .literal import LiteralTokenizer, unmarked
from .options import Options
from .refusal import Refusal

# The names of the cache among the arguments of a model.
_CACHES = ("cache", "past_key_values")
# The names of the number of positions whose logits a model computes.
_KEEPS = ("logits_to_keep", "num_logits_to_keep")


class Vocabulary:
    """Turns text into tokens, and tokens into text."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._first = tokenizer.bos_token_id
        self.end: int | None = tokenizer.eos_token_id
        self._known = len(tokenizer)
        # The characters of the longest token.
        self.longest = max(map(len, tokenizer.get_vocab()), default=1)
        # Made when it is needed, as it takes memory.
        self._literal: LiteralTokenizer | None = None

    def tokenize(self, text: str, has_special: bool, mark: str | None = None) -> list[int]:
        """The tokens of a text, with those that begin and end every text if `has_special`. A text that has the first one itself gets no
        second one. Between two marks, control tokens are text."""
        if mark is not None and mark in text:
            text, places = unmarked(text, mark)
            self._literal = self._literal or LiteralTokenizer(self._tokenizer)
            tokens = self._literal.tokenize(text, places, has_special)
        else:
            tokens = self._tokenizer(text, add_special_tokens=has_special, verbose=False)["input_ids"]
        if (
            has_special
            and self._first is not None
            and tokens[:2] == [self._first] * 2
            and text.startswith(self._tokenizer.bos_token)
        ):
            del tokens[0]
        return list(tokens)

    def decode(self, tokens: Sequence[int], skips_special: bool) -> str:
        # Models may have more tokens than their tokenizers.
        known = [token for token in tokens if token < self._known]
        text = self._tokenizer.decode(known, skip_special_tokens=skips_special, clean_up_tokenization_spaces=False)
        return str(text)


class Network:
    """A causal language model on a device."""

    def __init__(self, folder: str, options: Options, device: str) -> None:
        self.device = torch.device(device)
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # Code and pickles of a model's author are not run.
            how = {"local_files_only": True, "trust_remote_code": False}
            self.vocabulary = Vocabulary(transformers.AutoTokenizer.from_pretrained(folder, **how))
            model = transformers.AutoModelForCausalLM.from_pretrained(
                folder, dtype=_dtype(options.dtype, self.device), use_safetensors=True, **how
            )
        self._model = model.to(self.device).eval()
        arguments = inspect.signature(model.forward).parameters
        caches = [name for name in _CACHES if name in arguments]
        if not caches:
            raise Refusal(f"a model of the type '{model.config.model_type}' keeps no keys and values that requests could share")
        self._cache = caches[0]
        self._takes_positions = "position_ids" in arguments
        self._keeps = {name: 1 for name in _KEEPS if name in arguments}
        self.ends = _ends(model, self.vocabulary)
        self.vocabulary_size = self._try()

    def _try(self) -> int:
        """Evaluates two sequences together, which not all models can. Returns the number of logits."""
        try:
            rows = RowCache()
            for tokens in ([0, 1, 2], [0]):
                alone = RowCache()
                self.read(tokens, alone)
                rows.join(alone)
            logits = self.write([0, 1], rows)
            is_kept = any(layer.stored for layer in rows.layers)
        except Exception as error:
            kind = self._model.config.model_type
            message = f"models of the type '{kind}' cannot evaluate requests together, for which each layer must keep keys and values alone"
            raise Refusal(f"{message} ({_one_line(error)})") from error
        if not is_kept:
            raise Refusal(f"models of the type '{self._model.config.model_type}' keep no keys and values that requests could share")
        return int(logits.shape[-1])

    @torch.inference_mode()
    def read(self, tokens: Sequence[int], cache: RowCache) -> Any:
        """Evaluates the next tokens of a prompt, alone in a cache. Returns the logits of the last one."""
        cache.begin(1, len(tokens))
        places = torch.arange(cache.width, cache.width + len(tokens), device=self.device)[None]
        logits = self._evaluate(torch.tensor([tokens], device=self.device), places, cache, None)
        cache.advance(len(tokens))
        return logits[0]

    @torch.inference_mode()
    def write(self, tokens: Sequence[int], cache: RowCache) -> Any:
        """Evaluates the next token of each row. Returns the logits of each."""
        cache.begin(len(tokens), 1)
        places = torch.tensor([[length] for length in cache.lengths], device=self.device)
        logits = self._evaluate(
            torch.tensor([[token] for token in tokens], device=self.device), places, cache, cache.mask(self.device)
        )
        cache.advance(1)
        return logits

    def _evaluate(self, tokens: Any, places: Any, cache: RowCache, mask: Any) -> Any:
        positions = {"position_ids": places} if self._takes_positions else {}
        how = {self._cache: cache, "use_cache": True, **positions, **self._keeps}
        return self._model(input_ids=tokens, attention_mask=mask, **how).logits[:, -1].float()


def _dtype(name: str, device: Any) -> Any:
    """The type of the weights. `auto` is the file's type on GPUs; most CPUs are slow with all but FP32."""
    if name == "auto":
        return "auto" if device.type == "cuda" else torch.float32
    return getattr(torch, name)


def _ends(model: Any, vocabulary: Vocabulary) -> frozenset[int]:
    """The tokens that end a text."""
    ends = {vocabulary.end}
    for config in (model.generation_config, model.config):
        found = getattr(config, "eos_token_id", None)
        ends.update(found if isinstance(found, (list, tuple)) else [found])
    return frozenset(end for end in ends if end is not None)


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:500]

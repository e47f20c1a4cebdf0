"""The tensors of a language model, with the names and meanings of Triton's vLLM backend."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable

import numpy as np
import triton_python_backend_utils as pb_utils

from .literal import unmarked
from .parameters import SamplingParameters, parse, read
from .refusal import Refusal

if TYPE_CHECKING:
    from .sampler import TokenLogprob

# The inputs. All have one element, but for the tokens; only the first one is required.
_INPUTS = {
    "text_input": "TYPE_STRING",
    "stream": "TYPE_BOOL",
    "sampling_parameters": "TYPE_STRING",
    "exclude_input_in_output": "TYPE_BOOL",
    "return_finish_reason": "TYPE_BOOL",
    "return_logprobs": "TYPE_BOOL",
    "return_num_input_tokens": "TYPE_BOOL",
    "return_num_output_tokens": "TYPE_BOOL",
    "operation": "TYPE_STRING",
    "literal_mark": "TYPE_STRING",
    "add_special_tokens": "TYPE_BOOL",
    "tokens": "TYPE_INT32",
}
_OUTPUTS = {
    "text_output": "TYPE_STRING",
    "finish_reason": "TYPE_STRING",
    "logprobs": "TYPE_STRING",
    "num_input_tokens": "TYPE_UINT32",
    "num_output_tokens": "TYPE_UINT32",
    "tokens": "TYPE_INT32",
}
# The most tokens of a request to make text of them.
_MAX_TOKENS = 1 << 20


def complete(config: dict[str, Any]) -> None:
    """Adds the inputs and outputs that a configuration lacks, and makes the model decoupled."""
    for role, known in (("input", _INPUTS), ("output", _OUTPUTS)):
        listed = config.setdefault(role, [])
        names = {tensor["name"] for tensor in listed}
        for name in known:
            if name not in names:
                tensor: dict[str, Any] = {"name": name, "data_type": known[name], "dims": [_length(name)]}
                listed.append(tensor | ({"optional": True} if role == "input" and name != "text_input" else {}))
    config.setdefault("model_transaction_policy", {})["decoupled"] = True


def check(config: dict[str, Any]) -> None:
    """Refuses a configuration that the server does not refuse itself."""
    if config.get("max_batch_size", 0) > 0:
        raise Refusal(
            f"max_batch_size is {config['max_batch_size']}, but must be 0: backend 'transformers' batches requests itself, see "
            "parameter 'max_sequences'"
        )
    if not config.get("model_transaction_policy", {}).get("decoupled"):
        raise Refusal("model_transaction_policy must have decoupled: true: a request with 'stream' has several responses")
    for role, known, needed in (("input", _INPUTS, "text_input"), ("output", _OUTPUTS, "text_output")):
        listed = config.get(role, [])
        if all(tensor["name"] != needed for tensor in listed):
            raise Refusal(f"the model needs the {role} '{needed}'")
        for tensor in listed:
            name = tensor["name"]
            if name not in known:
                raise Refusal(f"{role} '{name}': backend 'transformers' has no {role} of this name")
            if tensor["data_type"] != known[name] or [int(size) for size in tensor["dims"]] not in ([1], [-1]):
                raise Refusal(f"{role} '{name}' must have data_type {known[name]} and dims [ {_length(name)} ]")


def _length(name: str) -> int:
    return -1 if name == "tokens" else 1


@dataclass(frozen=True)
class Wish:
    """A request's inputs, read and checked."""

    text: str
    # The character around texts without control tokens.
    mark: str | None
    # The tokens of the prompt, if they are given instead of its text.
    tokens: list[int] | None
    parameters: SamplingParameters
    streams: bool
    repeats_input: bool
    # The outputs to return beside the text.
    returns: frozenset[str]

    @classmethod
    def of(cls, request: Any, vocabulary: int) -> Wish:
        """Reads the inputs of a request for a model with a vocabulary of this size."""
        streams = flag(request, "stream") or False
        excludes_input = flag(request, "exclude_input_in_output")
        if streams and excludes_input is False:
            raise Refusal("input 'exclude_input_in_output' must not be false if 'stream' is true")
        sampling = text(request, "sampling_parameters")
        parameters = read(json.loads(request.parameters() or "{}"), vocabulary) if sampling is None else parse(sampling, vocabulary)
        returns = frozenset(name for name in _OUTPUTS if f"return_{name}" in _INPUTS and flag(request, f"return_{name}"))
        if "logprobs" not in returns:
            parameters.logprobs = None
        prompt = text(request, "text_input")
        if prompt is None:
            raise Refusal("the request lacks input 'text_input'")
        tokens = None if pb_utils.get_input_tensor_by_name(request, "tokens") is None else token_numbers(request, vocabulary)
        if tokens is not None and prompt:
            raise Refusal("the request has a prompt in both 'text_input' and 'tokens', but one of them must be empty")
        return cls(
            prompt,
            literal_mark(request),
            tokens,
            parameters,
            streams,
            not (streams if excludes_input is None else excludes_input),
            returns,
        )


def _element(request: Any, name: str) -> Any:
    """The only element of an optional input."""
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    if tensor is None:
        return None
    elements = tensor.as_numpy().reshape(-1)
    if len(elements) != 1:
        raise Refusal(f"input '{name}' must have one element")
    return elements[0]


def flag(request: Any, name: str) -> bool | None:
    found = _element(request, name)
    return None if found is None else bool(found)


def text(request: Any, name: str) -> str | None:
    found = _element(request, name)
    try:
        return None if found is None else found.decode()
    except UnicodeDecodeError:
        raise Refusal(f"input '{name}' is not valid UTF-8") from None


def literal_mark(request: Any) -> str | None:
    """The character around texts without control tokens."""
    mark = text(request, "literal_mark")
    if mark is not None and len(mark) != 1:
        raise Refusal("input 'literal_mark' must be one character")
    return mark


def token_numbers(request: Any, vocabulary: int) -> list[int]:
    """The input `tokens`."""
    tensor = pb_utils.get_input_tensor_by_name(request, "tokens")
    if tensor is None:
        raise Refusal("the request lacks input 'tokens'")
    tokens: list[int] = tensor.as_numpy().reshape(-1).tolist()
    if len(tokens) > _MAX_TOKENS:
        raise Refusal(f"input 'tokens' has more than {_MAX_TOKENS} elements")
    wrong = next((token for token in tokens if not 0 <= token < vocabulary), None)
    if wrong is not None:
        raise Refusal(f"input 'tokens' has {wrong}, but the tokens are 0 to {vocabulary - 1}")
    return tokens


class Reply:
    """Answers a request: part by part, or with the whole output."""

    def __init__(self, request: Any, wish: Wish, input_tokens: int, piece: Callable[[int], str]) -> None:
        self._sender = request.get_response_sender()
        self._wish = wish
        self._input_tokens = input_tokens
        self._piece = piece
        # Output that is not sent yet.
        repeated = wish.text if wish.mark is None else unmarked(wish.text, wish.mark)[0]
        self._text = repeated if wish.repeats_input else ""
        self._tokens = 0
        self._logprobs: list[list[TokenLogprob]] = []

    def is_cancelled(self) -> bool:
        try:
            return bool(self._sender.is_cancelled())
        except pb_utils.TritonModelException:
            # The server has ended.
            return True

    def part(self, text: str, logprobs: list[TokenLogprob] | None) -> None:
        self._text += text
        self._tokens += 1
        if logprobs is not None:
            self._logprobs.append(logprobs)
        if self._wish.streams and self._text:
            self._sender.send(self._response("None"))

    def finish(self, text: str, reason: str) -> None:
        self._text += text
        self._sender.send(self._response(reason), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def fail(self, refusal: Refusal) -> None:
        answer_with_error(self._sender, refusal)

    def _response(self, reason: str) -> Any:
        """A response of what is not sent yet."""
        values: dict[str, Any] = {
            "finish_reason": reason,
            "logprobs": self._logprobs_json() if "logprobs" in self._wish.returns else "",
            "num_input_tokens": np.uint32(self._input_tokens),
            "num_output_tokens": np.uint32(self._tokens),
        }
        tensors = [tensor(name, values[name]) for name in values if name in self._wish.returns]
        response = pb_utils.InferenceResponse([tensor("text_output", self._text), *tensors])
        self._text, self._tokens, self._logprobs = "", 0, []
        return response

    def _logprobs_json(self) -> str:
        """The probabilities as vLLM lists them: for each token, an object with the token first, then its alternatives."""
        if not self._logprobs:
            return "null"

        def entry(found: TokenLogprob) -> dict[str, Any]:
            return {"logprob": max(found.logprob, -9999.0), "rank": found.rank, "decoded_token": self._piece(found.token)}

        return json.dumps([{str(found.token): entry(found) for found in token} for token in self._logprobs])


def tensor(name: str, value: Any) -> Any:
    """An output with one element, or with the elements of a list."""
    if isinstance(value, str):
        return pb_utils.Tensor(name, np.array([value.encode()], dtype=np.object_))
    return pb_utils.Tensor(name, np.array(value, dtype=np.int32) if isinstance(value, list) else np.array([value]))


def answer_with_error(sender: Any, refusal: Refusal) -> None:
    """Ends a request with an error, unless it has ended."""
    kind = getattr(pb_utils.TritonError, refusal.kind)
    response = pb_utils.InferenceResponse(error=pb_utils.TritonError(refusal.message, kind))
    try:
        sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    except pb_utils.TritonModelException:
        # It was answered before, or the server has ended.
        pass

"""The class of the backend `transformers`: language models in the layout of Hugging Face's hub."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import triton_python_backend_utils as pb_utils

from . import contract
from .folder import ModelFolder, check_packages
from .options import Options
from .refusal import Refusal

if TYPE_CHECKING:
    from .network import Network
    from .scheduler import Scheduler


class TritonPythonModel:
    """A model. `network` and `scheduler` need packages that completing a configuration does not."""

    _network: Network
    _scheduler: Scheduler | None = None

    @staticmethod
    def auto_complete_config(config: Any) -> Any:
        try:
            check_packages()
            completed = config.as_dict()
            contract.complete(completed)
            folder = ModelFolder(pb_utils.get_model_dir())
            options = Options.of(completed, folder.context)
            parameters = completed.setdefault("parameters", {})
            for name, value in {**folder.parameters(), "context_length": str(options.context)}.items():
                parameters.setdefault(name, {"string_value": value})
            contract.check(completed)
        except Refusal as refusal:
            raise pb_utils.TritonModelException(refusal.message) from None
        return config

    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        path = os.path.join(args["model_repository"], args["model_version"])
        try:
            check_packages()
            contract.check(config)
            self._options = Options.of(config, ModelFolder(path).context)
            self._load(path, _device(args))
        except Refusal as refusal:
            raise pb_utils.TritonModelException(refusal.message) from None

    def _load(self, path: str, device: str) -> None:
        import torch

        from .network import Network
        from .scheduler import Scheduler

        options = self._options
        torch.set_num_threads(options.threads)
        self._network = Network(path, options, device)
        decode = self._network.vocabulary.decode
        self._scheduler = Scheduler(self._network, decode, options.sequences, options.context, options.batch)

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            try:
                self._begin(request)
            except Refusal as refusal:
                contract.answer_with_error(request.get_response_sender(), refusal)

    def _begin(self, request: Any) -> None:
        """Begins to execute a request, or answers it."""
        operation = contract.text(request, "operation") or "generate"
        if operation == "generate":
            self._generate(request)
        elif operation == "tokenize":
            text = self._prompt(contract.text(request, "text_input") or "")
            has_special = contract.flag(request, "add_special_tokens")
            tokens = self._network.vocabulary.tokenize(text, has_special is not False, contract.literal_mark(request))
            _answer(request, contract.tensor("tokens", tokens))
        elif operation == "detokenize":
            tokens = contract.token_numbers(request, self._network.vocabulary_size)
            _answer(request, contract.tensor("text_output", self._network.vocabulary.decode(tokens, False)))
        else:
            raise Refusal(f"input 'operation' is '{operation}', but must be generate, tokenize or detokenize")

    def _generate(self, request: Any) -> None:
        from .scheduler import Generation

        network = self._network
        wish = contract.Wish.of(request, network.vocabulary_size)
        if wish.tokens is None:
            prompt = network.vocabulary.tokenize(self._prompt(wish.text), True, wish.mark)
        else:
            prompt = wish.tokens
            if wish.repeats_input:
                wish = replace(wish, text=network.vocabulary.decode(prompt, False))
        if not prompt:
            raise Refusal("the prompt has no tokens")
        if len(prompt) >= self._options.context:
            raise self._too_long(f"{len(prompt)} tokens")
        reply = contract.Reply(request, wish, len(prompt), lambda token: network.vocabulary.decode([token], False))
        assert self._scheduler is not None
        self._scheduler.submit(Generation(prompt, wish.parameters, reply))

    def _prompt(self, text: str) -> str:
        """A text that is not so long that turning it into tokens would hold up other requests in vain."""
        if len(text) > self._options.context * self._network.vocabulary.longest:
            raise self._too_long(f"{len(text)} characters")
        return text

    def _too_long(self, length: str) -> Refusal:
        context = self._options.context
        return Refusal(f"the prompt has {length}, but the context holds {context} tokens, of which one is for the output")

    def finalize(self) -> None:
        if self._scheduler is not None:
            self._scheduler.end()


def _device(args: dict[str, str]) -> str:
    """The device of an instance, as PyTorch names it."""
    if args["model_instance_kind"] == "CPU":
        return "cpu"
    import torch

    if torch.cuda.is_available():
        return f"cuda:{args['model_instance_device_id']}"
    if args["model_instance_kind"] == "GPU":
        raise Refusal(f"instance '{args['model_instance_name']}' is for a GPU, but PyTorch {torch.__version__} finds none")
    return "cpu"


def _answer(request: Any, output: Any) -> None:
    response = pb_utils.InferenceResponse([output])
    request.get_response_sender().send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

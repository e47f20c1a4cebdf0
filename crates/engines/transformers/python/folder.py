"""What the files of a model's folder tell without its packages: chat template, tokens and the length of the context."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import sys
from typing import Any

from .refusal import Refusal

# The names of the longest context in configurations of models.
_CONTEXT = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length", "n_ctx")
_PACKAGES = ("torch", "transformers")
# The oldest transformers: major and minor version.
_OLDEST = (4, 57)


def check_packages() -> None:
    """Refuses interpreters that lack a package."""
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        command = f"{sys.executable} -m pip install {' '.join(_PACKAGES)}"
        raise Refusal(
            f"backend 'transformers' needs the Python package {' and '.join(missing)}: `{command}` installs what it needs"
        )


class ModelFolder:
    """The folder of a model's version, in the layout of Hugging Face's hub."""

    def __init__(self, path: str) -> None:
        self.path = path
        config = self._json("config.json")
        if config is None:
            raise Refusal(f"cannot read {os.path.join(path, 'config.json')}: No such file")
        self._config = config
        self._tokenizer = self._json("tokenizer_config.json") or {}

    @property
    def context(self) -> int | None:
        """The longest context of the model, if its configuration has it."""
        lengths = (self._config.get(name) for name in _CONTEXT)
        return next((length for length in lengths if isinstance(length, int) and length > 0), None)

    def parameters(self) -> dict[str, str]:
        """Parameters by which faces render chats."""
        values = {
            "control_tokens": json.dumps(self._control_tokens(), ensure_ascii=False),
            "chat_template": self._chat_template(),
            "bos_token": self._token("bos_token"),
            "eos_token": self._token("eos_token"),
        }
        return {name: value for name, value in values.items() if value is not None}

    def _chat_template(self) -> str | None:
        """The template, unless there are several: faces read these from the folder."""
        try:
            with open(os.path.join(self.path, "chat_template.jinja"), encoding="utf-8") as file:
                return file.read()
        except FileNotFoundError:
            template = self._tokenizer.get("chat_template")
            return template if isinstance(template, str) else None

    def _control_tokens(self) -> list[str]:
        """The texts of tokens that have a meaning of their own, by both files that may list them."""
        decoder = self._tokenizer.get("added_tokens_decoder")
        listed = list(decoder.values()) if isinstance(decoder, dict) else []
        added = (self._json("tokenizer.json") or {}).get("added_tokens")
        listed += added if isinstance(added, list) else []
        texts = [token.get("content") for token in listed if isinstance(token, dict) and token.get("special") is True]
        return sorted({text for text in texts if isinstance(text, str) and text})

    def _token(self, name: str) -> str | None:
        token = self._tokenizer.get(name)
        if token is None:
            token = (self._json("special_tokens_map.json") or {}).get(name)
        if isinstance(token, dict):
            token = token.get("content")
        return token if isinstance(token, str) else None

    def _json(self, name: str) -> dict[str, Any] | None:
        path = os.path.join(self.path, name)
        try:
            with open(path, encoding="utf-8") as file:
                found = json.load(file)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            raise Refusal(f"{path}: {error}") from None
        if not isinstance(found, dict):
            raise Refusal(f"{path}: not a JSON object")
        return found

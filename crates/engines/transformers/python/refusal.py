"""The errors that clients receive."""

from __future__ import annotations


class Refusal(Exception):
    """What is wrong with a request, and the kind of the error, as `TritonError` names it."""

    def __init__(self, message: str, kind: str = "INVALID_ARG") -> None:
        super().__init__(message)
        self.message = message
        self.kind = kind


def shortened(value: object) -> str:
    """A value in a message, as JSON has it."""
    import json

    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:60] + "…"

"""A program as users write it, for type checkers in their strict mode and to be run: each `type: ignore` is a mistake that they find."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

import nereid


def check_model(model: nereid.Model) -> list[int]:
    inputs = {"INPUT0": np.array([[1, 2]], dtype=np.int64)}
    response = model.infer(inputs, outputs=["OUTPUT0"], parameters={"a": 1}, priority=1, queue_timeout=5, timeout=60)
    values: npt.NDArray[Any] = response["OUTPUT0"].numpy()
    arguments: nereid.RequestArguments = {"request_id": "r"}
    for each in model.stream(inputs, **arguments):
        print(each.id, each.model, each.version)
    again = asyncio.run(model.infer_async(inputs, timeout=60))
    assert again["OUTPUT0"].shape == (1, 2)
    found: list[int] = values.ravel().tolist()
    return found


def mistakes(model: nereid.Model) -> None:
    """Never called."""
    inputs = {"INPUT0": np.zeros(1)}
    model.infer(inputs, output=["OUTPUT0"])  # type: ignore[call-arg]
    model.infer(inputs, priority="high")  # type: ignore[arg-type]
    model.stream(inputs, timeout=1.0)  # type: ignore[call-arg]
    nereid.Server("models", http_prot=9000)  # type: ignore[call-arg]
    nereid.Server("models", http_port="9000")  # type: ignore[arg-type]
    nereid.Server("models", model_control_mode="manual")  # type: ignore[arg-type]
    nereid.Server("models", log_verbose=1)  # type: ignore[call-arg]


def main() -> None:
    options: nereid.Options = {
        "model_control_mode": "explicit",
        "load_model": ["numbers"],
        "strict_readiness": False,
        "exit_timeout_secs": 20,
        "backend_config": {"onnxruntime": {"engine": "tract"}},
    }
    server = nereid.Server(sys.argv[1], **options)
    with server:
        print(check_model(server.model("numbers")), server.ready())


if __name__ == "__main__":
    main()

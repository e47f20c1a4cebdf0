"""Writes TorchScript models of two matrices whose product scales a row, as `model_kinds` describes. Run with torch by
`torch_package.run`; the tests do not import it.
"""

import json
import sys
from pathlib import Path

import torch


class Scaling(torch.nn.Module):
    def __init__(self, factor, row, size):
        super().__init__()
        width = max(row, size // (8 * row))
        one, other = torch.randn(row, width), torch.zeros(width, row)
        one[:, :row] = torch.eye(row)
        other[:row] = torch.eye(row) * factor
        self.register_buffer("one", one)
        self.register_buffer("other", other)

    def forward(self, X):
        return X @ self.one @ self.other


for folder, factor, row, size in json.loads(Path(sys.argv[1]).read_text()):
    Path(folder).mkdir(parents=True)
    torch.jit.script(Scaling(factor, row, size).eval()).save(str(Path(folder) / "model.pt"))
print("{}")

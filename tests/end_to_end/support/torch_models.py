"""Writes small TorchScript models, and prints what they answer in PyTorch's own Python, and what a model that exists answers
to a sound. Run with torch by `torch_package.run`; the tests do not import it.
"""

import json
import sys
from pathlib import Path
from typing import Dict, List, Optional, Tuple

import torch

FOLDER = Path(sys.argv[1])


class Twice(torch.nn.Module):
    def forward(self, x):
        return x * 2


class Same(torch.nn.Module):
    def forward(self, x):
        return x.clone()


class SumAndDifference(torch.nn.Module):
    def forward(self, one, other) -> Tuple[torch.Tensor, torch.Tensor]:
        return one + other, one - other


class Swapped(torch.nn.Module):
    def forward(self, tensors: Dict[str, torch.Tensor]) -> Dict[str, torch.Tensor]:
        return {"first": tensors["b"], "second": tensors["a"]}


class Shout(torch.nn.Module):
    def forward(self, words: List[str]) -> Tuple[List[str], torch.Tensor]:
        return [word.upper() + "!" for word in words], torch.tensor([len(word) for word in words])


class Powers(torch.nn.Module):
    def forward(self, x, power: int, offset: Optional[torch.Tensor] = None):
        result = x**power
        if offset is not None:
            result = result + offset
        return result


class Refuses(torch.nn.Module):
    def forward(self, x):
        if bool((x < 0).any()):
            raise ValueError("a negative number")
        return x.sqrt()


class Fragile(torch.nn.Module):
    """Reads far outside of its memory for -1, and does not come to an end for -2."""

    def forward(self, x):
        if bool(x[0] == -1):
            return torch.ops.aten._reshape_alias(x, [2], [1 << 40]).clone()
        while bool(x[0] == -2):
            x = x.clone()
        return x * 2


class WhileLoading(torch.nn.Module):
    """Reads far outside of its memory while it is loaded for -1, and does not come to an end for -2."""

    def __init__(self, how):
        super().__init__()
        self.how = torch.full([1], how)

    def forward(self, x):
        return x * 2

    @torch.jit.export
    def __getstate__(self):
        return self.how, self.training

    @torch.jit.export
    def __setstate__(self, state: Tuple[torch.Tensor, bool]):
        self.how, self.training = state
        if bool(self.how[0] == -1):
            self.how = torch.ops.aten._reshape_alias(self.how, [2], [1 << 40]).clone()
        while bool(self.how[0] == -2):
            self.how = self.how.clone()


class Sum(torch.nn.Module):
    """Adds up a sequence."""

    def forward(self, x, sum, start) -> Tuple[torch.Tensor, torch.Tensor]:
        sum = x + sum * (1 - start)
        return sum, sum


class WritesToItsInput(torch.nn.Module):
    def forward(self, x):
        x.add_(1)
        return x


class Positive(torch.nn.Module):
    def forward(self, x):
        return torch.nonzero(x > 0)


class Network(torch.nn.Module):
    """Convolutions, a recurrent layer and attention: what real models are made of."""

    def __init__(self):
        super().__init__()
        self.convolution = torch.nn.Conv1d(4, 16, 3, padding=1)
        self.normal = torch.nn.BatchNorm1d(16)
        self.recurrent = torch.nn.LSTM(16, 8, batch_first=True, bidirectional=True)
        self.attention = torch.nn.MultiheadAttention(16, 2, batch_first=True)
        self.last = torch.nn.Linear(16, 5)

    def forward(self, x):
        x = torch.relu(self.normal(self.convolution(x)))
        x, _ = self.recurrent(x.transpose(1, 2))
        x, _ = self.attention(x, x, x, need_weights=False)
        return torch.softmax(self.last(x.mean(1)), -1)


def write(name, module):
    folder = FOLDER / name / "1"
    folder.mkdir(parents=True, exist_ok=True)
    scripted = torch.jit.script(module.eval())
    scripted.save(str(folder / "model.pt"))
    return scripted


torch.manual_seed(5)
for module in (Twice(), Same(), SumAndDifference(), Swapped(), Shout(), Powers(), Refuses(), Positive(), Fragile(), Sum()):
    write(type(module).__name__, module)
write("WritesToItsInput", WritesToItsInput())
for name, how in (("Loads", 0.0), ("CrashesWhileLoading", -1.0), ("HangsWhileLoading", -2.0)):
    write(name, WhileLoading(how))
network = write("Network", Network())
inputs = [torch.randn(batch, 4, length) for batch, length in ((1, 7), (3, 20), (8, 3))]
with torch.no_grad():
    cases = [(given.tolist(), network(given).tolist()) for given in inputs]
# It remembers what it heard, so its answers depend on their order.
speech = torch.jit.load(sys.argv[2])
sound = [torch.randn(1, 512) * volume for volume in (0.01, 0.5, 1.0, 0.1, 0.3)]
with torch.no_grad():
    heard = [(given.tolist(), speech(given, 16000).tolist()) for given in sound]
print(json.dumps({"network": cases, "speech": heard}))

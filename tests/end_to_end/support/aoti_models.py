"""Compiles three small models with AOTInductor, and prints what one of them answers in PyTorch's own Python. Run by
`torch_wheel.Wheel.models`; the tests do not import it.
"""

import json
import operator
import sys
from pathlib import Path

import torch
import torch._inductor.config

FOLDER = Path(sys.argv[1])
# The models are small: a fast compilation matters more than their speed.
HOW = {"aot_inductor.compile_wrapper_opt_level": "O0", "cpp_cache_precompile_headers": False}
# Where the packages check inputs, they take batches of one as well.
HOW["aot_inductor.check_lowerbound"] = False


def is_known(option):
    """Whether this release of PyTorch has an option."""
    try:
        operator.attrgetter(option)(torch._inductor.config)
    except AttributeError:
        return False
    return True


HOW = {option: value for option, value in HOW.items() if is_known(option)}


class Twice(torch.nn.Module):
    def forward(self, x):
        return x * 2


class Affine(torch.nn.Module):
    """Computes in the type of its input."""

    def forward(self, x):
        return x * 3 + 1


class Nested(torch.nn.Module):
    """Takes and returns nested values of several types; one result has a shape that depends on the data."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(8, 16)
        self.second = torch.nn.Linear(16, 4)

    def forward(self, x, memory, options, *, scale):
        hidden = torch.relu(self.first(x)) * scale.to(torch.float32)
        result = self.second(hidden) + memory
        return {"sum": result, "more": (options["k"] + 1, torch.nonzero(x[:, 0] > 0)), "all": [result > 0]}


def compile(module, arguments, keywords, shapes):
    (FOLDER / type(module).__name__ / "1").mkdir(parents=True)
    path = FOLDER / type(module).__name__ / "1" / "model.pt2"
    exported = torch.export.export(module.eval(), arguments, keywords, dynamic_shapes=shapes)
    torch._inductor.aoti_compile_and_package(exported, package_path=str(path), inductor_configs=HOW)


def nested(batch):
    arguments = torch.randn(batch, 8), torch.randn(batch, 4), {"k": torch.randint(-9, 9, (batch, 3))}
    return arguments, {"scale": torch.rand(batch, 16).half()}


torch.manual_seed(5)
batch = {0: torch.export.Dim("batch", min=1, max=4096)}
compile(Twice(), (torch.randn(4, 3),), {}, {"x": batch})
compile(Affine(), (torch.randn(4, 3).bfloat16(),), {}, {"x": batch})
model = Nested()
arguments, keywords = nested(4)
compile(model, arguments, keywords, {"x": batch, "memory": batch, "options": {"k": batch}, "scale": batch})
cases = []
with torch.no_grad():
    for size in (1, 3, 8):
        (x, memory, options), keywords = nested(size)
        outputs = model(x, memory, options, **keywords)
        inputs = x, memory, options["k"], keywords["scale"]
        results = outputs["sum"], *outputs["more"], *outputs["all"]
        cases.append(([it.tolist() for it in inputs], [it.tolist() for it in results]))
print(json.dumps(cases))

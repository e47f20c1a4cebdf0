"""Writes a TorchScript model with torchvision's operators, and prints what it answers in PyTorch's own Python. Run with torch by
`torchvision_package.run`; the tests do not import it.
"""

import json
import sys
from pathlib import Path

import torch
import torchvision

FOLDER = Path(sys.argv[1])
CASES = 4


class Detector(torch.nn.Module):
    """The boxes that are left of overlapping ones, and what is in them."""

    def forward(self, boxes, scores, image) -> tuple[torch.Tensor, torch.Tensor]:
        kept = torchvision.ops.nms(boxes, scores, 0.4)
        regions = torch.cat([torch.zeros(boxes.shape[0], 1), boxes], 1)
        return kept, torchvision.ops.roi_align(image, regions, [2, 3])


folder = FOLDER / "detector" / "1"
folder.mkdir(parents=True)
model = torch.jit.script(Detector())
model.save(str(folder / "model.pt"))
torch.manual_seed(3)
cases = []
for count in range(1, CASES + 1):
    corners = torch.rand(count * 3, 2) * 8
    inputs = [torch.cat([corners, corners + 1 + torch.rand(count * 3, 2) * 6], 1), torch.rand(count * 3), torch.rand(1, 2, 16, 16)]
    cases.append([[it.tolist() for it in inputs], [it.tolist() for it in model(*inputs)]])
print(json.dumps(cases))

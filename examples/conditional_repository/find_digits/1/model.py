"""Cuts a sheet of 8x8 cells, as of a form, and keeps those that something is written in."""

import numpy as np
import triton_python_backend_utils as pb_utils

SIDE = 8
# A cell with no darker pixel is empty.
PAPER_MAX = 4


class TritonPythonModel:
    def execute(self, requests):
        return [answer(request) for request in requests]


def answer(request):
    sheet = pb_utils.get_input_tensor_by_name(request, "sheet").as_numpy()
    if len(sheet) % SIDE:
        error = pb_utils.TritonError(f"the sheet has {len(sheet)} rows of pixels, must have {SIDE} for each cell")
        return pb_utils.InferenceResponse(error=error)
    cells = sheet.reshape(-1, SIDE, SIDE)
    places = np.flatnonzero(cells.max(axis=(1, 2), initial=0) > PAPER_MAX)
    found = np.array([len(places) > 0])
    tensors = {"crops": cells[places], "places": places.astype(np.int64), "found": found}
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, value) for name, value in tensors.items()])

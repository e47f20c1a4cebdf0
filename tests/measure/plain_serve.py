"""The models of ray_serve.py in plain Python on Ray Serve, without Nereid: the same requests and answers in JSON."""

from pathlib import Path

import numpy as np
import onnxruntime
from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse


class Model:
    """A replica with an ONNX model and one that returns its input."""

    def __init__(self, model_repository, _options):
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = 1
        self._digits = onnxruntime.InferenceSession(Path(model_repository) / "digits/1/model.onnx", settings)

    async def __call__(self, request: Request):
        (tensor,) = (await request.json())["inputs"]
        array = np.array(tensor["data"], np.float32).reshape(tensor["shape"])
        named = {"OUTPUT0": array}
        if request.url.path == "/v2/models/digits/infer":
            names = [output.name for output in self._digits.get_outputs()]
            named = dict(zip(names, self._digits.run(names, {tensor["name"]: array})))
        outputs = [
            {"name": name, "datatype": "FP32", "shape": found.shape, "data": found.ravel().tolist()}
            for name, found in named.items()
        ]
        return JSONResponse({"model_name": request.url.path.split("/")[3], "outputs": outputs})


Plain = serve.deployment(max_ongoing_requests=100)(Model)


def app(arguments):
    """Builds the application."""
    return Plain.bind(arguments["model_repository"], {})

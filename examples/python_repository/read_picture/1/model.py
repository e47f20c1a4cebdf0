"""Reads the text in a picture, with three other models of the server."""

import asyncio
import json
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

# The detector takes pictures whose sides are multiples of this, and marks text with a probability for each pixel.
GRID, LONGEST_SIDE = 32, 960
MARKED, SURE = 0.3, 0.5
# How much larger a line is than its marks.
MARGIN = 1.6
# The size that the model of directions takes, and the height of lines that the recogniser takes.
DIRECTION, HEIGHT = (48, 192), 48
UPSIDE_DOWN = 0.9


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        path = Path(args["model_repository"], parameters["characters"]["string_value"])
        # The first class is the gap between characters, the last is the space.
        self.classes = ["", *path.read_text(encoding="utf-8").split("\n"), " "]

    async def execute(self, requests):
        return [await self.read(request) for request in requests]

    async def read(self, request):
        picture = pb_utils.get_input_tensor_by_name(request, "picture").as_numpy()
        boxes = await find_lines(picture)
        lines = await asyncio.gather(*[self.read_line(picture[top:bottom, left:right]) for left, top, right, bottom in boxes])
        texts = np.array([text.encode() for text, _ in lines], np.object_)
        confidences = np.array([confidence for _, confidence in lines], np.float32)
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("texts", texts),
                pb_utils.Tensor("confidences", confidences),
                pb_utils.Tensor("boxes", np.array(boxes, np.int32).reshape(-1, 4)),
            ]
        )

    async def read_line(self, line):
        """The text of a line, and how sure the models are."""
        if await stands_on_its_head(line):
            line = line[::-1, ::-1]
        width = max(1, round(line.shape[1] * HEIGHT / line.shape[0]))
        (probabilities,) = await ask("text_recogniser", to_input(line, (HEIGHT, width)))
        best, sure = probabilities[0].argmax(axis=1), probabilities[0].max(axis=1)
        # A class that repeats is one character, unless a gap parts it.
        kept = (best != 0) & (best != np.concatenate([[0], best[:-1]]))
        text = "".join(self.classes[index] for index in best[kept])
        return text.strip(), float(sure[kept].mean()) if kept.any() else 0.0


async def ask(model, values):
    """The first output of another model."""
    request = pb_utils.InferenceRequest(
        model_name=model, inputs=[pb_utils.Tensor("x", values)], requested_output_names=[OUTPUTS[model]]
    )
    answer = await request.async_exec()
    if answer.has_error():
        raise pb_utils.TritonModelException(answer.error().message())
    return [tensor.as_numpy() for tensor in answer.output_tensors()]


OUTPUTS = {
    "text_detector": "sigmoid_0.tmp_0",
    "text_direction": "save_infer_model/scale_0.tmp_1",
    "text_recogniser": "softmax_11.tmp_0",
}


async def find_lines(picture):
    """The boxes of the lines of text, from top to bottom."""
    height, width = picture.shape[:2]
    scale = min(1, LONGEST_SIDE / max(height, width))
    size = [max(GRID, round(side * scale / GRID) * GRID) for side in (height, width)]
    (marks,) = await ask("text_detector", to_input(picture, size))
    marks = marks[0, 0]
    boxes = []
    for top, left, bottom, right in islands(marks > MARKED):
        tall, wide = bottom - top, right - left
        inside = marks[top:bottom, left:right]
        if min(tall, wide) < 3 or inside[inside > MARKED].mean() < SURE:
            continue
        # As the detector was trained: the margin follows from the area and the outline.
        margin = tall * wide * MARGIN / (2 * (tall + wide))
        rows = np.clip([top - margin, bottom + margin], 0, size[0]) * height / size[0]
        columns = np.clip([left - margin, right + margin], 0, size[1]) * width / size[1]
        boxes.append([int(columns[0]), int(rows[0]), int(np.ceil(columns[1])), int(np.ceil(rows[1]))])
    return sorted(boxes, key=lambda box: (box[1], box[0]))


async def stands_on_its_head(line):
    """Whether a line is to be turned."""
    tall, wide = DIRECTION
    width = min(wide, max(1, round(line.shape[1] * tall / line.shape[0])))
    values = np.zeros((1, 3, tall, wide), np.float32)
    values[..., :width] = to_input(line, (tall, width))
    (probabilities,) = await ask("text_direction", values)
    return probabilities[0, 1] > UPSIDE_DOWN


def to_input(picture, size):
    """A picture as the models take it: this size, channels first, values from -1 to 1."""
    scaled = picture.astype(np.float32)
    for axis, wanted in enumerate(size):
        given = scaled.shape[axis]
        at = np.clip((np.arange(wanted) + 0.5) * given / wanted - 0.5, 0, given - 1)
        low = at.astype(int)
        part = (at - low).astype(np.float32).reshape([-1 if index == axis else 1 for index in range(3)])
        high = np.minimum(low + 1, given - 1)
        scaled = scaled.take(low, axis) * (1 - part) + scaled.take(high, axis) * part
    return np.ascontiguousarray(scaled.transpose(2, 0, 1)[None] / 127.5 - 1)


def islands(mask):
    """Top, left, bottom and right of each connected part of a mask."""
    found = []
    above: list[tuple[int, int, list]] = []
    for row, values in enumerate(mask):
        edges = np.flatnonzero(np.diff(np.concatenate([[0], values.view(np.int8), [0]])))
        runs = []
        for left, right in edges.reshape(-1, 2).tolist():
            box = [row, left, row + 1, right]
            for other in {id(box): box for begin, end, box in above if begin < right and left < end}.values():
                other = root(other)
                if other is not box:
                    box[:] = [min(box[0], other[0]), min(box[1], other[1]), max(box[2], other[2]), max(box[3], other[3])]
                    other[4:] = [box]
            runs.append((left, right, box))
            found.append(box)
        # Runs of this row that the same part above joined are one box from here on.
        above = [(left, right, root(box)) for left, right, box in runs]
    return [tuple(box) for box in found if len(box) == 4]


def root(box):
    """The box that a box was joined into."""
    while len(box) > 4:
        box = box[4]
    return box

"""Trains the `digits` example model and exports it to ONNX.

A small convolutional network over scikit-learn's 8x8 handwritten digits, with the forward and backward passes written
out in numpy. The seed is fixed: the held-out split is the same on every run, and the script stops with an error if the
network reads fewer than 97 % of it. Writes the model, three sample images and the whole held-out split.
"""

import sys
from pathlib import Path

import numpy as np
import onnx
from numpy.lib.stride_tricks import sliding_window_view
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

EXAMPLES = Path(__file__).resolve().parent.parent
MODEL = EXAMPLES / "model_repository" / "digits" / "1" / "model.onnx"
IMAGES = EXAMPLES / "images"

SEED = 7
EPOCHS = 40
BATCH = 64
LEARNING_RATE = 3e-3
CHANNELS = (16, 32)
KERNEL = 3
SIDE = 8
CLASSES = 10
PIXEL_MAX = 16
REQUIRED_ACCURACY = 0.97
SAMPLES = (0, 3, 7)

# The oldest versions that carry every operator used, so that as many engines as possible read the file.
OPSET = 13
IR_VERSION = 8


def im2col(images):
    """[N,C,H,W] -> [N*H*W, C*K*K]: the zero-padded neighbourhood of every pixel as one row."""
    pad = KERNEL // 2
    padded = np.pad(images, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    windows = sliding_window_view(padded, (KERNEL, KERNEL), axis=(2, 3))
    n, c, h, w = images.shape
    return windows.transpose(0, 2, 3, 1, 4, 5).reshape(n * h * w, c * KERNEL * KERNEL)


def col2im(columns, shape):
    """The adjoint of im2col: adds every row back onto the pixels it was read from."""
    n, c, h, w = shape
    pad = KERNEL // 2
    patches = columns.reshape(n, h, w, c, KERNEL, KERNEL).transpose(0, 3, 1, 2, 4, 5)
    padded = np.zeros((n, c, h + 2 * pad, w + 2 * pad), columns.dtype)
    for row in range(KERNEL):
        for col in range(KERNEL):
            padded[:, :, row : row + h, col : col + w] += patches[..., row, col]
    return padded[:, :, pad : pad + h, pad : pad + w]


def convolve(images, weight, bias):
    """A stride 1 convolution that keeps the image size. Also returns the columns, which the backward pass needs."""
    n, _, h, w = images.shape
    columns = im2col(images)
    out = columns @ weight.reshape(len(weight), -1).T + bias
    return out.reshape(n, h, w, -1).transpose(0, 3, 1, 2), columns


def convolve_backward(gradient, columns, weight, input_shape):
    """Gradients of a convolution with respect to its input, weight and bias."""
    rows = gradient.transpose(0, 2, 3, 1).reshape(-1, len(weight))
    to_input = col2im(rows @ weight.reshape(len(weight), -1), input_shape)
    return to_input, (rows.T @ columns).reshape(weight.shape), rows.sum(0)


def pool(images):
    """2x2 maximum pooling. Also returns the mask of the pixels that won; ties share the gradient."""
    n, c, h, w = images.shape
    blocks = images.reshape(n, c, h // 2, 2, w // 2, 2)
    out = blocks.max(axis=(3, 5), keepdims=True)
    mask = (blocks == out).astype(images.dtype)
    mask /= mask.sum(axis=(3, 5), keepdims=True)
    return out.reshape(n, c, h // 2, w // 2), mask


def pool_backward(gradient, mask):
    """Sends each pooled gradient back to the pixel that won."""
    n, c, h, w = gradient.shape
    return (gradient.reshape(n, c, h, 1, w, 1) * mask).reshape(n, c, 2 * h, 2 * w)


def softmax(logits):
    """Probabilities along the last axis."""
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


class Network:
    """conv - relu - pool - conv - relu - dense, trained with Adam on the cross entropy."""

    def __init__(self, rng):
        def initial(*shape, fan_in):
            return (rng.standard_normal(shape) * np.sqrt(2 / fan_in)).astype(np.float32)

        first, second = CHANNELS
        area = KERNEL * KERNEL
        features = second * (SIDE // 2) ** 2
        self.parameters = {
            "conv1.weight": initial(first, 1, KERNEL, KERNEL, fan_in=area),
            "conv1.bias": np.zeros(first, np.float32),
            "conv2.weight": initial(second, first, KERNEL, KERNEL, fan_in=first * area),
            "conv2.bias": np.zeros(second, np.float32),
            "dense.weight": initial(CLASSES, features, fan_in=features),
            "dense.bias": np.zeros(CLASSES, np.float32),
        }
        self._mean = {name: np.zeros_like(value) for name, value in self.parameters.items()}
        self._square = {name: np.zeros_like(value) for name, value in self.parameters.items()}
        self._steps = 0

    def forward(self, images):
        """Class probabilities, and what the backward pass needs of the way there."""
        p = self.parameters
        first, columns1 = convolve(images, p["conv1.weight"], p["conv1.bias"])
        pooled, mask = pool(np.maximum(first, 0))
        second, columns2 = convolve(pooled, p["conv2.weight"], p["conv2.bias"])
        features = np.maximum(second, 0).reshape(len(images), -1)
        logits = features @ p["dense.weight"].T + p["dense.bias"]
        return softmax(logits), (images, first, columns1, pooled, mask, second, columns2, features)

    def backward(self, probabilities, labels, kept):
        """Gradients of the mean cross entropy, by parameter name."""
        images, first, columns1, pooled, mask, second, columns2, features = kept
        p = self.parameters
        gradients = {}
        logits = probabilities.copy()
        logits[np.arange(len(labels)), labels] -= 1
        logits /= len(labels)
        gradients["dense.weight"] = logits.T @ features
        gradients["dense.bias"] = logits.sum(0)
        above = (logits @ p["dense.weight"]).reshape(second.shape) * (second > 0)
        above, gradients["conv2.weight"], gradients["conv2.bias"] = convolve_backward(
            above, columns2, p["conv2.weight"], pooled.shape
        )
        above = pool_backward(above, mask) * (first > 0)
        _, gradients["conv1.weight"], gradients["conv1.bias"] = convolve_backward(above, columns1, p["conv1.weight"], images.shape)
        return gradients

    def step(self, gradients, rate):
        """One Adam step."""
        self._steps += 1
        for name, gradient in gradients.items():
            self._mean[name] += 0.1 * (gradient - self._mean[name])
            self._square[name] += 0.001 * (gradient**2 - self._square[name])
            mean = self._mean[name] / (1 - 0.9**self._steps)
            square = self._square[name] / (1 - 0.999**self._steps)
            self.parameters[name] -= (rate * mean / (np.sqrt(square) + 1e-8)).astype(np.float32)

    def accuracy(self, images, labels):
        """The share of the images whose most probable class is right."""
        return float((self.forward(images)[0].argmax(1) == labels).mean())


def shifted(images, rng):
    """The images, each moved by up to one pixel: digits written off-centre are digits too."""
    padded = np.pad(images, ((0, 0), (0, 0), (1, 1), (1, 1)))
    out = np.empty_like(images)
    for index, (row, col) in enumerate(rng.integers(0, 3, size=(len(images), 2))):
        out[index] = padded[index, :, row : row + SIDE, col : col + SIDE]
    return out


def train(network, images, labels, rng):
    """Trains in place, with a rate that falls to zero."""
    for epoch in range(EPOCHS):
        order = rng.permutation(len(images))
        for start in range(0, len(order), BATCH):
            chosen = order[start : start + BATCH]
            batch = shifted(images[chosen], rng)
            progress = (epoch + start / len(order)) / EPOCHS
            probabilities, kept = network.forward(batch)
            network.step(network.backward(probabilities, labels[chosen], kept), LEARNING_RATE * (1 - progress))


def export(parameters):
    """The network as an ONNX model with a dynamic batch dimension."""
    pad = KERNEL // 2
    conv = {"kernel_shape": [KERNEL, KERNEL], "pads": [pad] * 4}
    nodes = [
        helper.make_node("Conv", ["image", "conv1.weight", "conv1.bias"], ["conv1"], **conv),
        helper.make_node("Relu", ["conv1"], ["relu1"]),
        helper.make_node("MaxPool", ["relu1"], ["pool"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["pool", "conv2.weight", "conv2.bias"], ["conv2"], **conv),
        helper.make_node("Relu", ["conv2"], ["relu2"]),
        helper.make_node("Flatten", ["relu2"], ["features"], axis=1),
        helper.make_node("Gemm", ["features", "dense.weight", "dense.bias"], ["logits"], transB=1),
        helper.make_node("Softmax", ["logits"], ["probabilities"], axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 1, SIDE, SIDE])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["batch", CLASSES])],
        [numpy_helper.from_array(value, name) for name, value in parameters.items()],
    )
    opset = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=IR_VERSION, producer_name="train_digits")
    onnx.checker.check_model(model, full_check=True)
    return model


def write_image(path, pixels):
    """Writes one 8x8 digit as a plain PGM file."""
    rows = "\n".join(" ".join(f"{value:2d}" for value in row) for row in pixels)
    path.write_text(f"P2\n{SIDE} {SIDE}\n{PIXEL_MAX}\n{rows}\n")


def main():
    digits = load_digits()
    pixels = digits.images.astype(int)
    train_pixels, test_pixels, train_labels, test_labels = train_test_split(
        pixels, digits.target, test_size=0.2, random_state=SEED, stratify=digits.target
    )

    def as_input(values):
        return (values[:, None] / PIXEL_MAX).astype(np.float32)

    rng = np.random.default_rng(SEED)
    network = Network(rng)
    train(network, as_input(train_pixels), train_labels, rng)
    seen = network.accuracy(as_input(train_pixels), train_labels)
    held_out = network.accuracy(as_input(test_pixels), test_labels)
    print(f"train accuracy:    {seen:.4f} ({len(train_labels)} digits)")
    print(f"held-out accuracy: {held_out:.4f} ({len(test_labels)} digits)")
    if held_out < REQUIRED_ACCURACY:
        sys.exit(f"the held-out accuracy is below {REQUIRED_ACCURACY}; nothing was written")

    MODEL.parent.mkdir(parents=True, exist_ok=True)
    IMAGES.mkdir(exist_ok=True)
    onnx.save(export(network.parameters), MODEL)
    for digit in SAMPLES:
        write_image(IMAGES / f"digit_{digit}.pgm", test_pixels[np.flatnonzero(test_labels == digit)[0]])
    table = np.column_stack([test_labels, test_pixels.reshape(len(test_pixels), -1)])
    np.savetxt(IMAGES / "held_out.csv", table, fmt="%d", delimiter=",")
    print(f"wrote {MODEL.relative_to(EXAMPLES)}, {MODEL.stat().st_size} bytes")


if __name__ == "__main__":
    main()

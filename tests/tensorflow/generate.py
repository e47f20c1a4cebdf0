"""Makes saved_model: a small network as TensorFlow itself saves it, and what TensorFlow computes of its inputs (expected.npz).

    python3 -m venv tensorflow && tensorflow/bin/pip install tensorflow-cpu==2.21.0
    tensorflow/bin/python tests/tensorflow/generate.py

Two signatures: `serving_default` gives the scores of images, `describe` the name of the best class, by a table.
"""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

HERE = Path(__file__).parent
NAMES = ["zero", "one", "two", "three", "four"]
rng = np.random.default_rng(41)


def weights(*shape):
    return tf.Variable(rng.normal(0, 0.5, shape).astype(np.float32))


class Network(tf.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = weights(3, 3, 1, 4), weights(3, 3, 4, 8)
        self.dense, self.bias = weights(8, len(NAMES)), tf.Variable(tf.zeros(len(NAMES)))
        keys = tf.range(len(NAMES), dtype=tf.int64)
        pairs = tf.lookup.KeyValueTensorInitializer(keys, tf.constant(NAMES))
        self.names = tf.lookup.StaticHashTable(pairs, "unknown")

    def logits(self, images):
        images = tf.nn.relu(tf.nn.conv2d(images, self.first, 1, "SAME"))
        images = tf.nn.relu(tf.nn.conv2d(images, self.second, 2, "SAME"))
        return tf.linalg.matmul(tf.reduce_mean(images, [1, 2]), self.dense) + self.bias

    @tf.function(input_signature=[tf.TensorSpec([None, None, None, 1], tf.float32, "images")])
    def score(self, images):
        return {"scores": tf.nn.softmax(self.logits(images))}

    @tf.function(input_signature=[tf.TensorSpec([None, None, None, 1], tf.float32, "images")])
    def describe(self, images):
        return {"names": self.names.lookup(tf.argmax(self.logits(images), 1))}


def main():
    network = Network()
    target = HERE / "saved_model"
    shutil.rmtree(target, ignore_errors=True)
    signatures = {"serving_default": network.score, "describe": network.describe}
    tf.saved_model.save(network, str(target), signatures)
    (target / "fingerprint.pb").unlink(missing_ok=True)
    # What TensorFlow computes with the saved model, in its own Python.
    saved = tf.saved_model.load(str(target)).signatures
    expected: dict[str, Any] = {}
    for name, shape in [("small", (3, 5, 5, 1)), ("large", (4, 9, 12, 1))]:
        images = rng.normal(0, 3, shape).astype(np.float32)
        expected[f"{name}_images"] = images
        expected[f"{name}_scores"] = saved["serving_default"](tf.constant(images))["scores"].numpy()
        expected[f"{name}_names"] = saved["describe"](tf.constant(images))["names"].numpy().astype("S")
    np.savez(HERE / "expected.npz", **expected)


main()

"""ONNX Runtime's DynamicQuantizeLSTM in the embedded engine: answers are those of ONNX Runtime on one thread."""

import numpy as np
import onnx
import onnxruntime
import pytest
import tritonclient.http
from onnx import TensorProto, helper, numpy_helper

import nereid_server
from onnx_engines import FLAGS

CASES = 24
EMBEDDED = [*FLAGS["tract"], "--backend-config=default-max-batch-size=0"]


class Lstm:
    """A random model and inputs: a direction or two, weights of either type, scales of all columns or of each, any of the states."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        direction = self.rng.choice(["forward", "reverse", "bidirectional"])
        count = 1 + (direction == "bidirectional")
        features, hidden, batch, steps = self.rng.integers(1, [9, 9, 7, 7]).tolist()
        self.byte = self.rng.choice([np.uint8, np.int8])
        scales = [count, 4 * hidden] if self.any() else [count]
        self.constants = [self.bytes("W", [count, features, 4 * hidden]), self.bytes("R", [count, hidden, 4 * hidden])]
        for name in "WR":
            # ONNX Runtime takes no other ones.
            zero_point = 0 if self.byte is np.int8 else 128 if len(scales) == 2 else self.rng.integers(0, 256)
            self.constants.append(self.constant(f"{name}_scale", self.rng.random(scales) / 50 + 0.001))
            self.constants.append(numpy_helper.from_array(np.full(scales, zero_point, self.byte), f"{name}_zero_point"))
        inputs = ["X", "W", "R", "", "", "", "", "", "W_scale", "W_zero_point", "R_scale", "R_zero_point"]
        self.feed = {"X": self.numbers([steps, batch, features])}
        ports = [self.port("X", ["steps", "batch", features])]
        if self.any():
            inputs[3] = "B"
            self.constants.append(self.constant("B", self.numbers([count, 8 * hidden])))
        for place, name in ((5, "initial_h"), (6, "initial_c")):
            if self.any():
                inputs[place] = name
                self.feed[name] = self.numbers([count, batch, hidden])
                ports.append(self.port(name, [count, "batch", hidden]))
        shapes = {"Y": ["steps", count, "batch", hidden], "Y_h": [count, "batch", hidden], "Y_c": [count, "batch", hidden]}
        outputs = [name if self.any() else "" for name in shapes]
        outputs = outputs if any(outputs) else ["", "Y_h", ""]
        node = helper.make_node(
            "DynamicQuantizeLSTM", inputs, outputs, domain="com.microsoft", hidden_size=hidden, direction=direction
        )
        graph = helper.make_graph(
            [node], "lstm", ports, [self.port(name, shapes[name]) for name in outputs if name], self.constants
        )
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        self.model = helper.make_model(graph, opset_imports=opsets, ir_version=8)

    def any(self):
        return self.rng.random() < 0.6

    def numbers(self, shape):
        return self.rng.normal(0, 2, shape).astype(np.float32)

    def bytes(self, name, shape):
        limits = np.iinfo(self.byte)
        return numpy_helper.from_array(self.rng.integers(limits.min, limits.max + 1, shape).astype(self.byte), name)

    @staticmethod
    def constant(name, values):
        return numpy_helper.from_array(np.asarray(values, np.float32), name)

    @staticmethod
    def port(name, shape):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    def expected(self):
        # Several threads quantise the states of their part of the batch.
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(self.model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return session.run(None, self.feed)


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    repository = tmp_path_factory.mktemp("models")
    for seed in range(CASES):
        folder = repository / f"lstm{seed}" / "1"
        folder.mkdir(parents=True)
        onnx.save(Lstm(seed).model, folder / "model.onnx")
    with nereid_server.running(repository, *EMBEDDED) as server, tritonclient.http.InferenceServerClient(server.url) as client:
        yield client


@pytest.mark.parametrize("seed", range(CASES))
def test_states_are_those_of_onnx_runtime(client, seed):
    lstm = Lstm(seed)
    inputs = []
    for name, values in lstm.feed.items():
        inputs.append(tritonclient.http.InferInput(name, list(values.shape), "FP32"))
        inputs[-1].set_data_from_numpy(values)
    answer = client.infer(f"lstm{seed}", inputs)
    for output, expected in zip(lstm.model.graph.output, lstm.expected(), strict=True):
        np.testing.assert_allclose(answer.as_numpy(output.name), expected, atol=1e-5, err_msg=output.name)

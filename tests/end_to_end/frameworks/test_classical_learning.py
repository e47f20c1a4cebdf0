"""Operators of classical machine learning in the embedded engine: answers to random models are those of ONNX Runtime."""

import json
import os

import numpy as np
import onnx
import pytest
import tritonclient.http
from onnx import TensorProto, helper, numpy_helper
from random_onnx_graphs import run
from tritonclient.utils import np_to_triton_dtype

import nereid_server
from onnx_engines import FLAGS

EMBEDDED = [*FLAGS["tract"], "--backend-config=default-max-batch-size=0"]
CASES = range(int(os.environ.get("NEREID_LEARNING_CASES", "16")))
DOMAIN = "ai.onnx.ml"
TYPES = [np.float32, np.float32, np.float64, np.int64, np.int32]
TRANSFORMS = ["NONE", "NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT"]
MODES = ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ"]
# The modes of which the trees of a case are, as a rule those of one exporter.
FAMILIES = [["BRANCH_LEQ"], ["BRANCH_LT"], ["BRANCH_LEQ", "BRANCH_EQ"], ["BRANCH_GTE"], MODES]
ROWS = [0, 1, 3, 40]


class Case:
    """A random node, the version of its domain, and its inputs."""

    version = 3

    def __init__(self, operator, seed):
        self.rng = np.random.default_rng([seed, *operator.encode()])
        self.dtype = self.choose(TYPES)
        self.features = int(self.rng.integers(1, 6))
        self.outputs = [("Y", TensorProto.FLOAT)]
        attributes = getattr(self, f"_{operator}")()
        names = [name for name, _ in self.outputs]
        # A last output may be left out, and a first one nameless.
        if len(names) > 1 and self.rng.random() < 0.2:
            kept = self.choose([0, 1])
            names[1 - kept] = ""
            self.outputs = [self.outputs[kept]]
        node = helper.make_node(operator, ["X"], names, domain=DOMAIN, **attributes)
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        graph = helper.make_graph(
            [node],
            "case",
            [helper.make_tensor_value_info("X", kind, ["rows", self.features])],
            [helper.make_tensor_value_info(name, output, [None] * self.rank(name)) for name, output in self.outputs],
        )
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, self.version)]
        self.model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        self.feeds = [{"X": self._rows(count)} for count in ROWS]

    rank_of_values = 2

    def rank(self, output):
        """The number of dimensions of an output."""
        return 1 if output == "L" else self.rank_of_values

    def choose(self, options):
        """One of the options."""
        return options[self.rng.integers(len(options))]

    def numbers(self, count):
        """Numbers of few digits, so that many are equal to others and to thresholds."""
        return (self.rng.integers(-12, 13, count) / 4).tolist()

    def _rows(self, count):
        if self.dtype == object:
            return self.rng.choice(["a", "b", "ü", "", "unknown"], (count, self.features)).astype(object)
        values = self.rng.integers(-12, 13, (count, self.features)) / 4
        if np.dtype(self.dtype).kind == "f" and self.allows_nan():
            values[self.rng.random(values.shape) < 0.1] = np.nan
        if self.dtype == np.float64:
            # Thresholds lie between these and single precision.
            values += self.rng.choice([0, 1e-12, -1e-12], values.shape)
        return values.astype(self.dtype)

    nan = True

    def allows_nan(self):
        """Whether rows have NaN."""
        return self.nan

    def each(self, count=1):
        """The number of values: one, or one of each feature."""
        return self.choose([count, self.features])

    def _Scaler(self):
        count = self.each()
        return {"offset": self.numbers(count), "scale": self.numbers(count)}

    def _Normalizer(self):
        # The largest of NaN and others depends on their order.
        self.nan = False
        return {"norm": self.choose(["MAX", "L1", "L2"])}

    def _Binarizer(self):
        self.dtype, self.nan = np.float32, False
        return {"threshold": self.numbers(1)[0]}

    def _Imputer(self):
        self.dtype = self.choose([np.float32, np.int64])
        self.outputs = [("Y", helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype)))]
        if self.dtype == np.int64:
            values = self.rng.integers(-9, 9, self.each()).tolist()
            return {"imputed_value_int64s": values, "replaced_value_int64": int(self.rng.integers(-3, 4))}
        replaced = self.choose([float("nan"), self.numbers(1)[0]])
        return {"imputed_value_floats": self.numbers(self.each()), "replaced_value_float": replaced}

    def _OneHotEncoder(self):
        self.dtype, self.nan, self.rank_of_values = self.choose([np.int64, np.float32, np.float64, object]), False, 3
        if self.dtype == object:
            return {"cats_strings": ["a", "ü", "", "b"]}
        return {"cats_int64s": self.rng.integers(-3, 4, 5).tolist()}

    def _LabelEncoder(self):
        self.version = self.choose([2, 4])
        key, self.dtype = self.choose([("strings", object), ("int64s", np.int64), ("floats", np.float32)])
        value = self.choose(["strings", "int64s", "floats"])
        kinds = {"strings": TensorProto.STRING, "int64s": TensorProto.INT64, "floats": TensorProto.FLOAT}
        self.outputs = [("Y", kinds[value])]
        keys = {"strings": ["a", "ü", "", "a"], "int64s": [1, -2, 0, 3], "floats": [0.25, float("nan"), 0.0, -1.5]}
        values = {"strings": ["x", "y", "z", "ö"], "int64s": [5, 6, -7, 8], "floats": [0.5, 1.5, 2.5, -9.0]}
        defaults = {"strings": ("default_string", "none"), "int64s": ("default_int64", 77), "floats": ("default_float", 0.125)}
        default = dict([defaults[value]]) if self.rng.random() < 0.5 else {}
        return {f"keys_{key}": keys[key], f"values_{value}": values[value], **default}

    def _LinearRegressor(self):
        self.dtype, targets = np.float32, int(self.rng.integers(1, 4))
        attributes = {"coefficients": self.numbers(targets * self.features), "targets": targets}
        if self.rng.random() < 0.7:
            attributes["intercepts"] = self.numbers(targets)
        return {**attributes, "post_transform": self.choose(TRANSFORMS)}

    def _LinearClassifier(self):
        self.nan = False
        classes = int(self.rng.integers(2, 5))
        scores = self.choose([1, 2]) if classes == 2 else classes
        attributes = {"coefficients": self.numbers(scores * self.features), "intercepts": self.numbers(scores)}
        # ONNX Runtime's probits of a single score are not those of ONNX.
        transform = self.choose(TRANSFORMS[:-1] if scores == 1 else TRANSFORMS)
        return {**attributes, **self._labels(classes, "ints"), "post_transform": transform}

    def _labels(self, classes, numbers):
        if self.rng.random() < 0.3:
            labels, kind = {"classlabels_strings": [f"class {number}" for number in range(classes)]}, TensorProto.STRING
        else:
            labels, kind = {f"classlabels_{numbers}": list(range(10, 10 + classes))}, TensorProto.INT64
        self.outputs = [("L", kind), ("P", TensorProto.FLOAT)]
        return labels

    def _TreeEnsembleClassifier(self):
        classes = int(self.rng.integers(2, 5))
        transforms = TRANSFORMS[:-1] if classes == 2 else TRANSFORMS
        attributes = self._labels(classes, "int64s") | {"post_transform": self.choose(transforms)}
        # Of two classes, one has all weights.
        only = self.choose([0, 1]) if classes == 2 else None
        attributes |= self._trees("class", classes, only, lowest=self.choose([0, -12]))
        if self.rng.random() < 0.3:
            attributes["base_values"] = self.numbers(classes)
        return attributes

    def _TreeEnsembleRegressor(self):
        targets = int(self.rng.integers(1, 4))
        attributes = {"n_targets": targets, "post_transform": self.choose(TRANSFORMS)}
        attributes["aggregate_function"] = self.choose(["SUM", "AVERAGE"])
        attributes |= self._trees("target", targets, None)
        if self.rng.random() < 0.5:
            attributes["base_values"] = self.numbers(targets)
        return attributes

    def _trees(self, kind, outputs, only, lowest=-12):
        """Trees whose leaves have weights for one output, for all, for one that the tree is for, or for any."""
        family = self.choose(FAMILIES)
        # ONNX Runtime takes something else for the weight of a leaf that has none, where there is only one target.
        weighs = self.choose(["one", "all", "own", "any"] if outputs > 1 else ["one"])
        lists: dict[str, list] = {
            name: [] for name in ("treeids", "nodeids", "featureids", "modes", "values", "truenodeids", "falsenodeids")
        }
        lists["missing_value_tracks_true"] = []
        weights: dict[str, list] = {name: [] for name in ("treeids", "nodeids", "ids", "weights")}
        for tree in range(int(self.rng.integers(1, 12))):
            own = int(self.rng.integers(outputs))
            waiting, used, depth_left = [0], 1, int(self.rng.integers(1, 12))
            while waiting:
                number = waiting.pop()
                splits = depth_left > 0 and self.rng.random() < 0.8
                depth_left -= splits
                ways = [used, used + 1] if splits else [0, 0]
                used += 2 * splits
                waiting += ways if splits else []
                row = [tree, number, int(self.rng.integers(self.features)), self.choose(family) if splits else "LEAF"]
                row += [self.numbers(1)[0], *ways, int(self.rng.integers(2))]
                for name, value in zip(lists, row, strict=True):
                    lists[name].append(value)
                if not splits:
                    chosen = {"all": range(outputs), "own": [own], "any": np.flatnonzero(self.rng.random(outputs) < 0.5)}
                    for output in [only] if only is not None else chosen.get(weighs, [int(self.rng.integers(outputs))]):
                        weight = int(self.rng.integers(lowest, 13)) / 16
                        for name, value in zip(weights, [tree, number, int(output), weight], strict=True):
                            weights[name].append(value)
        if self.rng.random() < 0.5:
            del lists["missing_value_tracks_true"]
        if not weights["ids"]:
            for name, value in zip(weights, [0, lists["nodeids"][lists["modes"].index("LEAF")], only or 0, 0.5], strict=True):
                weights[name].append(value)
        attributes = {f"nodes_{name}": values for name, values in lists.items()}
        return attributes | {f"{kind}_{name}": values for name, values in weights.items()}

    def _TreeEnsemble(self):
        self.version, self.dtype = 5, self.choose([np.float32, np.float64])
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        self.outputs = [("Y", kind)]
        targets = int(self.rng.integers(1, 4))
        nodes: dict[str, list] = {
            name: [] for name in ("featureids", "modes", "splits", "truenodeids", "trueleafs", "falsenodeids", "falseleafs")
        }
        leaves: list[tuple[int, float]] = []
        members: list[float] = []
        roots = []
        for _ in range(int(self.rng.integers(1, 8))):
            roots.append(len(nodes["modes"]))
            self._grow(nodes, leaves, targets, members, depth=int(self.rng.integers(1, 5)))
        tensor = lambda values, dtype: numpy_helper.from_array(np.asarray(values, dtype))  # noqa: E731 (used thrice)
        attributes = {f"nodes_{name}": values for name, values in nodes.items() if name not in ("modes", "splits")}
        attributes["nodes_modes"] = tensor(nodes["modes"], np.uint8)
        attributes["nodes_splits"] = tensor(nodes["splits"], self.dtype)
        attributes["leaf_targetids"] = [target for target, _ in leaves]
        attributes["leaf_weights"] = tensor([weight for _, weight in leaves], self.dtype)
        if members:
            attributes["membership_values"] = tensor(members, self.dtype)
        transform = 0 if self.dtype == np.float64 else int(self.rng.integers(5))
        numbers = {"n_targets": targets, "post_transform": transform, "aggregate_function": int(self.rng.integers(2))}
        return {**attributes, **numbers, "tree_roots": roots}

    def _grow(self, nodes, leaves, targets, members, depth):
        """Adds a split and what is below it."""
        # ONNX Runtime rounds numbers of double precision before it looks them up among members.
        at, mode = len(nodes["modes"]), int(self.rng.integers(6 if self.dtype == np.float64 else 7))
        for name, value in (("featureids", int(self.rng.integers(self.features))), ("modes", mode), ("splits", self.numbers(1)[0])):
            nodes[name].append(value)
        if mode == 6:
            members += [*self.numbers(self.choose([1, 3])), float("nan")]
        for side in ("true", "false"):
            nodes[f"{side}nodeids"].append(0)
            nodes[f"{side}leafs"].append(0)
        for side in ("true", "false"):
            if depth > 1 and self.rng.random() < 0.7:
                nodes[f"{side}nodeids"][at] = len(nodes["modes"])
                self._grow(nodes, leaves, targets, members, depth - 1)
            else:
                nodes[f"{side}leafs"][at], nodes[f"{side}nodeids"][at] = 1, len(leaves)
                leaves.append((int(self.rng.integers(targets)), self.numbers(1)[0]))


OPERATORS = [name[1:] for name in vars(Case) if name[1:2].isupper()]


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    repository = tmp_path_factory.mktemp("models")
    for operator in OPERATORS:
        for seed in CASES:
            folder = repository / f"{operator}{seed}" / "1"
            folder.mkdir(parents=True)
            onnx.save(Case(operator, seed).model, folder / "model.onnx")
    with nereid_server.running(repository, *EMBEDDED) as server, tritonclient.http.InferenceServerClient(server.url) as client:
        yield client


@pytest.mark.parametrize("operator", OPERATORS)
def test_answers_are_those_of_onnx_runtime(client, operator):
    answered = 0
    for seed in CASES:
        case = Case(operator, seed)
        for feed in case.feeds:
            expected = run(case.model, feed)
            if expected is None:
                # Such as rows of no number that it divides by.
                continue
            values = feed["X"]
            given = tritonclient.http.InferInput("X", list(values.shape), np_to_triton_dtype(values.dtype))
            given.set_data_from_numpy(values)
            answer = client.infer(f"{operator}{seed}", [given])
            for name, right in expected.items():
                own = answer.as_numpy(name)
                text = f"{operator} {seed} {name}:\n{onnx.printer.to_text(case.model)}\n{json.dumps(values.tolist())}"
                assert own.shape == right.shape, text
                if right.dtype == object:
                    assert [text.decode() for text in own.ravel()] == right.ravel().tolist(), text
                else:
                    np.testing.assert_allclose(own, right, rtol=2e-5, atol=2e-6, err_msg=text)
                answered += 1
    assert answered >= len(CASES) * len(ROWS) / 2

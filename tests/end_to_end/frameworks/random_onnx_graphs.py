"""Random ONNX graphs of 2 to 8 operators: quantised, of several opsets, with dynamic shapes, broadcasts, shared constants and tensors
without elements.

Each graph is a function of its seed. ONNX Runtime tells the shapes of its tensors, and what is no valid node.
"""

from dataclasses import dataclass, field
from functools import partial

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx_runtime_process import Process
from random_onnx_operators import BOOL, F16, F32, F64, FLOATS, I8, I32, I64, KINDS, U8

ONNX_RUNTIME = Process()
OPSETS = [7, 9, 10, 11, 12, 13, 13, 14, 15, 16, 17, 17, 18, 19, 20, 21, 22, 23]
MOST_OPERATORS = 8
MOST_ELEMENTS = 20_000
LARGEST = 1e4
INPUT_SETS = 4
# How often a dimension is 0: of the first inputs and of constants, and of the other inputs.
EMPTY, EMPTY_INPUTS = 0.02, 0.08
# Of the inputs behind the first ones, how many have numbers that are not finite, and how many of those numbers there are.
SPECIAL_INPUTS = 0.3
SPECIAL_NUMBERS = 0.15
SPECIAL = [np.nan, np.inf, -np.inf, -0.0, 1e-40]
# Numbers that an axis, a size or an index had better not be.
ODD_NUMBERS = [0, 1, -1, 2, -2, 3, 5, -7, 257, 65_537, 2**31, 2**32, 2**32 + 1, -(2**33), 2**63 - 1, -(2**63)]
# How often the inputs are of a type.
INPUT_TYPES = [F32] * 10 + [F16] * 3 + [U8, I8, I64, I32, F64, BOOL]


@dataclass
class Tensor:
    """A tensor of a draft, and its value for the first inputs."""

    name: str
    value: np.ndarray

    @property
    def dtype(self):
        """The type of the elements."""
        return self.value.dtype

    @property
    def shape(self):
        """The dimensions."""
        return self.value.shape

    @property
    def rank(self):
        """The number of dimensions."""
        return self.value.ndim


@dataclass
class Graph:
    """A finished graph: its file, and the inputs to try it on, by name."""

    seed: int
    model: onnx.ModelProto
    feeds: list = field(default_factory=list)

    def __str__(self):
        return f"seed {self.seed}\n{onnx.printer.to_text(self.model)}"


def run(model, feed, outputs=None):
    """The outputs on ONNX Runtime without optimisations, by name; None if it refuses the model or the inputs, or ends its process."""
    return ONNX_RUNTIME.run(model.SerializeToString(), feed, outputs)


def port(name, dtype, dims):
    """An input or output; a dimension is a size, a name, or None."""
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(dtype), dims)


class Draft:
    """A graph in the making."""

    def __init__(self, seed):
        self.seed = seed
        self.rng = np.random.default_rng(seed)
        self.opset = self.choose(OPSETS)
        self.nodes = []
        self.inputs = [self._input(number) for number in range(self.choose([1, 1, 2]))]
        self.tensors = list(self.inputs)
        self.constants = []
        # The tensors that a node of the current kind has added.
        self.made = []

    def choose(self, options):
        """One of the options."""
        return options[self.rng.integers(len(options))]

    def chance(self, probability):
        """True with that probability."""
        return self.rng.random() < probability

    def size(self):
        """The size of a dimension."""
        return 0 if self.chance(EMPTY) else self.rng.integers(1, 7).item()

    def _input(self, number):
        rank = self.choose([1, 2, 2, 3, 3, 4, 4])
        shape = [0 if self.chance(EMPTY) else self.choose([1, 2, 3, 4, 6, 8]) for _ in range(rank)]
        return Tensor(f"in{number}", self.numbers(shape, self.choose(INPUT_TYPES)))

    def numbers(self, shape, dtype):
        """Small numbers of a type; floating-point ones often have few digits, so that equal ones and ties occur."""
        if dtype == BOOL:
            return self.rng.random(shape) < 0.5
        if dtype == U8:
            return self.rng.integers(0, 256, shape, dtype)
        if dtype == I8:
            return self.rng.integers(-128, 128, shape, dtype)
        if dtype in (I32, I64):
            return self.rng.integers(-4, 5, shape, dtype)
        values = self.rng.standard_normal(shape) * 2
        return (np.round(values * 8) / 8 if self.chance(0.3) else values).astype(dtype)

    def element(self, dtype):
        """ONNX's number of a type."""
        return helper.np_dtype_to_tensor_dtype(dtype)

    def constant(self, value):
        """A constant of the graph. Equal ones are one, as some exporters write them."""
        value = np.asarray(value)
        for known in self.constants:
            if known.dtype == value.dtype and known.shape == value.shape and np.array_equal(known.value, value):
                return known
        self.constants.append(Tensor(f"c{len(self.constants)}", value))
        return self.constants[-1]

    def weights(self, shape, dtype):
        """A constant of that shape, which other nodes may share."""
        known = [it for it in self.constants if it.shape == tuple(shape) and it.dtype == dtype]
        if known and self.chance(0.5):
            return self.choose(known)
        value = self.numbers(shape, dtype)
        return self.constant(value / np.array(2, dtype) if dtype in (F16, F32, F64) else value)

    def scale(self):
        """The scale of a quantised tensor."""
        return self.constant(np.float32(self.choose([0.004, 0.02, 0.05, 0.1, 0.25, 1.0])))

    def zero_point(self, dtype):
        """The zero point of a quantised tensor."""
        return self.constant(np.array(self.choose([0, 100, 128, 3] if dtype == U8 else [0, 0, -5, 10]), dtype))

    def indices(self, size, shape):
        """Indices into a dimension, negative ones among them: a constant, or the tensor of an earlier node."""
        suitable = [
            it
            for it in self.tensors
            if it.dtype in (I32, I64) and it.shape == tuple(shape) and ((-size <= it.value) & (it.value < size)).all()
        ]
        if suitable and self.chance(0.7):
            return self.choose(suitable)
        return self.constant(self.rng.integers(-size, size, shape).astype(self.choose([np.int64, np.int64, np.int32])))

    def axis(self, x):
        """An axis of a tensor, counted from the end at times."""
        axis = self.rng.integers(x.rank).item()
        return axis - x.rank if self.opset >= 11 and self.chance(0.4) else axis

    def axes(self, x):
        """Some axes of a tensor."""
        count = self.rng.integers(1, x.rank + 1)
        axes = np.sort(self.rng.permutation(x.rank)[:count]).tolist()
        return [axis - x.rank for axis in axes] if self.opset >= 11 and self.chance(0.3) else axes

    def any(self, types):
        """A tensor or constant of one of the types."""
        known = [it for it in self.tensors if it.dtype in types]
        return self.choose(known) if known else self.weights((self.size(),), F32)

    def partner(self, x):
        """An operand that can be broadcast with `x`: another tensor, or a constant with fewer or smaller dimensions."""

        def fits(other):
            pairs = zip(reversed(other.shape), reversed(x.shape), strict=False)
            return other.dtype == x.dtype and all(one == two or 1 in (one, two) for one, two in pairs)

        known = [it for it in self.tensors if fits(it)]
        if known and self.chance(0.5):
            return self.choose(known)
        shape = [size if self.chance(0.6) else 1 for size in x.shape]
        return self.weights(shape[self.rng.integers(len(shape) + 1) :], x.dtype)

    def like(self, x, axis):
        """A tensor or constant that differs from `x` at most along an axis."""
        axis %= x.rank

        def fits(it):
            others = [size for at, size in enumerate(it.shape) if at != axis]
            return it.dtype == x.dtype and it.rank == x.rank and others == [size for at, size in enumerate(x.shape) if at != axis]

        known = [it for it in self.tensors if fits(it)]
        if known and self.chance(0.6):
            return self.choose(known)
        shape = list(x.shape)
        shape[axis] = self.size()
        return self.weights(tuple(shape), x.dtype)

    def add(self, op, inputs, outputs=1, **attributes):
        """Adds a node and returns its tensors; None if ONNX Runtime does not take it, or the numbers become useless."""
        number = len(self.nodes)
        names = [f"t{number}_{slot}" for slot in range(outputs)]
        node = helper.make_node(op, [it.name if it else "" for it in inputs], names, name=f"n{number}", **attributes)
        used = {it.name: it for it in inputs if it}
        ports = [port(it.name, it.dtype, it.shape) for it in used.values()]
        model = self._model([node], ports, [onnx.ValueInfoProto(name=name) for name in names], [])
        values = run(model, {name: it.value for name, it in used.items()})
        if values is None or not all(map(useful, values.values())):
            return None
        self.nodes.append(node)
        made = [Tensor(name, np.asarray(value)) for name, value in values.items()]
        self.tensors += made
        return made

    def _model(self, nodes, inputs, outputs, constants):
        initializers = [numpy_helper.from_array(it.value, it.name) for it in constants]
        graph = helper.make_graph(nodes, "random", inputs, outputs, initializers)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)

    def grow(self):
        """Adds nodes of random kinds, most of them to the latest tensor, so that chains occur."""
        target = self.rng.integers(2, MOST_OPERATORS + 1)
        for _ in range(60):
            if len(self.nodes) >= target:
                break
            x = self.tensors[-1] if self.chance(0.7) else self.choose(self.tensors)
            kinds = [kind for kind in KINDS if x.dtype in kind[0] and x.rank >= kind[2] and self.opset >= kind[3]]
            chances = np.array([kind[1] for kind in kinds], float)
            add = kinds[self.rng.choice(len(kinds), p=chances / chances.sum())][4]
            try:
                add(self, x)
            except (ValueError, ZeroDivisionError):
                # A dimension of 0 has neither an index nor a divisor to choose.
                if x.value.size:
                    raise

    def finish(self):
        """The graph of the draft; None if it has too few nodes."""
        read = {name for node in self.nodes for name in node.input}
        made = [it for it in self.tensors if it not in self.inputs]
        outputs = [it for it in made if it.name not in read or self.chance(0.1)]
        inputs = [it for it in self.inputs if it.name in read]
        if len(self.nodes) < 2 or not outputs or not inputs:
            return None
        symbols: dict[str, int] = {}
        ports = [port(it.name, it.dtype, [self._dimension(size, symbols) for size in it.shape]) for it in inputs]
        results = [port(it.name, it.dtype, [None] * it.rank) for it in outputs]
        constants = [it for it in self.constants if it.name in read]
        graph = Graph(self.seed, self._model(self.nodes, ports, results, constants))
        graph.feeds = list(self._feeds(inputs, ports, symbols))
        return graph

    def _dimension(self, size, symbols):
        """A size, or a name for it, which dimensions of the same size share at times."""
        if self.chance(0.5):
            return size
        known = [name for name, value in symbols.items() if value == size]
        if known and self.chance(0.6):
            return self.choose(known)
        name = f"d{len(symbols)}"
        symbols[name] = size
        return name

    def _feeds(self, inputs, ports, symbols):
        """Inputs: those of the draft, and others, with other sizes for the dimensions that have names."""
        yield {it.name: it.value for it in inputs}
        for _ in range(INPUT_SETS - 1):
            sizes = {name: self.size() if self.chance(0.5) else size for name, size in symbols.items()}
            sizes = {name: 0 if self.chance(EMPTY_INPUTS) else size for name, size in sizes.items()}
            is_special = self.chance(SPECIAL_INPUTS)
            feed = {}
            for tensor, described in zip(inputs, ports, strict=True):
                dims = described.type.tensor_type.shape.dim
                shape = [sizes[dim.dim_param] if dim.dim_param else dim.dim_value for dim in dims]
                values = self.numbers(shape, tensor.dtype)
                values = values if self.chance(0.9) or tensor.dtype == BOOL else np.zeros_like(values)
                feed[tensor.name] = self._special(values) if is_special and tensor.dtype in FLOATS else values
            yield feed

    def _special(self, values):
        """The numbers, some of them exchanged for NaN, infinities and other ends of the type."""
        special = self.rng.choice(SPECIAL, values.shape).astype(values.dtype)
        return np.where(self.rng.random(values.shape) < SPECIAL_NUMBERS, special, values)


def damage(model, rng):
    """A copy of a model with one of its numbers exchanged: of an attribute, or of a constant that is an axis, a size or an index.
    None if it has none."""
    damaged = onnx.ModelProto()
    damaged.CopyFrom(model)
    graph = damaged.graph
    number = ODD_NUMBERS[rng.integers(len(ODD_NUMBERS))]
    # Functions that exchange a number each.
    places: list[partial] = []
    for attribute in (attribute for node in graph.node for attribute in node.attribute):
        if attribute.type == onnx.AttributeProto.INT and attribute.name not in ("to", "dtype"):
            places.append(partial(setattr, attribute, "i", number))
        for at in range(len(attribute.ints)):
            places.append(partial(attribute.ints.__setitem__, at, number))
    for constant in graph.initializer:
        value = numpy_helper.to_array(constant)
        if value.dtype == np.int64 and value.size:
            value = value.copy()
            value.flat[rng.integers(value.size)] = number
            places.append(partial(constant.CopyFrom, numpy_helper.from_array(value, constant.name)))
    if not places:
        return None
    places[rng.integers(len(places))]()
    return damaged


def useful(value):
    """Whether numbers are few, and neither infinite nor huge."""
    value = np.asarray(value)
    if value.size > MOST_ELEMENTS or value.ndim > 6:
        return False
    return value.dtype == BOOL or (np.isfinite(value).all() and (np.abs(value.astype(float)) <= LARGEST).all())


def make(seed):
    """The graph of a seed; None if it comes to nothing."""
    draft = Draft(seed)
    draft.grow()
    return draft.finish()

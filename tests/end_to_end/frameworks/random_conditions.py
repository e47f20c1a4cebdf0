"""Random ONNX graphs whose last operators depend on conditions (If), each with the graphs without conditions that it stands for."""

import copy
from dataclasses import dataclass

import numpy as np
import onnx
import random_onnx_graphs
from onnx import TensorProto, helper, numpy_helper

SIGNED = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.INT32, TensorProto.INT64}
# No sum of the graphs' numbers comes as close to it as rounding takes it.
THRESHOLD = 0.371
# How often a branch has a condition, too.
NESTED = 0.5


@dataclass
class Choice:
    """A graph with conditions, and the graph that each set of their values stands for."""

    model: onnx.ModelProto
    conditions: onnx.ModelProto
    graphs: dict

    def graph(self, feed):
        """The graph without conditions that these inputs choose; None if ONNX Runtime refuses the inputs."""
        values = random_onnx_graphs.run(self.conditions, feed)
        return values and self.graphs[tuple(bool(values[output.name]) for output in self.conditions.graph.output)]


class Draft:
    """Conditions in the making, over the last nodes of a graph."""

    def __init__(self, graph):
        self.model = graph.model
        self.rng = np.random.default_rng(graph.seed)
        nodes = list(self.model.graph.node)
        cut = int(self.rng.integers(len(nodes)))
        self.head, self.tail = nodes[:cut], nodes[cut:]
        self.made = {name for node in self.tail for name in node.output if name}
        self.outputs = [output for output in self.model.graph.output if output.name in self.made]
        self.threshold = numpy_helper.from_array(np.array(THRESHOLD, np.float32), "threshold")

    def condition(self, name):
        """Nodes that compare the sum, or the size, of a tensor before the last nodes with the threshold."""
        tensors = [port.name for port in self.model.graph.input]
        tensors += [name for node in self.head for name in node.output if name]
        tensor = tensors[self.rng.integers(len(tensors))]
        number, total = f"{name}_number", f"{name}_total"
        if self.rng.random() < 0.3:
            first = [
                helper.make_node("Size", [tensor], [number]),
                helper.make_node("Cast", [number], [total], to=TensorProto.FLOAT),
            ]
        else:
            first = [helper.make_node("Cast", [tensor], [number], to=TensorProto.FLOAT)]
            first.append(helper.make_node("ReduceSum", [number], [total], keepdims=0))
        return [*first, helper.make_node("Greater", [total, "threshold"], [name])]

    def branch(self, name, change=None):
        """The last nodes as a branch with names of its own, and with a change to its first output."""
        prefix = {made: f"{name}_{made}" for made in self.made}
        read = {tensor for node in self.tail for tensor in node.input}
        constants = [copy.copy(it) for it in self.model.graph.initializer if it.name in read and self.rng.random() < 0.5]
        prefix |= {constant.name: f"{name}_{constant.name}" for constant in constants}
        for constant in constants:
            constant.name = prefix[constant.name]
        nodes = [renamed(node, prefix) for node in self.tail]
        outputs = [prefix[output.name] for output in self.outputs]
        if change:
            nodes.append(change(outputs[0], f"{outputs[0]}_changed"))
            outputs[0] += "_changed"
        return self._graph(name, nodes, outputs, constants)

    def nested(self, name, condition, then, otherwise):
        """A branch that makes a condition with these nodes, the last of which has its value."""
        outputs = [f"{name}_{output.name}" for output in self.outputs]
        choice = conditional(condition[-1].output[0], outputs, then, otherwise)
        return self._graph(name, [*condition, choice], outputs, [])

    def _graph(self, name, nodes, outputs, constants):
        ports = []
        for output, described in zip(outputs, self.outputs, strict=True):
            ports.append(copy.copy(described))
            ports[-1].name = output
        return helper.make_graph(nodes, name, [], ports, constants)

    def with_nodes(self, nodes):
        """The graph with these nodes behind the first ones."""
        model = copy.deepcopy(self.model)
        del model.graph.node[:]
        model.graph.node.extend([*self.head, *nodes])
        model.graph.initializer.append(self.threshold)
        return model

    def changed(self, change):
        """The graph without conditions, with a change to the first output of the last nodes."""
        first = self.outputs[0].name
        prefix = {first: f"{first}_unchanged"}
        return self.with_nodes([*(renamed(node, prefix) for node in self.tail), change(prefix[first], first)])


def renamed(node, names):
    """A copy of a node with other names of tensors."""
    node = copy.deepcopy(node)
    for tensors in (node.input, node.output):
        tensors[:] = [names.get(name, name) for name in tensors]
    return node


def conditional(condition, outputs, then, otherwise):
    """An If."""
    return helper.make_node("If", [condition], outputs, name=f"if_{condition}", then_branch=then, else_branch=otherwise)


def negated(tensor, result):
    """A node that changes the signs of a tensor."""
    return helper.make_node("Neg", [tensor], [result])


def doubled(tensor, result):
    """A node that doubles a tensor."""
    return helper.make_node("Add", [tensor, tensor], [result])


def make(graph):
    """A choice between a graph and changes of it; None if nothing would show which of them runs."""
    draft = Draft(graph)
    if not draft.outputs or draft.outputs[0].type.tensor_type.elem_type not in SIGNED:
        return None
    first, then = draft.condition("first"), draft.branch("then")
    # The nodes of the nested condition, which are repeated where its value can be read.
    second = draft.condition("second") if draft.rng.random() < NESTED else []
    if second:
        then = draft.nested("nested", second, then, draft.branch("doubled", doubled))
    outputs = [output.name for output in draft.outputs]
    model = draft.with_nodes([*first, conditional("first", outputs, then, draft.branch("negated", negated))])
    conditions = draft.with_nodes([*first, *second])
    del conditions.graph.output[:]
    names = ["first", "second"] if second else ["first"]
    conditions.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.BOOL, []) for name in names)
    whole, less, more = draft.with_nodes(draft.tail), draft.changed(negated), draft.changed(doubled)
    if not second:
        return Choice(model, conditions, {(True,): whole, (False,): less})
    graphs = {(True, True): whole, (True, False): more, (False, True): less, (False, False): less}
    return Choice(model, conditions, graphs)

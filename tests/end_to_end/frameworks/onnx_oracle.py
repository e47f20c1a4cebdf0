"""Whether an engine's answer to a random graph is right, and the smallest part of a graph whose answer is not.

ONNX Runtime without optimisations is the measure. Two engines round differently, and a graph may turn the smallest difference
into another index or another integer, so an element counts only as far as it is the same when each tensor of the graph has noise
of the size of rounding.
"""

import numpy as np
from onnx import ModelProto, helper, numpy_helper
from random_onnx_graphs import port, run

# What rounding and approximated functions may change, relative to the largest element of a tensor.
NOISE = {"float16": 4e-3, "float32": 1e-5, "float64": 1e-7}
# Below this, functions such as Sigmoid are approximated, and the smallest numbers are flushed to 0.
LEAST = {"float16": 1e-6, "float32": 2e-6, "float64": 1e-300}
NOISY_RUNS = 24
MOST_INTEGER = 1e9
# A difference has to be that many times as large as those that noise makes.
MARGIN = 4
# Operators whose result of numbers with NaN depends on the position of NaN in ONNX Runtime, so that it is no measure.
VARYING = {"ArgMax", "ArgMin", "GlobalMaxPool", "Hardmax", "MaxPool", "ReduceLogSumExp", "ReduceMax", "ReduceMin", "TopK"}
# Operators of ONNX Runtime that spread NaN and infinity to other elements: it multiplies the neighbours of a point by 0 where the point
# falls on an element, and takes sums of windows from those before.
SPREADING = {"LRN", "Resize"}
# Sums of products, which overflow by their order. Engines may take the smallest factors for 0, and have NaN of them and infinity.
SUMS = {"Conv", "ConvTranspose", "Einsum", "GRU", "Gemm", "LSTM", "MatMul", "RNN"}
MOST_FACTOR = {"float16": 1e2, "float32": 1e18, "float64": 1e150}
POOLS = {"GlobalMaxPool", "MaxPool"}
SMALLEST_HALF = np.finfo(np.float16).tiny
# The exponent of a power of e to which ONNX Runtime's Sigmoid of FP64 leaves enough digits.
LEAST_EXPONENT = np.log(np.finfo(np.float64).eps / NOISE["float64"])
# Integers of what is no number are undefined in ONNX.
TO_INTEGERS = {"Cast", "CastLike", "DynamicQuantizeLinear", "QuantizeLinear"}


def noisy(model, values, rng):
    """The model with noise behind each of its tensors and in its scales; `values` are its tensors without."""
    changed = ModelProto()
    changed.CopyFrom(model)
    graph = changed.graph
    produced: dict[str, str] = {}
    known = values | {constant.name: numpy_helper.to_array(constant) for constant in graph.initializer}

    def disturb(name, rounding=0.0):
        value = values[name]
        level = NOISE.get(value.dtype.name)
        if level is None or not value.size:
            return
        # Engines may flush the smallest numbers to 0.
        size = level * np.abs(finite(value)).max(initial=0) + rounding + 10 * np.finfo(value.dtype).tiny
        noise = (rng.uniform(-1, 1, value.shape) * size).astype(value.dtype)
        graph.initializer.append(numpy_helper.from_array(noise, f"{name}_noise"))
        graph.node.append(helper.make_node("Add", [produced.get(name, name), f"{name}_noise"], [f"{name}_noisy"]))
        produced[name] = f"{name}_noisy"

    scales = {name for node in graph.node if "Linear" in node.op_type for name in node.input}
    for constant in graph.initializer:
        value = numpy_helper.to_array(constant)
        if constant.name in scales and value.dtype.kind == "f":
            change = 1 + rng.uniform(-1, 1, value.shape) * NOISE[value.dtype.name]
            constant.CopyFrom(numpy_helper.from_array((value * change).astype(value.dtype), constant.name))
    del graph.node[:]
    for described in model.graph.input:
        disturb(described.name)
    for node in model.graph.node:
        copy = type(node)()
        copy.CopyFrom(node)
        copy.input[:] = [produced.get(name, name) for name in node.input]
        graph.node.append(copy)
        for name in filter(None, node.output):
            disturb(name, cancellation(node, known))
    for output in graph.output:
        if output.name in produced:
            output.name = produced[output.name]
    return changed


def cancellation(node, known):
    """The rounding that an InstanceNormalization of ONNX Runtime leaves; 0 for other nodes. It subtracts the products of elements and of
    their mean with the scale, which may be far larger than the difference."""
    if node.op_type != "InstanceNormalization" or not known[node.input[0]].size:
        return 0.0
    x, scale = (np.asarray(known[name]) for name in node.input[:2])
    spatial = tuple(range(2, x.ndim))
    epsilon = next((attribute.f for attribute in node.attribute if attribute.name == "epsilon"), 1e-5)
    with np.errstate(all="ignore"):
        deviation = np.sqrt(x.astype(float).var(spatial) + epsilon)
        products = np.abs(x.astype(float)).max(spatial) * np.abs(scale.astype(float)) / deviation
    return np.finfo(x.dtype).eps * finite(products).max(initial=0)


def tensors(model, feed):
    """The values of all tensors of a model, its inputs included; None if ONNX Runtime does not take the inputs."""
    exposed = ModelProto()
    exposed.CopyFrom(model)
    names = [name for node in model.graph.node for name in node.output if name]
    del exposed.graph.output[:]
    exposed.graph.output.extend(type(model.graph.output[0])(name=name) for name in names)
    values = run(exposed, feed)
    return values and {name: np.asarray(value) for name, value in {**values, **feed}.items()}


def difference(model, feed, answer, expected, noisy_runs=NOISY_RUNS):
    """How an answer differs from what ONNX Runtime gives, in words; empty if noise explains it."""
    suspicious = {}
    for name, right in expected.items():
        # The server has one dimension for none, unless the file declares the wrong number of them.
        got, right = (np.atleast_1d(it) for it in (answer[name], right))
        if got.shape != right.shape or got.dtype != right.dtype:
            if any(np.size(value) == 0 for value in [*expected.values(), *(tensors(model, feed) or {}).values()]):
                # ONNX Runtime's reductions of nothing keep their dimensions.
                return ""
            return f"{name}: {got.dtype} {list(got.shape)} instead of {right.dtype} {list(right.shape)}"
        beyond = distance(got, right) > allowed(right)
        if beyond.any():
            suspicious[name] = (got, right, beyond)
    if not suspicious:
        return ""
    rng, values = np.random.default_rng(1), tensors(model, feed)
    if not values or not is_defined(model, values):
        return ""
    runs = [run(noisy(model, values, rng), feed) for _ in range(noisy_runs)]
    runs = [list(outputs.values()) for outputs in runs if outputs]
    positions = [output.name for output in model.graph.output]
    for name, (got, right, beyond) in suspicious.items():
        others = [np.asarray(outputs[positions.index(name)]).reshape(-1) for outputs in runs]
        others = [other.reshape(right.shape) for other in others if other.size == right.size]
        if len(others) < len(runs) or not runs:
            continue
        spread = np.max([distance(other, right) for other in others], axis=0)
        different = beyond.sum()
        beyond &= distance(got, right) > allowed(right) + MARGIN * spread
        # Of an integer that noise changes nothing is known, nor of numbers that it makes infinite.
        beyond &= (spread == 0) if right.dtype.kind not in "f" else np.isfinite(spread)
        # Where noise explains some differences, such as the largest of equal numbers, it explains their neighbours, too.
        if 2 * beyond.sum() > different:
            at = tuple(int(place) for place in np.argwhere(beyond)[0])
            return f"{name}{list(at)}: {got[at]} instead of {right[at]}; {beyond.sum()} of {beyond.size} elements differ"
    return ""


def is_defined(model, values):
    """Whether ONNX and ONNX Runtime define all tensors of a model: no integers near an overflow, or of infinite numbers, no extremes
    among NaN, and no products of nothing."""
    known = values | {constant.name: numpy_helper.to_array(constant) for constant in model.graph.initializer}
    for node in model.graph.node:
        numbers = [known[name].astype(float) for name in node.input if name in known and known[name].dtype.kind == "f"]
        made = [known[name] for name in node.output if name in known]
        # ONNX Runtime keeps FP32 between two operators on FP16, and nothing overflows there.
        overflowed = any(it.dtype == np.float16 and not np.isfinite(it).all() for it in made)
        if overflowed and all(np.isfinite(it).all() for it in numbers):
            return False
        # A bound that Clip lacks is the largest number of FP16, or of FP32 between two operators without kernels for FP16.
        halves = any(it.dtype == np.float16 for it in made)
        if node.op_type == "Clip" and halves and any(np.isinf(it).any() for it in numbers):
            return False
        # Its pools start at the lowest number of FP32, which only becomes infinite where it is rounded to FP16.
        if node.op_type in POOLS and halves and any(np.isneginf(it).any() for it in numbers):
            return False
        # Whether one number is a multiple of another depends on how both were rounded, or flushed to 0.
        if node.op_type == "Mod" and made and made[0].dtype.kind == "f" and node.input[1] in values:
            least = np.abs(values[node.input[1]]).min(initial=1)
            if halves or not least >= np.finfo(made[0].dtype).tiny:
                return False
        # What is 0 in FP16 may be another number in FP32, by which another one can be divided, ...
        if node.op_type == "Div" and halves and all((np.abs(it) < SMALLEST_HALF).any() for it in numbers):
            return False
        # ... and which is true.
        from_halves = node.op_type in TO_INTEGERS and any(known[name].dtype == np.float16 for name in node.input if name in known)
        if from_halves and any(it.dtype == np.bool_ for it in made) and any((np.abs(it) < SMALLEST_HALF).any() for it in numbers):
            return False
        rounds = node.op_type in TO_INTEGERS and any(it.dtype.kind in "iu" for it in made)
        if rounds and not all(np.isfinite(it).all() for it in numbers):
            return False
        # The sign of NaN is 0 in FP16, and NaN otherwise.
        varies = node.op_type in VARYING or (node.op_type == "Sign" and made and made[0].dtype == np.float16)
        if varies and any(np.isnan(it).any() for it in numbers):
            return False
        doubles = bool(made) and made[0].dtype == np.float64
        # ONNX Runtime's Sigmoid of this type is 1 minus a number close to 1, and 0 for what is left of that.
        if node.op_type == "Sigmoid" and doubles and any((finite(it) < LEAST_EXPONENT).any() for it in numbers):
            return False
        # Normalisations may be computed in FP32, in which the smallest numbers have few digits.
        small = any(((it != 0) & (np.abs(it) < np.finfo(np.float32).tiny)).any() for it in numbers)
        if node.op_type.endswith("Normalization") and doubles and small:
            return False
        # ONNX Runtime's LogSoftmax of infinity is wrong in this type only.
        spreads = node.op_type in SPREADING or (node.op_type == "LogSoftmax" and doubles)
        if spreads and not all(np.isfinite(it).all() for it in numbers):
            return False
        # ONNX Runtime's reductions of nothing keep dimensions of 0.
        reduces = node.op_type.startswith(("Reduce", "ArgM"))
        if reduces and not known[node.input[0]].size and not all(it.size for it in made):
            return False
        # ONNX Runtime leaves products with vectors of no elements unset.
        if "MatMul" in node.op_type and not all(known[name].size for name in node.input) and any(it.size for it in made):
            return False
        # Products overflow, or become 0, by their order.
        if node.op_type == "ReduceProd" and any(map(overflows, numbers)):
            return False
        # ONNX Runtime divides by the deviation alone, which is 0 for equal numbers; ONNX adds 1e-9 to it.
        if node.op_type == "MeanVarianceNormalization" and any(np.isnan(it).any() for it in made):
            return False
        # Engines may take the smallest sums of products for 0, and others divide by them. FP16 is computed in FP32.
        sums = [it for it in made if node.op_type in SUMS and it.dtype.kind == "f" and it.dtype != np.float16]
        if any(((it != 0) & (np.abs(it) < np.finfo(it.dtype).tiny)).any() for it in sums):
            return False
        if node.op_type in SUMS and not all(np.isfinite(it).all() for it in made if it.dtype.kind == "f"):
            most = MOST_FACTOR.get(made[0].dtype.name, np.inf) if made else np.inf
            least = np.finfo(made[0].dtype).tiny if made else 0
            sizes = [np.abs(finite(it)) for it in numbers]
            if any((it.max(initial=0) > most) or ((it > 0) & (it < least)).any() for it in sizes):
                return False
    integers = (value for value in values.values() if value.dtype.kind in "iu")
    return all((np.abs(value.astype(float)) < MOST_INTEGER).all() for value in integers)


def overflows(factors):
    """Whether a product of some of these numbers may be beyond FP32."""
    sizes = np.abs(finite(factors))
    powers = np.log(sizes[sizes > 0])
    limits = np.finfo(np.float32)
    return powers[powers > 0].sum() > np.log(limits.max) or powers[powers < 0].sum() < np.log(limits.tiny)


def finite(numbers):
    """The finite ones among numbers."""
    numbers = np.asarray(numbers).astype(float)
    return numbers[np.isfinite(numbers)]


def distance(one, other):
    """How far apart elements are; 0 for two of no number, infinite for one."""
    with np.errstate(all="ignore"):
        apart = np.abs(one.astype(float) - other.astype(float))
        apart[(one == other) | (np.isnan(one.astype(float)) & np.isnan(other.astype(float)))] = 0
        return np.nan_to_num(apart, nan=np.inf, posinf=np.inf)


def allowed(right):
    """The difference that rounding alone explains."""
    level = NOISE.get(right.dtype.name, 0)
    largest = np.abs(finite(right)).max(initial=0) if level else 0
    least = LEAST.get(right.dtype.name, 0)
    with np.errstate(over="ignore"):
        return level * (largest + np.nan_to_num(np.abs(right.astype(float)), posinf=0)) * 2 + least


def smallest(model, feed, fails):
    """The smallest part of the model that still `fails(model, feed)`, with its inputs."""
    values = tensors(model, feed)
    if not values:
        return model, feed
    names = [name for node in model.graph.node for name in node.output if name]
    for name in names:
        part = cut(model, values, [name], set())
        if fails(*part):
            break
    else:
        return model, feed
    given: set[str] = set()
    for other in names:
        if other == name:
            continue
        tried = cut(model, values, [name], given | {other})
        if len(tried[0].graph.node) < len(part[0].graph.node) and fails(*tried):
            given.add(other)
            part = tried
    return part


def cut(model, values, outputs, given):
    """The nodes between some tensors, which become inputs, and outputs; with the values of these inputs."""
    needed, nodes = list(outputs), []
    wanted = set()
    makers = {name: node for node in model.graph.node for name in node.output}
    while needed:
        name = needed.pop()
        node = makers.get(name)
        if not name or name in wanted:
            continue
        wanted.add(name)
        if node is not None and name not in given:
            needed += node.input
    nodes = [node for node in model.graph.node if any(name in wanted and name not in given for name in node.output)]
    read = {name for node in nodes for name in node.input}
    part = ModelProto()
    part.CopyFrom(model)
    graph = part.graph
    for field in (graph.node, graph.input, graph.output, graph.initializer):
        del field[:]
    graph.node.extend(nodes)
    graph.initializer.extend(it for it in model.graph.initializer if it.name in read)
    declared = {described.name: described for described in model.graph.input}
    made = {name for node in nodes for name in node.output}
    inputs = [name for name in values if name in read and name not in made]
    for name in inputs:
        value = values[name]
        graph.input.append(declared.get(name) or port(name, value.dtype, value.shape))
    graph.output.extend(port(name, values[name].dtype, [None] * values[name].ndim) for name in outputs)
    return part, {name: values[name] for name in inputs}

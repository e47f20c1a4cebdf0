"""Random nodes of ONNX graphs: one function for each kind of operator, which adds a node to a draft.

A proposal may be invalid: the draft tries each on ONNX Runtime and drops it then.
"""

from collections.abc import Callable

import numpy as np

F16, F32, F64 = np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)
I8, U8, I32, I64 = np.dtype(np.int8), np.dtype(np.uint8), np.dtype(np.int32), np.dtype(np.int64)
BOOL = np.dtype(bool)

FLOATS = (F16, F32, F64)
NUMBERS = (*FLOATS, I32, I64)
SMALL = (I8, U8)
ALL = (*NUMBERS, *SMALL, BOOL)

# Each kind of operator: the element types of its first input, how often it is chosen, and the function.
KINDS: list[tuple[frozenset, int, int, int, Callable]] = []


def kind(*types, weight=1, rank=0, opset=0):
    """Registers a function for inputs of these types, of at least that rank, from that opset on."""

    def register(function):
        KINDS.append((frozenset(types), weight, rank, opset, function))
        return function

    return register


UNARY = {
    "Relu": 6, "Sigmoid": 6, "Tanh": 6, "Exp": 6, "Log": 6, "Sqrt": 6, "Abs": 6, "Neg": 6, "Floor": 6, "Ceil": 6,
    "Round": 11, "Erf": 9, "Reciprocal": 6, "Softplus": 6, "Softsign": 6, "Elu": 6, "Selu": 6, "LeakyRelu": 6,
    "HardSigmoid": 6, "HardSwish": 14, "Mish": 18, "Gelu": 20, "ThresholdedRelu": 10, "Sin": 7, "Cos": 7, "Tan": 7, "Atan": 7,
    "Sinh": 9, "Cosh": 9, "Asinh": 9, "Sign": 9, "Identity": 6, "Dropout": 7, "IsNaN": 9, "IsInf": 10,
}  # fmt: skip


@kind(*FLOATS, weight=10)
def unary(draft, x):
    op = draft.choose([name for name, opset in UNARY.items() if draft.opset >= opset])
    attributes = {}
    if op in ("Elu", "LeakyRelu", "ThresholdedRelu", "HardSigmoid", "Selu") and draft.chance(0.5):
        attributes["alpha"] = draft.choose([0.01, 0.2, 0.5, 1.0, 1.5])
    if op == "HardSigmoid" and draft.chance(0.5):
        attributes["beta"] = draft.choose([0.0, 0.5, 0.6])
    if op == "Gelu" and draft.chance(0.5):
        attributes["approximate"] = "tanh"
    if op == "Dropout" and draft.chance(0.5):
        draft.add(op, [x], outputs=2)
        return
    draft.add(op, [x], **attributes)


@kind(I32, I64, I8, weight=1)
def unary_of_integers(draft, x):
    draft.add(draft.choose(["Abs", "Neg", "Sign", "Identity", "Relu"]), [x])


@kind(BOOL, weight=2)
def negation(draft, x):
    draft.add("Not", [x])


@kind(*ALL, weight=2)
def cast(draft, x):
    kinds = [F16, F32, F32, F64, I32, I64, BOOL]
    if x.dtype in (*FLOATS, I32, I64) and draft.opset >= 12 and draft.chance(0.2):
        # ONNX leaves open what becomes of numbers that a type does not have.
        bounds = [draft.constant(np.array(bound, x.dtype)) for bound in (0, 100)]
        bounded = draft.add("Clip", [x, *bounds])
        x, kinds = (bounded[0], [I8, U8]) if bounded else (x, kinds)
    draft.add("Cast", [x], to=draft.element(draft.choose(kinds)))


@kind(*FLOATS, weight=6, rank=1)
def softmax(draft, x):
    op = draft.choose(["Softmax", "Softmax", "LogSoftmax", "Hardmax"])
    attributes = {"axis": draft.axis(x)} if draft.chance(0.8) else {}
    draft.add(op, [x], **attributes)


@kind(*FLOATS, weight=2)
def clip(draft, x):
    low, high = sorted(draft.rng.uniform(-3, 3, 2).round(2))
    if draft.opset < 11:
        draft.add("Clip", [x], min=float(low), max=float(high))
        return
    bounds = [draft.constant(np.array(bound, x.dtype)) for bound in (low, high)]
    draft.add("Clip", draft.choose([[x, *bounds], [x, bounds[0]], [x, None, bounds[1]]]))


@kind(*NUMBERS, weight=14)
def arithmetic(draft, x):
    other = draft.partner(x)
    op = draft.choose(["Add", "Sub", "Mul", "Div", "Min", "Max", "Sum", "Mean", "Pow", "Mod", "PRelu"])
    if op == "Pow":
        exponent = draft.choose([2, 3, 0.5, 1, -1]) if x.dtype in FLOATS else draft.choose([2, 3])
        other = draft.constant(np.array(exponent, x.dtype)) if draft.chance(0.7) else other
    is_integer = x.dtype not in FLOATS
    if op in ("Div", "Mod") and is_integer:
        # A division of integers by 0 ends the process with ONNX Runtime in it.
        other = draft.constant(np.array(draft.choose([1, 2, 3, 7, -1, -2, -5]), x.dtype))
    pair = [x, other] if op in ("Pow", "PRelu") or (op in ("Div", "Mod") and is_integer) or draft.chance(0.6) else [other, x]
    if op in ("Sum", "Mean", "Min", "Max") and draft.chance(0.3):
        pair.append(draft.partner(x))
    attributes = {"fmod": 1} if op == "Mod" and x.dtype in FLOATS else {}
    draft.add(op, pair, **attributes)


@kind(*NUMBERS, weight=2)
def comparison(draft, x):
    # Numbers that are equal but for their rounding are no sign of a defect.
    op = draft.choose(
        [
            "Less",
            *([] if x.dtype in FLOATS else ["Equal"]),
            "Greater",
            *(["LessOrEqual", "GreaterOrEqual"] if draft.opset >= 12 else []),
        ]
    )
    draft.add(op, [x, draft.partner(x)])


@kind(BOOL, weight=3)
def logic(draft, x):
    draft.add(draft.choose(["And", "Or", "Xor"]), [x, draft.partner(x)])


@kind(BOOL, weight=4)
def where(draft, x):
    one = draft.any(NUMBERS)
    draft.add("Where", [x, one, draft.partner(one)])


@kind(*FLOATS, weight=9, rank=1)
def product(draft, x):
    inner = x.shape[-1]
    style = draft.choose(["weights", "weights", "vector", "batch", "self", "left"])
    if style == "weights":
        draft.add("MatMul", [x, draft.weights((inner, draft.size()), x.dtype)])
    elif style == "vector":
        draft.add("MatMul", [x, draft.weights((inner,), x.dtype)])
    elif style == "batch":
        lead = tuple(draft.choose([1, size]) for size in x.shape[:-2])
        draft.add("MatMul", [x, draft.weights((*lead, inner, draft.size()), x.dtype)])
    elif style == "left" and x.rank >= 2:
        draft.add("MatMul", [draft.weights((draft.size(), x.shape[-2]), x.dtype), x])
    elif x.rank >= 2:
        perm = [*range(x.rank - 2), x.rank - 1, x.rank - 2]
        turned = draft.add("Transpose", [x], perm=perm)
        if turned:
            draft.add("MatMul", draft.choose([[x, turned[0]], [turned[0], x]]))


@kind(*FLOATS, weight=2, rank=2)
def gemm(draft, x):
    if x.rank != 2:
        return
    turned = draft.choose([0, 1])
    inner, outer = x.shape[1 - turned], draft.size()
    turns = draft.choose([0, 1])
    weights = draft.weights((outer, inner) if turns else (inner, outer), x.dtype)
    bias = (
        [draft.weights(draft.choose([(outer,), (1, outer), (x.shape[turned], outer), (1,)]), x.dtype)] if draft.chance(0.7) else []
    )
    scales = {"alpha": 0.5, "beta": 2.0} if draft.chance(0.3) else {}
    draft.add("Gemm", [x, weights, *bias], transA=turned, transB=turns, **scales)


@kind(*FLOATS, weight=1, rank=2, opset=12)
def einsum(draft, x):
    if x.rank == 2:
        weights = draft.weights((x.shape[1], draft.size()), x.dtype)
        draft.add("Einsum", [x, weights], equation=draft.choose(["bi,ij->bj", "bi,ij->jb"]))
    elif x.rank == 3:
        draft.add("Einsum", [x, x], equation=draft.choose(["bij,bkj->bik", "bij,bij->bi", "bij,bij->bij"]))


def window(draft, x, kernel):
    """Attributes of a window, as far as they fit."""
    spatial = x.rank - 2
    attributes = {}
    if draft.chance(0.5):
        attributes["strides"] = [draft.choose([1, 2, 3]) for _ in range(spatial)]
    padding = draft.choose(["none", "pads", "pads", "SAME_UPPER", "SAME_LOWER", "VALID"])
    if padding == "pads":
        attributes["pads"] = [draft.rng.integers(0, size).item() for size in (*kernel, *kernel)]
    elif padding != "none":
        attributes["auto_pad"] = padding
    if draft.chance(0.25):
        attributes["dilations"] = [draft.choose([1, 2]) for _ in range(spatial)]
    return attributes


@kind(*FLOATS, weight=8, rank=3)
def convolution(draft, x):
    channels = x.shape[1]
    group = draft.choose([1, 1, channels, 2 if channels % 2 == 0 else 1])
    kernel = tuple(draft.choose([1, 2, 3]) for _ in range(x.rank - 2))
    outputs = group * draft.choose([1, 2, 3])
    attributes = window(draft, x, kernel)
    if draft.chance(0.5):
        attributes["kernel_shape"] = list(kernel)
    if draft.chance(0.25):
        weights = draft.weights((channels, outputs // group, *kernel), x.dtype)
        if draft.chance(0.3):
            attributes["output_padding"] = [draft.choose([0, 1]) for _ in kernel]
        if draft.chance(0.2):
            attributes["output_shape"] = [size * draft.choose([1, 2]) + draft.choose([0, 0, 1]) for size in x.shape[2:]]
        draft.add("ConvTranspose", [x, weights], group=group, **attributes)
        return
    weights = draft.weights((outputs, channels // group, *kernel), x.dtype)
    bias = [draft.weights((outputs,), x.dtype)] if draft.chance(0.5) else []
    draft.add("Conv", [x, weights, *bias], group=group, **attributes)


@kind(*FLOATS, weight=5, rank=3)
def pool(draft, x):
    kernel = tuple(draft.choose([1, 2, 3]) for _ in range(x.rank - 2))
    op = draft.choose(["MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"])
    if op.startswith("Global"):
        draft.add(op, [x])
        return
    attributes = window(draft, x, kernel)
    if op == "AveragePool":
        if draft.opset < 19:
            attributes.pop("dilations", None)
        if draft.chance(0.5):
            attributes["count_include_pad"] = draft.choose([0, 1])
    if draft.opset >= 10 and draft.chance(0.3):
        attributes["ceil_mode"] = 1
    outputs = 2 if op == "MaxPool" and draft.chance(0.2) else 1
    draft.add(op, [x], outputs=outputs, kernel_shape=list(kernel), **attributes)


@kind(*FLOATS, weight=3, rank=2)
def normalization(draft, x):
    channels = x.shape[1]
    vector = lambda: draft.weights((channels,), x.dtype)  # noqa: E731
    op = draft.choose(["Batch", "Instance", "Layer", "LRN", "Lp", "MeanVariance", "Group", "RMS"])
    if op == "Batch":
        variance = draft.constant(draft.rng.uniform(0.5, 2, channels).astype(x.dtype))
        draft.add("BatchNormalization", [x, vector(), vector(), vector(), variance], epsilon=1e-3)
    elif op == "Instance" and x.rank >= 4:
        draft.add("InstanceNormalization", [x, vector(), vector()])
    elif op == "Layer" and draft.opset >= 17:
        axis = draft.axis(x)
        shape = x.shape[axis:]
        bias = [draft.weights(shape, x.dtype)] if draft.chance(0.6) else []
        draft.add("LayerNormalization", [x, draft.weights(shape, x.dtype), *bias], axis=axis)
    elif op == "LRN":
        draft.add("LRN", [x], size=draft.choose([1, 3, 5]), alpha=0.1, beta=0.75)
    elif op == "Lp":
        draft.add("LpNormalization", [x], axis=draft.axis(x), p=draft.choose([1, 2]))
    elif op == "MeanVariance" and x.rank == 4:
        draft.add("MeanVarianceNormalization", [x])
    elif op == "Group" and draft.opset >= 21:
        draft.add("GroupNormalization", [x, vector(), vector()], num_groups=draft.choose([1, channels]))
    elif op == "RMS" and draft.opset >= 23:
        draft.add("RMSNormalization", [x, draft.weights(x.shape[-1:], x.dtype)], axis=-1)


REDUCTIONS = ["Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSum", "LogSumExp"]


@kind(*NUMBERS, weight=8, rank=1)
def reduction(draft, x):
    # Roots and logarithms are no integers, and ONNX leaves open how they are rounded.
    # The mean of no integers is a division by 0.
    op = "Reduce" + draft.choose(REDUCTIONS if x.dtype in FLOATS else ["Sum", "Max", "Min", "Prod", "L1", "SumSquare"])
    attributes = {"keepdims": draft.choose([0, 1])}
    inputs = [x]
    if draft.chance(0.85):
        axes = draft.axes(x)
        if draft.opset >= (13 if op == "ReduceSum" else 18):
            inputs.append(draft.constant(np.array(axes, np.int64)))
        else:
            attributes["axes"] = axes
    draft.add(op, inputs, **attributes)


@kind(*NUMBERS, weight=3, rank=1)
def extreme_place(draft, x):
    attributes = {"select_last_index": 1} if draft.opset >= 12 and draft.chance(0.2) else {}
    draft.add(draft.choose(["ArgMax", "ArgMin"]), [x], axis=draft.axis(x), keepdims=draft.choose([0, 1]), **attributes)


@kind(*NUMBERS, weight=1, rank=1, opset=11)
def cumulative_sum(draft, x):
    axis = draft.constant(np.array(draft.axis(x), np.int64))
    draft.add("CumSum", [x, axis], exclusive=draft.choose([0, 1]), reverse=draft.choose([0, 1]))


@kind(*FLOATS, I64, weight=2, rank=1, opset=11)
def largest(draft, x):
    axis = draft.axis(x)
    k = draft.constant(np.array([draft.rng.integers(1, x.shape[axis] + 1)], np.int64))
    draft.add("TopK", [x, k], outputs=2, axis=axis, largest=draft.choose([0, 1]))


@kind(*ALL, weight=2)
def reshape(draft, x):
    total = int(np.prod(x.shape))
    if total == 0:
        return
    sizes, rest = [], total
    for _ in range(draft.rng.integers(0, 4)):
        size = draft.choose([size for size in range(1, rest + 1) if rest % size == 0][:6])
        sizes.append(size)
        rest //= size
    sizes.append(rest)
    draft.rng.shuffle(sizes)
    if draft.chance(0.5):
        sizes[draft.rng.integers(len(sizes))] = -1
    draft.add("Reshape", [x, draft.constant(np.array(sizes, np.int64))])


@kind(*ALL, weight=1, rank=2)
def reshape_to_own_size(draft, x):
    """Batch and the rest, with the batch taken from the tensor's shape at run time."""
    shape = draft.add("Shape", [x])
    batch = shape and draft.add("Gather", [shape[0], draft.constant(np.array([0], np.int64))])
    target = batch and draft.add("Concat", [batch[0], draft.constant(np.array([-1], np.int64))], axis=0)
    if target:
        draft.add("Reshape", [x, target[0]])


@kind(*ALL, weight=3, rank=2)
def transpose(draft, x):
    draft.add("Transpose", [x], perm=draft.rng.permutation(x.rank).tolist())


@kind(*ALL, weight=2)
def dimensions(draft, x):
    op = draft.choose(["Flatten", "Squeeze", "Unsqueeze", "Unsqueeze"])
    if op == "Flatten":
        draft.add(op, [x], axis=draft.rng.integers(0, x.rank + 1).item())
        return
    if op == "Squeeze":
        axes = [axis for axis, size in enumerate(x.shape) if size == 1]
        if not axes:
            return
        axes = [draft.choose(axes)]
    else:
        axes = [draft.rng.integers(-x.rank - 1, x.rank + 1).item()]
    if draft.opset >= 13:
        draft.add(op, [x, draft.constant(np.array(axes, np.int64))])
    elif axes[0] >= 0:
        draft.add(op, [x], axes=axes)


@kind(*ALL, weight=2, rank=1)
def concat(draft, x):
    axis = draft.axis(x)
    parts = [x, *(draft.like(x, axis) for _ in range(draft.choose([1, 1, 2])))]
    draft.rng.shuffle(parts)
    draft.add("Concat", parts, axis=axis)


@kind(*ALL, weight=1, rank=1)
def split(draft, x):
    axis = draft.axis(x)
    size = x.shape[axis]
    if size < 2:
        return
    first = draft.rng.integers(1, size).item()
    if draft.opset >= 13:
        draft.add("Split", [x, draft.constant(np.array([first, size - first], np.int64))], outputs=2, axis=axis)
    else:
        draft.add("Split", [x], outputs=2, axis=axis, split=[first, size - first])


@kind(*ALL, weight=2, rank=1)
def slices(draft, x):
    axes = draft.axes(x)
    if draft.opset < 10:
        axes = [axis % x.rank for axis in axes]
        ends = [draft.rng.integers(1, x.shape[axis] + 1).item() for axis in axes]
        draft.add("Slice", [x], axes=axes, starts=[0] * len(axes), ends=ends)
        return
    bounds = [draft.rng.integers(-9, 10, len(axes)) for _ in range(2)]
    steps = [draft.choose([1, 1, 1, 2, -1, -2]) for _ in axes]
    draft.add("Slice", [x, *(draft.constant(np.array(values, np.int64)) for values in (*bounds, axes, steps))])


@kind(*ALL, weight=3, rank=1)
def gather(draft, x):
    axis = draft.axis(x)
    size = x.shape[axis]
    shape = draft.choose([(), (1,), (3,), (2, 2)])
    draft.add("Gather", [x, draft.indices(size, shape)], axis=axis)


@kind(*ALL, weight=2, rank=1, opset=11)
def gather_elements(draft, x):
    axis = draft.axis(x)
    shape = [draft.rng.integers(1, size + 1).item() for size in x.shape]
    shape[axis] = draft.size()
    draft.add("GatherElements", [x, draft.indices(x.shape[axis], shape)], axis=axis)


@kind(*ALL, weight=3, rank=1, opset=12)
def gather_tuples(draft, x):
    batch = draft.choose([0, 0, 1, 2])
    if batch >= x.rank:
        return
    depth = draft.rng.integers(1, x.rank - batch + 1).item()
    lead = (*x.shape[:batch], *draft.choose([(), (1,), (2,), (2, 3)]))
    columns = [draft.rng.integers(-size, size, lead) for size in x.shape[batch : batch + depth]]
    attributes = {"batch_dims": batch} if batch else {}
    draft.add("GatherND", [x, draft.constant(np.stack(columns, -1).astype(np.int64))], **attributes)


@kind(*NUMBERS, weight=2, rank=1, opset=11)
def scatter(draft, x):
    reduction = draft.choose(["none", "none", "add", "mul"]) if draft.opset >= 16 else "none"
    attributes = {} if reduction == "none" else {"reduction": reduction}
    if draft.chance(0.5):
        depth = draft.rng.integers(1, x.rank + 1).item()
        places = np.stack(np.unravel_index(draft.rng.permutation(int(np.prod(x.shape[:depth])))[:3], x.shape[:depth]), -1)
        shape = (len(places), *x.shape[depth:])
        draft.add("ScatterND", [x, draft.constant(places.astype(np.int64)), draft.weights(shape, x.dtype)], **attributes)
        return
    axis = draft.axis(x)
    shape = list(x.shape)
    shape[axis] = 1
    indices = draft.indices(x.shape[axis], shape)
    draft.add("ScatterElements", [x, indices, draft.weights(tuple(shape), x.dtype)], axis=axis, **attributes)


@kind(*NUMBERS, weight=2, rank=1)
def pad(draft, x):
    mode = draft.choose(["constant", "constant", "edge", "reflect"])
    pads = draft.rng.integers(0, 3, 2 * x.rank).tolist()
    if draft.opset < 11:
        draft.add("Pad", [x], mode=mode, pads=pads)
        return
    value = [draft.constant(np.array(1.5, x.dtype))] if mode == "constant" and draft.chance(0.5) else []
    draft.add("Pad", [x, draft.constant(np.array(pads, np.int64)), *value], mode=mode)


@kind(*NUMBERS, weight=3, rank=1)
def repetition(draft, x):
    if draft.chance(0.5):
        draft.add("Tile", [x, draft.constant(draft.rng.integers(1, 3, x.rank).astype(np.int64))])
        return
    shape = [draft.size() if size == 1 else draft.choose([1, size]) for size in x.shape]
    shape = [draft.size()] * draft.choose([0, 0, 1]) + shape
    draft.add("Expand", [x, draft.constant(np.array(shape, np.int64))])


@kind(*FLOATS, weight=1, rank=4)
def blocks(draft, x):
    op = draft.choose(["DepthToSpace", "SpaceToDepth"])
    attributes = {"mode": draft.choose(["DCR", "CRD"])} if op == "DepthToSpace" and draft.opset >= 11 else {}
    draft.add(op, [x], blocksize=2, **attributes)


@kind(*FLOATS, weight=1, rank=2, opset=14)
def triangle(draft, x):
    k = [draft.constant(np.array(draft.choose([-1, 0, 1]), np.int64))] if draft.chance(0.5) else []
    draft.add("Trilu", [x, *k], upper=draft.choose([0, 1]))


@kind(I64, I32, weight=3, opset=11)
def one_hot(draft, x):
    depth = draft.choose([4, 9])
    if not ((-depth <= x.value) & (x.value < depth)).all():
        return
    values = draft.constant(np.array([0, 1], draft.choose([np.float32, np.int64])))
    draft.add("OneHot", [x, draft.constant(np.array([depth], np.int64)), values], axis=draft.choose([-1, 0]))


@kind(F32, F16, weight=2, rank=3, opset=11)
def resize(draft, x):
    scales = [1.0, 1.0, *(draft.choose([0.5, 1.0, 2.0, 1.5]) for _ in range(x.rank - 2))]
    mode = draft.choose(["nearest", "linear"])
    attributes = {"coordinate_transformation_mode": draft.choose(["half_pixel", "asymmetric", "align_corners"])}
    if mode == "nearest":
        attributes["nearest_mode"] = draft.choose(["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
    draft.add("Resize", [x, None, draft.constant(np.array(scales, np.float32))], mode=mode, **attributes)


@kind(F32, weight=8)
def quantise(draft, x):
    """To integers and, mostly, back, with an operator in between at times."""
    if draft.opset < 10:
        return
    if draft.opset >= 11 and draft.chance(0.15):
        made = draft.add("DynamicQuantizeLinear", [x], outputs=3)
        if made and draft.chance(0.7):
            draft.add("DequantizeLinear", made)
        return
    kind = draft.choose([U8, I8])
    parameters = [draft.scale(), draft.zero_point(kind)]
    attributes = {}
    if draft.opset >= 13 and x.rank >= 2 and draft.chance(0.2):
        axis = draft.axis(x)
        size = x.shape[axis]
        scales = draft.rng.choice([0.01, 0.02, 0.05, 0.1], size).astype(np.float32)
        parameters = [draft.constant(scales), draft.constant(np.zeros(size, kind))]
        attributes["axis"] = axis
    made = draft.add("QuantizeLinear", [x, *parameters], **attributes)
    if made and draft.chance(0.3) and not attributes:
        draft.add(draft.choose(["Identity", "Flatten"]), made)
    elif made and draft.chance(0.9):
        draft.add("DequantizeLinear", [made[0], *parameters], **attributes)


@kind(*SMALL, weight=6)
def dequantise(draft, x):
    if draft.opset >= 10:
        draft.add("DequantizeLinear", [x, draft.scale(), draft.zero_point(x.dtype)])


@kind(*SMALL, weight=4, rank=2, opset=10)
def integer_product(draft, x):
    kind = draft.choose([U8, I8])
    weights = draft.constant(draft.numbers((x.shape[-1], draft.size()), kind))
    if draft.chance(0.5):
        zero_points = [draft.zero_point(x.dtype), draft.zero_point(kind)] if draft.chance(0.7) else []
        made = draft.add("MatMulInteger", [x, weights, *zero_points])
        if made and draft.chance(0.5):
            draft.add("Cast", made, to=draft.element(F32))
        return
    result = draft.choose([U8, I8])
    inputs = [x, draft.scale(), draft.zero_point(x.dtype), weights, draft.scale(), draft.zero_point(kind)]
    draft.add("QLinearMatMul", [*inputs, draft.constant(np.float32(0.5)), draft.zero_point(result)])


@kind(*SMALL, weight=4, rank=3, opset=10)
def integer_convolution(draft, x):
    kernel = tuple(draft.choose([1, 2]) for _ in range(x.rank - 2))
    kind = draft.choose([U8, I8])
    weights = draft.constant(draft.numbers((2, x.shape[1], *kernel), kind))
    attributes = window(draft, x, kernel)
    if draft.chance(0.5):
        zero_points = [draft.zero_point(x.dtype), draft.zero_point(kind)] if draft.chance(0.7) else []
        draft.add("ConvInteger", [x, weights, *zero_points], **attributes)
        return
    inputs = [x, draft.scale(), draft.zero_point(x.dtype), weights, draft.scale(), draft.zero_point(kind)]
    bias = [draft.constant(np.array([100, -50], np.int32))] if draft.chance(0.5) else []
    draft.add("QLinearConv", [*inputs, draft.constant(np.float32(0.5)), draft.zero_point(x.dtype), *bias], **attributes)


@kind(F32, weight=1, rank=3)
def recurrence(draft, x):
    if x.rank != 3:
        return
    op, gates = draft.choose([("LSTM", 4), ("GRU", 3), ("RNN", 1)])
    direction = draft.choose(["forward", "bidirectional"])
    directions, hidden = (2 if direction == "bidirectional" else 1), draft.choose([1, 3])
    weights = [draft.weights((directions, gates * hidden, inner), x.dtype) for inner in (x.shape[2], hidden)]
    draft.add(op, [x, *weights], outputs=2, hidden_size=hidden, direction=direction)


@kind(*ALL, weight=1)
def sizes(draft, x):
    made = draft.add(draft.choose(["Shape", "Shape", "Size"]), [x])
    if made and draft.chance(0.5):
        draft.add("Cast", made, to=draft.element(F32))

"""Makes operators.bin: small Caffe2 nets, one or more for each operator, with inputs and what Caffe2 computes of them.

Caffe2 was last built into PyTorch 1.4, for CPython 3.7:

    python3.7 -m venv caffe2 && caffe2/bin/pip install --no-deps torch==1.4.0
    caffe2/bin/pip install "numpy<1.20" "protobuf<3.20" future six
    caffe2/bin/python tests/netdef/generate.py

Inputs and weights come from a fixed seed.
"""

import glob
import os
import struct
import zlib
from types import MappingProxyType

import numpy as np
import torch
from caffe2.proto import caffe2_pb2
from caffe2.python import core, dyndep, workspace

HERE = os.path.dirname(os.path.abspath(__file__))
FILLS = {
    np.float32: ("GivenTensorFill", float),
    np.int32: ("GivenTensorIntFill", int),
    np.int64: ("GivenTensorInt64Fill", int),
    np.bool_: ("GivenTensorBoolFill", int),
    np.float64: ("GivenTensorDoubleFill", float),
}
TYPES = {"float32": b"FP32", "float64": b"FP64", "int32": b"INT32", "int64": b"INT64", "bool": b"BOOL", "uint8": b"UINT8"}
cases: list = []


def numbers(*shape):
    seed = zlib.crc32(("%s %d" % (shape, len(cases))).encode())
    return np.random.RandomState(seed).uniform(-2, 2, shape).astype(np.float32)


def positive(*shape):
    return np.abs(numbers(*shape)) + np.float32(0.5)


def whole(*shape):
    return np.round(numbers(*shape) * 3).astype(np.float32)


def op(kind, inputs, outputs, **arguments):
    return core.CreateOperator(kind, inputs, outputs, **arguments)


def fill(name, array):
    kind, plain = FILLS[array.dtype.type]
    return op(kind, [], [name], shape=list(array.shape), values=[plain(it) for it in array.ravel()])


def case(name, ops, inputs, outputs, weights=MappingProxyType({}), init=()):
    """A net of these operators. Its weights are filled, and the outputs are what Caffe2 computes."""
    init_net, net = caffe2_pb2.NetDef(), caffe2_pb2.NetDef()
    net.name = init_net.name = name
    init_net.op.extend([fill(key, array) for key, array in weights.items()] + list(init))
    net.op.extend(ops)
    made = [blob for it in init_net.op for blob in it.output]
    init_net.external_output.extend(made)
    net.external_input.extend(list(inputs) + made)
    net.external_output.extend(outputs)
    workspace.ResetWorkspace()
    for key, array in inputs.items():
        workspace.FeedBlob(key, array)
    assert workspace.RunNetOnce(init_net) and workspace.RunNetOnce(net), name
    results = [(key, workspace.FetchBlob(key)) for key in outputs]
    for key, array in results:
        assert isinstance(array, np.ndarray), (name, key)
    assert name not in [known for known, *_ in cases], name
    cases.append((name, init_net.SerializeToString(), net.SerializeToString(), list(inputs.items()), results))


def one(name, kind, inputs, weights=MappingProxyType({}), outputs=1, **arguments):
    """A net of one operator, whose inputs come first and whose weights follow."""
    made = ["out%d" % at for at in range(outputs)] if isinstance(outputs, int) else outputs
    case(name, [op(kind, list(inputs) + list(weights), made, **arguments)], inputs, made, weights)


def x(array):
    return {"x": array}


def elementwise():
    for kind in [
        "Abs",
        "Atan",
        "Ceil",
        "Cos",
        "Cosh",
        "Cube",
        "Elu",
        "Erf",
        "Exp",
        "Floor",
        "HardSigmoid",
        "LeakyRelu",
        "Negative",
        "Relu",
        "Selu",
        "Sigmoid",
        "Sign",
        "Sin",
        "Sinh",
        "Softplus",
        "Softsign",
        "Sqr",
        "Swish",
        "Tan",
        "Tanh",
        "ThresholdedRelu",
    ]:
        one(kind.lower(), kind, x(numbers(2, 3)))
    for kind in ["Log", "Reciprocal", "Rsqrt", "Sqrt"]:
        one(kind.lower(), kind, x(positive(2, 3)))
    for kind in ["Acos", "Asin"]:
        one(kind.lower(), kind, x(numbers(2, 3) / 2))
    one("gelu", "Gelu", x(numbers(3, 4)))
    one("elu_alpha", "Elu", x(numbers(2, 3)), alpha=0.3)
    one("leaky_relu_alpha", "LeakyRelu", x(numbers(2, 3)), alpha=0.25)
    one("selu_scale", "Selu", x(numbers(2, 3)), alpha=1.5, scale=1.2)
    one("hard_sigmoid_beta", "HardSigmoid", x(numbers(2, 3)), alpha=0.4, beta=0.1)
    one("thresholded_relu_alpha", "ThresholdedRelu", x(numbers(2, 3)), alpha=0.4)
    one("not", "Not", x(numbers(2, 3) > 0))
    one("prelu_channels", "PRelu", x(numbers(2, 3, 2, 2)), {"slope": numbers(3)})
    one("prelu_one", "PRelu", x(numbers(2, 3, 2, 2)), {"slope": numbers(1)})
    one("prelu_nhwc", "PRelu", x(numbers(2, 2, 2, 3)), {"slope": numbers(3)}, order="NHWC")
    one("prelu_matrix", "PRelu", x(numbers(4, 3)), {"slope": numbers(3)})
    one("clip", "Clip", x(numbers(2, 5)), min=-0.5, max=0.75)
    one("clip_below", "Clip", x(numbers(2, 5)), min=0.0)
    one("clip_nothing", "Clip", x(numbers(2, 5)))
    one("scale", "Scale", x(numbers(2, 5)), scale=0.3)
    one("pow", "Pow", x(positive(2, 3)), exponent=1.5)
    one("pow_tensor", "Pow", {"x": positive(2, 3), "y": numbers(2, 3)})
    for kind in ["Copy", "Alias", "StopGradient", "EnsureCPUOutput"]:
        one(kind.lower(), kind, x(numbers(2, 3)))
    one("dropout", "Dropout", x(numbers(2, 3)), ratio=0.5, is_test=1, outputs=["y", "mask"][:1])
    for name, to in [("int32", 2), ("int64", 10), ("bool", 5), ("double", 13), ("uint8", 6)]:
        one("cast_" + name, "Cast", x(positive(2, 3)), to=to)
    one("cast_by_name", "Cast", x(positive(2, 3)), to="INT64")
    one("cast_back", "Cast", x(np.arange(6, dtype=np.int64)), to=1)


def binary():
    for kind in ["Add", "Sub", "Mul", "Div"]:
        low = kind.lower()
        one(low, kind, {"x": numbers(2, 3), "y": positive(2, 3)})
        one(low + "_numpy", kind, {"x": numbers(2, 3, 4), "y": positive(3, 1)})
        one(low + "_numpy_turned", kind, {"x": numbers(4), "y": positive(2, 3, 4)})
        one(low + "_suffix", kind, x(numbers(2, 3, 4)), {"y": positive(3, 4)}, broadcast=1)
        one(low + "_axis", kind, x(numbers(2, 3, 4, 5)), {"y": positive(3)}, broadcast=1, axis=1)
        one(low + "_axis_two", kind, x(numbers(2, 3, 4, 5)), {"y": positive(3, 4)}, broadcast=1, axis=1)
        one(low + "_axis_first", kind, x(numbers(2, 3)), {"y": positive(2)}, broadcast=1, axis=0)
        one(low + "_one", kind, x(numbers(2, 3)), {"y": positive(1)}, broadcast=1)
        one(low + "_int64", kind, {"x": np.arange(-3, 3), "y": np.arange(1, 7)})
    one("add_axis_by_name", "Add", x(numbers(2, 3, 4, 5)), {"y": numbers(3)}, broadcast=1, axis_str="C", order="NCHW")
    one("add_int32", "Add", {"x": np.arange(6, dtype=np.int32), "y": np.arange(6, dtype=np.int32)})
    for kind in ["EQ", "NE", "GE", "GT", "LE", "LT"]:
        one(kind.lower(), kind, {"x": whole(3, 4).astype(np.int32), "y": whole(3, 4).astype(np.int32)})
        one(kind.lower() + "_axis", kind, x(whole(3, 4).astype(np.int64)), {"y": whole(3).astype(np.int64)}, broadcast=1, axis=0)
    for kind in ["And", "Or", "Xor"]:
        one(kind.lower(), kind, {"x": numbers(3, 4) > 0, "y": numbers(3, 4)[::-1] > 0})
    for kind in ["Sum", "Max", "Min", "Mean"]:
        one(kind.lower(), kind, {"x": numbers(2, 3), "y": numbers(2, 3)[::-1].copy(), "z": positive(2, 3)})
    one("sum_one", "Sum", x(numbers(2, 3)))
    whole_numbers = np.arange(4, dtype=np.int32)
    one("sum_int32", "Sum", {"x": whole_numbers, "y": whole_numbers * 5, "z": whole_numbers * 7})
    one("weighted_sum", "WeightedSum", {"a": numbers(2, 3), "wa": numbers(1), "b": positive(2, 3), "wb": positive(1)})
    one("affine_channel", "AffineChannel", x(numbers(2, 3, 4, 5)), {"s": positive(3), "b": numbers(3)})
    one("affine_channel_nhwc", "AffineChannel", x(numbers(2, 4, 5, 3)), {"s": positive(3), "b": numbers(3)}, order="NHWC")
    one("where", "Where", {"c": numbers(3, 4) > 0, "x": numbers(3, 4), "y": positive(3, 4)})
    one("where_rows", "Where", {"c": numbers(3) > 0, "x": numbers(3, 4), "y": positive(3, 4)}, broadcast_on_rows=1)


def windows():
    image, weights = x(numbers(2, 3, 7, 9)), {"w": numbers(4, 3, 3, 3), "b": numbers(4)}
    one("conv", "Conv", image, weights, kernel=3)
    one("conv_without_bias", "Conv", image, {"w": weights["w"]}, kernel=3, stride=2, pad=1)
    one("conv_lists", "Conv", image, weights, kernels=[3, 3], strides=[2, 1], pads=[1, 0, 2, 1])
    one("conv_sides", "Conv", image, weights, kernel_h=3, kernel_w=3, stride_h=1, stride_w=2, pad_t=2, pad_l=0, pad_b=1, pad_r=1)
    one("conv_dilated", "Conv", image, weights, kernel=3, dilation=2)
    one("conv_dilated_lists", "Conv", image, weights, kernel=3, dilations=[1, 3], pad=1)
    one("conv_valid", "Conv", image, weights, kernel=3, stride=2, legacy_pad=1)
    one("conv_same", "Conv", image, weights, kernel=3, stride=2, legacy_pad=2)
    one(
        "conv_same_even",
        "Conv",
        x(numbers(1, 3, 8, 6)),
        {"w": numbers(4, 3, 2, 2), "b": numbers(4)},
        kernel=2,
        stride=3,
        legacy_pad=2,
    )
    one("conv_groups", "Conv", x(numbers(2, 4, 5, 5)), {"w": numbers(6, 2, 3, 3), "b": numbers(6)}, kernel=3, group=2)
    one("conv_depthwise", "Conv", x(numbers(2, 4, 5, 5)), {"w": numbers(4, 1, 3, 3)}, kernel=3, group=4, pad=1)
    one("conv_nhwc", "Conv", x(numbers(2, 7, 9, 3)), {"w": numbers(4, 3, 3, 3), "b": numbers(4)}, kernel=3, stride=2, order="NHWC")
    one("conv_1d", "Conv", x(numbers(2, 3, 9)), {"w": numbers(4, 3, 3), "b": numbers(4)}, kernels=[3], pads=[1, 0])
    one(
        "conv_3d",
        "Conv",
        x(numbers(1, 2, 4, 5, 6)),
        {"w": numbers(3, 2, 2, 2, 2), "b": numbers(3)},
        kernels=[2, 2, 2],
        strides=[1, 2, 1],
    )
    for axes in (1, 2, 3):
        one(
            "conv_named_%dd" % axes,
            "Conv%dD" % axes,
            x(numbers(1, 2, *[4] * axes)),
            {"w": numbers(2, 2, *[2] * axes)},
            kernels=[2] * axes,
        )
    small = x(numbers(2, 3, 4, 5))
    one("conv_transpose", "ConvTranspose", small, {"w": numbers(3, 4, 3, 3), "b": numbers(4)}, kernel=3, stride=2)
    one("conv_transpose_padded", "ConvTranspose", small, {"w": numbers(3, 4, 3, 3)}, kernel=3, stride=2, pad=1, adj=1)
    one(
        "conv_transpose_groups",
        "ConvTranspose",
        x(numbers(2, 4, 4, 5)),
        {"w": numbers(4, 3, 3, 3), "b": numbers(6)},
        kernel=3,
        group=2,
    )
    one(
        "conv_transpose_nhwc",
        "ConvTranspose",
        x(numbers(2, 4, 5, 3)),
        {"w": numbers(3, 3, 3, 4), "b": numbers(4)},
        kernel=3,
        stride=2,
        order="NHWC",
    )
    for kind in ["MaxPool", "AveragePool"]:
        low = "max_pool" if kind == "MaxPool" else "average_pool"
        one(low, kind, image, kernel=3)
        one(low + "_padded", kind, image, kernel=3, stride=2, pad=1)
        one(low + "_sides", kind, image, kernel_h=3, kernel_w=2, stride_h=2, stride_w=2, pad_t=1, pad_l=0, pad_b=2, pad_r=1)
        one(low + "_valid", kind, image, kernel=3, stride=2, legacy_pad=1)
        one(low + "_same", kind, image, kernel=3, stride=2, legacy_pad=2)
        one(low + "_caffe", kind, x(numbers(1, 2, 8, 8)), kernel=3, stride=2, legacy_pad=3)
        one(low + "_caffe_padded", kind, x(numbers(1, 2, 7, 7)), kernel=3, stride=2, pad=1, legacy_pad=3)
        one(low + "_global", kind, image, global_pooling=1)
        one(low + "_nhwc", kind, x(numbers(2, 7, 9, 3)), kernel=3, stride=2, order="NHWC")
        one(low + "_global_nhwc", kind, x(numbers(2, 7, 9, 3)), global_pooling=1, order="NHWC")
        one(low + "_1d", kind, x(numbers(2, 3, 9)), kernels=[3], strides=[2])
        one(low + "_3d", kind, x(numbers(1, 2, 4, 5, 6)), kernels=[2, 2, 2], strides=[1, 2, 2])
        for axes in (1, 2, 3):
            one(low + "_named_%dd" % axes, kind + "%dD" % axes, x(numbers(1, 2, *[5] * axes)), kernels=[2] * axes)
    one("average_pool_included", "AveragePool", image, kernel=3, stride=2, pad=1, count_include_pad=1)
    modes: dict[str, dict] = {"": {}, "_reflect": {"mode": "reflect"}, "_edge": {"mode": "edge"}, "_value": {"value": 1.5}}
    for name, more in modes.items():
        one("pad_image" + name, "PadImage", small, pad=1, **more)
    one("pad_image_sides", "PadImage", small, pad_t=1, pad_l=2, pad_b=0, pad_r=3)
    one("pad_image_nhwc", "PadImage", x(numbers(2, 4, 5, 3)), pad_t=1, pad_l=2, pad_b=0, pad_r=3, order="NHWC")
    one("resize_nearest", "ResizeNearest", small, width_scale=2.0, height_scale=3.0)
    one("resize_nearest_smaller", "ResizeNearest", x(numbers(1, 2, 6, 8)), width_scale=0.5, height_scale=0.5)
    one("resize_nearest_odd", "ResizeNearest", x(numbers(1, 2, 4, 6)), width_scale=1.5, height_scale=1.25)
    one("resize_nearest_nhwc", "ResizeNearest", x(numbers(2, 4, 5, 3)), width_scale=2.0, height_scale=2.0, order="NHWC")
    one("upsample_nearest", "UpsampleNearest", small)
    one("upsample_nearest_scale", "UpsampleNearest", small, scale=3)
    one("upsample_bilinear", "UpsampleBilinear", small, width_scale=2.0, height_scale=2.0)
    one("upsample_bilinear_odd", "UpsampleBilinear", small, width_scale=3.0, height_scale=1.5)


def products():
    one("fc", "FC", x(numbers(2, 5)), {"w": numbers(4, 5), "b": numbers(4)})
    one("fc_flattens", "FC", x(numbers(2, 3, 2, 2)), {"w": numbers(4, 12), "b": numbers(4)})
    one("fc_flattens_weights", "FC", x(numbers(2, 3, 2, 2)), {"w": numbers(4, 3, 2, 2), "b": numbers(4)})
    one("fc_axis", "FC", x(numbers(2, 3, 5)), {"w": numbers(4, 5), "b": numbers(4)}, axis=2)
    one("fc_axis_of_weights", "FC", x(numbers(2, 5)), {"w": numbers(2, 2, 5), "b": numbers(4)}, axis_w=2)
    one("fc_axis_flattens", "FC", x(numbers(2, 3, 2, 5)), {"w": numbers(4, 10), "b": numbers(4)}, axis=2)
    one("fc_transposed", "FCTransposed", x(numbers(2, 5)), {"w": numbers(5, 4), "b": numbers(4)})
    one("mat_mul", "MatMul", {"x": numbers(2, 3), "y": numbers(3, 4)})
    one("mat_mul_transposed", "MatMul", {"x": numbers(3, 2), "y": numbers(4, 3)}, trans_a=1, trans_b=1)
    one("batch_mat_mul", "BatchMatMul", {"x": numbers(2, 3, 4), "y": numbers(2, 4, 5)})
    one("batch_mat_mul_transposed", "BatchMatMul", {"x": numbers(2, 4, 3), "y": numbers(2, 5, 4)}, trans_a=1, trans_b=1)
    one("batch_mat_mul_broadcast", "BatchMatMul", {"x": numbers(2, 3, 4), "y": numbers(4, 5)}, broadcast=1)
    one("batch_mat_mul_deep", "BatchMatMul", {"x": numbers(2, 1, 3, 4), "y": numbers(2, 1, 4, 5)})


def normalisation():
    one("softmax", "Softmax", x(numbers(3, 5)))
    one("softmax_flattens", "Softmax", x(numbers(2, 3, 4)))
    one("softmax_axis", "Softmax", x(numbers(2, 3, 4)), axis=2)
    one("softmax_all", "Softmax", x(numbers(2, 3)), axis=0)
    one("softmax_negative", "Softmax", x(numbers(2, 3, 4)), axis=-2)
    norm = {"s": positive(3), "b": numbers(3), "m": numbers(3), "v": positive(3) + 1}
    one("spatial_bn", "SpatialBN", x(numbers(2, 3, 4, 5)), norm, is_test=1)
    one("spatial_bn_epsilon", "SpatialBN", x(numbers(2, 3, 4, 5)), norm, is_test=1, epsilon=0.1)
    one("spatial_bn_nhwc", "SpatialBN", x(numbers(2, 4, 5, 3)), norm, is_test=1, order="NHWC")
    one("lrn", "LRN", x(numbers(2, 7, 3, 3)), size=5, alpha=0.5, beta=0.75)
    one("lrn_bias", "LRN", x(numbers(2, 7, 3, 3)), size=3, alpha=0.3, beta=0.5, bias=2.0)
    one("lrn_nhwc", "LRN", x(numbers(2, 3, 3, 7)), size=3, alpha=0.3, beta=0.5, order="NHWC")
    affine = {"s": positive(3), "b": numbers(3)}
    one("instance_norm", "InstanceNorm", x(numbers(2, 3, 4, 5)), affine)
    one("instance_norm_epsilon", "InstanceNorm", x(numbers(2, 3, 4, 5)), affine, epsilon=0.1)
    one("instance_norm_nhwc", "InstanceNorm", x(numbers(2, 4, 5, 3)), affine, order="NHWC")
    case("layer_norm", [op("LayerNorm", ["x"], ["y", "m", "d"])], x(numbers(3, 5)), ["y"])
    case("layer_norm_axis", [op("LayerNorm", ["x"], ["y", "m", "d"], axis=2, epsilon=0.1)], x(numbers(3, 2, 5)), ["y"])
    case(
        "layer_norm_affine",
        [op("LayerNorm", ["x", "s", "b"], ["y", "m", "d"], elementwise_affine=True)],
        x(numbers(3, 5)),
        ["y"],
        {"s": numbers(5), "b": numbers(5)},
    )
    one("normalize", "Normalize", x(numbers(3, 5)))
    one("normalize_axis", "Normalize", x(numbers(3, 5, 2)), axis=1)


def layout():
    two = {"x": numbers(2, 3, 4, 5), "y": numbers(2, 2, 4, 5)}
    case("concat", [op("Concat", ["x", "y"], ["z", "sizes"])], two, ["z"])
    case("concat_axis", [op("Concat", ["x", "y"], ["z", "sizes"], axis=0)], {"x": numbers(2, 3), "y": numbers(4, 3)}, ["z"])
    case("concat_negative", [op("Concat", ["x", "y"], ["z", "sizes"], axis=-1)], {"x": numbers(2, 3), "y": numbers(2, 1)}, ["z"])
    case(
        "concat_nhwc",
        [op("Concat", ["x", "y"], ["z", "sizes"], order="NHWC")],
        {"x": numbers(2, 4, 5, 3), "y": numbers(2, 4, 5, 2)},
        ["z"],
    )
    case(
        "concat_stacks",
        [op("Concat", ["x", "y"], ["z", "sizes"], axis=1, add_axis=1)],
        {"x": numbers(2, 3), "y": numbers(2, 3)[::-1].copy()},
        ["z"],
    )
    case("depth_concat", [op("DepthConcat", ["x", "y"], ["z", "sizes"])], two, ["z"])
    one("split", "Split", x(numbers(2, 6)), outputs=3, axis=1)
    one("split_sizes", "Split", x(numbers(2, 6)), outputs=2, axis=1, split=[2, 4])
    one("split_default", "Split", x(numbers(2, 4, 3, 3)), outputs=2)
    one("split_input", "Split", x(numbers(2, 6)), {"sizes": np.array([1, 5], np.int32)}, outputs=2, axis=1)
    one("depth_split", "DepthSplit", x(numbers(2, 4, 3, 3)), outputs=2)
    case("reshape", [op("Reshape", ["x"], ["y", "old"], shape=[0, -1])], x(numbers(2, 3, 4)), ["y", "old"])
    case(
        "reshape_input",
        [op("Reshape", ["x", "shape"], ["y", "old"])],
        x(numbers(2, 3, 4)),
        ["y"],
        {"shape": np.array([4, -1], np.int64)},
    )
    case(
        "reshape_computed",
        [op("Shape", ["like"], ["shape"]), op("Reshape", ["x", "shape"], ["y", "old"])],
        {"x": numbers(2, 6), "like": numbers(3, 4)},
        ["y"],
    )
    one("resize_like", "ResizeLike", {"x": numbers(2, 6), "like": numbers(3, 4)})
    one("flatten", "Flatten", x(numbers(2, 3, 4)))
    one("flatten_axis", "Flatten", x(numbers(2, 3, 4)), axis=2)
    one("flatten_all", "Flatten", x(numbers(2, 3, 4)), axis=0)
    one("flatten_to_vec", "FlattenToVec", x(numbers(2, 3, 4)))
    one("transpose", "Transpose", x(numbers(2, 3, 4)))
    one("transpose_axes", "Transpose", x(numbers(2, 3, 4)), axes=[1, 0, 2])
    one("nchw2nhwc", "NCHW2NHWC", x(numbers(2, 3, 4, 5)))
    one("nhwc2nchw", "NHWC2NCHW", x(numbers(2, 3, 4, 5)))
    one("squeeze", "Squeeze", x(numbers(2, 1, 3, 1)), dims=[1, 3])
    one("expand_dims", "ExpandDims", x(numbers(2, 3)), dims=[0, 2])
    one("channel_shuffle", "ChannelShuffle", x(numbers(2, 6, 3, 4)), group=3)
    one("channel_shuffle_nhwc", "ChannelShuffle", x(numbers(2, 3, 4, 6)), group=2, order="NHWC")
    one("slice", "Slice", x(numbers(4, 6)), starts=[0, 2], ends=[-1, 5])
    one("slice_to_the_end", "Slice", x(numbers(4, 6)), starts=[1, 0], ends=[-2, -1])
    one("slice_from_the_end", "Slice", x(numbers(4, 6)), starts=[-3, 0], ends=[-1, -1])
    one("slice_front", "Slice", x(numbers(4, 6)), starts=[2, 0], ends=[4, 6])
    one("gather", "Gather", x(numbers(5, 3)), {"i": np.array([[4, 0], [2, 2]], np.int64)})
    one("gather_int32", "Gather", x(numbers(5, 3)), {"i": np.array([1, 4], np.int32)})
    one("gather_axis", "Gather", x(numbers(2, 5, 3)), {"i": np.array([4, 0, 1], np.int64)}, axis=1)
    one("batch_gather", "BatchGather", x(numbers(2, 5, 3)), {"i": np.array([4, 0, 1], np.int64)})
    one("tile", "Tile", x(numbers(2, 3)), tiles=3, axis=1)
    one("tile_first", "Tile", x(numbers(2, 3)), tiles=2, axis=0)
    one("shape", "Shape", x(numbers(2, 3, 4)))
    one("shape_axes", "Shape", x(numbers(2, 3, 4)), axes=[2, 0])
    one("size", "Size", x(numbers(2, 3, 4)))


def reductions():
    for kind in ["L1", "L2", "Max", "Mean", "Min", "Sum"]:
        low = "reduce_" + kind.lower()
        one(low, "Reduce" + kind, x(numbers(2, 3, 4)), axes=[1])
        one(low + "_away", "Reduce" + kind, x(numbers(2, 3, 4)), axes=[0, 2], keepdims=0)
    one("reduce_sum_all", "ReduceSum", x(numbers(2, 3, 4)), keepdims=1)
    for kind in ["Max", "Mean", "Sum"]:
        for end in ["Front", "Back"]:
            low = "reduce_%s_%s" % (end.lower(), kind.lower())
            one(low, "Reduce%s%s" % (end, kind), x(numbers(2, 3, 4)))
            one(low + "_two", "Reduce%s%s" % (end, kind), x(numbers(2, 3, 4)), num_reduce_dim=2)
    one("top_k", "TopK", x(numbers(3, 7)), outputs=2, k=3)
    one("top_k_axis", "TopK", x(numbers(7, 3)), outputs=2, k=2, axis=0)
    for kind in ["ArgMax", "ArgMin"]:
        low = kind.lower()
        one(low, kind, x(numbers(3, 7)))
        one(low + "_axis", kind, x(numbers(3, 7)), axis=0, keepdims=0)


def fills():
    def summed(name, filled, shape, kind="Add"):
        case(name, [op(kind, ["x", "w"], ["y"])], x(numbers(*shape)), ["y"], init=[filled])

    summed("constant_fill", op("ConstantFill", [], ["w"], shape=[2, 3], value=1.5), (2, 3))
    summed("constant_fill_zero", op("ConstantFill", [], ["w"], shape=[3]), (2, 3))
    case(
        "constant_fill_large",
        [op("ReduceFrontMean", ["w"], ["m"], num_reduce_dim=2), op("Mul", ["x", "m"], ["y"])],
        x(numbers(2, 3)),
        ["y"],
        init=[op("ConstantFill", [], ["w"], shape=[90, 90], value=0.5)],
    )
    case(
        "constant_fill_int64",
        [op("Add", ["x", "w"], ["y"])],
        x(np.arange(6)),
        ["y"],
        init=[op("ConstantFill", [], ["w"], shape=[6], value=7, dtype=10)],
    )
    case(
        "constant_fill_int32",
        [op("Mul", ["x", "w"], ["y"])],
        x(np.arange(6, dtype=np.int32)),
        ["y"],
        init=[op("ConstantFill", [], ["w"], shape=[6], value=-2, dtype=2)],
    )
    one("constant_fill_like", "ConstantFill", x(numbers(2, 3)), value=2.5)
    case(
        "constant_fill_of_shape",
        [op("Shape", ["x"], ["s"]), op("ConstantFill", ["s"], ["f"], value=2.5, input_as_shape=1), op("Add", ["x", "f"], ["y"])],
        x(numbers(2, 3)),
        ["y"],
    )
    case(
        "given_double",
        [op("Cast", ["w"], ["c"], to=1), op("Add", ["x", "c"], ["y"])],
        x(numbers(2, 3)),
        ["y"],
        {"w": numbers(2, 3).astype(np.float64)},
    )
    case("given_bool", [op("And", ["x", "w"], ["y"])], x(numbers(2, 3) > 0), ["y"], {"w": numbers(2, 3)[::-1] > 0})
    case(
        "given_bytes",
        [op("Cast", ["w"], ["c"], to=1), op("Add", ["x", "c"], ["y"])],
        x(numbers(4)),
        ["y"],
        init=[op("GivenTensorByteStringToUInt8Fill", [], ["w"], shape=[4], values=[b"\x00\x01\x80\xff"])],
    )


def nets():
    """Several operators, and the ways in which nets use blobs."""
    w = {"w1": numbers(4, 3, 3, 3), "b1": numbers(4), "w2": numbers(5, 4), "b2": numbers(5)}
    case(
        "in_place",
        [
            op("Conv", ["x", "w1", "b1"], ["c"], kernel=3, pad=1),
            op("Relu", ["c"], ["c"]),
            op("MaxPool", ["c"], ["d"], kernel=2, stride=2),
            op("AveragePool", ["d"], ["p"], global_pooling=1),
            op("FC", ["p", "w2", "b2"], ["f"]),
            op("Softmax", ["f"], ["s"]),
        ],
        x(numbers(2, 3, 6, 6)),
        ["s"],
        w,
    )
    squeeze = {
        "s": numbers(2, 3, 1, 1),
        "sb": numbers(2),
        "e1": numbers(3, 2, 1, 1),
        "e1b": numbers(3),
        "e3": numbers(3, 2, 3, 3),
        "e3b": numbers(3),
    }
    case(
        "fire",
        [
            op("Conv", ["x", "s", "sb"], ["fire/s"], kernel=1),
            op("Relu", ["fire/s"], ["fire/s"]),
            op("Conv", ["fire/s", "e1", "e1b"], ["fire/1"], kernel=1),
            op("Relu", ["fire/1"], ["fire/1"]),
            op("Conv", ["fire/s", "e3", "e3b"], ["fire/3"], kernel=3, pad=1),
            op("Relu", ["fire/3"], ["fire/3"]),
            op("Concat", ["fire/1", "fire/3"], ["fire/concat", "fire/sizes"], order="NCHW"),
            op("Dropout", ["fire/concat"], ["fire/concat", "mask"], ratio=0.5, is_test=1),
            op("AveragePool", ["fire/concat"], ["pool"], global_pooling=1, order="NCHW"),
            op("Softmax", ["pool"], ["softmaxout"]),
        ],
        x(numbers(2, 3, 5, 5)),
        ["softmaxout"],
        squeeze,
    )
    residual = {"w": numbers(3, 3, 3, 3), "s": positive(3), "b": numbers(3), "m": numbers(3), "v": positive(3)}
    case(
        "residual",
        [
            op("Conv", ["x", "w"], ["c"], kernel=3, pad=1, no_bias=1),
            op("SpatialBN", ["c", "s", "b", "m", "v"], ["n"], is_test=1, momentum=0.9),
            op("Sum", ["n", "x"], ["sum"]),
            op("Relu", ["sum"], ["sum"]),
        ],
        x(numbers(2, 3, 5, 5)),
        ["sum"],
        residual,
    )
    case("two_outputs", [op("Exp", ["x"], ["y"]), op("Negative", ["y"], ["z"])], x(numbers(2, 3)), ["z", "y"])


def varint(number):
    parts = bytearray()
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    parts.append(number)
    return bytes(parts)


def field(number, contents):
    return varint(number << 3 | 2) + varint(len(contents)) + contents


def tensor(number, name, array):
    # FetchBlob gives a scalar as an array without dimensions.
    array = np.ascontiguousarray(array).reshape(array.shape)
    dims = struct.pack("<%dq" % array.ndim, *array.shape)
    return field(number, field(1, name.encode()) + field(2, TYPES[str(array.dtype)]) + field(3, dims) + field(4, array.tobytes()))


def main():
    core.GlobalInit(["caffe2", "--caffe2_log_level=2"])
    # UpsampleNearest is in a library of its own.
    dyndep.InitOpsLibrary(glob.glob(os.path.join(os.path.dirname(torch.__file__), "lib/libcaffe2_detectron_ops*.so"))[0])
    for group in (elementwise, binary, windows, products, normalisation, layout, reductions, fills, nets):
        group()
    contents = b"".join(
        field(
            1,
            field(1, name.encode())
            + field(2, init)
            + field(3, net)
            + b"".join(tensor(4, *it) for it in inputs)
            + b"".join(tensor(5, *it) for it in results),
        )
        for name, init, net, inputs, results in cases
    )
    with open(os.path.join(HERE, "operators.bin"), "wb") as target:
        target.write(contents)
    print("%d cases, %d bytes" % (len(cases), len(contents)))


if __name__ == "__main__":
    main()

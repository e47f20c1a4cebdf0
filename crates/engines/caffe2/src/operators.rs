//! The supported operators, and the context of a converting function.

mod elementwise;
mod fills;
mod layout;
mod normalisation;
mod products;
mod reductions;
mod windows;

use crate::arguments::Arguments;
use crate::graph::Graph;
use crate::value::{Dims, Value};

/// The outputs in order, if ONNX has them; or the reason why the operator is refused.
pub(crate) type Outcome = Result<Vec<Value>, String>;

type Convert = fn(&mut Call<'_>) -> Outcome;

/// One use of an operator.
pub(crate) struct Call<'a> {
    pub(crate) graph: &'a mut Graph,
    /// The operator.
    pub(crate) kind: &'a str,
    pub(crate) arguments: Arguments<'a>,
    pub(crate) inputs: Vec<Value>,
    /// Number of outputs used by the net.
    pub(crate) outputs: usize,
}

/// The functions that convert operators, each with its operators.
const OPERATORS: &[(Convert, &[&str])] = &[
    (elementwise::unary, elementwise::UNARY),
    (elementwise::with_parameters, elementwise::WITH_PARAMETERS),
    (elementwise::powers, &["Sqr", "Cube", "Rsqrt", "Swish", "Gelu"]),
    (elementwise::pow, &["Pow"]),
    (elementwise::prelu, &["PRelu"]),
    (elementwise::clip, &["Clip"]),
    (elementwise::scale, &["Scale"]),
    (elementwise::binary, elementwise::BINARY),
    (elementwise::variadic, &["Sum", "Max", "Min", "Mean"]),
    (elementwise::weighted_sum, &["WeightedSum"]),
    (elementwise::affine_channel, &["AffineChannel"]),
    (elementwise::choose, &["Where"]),
    (elementwise::cast, &["Cast"]),
    (elementwise::copy, elementwise::COPIES),
    (elementwise::dropout, &["Dropout"]),
    (windows::conv, &["Conv", "Conv1D", "Conv2D", "Conv3D"]),
    (windows::conv_transpose, &["ConvTranspose"]),
    (windows::pool, windows::POOLS),
    (windows::pad_image, &["PadImage"]),
    (windows::resize, &["ResizeNearest", "UpsampleBilinear"]),
    (windows::upsample, &["UpsampleNearest"]),
    (products::fully_connected, &["FC", "FCTransposed"]),
    (products::mat_mul, &["MatMul"]),
    (products::batch_mat_mul, &["BatchMatMul"]),
    (normalisation::softmax, &["Softmax"]),
    (normalisation::spatial_bn, &["SpatialBN"]),
    (normalisation::lrn, &["LRN"]),
    (normalisation::instance_norm, &["InstanceNorm"]),
    (normalisation::layer_norm, &["LayerNorm"]),
    (normalisation::normalize, &["Normalize"]),
    (layout::concat, &["Concat", "DepthConcat"]),
    (layout::split, &["Split", "DepthSplit"]),
    (layout::reshape, &["Reshape"]),
    (layout::flatten, &["Flatten"]),
    (layout::flatten_to_vec, &["FlattenToVec"]),
    (layout::resize_like, &["ResizeLike"]),
    (layout::transpose, &["Transpose", "NCHW2NHWC", "NHWC2NCHW"]),
    (layout::squeeze, &["Squeeze"]),
    (layout::expand_dims, &["ExpandDims"]),
    (layout::channel_shuffle, &["ChannelShuffle"]),
    (layout::slice, &["Slice"]),
    (layout::gather, &["Gather", "BatchGather"]),
    (layout::tile, &["Tile"]),
    (layout::shape, &["Shape"]),
    (layout::size, &["Size"]),
    (reductions::reduce, reductions::REDUCTIONS),
    (reductions::reduce_end, reductions::ENDS),
    (reductions::top_k, &["TopK"]),
    (reductions::arg_extreme, &["ArgMax", "ArgMin"]),
    (fills::given_tensor_fill, fills::GIVEN),
    (fills::constant, &["ConstantFill"]),
];

/// The function that converts an operator, if it is supported.
pub(crate) fn find(kind: &str) -> Option<Convert> {
    OPERATORS.iter().find(|(_, kinds)| kinds.contains(&kind)).map(|(convert, _)| *convert)
}

/// The names of all supported operators, sorted.
pub fn names() -> Vec<&'static str> {
    let mut names: Vec<_> = OPERATORS.iter().flat_map(|(_, kinds)| *kinds).copied().collect();
    names.sort_unstable();
    names
}

/// The dimensions of the first input of an operator with these weights, if the weights determine them.
pub(crate) fn input_dims(kind: &str, arguments: &Arguments<'_>, weights: &Value) -> Option<Dims> {
    match kind {
        "Conv" | "Conv1D" | "Conv2D" | "Conv3D" => windows::conv_input(arguments, weights),
        "FC" | "FCTransposed" => products::fully_connected_input(kind, arguments, weights),
        _ => None,
    }
}

impl Call<'_> {
    /// An input, which may be shared with other operators.
    pub(crate) fn input(&self, at: usize) -> Result<Value, String> {
        self.inputs.get(at).cloned().ok_or_else(|| format!("it has no input {at}"))
    }

    pub(crate) fn at_most(&self, inputs: usize) -> Result<(), String> {
        if self.inputs.len() <= inputs {
            return Ok(());
        }
        Err(format!("it has {} inputs, but ONNX supports at most {inputs}", self.inputs.len()))
    }

    /// Whether the channels are the last dimension.
    pub(crate) fn channels_last(&self) -> Result<bool, String> {
        match self.arguments.text("order").as_deref() {
            None | Some("NCHW") => Ok(false),
            Some("NHWC") => Ok(true),
            Some(other) => Err(format!("unknown order '{other}'")),
        }
    }

    /// Moves the channels to the front, if they are last.
    pub(crate) fn channels_to_front(&mut self, value: &Value, channels_last: bool) -> Result<Value, String> {
        if !channels_last {
            return Ok(value.clone());
        }
        let rank = rank(value)?.max(2);
        let order: Vec<_> = [0, rank - 1].into_iter().chain(1..rank - 1).collect();
        Ok(self.graph.transpose(value, &order))
    }

    /// Moves the channels back.
    pub(crate) fn channels_to_back(&mut self, value: Value, channels_last: bool) -> Result<Value, String> {
        if !channels_last {
            return Ok(value);
        }
        let rank = rank(&value)?.max(2);
        let order: Vec<_> = [0].into_iter().chain(2..rank).chain([1]).collect();
        Ok(self.graph.transpose(&value, &order))
    }
}

/// The rank.
pub(crate) fn rank(value: &Value) -> Result<usize, String> {
    let unknown = || {
        let blob = value.name.rsplit_once('/').map_or(value.name.as_str(), |(blob, _)| blob);
        format!("the number of dimensions of '{blob}' is not known")
    };
    value.rank().ok_or_else(unknown)
}

/// Resolves an axis that may count from the end.
pub(crate) fn axis(axis: i64, rank: usize) -> Result<usize, String> {
    let found = if axis < 0 { axis.checked_add(rank as i64) } else { Some(axis) };
    let found = found.and_then(|axis| usize::try_from(axis).ok()).filter(|axis| *axis < rank);
    found.ok_or_else(|| format!("axis {axis} of a tensor with {rank} dimensions"))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_documents_list_every_operator() {
        let document = include_str!("../../../../docs/frameworks.md");
        let (_, section) = document.split_once("## Caffe2").unwrap();
        let missing: Vec<_> =
            super::names().into_iter().filter(|name| !section.contains(&format!("`{name}`"))).collect();
        assert!(missing.is_empty(), "docs/frameworks.md does not list {missing:?}");
    }
}

//! Operators that slide a window over an image (convolutions, pools), and those that enlarge images.

use super::{Call, Outcome, rank};
use crate::arguments::Arguments;
use crate::onnx::AttributeProto;
use crate::value::{Dims, Element, Value};

pub(super) const POOLS: &[&str] = &[
    "AveragePool",
    "AveragePool1D",
    "AveragePool2D",
    "AveragePool3D",
    "MaxPool",
    "MaxPool1D",
    "MaxPool2D",
    "MaxPool3D",
];

/// The number of dimensions of a window whose size is a single number.
const IMAGE: usize = 2;

/// The largest size, stride or padding.
const LARGEST: i64 = 1 << 24;

/// How a window is padded, as numbered by Caffe2's `legacy_pad`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Padding {
    /// By the arguments.
    Explicit,
    Valid,
    Same,
    /// As in Caffe: windows may extend past the end.
    Caffe,
}

/// Size, strides and padding of a window.
struct Window {
    kernel: Vec<i64>,
    strides: Vec<i64>,
    dilations: Vec<i64>,
    pads: Vec<i64>,
    padding: Padding,
}

impl Window {
    fn of(arguments: &Arguments<'_>) -> Result<Self, String> {
        let kernel = per_axis(arguments, ["kernels", "kernel", "kernel_h", "kernel_w"], IMAGE)
            .ok_or("it has no kernel")?;
        let axes = kernel.len();
        let ones = || vec![1; axes];
        let strides =
            per_axis(arguments, ["strides", "stride", "stride_h", "stride_w"], axes).unwrap_or_else(ones);
        let dilations = per_axis(arguments, ["dilations", "dilation", "dilation_h", "dilation_w"], axes)
            .unwrap_or_else(ones);
        let pads = pads(arguments, axes);
        let padding = match arguments.int("legacy_pad", 0) {
            0 => Padding::Explicit,
            1 => Padding::Valid,
            2 => Padding::Same,
            3 => Padding::Caffe,
            other => return Err(format!("unknown legacy_pad {other}")),
        };
        let positive = |list: &[i64]| list.len() == axes && list.iter().all(|it| (1..=LARGEST).contains(it));
        let padded = pads.len() == 2 * axes && pads.iter().all(|pad| (0..=LARGEST).contains(pad));
        if !positive(&kernel) || !positive(&strides) || !positive(&dilations) || !padded {
            return Err("kernel, strides, dilations and pads do not fit together".to_owned());
        }
        if padding == Padding::Same && dilations.iter().any(|&dilation| dilation != 1) {
            return Err("a dilated window with legacy_pad SAME has no counterpart in ONNX".to_owned());
        }
        Ok(Self { kernel, strides, dilations, pads, padding })
    }

    fn attributes(&self) -> Vec<AttributeProto> {
        let mut attributes = vec![
            AttributeProto::ints("kernel_shape", &self.kernel),
            AttributeProto::ints("strides", &self.strides),
        ];
        attributes.push(match self.padding {
            Padding::Valid => AttributeProto::text("auto_pad", "VALID"),
            Padding::Same => AttributeProto::text("auto_pad", "SAME_UPPER"),
            Padding::Explicit | Padding::Caffe => AttributeProto::ints("pads", &self.pads),
        });
        attributes
    }
}

/// A number for each axis, given as a list, as one number for all, or as height and width.
fn per_axis(arguments: &Arguments<'_>, names: [&str; 4], axes: usize) -> Option<Vec<i64>> {
    let [list, all, height, width] = names;
    if !arguments.ints(list).is_empty() {
        return Some(arguments.ints(list).to_vec());
    }
    if let Some(number) = arguments.optional_int(all) {
        return Some(vec![number; axes]);
    }
    Some(vec![arguments.optional_int(height)?, arguments.optional_int(width)?])
}

/// The padding at the beginning of each axis, and then at the end of each.
fn pads(arguments: &Arguments<'_>, axes: usize) -> Vec<i64> {
    if !arguments.ints("pads").is_empty() {
        return arguments.ints("pads").to_vec();
    }
    if let Some(pad) = arguments.optional_int("pad") {
        return vec![pad; 2 * axes];
    }
    let sides = ["pad_t", "pad_l", "pad_b", "pad_r"].map(|side| arguments.optional_int(side));
    if sides.iter().any(Option::is_some) {
        return sides.map(Option::unwrap_or_default).to_vec();
    }
    vec![0; 2 * axes]
}

/// The dimensions of a batch of images.
fn image(batch: Option<i64>, channels: Option<i64>, axes: usize) -> Option<Dims> {
    Some([batch, channels].into_iter().chain(vec![None; axes]).collect())
}

pub(super) fn conv(call: &mut Call<'_>) -> Outcome {
    call.at_most(3)?;
    let channels_last = call.channels_last()?;
    let window = Window::of(&call.arguments)?;
    if window.padding == Padding::Caffe {
        return Err("legacy_pad CAFFE_LEGACY_POOLING is for pools".to_owned());
    }
    let mut attributes = window.attributes();
    attributes.push(AttributeProto::ints("dilations", &window.dilations));
    attributes.push(AttributeProto::int("group", call.arguments.int("group", 1)));
    let value = call.input(0)?;
    let value = call.channels_to_front(&value, channels_last)?;
    let weights = call.input(1)?;
    let weights = call.channels_to_front(&weights, channels_last)?;
    let bias = call.inputs.get(2).cloned();
    let inputs: Vec<_> = [&value, &weights].into_iter().chain(&bias).collect();
    let dims = image(value.dim(0), weights.dim(0), window.kernel.len());
    let result = call.graph.node("Conv", &inputs, attributes, value.element, dims);
    Ok(vec![call.channels_to_back(result, channels_last)?])
}

/// The dimensions of images for these weights.
pub(super) fn conv_input(arguments: &Arguments<'_>, weights: &Value) -> Option<Dims> {
    let axes = weights.rank()?.checked_sub(2)?;
    let group = arguments.int("group", 1);
    let channels_last = arguments.text("order").is_some_and(|order| order == "NHWC");
    let channels = weights.dim(if channels_last { axes + 1 } else { 1 })?.checked_mul(group)?;
    let mut dims = image(None, None, axes)?;
    *dims.get_mut(if channels_last { axes + 1 } else { 1 })? = Some(channels);
    Some(dims)
}

pub(super) fn conv_transpose(call: &mut Call<'_>) -> Outcome {
    call.at_most(3)?;
    let channels_last = call.channels_last()?;
    let window = Window::of(&call.arguments)?;
    let axes = window.kernel.len();
    if window.padding != Padding::Explicit || window.dilations.iter().any(|&dilation| dilation != 1) {
        return Err("legacy_pad and dilations have no counterpart in ONNX".to_owned());
    }
    let more = per_axis(&call.arguments, ["adjs", "adj", "adj_h", "adj_w"], axes);
    let more = more.unwrap_or_else(|| vec![0; axes]);
    let group = call.arguments.int("group", 1);
    let mut attributes = window.attributes();
    attributes.push(AttributeProto::ints("output_padding", &more));
    attributes.push(AttributeProto::int("group", group));
    let value = call.input(0)?;
    let value = call.channels_to_front(&value, channels_last)?;
    let weights = call.input(1)?;
    let weights = call.channels_to_front(&weights, channels_last)?;
    let bias = call.inputs.get(2).cloned();
    let inputs: Vec<_> = [&value, &weights].into_iter().chain(&bias).collect();
    let channels = weights.dim(1).and_then(|channels| channels.checked_mul(group));
    let dims = image(value.dim(0), channels, axes);
    let result = call.graph.node("ConvTranspose", &inputs, attributes, value.element, dims);
    Ok(vec![call.channels_to_back(result, channels_last)?])
}

pub(super) fn pool(call: &mut Call<'_>) -> Outcome {
    call.at_most(1)?;
    let channels_last = call.channels_last()?;
    let value = call.input(0)?;
    let value = call.channels_to_front(&value, channels_last)?;
    let is_average = call.kind.starts_with("Average");
    let include = is_average && call.arguments.flag("count_include_pad");
    let result = if call.arguments.flag("global_pooling") {
        for ignored in ["kernel", "kernels", "stride", "strides", "pad", "pads", "legacy_pad"] {
            call.arguments.has(ignored);
        }
        let axes = value.rank().map(|rank| rank.saturating_sub(2));
        let dims =
            axes.map(|axes| [value.dim(0), value.dim(1)].into_iter().chain(vec![Some(1); axes]).collect());
        let operator = if is_average { "GlobalAveragePool" } else { "GlobalMaxPool" };
        call.graph.node(operator, &[&value], Vec::new(), value.element, dims)
    } else {
        let window = Window::of(&call.arguments)?;
        let mut attributes = window.attributes();
        if window.dilations.iter().any(|&dilation| dilation != 1) {
            return Err("dilations have no counterpart in ONNX".to_owned());
        }
        if window.padding == Padding::Caffe {
            attributes.push(AttributeProto::int("ceil_mode", 1));
        }
        if include {
            attributes.push(AttributeProto::int("count_include_pad", 1));
        }
        let operator = if is_average { "AveragePool" } else { "MaxPool" };
        let dims = image(value.dim(0), value.dim(1), window.kernel.len());
        call.graph.node(operator, &[&value], attributes, value.element, dims)
    };
    Ok(vec![call.channels_to_back(result, channels_last)?])
}

pub(super) fn pad_image(call: &mut Call<'_>) -> Outcome {
    let channels_last = call.channels_last()?;
    let value = call.input(0)?;
    let pads = pads(&call.arguments, IMAGE);
    let &[top, left, bottom, right] = pads.as_slice() else {
        return Err("it has not four pads".to_owned());
    };
    if pads.iter().any(|pad| !(0..=LARGEST).contains(pad)) {
        return Err("a pad is negative or too large".to_owned());
    }
    let mode = call.arguments.text("mode").unwrap_or_else(|| "constant".to_owned());
    if !["constant", "reflect", "edge"].contains(&mode.as_str()) {
        return Err(format!("unknown mode '{mode}'"));
    }
    let pads = call.graph.ints(&if channels_last {
        [0, top, left, 0, 0, bottom, right, 0]
    } else {
        [0, 0, top, left, 0, 0, bottom, right]
    });
    let fill = call.arguments.float("value", 0.0);
    let mut inputs = vec![&value, &pads];
    let fill = (mode == "constant").then(|| call.graph.scalar(value.element, fill));
    inputs.extend(&fill);
    let attributes = vec![AttributeProto::text("mode", &mode)];
    let dims = value.dims.as_ref().map(|dims| vec![None; dims.len()]);
    Ok(vec![call.graph.node("Pad", &inputs, attributes, value.element, dims)])
}

pub(super) fn resize(call: &mut Call<'_>) -> Outcome {
    call.at_most(1)?;
    let (width, height) =
        (call.arguments.float("width_scale", 1.0), call.arguments.float("height_scale", 1.0));
    enlarge(call, height, width)
}

pub(super) fn upsample(call: &mut Call<'_>) -> Outcome {
    call.at_most(1)?;
    let factor = call.arguments.int("scale", 2) as f32;
    enlarge(call, factor, factor)
}

fn enlarge(call: &mut Call<'_>, height: f32, width: f32) -> Outcome {
    let channels_last = call.channels_last()?;
    let is_fit = |factor: f32| factor > 0.0 && factor <= LARGEST as f32;
    if !is_fit(height) || !is_fit(width) {
        return Err(format!("it scales by {height} and {width}"));
    }
    let value = call.input(0)?;
    let value = call.channels_to_front(&value, channels_last)?;
    let factors: Vec<u8> = [1.0, 1.0, height, width].iter().flat_map(|it: &f32| it.to_le_bytes()).collect();
    let factors = call.graph.constant(Element::Float, &[4], factors);
    let nothing = Value { name: String::new(), element: Element::Float, dims: None, ints: None };
    let attributes = if call.kind == "UpsampleBilinear" {
        vec![
            AttributeProto::text("mode", "linear"),
            AttributeProto::text("coordinate_transformation_mode", "align_corners"),
        ]
    } else {
        vec![
            AttributeProto::text("mode", "nearest"),
            AttributeProto::text("coordinate_transformation_mode", "asymmetric"),
            AttributeProto::text("nearest_mode", "floor"),
        ]
    };
    let axes = rank(&value).unwrap_or(IMAGE + 2).saturating_sub(2);
    let dims = image(value.dim(0), value.dim(1), axes);
    let result = call.graph.node("Resize", &[&value, &nothing, &factors], attributes, value.element, dims);
    Ok(vec![call.channels_to_back(result, channels_last)?])
}

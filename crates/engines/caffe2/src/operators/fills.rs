//! Operators that fill a tensor with values from the file.

use super::elementwise::element;
use super::{Call, Outcome};
use crate::caffe2::data_type;
use crate::onnx::{AttributeProto, TensorProto};
use crate::value::{Dims, Element, Value};

pub(super) const GIVEN: &[&str] = &[
    "GivenTensorBoolFill",
    "GivenTensorByteStringToUInt8Fill",
    "GivenTensorDoubleFill",
    "GivenTensorFill",
    "GivenTensorInt16Fill",
    "GivenTensorInt64Fill",
    "GivenTensorIntFill",
    "GivenTensorStringFill",
];

/// Limit of elements in a fill of one value.
const MOST: i64 = 1 << 29;

/// A fill of one value up to this many elements becomes a constant. Larger ones are expanded when the graph is loaded.
const FEW: i64 = 4096;

/// The product of a shape.
fn count(shape: &[i64]) -> Result<i64, String> {
    let count = shape.iter().try_fold(1_i64, |count, &dim| {
        if dim < 0 { None } else { count.checked_mul(dim).filter(|&count| count <= MOST) }
    });
    count.ok_or_else(|| format!("a tensor of shape {shape:?} cannot be filled"))
}

pub(super) fn given_tensor_fill(call: &mut Call<'_>) -> Outcome {
    call.at_most(0)?;
    let shape = call.arguments.ints("shape").to_vec();
    let values = call.arguments.raw("values").ok_or("it has no values")?;
    let (element, found, raw) = match call.kind {
        "GivenTensorFill" => {
            let raw: Vec<u8> = values.floats.iter().flat_map(|value| value.to_le_bytes()).collect();
            (Element::Float, values.floats.len(), raw)
        }
        "GivenTensorDoubleFill" => {
            let raw = values.floats.iter().flat_map(|&value| f64::from(value).to_le_bytes()).collect();
            (Element::Double, values.floats.len(), raw)
        }
        "GivenTensorByteStringToUInt8Fill" => {
            let raw = values.s.clone().unwrap_or_else(|| values.strings.concat());
            (Element::Uint8, raw.len(), raw)
        }
        "GivenTensorStringFill" => {
            if count(&shape)? != values.strings.len() as i64 {
                return Err(format!("{} strings do not have the shape {shape:?}", values.strings.len()));
            }
            return Ok(vec![call.graph.strings(&shape, values.strings.clone())]);
        }
        kind => {
            let element = match kind {
                "GivenTensorBoolFill" => Element::Bool,
                "GivenTensorInt16Fill" => Element::Int16,
                "GivenTensorInt64Fill" => Element::Int64,
                _ => Element::Int32,
            };
            let raw = values.ints.iter().flat_map(|&value| bytes(element, value)).collect();
            (element, values.ints.len(), raw)
        }
    };
    if count(&shape)? != found as i64 {
        return Err(format!("{found} values do not have the shape {shape:?}"));
    }
    Ok(vec![call.graph.constant(element, &shape, raw)])
}

/// An integer as an element.
fn bytes(element: Element, value: i64) -> Vec<u8> {
    match element {
        Element::Bool => vec![u8::from(value != 0)],
        Element::Uint8 | Element::Int8 => vec![value as u8],
        Element::Int16 | Element::Uint16 => (value as i16).to_le_bytes().to_vec(),
        Element::Int32 => (value as i32).to_le_bytes().to_vec(),
        _ => value.to_le_bytes().to_vec(),
    }
}

pub(super) fn constant(call: &mut Call<'_>) -> Outcome {
    let value = call.arguments.raw("value");
    let by_value = if value.is_some_and(|value| value.f.is_none() && value.i.is_some()) {
        data_type::INT64
    } else {
        data_type::FLOAT
    };
    let element = element(call.arguments.int("dtype", by_value))
        .filter(|element| !matches!(element, Element::String | Element::Float16));
    let element = element.ok_or("it fills with a type that has no counterpart in ONNX")?;
    let raw = match element {
        Element::Float => call.arguments.float("value", 0.0).to_le_bytes().to_vec(),
        Element::Double => f64::from(call.arguments.float("value", 0.0)).to_le_bytes().to_vec(),
        element => bytes(element, call.arguments.int("value", 0)),
    };
    let extra = call.arguments.ints("extra_shape").to_vec();
    let as_shape = call.arguments.flag("input_as_shape");
    if let Some(like) = call.inputs.first().cloned() {
        return like_input(call, &like, as_shape, &extra, element, raw);
    }
    let shape = call.arguments.ints("shape").to_vec();
    let count = count(&shape)?;
    if count <= FEW {
        return Ok(vec![call.graph.constant(element, &shape, raw.repeat(count as usize))]);
    }
    let list = call.graph.ints(&shape);
    let dims = shape.iter().copied().map(Some).collect();
    Ok(vec![of_shape(call, &list, element, raw, Some(dims))])
}

/// A fill with an input's shape, or with the shape stored in an input.
fn like_input(
    call: &mut Call<'_>,
    like: &Value,
    as_shape: bool,
    extra: &[i64],
    element: Element,
    raw: Vec<u8>,
) -> Outcome {
    let (mut shape, dims) = if as_shape {
        let sizes = like.ints.as_ref().map(|sizes| sizes.iter().copied().map(Some).collect::<Dims>());
        let rank = like.dim(0).and_then(|rank| usize::try_from(rank).ok()).filter(|&rank| rank <= 64);
        let dims = sizes.or_else(|| rank.map(|rank| vec![None; rank]));
        (call.graph.cast(like, Element::Int64), dims)
    } else {
        (call.graph.shape_of(like), like.dims.clone())
    };
    let dims = dims.map(|dims| dims.into_iter().chain(extra.iter().copied().map(Some)).collect());
    if !extra.is_empty() {
        count(extra)?;
        let more = call.graph.ints(extra);
        let attributes = vec![AttributeProto::int("axis", 0)];
        shape = call.graph.node("Concat", &[&shape, &more], attributes, Element::Int64, None);
    }
    Ok(vec![of_shape(call, &shape, element, raw, dims)])
}

fn of_shape(call: &mut Call<'_>, shape: &Value, element: Element, raw: Vec<u8>, dims: Option<Dims>) -> Value {
    let value = TensorProto {
        dims: vec![1],
        data_type: element as i32,
        raw_data: Some(raw),
        ..TensorProto::default()
    };
    let attributes = vec![AttributeProto::tensor("value", value)];
    call.graph.node("ConstantOfShape", &[shape], attributes, element, dims)
}

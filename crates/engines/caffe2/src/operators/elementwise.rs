//! Operators that work element by element, on one tensor or several.

use std::f32::consts::FRAC_1_SQRT_2;

use super::{Call, Outcome, rank};
use crate::caffe2::data_type;
use crate::onnx::AttributeProto;
use crate::value::{Dims, Element, Value};

/// Operators of one input that ONNX has under the same or another name.
pub(super) const UNARY: &[&str] = &[
    "Abs",
    "Acos",
    "Asin",
    "Atan",
    "Ceil",
    "Cos",
    "Cosh",
    "Erf",
    "Exp",
    "Floor",
    "Log",
    "Negative",
    "Not",
    "Reciprocal",
    "Relu",
    "Sigmoid",
    "Sign",
    "Sin",
    "Sinh",
    "Softplus",
    "Softsign",
    "Sqrt",
    "Tan",
    "Tanh",
];

/// Operators of one input with parameters.
pub(super) const WITH_PARAMETERS: &[&str] = &["Elu", "HardSigmoid", "LeakyRelu", "Selu", "ThresholdedRelu"];

/// Operators of two inputs.
pub(super) const BINARY: &[&str] =
    &["Add", "And", "Div", "EQ", "GE", "GT", "LE", "LT", "Mul", "NE", "Or", "Sub", "Xor"];

/// Operators that return their input.
pub(super) const COPIES: &[&str] = &[
    "Alias",
    "Copy",
    "CopyCPUToGPU",
    "CopyFromCPUInput",
    "CopyGPUToCPU",
    "EnsureCPUOutput",
    "EnsureDense",
    "StopGradient",
];

pub(super) fn unary(call: &mut Call<'_>) -> Outcome {
    call.at_most(1)?;
    let operator = if call.kind == "Negative" { "Neg" } else { call.kind };
    let value = call.input(0)?;
    Ok(vec![call.graph.like(operator, &[&value], Vec::new())])
}

pub(super) fn with_parameters(call: &mut Call<'_>) -> Outcome {
    // Each parameter: its name in Caffe2, its name in ONNX, and its default in Caffe2.
    let parameters: &[(&str, &str, f32)] = match call.kind {
        "HardSigmoid" => &[("alpha", "alpha", 0.2), ("beta", "beta", 0.5)],
        "LeakyRelu" => &[("alpha", "alpha", 0.01)],
        "Selu" => &[("alpha", "alpha", 1.673_263_2), ("scale", "gamma", 1.050_701)],
        _ => &[("alpha", "alpha", 1.0)],
    };
    let attribute = |(name, onnx, default): &(&str, &str, f32)| {
        AttributeProto::float(onnx, call.arguments.float(name, *default))
    };
    let attributes = parameters.iter().map(attribute).collect();
    let value = call.input(0)?;
    Ok(vec![call.graph.like(call.kind, &[&value], attributes)])
}

/// Operators that take several ONNX nodes.
pub(super) fn powers(call: &mut Call<'_>) -> Outcome {
    let value = call.input(0)?;
    if call.kind == "Gelu" && call.arguments.flag("fast_gelu") {
        return Err("the approximation 'fast_gelu' has no counterpart in ONNX".to_owned());
    }
    let graph = &mut *call.graph;
    Ok(vec![match call.kind {
        "Sqr" => graph.like("Mul", &[&value, &value], Vec::new()),
        "Cube" => {
            let square = graph.like("Mul", &[&value, &value], Vec::new());
            graph.like("Mul", &[&square, &value], Vec::new())
        }
        "Rsqrt" => {
            let root = graph.like("Sqrt", &[&value], Vec::new());
            graph.like("Reciprocal", &[&root], Vec::new())
        }
        "Swish" => {
            let share = graph.like("Sigmoid", &[&value], Vec::new());
            graph.like("Mul", &[&value, &share], Vec::new())
        }
        _ => {
            let (factor, one, half) = (
                graph.scalar(value.element, FRAC_1_SQRT_2),
                graph.scalar(value.element, 1.0),
                graph.scalar(value.element, 0.5),
            );
            let scaled = graph.like("Mul", &[&value, &factor], Vec::new());
            let error = graph.like("Erf", &[&scaled], Vec::new());
            let sum = graph.like("Add", &[&error, &one], Vec::new());
            let share = graph.like("Mul", &[&sum, &half], Vec::new());
            graph.like("Mul", &[&value, &share], Vec::new())
        }
    }])
}

pub(super) fn pow(call: &mut Call<'_>) -> Outcome {
    let value = call.input(0)?;
    if call.inputs.len() > 1 {
        let (exponent, dims) = second(call, &value)?;
        return Ok(vec![call.graph.node("Pow", &[&value, &exponent], Vec::new(), value.element, dims)]);
    }
    let exponent = call.graph.scalar(value.element, call.arguments.float("exponent", 0.0));
    Ok(vec![call.graph.like("Pow", &[&value, &exponent], Vec::new())])
}

pub(super) fn prelu(call: &mut Call<'_>) -> Outcome {
    call.at_most(2)?;
    let (value, slope) = (call.input(0)?, call.input(1)?);
    let channels_last = call.channels_last()?;
    let is_one = slope.shape().is_some_and(|shape| shape.iter().all(|&dim| dim == 1));
    let slope = if channels_last || is_one { slope } else { per_channel(call, &value, &slope)? };
    Ok(vec![call.graph.like("PRelu", &[&value, &slope], Vec::new())])
}

/// A list with an element for each channel, in the second dimension, made to fit the value.
fn per_channel(call: &mut Call<'_>, value: &Value, list: &Value) -> Result<Value, String> {
    let behind = rank(value)?.saturating_sub(2);
    if behind == 0 {
        return Ok(list.clone());
    }
    let axes: Vec<_> = (1..=behind as i64).collect();
    let axes = call.graph.ints(&axes);
    let dims = [list.dim(0)].into_iter().chain(vec![Some(1); behind]).collect();
    Ok(call.graph.node("Unsqueeze", &[list, &axes], Vec::new(), list.element, Some(dims)))
}

pub(super) fn affine_channel(call: &mut Call<'_>) -> Outcome {
    call.at_most(3)?;
    let (value, factor, summand) = (call.input(0)?, call.input(1)?, call.input(2)?);
    let channels_last = call.channels_last()?;
    call.arguments.has("is_learnable");
    let (factor, summand) = if channels_last {
        (factor, summand)
    } else {
        (per_channel(call, &value, &factor)?, per_channel(call, &value, &summand)?)
    };
    let product = call.graph.like("Mul", &[&value, &factor], Vec::new());
    Ok(vec![call.graph.like("Add", &[&product, &summand], Vec::new())])
}

pub(super) fn clip(call: &mut Call<'_>) -> Outcome {
    let value = call.input(0)?;
    let (low, high) = (call.arguments.float("min", f32::MIN), call.arguments.float("max", f32::MAX));
    let (low, high) = (call.graph.scalar(value.element, low), call.graph.scalar(value.element, high));
    Ok(vec![call.graph.like("Clip", &[&value, &low, &high], Vec::new())])
}

pub(super) fn scale(call: &mut Call<'_>) -> Outcome {
    let value = call.input(0)?;
    let factor = call.graph.scalar(value.element, call.arguments.float("scale", 1.0));
    Ok(vec![call.graph.like("Mul", &[&value, &factor], Vec::new())])
}

pub(super) fn binary(call: &mut Call<'_>) -> Outcome {
    call.at_most(2)?;
    let first = call.input(0)?;
    let (second, dims) = second(call, &first)?;
    let (operator, element) = match call.kind {
        "EQ" | "NE" => ("Equal", Element::Bool),
        "GE" => ("GreaterOrEqual", Element::Bool),
        "GT" => ("Greater", Element::Bool),
        "LE" => ("LessOrEqual", Element::Bool),
        "LT" => ("Less", Element::Bool),
        other => (other, first.element),
    };
    let result = call.graph.node(operator, &[&first, &second], Vec::new(), element, dims);
    Ok(vec![if call.kind == "NE" { call.graph.like("Not", &[&result], Vec::new()) } else { result }])
}

/// The second operand in a form that ONNX broadcasts as Caffe2 does, and the dimensions of the result.
fn second(call: &mut Call<'_>, first: &Value) -> Result<(Value, Option<Dims>), String> {
    let second = call.input(1)?;
    let given = call.arguments.optional_int("axis").filter(|&axis| axis != -1);
    let by_name = call.arguments.text("axis_str").filter(|axis| !axis.is_empty());
    if !call.arguments.flag("broadcast") {
        if given.is_some() || by_name.is_some() {
            return Err("it has an axis, but no 'broadcast'".to_owned());
        }
        let dims = broadcast(&first.dims, &second.dims);
        return Ok((second, dims));
    }
    // The dimensions of the second operand start at the axis; without an axis, they are the last ones.
    let axis = match by_name {
        Some(name) => {
            let order = call.arguments.text("order").unwrap_or_else(|| "NCHW".to_owned());
            Some(order.find(&name).ok_or_else(|| format!("axis '{name}' is not in the order '{order}'"))?)
        }
        None => match given {
            Some(given) => Some(super::axis(given, rank(first)?)?),
            None => None,
        },
    };
    let is_one = second.shape().is_some_and(|shape| shape.iter().all(|&dim| dim == 1));
    let Some(axis) = axis.filter(|_| !is_one) else { return Ok((second, first.dims.clone())) };
    let (whole, part) = (rank(first)?, rank(&second)?);
    let behind = whole
        .checked_sub(axis + part)
        .ok_or_else(|| format!("{part} dimensions do not fit into {whole} at axis {axis}"))?;
    if behind == 0 {
        return Ok((second, first.dims.clone()));
    }
    let axes: Vec<_> = (part..part + behind).map(|axis| axis as i64).collect();
    let axes = call.graph.ints(&axes);
    let dims = second.dims.as_ref().map(|dims| dims.iter().copied().chain(vec![Some(1); behind]).collect());
    let spread = call.graph.node("Unsqueeze", &[&second, &axes], Vec::new(), second.element, dims);
    Ok((spread, first.dims.clone()))
}

/// The dimensions of two tensors that are broadcast to each other, the last ones aligned.
fn broadcast(one: &Option<Dims>, other: &Option<Dims>) -> Option<Dims> {
    let (one, other) = (one.as_ref()?, other.as_ref()?);
    let rank = one.len().max(other.len());
    let dim = |dims: &Dims, at: usize| {
        (at + dims.len()).checked_sub(rank).map_or(Some(1), |at| dims.get(at).copied().flatten())
    };
    let joined = (0..rank).map(|at| match (dim(one, at), dim(other, at)) {
        (Some(1), dim) | (dim, Some(1)) => dim,
        (Some(dim), _) | (None, Some(dim)) => Some(dim),
        (None, None) => None,
    });
    Some(joined.collect())
}

pub(super) fn variadic(call: &mut Call<'_>) -> Outcome {
    let first = call.input(0)?;
    let inputs = call.inputs.clone();
    let is_float = matches!(first.element, Element::Float | Element::Double | Element::Float16);
    if call.kind == "Sum" && !is_float {
        // ONNX's operator takes no integers.
        let rest = inputs.iter().skip(1);
        let graph = &mut *call.graph;
        return Ok(vec![rest.fold(first, |sum, value| graph.like("Add", &[&sum, value], Vec::new()))]);
    }
    Ok(vec![call.graph.like(call.kind, &inputs.iter().collect::<Vec<_>>(), Vec::new())])
}

pub(super) fn weighted_sum(call: &mut Call<'_>) -> Outcome {
    let inputs = call.inputs.clone();
    let products = inputs.chunks(2).map(|pair| match pair {
        [value, weight] => Ok(call.graph.like("Mul", &[value, weight], Vec::new())),
        _ => Err("an input has no weight".to_owned()),
    });
    let products = products.collect::<Result<Vec<_>, _>>()?;
    Ok(vec![call.graph.like("Sum", &products.iter().collect::<Vec<_>>(), Vec::new())])
}

pub(super) fn choose(call: &mut Call<'_>) -> Outcome {
    call.at_most(3)?;
    let (condition, yes, no) = (call.input(0)?, call.input(1)?, call.input(2)?);
    let mut condition = condition;
    if call.arguments.flag("broadcast_on_rows") && condition.rank() != yes.rank() {
        // The condition has an element for each index of the first dimension.
        let behind: Vec<_> = (1..rank(&yes)? as i64).collect();
        let dims = [condition.dim(0)].into_iter().chain(vec![Some(1); behind.len()]).collect();
        let axes = call.graph.ints(&behind);
        condition =
            call.graph.node("Unsqueeze", &[&condition, &axes], Vec::new(), condition.element, Some(dims));
    }
    let inputs = [&condition, &yes, &no];
    Ok(vec![call.graph.node("Where", &inputs, Vec::new(), yes.element, yes.dims.clone())])
}

pub(super) fn cast(call: &mut Call<'_>) -> Outcome {
    let value = call.input(0)?;
    call.arguments.has("from_type");
    let to = match (call.arguments.text("to"), call.arguments.int("to", data_type::FLOAT)) {
        (Some(name), _) if !name.is_empty() => named_element(&name),
        (_, number) => element(number),
    };
    let to = to.ok_or("it casts to a type without a counterpart in ONNX")?;
    Ok(vec![call.graph.cast(&value, to)])
}

/// The type of a number.
pub(super) fn element(number: i64) -> Option<Element> {
    Some(match number {
        data_type::FLOAT => Element::Float,
        data_type::INT32 => Element::Int32,
        data_type::BYTE | data_type::UINT8 => Element::Uint8,
        data_type::STRING => Element::String,
        data_type::BOOL => Element::Bool,
        data_type::INT8 => Element::Int8,
        data_type::UINT16 => Element::Uint16,
        data_type::INT16 => Element::Int16,
        data_type::INT64 => Element::Int64,
        data_type::FLOAT16 => Element::Float16,
        data_type::DOUBLE => Element::Double,
        _ => return None,
    })
}

fn named_element(name: &str) -> Option<Element> {
    const NAMES: [(&str, i64); 10] = [
        ("FLOAT", data_type::FLOAT),
        ("INT32", data_type::INT32),
        ("BYTE", data_type::BYTE),
        ("BOOL", data_type::BOOL),
        ("UINT8", data_type::UINT8),
        ("INT8", data_type::INT8),
        ("UINT16", data_type::UINT16),
        ("INT16", data_type::INT16),
        ("INT64", data_type::INT64),
        ("DOUBLE", data_type::DOUBLE),
    ];
    let known = NAMES.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
    known.and_then(|&(_, number)| element(number))
}

pub(super) fn copy(call: &mut Call<'_>) -> Outcome {
    Ok(vec![call.input(0)?])
}

pub(super) fn dropout(call: &mut Call<'_>) -> Outcome {
    call.arguments.has("ratio");
    if call.arguments.flag("is_test") {
        copy(call)
    } else {
        Err("it is for training: is_test is not set".to_owned())
    }
}

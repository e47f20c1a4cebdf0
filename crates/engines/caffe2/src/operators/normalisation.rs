//! Operators that normalise values.

use super::{Call, Outcome, axis, rank};
use crate::graph::Graph;
use crate::onnx::AttributeProto;
use crate::value::Value;

const EPSILON: f32 = 1e-5;

pub(super) fn softmax(call: &mut Call<'_>) -> Outcome {
    call.at_most(1)?;
    call.arguments.has("engine");
    let value = call.input(0)?;
    let given = call.arguments.int("axis", 1);
    let last = vec![AttributeProto::int("axis", -1)];
    if let Some(rank) = value.rank()
        && axis(given, rank)? == rank - 1
    {
        return Ok(vec![call.graph.like("Softmax", &[&value], last)]);
    }
    // The sum over all axes from this one on is 1.
    let from = if given < 0 { axis(given, rank(&value)?)? as i64 } else { given };
    let attributes = vec![AttributeProto::int("axis", from)];
    let flat = call.graph.node("Flatten", &[&value], attributes, value.element, Some(vec![None; 2]));
    let shares = call.graph.like("Softmax", &[&flat], last);
    let shape = call.graph.shape_of(&value);
    Ok(vec![call.graph.reshape(&shares, &shape, value.dims.clone())])
}

pub(super) fn spatial_bn(call: &mut Call<'_>) -> Outcome {
    if !call.arguments.flag("is_test") {
        return Err("it is for training: is_test is not set".to_owned());
    }
    call.at_most(5)?;
    let channels_last = call.channels_last()?;
    let value = call.input(0)?;
    let value = call.channels_to_front(&value, channels_last)?;
    let (scale, bias, mean, variance) = (call.input(1)?, call.input(2)?, call.input(3)?, call.input(4)?);
    let attributes = vec![AttributeProto::float("epsilon", call.arguments.float("epsilon", EPSILON))];
    let inputs = [&value, &scale, &bias, &mean, &variance];
    let result = call.graph.like("BatchNormalization", &inputs, attributes);
    Ok(vec![call.channels_to_back(result, channels_last)?])
}

pub(super) fn lrn(call: &mut Call<'_>) -> Outcome {
    call.at_most(1)?;
    let channels_last = call.channels_last()?;
    let value = call.input(0)?;
    let value = call.channels_to_front(&value, channels_last)?;
    let size = call.arguments.int("size", 0);
    if size <= 0 || size % 2 == 0 {
        return Err(format!("its size is {size}, but must be odd"));
    }
    let attributes = vec![
        AttributeProto::int("size", size),
        AttributeProto::float("alpha", call.arguments.float("alpha", 0.0)),
        AttributeProto::float("beta", call.arguments.float("beta", 0.0)),
        AttributeProto::float("bias", call.arguments.float("bias", 1.0)),
    ];
    let result = call.graph.like("LRN", &[&value], attributes);
    Ok(vec![call.channels_to_back(result, channels_last)?])
}

pub(super) fn instance_norm(call: &mut Call<'_>) -> Outcome {
    call.at_most(3)?;
    let channels_last = call.channels_last()?;
    let value = call.input(0)?;
    let value = call.channels_to_front(&value, channels_last)?;
    let (scale, bias) = (call.input(1)?, call.input(2)?);
    let attributes = vec![AttributeProto::float("epsilon", call.arguments.float("epsilon", EPSILON))];
    let result = call.graph.like("InstanceNormalization", &[&value, &scale, &bias], attributes);
    Ok(vec![call.channels_to_back(result, channels_last)?])
}

pub(super) fn layer_norm(call: &mut Call<'_>) -> Outcome {
    let value = call.input(0)?;
    let rank = rank(&value)?;
    let first = axis(call.arguments.int("axis", 1), rank)?;
    let epsilon = call.arguments.float("epsilon", EPSILON);
    let is_affine = call.arguments.flag("elementwise_affine");
    call.at_most(if is_affine { 3 } else { 1 })?;
    let axes: Vec<_> = (first..rank).map(|axis| axis as i64).collect();
    let graph = &mut *call.graph;
    let mean_of = |graph: &mut Graph, value: &Value| {
        let attributes = vec![AttributeProto::ints("axes", &axes), AttributeProto::int("keepdims", 1)];
        let dims = (0..rank).map(|at| if at < first { value.dim(at) } else { Some(1) }).collect();
        graph.node("ReduceMean", &[value], attributes, value.element, Some(dims))
    };
    let mean = mean_of(graph, &value);
    let centred = graph.like("Sub", &[&value, &mean], Vec::new());
    let squares = graph.like("Mul", &[&centred, &centred], Vec::new());
    let variance = mean_of(graph, &squares);
    let epsilon = graph.scalar(value.element, epsilon);
    let sum = graph.like("Add", &[&variance, &epsilon], Vec::new());
    let deviation = graph.like("Sqrt", &[&sum], Vec::new());
    let mut result = graph.like("Div", &[&centred, &deviation], Vec::new());
    if is_affine {
        let (scale, bias) = (call.input(1)?, call.input(2)?);
        let scaled = call.graph.like("Mul", &[&result, &scale], Vec::new());
        result = call.graph.like("Add", &[&scaled, &bias], Vec::new());
    }
    Ok(vec![result])
}

pub(super) fn normalize(call: &mut Call<'_>) -> Outcome {
    call.at_most(1)?;
    let value = call.input(0)?;
    let attributes =
        vec![AttributeProto::int("axis", call.arguments.int("axis", -1)), AttributeProto::int("p", 2)];
    Ok(vec![call.graph.like("LpNormalization", &[&value], attributes)])
}

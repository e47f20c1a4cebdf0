//! Operators that reduce dimensions.

use super::{Call, Outcome, axis, rank};
use crate::onnx::AttributeProto;
use crate::value::{Dims, Element, Value};

pub(super) const REDUCTIONS: &[&str] =
    &["ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum"];

/// Reductions of the first dimensions, or of the last.
pub(super) const ENDS: &[&str] = &[
    "ReduceBackMax",
    "ReduceBackMean",
    "ReduceBackSum",
    "ReduceFrontMax",
    "ReduceFrontMean",
    "ReduceFrontSum",
];

pub(super) fn reduce(call: &mut Call<'_>) -> Outcome {
    call.at_most(1)?;
    let value = call.input(0)?;
    let keeps = call.arguments.int("keepdims", 1) != 0;
    let rank = rank(&value)?;
    let axes = call.arguments.ints("axes").iter().map(|&given| axis(given, rank));
    let mut axes = axes.collect::<Result<Vec<_>, _>>()?;
    if axes.is_empty() {
        axes = (0..rank).collect();
    }
    Ok(vec![reduce_axes(call, call.kind, &value, &axes, keeps)])
}

pub(super) fn reduce_end(call: &mut Call<'_>) -> Outcome {
    call.at_most(1)?;
    let value = call.input(0)?;
    let rank = rank(&value)?;
    let count = usize::try_from(call.arguments.int("num_reduce_dim", 1)).unwrap_or(usize::MAX);
    if count > rank {
        return Err(format!("it reduces {count} of {rank} dimensions"));
    }
    let (operator, axes): (_, Vec<_>) = match call.kind.strip_prefix("ReduceFront") {
        Some(what) => (what, (0..count).collect()),
        None => (call.kind.trim_start_matches("ReduceBack"), (rank - count..rank).collect()),
    };
    Ok(vec![reduce_axes(call, &format!("Reduce{operator}"), &value, &axes, false)])
}

fn reduce_axes(call: &mut Call<'_>, operator: &str, value: &Value, axes: &[usize], keeps: bool) -> Value {
    let dims = value.dims.as_ref().map(|dims| {
        let dims = dims.iter().enumerate();
        dims.filter(|(at, _)| keeps || !axes.contains(at))
            .map(|(at, dim)| if axes.contains(&at) { Some(1) } else { *dim })
            .collect::<Dims>()
    });
    let axes: Vec<_> = axes.iter().map(|&axis| axis as i64).collect();
    let keeps = AttributeProto::int("keepdims", i64::from(keeps));
    if operator == "ReduceSum" {
        let axes = call.graph.ints(&axes);
        return call.graph.node(operator, &[value, &axes], vec![keeps], value.element, dims);
    }
    let attributes = vec![AttributeProto::ints("axes", &axes), keeps];
    call.graph.node(operator, &[value], attributes, value.element, dims)
}

pub(super) fn top_k(call: &mut Call<'_>) -> Outcome {
    call.at_most(1)?;
    let value = call.input(0)?;
    let count = call.arguments.int("k", -1);
    if count <= 0 {
        return Err(format!("its k is {count}"));
    }
    let given = call.arguments.int("axis", -1);
    let mut dims = value.dims.clone();
    if let Some(dims) = &mut dims {
        let at = axis(given, dims.len())?;
        dims[at] = Some(count);
    }
    let count = call.graph.ints(&[count]);
    let attributes = vec![
        AttributeProto::int("axis", given),
        AttributeProto::int("largest", 1),
        AttributeProto::int("sorted", 1),
    ];
    let outputs = vec![(value.element, dims.clone()), (Element::Int64, dims)];
    Ok(call.graph.nodes("TopK", &[&value, &count], attributes, outputs))
}

pub(super) fn arg_extreme(call: &mut Call<'_>) -> Outcome {
    call.at_most(1)?;
    let value = call.input(0)?;
    let rank = rank(&value)?;
    let at = axis(call.arguments.int("axis", -1), rank)?;
    let keeps = call.arguments.int("keepdims", 1) != 0;
    let dims = value.dims.clone().map(|mut dims| {
        if keeps {
            dims[at] = Some(1);
        } else {
            dims.remove(at);
        }
        dims
    });
    let attributes =
        vec![AttributeProto::int("axis", at as i64), AttributeProto::int("keepdims", i64::from(keeps))];
    Ok(vec![call.graph.node(call.kind, &[&value], attributes, Element::Int64, dims)])
}

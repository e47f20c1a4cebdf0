//! Operators that move elements without computing.

use super::{Call, Outcome, axis, rank};
use crate::onnx::AttributeProto;
use crate::value::{Dims, Element, Value};

/// The end of a dimension, in ONNX's slices.
const END: i64 = i64::MAX;

/// The axis to concatenate or split along: the argument, or else the channels.
fn axis_of(call: &Call<'_>) -> Result<i64, String> {
    if let Some(given) = call.arguments.optional_int("axis") {
        return Ok(given);
    }
    // Caffe2 assumes images only where the operator has an order.
    Ok(if call.channels_last()? { 3 } else { 1 })
}

fn insert(dims: &Option<Dims>, at: usize, dim: i64) -> Option<Dims> {
    let mut dims = dims.clone()?;
    (at <= dims.len()).then(|| {
        dims.insert(at, Some(dim));
        dims
    })
}

pub(super) fn concat(call: &mut Call<'_>) -> Outcome {
    let given = axis_of(call)?;
    let mut inputs = call.inputs.clone();
    let first = call.input(0)?;
    let adds = call.arguments.flag("add_axis");
    let at = match first.rank() {
        Some(rank) => axis(given, rank + usize::from(adds))?,
        None => usize::try_from(given).map_err(|_| format!("axis {given} of a tensor of unknown rank"))?,
    };
    if adds {
        for value in &mut inputs {
            let axes = call.graph.ints(&[at as i64]);
            let dims = insert(&value.dims, at, 1);
            *value = call.graph.node("Unsqueeze", &[value, &axes], Vec::new(), value.element, dims);
        }
    }
    let total = inputs.iter().try_fold(0_i64, |total, value| total.checked_add(value.dim(at)?));
    let mut dims = inputs.first().and_then(|value| value.dims.clone());
    if let Some(dim) = dims.as_mut().and_then(|dims| dims.get_mut(at)) {
        *dim = total;
    }
    let attributes = vec![AttributeProto::int("axis", at as i64)];
    Ok(vec![call.graph.node("Concat", &inputs.iter().collect::<Vec<_>>(), attributes, first.element, dims)])
}

pub(super) fn split(call: &mut Call<'_>) -> Outcome {
    call.at_most(2)?;
    let given = axis_of(call)?;
    let value = call.input(0)?;
    let at = match value.rank() {
        Some(rank) => axis(given, rank)?,
        None => usize::try_from(given).map_err(|_| format!("axis {given} of a tensor of unknown rank"))?,
    };
    let adds = call.arguments.flag("add_axis");
    let sizes = call.arguments.ints("split").to_vec();
    let list = match call.inputs.get(1) {
        Some(list) => Some(call.graph.cast(&list.clone(), Element::Int64)),
        None if sizes.is_empty() => None,
        None => Some(call.graph.ints(&sizes)),
    };
    let attributes = vec![AttributeProto::int("axis", at as i64)];
    let mut dims = value.dims.clone();
    if let Some(dim) = dims.as_mut().and_then(|dims| dims.get_mut(at)) {
        *dim = None;
    }
    if call.outputs == 0 {
        return Err("it has no outputs".to_owned());
    }
    let outputs = vec![(value.element, dims); call.outputs];
    let inputs: Vec<_> = [&value].into_iter().chain(&list).collect();
    let parts = call.graph.nodes("Split", &inputs, attributes, outputs);
    if !adds {
        return Ok(parts);
    }
    let squeezed = parts.iter().map(|part| {
        let axes = call.graph.ints(&[at as i64]);
        let dims = part.dims.clone().map(|mut dims| {
            dims.remove(at);
            dims
        });
        call.graph.node("Squeeze", &[part, &axes], Vec::new(), part.element, dims)
    });
    Ok(squeezed.collect())
}

pub(super) fn reshape(call: &mut Call<'_>) -> Outcome {
    call.at_most(2)?;
    let value = call.input(0)?;
    let shape = match call.inputs.get(1).cloned() {
        Some(shape) if shape.element == Element::Int64 => shape,
        Some(shape) => call.graph.cast(&shape, Element::Int64),
        None if call.arguments.has("shape") => call.graph.ints(call.arguments.ints("shape")),
        None => return Err("it has no shape".to_owned()),
    };
    let known = shape.ints.as_ref().map(|sizes| {
        let size = |(at, &size): (usize, &i64)| match size {
            0 => value.dim(at),
            size => (size > 0).then_some(size),
        };
        sizes.iter().enumerate().map(size).collect()
    });
    let unknown = || shape.dim(0).and_then(|rank| usize::try_from(rank).ok()).filter(|&rank| rank <= 64);
    let dims = known.or_else(|| unknown().map(|rank| vec![None; rank]));
    let result = call.graph.reshape(&value, &shape, dims);
    let old = call.graph.shape_of(&value);
    Ok(vec![result, old])
}

pub(super) fn resize_like(call: &mut Call<'_>) -> Outcome {
    let (value, like) = (call.input(0)?, call.input(1)?);
    let shape = call.graph.shape_of(&like);
    Ok(vec![call.graph.reshape(&value, &shape, like.dims)])
}

pub(super) fn flatten(call: &mut Call<'_>) -> Outcome {
    let value = call.input(0)?;
    let given = call.arguments.int("axis", 1);
    let attributes = vec![AttributeProto::int("axis", given)];
    let batch = if given == 1 { value.dim(0) } else { None };
    Ok(vec![call.graph.node("Flatten", &[&value], attributes, value.element, Some(vec![batch, None]))])
}

pub(super) fn flatten_to_vec(call: &mut Call<'_>) -> Outcome {
    let value = call.input(0)?;
    let shape = call.graph.ints(&[-1]);
    Ok(vec![call.graph.reshape(&value, &shape, Some(vec![None]))])
}

pub(super) fn transpose(call: &mut Call<'_>) -> Outcome {
    let value = call.input(0)?;
    let rank = rank(&value)?;
    let order: Vec<usize> = match call.kind {
        _ if rank < 2 => (0..rank).collect(),
        "NCHW2NHWC" => [0].into_iter().chain(2..rank).chain([1]).collect(),
        "NHWC2NCHW" => [0, rank - 1].into_iter().chain(1..rank - 1).collect(),
        _ => {
            let axes = call.arguments.ints("axes").iter().map(|&given| axis(given, rank));
            let axes = axes.collect::<Result<Vec<_>, _>>()?;
            if axes.is_empty() { (0..rank).rev().collect() } else { axes }
        }
    };
    let mut sorted = order.clone();
    sorted.sort_unstable();
    if !sorted.into_iter().eq(0..rank) {
        return Err(format!("its axes are not an order of {rank} dimensions"));
    }
    Ok(vec![call.graph.transpose(&value, &order)])
}

pub(super) fn squeeze(call: &mut Call<'_>) -> Outcome {
    let value = call.input(0)?;
    let removed = call.arguments.ints("dims").to_vec();
    let axes = call.graph.ints(&removed);
    let dims = value.dims.as_ref().map(|dims| {
        let kept = dims.iter().enumerate().filter(|(at, _)| !removed.contains(&(*at as i64)));
        kept.map(|(_, dim)| *dim).collect()
    });
    Ok(vec![call.graph.node("Squeeze", &[&value, &axes], Vec::new(), value.element, dims)])
}

pub(super) fn expand_dims(call: &mut Call<'_>) -> Outcome {
    let value = call.input(0)?;
    let mut added = call.arguments.ints("dims").to_vec();
    added.sort_unstable();
    let mut dims = value.dims.clone();
    for &at in &added {
        let at = usize::try_from(at).map_err(|_| format!("dimension {at}"))?;
        dims = insert(&dims, at, 1);
    }
    let axes = call.graph.ints(&added);
    Ok(vec![call.graph.node("Unsqueeze", &[&value, &axes], Vec::new(), value.element, dims)])
}

pub(super) fn channel_shuffle(call: &mut Call<'_>) -> Outcome {
    let value = call.input(0)?;
    let channels_last = call.channels_last()?;
    call.arguments.has("kernel");
    let group = call.arguments.int("group", 1);
    if group <= 0 {
        return Err(format!("its group is {group}"));
    }
    let value = call.channels_to_front(&value, channels_last)?;
    let rank = rank(&value)?;
    if rank < 2 {
        return Err(format!("{rank} dimensions have no channels"));
    }
    let graph = &mut *call.graph;
    let shape = graph.shape_of(&value);
    let (zero, one, two, end) = (graph.ints(&[0]), graph.ints(&[1]), graph.ints(&[2]), graph.ints(&[END]));
    let list = |count: usize| Some(vec![Some(count as i64)]);
    let batch = graph.node("Slice", &[&shape, &zero, &one], Vec::new(), Element::Int64, list(1));
    let image = graph.node("Slice", &[&shape, &two, &end], Vec::new(), Element::Int64, list(rank - 2));
    let each = value.dim(1).map_or(-1, |channels| channels / group);
    let channels = graph.ints(&[group, each]);
    let attributes = vec![AttributeProto::int("axis", 0)];
    let groups =
        graph.node("Concat", &[&batch, &channels, &image], attributes, Element::Int64, list(rank + 1));
    let grouped = graph.reshape(&value, &groups, Some(vec![None; rank + 1]));
    let order: Vec<_> = [0, 2, 1].into_iter().chain(3..=rank).collect();
    let shuffled = graph.transpose(&grouped, &order);
    let result = graph.reshape(&shuffled, &shape, value.dims.clone());
    Ok(vec![call.channels_to_back(result, channels_last)?])
}

pub(super) fn slice(call: &mut Call<'_>) -> Outcome {
    call.at_most(1)?;
    let value = call.input(0)?;
    let (starts, ends) = (call.arguments.ints("starts"), call.arguments.ints("ends"));
    if starts.len() != ends.len() || starts.is_empty() {
        return Err("starts and ends do not fit together".to_owned());
    }
    // In Caffe2, -1 is behind the last element; in ONNX, it is the last element.
    let place = |place: &i64| match *place {
        -1 => END,
        place if place < 0 => place + 1,
        place => place,
    };
    let starts: Vec<_> = starts.iter().map(place).collect();
    let ends: Vec<_> = ends.iter().map(place).collect();
    let axes: Vec<_> = (0..starts.len() as i64).collect();
    let (starts, ends, axes) = (call.graph.ints(&starts), call.graph.ints(&ends), call.graph.ints(&axes));
    let dims = value.rank().map(|rank| vec![None; rank]);
    Ok(vec![call.graph.node("Slice", &[&value, &starts, &ends, &axes], Vec::new(), value.element, dims)])
}

pub(super) fn gather(call: &mut Call<'_>) -> Outcome {
    call.at_most(2)?;
    let (value, indices) = (call.input(0)?, call.input(1)?);
    let given = if call.kind == "BatchGather" { 1 } else { call.arguments.int("axis", 0) };
    let at = match value.rank() {
        Some(rank) => axis(given, rank)?,
        None => usize::try_from(given).map_err(|_| format!("axis {given} of a tensor of unknown rank"))?,
    };
    let dims = value.dims.as_ref().zip(indices.dims.as_ref()).map(|(dims, indices)| {
        let (front, back) = dims.split_at(at.min(dims.len()));
        front.iter().chain(indices).chain(back.iter().skip(1)).copied().collect()
    });
    let attributes = vec![AttributeProto::int("axis", at as i64)];
    Ok(vec![call.graph.node("Gather", &[&value, &indices], attributes, value.element, dims)])
}

pub(super) fn tile(call: &mut Call<'_>) -> Outcome {
    call.at_most(1)?;
    let value = call.input(0)?;
    let rank = rank(&value)?;
    let (times, at) = (call.arguments.int("tiles", 1), axis(call.arguments.int("axis", 0), rank)?);
    let mut repeats = vec![1; rank];
    repeats[at] = times;
    let repeats = call.graph.ints(&repeats);
    let mut dims = value.dims.clone();
    if let Some(dim) = dims.as_mut().and_then(|dims| dims.get_mut(at)) {
        *dim = dim.and_then(|dim| dim.checked_mul(times));
    }
    Ok(vec![call.graph.node("Tile", &[&value, &repeats], Vec::new(), value.element, dims)])
}

pub(super) fn shape(call: &mut Call<'_>) -> Outcome {
    let value = call.input(0)?;
    let shape = call.graph.shape_of(&value);
    let axes = call.arguments.ints("axes");
    if axes.is_empty() {
        return Ok(vec![shape]);
    }
    let dims = Some(vec![Some(axes.len() as i64)]);
    let axes = call.graph.ints(axes);
    let attributes = vec![AttributeProto::int("axis", 0)];
    Ok(vec![call.graph.node("Gather", &[&shape, &axes], attributes, Element::Int64, dims)])
}

pub(super) fn size(call: &mut Call<'_>) -> Outcome {
    let value: Value = call.input(0)?;
    Ok(vec![call.graph.node("Size", &[&value], Vec::new(), Element::Int64, Some(Vec::new()))])
}

//! Products of matrices.

use super::{Call, Outcome, rank};
use crate::arguments::Arguments;
use crate::onnx::AttributeProto;
use crate::value::{Dims, Value};

/// Flattens a tensor to a matrix: axes from `axis` on become columns, those before it rows.
fn matrix(call: &mut Call<'_>, value: &Value, axis: usize) -> Value {
    if value.rank() == Some(2) && axis == 1 {
        return value.clone();
    }
    let product = |dims: &[Option<i64>]| {
        dims.iter().try_fold(1_i64, |product, dim| dim.and_then(|dim| product.checked_mul(dim)))
    };
    let dims = value.dims.as_ref().and_then(|dims| Some((dims.get(..axis)?, dims.get(axis..)?)));
    let dims = dims.map_or_else(|| vec![None; 2], |(rows, columns)| vec![product(rows), product(columns)]);
    let attributes = vec![AttributeProto::int("axis", axis as i64)];
    call.graph.node("Flatten", &[value], attributes, value.element, Some(dims))
}

/// The axis of an argument. One that counts from the end requires a known rank.
fn axis_of(call: &Call<'_>, argument: &str, value: &Value) -> Result<usize, String> {
    let axis = call.arguments.int(argument, 1);
    if axis < 0 || value.rank().is_some() {
        return super::axis(axis, rank(value)?);
    }
    usize::try_from(axis).map_err(|_| format!("axis {axis}"))
}

pub(super) fn fully_connected(call: &mut Call<'_>) -> Outcome {
    call.at_most(3)?;
    let (value, weights, bias) = (call.input(0)?, call.input(1)?, call.input(2)?);
    let (axis, axis_w) = (axis_of(call, "axis", &value)?, axis_of(call, "axis_w", &weights)?);
    let weights = matrix(call, &weights, axis_w);
    let transposed = call.kind == "FCTransposed";
    let columns = weights.dim(usize::from(transposed));
    let rows = matrix(call, &value, axis);
    let attributes = vec![AttributeProto::int("transB", i64::from(!transposed))];
    let dims = vec![rows.dim(0), columns];
    let product = call.graph.node("Gemm", &[&rows, &weights, &bias], attributes, value.element, Some(dims));
    if axis == 1 {
        return Ok(vec![product]);
    }
    // Restores the axes that became rows.
    let shape = call.graph.shape_of(&value);
    let (start, end) = (call.graph.ints(&[0]), call.graph.ints(&[axis as i64]));
    let rest = call.graph.ints(&[columns.unwrap_or(-1)]);
    let one_list = |count| Some(vec![Some(count)]);
    let element = shape.element;
    let front = call.graph.node("Slice", &[&shape, &start, &end], Vec::new(), element, one_list(axis as i64));
    let attributes = vec![AttributeProto::int("axis", 0)];
    let shape = call.graph.node("Concat", &[&front, &rest], attributes, element, one_list(axis as i64 + 1));
    let dims = value.dims.as_ref().and_then(|dims| dims.get(..axis));
    let dims = dims.map(|dims| dims.iter().copied().chain([columns]).collect());
    Ok(vec![call.graph.reshape(&product, &shape, dims)])
}

/// The dimensions of the value that these weights are multiplied with.
pub(super) fn fully_connected_input(kind: &str, arguments: &Arguments<'_>, weights: &Value) -> Option<Dims> {
    let is_plain = arguments.int("axis", 1) == 1 && arguments.int("axis_w", 1) == 1;
    let columns = weights.dim(usize::from(kind == "FC"))?;
    (is_plain && weights.rank() == Some(2)).then(|| vec![None, Some(columns)])
}

pub(super) fn mat_mul(call: &mut Call<'_>) -> Outcome {
    call.at_most(2)?;
    let (one, other) = (call.input(0)?, call.input(1)?);
    let (axis_a, axis_b) = (axis_of(call, "axis_a", &one)?, axis_of(call, "axis_b", &other)?);
    let (flip_one, flip_other) = (call.arguments.flag("trans_a"), call.arguments.flag("trans_b"));
    let one = matrix(call, &one, axis_a);
    let one = if flip_one { call.graph.transpose(&one, &[1, 0]) } else { one };
    let other = matrix(call, &other, axis_b);
    let other = if flip_other { call.graph.transpose(&other, &[1, 0]) } else { other };
    let dims = vec![one.dim(0), other.dim(1)];
    Ok(vec![call.graph.node("MatMul", &[&one, &other], Vec::new(), one.element, Some(dims))])
}

pub(super) fn batch_mat_mul(call: &mut Call<'_>) -> Outcome {
    call.at_most(2)?;
    let (one, other) = (call.input(0)?, call.input(1)?);
    call.arguments.has("use_scratch");
    let broadcasts = call.arguments.flag("broadcast");
    let (rank_one, rank_other) = (rank(&one)?, rank(&other)?);
    if rank_one < 2 || rank_other < 2 || (rank_one != rank_other && !broadcasts) {
        return Err(format!("matrices of {rank_one} and {rank_other} dimensions do not fit together"));
    }
    let flip = |call: &mut Call<'_>, value: Value, argument| {
        if !call.arguments.flag(argument) {
            return value;
        }
        let rank = value.rank().unwrap_or(2);
        let order: Vec<_> = (0..rank - 2).chain([rank - 1, rank - 2]).collect();
        call.graph.transpose(&value, &order)
    };
    let one = flip(call, one, "trans_a");
    let other = flip(call, other, "trans_b");
    let rank = rank_one.max(rank_other);
    let longer = if rank_one >= rank_other { &one } else { &other };
    let mut dims = longer.dims.clone().unwrap_or_default();
    if let [.., rows, columns] = dims.as_mut_slice() {
        (*rows, *columns) = (one.dim(rank_one - 2), other.dim(rank_other - 1));
    }
    if rank_one == rank_other && broadcasts {
        // Either operand may be broadcast.
        dims[..rank - 2].fill(None);
    }
    Ok(vec![call.graph.node("MatMul", &[&one, &other], Vec::new(), one.element, Some(dims))])
}

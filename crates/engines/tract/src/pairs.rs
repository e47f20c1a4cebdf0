//! Functions of two tensors' elements, broadcast, in loops that the compiler vectorises for the usual shapes.

use tract_hir::internal::*;
use tract_onnx::prelude::tract_ndarray::{ArrayViewD, ArrayViewMutD, Zip};

/// Combines each element of `one`, which has the shape of the result, with one of `other`.
pub(crate) fn combine_in_place<T: Datum + Copy>(
    one: &mut Tensor,
    other: &Tensor,
    combine: impl Fn(T, T) -> T,
) -> TractResult<()> {
    let other = other.to_plain_array_view::<T>()?;
    let mut one = one.try_as_plain_ram_mut()?;
    let mut one = one.to_array_view_mut::<T>()?;
    let each = |one: &mut T, other: T| *one = combine(*one, other);
    if let Some(layout) = Layout::of(one.shape(), other.shape())
        && let (Some(ones), Some(others)) = (one.as_slice_mut(), other.as_slice())
    {
        match layout {
            Layout::Same => ones.iter_mut().zip(others).for_each(|(one, other)| each(one, *other)),
            Layout::Rows(length) => {
                for ones in ones.chunks_exact_mut(length) {
                    ones.iter_mut().zip(others).for_each(|(one, other)| each(one, *other));
                }
            }
            Layout::Scalars(length) => {
                for (ones, other) in ones.chunks_exact_mut(length).zip(others) {
                    ones.iter_mut().for_each(|one| each(one, *other));
                }
            }
        }
        return Ok(());
    }
    Zip::from(one).and_broadcast(other).for_each(|one, other| each(one, *other));
    Ok(())
}

/// Combines each element of `one` with one of `other`, both broadcast to the shape of `result`.
pub(crate) fn combine<T: Datum + Copy>(
    result: &mut Tensor,
    one: &Tensor,
    other: &Tensor,
    combine: impl Fn(T, T) -> T,
) -> TractResult<()> {
    if one.shape() == result.shape() {
        *result = one.clone();
        return combine_in_place(result, other, combine);
    }
    if other.shape() == result.shape() {
        *result = other.clone();
        return combine_in_place(result, one, |other, one| combine(one, other));
    }
    let (one, other): (ArrayViewD<'_, T>, ArrayViewD<'_, T>) =
        (one.to_plain_array_view()?, other.to_plain_array_view()?);
    let mut result = result.try_as_plain_ram_mut()?;
    let result: ArrayViewMutD<'_, T> = result.to_array_view_mut()?;
    let pairs = Zip::from(result).and_broadcast(one).and_broadcast(other);
    pairs.for_each(|result, one, other| *result = combine(*one, *other));
    Ok(())
}

/// How two tensors' elements pair up in contiguous runs.
enum Layout {
    /// The shapes are equal.
    Same,
    /// Each row of this length pairs with all elements of the other tensor.
    Rows(usize),
    /// Each block of this length pairs with one element.
    Scalars(usize),
}

impl Layout {
    fn of(shape: &[usize], other: &[usize]) -> Option<Self> {
        if shape == other {
            return Some(Self::Same);
        }
        if shape.len() != other.len() || shape.contains(&0) {
            return None;
        }
        let size = |dims: &[usize]| dims.iter().product::<usize>();
        let ones = |dims: &[usize]| dims.iter().all(|dim| *dim == 1);
        let equal = shape.iter().zip(other).take_while(|(one, other)| one == other).count();
        if ones(&other[equal..]) {
            return Some(Self::Scalars(size(&shape[equal..])));
        }
        let equal = shape.iter().zip(other).rev().take_while(|(one, other)| one == other).count();
        let start = shape.len() - equal;
        ones(&other[..start]).then(|| Self::Rows(size(&shape[start..])))
    }
}

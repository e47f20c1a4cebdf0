//! Python arrays as tensors, for extension modules: numpy's C interface, DLPack, and elements of type BYTES.
//!
//! The crate uses CPython's stable ABI and the part of numpy's interface that numpy 1 and 2 share, so one build
//! serves every CPython from 3.9 on. It knows neither servers nor models, nor the tensor types of its users.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

pub mod data_type;
pub mod dlpack;
pub mod elements;
pub mod numpy;

pub use numpy::{Array, Numpy};
pub use tensor_types::DataType;

use data_type::element_size;

/// The size of a tensor's elements in bytes; `None` if it overflows or a dimension is negative. 0 for BYTES.
pub fn byte_length(shape: &[i64], data_type: DataType) -> Option<usize> {
    let size = element_size(data_type).max(1);
    let elements = shape
        .iter()
        .try_fold(size, |product, dimension| product.checked_mul(usize::try_from(*dimension).ok()?))?;
    (isize::try_from(elements).is_ok()).then_some(if element_size(data_type) == 0 { 0 } else { elements })
}

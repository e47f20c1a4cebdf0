//! Tensors from and to arrays of `ndarray`.

use ndarray::{ArrayD, ArrayRef, Dimension};

use super::{Element, Tensor};
use crate::Error;

impl Tensor {
    /// A tensor with the elements of an array, in any layout.
    pub fn from_array<T: Element, D: Dimension>(
        name: impl Into<String>,
        array: &ArrayRef<T, D>,
    ) -> Result<Self, Error> {
        match array.as_slice() {
            Some(elements) => Self::new(name, array.shape(), elements),
            None => Self::new(name, array.shape(), array.iter().copied().collect::<Vec<_>>()),
        }
    }

    /// The elements as an array.
    ///
    /// # Errors
    /// The tensor has another data type, or is in shared memory.
    pub fn to_array<T: Element>(&self) -> Result<ArrayD<T>, Error> {
        ArrayD::from_shape_vec(self.shape(), self.to_vec()?)
            .map_err(|error| Error::response(format!("tensor '{}': {error}", self.name())))
    }
}

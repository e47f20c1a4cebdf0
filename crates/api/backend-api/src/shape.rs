//! A tensor's dimensions.

use std::fmt;
use std::ops::{Deref, DerefMut};

use smallvec::SmallVec;

/// Dimensions of a tensor, outermost first. A scalar has none.
///
/// In a configuration, a dimension of -1 stands for any size; in a request or a response every dimension is 0 or
/// more.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Shape(SmallVec<[i64; 4]>);

impl Shape {
    /// The shape of a scalar.
    pub fn scalar() -> Self {
        Self::default()
    }

    /// Number of elements of a tensor of this shape. `None` if a dimension is negative or the product overflows.
    pub fn element_count(&self) -> Option<usize> {
        // A zero anywhere makes the tensor empty, regardless of the other dimensions.
        if self.iter().any(|&dim| dim < 0) {
            return None;
        }
        if self.contains(&0) {
            return Some(0);
        }
        self.iter().try_fold(1_usize, |count, &dim| count.checked_mul(usize::try_from(dim).ok()?))
    }

    /// Adds a dimension at the inner end.
    pub fn push(&mut self, dim: i64) {
        self.0.push(dim);
    }

    /// Adds a dimension at the outer end.
    pub fn push_front(&mut self, dim: i64) {
        self.0.insert(0, dim);
    }
}

impl Deref for Shape {
    type Target = [i64];

    fn deref(&self) -> &[i64] {
        &self.0
    }
}

impl DerefMut for Shape {
    fn deref_mut(&mut self) -> &mut [i64] {
        &mut self.0
    }
}

impl From<&[i64]> for Shape {
    fn from(dims: &[i64]) -> Self {
        Self(SmallVec::from_slice(dims))
    }
}

impl<const N: usize> From<[i64; N]> for Shape {
    fn from(dims: [i64; N]) -> Self {
        Self(SmallVec::from_slice(&dims))
    }
}

impl FromIterator<i64> for Shape {
    fn from_iter<I: IntoIterator<Item = i64>>(dims: I) -> Self {
        Self(dims.into_iter().collect())
    }
}

impl Extend<i64> for Shape {
    fn extend<I: IntoIterator<Item = i64>>(&mut self, dims: I) {
        self.0.extend(dims);
    }
}

impl fmt::Display for Shape {
    /// `[2,16]`, as the protocol writes a shape.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (index, dim) in self.iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            write!(f, "{dim}")?;
        }
        f.write_str("]")
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::Shape;

    #[test]
    fn scalar_has_one_element() {
        assert_eq!(Shape::scalar().element_count(), Some(1));
    }

    #[test]
    fn zero_dimension_makes_the_tensor_empty_despite_a_huge_one() {
        assert_eq!(Shape::from([i64::MAX, i64::MAX, 0]).element_count(), Some(0));
    }

    #[test]
    fn overflowing_product_has_no_element_count() {
        assert_eq!(Shape::from([1 << 32, 1 << 32]).element_count(), None);
        assert_eq!(Shape::from([0, -1]).element_count(), None);
    }

    #[test]
    fn shape_prints_in_protocol_form() {
        assert_eq!(Shape::from([2, 16]).to_string(), "[2,16]");
        assert_eq!(Shape::scalar().to_string(), "[]");
    }
}

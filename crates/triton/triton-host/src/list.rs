//! Lists that C reads item by item: their length, and the item at an index.

use nereid_backend_api::{Error, Result};

/// The item at an index.
pub(crate) fn at<'a, T>(items: &'a [T], index: u32, what: &str) -> Result<&'a T> {
    items.get(index as usize).ok_or_else(|| {
        Error::invalid_arg(format!("index {index} is out of bounds: there are {} {what}", items.len()))
    })
}

/// The number of items, capped to C's type.
pub(crate) fn count<T>(items: &[T]) -> u32 {
    u32::try_from(items.len()).unwrap_or(u32::MAX)
}

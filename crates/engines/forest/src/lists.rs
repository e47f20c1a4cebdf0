//! Lists of different lengths that a file has in one array.

use std::ops::Range;

/// Lists in an array. Together they have at most its length: lists that overlap would let a small file take any amount of memory.
pub(crate) struct Lists<'a, T> {
    values: &'a [T],
    left: usize,
}

impl<'a, T> Lists<'a, T> {
    pub(crate) fn new(values: &'a [T]) -> Self {
        Self { values, left: values.len() }
    }

    /// A list, unless it is beyond the array or more than what is left of it.
    pub(crate) fn take(&mut self, range: Range<usize>) -> Option<&'a [T]> {
        let list = self.values.get(range)?;
        self.left = self.left.checked_sub(list.len())?;
        Some(list)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_take_their_array_once() {
        let values = [1, 2, 3, 4];
        let mut lists = Lists::new(&values);
        assert_eq!(lists.take(1..3), Some([2, 3].as_slice()));
        assert_eq!(lists.take(3..5), None);
        #[expect(clippy::reversed_empty_ranges, reason = "a damaged file")]
        let reversed = 3..2;
        assert_eq!(lists.take(reversed), None);
        assert_eq!(lists.take(0..3), None);
        let mut lists = Lists::new(&values);
        assert_eq!(lists.take(0..2), Some([1, 2].as_slice()));
        assert_eq!(lists.take(0..2), Some([1, 2].as_slice()));
        assert_eq!(lists.take(4..4), Some([].as_slice()));
        assert_eq!(lists.take(0..1), None);
    }
}

//! Callbacks while a text is read: places and problems.

use prost_reflect::{FieldDescriptor, Value};

use super::error::Problem;

/// Follows the parser through a text.
///
/// Every field is entered and left, and within a repeated field or a map every element, so that the watcher knows at
/// each moment where in the configuration the parser is. An error ends the reading, and the calls with it.
pub(super) trait Watch {
    /// Something is wrong that the parser can go on behind. To hand it back ends the reading.
    fn note(&mut self, problem: Problem) -> Result<(), Problem>;

    /// The field begins whose name stands at `offset`. The same field may come again.
    fn enter(&mut self, field: &FieldDescriptor, offset: usize);

    /// The next element of the field begins.
    fn enter_element(&mut self, offset: usize);

    /// The key of the map's entry that was entered last.
    fn key(&mut self, key: &Value);

    /// The field or element that was entered last ends.
    fn leave(&mut self);
}

/// Ends the reading at the first problem, and remembers nothing.
pub(super) struct Strict;

impl Watch for Strict {
    fn note(&mut self, problem: Problem) -> Result<(), Problem> {
        Err(problem)
    }

    fn enter(&mut self, _: &FieldDescriptor, _: usize) {}

    fn enter_element(&mut self, _: usize) {}

    fn key(&mut self, _: &Value) {}

    fn leave(&mut self) {}
}

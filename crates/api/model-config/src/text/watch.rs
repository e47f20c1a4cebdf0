//! Callbacks of the parser: positions and problems.

use prost_reflect::{FieldDescriptor, Value};

use super::error::Problem;

/// Follows the parser through a text.
///
/// Every field is entered and left, and so is every element of a repeated field or a map, so that the watcher always
/// knows the parser's position in the configuration. An error ends the reading and the calls.
pub(super) trait Watch {
    /// Called for a problem after which the parser can continue. Returning it ends the reading.
    fn note(&mut self, problem: Problem) -> Result<(), Problem>;

    /// Called at the start of the field whose name is at `offset`. A field may occur repeatedly.
    fn enter(&mut self, field: &FieldDescriptor, offset: usize);

    /// Called at the start of the field's next element.
    fn enter_element(&mut self, offset: usize);

    /// Called with the key of the map entry entered last.
    fn key(&mut self, key: &Value);

    /// Called at the end of the field or element entered last.
    fn leave(&mut self);
}

/// Ends the reading at the first problem, and records nothing.
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

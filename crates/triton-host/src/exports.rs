//! All functions that this program offers to the libraries it loads, and that it does offer them.

use nereid_backend_api::{Error, Result};

use crate::boundary::Export;
use crate::library::offered;

const TABLES: &[&[Export]] = &[
    crate::allocator::EXPORTS,
    crate::attributes::EXPORTS,
    crate::backend::EXPORTS,
    crate::error::VALUES,
    crate::factory::EXPORTS,
    crate::inference::EXPORTS,
    crate::inference::callbacks::EXPORTS,
    crate::inference::properties::EXPORTS,
    crate::inference::tensors::EXPORTS,
    crate::input::EXPORTS,
    crate::instance::EXPORTS,
    crate::log::EXPORTS,
    crate::log::VALUES,
    crate::memory::EXPORTS,
    crate::message::EXPORTS,
    crate::metrics::EXPORTS,
    crate::model::EXPORTS,
    crate::names::VALUES,
    crate::outcome::EXPORTS,
    crate::outcome::VALUES,
    crate::parameter::VALUES,
    crate::request::EXPORTS,
    crate::response::EXPORTS,
    crate::server::EXPORTS,
    crate::state::EXPORTS,
    crate::statistics::EXPORTS,
    crate::trace::EXPORTS,
];

/// The names of all functions that are offered.
pub fn names() -> impl Iterator<Item = &'static str> {
    TABLES.iter().flat_map(|table| table.iter()).map(|(name, _)| *name)
}

/// Checks that libraries find these functions: a program offers its functions only where it was linked to do so.
///
/// # Errors
/// Names one that they would not find, or another of the same name that they would find first.
pub(crate) fn check() -> Result<()> {
    for (name, address) in TABLES.iter().flat_map(|table| table.iter()) {
        if offered(name).is_none_or(|found| found.cast_const().cast() != *address) {
            return Err(Error::internal(format!(
                "this program was linked without offering its function {name} to libraries"
            )));
        }
    }
    Ok(())
}

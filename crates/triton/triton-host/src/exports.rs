//! All functions that this program exports to the libraries it loads.

use nereid_plugin::HostFunction;

pub(crate) const TABLES: &[&[HostFunction]] = &[
    crate::agent::EXPORTS,
    crate::allocator::EXPORTS,
    crate::application::EXPORTS,
    crate::attributes::EXPORTS,
    crate::backend::EXPORTS,
    crate::cache::EXPORTS,
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
    crate::options::EXPORTS,
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

/// The names of all exported functions.
pub fn names() -> impl Iterator<Item = &'static str> {
    TABLES.iter().flat_map(|table| table.iter()).map(|(name, _)| *name)
}

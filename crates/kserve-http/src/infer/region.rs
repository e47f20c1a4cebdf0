//! Tensors in shared memory, located by parameters of an input or an output.

use jiter::Jiter;
use nereid_core::backend_api::Result;
use nereid_protocol::parameters::{SHARED_MEMORY_BYTE_SIZE, SHARED_MEMORY_OFFSET, SHARED_MEMORY_REGION};
use nereid_shared_memory::{Regions, Slice};

use super::json_members::{count, text};

/// A part of a shared memory region, as given by parameters.
#[derive(Default)]
pub(super) struct RegionPart {
    pub name: Option<String>,
    offset: u64,
    length: u64,
}

impl RegionPart {
    /// Reads a parameter. Returns whether it belongs to a region.
    ///
    /// # Errors
    /// `Internal` for a value of the wrong type.
    pub(super) fn read(&mut self, json: &mut Jiter<'_>, key: &str) -> Result<bool> {
        match key {
            SHARED_MEMORY_REGION => self.name = Some(text(json, key)?),
            SHARED_MEMORY_OFFSET => self.offset = count(json, key)?,
            SHARED_MEMORY_BYTE_SIZE => self.length = count(json, key)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The memory, if a region is given.
    ///
    /// # Errors
    /// As [`Regions::slice`].
    pub(super) fn find(&self, regions: &Regions) -> Result<Option<Slice>> {
        self.name.as_ref().map(|name| regions.slice(name, self.offset, self.length)).transpose()
    }
}

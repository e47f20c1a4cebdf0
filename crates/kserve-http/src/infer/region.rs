//! Tensors in shared memory, located by parameters of an input or an output.

use jiter::{Jiter, Peek};
use nereid_core::backend_api::{Error, Result};
use nereid_protocol::parameters::{SHARED_MEMORY_BYTE_SIZE, SHARED_MEMORY_OFFSET, SHARED_MEMORY_REGION};
use nereid_shared_memory::{Regions, Slice};

use super::json_members::{skip, text};
use super::json_tensor::integer;
use crate::json::syntax;

/// A part of a shared memory region, as given by parameters.
#[derive(Default)]
pub(super) struct RegionPart {
    name: Option<String>,
    offset: u64,
    length: u64,
    /// Whether a region is given, with a name or with what is none.
    is_given: bool,
    /// What is wrong with the parameters. It counts only if nothing else in the tensor excludes a region.
    wrong: Option<Error>,
}

impl RegionPart {
    /// Reads a parameter. Returns whether it belongs to a region.
    ///
    /// # Errors
    /// `Internal` for malformed JSON.
    pub(super) fn read(&mut self, json: &mut Jiter<'_>, key: &str) -> Result<bool> {
        if !matches!(key, SHARED_MEMORY_REGION | SHARED_MEMORY_OFFSET | SHARED_MEMORY_BYTE_SIZE) {
            return Ok(false);
        }
        let peek = json.peek().map_err(syntax)?;
        if key == SHARED_MEMORY_REGION {
            self.is_given = true;
            match peek {
                Peek::String => self.name = Some(text(json, key)?),
                _ => {
                    skip(json)?;
                    self.wrong = Some(Error::internal(format!("'{key}' is not a string")));
                }
            }
            return Ok(true);
        }
        match integer(json, peek)? {
            Some(count) if key == SHARED_MEMORY_OFFSET => self.offset = count,
            Some(count) => self.length = count,
            None => self.wrong = Some(Error::internal(format!("'{key}' is not a non-negative integer"))),
        }
        Ok(true)
    }

    /// Whether a region is given, rightly or wrongly.
    pub(super) fn is_given(&self) -> bool {
        self.is_given
    }

    /// The memory, if a region is given.
    ///
    /// # Errors
    /// `Internal` for a parameter of the wrong type, otherwise as [`Regions::slice`].
    pub(super) fn find(self, regions: &Regions) -> Result<Option<Slice>> {
        match (self.name, self.wrong) {
            (_, Some(wrong)) if self.is_given => Err(wrong),
            (Some(name), _) => regions.slice(&name, self.offset, self.length).map(Some),
            (None, _) => Ok(None),
        }
    }
}

//! Tensors in shared memory, located by parameters of an input or an output.

use jiter::Peek;
use nereid_core::backend_api::{Error, Result};
use nereid_protocol::parameters::{SHARED_MEMORY_BYTE_SIZE, SHARED_MEMORY_OFFSET, SHARED_MEMORY_REGION};
use nereid_shared_memory::{Regions, Slice};

use super::json_members::{skip, text};
use super::json_reader::JsonReader;
use super::json_tensor::integer;
use crate::json::syntax;

/// A parameter that belongs to a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RegionParameter {
    Name,
    Offset,
    Length,
}

impl RegionParameter {
    /// The parameter with this name.
    pub(super) fn named(name: &str) -> Option<Self> {
        Some(match name {
            SHARED_MEMORY_REGION => Self::Name,
            SHARED_MEMORY_OFFSET => Self::Offset,
            SHARED_MEMORY_BYTE_SIZE => Self::Length,
            _ => return None,
        })
    }
}

/// A part of a shared memory region, as given by parameters.
#[derive(Default)]
pub(super) struct RegionPart {
    name: Option<String>,
    offset: u64,
    length: u64,
    /// Whether a region is given, with a name or with what is none.
    is_set: bool,
    /// The first error in the parameters; reported only if nothing else in the tensor excludes a region.
    wrong: Option<Error>,
}

impl RegionPart {
    /// Reads a parameter.
    ///
    /// # Errors
    /// `Internal` for malformed JSON.
    pub(super) fn read(&mut self, json: &mut JsonReader<'_>, parameter: RegionParameter) -> Result<()> {
        let peek = json.peek().map_err(syntax)?;
        if parameter == RegionParameter::Name {
            self.is_set = true;
            if peek == Peek::String {
                self.name = Some(text(json, SHARED_MEMORY_REGION)?);
            } else {
                skip(json)?;
                self.wrong = Some(Error::internal(format!("'{SHARED_MEMORY_REGION}' is not a string")));
            }
            return Ok(());
        }
        let (place, name) = match parameter {
            RegionParameter::Offset => (&mut self.offset, SHARED_MEMORY_OFFSET),
            _ => (&mut self.length, SHARED_MEMORY_BYTE_SIZE),
        };
        match integer(json, peek)? {
            Some(count) => *place = count,
            None => self.wrong = Some(Error::internal(format!("'{name}' is not a non-negative integer"))),
        }
        Ok(())
    }

    /// Whether a region is given, rightly or wrongly.
    pub(super) fn is_set(&self) -> bool {
        self.is_set
    }

    /// The memory, if a region is given.
    ///
    /// # Errors
    /// `Internal` for a parameter of the wrong type, otherwise as [`Regions::slice`].
    pub(super) fn find(self, regions: &Regions) -> Result<Option<Slice>> {
        match (self.name, self.wrong) {
            (_, Some(wrong)) if self.is_set => Err(wrong),
            (Some(name), _) => regions.slice(&name, self.offset, self.length).map(Some),
            (None, _) => Ok(None),
        }
    }
}

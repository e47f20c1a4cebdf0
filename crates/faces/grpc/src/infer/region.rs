//! Tensors in shared memory: the parameters of an input or output that name a region.

use std::collections::BTreeMap;

use nereid_core::backend_api::{Error, Result};
use nereid_protocol::parameters::{
    SHARED_MEMORY_BYTE_SIZE as BYTE_SIZE, SHARED_MEMORY_OFFSET as OFFSET, SHARED_MEMORY_REGION as REGION,
};
use nereid_shared_memory::{Regions, Slice};

use super::parameters::{Choice, count_of_int64, wrong_type};
use crate::proto::InferParameter;

/// A part of a shared memory region.
pub(super) struct RegionPart<'p> {
    name: &'p str,
    offset: u64,
    length: u64,
}

impl<'p> RegionPart<'p> {
    /// The part that a tensor's parameters name, if they name one.
    ///
    /// # Errors
    /// `InvalidArg` for a value of another type, or if only one of region and size is set.
    pub(super) fn read(tensor: &str, given: &'p BTreeMap<String, InferParameter>) -> Result<Option<Self>> {
        if given.is_empty() {
            return Ok(None);
        }
        let of_tensor = |error: Error| error.context(format_args!("tensor '{tensor}'"));
        let choice = |name| given.get(name).and_then(|parameter| parameter.parameter_choice.as_ref());
        let count =
            |name| choice(name).map(|value| count_of_int64(name, value)).transpose().map_err(of_tensor);
        let (offset, length) = (count(OFFSET)?, count(BYTE_SIZE)?);
        match (choice(REGION), length) {
            (Some(Choice::StringParam(name)), Some(length)) => {
                Ok(Some(Self { name, offset: offset.unwrap_or(0), length }))
            }
            (Some(Choice::StringParam(_)), None) => {
                Err(of_tensor(Error::invalid_arg(format!("parameter '{REGION}' requires '{BYTE_SIZE}'"))))
            }
            (Some(_), _) => Err(of_tensor(wrong_type(REGION, "string_param"))),
            (None, None) if offset.is_none() => Ok(None),
            (None, _) => Err(of_tensor(Error::invalid_arg(format!(
                "parameters '{OFFSET}' and '{BYTE_SIZE}' require '{REGION}'"
            )))),
        }
    }

    /// The memory.
    ///
    /// # Errors
    /// As [`Regions::slice`].
    pub(super) fn find(&self, regions: &Regions) -> Result<Slice> {
        regions.slice(self.name, self.offset, self.length)
    }
}

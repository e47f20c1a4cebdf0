//! Tensors of requests and responses.

#[cfg(feature = "ndarray")]
mod array;
mod element;
mod json;

use bytes::Bytes;

pub use self::element::Element;
use crate::{DataType, Error};

/// A named tensor. Its elements are in row-major order.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    name: String,
    data_type: DataType,
    shape: Vec<usize>,
    contents: Contents,
}

/// The elements, or the place where they are.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Contents {
    /// In the protocol's binary form: little-endian numbers; byte strings with their lengths before them.
    Bytes(Bytes),
    /// In a registered region of shared memory.
    Region(Region),
}

/// A part of a registered region of shared memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    pub(crate) name: String,
    pub(crate) offset: usize,
    pub(crate) size: usize,
}

impl Region {
    /// The part of a requested region that an output takes. A server need not report the size.
    pub(crate) fn of_output(&self, reported: Option<usize>, data_type: DataType, shape: &[usize]) -> Self {
        let computed = || element_count(shape)?.checked_mul(data_type.byte_size()?);
        let size = reported.or_else(computed).unwrap_or(self.size);
        Self { name: self.name.clone(), offset: self.offset, size }
    }
}

impl Tensor {
    /// A tensor of numbers or booleans.
    ///
    /// # Errors
    /// The shape has another number of elements.
    pub fn new<T: Element>(
        name: impl Into<String>,
        shape: impl Into<Vec<usize>>,
        elements: impl AsRef<[T]>,
    ) -> Result<Self, Error> {
        let elements = elements.as_ref();
        let (name, shape) = (name.into(), shape.into());
        check_count(&name, &shape, elements.len())?;
        let contents = Contents::Bytes(T::encode(elements).into());
        Ok(Self { name, data_type: T::DATA_TYPE, shape, contents })
    }

    /// A tensor of texts or byte strings: `BYTES` in the protocol.
    ///
    /// # Errors
    /// The shape has another number of elements, or one is longer than 4 GiB.
    pub fn strings<S: AsRef<[u8]>>(
        name: impl Into<String>,
        shape: impl Into<Vec<usize>>,
        elements: impl AsRef<[S]>,
    ) -> Result<Self, Error> {
        let elements = elements.as_ref();
        let (name, shape) = (name.into(), shape.into());
        check_count(&name, &shape, elements.len())?;
        let size = elements.iter().map(|element| 4 + element.as_ref().len()).sum();
        let mut bytes = Vec::with_capacity(size);
        for element in elements.iter().map(AsRef::as_ref) {
            let length = u32::try_from(element.len());
            let length =
                length.map_err(|_| Error::invalid(format!("tensor '{name}': a string is over 4 GiB")))?;
            bytes.extend_from_slice(&length.to_le_bytes());
            bytes.extend_from_slice(element);
        }
        Ok(Self { name, data_type: DataType::Bytes, shape, contents: Contents::Bytes(bytes.into()) })
    }

    /// A tensor whose elements are in the protocol's binary form already.
    ///
    /// # Errors
    /// The bytes do not fit data type and shape.
    pub fn from_bytes(
        name: impl Into<String>,
        data_type: DataType,
        shape: impl Into<Vec<usize>>,
        bytes: impl Into<Bytes>,
    ) -> Result<Self, Error> {
        let (name, shape, bytes) = (name.into(), shape.into(), bytes.into());
        let count = match data_type.byte_size() {
            Some(size) => bytes.len().is_multiple_of(size).then_some(bytes.len() / size),
            None => split_strings(&bytes).map(|strings| strings.len()),
        };
        let damaged = || {
            let data_type = data_type.protocol_name();
            Error::invalid(format!("tensor '{name}': {} bytes are not elements of {data_type}", bytes.len()))
        };
        check_count(&name, &shape, count.ok_or_else(damaged)?)?;
        Ok(Self { name, data_type, shape, contents: Contents::Bytes(bytes) })
    }

    pub(crate) fn in_region(name: String, data_type: DataType, shape: Vec<usize>, region: Region) -> Self {
        Self { name, data_type, shape, contents: Contents::Region(region) }
    }

    /// The name of the input or output.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The type of the elements.
    pub fn data_type(&self) -> DataType {
        self.data_type
    }

    /// The sizes of the dimensions; empty for a single element.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Renames the tensor.
    #[must_use]
    pub fn renamed(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// The elements in the protocol's binary form.
    ///
    /// # Errors
    /// The elements are in shared memory.
    pub fn bytes(&self) -> Result<&Bytes, Error> {
        match &self.contents {
            Contents::Bytes(bytes) => Ok(bytes),
            Contents::Region(region) => Err(Error::invalid(format!(
                "tensor '{}' is in the shared memory '{}': read it there",
                self.name, region.name
            ))),
        }
    }

    /// The elements as numbers or booleans.
    ///
    /// # Errors
    /// The tensor has another data type, or is in shared memory.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>, Error> {
        self.check_type(T::DATA_TYPE)?;
        Ok(T::decode(self.bytes()?))
    }

    /// The elements of a tensor of type `BYTES`.
    ///
    /// # Errors
    /// The tensor has another data type, or is in shared memory.
    pub fn to_byte_strings(&self) -> Result<Vec<Bytes>, Error> {
        self.check_type(DataType::Bytes)?;
        let bytes = self.bytes()?;
        let strings = split_strings(bytes).ok_or_else(|| Error::response("damaged byte strings"))?;
        Ok(strings.into_iter().map(|range| bytes.slice(range)).collect())
    }

    /// The elements of a tensor of type `BYTES` as texts.
    ///
    /// # Errors
    /// The tensor has another data type, is in shared memory, or an element is not UTF-8.
    pub fn to_strings(&self) -> Result<Vec<String>, Error> {
        let text = |bytes: Bytes| {
            String::from_utf8(bytes.into())
                .map_err(|_| Error::invalid(format!("tensor '{}' has strings that are not UTF-8", self.name)))
        };
        self.to_byte_strings()?.into_iter().map(text).collect()
    }

    pub(crate) fn contents(&self) -> &Contents {
        &self.contents
    }

    fn check_type(&self, wanted: DataType) -> Result<(), Error> {
        if self.data_type == wanted {
            return Ok(());
        }
        let (found, wanted) = (self.data_type.protocol_name(), wanted.protocol_name());
        Err(Error::invalid(format!("tensor '{}' has the data type {found}, not {wanted}", self.name)))
    }
}

/// The number of elements of a shape; `None` past the range of `usize`.
pub(crate) fn element_count(shape: &[usize]) -> Option<usize> {
    if shape.contains(&0) {
        return Some(0);
    }
    shape.iter().try_fold(1, |count: usize, size| count.checked_mul(*size))
}

fn check_count(name: &str, shape: &[usize], found: usize) -> Result<(), Error> {
    if element_count(shape) == Some(found) {
        return Ok(());
    }
    Err(Error::invalid(format!("tensor '{name}': {found} elements do not fit the shape {shape:?}")))
}

/// The bytes that `count` byte strings take at the beginning of `bytes`, which may have more behind them.
#[cfg(target_os = "linux")]
pub(crate) fn strings_size(bytes: &[u8], count: usize) -> Option<usize> {
    let mut size = 0;
    for _ in 0..count {
        let length = bytes.get(size..)?.first_chunk::<4>()?;
        size += 4 + u32::from_le_bytes(*length) as usize;
    }
    (size <= bytes.len()).then_some(size)
}

/// The ranges of byte strings with their lengths before them; `None` if they are damaged.
fn split_strings(bytes: &[u8]) -> Option<Vec<std::ops::Range<usize>>> {
    let mut ranges = Vec::new();
    let mut start = 0;
    while start < bytes.len() {
        let (length, rest) = bytes.get(start..)?.split_first_chunk::<4>()?;
        let length = u32::from_le_bytes(*length) as usize;
        rest.get(..length)?;
        ranges.push(start + 4..start + 4 + length);
        start += 4 + length;
    }
    Some(ranges)
}

#[cfg(test)]
mod tests;

//! Plain values in a payload: little-endian numbers, and texts, bytes and lists after their length (u32).

use std::fmt;
use std::io;

use crate::memory::{Region, Segments};

/// A payload that does not make sense, and which part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "malformed message: {}", self.0)
    }
}

impl std::error::Error for Malformed {}

impl From<Malformed> for io::Error {
    fn from(malformed: Malformed) -> Self {
        Self::new(io::ErrorKind::InvalidData, malformed)
    }
}

/// Appends values to a payload.
#[derive(Debug, Default)]
pub struct Writer(pub(crate) Vec<u8>);

impl Writer {
    /// One byte.
    pub fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    /// A flag, as one byte.
    pub fn bool(&mut self, value: bool) {
        self.0.push(value.into());
    }

    /// 32 bits.
    pub fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// 64 bits.
    pub fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// 64 bits, signed.
    pub fn i64(&mut self, value: i64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// 64 bits, floating point.
    pub fn f64(&mut self, value: f64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// How many entries follow.
    pub fn count(&mut self, count: usize) {
        // What does not fit is larger than a frame may be, so it is not sent.
        self.u32(u32::try_from(count).unwrap_or(u32::MAX));
    }

    /// Bytes after their number.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.count(bytes.len());
        self.0.extend_from_slice(bytes);
    }

    /// A text.
    pub fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    /// A text that may be missing.
    pub fn optional_text(&mut self, text: Option<&str>) {
        self.bool(text.is_some());
        if let Some(text) = text {
            self.text(text);
        }
    }

    /// Pairs of texts.
    pub fn pairs<'a>(&mut self, pairs: impl ExactSizeIterator<Item = (&'a str, &'a str)>) {
        self.count(pairs.len());
        for (key, value) in pairs {
            self.text(key);
            self.text(value);
        }
    }

    /// A place for a count that is known later; see [`fill_count`](Self::fill_count).
    pub fn reserve_count(&mut self) -> usize {
        self.u32(0);
        self.0.len() - 4
    }

    /// Fills the count that was reserved at a place.
    pub fn fill_count(&mut self, place: usize, count: usize) {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        self.0[place..place + 4].copy_from_slice(&count.to_le_bytes());
    }
}

/// Takes values from a payload, in the order in which they were appended.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
    segments: Option<&'a Segments>,
}

macro_rules! numbers {
    ($($(#[$doc:meta])* $name:ident),*) => {
        $($(#[$doc])*
        ///
        /// # Errors
        /// The payload ends here.
        pub fn $name(&mut self) -> Result<$name, Malformed> {
            self.array().map($name::from_le_bytes)
        })*
    };
}

impl<'a> Reader<'a> {
    /// Reads a payload.
    pub fn new(payload: &'a [u8]) -> Self {
        Self { rest: payload, segments: None }
    }

    /// With the segments that the payload may name.
    pub(crate) fn with(self, segments: &'a Segments) -> Self {
        Self { segments: Some(segments), ..self }
    }

    /// Contents in shared memory; the error of the system if it cannot be mapped.
    pub(crate) fn region(&mut self) -> Result<io::Result<Region>, Malformed> {
        let (segment, offset, length) = (self.u32()?, self.u64()?, self.u64()?);
        self.segments.ok_or(Malformed("unknown segment"))?.region(segment, offset, length)
    }

    numbers! {
        /// One byte.
        u8,
        /// 32 bits.
        u32,
        /// 64 bits.
        u64,
        /// 64 bits, signed.
        i64,
        /// 64 bits, floating point.
        f64
    }

    /// A flag.
    ///
    /// # Errors
    /// The payload ends here, or the byte is neither 0 nor 1.
    pub fn bool(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed("a flag is neither 0 nor 1")),
        }
    }

    /// How many entries follow, each of which takes at least `size` bytes.
    ///
    /// # Errors
    /// The payload is too short for that.
    pub fn count(&mut self, size: usize) -> Result<usize, Malformed> {
        let count = self.u32()? as usize;
        match count.checked_mul(size) {
            Some(needed) if needed <= self.rest.len() => Ok(count),
            _ => Err(Malformed("a list is longer than its message")),
        }
    }

    /// The next `count` bytes.
    ///
    /// # Errors
    /// There are fewer.
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) =
            self.rest.split_at_checked(count).ok_or(Malformed("a value is longer than its message"))?;
        self.rest = rest;
        Ok(taken)
    }

    /// Bytes after their number.
    ///
    /// # Errors
    /// There are fewer.
    pub fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let count = self.u32()? as usize;
        self.take(count)
    }

    /// A text.
    ///
    /// # Errors
    /// The text is longer than the payload, or not UTF-8.
    pub fn text(&mut self) -> Result<&'a str, Malformed> {
        std::str::from_utf8(self.bytes()?).map_err(|_| Malformed("a text is not UTF-8"))
    }

    /// A text that may be missing.
    ///
    /// # Errors
    /// As for [`text`](Self::text).
    pub fn optional_text(&mut self) -> Result<Option<&'a str>, Malformed> {
        Ok(if self.bool()? { Some(self.text()?) } else { None })
    }

    /// Pairs of texts.
    ///
    /// # Errors
    /// As for [`text`](Self::text).
    pub fn pairs(&mut self) -> Result<Vec<(&'a str, &'a str)>, Malformed> {
        (0..self.count(8)?).map(|_| Ok((self.text()?, self.text()?))).collect()
    }

    /// Checks that nothing is left.
    ///
    /// # Errors
    /// Something is.
    pub fn end(&self) -> Result<(), Malformed> {
        if self.rest.is_empty() { Ok(()) } else { Err(Malformed("bytes follow the end of the message")) }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) =
            self.rest.split_first_chunk().ok_or(Malformed("the message ends within a value"))?;
        self.rest = rest;
        Ok(*taken)
    }
}

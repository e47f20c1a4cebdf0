//! Reads the values of a checkpoint one after the other.

use nereid_trees::FormatError;

/// The rest of a file.
pub(super) struct File<'a>(pub(super) &'a [u8]);

impl<'a> File<'a> {
    pub(super) fn bytes(&mut self, count: usize) -> Result<&'a [u8], FormatError> {
        let (bytes, rest) = self.0.split_at_checked(count).ok_or_else(ends)?;
        self.0 = rest;
        Ok(bytes)
    }

    pub(super) fn word<const N: usize>(&mut self) -> Result<[u8; N], FormatError> {
        let bytes = self.bytes(N)?;
        bytes.first_chunk().copied().ok_or_else(ends)
    }

    pub(super) fn byte(&mut self) -> Result<u8, FormatError> {
        self.word().map(|[byte]| byte)
    }

    pub(super) fn i32(&mut self) -> Result<i32, FormatError> {
        self.word().map(i32::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, FormatError> {
        self.word().map(u32::from_le_bytes)
    }

    pub(super) fn f32(&mut self) -> Result<f32, FormatError> {
        self.word().map(f32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, FormatError> {
        self.word().map(u64::from_le_bytes)
    }

    /// The bytes of an array whose elements have this size.
    pub(super) fn array_bytes(&mut self, element: usize) -> Result<&'a [u8], FormatError> {
        let size = usize::try_from(self.u64()?).ok().and_then(|length| length.checked_mul(element));
        self.bytes(size.ok_or_else(ends)?)
    }

    pub(super) fn array<const N: usize, T>(
        &mut self,
        decode: impl Fn([u8; N]) -> T,
    ) -> Result<Vec<T>, FormatError> {
        let bytes = self.array_bytes(N)?;
        Ok(bytes.as_chunks().0.iter().map(|&word| decode(word)).collect())
    }

    /// An array of numbers in double or single precision.
    pub(super) fn floats(&mut self, double: bool) -> Result<Vec<f64>, FormatError> {
        if double {
            self.array(f64::from_le_bytes)
        } else {
            self.array(|word| f32::from_le_bytes(word).into())
        }
    }

    pub(super) fn text(&mut self) -> Result<String, FormatError> {
        let bytes = self.array_bytes(1)?;
        String::from_utf8(bytes.to_vec()).map_err(|_| FormatError::new("a text is not UTF-8"))
    }

    /// Reads the number of optional fields, of which none is known.
    pub(super) fn no_extensions(&mut self) -> Result<(), FormatError> {
        match self.i32()? {
            0 => Ok(()),
            _ => Err(FormatError::new("it has fields that are not known")),
        }
    }
}

fn ends() -> FormatError {
    FormatError::new("the file ends too early")
}

//! Tensors in a file of safetensors: a header in JSON behind its length, then the tensors' bytes.

use std::collections::BTreeMap;

use half::{bf16, f16};
use serde::Deserialize;
use serde::de::IgnoredAny;

/// The tensors of a file.
#[derive(Debug)]
pub(crate) struct Weights<'a> {
    entries: BTreeMap<String, Entry>,
    /// The bytes behind the header.
    data: &'a [u8],
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Entry {
    Tensor {
        dtype: String,
        shape: Vec<usize>,
        data_offsets: [usize; 2],
    },
    /// `__metadata__`.
    Other(IgnoredAny),
}

impl<'a> Weights<'a> {
    /// Reads the header of a file.
    ///
    /// # Errors
    /// The file has no valid header.
    pub(crate) fn read(contents: &'a [u8]) -> Result<Self, String> {
        let cut = || "the header is cut off".to_owned();
        let (length, rest) = contents.split_first_chunk().ok_or_else(cut)?;
        let length = usize::try_from(u64::from_le_bytes(*length)).map_err(|_| cut())?;
        let (header, data) = rest.split_at_checked(length).ok_or_else(cut)?;
        let entries = serde_json::from_slice(header).map_err(|error| format!("the header: {error}"))?;
        Ok(Self { entries, data })
    }

    /// The numbers of a tensor with this shape.
    ///
    /// # Errors
    /// The file lacks the tensor, or has it in another form.
    pub(crate) fn values(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, String> {
        let Some(Entry::Tensor { dtype, shape: found, data_offsets: [begin, end] }) = self.entries.get(name)
        else {
            return Err(format!("tensor '{name}' is missing"));
        };
        if found != shape {
            return Err(format!("tensor '{name}' has the shape {found:?}, but config.json has {shape:?}"));
        }
        let bytes = self.data.get(*begin..*end).ok_or_else(|| format!("tensor '{name}' is cut off"))?;
        let values: Vec<f32> = match dtype.as_str() {
            "F32" => chunks(bytes, f32::from_le_bytes),
            "F16" => chunks(bytes, |bytes| f16::from_le_bytes(bytes).to_f32()),
            "BF16" => chunks(bytes, |bytes| bf16::from_le_bytes(bytes).to_f32()),
            other => return Err(format!("tensor '{name}' has the type {other} (available: F32, F16, BF16)")),
        };
        let count = shape.iter().try_fold(1_usize, |count, size| count.checked_mul(*size));
        if count != Some(values.len()) {
            return Err(format!("tensor '{name}' has {} values, but its shape is {shape:?}", values.len()));
        }
        Ok(values)
    }
}

fn chunks<const N: usize>(bytes: &[u8], value: impl Fn([u8; N]) -> f32) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|bytes| value(*bytes)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str, data: &[u8]) -> Vec<u8> {
        [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
    }

    #[test]
    fn damaged_files_are_refused_and_nothing_else() {
        let entry = |offsets: &str| {
            file(
                &format!(
                    r#"{{"__metadata__": {{"format": "pt"}}, "w": {{"dtype": "F32", "shape": [2], "data_offsets": {offsets}}}}}"#
                ),
                &[0, 0, 128, 63, 0, 0, 0, 64],
            )
        };
        let whole = entry("[0, 8]");
        assert_eq!(Weights::read(&whole).unwrap().values("w", &[2]), Ok(vec![1.0, 2.0]));
        for length in 0..whole.len() {
            let read = Weights::read(&whole[..length]).and_then(|weights| weights.values("w", &[2]));
            assert!(read.is_err(), "{length}");
        }
        for (offsets, message) in [
            ("[0, 4]", "has 1 values, but its shape is [2]"),
            ("[4, 0]", "is cut off"),
            ("[0, 99]", "is cut off"),
            ("[0, 18446744073709551615]", "is cut off"),
            ("[-1, 8]", "is missing"),
        ] {
            let bytes = entry(offsets);
            let error = Weights::read(&bytes).and_then(|weights| weights.values("w", &[2])).unwrap_err();
            assert!(error.contains(message), "{offsets}: {error}");
        }
        let bytes = [&u64::MAX.to_le_bytes()[..], b"{}"].concat();
        assert_eq!(Weights::read(&bytes).unwrap_err(), "the header is cut off");
        assert!(Weights::read(&file("[]", &[])).unwrap_err().starts_with("the header: "));
        assert_eq!(Weights::read(&whole).unwrap().values("v", &[2]).unwrap_err(), "tensor 'v' is missing");
    }
}

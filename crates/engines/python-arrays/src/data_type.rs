//! The element types of tensors, with their numbers in Triton, numpy and DLPack.

/// The type of a tensor's elements. The discriminant is Triton's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs, reason = "the names are Triton's")]
pub enum DataType {
    Bool = 1,
    Uint8,
    Uint16,
    Uint32,
    Uint64,
    Int8,
    Int16,
    Int32,
    Int64,
    Fp16,
    Fp32,
    Fp64,
    Bytes,
    Bf16,
}

use DataType::*;

/// A row for each type: Triton's name, numpy's number (-1 for none), DLPack's code, and the size in bytes.
const TYPES: [(DataType, &str, i32, u8, usize); 14] = [
    (Bool, "BOOL", 0, 6, 1),
    (Uint8, "UINT8", 2, 1, 1),
    (Uint16, "UINT16", 4, 1, 2),
    (Uint32, "UINT32", 6, 1, 4),
    (Uint64, "UINT64", 8, 1, 8),
    (Int8, "INT8", 1, 0, 1),
    (Int16, "INT16", 3, 0, 2),
    (Int32, "INT32", 5, 0, 4),
    (Int64, "INT64", 7, 0, 8),
    (Fp16, "FP16", 23, 2, 2),
    (Fp32, "FP32", 11, 2, 4),
    (Fp64, "FP64", 12, 2, 8),
    (Bytes, "BYTES", 17, 0, 0),
    (Bf16, "BF16", -1, 4, 2),
];

impl DataType {
    /// The type with this Triton number.
    pub fn from_number(number: u8) -> Option<Self> {
        TYPES.iter().map(|row| row.0).find(|data_type| *data_type as u8 == number)
    }

    /// The type with this numpy number.
    pub fn from_numpy(number: i32) -> Option<Self> {
        Some(match number {
            // `long long` is as long as `long` here.
            9 => Int64,
            10 => Uint64,
            // Strings of fixed length.
            18 => Bytes,
            _ => TYPES.iter().find(|row| row.2 == number && number >= 0)?.0,
        })
    }

    /// The type for this DLPack code and width.
    pub fn from_dlpack(code: u8, bits: u8, lanes: u16) -> Option<Self> {
        let matches = |row: &&(Self, &str, i32, u8, usize)| row.3 == code && row.4 * 8 == usize::from(bits);
        (lanes == 1 && bits > 0).then(|| TYPES.iter().find(matches)).flatten().map(|row| row.0)
    }

    fn row(self) -> (Self, &'static str, i32, u8, usize) {
        TYPES[self as usize - 1]
    }

    /// Triton's name.
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// numpy's number; `None` if numpy lacks the type.
    pub fn numpy(self) -> Option<i32> {
        Some(self.row().2).filter(|number| *number >= 0)
    }

    /// DLPack's code and the number of bits; `None` if DLPack lacks the type.
    pub fn dlpack(self) -> Option<(u8, u8)> {
        let (_, _, _, code, size) = self.row();
        (size > 0).then_some((code, size as u8 * 8))
    }

    /// Size of an element in bytes; 0 if it varies.
    pub fn size(self) -> usize {
        self.row().4
    }
}

//! Element types of tensors: their names in the inference protocol and in configurations, their numbers in Triton's C interface, and
//! the sizes of their elements.
//!
//! The server, backends for any server and the modules for Python share these types.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
#![forbid(unsafe_code)]

use std::fmt;

/// Compiles and runs the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// Type of a tensor's elements. The discriminant is the number in Triton's C interface, and in the schema of configurations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum DataType {
    /// One byte, 0 or 1.
    Bool = 1,
    /// Unsigned, 8 bits.
    Uint8 = 2,
    /// Unsigned, 16 bits.
    Uint16 = 3,
    /// Unsigned, 32 bits.
    Uint32 = 4,
    /// Unsigned, 64 bits.
    Uint64 = 5,
    /// Signed, 8 bits.
    Int8 = 6,
    /// Signed, 16 bits.
    Int16 = 7,
    /// Signed, 32 bits.
    Int32 = 8,
    /// Signed, 64 bits.
    Int64 = 9,
    /// IEEE 754 half precision.
    Fp16 = 10,
    /// The upper half of an IEEE 754 single.
    Bf16 = 14,
    /// IEEE 754 single precision.
    Fp32 = 11,
    /// IEEE 754 double precision.
    Fp64 = 12,
    /// Byte strings, each with its own length. `TYPE_STRING` in the configuration.
    Bytes = 13,
}

impl DataType {
    /// Every type.
    pub const ALL: [Self; 14] = [
        Self::Bool,
        Self::Uint8,
        Self::Uint16,
        Self::Uint32,
        Self::Uint64,
        Self::Int8,
        Self::Int16,
        Self::Int32,
        Self::Int64,
        Self::Fp16,
        Self::Bf16,
        Self::Fp32,
        Self::Fp64,
        Self::Bytes,
    ];

    /// The number in Triton's C interface and in the schema of configurations.
    #[inline]
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// The type with this number.
    #[inline]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|data_type| data_type.number() == number)
    }

    /// The name in requests and responses (KServe v2, "Tensor Data Types").
    #[inline]
    pub const fn protocol_name(self) -> &'static str {
        match self {
            Self::Bool => "BOOL",
            Self::Uint8 => "UINT8",
            Self::Uint16 => "UINT16",
            Self::Uint32 => "UINT32",
            Self::Uint64 => "UINT64",
            Self::Int8 => "INT8",
            Self::Int16 => "INT16",
            Self::Int32 => "INT32",
            Self::Int64 => "INT64",
            Self::Fp16 => "FP16",
            Self::Bf16 => "BF16",
            Self::Fp32 => "FP32",
            Self::Fp64 => "FP64",
            Self::Bytes => "BYTES",
        }
    }

    /// The type with that name in requests and responses. Names are case-sensitive.
    #[inline]
    pub fn from_protocol_name(name: &str) -> Option<Self> {
        Some(match name {
            "BOOL" => Self::Bool,
            "UINT8" => Self::Uint8,
            "UINT16" => Self::Uint16,
            "UINT32" => Self::Uint32,
            "UINT64" => Self::Uint64,
            "INT8" => Self::Int8,
            "INT16" => Self::Int16,
            "INT32" => Self::Int32,
            "INT64" => Self::Int64,
            "FP16" => Self::Fp16,
            "BF16" => Self::Bf16,
            "FP32" => Self::Fp32,
            "FP64" => Self::Fp64,
            "BYTES" => Self::Bytes,
            _ => return None,
        })
    }

    /// The name in the configuration.
    #[inline]
    pub const fn config_name(self) -> &'static str {
        match self {
            Self::Bool => "TYPE_BOOL",
            Self::Uint8 => "TYPE_UINT8",
            Self::Uint16 => "TYPE_UINT16",
            Self::Uint32 => "TYPE_UINT32",
            Self::Uint64 => "TYPE_UINT64",
            Self::Int8 => "TYPE_INT8",
            Self::Int16 => "TYPE_INT16",
            Self::Int32 => "TYPE_INT32",
            Self::Int64 => "TYPE_INT64",
            Self::Fp16 => "TYPE_FP16",
            Self::Bf16 => "TYPE_BF16",
            Self::Fp32 => "TYPE_FP32",
            Self::Fp64 => "TYPE_FP64",
            Self::Bytes => "TYPE_STRING",
        }
    }

    /// The type with that name in the configuration.
    pub fn from_config_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|data_type| data_type.config_name() == name)
    }

    /// Size of one element in bytes; `None` for [`DataType::Bytes`], whose elements differ in length.
    #[inline]
    pub const fn byte_size(self) -> Option<usize> {
        match self {
            Self::Bool | Self::Uint8 | Self::Int8 => Some(1),
            Self::Uint16 | Self::Int16 | Self::Fp16 | Self::Bf16 => Some(2),
            Self::Uint32 | Self::Int32 | Self::Fp32 => Some(4),
            Self::Uint64 | Self::Int64 | Self::Fp64 => Some(8),
            Self::Bytes => None,
        }
    }
}

/// Prints the protocol's name.
impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.protocol_name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Protocol name, configuration name, bytes per element.
    const TABLE: [(DataType, &str, &str, Option<usize>); 14] = [
        (DataType::Bool, "BOOL", "TYPE_BOOL", Some(1)),
        (DataType::Uint8, "UINT8", "TYPE_UINT8", Some(1)),
        (DataType::Uint16, "UINT16", "TYPE_UINT16", Some(2)),
        (DataType::Uint32, "UINT32", "TYPE_UINT32", Some(4)),
        (DataType::Uint64, "UINT64", "TYPE_UINT64", Some(8)),
        (DataType::Int8, "INT8", "TYPE_INT8", Some(1)),
        (DataType::Int16, "INT16", "TYPE_INT16", Some(2)),
        (DataType::Int32, "INT32", "TYPE_INT32", Some(4)),
        (DataType::Int64, "INT64", "TYPE_INT64", Some(8)),
        (DataType::Fp16, "FP16", "TYPE_FP16", Some(2)),
        (DataType::Bf16, "BF16", "TYPE_BF16", Some(2)),
        (DataType::Fp32, "FP32", "TYPE_FP32", Some(4)),
        (DataType::Fp64, "FP64", "TYPE_FP64", Some(8)),
        (DataType::Bytes, "BYTES", "TYPE_STRING", None),
    ];

    #[test]
    fn names_numbers_and_sizes_agree() {
        assert_eq!(DataType::ALL, TABLE.map(|row| row.0));
        for (data_type, protocol, config, size) in TABLE {
            assert_eq!(data_type.protocol_name(), protocol);
            assert_eq!(data_type.to_string(), protocol);
            assert_eq!(DataType::from_protocol_name(protocol), Some(data_type));
            assert_eq!(data_type.config_name(), config);
            assert_eq!(data_type.byte_size(), size);
            assert_eq!(DataType::from_config_name(config), Some(data_type));
            assert_eq!(DataType::from_number(data_type.number()), Some(data_type));
        }
    }

    #[test]
    fn unknown_names_and_numbers_are_none() {
        assert!([0, 15, u8::MAX].into_iter().all(|number| DataType::from_number(number).is_none()));
        for name in ["", "fp32", "TYPE_FP32", "STRING", "FP8", "INT128"] {
            assert_eq!(DataType::from_protocol_name(name), None, "{name}");
        }
        for name in ["", "FP32", "TYPE_FP31", "TYPE_BYTES", "TYPE_INVALID"] {
            assert_eq!(DataType::from_config_name(name), None, "{name}");
        }
    }
}

//! Element types of tensors, with their names in the inference protocol and in the configuration.

use std::fmt;

use crate::proto;

/// Type of a tensor's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DataType {
    /// One byte, 0 or 1.
    Bool,
    /// Unsigned, 8 bits.
    Uint8,
    /// Unsigned, 16 bits.
    Uint16,
    /// Unsigned, 32 bits.
    Uint32,
    /// Unsigned, 64 bits.
    Uint64,
    /// Signed, 8 bits.
    Int8,
    /// Signed, 16 bits.
    Int16,
    /// Signed, 32 bits.
    Int32,
    /// Signed, 64 bits.
    Int64,
    /// IEEE 754 half precision.
    Fp16,
    /// The upper half of an IEEE 754 single.
    Bf16,
    /// IEEE 754 single precision.
    Fp32,
    /// IEEE 754 double precision.
    Fp64,
    /// Byte strings, each with its own length. `TYPE_STRING` in the configuration.
    Bytes,
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

    /// The schema's value for this type.
    #[inline]
    pub const fn to_proto(self) -> proto::DataType {
        match self {
            Self::Bool => proto::DataType::TypeBool,
            Self::Uint8 => proto::DataType::TypeUint8,
            Self::Uint16 => proto::DataType::TypeUint16,
            Self::Uint32 => proto::DataType::TypeUint32,
            Self::Uint64 => proto::DataType::TypeUint64,
            Self::Int8 => proto::DataType::TypeInt8,
            Self::Int16 => proto::DataType::TypeInt16,
            Self::Int32 => proto::DataType::TypeInt32,
            Self::Int64 => proto::DataType::TypeInt64,
            Self::Fp16 => proto::DataType::TypeFp16,
            Self::Bf16 => proto::DataType::TypeBf16,
            Self::Fp32 => proto::DataType::TypeFp32,
            Self::Fp64 => proto::DataType::TypeFp64,
            Self::Bytes => proto::DataType::TypeString,
        }
    }

    /// The type with that value in the schema; `None` for `TYPE_INVALID`, which means "not set".
    #[inline]
    pub const fn from_proto(value: proto::DataType) -> Option<Self> {
        Some(match value {
            proto::DataType::TypeInvalid => return None,
            proto::DataType::TypeBool => Self::Bool,
            proto::DataType::TypeUint8 => Self::Uint8,
            proto::DataType::TypeUint16 => Self::Uint16,
            proto::DataType::TypeUint32 => Self::Uint32,
            proto::DataType::TypeUint64 => Self::Uint64,
            proto::DataType::TypeInt8 => Self::Int8,
            proto::DataType::TypeInt16 => Self::Int16,
            proto::DataType::TypeInt32 => Self::Int32,
            proto::DataType::TypeInt64 => Self::Int64,
            proto::DataType::TypeFp16 => Self::Fp16,
            proto::DataType::TypeBf16 => Self::Bf16,
            proto::DataType::TypeFp32 => Self::Fp32,
            proto::DataType::TypeFp64 => Self::Fp64,
            proto::DataType::TypeString => Self::Bytes,
        })
    }
}

impl From<DataType> for proto::DataType {
    #[inline]
    fn from(data_type: DataType) -> Self {
        data_type.to_proto()
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
    fn names_sizes_and_schema_values_agree() {
        assert_eq!(DataType::ALL, TABLE.map(|row| row.0));
        for (data_type, protocol, config, size) in TABLE {
            assert_eq!(data_type.protocol_name(), protocol);
            assert_eq!(data_type.to_string(), protocol);
            assert_eq!(DataType::from_protocol_name(protocol), Some(data_type));
            assert_eq!(data_type.config_name(), config);
            assert_eq!(data_type.byte_size(), size);
            let value = proto::DataType::from(data_type);
            assert_eq!(value.as_str_name(), config);
            assert_eq!(DataType::from_proto(value), Some(data_type));
        }
    }

    #[test]
    fn type_invalid_is_none() {
        assert_eq!(DataType::from_proto(proto::DataType::TypeInvalid), None);
        for name in ["", "fp32", "TYPE_FP32", "STRING", "FP8", "INT128"] {
            assert_eq!(DataType::from_protocol_name(name), None, "{name}");
        }
    }
}

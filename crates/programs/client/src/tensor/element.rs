//! Rust types of elements.

use half::{bf16, f16};

use crate::DataType;

/// A Rust type that is an element of a tensor: `bool`, integers and floating-point numbers of 8 to 64 bits, `half::f16`
/// and `half::bf16`. Texts have [`Tensor::strings`](crate::Tensor::strings).
pub trait Element: Copy + sealed::Sealed {
    /// The data type in the protocol.
    const DATA_TYPE: DataType;

    #[doc(hidden)]
    fn encode(elements: &[Self]) -> Vec<u8>;

    /// Decodes all whole elements in little-endian bytes.
    #[doc(hidden)]
    fn decode(bytes: &[u8]) -> Vec<Self>;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! numbers {
    ($($rust:ty => $data_type:ident),* $(,)?) => {$(
        impl sealed::Sealed for $rust {}

        impl Element for $rust {
            const DATA_TYPE: DataType = DataType::$data_type;

            fn encode(elements: &[Self]) -> Vec<u8> {
                if cfg!(target_endian = "little") {
                    return bytemuck::cast_slice(elements).to_vec();
                }
                elements.iter().flat_map(|element| element.to_le_bytes()).collect()
            }

            fn decode(bytes: &[u8]) -> Vec<Self> {
                let (elements, _) = bytes.as_chunks();
                elements.iter().map(|bytes| Self::from_le_bytes(*bytes)).collect()
            }
        }
    )*};
}

numbers! {
    u8 => Uint8, u16 => Uint16, u32 => Uint32, u64 => Uint64,
    i8 => Int8, i16 => Int16, i32 => Int32, i64 => Int64,
    f16 => Fp16, bf16 => Bf16, f32 => Fp32, f64 => Fp64,
}

impl sealed::Sealed for bool {}

impl Element for bool {
    const DATA_TYPE: DataType = DataType::Bool;

    fn encode(elements: &[Self]) -> Vec<u8> {
        elements.iter().map(|element| u8::from(*element)).collect()
    }

    fn decode(bytes: &[u8]) -> Vec<Self> {
        bytes.iter().map(|byte| *byte != 0).collect()
    }
}

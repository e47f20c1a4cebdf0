//! Element types in C, and conversion between elements and bytes.

use std::borrow::Cow;

use half::{bf16, f16};
use tensor_types::DataType;
use triton_sys::TRITONSERVER_DataType;

use crate::error::{Error, Result};

/// The type's number in C.
pub(crate) fn to_c(data_type: DataType) -> TRITONSERVER_DataType {
    TRITONSERVER_DataType(data_type.number().into())
}

/// The type with a number in C.
///
/// # Errors
/// The type does not exist.
pub(crate) fn from_c(number: TRITONSERVER_DataType) -> Result<DataType> {
    u8::try_from(number.0).ok().and_then(DataType::from_number).ok_or_else(|| {
        Error::unsupported(format!("unknown datatype {}: the server is newer than this library", number.0))
    })
}

mod sealed {
    pub trait Sealed {}
}

/// A Rust type whose values are elements of a tensor.
pub trait Element: Copy + sealed::Sealed {
    /// The tensor's type.
    const DATA_TYPE: DataType;

    /// Elements from their bytes; an incomplete last element is ignored.
    #[doc(hidden)]
    fn read(bytes: &[u8]) -> Vec<Self>;

    /// The bytes of elements.
    #[doc(hidden)]
    fn bytes(values: &[Self]) -> Cow<'_, [u8]>;

    /// Writes the element into a slice of its size.
    #[doc(hidden)]
    fn write(self, bytes: &mut [u8]);
}

macro_rules! elements {
    ($($rust:ty => $data_type:ident),* $(,)?) => {$(
        impl sealed::Sealed for $rust {}
        impl Element for $rust {
            const DATA_TYPE: DataType = DataType::$data_type;

            fn read(bytes: &[u8]) -> Vec<Self> {
                let whole = bytes.len() - bytes.len() % size_of::<Self>();
                let mut values: Vec<Self> = vec![bytemuck::Zeroable::zeroed(); whole / size_of::<Self>()];
                bytemuck::cast_slice_mut(&mut values).copy_from_slice(&bytes[..whole]);
                values
            }

            fn bytes(values: &[Self]) -> Cow<'_, [u8]> {
                Cow::Borrowed(bytemuck::cast_slice(values))
            }

            fn write(self, bytes: &mut [u8]) {
                bytes.copy_from_slice(bytemuck::bytes_of(&self));
            }
        }
    )*};
}

elements! {
    u8 => Uint8, u16 => Uint16, u32 => Uint32, u64 => Uint64,
    i8 => Int8, i16 => Int16, i32 => Int32, i64 => Int64,
    f16 => Fp16, f32 => Fp32, f64 => Fp64, bf16 => Bf16,
}

impl sealed::Sealed for bool {}
impl Element for bool {
    const DATA_TYPE: DataType = DataType::Bool;

    // A client may send any byte; nonzero means true.
    fn read(bytes: &[u8]) -> Vec<Self> {
        bytes.iter().map(|byte| *byte != 0).collect()
    }

    fn bytes(values: &[Self]) -> Cow<'_, [u8]> {
        Cow::Owned(values.iter().map(|value| u8::from(*value)).collect())
    }

    fn write(self, bytes: &mut [u8]) {
        bytes.copy_from_slice(&[u8::from(self)]);
    }
}

/// The elements of a `Bytes` tensor, each prefixed with its length as a little-endian 32-bit integer.
///
/// # Errors
/// `InvalidArgument` if a length exceeds the remaining bytes.
pub fn split_bytes(mut data: &[u8]) -> Result<Vec<&[u8]>> {
    let mut elements = Vec::new();
    while !data.is_empty() {
        let cut = data.split_first_chunk::<4>().and_then(|(length, rest)| {
            rest.split_at_checked(usize::try_from(u32::from_le_bytes(*length)).ok()?)
        });
        let Some((element, rest)) = cut else {
            return Err(Error::invalid_argument(format!(
                "element {} of a BYTES tensor exceeds the tensor",
                elements.len()
            )));
        };
        elements.push(element);
        data = rest;
    }
    Ok(elements)
}

/// The reverse of [`split_bytes`].
///
/// # Errors
/// `InvalidArgument` for an element of 4 GiB or more.
pub fn join_bytes(elements: &[impl AsRef<[u8]>]) -> Result<Vec<u8>> {
    let mut data = Vec::with_capacity(elements.iter().map(|element| element.as_ref().len() + 4).sum());
    for element in elements {
        let element = element.as_ref();
        let length = u32::try_from(element.len())
            .map_err(|_| Error::invalid_argument("an element of a BYTES tensor is at most 4 GiB long"))?;
        data.extend_from_slice(&length.to_le_bytes());
        data.extend_from_slice(element);
    }
    Ok(data)
}

/// The number of elements of a shape without negative dimensions.
pub(crate) fn element_count(shape: &[i64]) -> Result<usize> {
    shape
        .iter()
        .try_fold(1_usize, |count, dimension| count.checked_mul(usize::try_from(*dimension).ok()?))
        .ok_or_else(|| Error::invalid_argument(format!("{shape:?} is not a valid shape")))
}

#[cfg(test)]
mod tests {
    use triton_sys::*;

    use super::*;
    use crate::error::ErrorCode;

    #[test]
    fn numbers_are_those_of_the_c_interface() {
        for (data_type, number) in [
            (DataType::Bool, TRITONSERVER_TYPE_BOOL),
            (DataType::Uint8, TRITONSERVER_TYPE_UINT8),
            (DataType::Uint16, TRITONSERVER_TYPE_UINT16),
            (DataType::Uint32, TRITONSERVER_TYPE_UINT32),
            (DataType::Uint64, TRITONSERVER_TYPE_UINT64),
            (DataType::Int8, TRITONSERVER_TYPE_INT8),
            (DataType::Int16, TRITONSERVER_TYPE_INT16),
            (DataType::Int32, TRITONSERVER_TYPE_INT32),
            (DataType::Int64, TRITONSERVER_TYPE_INT64),
            (DataType::Fp16, TRITONSERVER_TYPE_FP16),
            (DataType::Fp32, TRITONSERVER_TYPE_FP32),
            (DataType::Fp64, TRITONSERVER_TYPE_FP64),
            (DataType::Bytes, TRITONSERVER_TYPE_BYTES),
            (DataType::Bf16, TRITONSERVER_TYPE_BF16),
        ] {
            assert_eq!((to_c(data_type), from_c(number)), (number, Ok(data_type)));
        }
    }

    #[test]
    fn unknown_types_are_refused() {
        for number in [TRITONSERVER_TYPE_INVALID, TRITONSERVER_DataType(99), TRITONSERVER_DataType(257)] {
            assert_eq!(from_c(number).unwrap_err().code(), ErrorCode::Unsupported);
        }
    }

    #[test]
    fn elements_round_trip_at_any_alignment() {
        let bytes = f32::bytes(&[1.5, -2.0]).into_owned();
        let mut shifted = vec![0];
        shifted.extend_from_slice(&bytes);
        assert_eq!(f32::read(&shifted[1..]), [1.5, -2.0]);
        assert_eq!(f32::read(&bytes[..7]), [1.5]);
        assert_eq!(bool::read(&[0, 1, 2]), [false, true, true]);
        assert_eq!(&*bool::bytes(&[true, false]), [1, 0]);
    }

    #[test]
    fn byte_strings_round_trip() {
        let joined = join_bytes(&["one", "", "three"]).unwrap();
        assert_eq!(split_bytes(&joined).unwrap(), [&b"one"[..], b"", b"three"]);
        assert_eq!(split_bytes(&[]).unwrap(), [&[0_u8; 0]; 0]);
    }

    #[test]
    fn length_beyond_the_end_is_refused() {
        for data in [&[1, 0, 0][..], &[5, 0, 0, 0, b'a'], &[0xff; 8]] {
            assert_eq!(split_bytes(data).unwrap_err().code(), ErrorCode::InvalidArgument, "{data:?}");
        }
    }

    #[test]
    fn element_count_detects_overflow() {
        assert_eq!(element_count(&[]), Ok(1));
        assert_eq!(element_count(&[2, 0, 3]), Ok(0));
        assert!(element_count(&[2, -1]).is_err());
        assert!(element_count(&[i64::MAX, i64::MAX]).is_err());
    }
}

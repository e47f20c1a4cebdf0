//! Tensors from Rust values, and Rust values from tensors. Contents are copied as a whole, or not at all.

use std::borrow::Cow;

use bytemuck::checked::try_cast_slice;
use bytemuck::{CheckedBitPattern, NoUninit, Zeroable as _, cast_slice, cast_slice_mut};
use bytes::Bytes;
use half::{bf16, f16};
use nereid_core::backend_api::{BytesElements, DataType, Error, Result, Shape, Tensor, push_bytes_element};

/// A Rust type of tensors' elements: integers, floating-point numbers of 16, 32 and 64 bits, and `bool`.
pub trait Element: sealed::Element {
    /// The type's name in configurations.
    const DATA_TYPE: DataType;
}

mod sealed {
    use super::{CheckedBitPattern, NoUninit};

    pub trait Element: CheckedBitPattern + NoUninit + Send + Sync {
        /// Copies bytes that may not be aligned for the type. Drops an incomplete element at the end.
        fn copy(bytes: &[u8]) -> Vec<Self>;
    }
}

macro_rules! elements {
    ($($type:ty = $name:ident),* $(,)?) => {
        $(
            impl Element for $type {
                const DATA_TYPE: DataType = DataType::$name;
            }

            impl sealed::Element for $type {
                fn copy(bytes: &[u8]) -> Vec<Self> {
                    let mut values = vec![Self::zeroed(); bytes.len() / size_of::<Self>()];
                    let target: &mut [u8] = cast_slice_mut(&mut values);
                    target.copy_from_slice(&bytes[..target.len()]);
                    values
                }
            }
        )*
    };
}

elements! {
    u8 = Uint8, u16 = Uint16, u32 = Uint32, u64 = Uint64, i8 = Int8, i16 = Int16, i32 = Int32, i64 = Int64, f16 = Fp16,
    bf16 = Bf16, f32 = Fp32, f64 = Fp64,
}

impl Element for bool {
    const DATA_TYPE: DataType = DataType::Bool;
}

impl sealed::Element for bool {
    fn copy(bytes: &[u8]) -> Vec<Self> {
        bytes.iter().map(|&byte| byte != 0).collect()
    }
}

/// A tensor of these elements, row by row. The shape includes the batch dimension, if the model has one; the server checks
/// that it fits. Copies the elements; [`tensor_of`] does not.
pub fn tensor<T: Element>(name: impl Into<String>, shape: impl Into<Shape>, values: &[T]) -> Tensor {
    Tensor::new(name, T::DATA_TYPE, shape, cast_slice(values).to_vec())
}

/// A tensor that takes over these elements, without copying them.
pub fn tensor_of<T: Element>(name: impl Into<String>, shape: impl Into<Shape>, values: Vec<T>) -> Tensor {
    Tensor::new(name, T::DATA_TYPE, shape, Bytes::from_owner(Elements(values)))
}

/// Elements as the owner of a tensor's contents.
struct Elements<T>(Vec<T>);

impl<T: Element> AsRef<[u8]> for Elements<T> {
    fn as_ref(&self) -> &[u8] {
        cast_slice(&self.0)
    }
}

/// A tensor of type BYTES, whose elements are texts or any other bytes.
///
/// # Errors
/// An element has 4 GiB or more.
pub fn strings<T: AsRef<[u8]>>(
    name: impl Into<String>,
    shape: impl Into<Shape>,
    values: impl IntoIterator<Item = T>,
) -> Result<Tensor> {
    let mut contents = Vec::new();
    for value in values {
        push_bytes_element(&mut contents, value.as_ref())?;
    }
    Ok(Tensor::new(name, DataType::Bytes, shape, contents))
}

/// The elements of a tensor, row by row: without a copy, unless the contents are in several pieces, in the memory of a GPU or not
/// aligned for the type.
///
/// # Errors
/// The tensor has elements of another type, or is in the memory of a GPU whose driver failed.
pub fn view<T: Element>(tensor: &Tensor) -> Result<Cow<'_, [T]>> {
    check_type(tensor, T::DATA_TYPE)?;
    Ok(match tensor.contiguous()? {
        Cow::Borrowed(bytes) => match try_cast_slice(bytes) {
            Ok(values) => Cow::Borrowed(values),
            // Not aligned, or a byte of BOOL other than 0 and 1, which counts as true.
            Err(_) => Cow::Owned(T::copy(bytes)),
        },
        Cow::Owned(bytes) => Cow::Owned(T::copy(&bytes)),
    })
}

/// The elements of a tensor, row by row, as a vector.
///
/// # Errors
/// See [`view`].
pub fn elements<T: Element>(tensor: &Tensor) -> Result<Vec<T>> {
    view(tensor).map(Cow::into_owned)
}

/// The elements of a tensor of type BYTES, row by row.
///
/// # Errors
/// The tensor has elements of another type or is in the memory of a GPU whose driver failed, or an element is incomplete.
pub fn byte_strings(tensor: &Tensor) -> Result<Vec<Vec<u8>>> {
    check_type(tensor, DataType::Bytes)?;
    let contents = tensor.contiguous()?;
    BytesElements::new(&contents).map(|element| element.map(<[u8]>::to_vec)).collect()
}

/// The elements of a tensor of type BYTES as texts, row by row.
///
/// # Errors
/// See [`byte_strings`]; or an element is not UTF-8.
pub fn texts(tensor: &Tensor) -> Result<Vec<String>> {
    let text = |bytes| {
        String::from_utf8(bytes).map_err(|error| {
            Error::invalid_arg(format!("tensor '{}' has an element that is {error}", tensor.name))
        })
    };
    byte_strings(tensor)?.into_iter().map(text).collect()
}

fn check_type(tensor: &Tensor, expected: DataType) -> Result<()> {
    if tensor.data_type == expected {
        return Ok(());
    }
    Err(Error::invalid_arg(format!(
        "tensor '{}' is of type {}, not {expected}",
        tensor.name, tensor.data_type
    )))
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use nereid_core::backend_api::Buffer;
    use proptest::prelude::*;

    use super::*;

    /// Tensors of these values: copied, taken over, in two pieces, and at an odd address.
    fn forms<T: Element>(values: &[T]) -> [Tensor; 4] {
        let shape = [i64::try_from(values.len()).unwrap()];
        let copied = tensor("x", shape, values);
        let bytes = copied.contiguous().unwrap().into_owned();
        let mut pieces = copied.clone();
        let (one, other) = bytes.split_at(bytes.len() / 3);
        pieces.buffers = [one, other].into_iter().map(|part| Buffer::host(part.to_vec())).collect();
        let odd = Bytes::from([&[0][..], &bytes].concat()).slice(1..);
        [copied, tensor_of("x", shape, values.to_vec()), pieces, Tensor::new("x", T::DATA_TYPE, shape, odd)]
    }

    fn round_trip<T: Element + PartialEq + Debug>(values: &[T]) {
        for tensor in forms(values) {
            tensor.check_contents().unwrap();
            assert_eq!(elements::<T>(&tensor).unwrap(), values);
            assert_eq!(*view::<T>(&tensor).unwrap(), *values);
        }
    }

    proptest! {
        #[test]
        fn elements_of_every_type_round_trip(bits in any::<Vec<u64>>(), truths in any::<Vec<bool>>()) {
            round_trip(&truths);
            round_trip(&bits);
            round_trip(&bits.iter().map(|bits| *bits as u8).collect::<Vec<_>>());
            round_trip(&bits.iter().map(|bits| *bits as u16).collect::<Vec<_>>());
            round_trip(&bits.iter().map(|bits| *bits as u32).collect::<Vec<_>>());
            round_trip(&bits.iter().map(|bits| *bits as i8).collect::<Vec<_>>());
            round_trip(&bits.iter().map(|bits| *bits as i16).collect::<Vec<_>>());
            round_trip(&bits.iter().map(|bits| *bits as i32).collect::<Vec<_>>());
            round_trip(&bits.iter().map(|bits| *bits as i64).collect::<Vec<_>>());
            // Numbers, because NaN differs from itself.
            round_trip(&bits.iter().map(|bits| *bits as f32).collect::<Vec<_>>());
            round_trip(&bits.iter().map(|bits| *bits as f64).collect::<Vec<_>>());
            round_trip(&bits.iter().map(|bits| f16::from_f32(*bits as f32)).collect::<Vec<_>>());
            round_trip(&bits.iter().map(|bits| bf16::from_f32(*bits as f32)).collect::<Vec<_>>());
        }

        #[test]
        fn strings_round_trip(values in any::<Vec<String>>(), bytes in any::<Vec<Vec<u8>>>()) {
            let texts_of = strings("x", [values.len() as i64], &values).unwrap();
            prop_assert!(texts_of.check_contents().is_ok());
            prop_assert_eq!(texts(&texts_of).unwrap(), values);
            let tensor = strings("x", [bytes.len() as i64], &bytes).unwrap();
            prop_assert_eq!(&byte_strings(&tensor).unwrap(), &bytes);
            let are_texts = bytes.iter().all(|bytes| str::from_utf8(bytes).is_ok());
            prop_assert_eq!(texts(&tensor).is_ok(), are_texts);
        }
    }

    #[test]
    fn aligned_contents_are_not_copied() {
        let values = vec![1.5_f32, -2.0, 0.25];
        let address = values.as_ptr();
        let tensor = tensor_of("x", [3], values);
        match view::<f32>(&tensor).unwrap() {
            Cow::Borrowed(view) => assert_eq!(view.as_ptr(), address),
            Cow::Owned(_) => panic!("copied"),
        }
        let [copied, _, pieces, odd] = forms(&[1_u32, 2, 3]);
        let is_copy = |tensor: &Tensor| matches!(view::<u32>(tensor).unwrap(), Cow::Owned(_));
        assert_eq!((is_copy(&copied), is_copy(&pieces), is_copy(&odd)), (false, true, true));
    }

    #[test]
    fn other_types_are_refused_by_name() {
        let halves = tensor("x", [1], &[f16::ONE]);
        for error in [
            view::<bf16>(&halves).unwrap_err(),
            elements::<u16>(&halves).unwrap_err(),
            byte_strings(&halves).unwrap_err(),
            texts(&halves).unwrap_err(),
        ] {
            assert!(error.message().starts_with("tensor 'x' is of type FP16, not "), "{error}");
        }
        assert!(elements::<u8>(&strings("s", [1], ["a"]).unwrap()).is_err());
    }

    #[test]
    fn any_byte_but_zero_is_true() {
        let bytes = vec![0, 1, 2, 255];
        let tensor = Tensor::new("x", DataType::Bool, [4], bytes);
        assert_eq!(elements::<bool>(&tensor).unwrap(), [false, true, true, true]);
    }
}

//! Typed contents of tensors, which some servers send in place of raw ones.

use super::proto::InferTensorContents;
use crate::{DataType, Error, Tensor};

/// # Errors
/// The contents are not of the data type, or the shape has another number of elements.
pub(super) fn tensor(
    name: &str,
    data_type: DataType,
    shape: Vec<usize>,
    contents: InferTensorContents,
) -> Result<Tensor, Error> {
    match data_type {
        DataType::Bool => Tensor::new(name, shape, contents.bool_contents),
        DataType::Int8 => Tensor::new(name, shape, narrow::<i8, _>(&contents.int_contents)?),
        DataType::Int16 => Tensor::new(name, shape, narrow::<i16, _>(&contents.int_contents)?),
        DataType::Int32 => Tensor::new(name, shape, contents.int_contents),
        DataType::Int64 => Tensor::new(name, shape, contents.int64_contents),
        DataType::Uint8 => Tensor::new(name, shape, narrow::<u8, _>(&contents.uint_contents)?),
        DataType::Uint16 => Tensor::new(name, shape, narrow::<u16, _>(&contents.uint_contents)?),
        DataType::Uint32 => Tensor::new(name, shape, contents.uint_contents),
        DataType::Uint64 => Tensor::new(name, shape, contents.uint64_contents),
        DataType::Fp32 => Tensor::new(name, shape, contents.fp32_contents),
        DataType::Fp64 => Tensor::new(name, shape, contents.fp64_contents),
        DataType::Bytes => Tensor::strings(name, shape, contents.bytes_contents),
        DataType::Fp16 | DataType::Bf16 => {
            Err(Error::response(format!("{} has no typed contents", data_type.protocol_name())))
        }
    }
}

fn narrow<T, W: Copy>(elements: &[W]) -> Result<Vec<T>, Error>
where
    T: TryFrom<W>,
{
    let elements = elements.iter().map(|element| T::try_from(*element).ok()).collect::<Option<_>>();
    elements.ok_or_else(|| Error::response("an element is outside the range of its data type"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typed_contents_are_tensors() {
        let contents = InferTensorContents {
            bool_contents: vec![true, false],
            int_contents: vec![-1, 127],
            int64_contents: vec![-1, i64::MAX],
            uint_contents: vec![0, 255],
            uint64_contents: vec![0, u64::MAX],
            fp32_contents: vec![0.5, -1.0],
            fp64_contents: vec![0.1, -1.0],
            bytes_contents: vec![b"a".to_vec().into(), Default::default()],
        };
        for data_type in DataType::ALL {
            let read = tensor("y", data_type, vec![2], contents.clone());
            if matches!(data_type, DataType::Fp16 | DataType::Bf16) {
                assert!(read.unwrap_err().to_string().contains("no typed contents"));
                continue;
            }
            assert_eq!(read.unwrap().data_type(), data_type);
            assert!(tensor("y", data_type, vec![3], contents.clone()).is_err());
        }
        let wide =
            InferTensorContents { int_contents: vec![128], uint_contents: vec![65536], ..Default::default() };
        for (data_type, is_right) in
            [(DataType::Int8, false), (DataType::Int16, true), (DataType::Uint16, false)]
        {
            assert_eq!(tensor("y", data_type, vec![1], wide.clone()).is_ok(), is_right, "{data_type:?}");
        }
    }
}

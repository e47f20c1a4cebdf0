//! Typed contents: elements in typed fields, joined into a tensor's bytes.

use bytes::Bytes;
use nereid_core::backend_api::{DataType, Error, Result, push_bytes_element};

use crate::proto::InferTensorContents;
use crate::proto::model_infer_request::InferInputTensor;

/// Joins the typed contents of inputs, which are left empty. `None` for inputs without contents or of an unknown type.
pub(crate) fn joined_contents(inputs: &mut [InferInputTensor]) -> Vec<Option<Result<Bytes>>> {
    let join = |input: &mut InferInputTensor| {
        let data_type = DataType::from_protocol_name(&input.datatype)?;
        let elements = std::mem::take(input.contents.as_mut()?);
        Some(joined(elements, data_type, &input.name))
    };
    inputs.iter_mut().map(join).collect()
}

/// The contents. Whole numbers that a narrower type does not hold wrap around, as they do in the reference.
///
/// # Errors
/// `InvalidArg` for elements in another type's field.
pub(super) fn joined(elements: InferTensorContents, data_type: DataType, input: &str) -> Result<Bytes> {
    let populated = populated_fields(&elements);
    let expected = field(data_type);
    if let Some(other) = populated.iter().find(|(name, there)| *there && Some(*name) != expected) {
        return Err(Error::invalid_arg(match expected {
            Some(expected) => format!(
                "input '{input}' is {data_type}, whose elements belong in {expected}, not in {}",
                other.0
            ),
            None => {
                format!("input '{input}' is {data_type}, whose elements must be in raw_input_contents")
            }
        }));
    }
    let e = &elements;
    Ok(match data_type {
        DataType::Bool => e.bool_contents.iter().map(|&element| u8::from(element)).collect(),
        DataType::Int8 => e.int_contents.iter().map(|&element| element as u8).collect(),
        DataType::Int16 => each(&e.int_contents, |element| (element as i16).to_le_bytes()),
        DataType::Int32 => each(&e.int_contents, i32::to_le_bytes),
        DataType::Int64 => each(&e.int64_contents, i64::to_le_bytes),
        DataType::Uint8 => e.uint_contents.iter().map(|&element| element as u8).collect(),
        DataType::Uint16 => each(&e.uint_contents, |element| (element as u16).to_le_bytes()),
        DataType::Uint32 => each(&e.uint_contents, u32::to_le_bytes),
        DataType::Uint64 => each(&e.uint64_contents, u64::to_le_bytes),
        DataType::Fp32 => each(&e.fp32_contents, f32::to_le_bytes),
        DataType::Fp64 => each(&e.fp64_contents, f64::to_le_bytes),
        DataType::Bytes => {
            let size = e.bytes_contents.iter().map(|element| 4 + element.len()).sum();
            let mut contents = Vec::with_capacity(size);
            for element in &e.bytes_contents {
                push_bytes_element(&mut contents, element)?;
            }
            contents.into()
        }
        DataType::Fp16 | DataType::Bf16 => Bytes::new(),
    })
}

/// The fields, and whether any is set.
fn populated_fields(elements: &InferTensorContents) -> [(&'static str, bool); 8] {
    [
        ("bool_contents", !elements.bool_contents.is_empty()),
        ("int_contents", !elements.int_contents.is_empty()),
        ("int64_contents", !elements.int64_contents.is_empty()),
        ("uint_contents", !elements.uint_contents.is_empty()),
        ("uint64_contents", !elements.uint64_contents.is_empty()),
        ("fp32_contents", !elements.fp32_contents.is_empty()),
        ("fp64_contents", !elements.fp64_contents.is_empty()),
        ("bytes_contents", !elements.bytes_contents.is_empty()),
    ]
}

/// The field for a type's elements, if it has one.
fn field(data_type: DataType) -> Option<&'static str> {
    Some(match data_type {
        DataType::Bool => "bool_contents",
        DataType::Int8 | DataType::Int16 | DataType::Int32 => "int_contents",
        DataType::Int64 => "int64_contents",
        DataType::Uint8 | DataType::Uint16 | DataType::Uint32 => "uint_contents",
        DataType::Uint64 => "uint64_contents",
        DataType::Fp32 => "fp32_contents",
        DataType::Fp64 => "fp64_contents",
        DataType::Bytes => "bytes_contents",
        DataType::Fp16 | DataType::Bf16 => return None,
    })
}

fn each<T: Copy, const N: usize>(elements: &[T], bytes: impl Fn(T) -> [u8; N]) -> Bytes {
    let mut contents = Vec::with_capacity(elements.len() * N);
    for &element in elements {
        contents.extend_from_slice(&bytes(element));
    }
    contents.into()
}

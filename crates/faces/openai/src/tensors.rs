//! Tensors of requests, by the inputs that a model declares, and values from the tensors of its responses.

use nereid_core::backend_api::{BytesElements, DataType, Shape, Tensor, push_bytes_element};
use nereid_core::{InputSignature, Signature};
use serde_json::value::RawValue;

use crate::error::{Failure, Outcome};

/// The tensor of an input with one element.
pub(crate) fn scalar(signature: &Signature, input: &InputSignature, contents: Vec<u8>) -> Tensor {
    Tensor::new(input.name.clone(), input.data_type, shape(signature, input, 1), contents)
}

/// The tensor of an input with one text.
pub(crate) fn text(signature: &Signature, input: &InputSignature, text: &str) -> Outcome<Tensor> {
    let mut contents = Vec::new();
    push_bytes_element(&mut contents, text.as_bytes())?;
    Ok(scalar(signature, input, contents))
}

/// The tensor of an input with these texts.
pub(crate) fn texts<T: AsRef<str>>(
    signature: &Signature,
    input: &InputSignature,
    all: &[T],
) -> Outcome<Tensor> {
    let mut contents = Vec::new();
    for text in all {
        push_bytes_element(&mut contents, text.as_ref().as_bytes())?;
    }
    Ok(Tensor::new(input.name.clone(), input.data_type, shape(signature, input, all.len()), contents))
}

/// The tensor of an INT32 input with these numbers.
pub(crate) fn numbers(signature: &Signature, input: &InputSignature, all: &[i32]) -> Tensor {
    let contents: Vec<u8> = all.iter().flat_map(|number| number.to_le_bytes()).collect();
    Tensor::new(input.name.clone(), DataType::Int32, shape(signature, input, all.len()), contents)
}

/// The tensor of an input with a batch of texts, if the model has batches, or else with all of them.
pub(crate) fn batch<T: AsRef<str>>(
    signature: &Signature,
    input: &InputSignature,
    all: &[T],
) -> Outcome<Tensor> {
    let mut tensor = texts(signature, input, all)?;
    if signature.max_batch_size > 0 {
        let count = i64::try_from(all.len()).unwrap_or(i64::MAX);
        tensor.shape = std::iter::once(count).chain(std::iter::repeat_n(1, input.dims.len())).collect();
    }
    Ok(tensor)
}

/// The number of texts that a request may have, if this input takes texts in batches or as a list. `None` if it takes others.
pub(crate) fn batch_size(signature: &Signature, input: &InputSignature) -> Option<usize> {
    let is_text = input.data_type == DataType::Bytes && input.dims.iter().all(|dim| matches!(dim, 1 | -1));
    is_text.then_some(match signature.max_batch_size {
        0 if *input.dims == [-1] => usize::MAX,
        0 => 1,
        size => size,
    })
}

/// The shape for `count` elements: a batch of one, whose last variable dimension holds them.
pub(crate) fn shape(signature: &Signature, input: &InputSignature, count: usize) -> Shape {
    let mut shape = input.dims.clone();
    let mut count = i64::try_from(count).unwrap_or(i64::MAX);
    for dim in shape.iter_mut().rev().filter(|dim| **dim < 0) {
        *dim = std::mem::replace(&mut count, 1);
    }
    if signature.max_batch_size > 0 {
        shape.push_front(1);
    }
    shape
}

/// The tensor of an input with the value of a field: a number, a boolean, a text, or a list of these.
pub(crate) fn from_json(
    signature: &Signature,
    input: &InputSignature,
    field: &str,
    raw: &RawValue,
) -> Outcome<Tensor> {
    let mut contents = Vec::new();
    let is_list = raw.get().starts_with('[');
    let values: Vec<serde_json::Value> = match is_list {
        true => serde_json::from_str(raw.get()),
        false => serde_json::from_str(raw.get()).map(|value| vec![value]),
    }
    .map_err(|error| Failure::invalid_field(field.to_owned(), format!("'{field}': {error}")))?;
    for value in &values {
        push_value(&mut contents, input.data_type, value).ok_or_else(|| {
            let message = format!("'{field}': {value} is not a {}", input.data_type);
            Failure::invalid_field(field.to_owned(), message)
        })?;
    }
    let shape = shape(signature, input, values.len());
    Ok(Tensor::new(input.name.clone(), input.data_type, shape, contents))
}

/// Appends a value. `None` if it does not fit the type.
fn push_value(contents: &mut Vec<u8>, data_type: DataType, value: &serde_json::Value) -> Option<()> {
    macro_rules! push {
        ($number:expr) => {
            contents.extend_from_slice(&$number.to_le_bytes())
        };
    }
    match data_type {
        DataType::Bool => contents.push(u8::from(value.as_bool()?)),
        DataType::Bytes => push_bytes_element(contents, value.as_str()?.as_bytes()).ok()?,
        DataType::Int8 => push!(i8::try_from(value.as_i64()?).ok()?),
        DataType::Int16 => push!(i16::try_from(value.as_i64()?).ok()?),
        DataType::Int32 => push!(i32::try_from(value.as_i64()?).ok()?),
        DataType::Int64 => push!(value.as_i64()?),
        DataType::Uint8 => push!(u8::try_from(value.as_u64()?).ok()?),
        DataType::Uint16 => push!(u16::try_from(value.as_u64()?).ok()?),
        DataType::Uint32 => push!(u32::try_from(value.as_u64()?).ok()?),
        DataType::Uint64 => push!(value.as_u64()?),
        DataType::Fp32 => push!(value.as_f64()? as f32),
        DataType::Fp64 => push!(value.as_f64()?),
        _ => return None,
    }
    Some(())
}

/// The first text of an output; empty if the output has no element.
pub(crate) fn first_text(tensor: &Tensor) -> Outcome<Vec<u8>> {
    let contents = tensor.contiguous()?;
    let Some(first) = BytesElements::new(&contents).next() else { return Ok(Vec::new()) };
    Ok(first?.to_vec())
}

/// The first number of an output with whole numbers. `None` without one.
pub(crate) fn first_count(tensor: &Tensor) -> Option<u64> {
    let contents = tensor.contiguous().ok()?;
    match tensor.data_type {
        DataType::Int32 => u64::try_from(i32::from_le_bytes(*contents.first_chunk()?)).ok(),
        DataType::Int64 => u64::try_from(i64::from_le_bytes(*contents.first_chunk()?)).ok(),
        DataType::Uint32 => Some(u32::from_le_bytes(*contents.first_chunk()?).into()),
        DataType::Uint64 => Some(u64::from_le_bytes(*contents.first_chunk()?)),
        _ => None,
    }
}

/// All numbers of an output with floating-point numbers. `None` for another type.
pub(crate) fn floats(tensor: &Tensor) -> Outcome<Option<Vec<f32>>> {
    let contents = tensor.contiguous()?;
    Ok(match tensor.data_type {
        DataType::Fp32 => {
            Some(contents.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
        }
        DataType::Fp16 => {
            let halves = contents.as_chunks().0.iter();
            Some(halves.map(|bytes| half::f16::from_le_bytes(*bytes).to_f32()).collect())
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn signature(max_batch_size: usize, data_type: DataType, dims: &[i64]) -> Signature {
        let input =
            InputSignature { name: "X".into(), data_type, dims: dims.into(), reshape: None, optional: true };
        Signature { max_batch_size, inputs: vec![input], outputs: Vec::new() }
    }

    #[test]
    fn shapes_follow_the_declared_dimensions() {
        for (batch, dims, count, expected) in [
            (0, &[1][..], 1, &[1][..]),
            (8, &[1], 1, &[1, 1]),
            (0, &[-1], 3, &[3]),
            (8, &[-1], 3, &[1, 3]),
            (0, &[-1, -1], 2, &[1, 2]),
            (8, &[1, -1], 1, &[1, 1, 1]),
        ] {
            let signature = signature(batch, DataType::Bytes, dims);
            let tensor = texts(&signature, &signature.inputs[0], &vec!["ab"; count]).unwrap();
            assert_eq!(tensor.shape, Shape::from(expected), "{dims:?}");
            tensor.check_contents().unwrap();
        }
    }

    #[test]
    fn values_are_converted_to_the_type_of_the_input() {
        for (data_type, value, bytes) in [
            (DataType::Int32, json!(7), Some(7_i32.to_le_bytes().to_vec())),
            (DataType::Int32, json!([7]), Some(7_i32.to_le_bytes().to_vec())),
            (DataType::Int32, json!(1_u64 << 31), None),
            (DataType::Int32, json!(7.5), None),
            (DataType::Uint64, json!(u64::MAX), Some(u64::MAX.to_le_bytes().to_vec())),
            (DataType::Uint64, json!(-1), None),
            (DataType::Fp32, json!(1), Some(1_f32.to_le_bytes().to_vec())),
            (DataType::Fp64, json!(0.1), Some(0.1_f64.to_le_bytes().to_vec())),
            (DataType::Bool, json!(true), Some(vec![1])),
            (DataType::Bool, json!(1), None),
            (DataType::Bytes, json!("ab"), Some(b"\x02\0\0\0ab".to_vec())),
            (DataType::Bytes, json!({"a": 1}), None),
            (DataType::Bf16, json!(1), None),
        ] {
            let signature = signature(0, data_type, &[1]);
            let raw = serde_json::value::to_raw_value(&value).unwrap();
            let tensor = from_json(&signature, &signature.inputs[0], "x", &raw);
            assert_eq!(tensor.ok().map(|tensor| tensor.contiguous().unwrap().to_vec()), bytes, "{value}");
        }
    }

    #[test]
    fn outputs_are_read_by_their_types() {
        let count = |data_type, bytes: Vec<u8>| first_count(&Tensor::new("n", data_type, [1], bytes));
        assert_eq!(count(DataType::Int32, 5_i32.to_le_bytes().to_vec()), Some(5));
        assert_eq!(count(DataType::Int32, (-5_i32).to_le_bytes().to_vec()), None);
        assert_eq!(count(DataType::Uint32, 5_u32.to_le_bytes().to_vec()), Some(5));
        assert_eq!(count(DataType::Int64, 5_i64.to_le_bytes().to_vec()), Some(5));
        assert_eq!(count(DataType::Uint64, Vec::new()), None);
        assert_eq!(count(DataType::Fp32, vec![0; 4]), None);
        let halves = Tensor::new("h", DataType::Fp16, [2], vec![0x00, 0x3c, 0x00, 0xc0]);
        assert_eq!(floats(&halves).unwrap(), Some(vec![1.0, -2.0]));
        assert_eq!(floats(&Tensor::new("h", DataType::Int8, [1], vec![0])).unwrap(), None);
    }
}

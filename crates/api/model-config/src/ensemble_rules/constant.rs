//! Constants in JSON as the contents of tensors.

use serde_json::Value;
use tensor_types::DataType;

/// Largest constant, in elements.
const MAX_ELEMENTS: usize = 1 << 20;

/// A constant tensor, without a batch dimension.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Constant {
    /// The dimensions.
    pub shape: Vec<i64>,
    /// The contents, row-major and little-endian; elements of BYTES are length-prefixed.
    pub contents: Vec<u8>,
}

impl Constant {
    /// Reads a constant of a tensor with this type and these dimensions (-1 for any size). A list has its own dimensions;
    /// a single value fills all.
    ///
    /// # Errors
    /// The reason why the constant does not fit.
    pub fn new(json: &Value, data_type: DataType, dims: &[i64]) -> Result<Self, String> {
        let mut contents = Vec::new();
        let Value::Array(_) = json else {
            let sizes: Option<Vec<usize>> = dims.iter().map(|&dim| usize::try_from(dim).ok()).collect();
            let sizes = sizes.ok_or_else(|| {
                format!("is a single value, but the tensor has variable dimensions {dims:?}; write a list")
            })?;
            let count = sizes.iter().try_fold(1_usize, |count, &size| count.checked_mul(size));
            let count = count.filter(|&count| count <= MAX_ELEMENTS).ok_or_else(|| {
                format!("fills the dimensions {dims:?}, but a constant has at most {MAX_ELEMENTS} elements")
            })?;
            for _ in 0..count {
                push(json, data_type, &mut contents)?;
            }
            if count == 0 {
                push(json, data_type, &mut Vec::new())?;
            }
            return Ok(Self { shape: dims.to_vec(), contents });
        };
        let mut shape = Vec::new();
        measure(json, &mut shape);
        // An empty list does not show the dimensions behind it.
        if shape.last() == Some(&0) {
            shape.extend(dims.iter().skip(shape.len()).map(|&dim| dim.max(0)));
        }
        let fits =
            shape.len() == dims.len() && shape.iter().zip(dims).all(|(size, &dim)| dim < 0 || dim == *size);
        if !fits {
            return Err(format!("has the shape {shape:?}, but the tensor has the dimensions {dims:?}"));
        }
        fill(json, &shape, data_type, &mut contents)?;
        Ok(Self { shape, contents })
    }
}

/// The dimensions of nested lists, read off the first element of each.
fn measure(json: &Value, shape: &mut Vec<i64>) {
    if let Value::Array(list) = json {
        shape.push(i64::try_from(list.len()).unwrap_or(i64::MAX));
        if let Some(first) = list.first() {
            measure(first, shape);
        }
    }
}

fn fill(json: &Value, shape: &[i64], data_type: DataType, contents: &mut Vec<u8>) -> Result<(), String> {
    match (json, shape) {
        (Value::Array(list), [size, rest @ ..]) => {
            if i64::try_from(list.len()) != Ok(*size) {
                return Err(format!("has lists of different lengths, {size} and {}", list.len()));
            }
            list.iter().try_for_each(|element| fill(element, rest, data_type, contents))
        }
        (Value::Array(_), []) => Err("is nested more deeply in some places than in others".to_owned()),
        (_, []) => push(json, data_type, contents),
        (_, [..]) => Err("is nested more deeply in some places than in others".to_owned()),
    }
}

fn push(json: &Value, data_type: DataType, contents: &mut Vec<u8>) -> Result<(), String> {
    let name = data_type.protocol_name();
    let wrong = || format!("has the element {json}, which is not {name}");
    macro_rules! integer {
        ($type:ty) => {{
            // i128 holds every integer of JSON that serde_json reads exactly.
            let number = json.as_i64().map(i128::from).or_else(|| json.as_u64().map(i128::from));
            let number = number.and_then(|number| <$type>::try_from(number).ok()).ok_or_else(wrong)?;
            contents.extend_from_slice(&number.to_le_bytes());
        }};
    }
    match data_type {
        DataType::Bool => contents.push(u8::from(json.as_bool().ok_or_else(wrong)?)),
        DataType::Uint8 => integer!(u8),
        DataType::Uint16 => integer!(u16),
        DataType::Uint32 => integer!(u32),
        DataType::Uint64 => integer!(u64),
        DataType::Int8 => integer!(i8),
        DataType::Int16 => integer!(i16),
        DataType::Int32 => integer!(i32),
        DataType::Int64 => integer!(i64),
        DataType::Fp32 => {
            let number = json.as_f64().ok_or_else(wrong)? as f32;
            contents.extend_from_slice(
                &Some(number).filter(|it| it.is_finite()).ok_or_else(wrong)?.to_le_bytes(),
            );
        }
        DataType::Fp64 => contents.extend_from_slice(&json.as_f64().ok_or_else(wrong)?.to_le_bytes()),
        DataType::Bytes => {
            let text = json.as_str().ok_or_else(wrong)?;
            let length = u32::try_from(text.len()).map_err(|_| wrong())?;
            contents.extend_from_slice(&length.to_le_bytes());
            contents.extend_from_slice(text.as_bytes());
        }
        DataType::Fp16 | DataType::Bf16 if json.as_f64() == Some(0.0) => contents.extend_from_slice(&[0, 0]),
        DataType::Fp16 | DataType::Bf16 => {
            return Err(format!(
                "has the element {json}, but the only constant of {name} is 0; use a tensor instead"
            ));
        }
    }
    Ok(())
}

//! Tensors in the JSON form of the protocol: flat or nested lists.

use half::{bf16, f16};
use serde_json::{Number, Value};

use super::{Element, Tensor, element_count};
use crate::{DataType, Error};

impl Tensor {
    /// The elements as a flat list.
    ///
    /// # Errors
    /// JSON has no form of an element, such as NaN and byte strings that are not UTF-8, or the elements are in shared memory.
    pub(crate) fn to_json(&self) -> Result<Value, Error> {
        let impossible = || {
            let name = self.name();
            Error::invalid(format!(
                "tensor '{name}' has values that JSON cannot represent, and the server takes no binary tensors"
            ))
        };
        let float = |value: f64| Number::from_f64(value).map(Value::from).ok_or_else(impossible);
        Ok(Value::Array(match self.data_type() {
            DataType::Bool => self.to_vec::<bool>()?.into_iter().map(Value::from).collect(),
            DataType::Uint8 => self.to_vec::<u8>()?.into_iter().map(Value::from).collect(),
            DataType::Uint16 => self.to_vec::<u16>()?.into_iter().map(Value::from).collect(),
            DataType::Uint32 => self.to_vec::<u32>()?.into_iter().map(Value::from).collect(),
            DataType::Uint64 => self.to_vec::<u64>()?.into_iter().map(Value::from).collect(),
            DataType::Int8 => self.to_vec::<i8>()?.into_iter().map(Value::from).collect(),
            DataType::Int16 => self.to_vec::<i16>()?.into_iter().map(Value::from).collect(),
            DataType::Int32 => self.to_vec::<i32>()?.into_iter().map(Value::from).collect(),
            DataType::Int64 => self.to_vec::<i64>()?.into_iter().map(Value::from).collect(),
            DataType::Fp16 => {
                self.to_vec::<f16>()?.into_iter().map(|it| float(it.into())).collect::<Result<_, _>>()?
            }
            DataType::Bf16 => {
                self.to_vec::<bf16>()?.into_iter().map(|it| float(it.into())).collect::<Result<_, _>>()?
            }
            DataType::Fp32 => {
                self.to_vec::<f32>()?.into_iter().map(|it| float(it.into())).collect::<Result<_, _>>()?
            }
            DataType::Fp64 => self.to_vec::<f64>()?.into_iter().map(float).collect::<Result<_, _>>()?,
            DataType::Bytes => {
                let text =
                    |bytes: bytes::Bytes| str::from_utf8(&bytes).map(Value::from).map_err(|_| impossible());
                self.to_byte_strings()?.into_iter().map(text).collect::<Result<_, _>>()?
            }
        }))
    }

    /// A tensor whose elements are in flat or nested lists.
    ///
    /// # Errors
    /// An element is not of the data type, or the shape has another number of elements.
    pub(crate) fn from_json(
        name: &str,
        data_type: DataType,
        shape: Vec<usize>,
        data: &Value,
    ) -> Result<Self, Error> {
        let mut elements = Vec::new();
        flatten(data, &mut elements);
        let count = element_count(&shape);
        if count != Some(elements.len()) {
            let found = elements.len();
            return Err(Error::response(format!(
                "output '{name}': {found} elements do not fit the shape {shape:?}"
            )));
        }
        let list = List { name, data_type, shape, elements };
        match data_type {
            DataType::Bool => list.tensor(Value::as_bool),
            DataType::Uint8 => list.tensor(integer::<u8>),
            DataType::Uint16 => list.tensor(integer::<u16>),
            DataType::Uint32 => list.tensor(integer::<u32>),
            DataType::Uint64 => list.tensor(integer::<u64>),
            DataType::Int8 => list.tensor(integer::<i8>),
            DataType::Int16 => list.tensor(integer::<i16>),
            DataType::Int32 => list.tensor(integer::<i32>),
            DataType::Int64 => list.tensor(integer::<i64>),
            DataType::Fp16 => list.tensor(|value| float(value).map(f16::from_f64)),
            DataType::Bf16 => list.tensor(|value| float(value).map(bf16::from_f64)),
            DataType::Fp32 => list.tensor(|value| float(value).map(|value| value as f32)),
            DataType::Fp64 => list.tensor(float),
            DataType::Bytes => {
                let texts = list.elements.iter().map(|value| value.as_str()).collect::<Option<Vec<_>>>();
                Self::strings(name, list.shape.clone(), texts.ok_or_else(|| list.damaged())?)
            }
        }
    }
}

/// The elements of a tensor, not yet of its type.
struct List<'a> {
    name: &'a str,
    data_type: DataType,
    shape: Vec<usize>,
    elements: Vec<&'a Value>,
}

impl List<'_> {
    fn tensor<T: Element>(self, convert: impl Fn(&Value) -> Option<T>) -> Result<Tensor, Error> {
        let elements = self.elements.iter().map(|value| convert(value)).collect::<Option<Vec<_>>>();
        Tensor::new(self.name, self.shape.clone(), elements.ok_or_else(|| self.damaged())?)
    }

    fn damaged(&self) -> Error {
        Error::response(format!(
            "output '{}' has elements that are not {}",
            self.name,
            self.data_type.protocol_name()
        ))
    }
}

fn flatten<'a>(value: &'a Value, elements: &mut Vec<&'a Value>) {
    match value {
        Value::Array(members) => members.iter().for_each(|member| flatten(member, elements)),
        element => elements.push(element),
    }
}

fn integer<T: TryFrom<i128>>(value: &Value) -> Option<T> {
    let wide = value.as_i64().map(i128::from).or_else(|| value.as_u64().map(i128::from))?;
    T::try_from(wide).ok()
}

/// Numbers that JSON lacks are null or texts on some servers.
fn float(value: &Value) -> Option<f64> {
    match value {
        Value::Null => Some(f64::NAN),
        Value::String(text) => text.parse().ok(),
        other => other.as_f64(),
    }
}

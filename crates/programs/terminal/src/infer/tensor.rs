//! Tensors of requests and answers, in both forms of the protocol.

use half::{bf16, f16};
use serde_json::{Number, Value};
use tensor_types::DataType;

/// A tensor.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tensor {
    pub(super) name: String,
    pub(super) data_type: DataType,
    pub(super) shape: Vec<u64>,
    /// All elements, in row-major order.
    pub(super) elements: Vec<Element>,
}

/// A shape, and elements in row-major order.
pub(super) type Values = (Vec<u64>, Vec<Element>);

/// An element of any data type.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Element {
    Bool(bool),
    Integer(i128),
    Float(f64),
    Bytes(Vec<u8>),
}

impl Element {
    /// The element of a JSON document.
    pub(super) fn of_json(value: &Value) -> Result<Self, String> {
        Ok(match value {
            Value::Bool(value) => Self::Bool(*value),
            Value::String(text) => Self::Bytes(text.clone().into_bytes()),
            Value::Number(number) => {
                let integer = number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from));
                integer.map_or_else(|| Self::Float(number.as_f64().unwrap_or(f64::NAN)), Self::Integer)
            }
            other => return Err(format!("{other} is not an element of a tensor")),
        })
    }

    /// The element as a model with this data type takes it.
    ///
    /// # Errors
    /// The type has no such value.
    fn converted(&self, data_type: DataType) -> Result<Self, String> {
        let wrong = || format!("{} is not of {}", self.text(), data_type.protocol_name());
        Ok(match (data_type, self) {
            (DataType::Bytes, Self::Bytes(bytes)) => Self::Bytes(bytes.clone()),
            (DataType::Bytes, other) => Self::Bytes(other.text().into_bytes()),
            (_, Self::Bytes(_)) => return Err(wrong()),
            (DataType::Bool, Self::Bool(value)) => Self::Bool(*value),
            (DataType::Bool, Self::Integer(value @ 0..=1)) => Self::Bool(*value == 1),
            (DataType::Bool, _) => return Err(wrong()),
            (DataType::Fp16 | DataType::Bf16 | DataType::Fp32 | DataType::Fp64, Self::Float(value)) => {
                Self::Float(*value)
            }
            (DataType::Fp16 | DataType::Bf16 | DataType::Fp32 | DataType::Fp64, Self::Integer(value)) => {
                Self::Float(*value as f64)
            }
            (DataType::Fp16 | DataType::Bf16 | DataType::Fp32 | DataType::Fp64, Self::Bool(_)) => {
                return Err(wrong());
            }
            (_, Self::Bool(value)) => Self::Integer((*value).into()),
            (_, Self::Float(value)) if value.fract() == 0.0 && value.abs() < 2f64.powi(64) => {
                return Self::Integer(*value as i128).converted(data_type);
            }
            (_, Self::Float(_)) => return Err(wrong()),
            (_, Self::Integer(value)) => {
                let (low, high) = range(data_type);
                if !(low..=high).contains(value) {
                    return Err(wrong());
                }
                Self::Integer(*value)
            }
        })
    }

    /// The element as a text.
    pub(super) fn text(&self) -> String {
        match self {
            Self::Bool(value) => value.to_string(),
            Self::Integer(value) => value.to_string(),
            Self::Float(value) => value.to_string(),
            Self::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        }
    }

    /// The element as a number.
    pub(super) fn number(&self) -> Option<f64> {
        match self {
            Self::Integer(value) => Some(*value as f64),
            Self::Float(value) => Some(*value),
            Self::Bool(_) | Self::Bytes(_) => None,
        }
    }

    /// The element in JSON; `None` if JSON has no such value.
    fn json(&self) -> Option<Value> {
        Some(match self {
            Self::Bool(value) => (*value).into(),
            Self::Integer(value) => Number::from_i128(*value)?.into(),
            Self::Float(value) => Number::from_f64(*value)?.into(),
            Self::Bytes(bytes) => str::from_utf8(bytes).ok()?.into(),
        })
    }
}

/// The least and the greatest value of a type of integers.
fn range(data_type: DataType) -> (i128, i128) {
    match data_type {
        DataType::Uint8 => (0, u8::MAX.into()),
        DataType::Uint16 => (0, u16::MAX.into()),
        DataType::Uint32 => (0, u32::MAX.into()),
        DataType::Uint64 => (0, u64::MAX.into()),
        DataType::Int8 => (i8::MIN.into(), i8::MAX.into()),
        DataType::Int16 => (i16::MIN.into(), i16::MAX.into()),
        DataType::Int32 => (i32::MIN.into(), i32::MAX.into()),
        _ => (i64::MIN.into(), i64::MAX.into()),
    }
}

impl Tensor {
    /// The tensor, with elements of its data type.
    ///
    /// # Errors
    /// An element is not of that type.
    pub(super) fn new(
        name: &str,
        data_type: DataType,
        shape: Vec<u64>,
        elements: &[Element],
    ) -> Result<Self, String> {
        let elements =
            elements.iter().map(|element| element.converted(data_type)).collect::<Result<_, String>>();
        let elements = elements.map_err(|reason| format!("input '{name}': {reason}"))?;
        Ok(Self { name: name.to_owned(), data_type, shape, elements })
    }

    /// The content in the protocol's binary form.
    ///
    /// # Errors
    /// A byte string is longer than 4 GiB.
    pub(super) fn to_bytes(&self) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::new();
        for element in &self.elements {
            match element {
                Element::Bytes(content) => {
                    let length = u32::try_from(content.len());
                    let length = length.map_err(|_| format!("input '{}': longer than 4 GiB", self.name))?;
                    bytes.extend_from_slice(&length.to_le_bytes());
                    bytes.extend_from_slice(content);
                }
                Element::Bool(value) => bytes.push((*value).into()),
                Element::Integer(value) => {
                    let size = self.data_type.byte_size().unwrap_or_default();
                    bytes.extend_from_slice(value.to_le_bytes().get(..size).unwrap_or_default());
                }
                Element::Float(value) => match self.data_type {
                    DataType::Fp16 => bytes.extend_from_slice(&f16::from_f64(*value).to_le_bytes()),
                    DataType::Bf16 => bytes.extend_from_slice(&bf16::from_f64(*value).to_le_bytes()),
                    DataType::Fp32 => bytes.extend_from_slice(&(*value as f32).to_le_bytes()),
                    _ => bytes.extend_from_slice(&value.to_le_bytes()),
                },
            }
        }
        Ok(bytes)
    }

    /// The content in JSON.
    ///
    /// # Errors
    /// JSON has no form of an element.
    pub(super) fn to_json(&self) -> Result<Vec<Value>, String> {
        let values = self.elements.iter().map(Element::json).collect::<Option<_>>();
        values.ok_or_else(|| {
            format!(
                "input '{}': has values that JSON cannot hold, and the server takes no binary tensors",
                self.name
            )
        })
    }

    /// The elements in JSON, as well as JSON has them: byte strings that are not UTF-8 as lists of bytes, and no finite number as a
    /// text.
    pub(super) fn shown_json(&self) -> Vec<Value> {
        let shown = |element: &Element| match element {
            Element::Bytes(bytes) => element.json().unwrap_or_else(|| bytes.clone().into()),
            other => other.json().unwrap_or_else(|| other.text().into()),
        };
        self.elements.iter().map(shown).collect()
    }
}

/// The elements in the protocol's binary form; `None` if it is not that.
pub(super) fn elements(data_type: DataType, bytes: &[u8]) -> Option<Vec<Element>> {
    let Some(size) = data_type.byte_size() else {
        let mut elements = Vec::new();
        let mut rest = bytes;
        while !rest.is_empty() {
            let (length, content) = rest.split_first_chunk::<4>()?;
            let (content, behind) = content.split_at_checked(u32::from_le_bytes(*length) as usize)?;
            elements.push(Element::Bytes(content.to_vec()));
            rest = behind;
        }
        return Some(elements);
    };
    bytes
        .len()
        .is_multiple_of(size)
        .then(|| bytes.chunks_exact(size).map(|bytes| element(data_type, bytes)).collect())
}

/// Decodes one element. `bytes` has the size of the data type.
fn element(data_type: DataType, bytes: &[u8]) -> Element {
    let mut wide = [0; 8];
    for (target, byte) in wide.iter_mut().zip(bytes) {
        *target = *byte;
    }
    let bits = u64::from_le_bytes(wide);
    match data_type {
        DataType::Bool => Element::Bool(bits != 0),
        DataType::Int8 => Element::Integer((bits as i8).into()),
        DataType::Int16 => Element::Integer((bits as i16).into()),
        DataType::Int32 => Element::Integer((bits as i32).into()),
        DataType::Int64 => Element::Integer((bits as i64).into()),
        DataType::Fp16 => Element::Float(f16::from_bits(bits as u16).into()),
        DataType::Bf16 => Element::Float(bf16::from_bits(bits as u16).into()),
        DataType::Fp32 => Element::Float(f32::from_bits(bits as u32).into()),
        DataType::Fp64 => Element::Float(f64::from_bits(bits)),
        DataType::Uint8 | DataType::Uint16 | DataType::Uint32 | DataType::Uint64 | DataType::Bytes => {
            Element::Integer(bits.into())
        }
    }
}

/// A value of nested lists: its shape, and its elements in order.
///
/// # Errors
/// The lists are ragged, or a member is not a boolean, number or text.
pub(super) fn nested(value: &Value) -> Result<Values, String> {
    let Value::Array(members) = value else { return Ok((Vec::new(), vec![Element::of_json(value)?])) };
    let mut shape = None;
    let mut elements = Vec::new();
    for member in members {
        let (inner, more) = nested(member)?;
        if *shape.get_or_insert_with(|| inner.clone()) != inner {
            return Err("lists within a list have different lengths".into());
        }
        elements.extend(more);
    }
    let shape = [vec![members.len() as u64], shape.unwrap_or_default()].concat();
    Ok((shape, elements))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn tensor(data_type: DataType, elements: &[Element]) -> Result<Tensor, String> {
        Tensor::new("x", data_type, vec![elements.len() as u64], elements)
    }

    #[test]
    fn values_are_those_of_the_data_type() {
        use DataType::*;
        let text = |text: &str| Element::Bytes(text.into());
        for (data_type, element, expected) in [
            (Uint8, Element::Integer(255), Ok(Element::Integer(255))),
            (Uint8, Element::Integer(256), Err("256 is not of UINT8")),
            (Uint8, Element::Float(2.0), Ok(Element::Integer(2))),
            (Int64, Element::Float(2.5), Err("2.5 is not of INT64")),
            (Int64, Element::Integer(1 << 63), Err("is not of INT64")),
            (Uint64, Element::Integer(u64::MAX.into()), Ok(Element::Integer(u64::MAX.into()))),
            (Int32, Element::Float(f64::INFINITY), Err("inf is not of INT32")),
            (Int8, Element::Bool(true), Ok(Element::Integer(1))),
            (Bool, Element::Integer(1), Ok(Element::Bool(true))),
            (Bool, Element::Integer(2), Err("2 is not of BOOL")),
            (Bool, Element::Float(1.0), Err("1 is not of BOOL")),
            (Fp32, Element::Integer(3), Ok(Element::Float(3.0))),
            (Fp32, Element::Bool(true), Err("true is not of FP32")),
            (Fp32, text("3"), Err("3 is not of FP32")),
            (Bytes, text("ü"), Ok(text("ü"))),
            (Bytes, Element::Integer(7), Ok(text("7"))),
        ] {
            let found =
                tensor(data_type, std::slice::from_ref(&element)).map(|tensor| tensor.elements[0].clone());
            match expected {
                Ok(expected) => assert_eq!(found, Ok(expected)),
                Err(reason) => assert!(found.clone().unwrap_err().contains(reason), "{element:?}: {found:?}"),
            }
        }
    }

    proptest! {
        /// Decoding reverses encoding, to the precision of the data type.
        #[test]
        fn bytes_are_read_as_written(index in 0..DataType::ALL.len(), values in proptest::collection::vec(0_i128..=100, 0..6), float in any::<f64>(), text in any::<Vec<u8>>()) {
            let data_type = DataType::ALL[index];
            let mut elements: Vec<_> = values.into_iter().map(|value| match data_type {
                DataType::Bool => Element::Bool(value % 2 == 0),
                _ => Element::Integer(value),
            }).collect();
            match data_type {
                DataType::Fp64 => elements.push(Element::Float(float)),
                DataType::Bytes => elements.push(Element::Bytes(text)),
                _ => {}
            }
            let tensor = tensor(data_type, &elements).unwrap();
            let bytes = tensor.to_bytes().unwrap();
            let read = super::elements(data_type, &bytes).unwrap();
            if !float.is_nan() {
                prop_assert_eq!(&read, &tensor.elements);
            }
            if data_type.byte_size() != Some(1) && !bytes.is_empty() {
                prop_assert!(super::elements(data_type, &bytes[..bytes.len() - 1]).is_none());
            }
        }
    }

    #[test]
    fn nested_lists_have_a_shape() {
        for (value, shape, count) in [
            (json!(3), &[][..], 1),
            (json!([]), &[0], 0),
            (json!([1, 2.5]), &[2], 2),
            (json!([[1, 2], [3, 4], [5, 6]]), &[3, 2], 6),
            (json!([["a"]]), &[1, 1], 1),
        ] {
            let (found, elements) = nested(&value).unwrap();
            assert_eq!((found.as_slice(), elements.len()), (shape, count), "{value}");
        }
        for (value, expected) in [
            (json!([[1], [2, 3]]), "different lengths"),
            (json!([1, [2]]), "different lengths"),
            (json!([null]), "null is not an element"),
            (json!({"a": 1}), "is not an element"),
        ] {
            assert!(nested(&value).unwrap_err().contains(expected), "{value}");
        }
    }

    #[test]
    fn json_holds_what_it_can() {
        let floats = tensor(DataType::Fp64, &[Element::Float(f64::NAN), Element::Float(0.5)]).unwrap();
        assert!(floats.to_json().unwrap_err().contains("JSON cannot hold"));
        assert_eq!(floats.shown_json(), [json!("NaN"), json!(0.5)]);
        let bytes =
            tensor(DataType::Bytes, &[Element::Bytes(vec![255, 1]), Element::Bytes(b"a".to_vec())]).unwrap();
        assert!(bytes.to_json().is_err());
        assert_eq!(bytes.shown_json(), [json!([255, 1]), json!("a")]);
    }
}

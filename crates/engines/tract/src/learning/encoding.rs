//! LabelEncoder and OneHotEncoder.

use std::borrow::Cow;
use std::collections::HashMap;

use tract_hir::internal::*;
use tract_onnx::pb::NodeProto;

use super::{Function, attribute_tensor, check_type};

/// The first version of the operator in which NaN is a key like others.
const NAN_AS_KEY: i64 = 4;

/// An element that is looked up.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    Number(i64),
    /// The bits in double precision.
    Float(u64),
    Text(String),
}

impl Key {
    fn float(value: f64) -> Self {
        // There is one zero and one NaN.
        Self::Float(if value.is_nan() { f64::NAN } else { value + 0.0 }.to_bits())
    }
}

/// The elements of a tensor as keys.
fn keys(tensor: &Tensor) -> TractResult<Vec<Key>> {
    let plain = tensor.try_as_plain_ram()?;
    Ok(match tensor.datum_type() {
        DatumType::String => plain.as_slice::<String>()?.iter().cloned().map(Key::Text).collect(),
        DatumType::F32 => plain.as_slice::<f32>()?.iter().map(|&value| Key::float(value.into())).collect(),
        DatumType::F64 => plain.as_slice::<f64>()?.iter().copied().map(Key::float).collect(),
        _ => {
            let numbers = tensor.cast_to::<i64>()?;
            numbers.try_as_plain_ram()?.as_slice::<i64>()?.iter().copied().map(Key::Number).collect()
        }
    })
}

/// The elements of a tensor at some places, in a shape.
fn gather(values: &Tensor, places: &[usize], shape: &[usize]) -> TractResult<Tensor> {
    fn of<T: Datum>(values: &Tensor, places: &[usize], shape: &[usize]) -> TractResult<Tensor> {
        let values = values.try_as_plain_ram()?;
        let values = values.as_slice::<T>()?;
        let chosen = places.iter().map(|&place| values[place].clone()).collect();
        Ok(tract_ndarray::ArrayD::from_shape_vec(shape, chosen)?.into_tensor())
    }
    dispatch_datum!(of(values.datum_type())(values, places, shape))
}

#[derive(Debug)]
pub(super) struct LabelEncoder {
    key_type: DatumType,
    /// The place of the value of each key.
    places: HashMap<Key, usize>,
    /// The values, followed by the default.
    values: Tensor,
}

impl LabelEncoder {
    pub(super) fn new(node: &NodeProto, version: i64) -> TractResult<Self> {
        if let Some(classes) = node.get_attr_opt_vec::<String>("classes_strings")? {
            return Self::of_classes(node, classes);
        }
        let list = |side: &str| -> TractResult<Tensor> {
            if let Some(tensor) = attribute_tensor(node, &format!("{side}_tensor"))? {
                return Ok(tensor);
            }
            if let Some(texts) = node.get_attr_opt_vec::<String>(&format!("{side}_strings"))? {
                return Ok(tensor1(&texts));
            }
            if let Some(numbers) = node.get_attr_opt_vec::<i64>(&format!("{side}_int64s"))? {
                return Ok(tensor1(&numbers));
            }
            let floats = node.get_attr_opt_vec::<f32>(&format!("{side}_floats"))?;
            Ok(tensor1(&floats.with_context(|| format!("it has no {side}"))?))
        };
        let (own_keys, values) = (list("keys")?, list("values")?);
        ensure!(own_keys.len() == values.len(), "it has {} keys and {} values", own_keys.len(), values.len());
        let other = match attribute_tensor(node, "default_tensor")? {
            Some(other) => other,
            None => match values.datum_type() {
                DatumType::String => tensor1(&[default_text(node)?]),
                DatumType::F32 => tensor1(&[node.get_attr_opt::<f32>("default_float")?.unwrap_or(-0.0)]),
                DatumType::F64 => tensor1(&[-0.0_f64]),
                _ => tensor1(&[default_number(node)?]).cast_to_dt(values.datum_type())?.into_owned(),
            },
        };
        ensure!(
            other.len() == 1 && other.datum_type() == values.datum_type(),
            "the default is not a value of the type {:?}",
            values.datum_type()
        );
        let mut places = HashMap::new();
        for (place, key) in keys(&own_keys)?.into_iter().enumerate() {
            if version >= NAN_AS_KEY || key != Key::float(f64::NAN) {
                // The first of equal keys counts.
                places.entry(key).or_insert(place);
            }
        }
        let count = values.len();
        let values = Tensor::stack_tensors(0, &[values.into_shape(&[count])?, other.into_shape(&[1])?])?;
        Ok(Self { key_type: own_keys.datum_type(), places, values })
    }

    /// The first version of the operator: from classes to their numbers. The other direction is chosen by the type of the input, which
    /// the engine does not know here.
    fn of_classes(node: &NodeProto, classes: Vec<String>) -> TractResult<Self> {
        let mut numbers: Vec<i64> = (0..classes.len() as i64).collect();
        numbers.push(default_number(node)?);
        let mut places = HashMap::new();
        for (place, class) in classes.into_iter().enumerate() {
            places.entry(Key::Text(class)).or_insert(place);
        }
        Ok(Self { key_type: DatumType::String, places, values: tensor1(&numbers) })
    }
}

fn default_text(node: &NodeProto) -> TractResult<String> {
    Ok(node.get_attr_opt("default_string")?.unwrap_or_else(|| "_Unused".to_owned()))
}

fn default_number(node: &NodeProto) -> TractResult<i64> {
    Ok(node.get_attr_opt("default_int64")?.unwrap_or(-1))
}

impl Function for LabelEncoder {
    fn outputs(&self, datum_type: DatumType, shape: &[TDim]) -> TractResult<Vec<(DatumType, TVec<TDim>)>> {
        check_type(datum_type, &[self.key_type])?;
        Ok(vec![(self.values.datum_type(), shape.into())])
    }

    fn eval(&self, input: &Tensor) -> TractResult<Vec<Tensor>> {
        let other = self.values.len() - 1;
        let place = |key| self.places.get(&key).copied().unwrap_or(other);
        let places: Vec<usize> = keys(input)?.into_iter().map(place).collect();
        Ok(vec![gather(&self.values, &places, input.shape())?])
    }
}

#[derive(Debug)]
pub(super) struct OneHotEncoder {
    places: HashMap<Key, usize>,
    categories: usize,
    texts: bool,
    /// Whether elements of no category are zeros instead of an error.
    zeros: bool,
}

impl OneHotEncoder {
    pub(super) fn new(node: &NodeProto) -> TractResult<Self> {
        let numbers = node.get_attr_opt_vec::<i64>("cats_int64s")?.unwrap_or_default();
        let texts = node.get_attr_opt_vec::<String>("cats_strings")?.unwrap_or_default();
        ensure!(numbers.is_empty() != texts.is_empty(), "it needs either cats_int64s or cats_strings");
        let categories = numbers.len() + texts.len();
        let is_text = !texts.is_empty();
        let all = numbers.into_iter().map(Key::Number).chain(texts.into_iter().map(Key::Text));
        Ok(Self {
            // The last of equal categories counts.
            places: all.enumerate().map(|(place, key)| (key, place)).collect(),
            categories,
            texts: is_text,
            zeros: node.get_attr_opt::<i64>("zeros")?.unwrap_or(1) != 0,
        })
    }
}

impl Function for OneHotEncoder {
    fn outputs(&self, datum_type: DatumType, shape: &[TDim]) -> TractResult<Vec<(DatumType, TVec<TDim>)>> {
        let types: &[DatumType] =
            if self.texts { &[DatumType::String] } else { &[DatumType::I64, DatumType::F32, DatumType::F64] };
        check_type(datum_type, types)?;
        let mut shape: TVec<TDim> = shape.into();
        shape.push(self.categories.to_dim());
        Ok(vec![(DatumType::F32, shape)])
    }

    fn eval(&self, input: &Tensor) -> TractResult<Vec<Tensor>> {
        let numbers = if self.texts { Cow::Borrowed(input) } else { input.cast_to::<i64>()? };
        let mut made = vec![0_f32; input.len() * self.categories];
        for (element, key) in keys(&numbers)?.into_iter().enumerate() {
            match self.places.get(&key) {
                Some(place) => made[element * self.categories + place] = 1.0,
                None => ensure!(self.zeros, "element {element} of its input is of no category"),
            }
        }
        let mut shape = input.shape().to_vec();
        shape.push(self.categories);
        Ok(vec![Tensor::from_shape(&shape, &made)?])
    }
}

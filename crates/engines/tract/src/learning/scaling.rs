//! Scaler, Normalizer, Binarizer and Imputer.

use tract_hir::internal::*;
use tract_onnx::pb::NodeProto;

use super::{Function, NUMBERS, check_type, rows_and_features, singles};

/// The number of features, as ONNX Runtime counts them for operators on single elements: the second dimension, or the only one.
fn features(shape: &[usize]) -> TractResult<usize> {
    let features = if shape.len() == 1 { shape.first() } else { shape.get(1) };
    features.copied().context("its input has no dimensions")
}

/// The place of the value for each element, for one value or a value of each feature.
fn places(values: usize, shape: &[usize]) -> TractResult<usize> {
    let features = features(shape)?;
    ensure!(values == 1 || values == features, "it has {values} values for {features} features");
    Ok(values)
}

#[derive(Debug)]
pub(super) struct Scaler {
    offset: Vec<f32>,
    scale: Vec<f32>,
}

impl Scaler {
    pub(super) fn new(node: &NodeProto) -> TractResult<Self> {
        let (offset, scale) = (node.get_attr_vec::<f32>("offset")?, node.get_attr_vec::<f32>("scale")?);
        ensure!(!scale.is_empty() && offset.len() == scale.len(), "it needs an offset for each scale");
        Ok(Self { offset, scale })
    }
}

impl Function for Scaler {
    fn outputs(&self, datum_type: DatumType, shape: &[TDim]) -> TractResult<Vec<(DatumType, TVec<TDim>)>> {
        check_type(datum_type, &NUMBERS)?;
        Ok(vec![(DatumType::F32, shape.into())])
    }

    fn eval(&self, input: &Tensor) -> TractResult<Vec<Tensor>> {
        let count = places(self.scale.len(), input.shape())?;
        let scaled: Vec<f32> = if input.datum_type() == DatumType::F64 {
            let values = input.try_as_plain_ram()?.as_slice::<f64>()?.iter().enumerate();
            let scale = |(at, value): (usize, &f64)| {
                let at = at % count;
                ((value - f64::from(self.offset[at])) * f64::from(self.scale[at])) as f32
            };
            values.map(scale).collect()
        } else {
            let values = input.cast_to::<f32>()?;
            let values = values.try_as_plain_ram()?.as_slice::<f32>()?.iter().enumerate();
            values.map(|(at, value)| (value - self.offset[at % count]) * self.scale[at % count]).collect()
        };
        Ok(vec![Tensor::from_shape(input.shape(), &scaled)?])
    }
}

/// The size of a row that a Normalizer divides by.
#[derive(Debug)]
enum Norm {
    Max,
    L1,
    L2,
}

#[derive(Debug)]
pub(super) struct Normalizer(Norm);

impl Normalizer {
    pub(super) fn new(node: &NodeProto) -> TractResult<Self> {
        Ok(Self(match node.get_attr_opt::<&str>("norm")?.unwrap_or("MAX") {
            "MAX" => Norm::Max,
            "L1" => Norm::L1,
            "L2" => Norm::L2,
            other => bail!("it has no norm '{other}'"),
        }))
    }

    fn normalise(&self, row: &mut [f32]) {
        let size = match self.0 {
            Norm::Max => {
                row.iter().copied().fold(f32::MIN, |most, value| if most < value { value } else { most })
            }
            Norm::L1 => row.iter().map(|value| value.abs()).sum(),
            Norm::L2 => row.iter().map(|value| value * value).sum::<f32>().sqrt(),
        };
        if size != 0.0 {
            row.iter_mut().for_each(|value| *value /= size);
        }
    }
}

impl Function for Normalizer {
    fn outputs(&self, datum_type: DatumType, shape: &[TDim]) -> TractResult<Vec<(DatumType, TVec<TDim>)>> {
        check_type(datum_type, &NUMBERS)?;
        rows_and_features(shape)?;
        Ok(vec![(DatumType::F32, shape.into())])
    }

    fn eval(&self, input: &Tensor) -> TractResult<Vec<Tensor>> {
        let (_, features) = rows_and_features(input.shape())?;
        let mut values = singles(input)?;
        values.chunks_mut(features.max(1)).for_each(|row| self.normalise(row));
        Ok(vec![Tensor::from_shape(input.shape(), &values)?])
    }
}

#[derive(Debug)]
pub(super) struct Binarizer {
    threshold: f32,
}

impl Binarizer {
    pub(super) fn new(node: &NodeProto) -> TractResult<Self> {
        Ok(Self { threshold: node.get_attr_opt("threshold")?.unwrap_or(0.0) })
    }
}

impl Function for Binarizer {
    fn outputs(&self, datum_type: DatumType, shape: &[TDim]) -> TractResult<Vec<(DatumType, TVec<TDim>)>> {
        check_type(datum_type, &[DatumType::F32])?;
        Ok(vec![(DatumType::F32, shape.into())])
    }

    fn eval(&self, input: &Tensor) -> TractResult<Vec<Tensor>> {
        let mut values = singles(input)?;
        if let Some(at) = values.iter().position(|value| value.is_nan()) {
            bail!("element {at} of its input is NaN");
        }
        for value in &mut values {
            *value = if *value > self.threshold { 1.0 } else { 0.0 };
        }
        Ok(vec![Tensor::from_shape(input.shape(), &values)?])
    }
}

/// Values for what is missing, of the type of the input.
#[derive(Debug)]
pub(super) enum Imputer {
    Floats { missing: f32, values: Vec<f32> },
    Integers { missing: i64, values: Vec<i64> },
}

impl Imputer {
    pub(super) fn new(node: &NodeProto) -> TractResult<Self> {
        let floats = node.get_attr_opt_vec::<f32>("imputed_value_floats")?.unwrap_or_default();
        let integers = node.get_attr_opt_vec::<i64>("imputed_value_int64s")?.unwrap_or_default();
        match (floats.is_empty(), integers.is_empty()) {
            (false, true) => {
                let missing = node.get_attr_opt("replaced_value_float")?.unwrap_or(0.0);
                Ok(Self::Floats { missing, values: floats })
            }
            (true, false) => {
                let missing = node.get_attr_opt("replaced_value_int64")?.unwrap_or(0);
                Ok(Self::Integers { missing, values: integers })
            }
            _ => bail!("it needs either imputed_value_floats or imputed_value_int64s"),
        }
    }

    fn datum_type(&self) -> DatumType {
        match self {
            Self::Floats { .. } => DatumType::F32,
            Self::Integers { .. } => DatumType::I64,
        }
    }
}

fn impute<T: Datum + Copy>(
    input: &Tensor,
    values: &[T],
    is_missing: impl Fn(T) -> bool,
) -> TractResult<Vec<Tensor>> {
    let count = places(values.len(), input.shape())?;
    let elements = input.try_as_plain_ram()?.as_slice::<T>()?.iter().enumerate();
    let imputed: Vec<T> =
        elements.map(|(at, &value)| if is_missing(value) { values[at % count] } else { value }).collect();
    Ok(vec![Tensor::from_shape(input.shape(), &imputed)?])
}

impl Function for Imputer {
    fn outputs(&self, datum_type: DatumType, shape: &[TDim]) -> TractResult<Vec<(DatumType, TVec<TDim>)>> {
        check_type(datum_type, &[self.datum_type()])?;
        Ok(vec![(datum_type, shape.into())])
    }

    fn eval(&self, input: &Tensor) -> TractResult<Vec<Tensor>> {
        match self {
            Self::Floats { missing, values } => {
                impute(input, values, |value: f32| value == *missing || (value.is_nan() && missing.is_nan()))
            }
            Self::Integers { missing, values } => impute(input, values, |value: i64| value == *missing),
        }
    }
}

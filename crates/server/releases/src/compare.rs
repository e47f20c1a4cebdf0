//! Whether two answers are equal: exactly, within a tolerance, or in their highest values.

use half::{bf16, f16};
use nereid_core::backend_api::{BytesElements, DataType, Response, Result, Tensor};

/// When answers are equal.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum Comparison {
    /// All bytes are equal.
    #[default]
    Exact,
    /// Numbers differ by no more than this, plus this share of the established version's number. Others are equal.
    Tolerance(f64),
    /// The highest value of each row is at the same place. What has no order is equal.
    ArgMax,
}

/// How an output differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mismatch {
    /// The output's name.
    pub output: String,
    /// Where and how.
    pub difference: String,
}

impl Comparison {
    /// Reads a setting; `None` if it is invalid.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        match text {
            "exact" => Some(Self::Exact),
            "argmax" => Some(Self::ArgMax),
            _ => {
                let limit: f64 = text.strip_prefix("tolerance=")?.trim().parse().ok()?;
                (limit.is_finite() && limit >= 0.0).then_some(Self::Tolerance(limit))
            }
        }
    }

    /// The first output of the established version's answer that the other one does not have equally.
    ///
    /// # Errors
    /// An output cannot be read.
    pub(crate) fn mismatch(self, expected: &Response, found: &Response) -> Result<Option<Mismatch>> {
        for output in &expected.outputs {
            let other = found.outputs.iter().find(|other| other.name == output.name);
            let difference = match other {
                None => Some("the output is missing".to_owned()),
                Some(other) => self.difference(output, other)?,
            };
            if let Some(difference) = difference {
                return Ok(Some(Mismatch { output: output.name.clone(), difference }));
            }
        }
        let is_new = |output: &&Tensor| expected.outputs.iter().all(|other| other.name != output.name);
        Ok(found.outputs.iter().find(is_new).map(|output| Mismatch {
            output: output.name.clone(),
            difference: "the established version has no such output".to_owned(),
        }))
    }

    fn difference(self, expected: &Tensor, found: &Tensor) -> Result<Option<String>> {
        if expected.data_type != found.data_type {
            return Ok(Some(format!("{:?} instead of {:?}", found.data_type, expected.data_type)));
        }
        if expected.shape != found.shape {
            return Ok(Some(format!("shape {} instead of {}", found.shape, expected.shape)));
        }
        let (expected_bytes, found_bytes) = (expected.contiguous()?, found.contiguous()?);
        if expected_bytes == found_bytes {
            return Ok(None);
        }
        let numbers =
            numbers(expected.data_type, &expected_bytes).zip(numbers(expected.data_type, &found_bytes));
        let Some((expected_numbers, found_numbers)) = numbers else {
            return Ok(different_texts(&expected_bytes, &found_bytes));
        };
        let pairs = || expected_numbers.iter().copied().zip(found_numbers.iter().copied());
        Ok(match self {
            Self::Exact => first_different(pairs(), |one, other| one.to_bits() == other.to_bits())
                // Integers of 64 bits may be equal as floating-point numbers.
                .or_else(|| Some("other bytes".to_owned())),
            Self::Tolerance(limit) => first_different(pairs(), |one, other| is_close(one, other, limit)),
            Self::ArgMax => {
                let row = expected.shape.last().map_or(1, |size| usize::try_from(*size).unwrap_or(1)).max(1);
                let rows = expected_numbers.chunks(row).zip(found_numbers.chunks(row)).enumerate();
                let mut places = rows.map(|(row, (one, other))| (row, highest(one), highest(other)));
                places.find(|(_, one, other)| one != other).map(|(row, one, other)| {
                    format!("row {row}: the highest value is at {other} instead of {one}")
                })
            }
        })
    }
}

/// The first pair that is not equal, and how many more there are.
fn first_different(
    pairs: impl Iterator<Item = (f64, f64)>,
    is_equal: impl Fn(f64, f64) -> bool,
) -> Option<String> {
    let mut different = pairs.enumerate().filter(|(_, (one, other))| !is_equal(*one, *other));
    let (index, (one, other)) = different.next()?;
    let others = different.count();
    let more = if others > 0 { format!(", and {others} others") } else { String::new() };
    Some(format!("element {index}: {other} instead of {one}{more}"))
}

fn is_close(expected: f64, found: f64, limit: f64) -> bool {
    let is_equal = expected == found || expected.is_nan() && found.is_nan();
    is_equal || (expected - found).abs() <= limit + limit * expected.abs()
}

/// The place of the highest value, the first of several.
fn highest(row: &[f64]) -> usize {
    let mut best = (0, f64::NEG_INFINITY);
    for (index, value) in row.iter().enumerate() {
        if *value > best.1 {
            best = (index, *value);
        }
    }
    best.0
}

fn different_texts(expected: &[u8], found: &[u8]) -> Option<String> {
    let shown = |element: Option<Result<&[u8]>>| match element {
        Some(Ok(bytes)) => {
            let text = String::from_utf8_lossy(bytes);
            let short: String = text.chars().take(60).collect();
            if short.len() < text.len() { format!("'{short}…'") } else { format!("'{short}'") }
        }
        _ => "nothing".to_owned(),
    };
    let (mut expected, mut found) = (BytesElements::new(expected), BytesElements::new(found));
    for index in 0_usize.. {
        match (expected.next(), found.next()) {
            (None, None) => return None,
            (Some(Ok(one)), Some(Ok(other))) if one == other => {}
            (one, other) => {
                return Some(format!("element {index}: {} instead of {}", shown(other), shown(one)));
            }
        }
    }
    None
}

/// The numbers of a tensor, if it has some.
fn numbers(data_type: DataType, bytes: &[u8]) -> Option<Vec<f64>> {
    fn read<const N: usize>(bytes: &[u8], number: impl Fn([u8; N]) -> f64) -> Vec<f64> {
        bytes.as_chunks::<N>().0.iter().map(|bytes| number(*bytes)).collect()
    }
    Some(match data_type {
        DataType::Bool | DataType::Uint8 => read(bytes, |[byte]| f64::from(byte)),
        DataType::Uint16 => read(bytes, |bytes| f64::from(u16::from_le_bytes(bytes))),
        DataType::Uint32 => read(bytes, |bytes| f64::from(u32::from_le_bytes(bytes))),
        DataType::Uint64 => read(bytes, |bytes| u64::from_le_bytes(bytes) as f64),
        DataType::Int8 => read(bytes, |bytes| f64::from(i8::from_le_bytes(bytes))),
        DataType::Int16 => read(bytes, |bytes| f64::from(i16::from_le_bytes(bytes))),
        DataType::Int32 => read(bytes, |bytes| f64::from(i32::from_le_bytes(bytes))),
        DataType::Int64 => read(bytes, |bytes| i64::from_le_bytes(bytes) as f64),
        DataType::Fp16 => read(bytes, |bytes| f16::from_le_bytes(bytes).to_f64()),
        DataType::Bf16 => read(bytes, |bytes| bf16::from_le_bytes(bytes).to_f64()),
        DataType::Fp32 => read(bytes, |bytes| f64::from(f32::from_le_bytes(bytes))),
        DataType::Fp64 => read(bytes, f64::from_le_bytes),
        DataType::Bytes => return None,
    })
}

#[cfg(test)]
mod tests {
    use nereid_core::backend_api::push_bytes_element;
    use proptest::prelude::*;

    use super::*;

    fn floats(values: &[f32], shape: &[i64]) -> Tensor {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Tensor::new("y", DataType::Fp32, shape, bytes)
    }

    fn texts(values: &[&str]) -> Tensor {
        let mut bytes = Vec::new();
        values.iter().for_each(|value| push_bytes_element(&mut bytes, value.as_bytes()).unwrap());
        Tensor::new("y", DataType::Bytes, [values.len() as i64], bytes)
    }

    fn compare(how: &str, one: Tensor, other: Tensor) -> Option<String> {
        let how = Comparison::parse(how).unwrap();
        let mismatch = how.mismatch(&Response::new(vec![one]), &Response::new(vec![other])).unwrap();
        mismatch.map(|mismatch| mismatch.difference)
    }

    #[test]
    fn the_first_difference_is_described() {
        let numbers = |values: &[f32]| floats(values, &[values.len() as i64]);
        let rows = |values: &[f32]| floats(values, &[2, 2]);
        for (how, one, other, expected) in [
            ("exact", numbers(&[1.0, 2.0]), numbers(&[1.0, 2.0]), None),
            ("exact", numbers(&[1.0, 2.0]), numbers(&[1.0, 2.5]), Some("element 1: 2.5 instead of 2")),
            (
                "exact",
                numbers(&[1.0, 2.0, 3.0]),
                numbers(&[1.5, 2.0, 4.0]),
                Some("element 0: 1.5 instead of 1, and 1 others"),
            ),
            ("tolerance=0.1", numbers(&[1.0, 100.0]), numbers(&[1.15, 109.0]), None),
            ("tolerance=0.1", numbers(&[1.0, f32::NAN]), numbers(&[1.0, f32::NAN]), None),
            ("tolerance=0.1", numbers(&[1.0]), numbers(&[f32::NAN]), Some("element 0: NaN instead of 1")),
            ("tolerance=0.1", numbers(&[1.0]), numbers(&[1.25]), Some("element 0: 1.25 instead of 1")),
            ("tolerance=0", numbers(&[f32::INFINITY]), numbers(&[f32::INFINITY]), None),
            ("argmax", rows(&[1.0, 2.0, 4.0, 3.0]), rows(&[0.0, 9.0, 1.0, 0.5]), None),
            (
                "argmax",
                rows(&[1.0, 2.0, 4.0, 3.0]),
                rows(&[1.0, 2.0, 3.0, 4.0]),
                Some("row 1: the highest value is at 1 instead of 0"),
            ),
            ("exact", rows(&[0.0; 4]), numbers(&[0.0; 4]), Some("shape [4] instead of [2,2]")),
            ("argmax", texts(&["a", "b"]), texts(&["a", "c"]), Some("element 1: 'c' instead of 'b'")),
            ("exact", texts(&["a"]), texts(&["a"]), None),
            ("exact", texts(&["1"]), numbers(&[1.0]), Some("Fp32 instead of Bytes")),
        ] {
            let found = compare(how, one.clone(), other.clone());
            assert_eq!(found.as_deref(), expected, "{how} {one:?} {other:?}");
        }
    }

    #[test]
    fn outputs_are_compared_by_name() {
        let named = |name: &str, value: u8| Tensor::new(name, DataType::Uint8, [1], vec![value]);
        let of = |outputs: Vec<Tensor>| Response::new(outputs);
        let both = of(vec![named("a", 1), named("b", 2)]);
        let mismatch = |one: &Response, other: &Response| {
            let found = Comparison::Exact.mismatch(one, other).unwrap();
            found.map(|Mismatch { output, difference }| format!("{output}: {difference}"))
        };
        assert_eq!(mismatch(&both, &of(vec![named("b", 2), named("a", 1)])), None);
        let less = of(vec![named("a", 1)]);
        assert_eq!(mismatch(&both, &less).unwrap(), "b: the output is missing");
        assert_eq!(mismatch(&less, &both).unwrap(), "b: the established version has no such output");
    }

    #[test]
    fn integers_that_no_float_tells_apart_are_different() {
        let of = |value: u64| Tensor::new("y", DataType::Uint64, [1], value.to_le_bytes().to_vec());
        assert_eq!(compare("exact", of(u64::MAX), of(u64::MAX - 1)).as_deref(), Some("other bytes"));
    }

    proptest! {
        #[test]
        fn comparisons_agree_with_their_definitions(
            values in prop::collection::vec((-100.0..100.0_f32, -1.0..1.0_f32), 1..20),
            limit in 0.0..0.5_f64,
        ) {
            let shape = [values.len() as i64];
            let one: Vec<_> = values.iter().map(|(value, _)| *value).collect();
            let other: Vec<_> = values.iter().map(|(value, change)| value + change).collect();
            let close = one.iter().zip(&other).all(|(one, other)| {
                let (one, other) = (f64::from(*one), f64::from(*other));
                (one - other).abs() <= limit * (1.0 + one.abs())
            });
            let (one, other) = (floats(&one, &shape), floats(&other, &shape));
            let found = compare(&format!("tolerance={limit}"), one.clone(), other.clone());
            prop_assert_eq!(found.is_none(), close);
            for how in ["exact", "tolerance=0", "argmax"] {
                prop_assert_eq!(compare(how, one.clone(), one.clone()), None);
            }
        }
    }
}

//! A tensor's elements as text, separated by commas.

use std::fmt::{Display, Write as _};

use half::{bf16, f16};
use nereid_backend_api::{BytesElements, DataType, Tensor};

/// Tensors of more bytes than this are traced without their elements.
const LONGEST: usize = 16 << 20;

/// The elements; empty where they are too many or lie in a device's memory. Strings are in double quotes; what is no
/// UTF-8 in them is replaced.
pub(crate) fn of(tensor: &Tensor) -> String {
    if tensor.byte_size() > LONGEST {
        return String::new();
    }
    let Ok(contents) = tensor.contiguous() else { return String::new() };
    let contents = &*contents;
    match tensor.data_type {
        DataType::Bool => joined(contents, |[byte]| u8::from(byte != 0)),
        DataType::Uint8 => joined(contents, u8::from_le_bytes),
        DataType::Uint16 => joined(contents, u16::from_le_bytes),
        DataType::Uint32 => joined(contents, u32::from_le_bytes),
        DataType::Uint64 => joined(contents, u64::from_le_bytes),
        DataType::Int8 => joined(contents, i8::from_le_bytes),
        DataType::Int16 => joined(contents, i16::from_le_bytes),
        DataType::Int32 => joined(contents, i32::from_le_bytes),
        DataType::Int64 => joined(contents, i64::from_le_bytes),
        DataType::Fp16 => joined(contents, |bytes| number(f16::from_le_bytes(bytes).to_f32().into())),
        DataType::Bf16 => joined(contents, |bytes| number(bf16::from_le_bytes(bytes).to_f32().into())),
        DataType::Fp32 => joined(contents, |bytes| single(f32::from_le_bytes(bytes))),
        DataType::Fp64 => joined(contents, |bytes| number(f64::from_le_bytes(bytes))),
        DataType::Bytes => strings(contents),
    }
}

fn joined<const SIZE: usize, T: Display>(contents: &[u8], read: impl Fn([u8; SIZE]) -> T) -> String {
    let mut text = String::with_capacity(contents.len() / SIZE * 4);
    let (elements, _) = contents.as_chunks::<SIZE>();
    for (index, bytes) in elements.iter().enumerate() {
        let comma = if index > 0 { "," } else { "" };
        // Writing to a string does not fail.
        let _ = write!(text, "{comma}{}", read(*bytes));
    }
    text
}

fn strings(contents: &[u8]) -> String {
    let mut text = String::with_capacity(contents.len());
    for (index, element) in BytesElements::new(contents).filter_map(Result::ok).enumerate() {
        text.push_str(if index > 0 { ",\"" } else { "\"" });
        text.push_str(&String::from_utf8_lossy(element));
        text.push('"');
    }
    text
}

/// The shortest digits that round-trip; exponents are expanded only while the result is short.
fn number(value: f64) -> String {
    if plain(value) { value.to_string() } else { format!("{value:e}") }
}

/// [`number`], for the shortest digits among singles.
fn single(value: f32) -> String {
    if plain(value.into()) { value.to_string() } else { format!("{value:e}") }
}

fn plain(value: f64) -> bool {
    value == 0.0 || !value.is_finite() || (1e-5..1e16).contains(&value.abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(data_type: DataType, contents: &[u8], expected: &str) {
        assert_eq!(of(&Tensor::new("T", data_type, [1], contents.to_vec())), expected, "{data_type}");
    }

    #[test]
    fn elements_of_each_type_have_a_text() {
        check(DataType::Bool, &[1, 0, 2], "1,0,1");
        check(DataType::Uint8, &[65, 255], "65,255");
        check(DataType::Int8, &[67, 255], "67,-1");
        check(DataType::Uint16, &[1, 1], "257");
        check(DataType::Int16, &[255, 255], "-1");
        check(DataType::Uint32, &[255; 4], "4294967295");
        check(DataType::Int32, &[255; 4], "-1");
        check(DataType::Uint64, &[255; 8], "18446744073709551615");
        check(DataType::Int64, &9_000_000_000_i64.to_le_bytes(), "9000000000");
        check(DataType::Fp16, &f16::from_f32(0.5).to_le_bytes(), "0.5");
        check(DataType::Bf16, &bf16::from_f32(-2.0).to_le_bytes(), "-2");
        check(DataType::Fp32, &[0.1_f32.to_le_bytes(), f32::NAN.to_le_bytes()].concat(), "0.1,NaN");
        let doubles = [1e300, 1e-7, -0.0, f64::INFINITY].map(f64::to_le_bytes).concat();
        check(DataType::Fp64, &doubles, "1e300,1e-7,-0,inf");
        check(DataType::Bytes, b"\x01\0\0\0a\x02\0\0\0\"\xff", "\"a\",\"\"\u{fffd}\"");
    }

    #[test]
    fn truncated_and_empty_tensors_end_early() {
        check(DataType::Int32, &[1, 0, 0, 0, 2], "1");
        check(DataType::Bytes, b"\x01\0\0\0a\x09\0\0\0b", "\"a\"");
        check(DataType::Fp64, &[], "");
    }

    #[test]
    fn a_tensor_that_is_too_long_is_left_out() {
        let long = vec![0; LONGEST + 1];
        assert_eq!(of(&Tensor::new("T", DataType::Uint8, [LONGEST as i64 + 1], long)), "");
    }
}

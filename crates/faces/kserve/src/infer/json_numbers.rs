//! Arrays of plain numbers, which are most of a large request: read several times as fast as by a reader of any JSON.
//!
//! That reader also handles all other arrays, and reports errors.

use nereid_core::backend_api::DataType;

use super::json_tensor::{Elements, MAX_DEPTH};

/// The powers of ten that a 64-bit float represents exactly.
const POWERS: [f64; 23] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18,
    1e19, 1e20, 1e21, 1e22,
];

/// The largest number up to which a 64-bit float represents all whole numbers.
const MAX_EXACT: u64 = 1 << 53;

/// The number of digits that always fit a `u64`.
const MAX_DIGITS: usize = 19;

/// Reads the array, nested or flat, that `text` starts with. Returns its elements and its length, or `None` if anything is not a
/// plain number of this type.
pub(super) fn read(text: &[u8], data_type: DataType) -> Option<(Elements, usize)> {
    match data_type {
        DataType::Uint8 => array(text, |number| Some((number.unsigned()? as u8).to_le_bytes())),
        DataType::Uint16 => array(text, |number| Some((number.unsigned()? as u16).to_le_bytes())),
        DataType::Uint32 => array(text, |number| Some((number.unsigned()? as u32).to_le_bytes())),
        DataType::Uint64 => array(text, |number| Some(number.unsigned()?.to_le_bytes())),
        DataType::Int8 => array(text, |number| Some((number.signed()? as i8).to_le_bytes())),
        DataType::Int16 => array(text, |number| Some((number.signed()? as i16).to_le_bytes())),
        DataType::Int32 => array(text, |number| Some((number.signed()? as i32).to_le_bytes())),
        DataType::Int64 => array(text, |number| Some(number.signed()?.to_le_bytes())),
        DataType::Fp32 => array(text, |number| Some((number.float()? as f32).to_le_bytes())),
        DataType::Fp64 => array(text, |number| Some(number.float()?.to_le_bytes())),
        DataType::Bool | DataType::Bytes | DataType::Fp16 | DataType::Bf16 => None,
    }
}

fn array<const N: usize>(
    text: &[u8],
    element: impl Fn(&Number<'_>) -> Option<[u8; N]>,
) -> Option<(Elements, usize)> {
    let mut elements = Elements { contents: Vec::new(), count: 0 };
    let mut rest = text;
    let mut depth = 0;
    loop {
        // A value.
        match skip_spaces(rest) {
            [b'[', after @ ..] if depth < MAX_DEPTH => {
                depth += 1;
                rest = skip_spaces(after);
                if rest.first() != Some(&b']') {
                    continue;
                }
            }
            value if depth > 0 => {
                let number = Number::read(value)?;
                elements.contents.extend_from_slice(&element(&number)?);
                elements.count += 1;
                rest = number.rest;
            }
            _ => return None,
        }
        // What follows it.
        loop {
            match skip_spaces(rest) {
                [b',', after @ ..] => {
                    rest = after;
                    break;
                }
                [b']', after @ ..] => {
                    rest = after;
                    depth -= 1;
                    if depth == 0 {
                        return Some((elements, text.len() - rest.len()));
                    }
                }
                _ => return None,
            }
        }
    }
}

#[inline]
fn skip_spaces(mut text: &[u8]) -> &[u8] {
    while let [b' ' | b'\n' | b'\r' | b'\t', rest @ ..] = text {
        text = rest;
    }
    text
}

/// A number as JSON spells it: `mantissa * 10^exponent`.
struct Number<'t> {
    text: &'t [u8],
    rest: &'t [u8],
    is_negative: bool,
    /// Without meaning if there are more than [`MAX_DIGITS`].
    mantissa: u64,
    digits: usize,
    exponent: i32,
    /// Whether the number has neither a fraction nor an exponent.
    is_whole: bool,
}

impl<'t> Number<'t> {
    /// Reads the number that `text` starts with.
    #[inline]
    fn read(text: &'t [u8]) -> Option<Self> {
        let (is_negative, start) = match text {
            [b'-', rest @ ..] => (true, rest),
            _ => (false, text),
        };
        let mut number =
            Self { text, rest: start, is_negative, mantissa: 0, digits: 0, exponent: 0, is_whole: true };
        number.read_digits()?;
        // Zeroes before other digits are not JSON.
        if start.first() == Some(&b'0') && number.digits > 1 {
            return None;
        }
        if let [b'.', rest @ ..] = number.rest {
            number.rest = rest;
            number.is_whole = false;
            let before = number.digits;
            number.read_digits()?;
            number.exponent = -i32::try_from(number.digits - before).ok()?;
        }
        if let [b'e' | b'E', rest @ ..] = number.rest {
            number.is_whole = false;
            number.read_exponent(rest)?;
        }
        Some(number)
    }

    /// Reads at least one digit.
    #[inline]
    fn read_digits(&mut self) -> Option<()> {
        let before = self.rest;
        while let [digit @ b'0'..=b'9', rest @ ..] = self.rest {
            self.mantissa = self.mantissa.wrapping_mul(10).wrapping_add(u64::from(digit - b'0'));
            self.rest = rest;
        }
        let count = before.len() - self.rest.len();
        self.digits += count;
        (count > 0).then_some(())
    }

    fn read_exponent(&mut self, text: &'t [u8]) -> Option<()> {
        let (sign, mut rest) = match text {
            [b'-', rest @ ..] => (-1, rest),
            [b'+', rest @ ..] => (1, rest),
            _ => (1, text),
        };
        let before = rest.len();
        let mut exponent = 0_i32;
        while let [digit @ b'0'..=b'9', after @ ..] = rest {
            exponent = exponent.saturating_mul(10).saturating_add(i32::from(digit - b'0'));
            rest = after;
        }
        self.exponent = self.exponent.saturating_add(sign * exponent);
        self.rest = rest;
        (rest.len() < before).then_some(())
    }

    fn signed(&self) -> Option<i64> {
        let is_plain = self.is_whole && self.digits <= MAX_DIGITS;
        let magnitude = i64::try_from(self.mantissa).ok().filter(|_| is_plain)?;
        Some(if self.is_negative { -magnitude } else { magnitude })
    }

    fn unsigned(&self) -> Option<u64> {
        let is_plain = self.is_whole && self.digits <= MAX_DIGITS && !self.is_negative;
        is_plain.then_some(self.mantissa)
    }

    /// The nearest number.
    #[inline]
    fn float(&self) -> Option<f64> {
        if self.digits > MAX_DIGITS || self.mantissa > MAX_EXACT {
            return self.long_float();
        }
        let Some(power) = POWERS.get(self.exponent.unsigned_abs() as usize) else { return self.long_float() };
        // Both are exact, so the result is rounded once.
        let mantissa = self.mantissa as f64;
        let magnitude = if self.exponent < 0 { mantissa / power } else { mantissa * power };
        Some(if self.is_negative { -magnitude } else { magnitude })
    }

    #[cold]
    fn long_float(&self) -> Option<f64> {
        let text = self.text.get(..self.text.len() - self.rest.len())?;
        let value: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
        value.is_finite().then_some(value)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::infer::json_reader::JsonReader;
    use crate::infer::json_tensor::decode;

    const TYPES: [DataType; 10] = [
        DataType::Uint8,
        DataType::Uint16,
        DataType::Uint32,
        DataType::Uint64,
        DataType::Int8,
        DataType::Int16,
        DataType::Int32,
        DataType::Int64,
        DataType::Fp32,
        DataType::Fp64,
    ];

    /// Compares with the reader of any JSON. Returns whether the array is read here.
    fn check(text: &str, data_type: DataType) -> bool {
        let mut exact = JsonReader::exact(text.as_bytes());
        let expected = decode(&mut exact, data_type);
        let Some((elements, length)) = read(text.as_bytes(), data_type) else { return false };
        assert_eq!(Some(&elements), expected.as_ref().ok(), "{text} as {data_type}");
        assert_eq!(length, exact.position(), "{text} as {data_type}");
        true
    }

    #[test]
    fn plain_arrays_are_read_and_others_left() {
        for (text, is_read) in [
            ("[]", true),
            ("[1,2,3] ,", true),
            (" \n[ [1 ,\t2],[] , [[3]] ]}", true),
            ("[-1.5e-3, 0.1, 1E+2, -0.0, 12345678901234567890123]", true),
            ("[0.30000000000000004, 1e-320, 1.7976931348623157e308]", true),
            ("[1e309]", false),
            ("[01]", false),
            ("[-]", false),
            ("[1.]", false),
            ("[.5]", false),
            ("[+1]", false),
            ("[1e]", false),
            ("[1,]", false),
            ("[,1]", false),
            ("[1 2]", false),
            ("[NaN]", false),
            ("[null]", false),
            ("[1", false),
            ("[[1]", false),
            ("1", false),
            ("]", false),
            ("", false),
        ] {
            assert_eq!(check(text, DataType::Fp64), is_read, "{text}");
        }
        for (text, data_type, is_read) in [
            ("[9223372036854775807,-9223372036854775807]", DataType::Int64, true),
            ("[9223372036854775808]", DataType::Int64, false),
            ("[9999999999999999999]", DataType::Uint64, true),
            ("[18446744073709551616]", DataType::Uint64, false),
            ("[1.0]", DataType::Int32, false),
            ("[-1]", DataType::Uint8, false),
            ("[300,-129]", DataType::Int8, true),
            ("[true]", DataType::Bool, false),
            ("[\"a\"]", DataType::Bytes, false),
        ] {
            assert_eq!(check(text, data_type), is_read, "{text}");
        }
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert!(check(&nested(MAX_DEPTH), DataType::Fp32));
        assert!(!check(&nested(MAX_DEPTH + 1), DataType::Fp32));
    }

    proptest! {
        #[test]
        fn floats_are_those_of_the_standard_library(bits in any::<u64>(), style in 0..4_usize) {
            let value = f64::from_bits(bits);
            let short = f64::from(f32::from_bits(bits as u32));
            for value in [value, short].into_iter().filter(|value| value.is_finite()) {
                let text = match style {
                    0 => format!("{value}"),
                    1 => format!("{value:e}"),
                    2 => format!("{value:.3}"),
                    _ => format!("{value:.25e}"),
                };
                let array = format!("[{text}]");
                prop_assert!(check(&array, DataType::Fp64));
                prop_assert!(check(&array, DataType::Fp32));
            }
        }

        #[test]
        fn texts_of_any_kind_are_read_as_by_the_other_reader(
            parts in prop::collection::vec(prop::sample::select(vec![
                "[", "[", "]", "]", ",", ",", " ", "\n", "1", "23", "0", "-", ".", ".5", "e", "E-3", "e+20", "999999999999", "NaN", "-Infinity", "\"", "true",
            ]), 0..24),
            data_type in prop::sample::select(TYPES.to_vec()),
        ) {
            check(&format!("[{}", parts.concat()), data_type);
            check(&format!("[{}]", parts.concat()), data_type);
        }
    }
}

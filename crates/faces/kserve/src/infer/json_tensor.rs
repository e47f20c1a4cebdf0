//! Decodes a tensor's contents from JSON: arrays, nested or flat, in one pass into bytes.

use jiter::Peek;
use nereid_core::backend_api::{DataType, Error, Result, push_bytes_element};

use super::json_numbers;
use super::json_reader::JsonReader;
use crate::json::syntax;

/// Maximum nesting depth of arrays.
pub(super) const MAX_DEPTH: usize = 100;

/// Decoded elements.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Elements {
    /// The tensor's contents.
    pub contents: Vec<u8>,
    /// The number of elements.
    pub count: usize,
}

/// Decodes an array.
///
/// Integers that do not fit a narrower type wrap around, as in the reference.
///
/// # Errors
/// `Internal`, as in the reference, for malformed JSON or an element of another type.
pub(super) fn decode(json: &mut JsonReader<'_>, data_type: DataType) -> Result<Elements> {
    let mut elements = Elements { contents: Vec::new(), count: 0 };
    let peek = json.peek().map_err(syntax)?;
    if peek != Peek::Array {
        return Err(Error::internal("'data' is not an array"));
    }
    if let Some((elements, length)) = json.rest().and_then(|rest| json_numbers::read(rest, data_type)) {
        json.move_on(length);
        return Ok(elements);
    }
    array(json, data_type, &mut elements, 0)?;
    Ok(elements)
}

/// Decodes an array or a single element.
///
/// # Errors
/// As [`decode`].
pub(super) fn decode_value(json: &mut JsonReader<'_>, data_type: DataType) -> Result<Elements> {
    match json.peek().map_err(syntax)? {
        Peek::Array => decode(json, data_type),
        peek => {
            let mut elements = Elements { contents: Vec::new(), count: 1 };
            element(json, peek, data_type, &mut elements.contents)?;
            Ok(elements)
        }
    }
}

/// Whether JSON can represent elements of this type.
pub(super) fn is_representable(data_type: DataType) -> bool {
    !matches!(data_type, DataType::Fp16 | DataType::Bf16)
}

fn array(
    json: &mut JsonReader<'_>,
    data_type: DataType,
    elements: &mut Elements,
    depth: usize,
) -> Result<()> {
    if depth == MAX_DEPTH {
        return Err(Error::invalid_arg(format!(
            "the arrays in 'data' are nested deeper than {MAX_DEPTH} levels"
        )));
    }
    let mut next = json.known_array().map_err(syntax)?;
    while let Some(peek) = next {
        if peek == Peek::Array {
            array(json, data_type, elements, depth + 1)?;
        } else {
            element(json, peek, data_type, &mut elements.contents)?;
            elements.count += 1;
        }
        next = json.array_step().map_err(syntax)?;
    }
    Ok(())
}

fn element(json: &mut JsonReader<'_>, peek: Peek, data_type: DataType, contents: &mut Vec<u8>) -> Result<()> {
    match data_type {
        DataType::Bool => match peek {
            Peek::True | Peek::False => contents.push(json.known_bool(peek).map_err(syntax)?.into()),
            _ => return Err(wrong_type("a boolean")),
        },
        DataType::Uint8 => contents.extend_from_slice(&(unsigned(json, peek)? as u8).to_le_bytes()),
        DataType::Uint16 => contents.extend_from_slice(&(unsigned(json, peek)? as u16).to_le_bytes()),
        DataType::Uint32 => contents.extend_from_slice(&(unsigned(json, peek)? as u32).to_le_bytes()),
        DataType::Uint64 => contents.extend_from_slice(&unsigned(json, peek)?.to_le_bytes()),
        DataType::Int8 => contents.extend_from_slice(&(signed(json, peek)? as i8).to_le_bytes()),
        DataType::Int16 => contents.extend_from_slice(&(signed(json, peek)? as i16).to_le_bytes()),
        DataType::Int32 => contents.extend_from_slice(&(signed(json, peek)? as i32).to_le_bytes()),
        DataType::Int64 => contents.extend_from_slice(&signed(json, peek)?.to_le_bytes()),
        DataType::Fp32 => contents.extend_from_slice(&(float(json, peek)? as f32).to_le_bytes()),
        DataType::Fp64 => contents.extend_from_slice(&float(json, peek)?.to_le_bytes()),
        DataType::Bytes => match peek {
            Peek::String => push_bytes_element(contents, json.known_str().map_err(syntax)?.as_bytes())?,
            _ => return Err(wrong_type("a string")),
        },
        DataType::Fp16 | DataType::Bf16 => return Err(wrong_type("of a type that JSON can represent")),
    }
    Ok(())
}

/// Reads a number as text; `None` for anything else, which is skipped.
pub(super) fn number<'j>(json: &'j mut JsonReader<'_>, peek: Peek) -> Result<Option<&'j str>> {
    if !peek.is_num() {
        json.known_skip(peek).map_err(syntax)?;
        return Ok(None);
    }
    let text = json.known_number_bytes(peek).map_err(syntax)?;
    // ASCII digits, signs and letters.
    Ok(std::str::from_utf8(text).ok())
}

fn signed(json: &mut JsonReader<'_>, peek: Peek) -> Result<i64> {
    let number = number(json, peek)?.and_then(|number| number.parse().ok());
    number.ok_or_else(|| wrong_type("a 64-bit integer"))
}

fn unsigned(json: &mut JsonReader<'_>, peek: Peek) -> Result<u64> {
    integer(json, peek)?.ok_or_else(|| wrong_type("a non-negative 64-bit integer"))
}

/// Reads a non-negative integer; `None` for anything else, which is skipped.
pub(super) fn integer(json: &mut JsonReader<'_>, peek: Peek) -> Result<Option<u64>> {
    // `-0` is non-negative, too.
    Ok(number(json, peek)?.and_then(|number| if number == "-0" { Some(0) } else { number.parse().ok() }))
}

/// Reads a number, or NaN, Infinity or -Infinity.
fn float(json: &mut JsonReader<'_>, peek: Peek) -> Result<f64> {
    float_of(number(json, peek)?.ok_or_else(|| wrong_type("a number"))?)
}

/// The value of a number, or of NaN, Infinity or -Infinity.
///
/// # Errors
/// `Internal` for a number that is too large.
pub(super) fn float_of(number: &str) -> Result<f64> {
    match number.parse::<f64>() {
        // Infinity is spelled as a word; digits that overflow to it are too large.
        Ok(value) if value.is_infinite() && !number.ends_with("Infinity") => {
            Err(Error::internal(format!("the number {number} is too large")))
        }
        Ok(value) => Ok(value),
        Err(_) => Err(wrong_type("a number")),
    }
}

fn wrong_type(expected: &str) -> Error {
    Error::internal(format!("an element of 'data' is not {expected}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn elements(json: &str, data_type: DataType) -> Result<Elements> {
        decode(&mut JsonReader::new(json.as_bytes()), data_type)
    }

    fn contents(json: &str, data_type: DataType) -> Vec<u8> {
        elements(json, data_type).unwrap().contents
    }

    #[test]
    fn arrays_may_be_nested_in_any_way() {
        for json in ["[1,2,3]", "[[1],[2,3]]", "[[[1,2,3]]]", "[ [ ], 1, [2, [3]] ]"] {
            let elements = elements(json, DataType::Uint8).unwrap();
            assert_eq!((elements.contents, elements.count), (vec![1, 2, 3], 3), "{json}");
        }
    }

    #[test]
    fn each_type_is_decoded() {
        assert_eq!(contents("[true,false]", DataType::Bool), [1, 0]);
        assert_eq!(contents("[65535]", DataType::Uint16), [255, 255]);
        assert_eq!(contents("[4294967295]", DataType::Uint32), [255; 4]);
        assert_eq!(contents("[18446744073709551615]", DataType::Uint64), [255; 8]);
        assert_eq!(contents("[-2]", DataType::Int16), (-2_i16).to_le_bytes());
        assert_eq!(contents("[-2147483648]", DataType::Int32), i32::MIN.to_le_bytes());
        assert_eq!(contents("[-9223372036854775808]", DataType::Int64), i64::MIN.to_le_bytes());
        assert_eq!(
            contents("[1, -0.5e0]", DataType::Fp32),
            [1_f32.to_le_bytes(), (-0.5_f32).to_le_bytes()].concat()
        );
        assert_eq!(contents("[0.1]", DataType::Fp64), 0.1_f64.to_le_bytes());
        assert_eq!(contents(r#"["a\u00e9", ""]"#, DataType::Bytes), b"\x03\0\0\0a\xc3\xa9\0\0\0\0");
    }

    #[test]
    fn nan_and_infinity_are_accepted() {
        let expected: Vec<u8> = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY]
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        assert_eq!(contents("[NaN, Infinity, -Infinity]", DataType::Fp32), expected);
    }

    #[test]
    fn integers_too_wide_for_their_type_wrap() {
        assert_eq!(contents("[300, -129]", DataType::Int8), [44, 127]);
        assert_eq!(contents("[256]", DataType::Uint8), [0]);
        assert_eq!(contents("[-0]", DataType::Uint8), [0]);
    }

    #[test]
    fn an_element_of_another_type_is_refused() {
        for (json, data_type) in [
            ("[1]", DataType::Bool),
            ("[true]", DataType::Int32),
            ("[1.0]", DataType::Int32),
            ("[1e2]", DataType::Uint8),
            ("[-1]", DataType::Uint8),
            ("[9223372036854775808]", DataType::Int64),
            ("[null]", DataType::Fp32),
            ("[\"NaN\"]", DataType::Fp32),
            ("[1e400]", DataType::Fp64),
            ("[1]", DataType::Bytes),
            ("[{}]", DataType::Int32),
            ("{}", DataType::Int32),
            ("[1,]", DataType::Int32),
            ("[01]", DataType::Int32),
            ("[1", DataType::Int32),
            ("[\"\\ud800\"]", DataType::Bytes),
        ] {
            assert!(elements(json, data_type).is_err(), "{json} as {data_type}");
        }
    }

    #[test]
    fn deep_nesting_is_refused() {
        let json = "[".repeat(100_000);
        assert!(elements(&json, DataType::Int32).unwrap_err().message().contains("deeper"));
        let fits = format!("{}1{}", "[".repeat(MAX_DEPTH), "]".repeat(MAX_DEPTH));
        assert_eq!(contents(&fits, DataType::Uint8), [1]);
    }
}

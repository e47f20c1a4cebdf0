//! Encodes a response: JSON, followed by the binary tensors in the same order.

mod repeated;

use bytes::Bytes;
use hyper::StatusCode;
use nereid_budgets::BodyBudget;
use nereid_core::ResponseStream;
use nereid_core::backend_api::{
    BytesElements, DataType, Error, ParameterValue, Parameters, Response, Result, Tensor,
};
use nereid_http::Reply;
use nereid_http::reply::{Contents, Pieces, json_bytes};
use smallvec::SmallVec;

use self::repeated::Lookup;
use crate::dialect::Dialect;

/// Binary tensors up to this size in total are joined with the JSON: a short copy is cheaper than one more piece to
/// write.
const MAX_JOINED: usize = 4096;

/// The form of an output in the reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Form {
    #[default]
    Json,
    Binary,
    /// In shared memory, where it already is.
    Region,
}

/// The requested forms of outputs.
#[derive(Clone, Debug, Default)]
pub(super) struct Format {
    /// Form of outputs that the request does not name.
    pub default: Form,
    /// Forms of named outputs.
    pub named: Vec<(String, Form)>,
}

impl Format {
    fn of(&self, output: &str) -> Form {
        self.named.iter().find(|(name, _)| name == output).map_or(self.default, |(_, form)| *form)
    }

    /// Size in bytes of the outputs that become JSON.
    pub(super) fn text_size(&self, response: &Response) -> usize {
        let texts = response.outputs.iter().filter(|output| self.of(&output.name) == Form::Json);
        texts.map(Tensor::byte_size).sum()
    }
}

/// Encodes a response.
///
/// # Errors
/// An output cannot be represented in its requested form, or `budget` has no room for the text.
pub(super) fn encode(
    answers: &ResponseStream,
    response: Response,
    format: &Format,
    dialect: &Dialect,
    budget: &BodyBudget,
) -> Result<Reply> {
    let mut json = Vec::with_capacity(512);
    json.push(b'{');
    if !answers.request_id().is_empty() {
        json.extend_from_slice(b"\"id\":");
        string(&mut json, answers.request_id())?;
        json.push(b',');
    }
    if let Lookup::Missing { is_worth_keeping } = repeated::append(&mut json, answers, &response, format) {
        let start = json.len();
        members(&mut json, answers, &response, format)?;
        if is_worth_keeping {
            repeated::keep(json.get(start..).unwrap_or_default(), answers, &response, format);
        }
    }
    let outputs = response.outputs.into_iter();
    let binary: SmallVec<[Tensor; 2]> =
        outputs.filter(|output| format.of(&output.name) == Form::Binary).collect();
    // Without binary data, the reply is plain JSON, as in the reference.
    if binary.iter().all(|tensor| tensor.byte_size() == 0) {
        return Ok(json_bytes(StatusCode::OK, budget.hold(json)?));
    }
    with_binary(json, &binary, dialect, budget)
}

/// Appends all members but the request's id, and the closing brace.
fn members(json: &mut Vec<u8>, answers: &ResponseStream, response: &Response, format: &Format) -> Result<()> {
    json.extend_from_slice(b"\"model_name\":");
    string(json, answers.model_name())?;
    version(json, answers.model_version())?;
    if !response.parameters.is_empty() {
        json.extend_from_slice(b",\"parameters\":");
        parameters(json, &response.parameters)?;
    }
    json.extend_from_slice(b",\"outputs\":[");
    for (index, output) in response.outputs.iter().enumerate() {
        if index > 0 {
            json.push(b',');
        }
        json.extend_from_slice(b"{\"name\":");
        string(json, &output.name)?;
        json.extend_from_slice(b",\"datatype\":\"");
        json.extend_from_slice(output.data_type.protocol_name().as_bytes());
        json.extend_from_slice(b"\",\"shape\":[");
        for (index, dim) in output.shape.iter().enumerate() {
            if index > 0 {
                json.push(b',');
            }
            number(json, dim)?;
        }
        json.push(b']');
        match format.of(&output.name) {
            Form::Binary => {
                json.extend_from_slice(b",\"parameters\":{\"binary_data_size\":");
                number(json, output.byte_size())?;
                json.extend_from_slice(b"}}");
            }
            Form::Region => json.push(b'}'),
            Form::Json => {
                json.extend_from_slice(b",\"data\":[");
                elements(json, output)?;
                json.extend_from_slice(b"]}");
            }
        }
    }
    json.extend_from_slice(b"]}");
    Ok(())
}

fn with_binary(
    mut json: Vec<u8>,
    binary: &[Tensor],
    dialect: &Dialect,
    budget: &BodyBudget,
) -> Result<Reply> {
    let length = json.len();
    let mut pieces: SmallVec<[Bytes; 2]> = SmallVec::new();
    if binary.iter().map(Tensor::byte_size).sum::<usize>() <= MAX_JOINED {
        for tensor in binary {
            tensor.copy_to(&mut json)?;
        }
        pieces.push(budget.hold(json)?);
    } else {
        pieces.push(budget.hold(json)?);
        for (tensor, buffer) in
            binary.iter().flat_map(|tensor| tensor.buffers.iter().map(move |buffer| (tensor, buffer)))
        {
            pieces.push(buffer.as_host().cloned().ok_or_else(|| {
                Error::unsupported(format!(
                    "output '{}' is in device memory, which this server cannot read",
                    tensor.name
                ))
            })?);
        }
    }
    let mut reply = Reply::new(Contents::Whole(Pieces::new(pieces)));
    dialect.mark_binary(&mut reply, length);
    Ok(reply)
}

/// Appends the model's version. Replies are assembled from parts: formatting would take several times as long.
pub(super) fn version(json: &mut Vec<u8>, version: u64) -> Result<()> {
    json.extend_from_slice(b",\"model_version\":\"");
    number(json, version)?;
    json.push(b'"');
    Ok(())
}

/// Appends a JSON string. Most have nothing to escape.
pub(super) fn string(json: &mut Vec<u8>, text: &str) -> Result<()> {
    if !needs_escapes(text) {
        json.reserve(text.len() + 2);
        json.push(b'"');
        json.extend_from_slice(text.as_bytes());
        json.push(b'"');
        return Ok(());
    }
    serde_json::to_writer(json, text).map_err(|error| Error::internal(error.to_string()))
}

/// Whether a JSON string of this text has escapes: for a quote, a backslash or a control character.
fn needs_escapes(text: &str) -> bool {
    const EACH: u64 = 0x0101_0101_0101_0101;
    /// The highest bit of each byte that is less than `limit`, which is at most 128. May set bits above such a byte, too.
    fn less(word: u64, limit: u8) -> u64 {
        word.wrapping_sub(EACH * u64::from(limit)) & !word & (EACH << 7)
    }
    let any = |word: u64| {
        let (quote, backslash) = (word ^ (EACH * u64::from(b'"')), word ^ (EACH * u64::from(b'\\')));
        (less(word, b' ') | less(quote, 1) | less(backslash, 1)) != 0
    };
    let (words, rest) = text.as_bytes().as_chunks::<8>();
    let mut last = [b' '; 8];
    last.iter_mut().zip(rest).for_each(|(place, byte)| *place = *byte);
    words.iter().any(|word| any(u64::from_le_bytes(*word))) || any(u64::from_le_bytes(last))
}

fn parameters(json: &mut Vec<u8>, parameters: &Parameters) -> Result<()> {
    json.push(b'{');
    for (index, (name, value)) in parameters.iter().enumerate() {
        if index > 0 {
            json.push(b',');
        }
        string(json, name)?;
        json.push(b':');
        parameter(json, value)?;
    }
    json.push(b'}');
    Ok(())
}

/// Appends the value of a parameter.
pub(super) fn parameter(json: &mut Vec<u8>, value: &ParameterValue) -> Result<()> {
    match value {
        ParameterValue::Bool(value) => number(json, value),
        ParameterValue::Int(value) => number(json, value),
        ParameterValue::Double(value) => float(json, *value, value.is_finite()),
        ParameterValue::String(value) => string(json, value),
    }
}

/// Appends the elements of a tensor, flat, separated by commas.
pub(super) fn elements(json: &mut Vec<u8>, output: &Tensor) -> Result<()> {
    let contents = output.contiguous()?;
    let count = output.shape.element_count().unwrap_or(0);
    if output.data_type.byte_size().is_some_and(|size| size.checked_mul(count) != Some(contents.len())) {
        return Err(Error::internal(format!(
            "output '{}': {} bytes do not fit datatype {} and shape {}",
            output.name,
            contents.len(),
            output.data_type,
            output.shape
        )));
    }
    match output.data_type {
        DataType::Bool => each::<1>(json, &contents, |json, [byte]| {
            json.extend_from_slice(if byte == 0 { b"false" } else { b"true" });
            Ok(())
        }),
        DataType::Uint8 => each(json, &contents, |json, bytes| number(json, u8::from_le_bytes(bytes))),
        DataType::Uint16 => each(json, &contents, |json, bytes| number(json, u16::from_le_bytes(bytes))),
        DataType::Uint32 => each(json, &contents, |json, bytes| number(json, u32::from_le_bytes(bytes))),
        DataType::Uint64 => each(json, &contents, |json, bytes| number(json, u64::from_le_bytes(bytes))),
        DataType::Int8 => each(json, &contents, |json, bytes| number(json, i8::from_le_bytes(bytes))),
        DataType::Int16 => each(json, &contents, |json, bytes| number(json, i16::from_le_bytes(bytes))),
        DataType::Int32 => each(json, &contents, |json, bytes| number(json, i32::from_le_bytes(bytes))),
        DataType::Int64 => each(json, &contents, |json, bytes| number(json, i64::from_le_bytes(bytes))),
        DataType::Fp32 => each(json, &contents, |json, bytes| {
            let value = f32::from_le_bytes(bytes);
            float(json, value, value.is_finite())
        }),
        DataType::Fp64 => each(json, &contents, |json, bytes| {
            let value = f64::from_le_bytes(bytes);
            float(json, value, value.is_finite())
        }),
        DataType::Fp16 | DataType::Bf16 => Err(Error::invalid_arg(format!(
            "output '{}': JSON cannot represent {}; request binary data",
            output.name, output.data_type
        ))),
        DataType::Bytes => strings(json, output, &contents, count),
    }
}

fn each<const N: usize>(
    json: &mut Vec<u8>,
    contents: &[u8],
    write: impl Fn(&mut Vec<u8>, [u8; N]) -> Result<()>,
) -> Result<()> {
    for (index, bytes) in contents.as_chunks::<N>().0.iter().enumerate() {
        if index > 0 {
            json.push(b',');
        }
        write(json, *bytes)?;
    }
    Ok(())
}

/// Appends a number or a boolean.
fn number(json: &mut Vec<u8>, value: impl serde::Serialize) -> Result<()> {
    serde_json::to_writer(json, &value).map_err(|error| Error::internal(error.to_string()))
}

/// Appends the shortest digits that round-trip, or NaN, Infinity or -Infinity, as the reference (and Python) writes
/// them.
fn float(json: &mut Vec<u8>, value: impl serde::Serialize + Copy + Into<f64>, finite: bool) -> Result<()> {
    if finite {
        return number(json, value);
    }
    let value: f64 = value.into();
    json.extend_from_slice(match value {
        f64::INFINITY => b"Infinity",
        f64::NEG_INFINITY => b"-Infinity",
        _ => b"NaN",
    });
    Ok(())
}

fn strings(json: &mut Vec<u8>, output: &Tensor, contents: &[u8], count: usize) -> Result<()> {
    let mut written = 0;
    for (index, element) in BytesElements::new(contents).enumerate() {
        written += 1;
        if index > 0 {
            json.push(b',');
        }
        let text = std::str::from_utf8(element?).map_err(|_| {
            Error::invalid_arg(format!(
                "output '{}': element {index} is not valid UTF-8; request binary data",
                output.name
            ))
        })?;
        string(json, text)?;
    }
    if written != count {
        return Err(Error::internal(format!(
            "output '{}': {written} strings do not fit shape {}, which has {count} elements",
            output.name, output.shape
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(output: Tensor) -> Result<String> {
        let mut json = Vec::new();
        elements(&mut json, &output)?;
        Ok(String::from_utf8(json).unwrap())
    }

    #[test]
    fn floats_are_written_short_and_special_values_as_words() {
        let values = [0.1_f32, 1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, -0.0];
        let contents: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let json = json(Tensor::new("X", DataType::Fp32, [7], contents)).unwrap();
        assert_eq!(json, "0.1,1.0,NaN,Infinity,-Infinity,3.4028235e+38,-0.0");
    }

    #[test]
    fn strings_are_written_as_by_serde_json() {
        for byte in 0..=0x7f_u8 {
            for length in 0..20 {
                for place in 0..=length {
                    let text = format!(
                        "{}{}\u{e9}{}",
                        "x".repeat(place),
                        char::from(byte),
                        "\u{7f}".repeat(length - place)
                    );
                    let mut json = Vec::new();
                    string(&mut json, &text).unwrap();
                    assert_eq!(String::from_utf8(json).unwrap(), serde_json::to_string(&text).unwrap());
                    let is_escaped = byte < b' ' || byte == b'"' || byte == b'\\';
                    assert_eq!(needs_escapes(&text), is_escaped, "{text:?}");
                }
            }
        }
    }

    #[test]
    fn bytes_are_written_as_strings_and_refused_if_they_are_not_text() {
        assert_eq!(
            json(Tensor::new("X", DataType::Bytes, [2], b"\x02\0\0\0a\"\0\0\0\0".to_vec())).unwrap(),
            r#""a\"","""#
        );
        assert!(json(Tensor::new("X", DataType::Bytes, [1], b"\x01\0\0\0\xff".to_vec())).is_err());
    }

    #[test]
    fn an_output_of_the_wrong_size_is_refused() {
        assert!(json(Tensor::new("X", DataType::Int32, [2], vec![0; 4])).is_err());
        assert!(json(Tensor::new("X", DataType::Bytes, [2], vec![0; 4])).is_err());
        assert!(json(Tensor::new("X", DataType::Bytes, [1], vec![0; 8])).is_err());
    }

    #[test]
    fn named_outputs_override_the_default_form() {
        let format = Format { default: Form::Binary, named: vec![("A".into(), Form::Json)] };
        assert_eq!((format.of("A"), format.of("B")), (Form::Json, Form::Binary));
    }
}

//! Reads a configuration from JSON, as clients send it with a load request.
//!
//! Accepts everything that Triton's reader accepts, which is more than JSON: field names in the schema's form or in
//! camel case; integers as numbers or strings, in any notation if they are whole; enum values by name in any case, or
//! by number; a single value for a list; `null` for an omitted field; trailing commas; single quotes; and unquoted
//! names. General readers for Rust refuse some of these. Driven by the descriptors: knows no field by name, and
//! descends no deeper than the schema.

use prost_reflect::{
    DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor, ReflectMessage, Value,
};

use super::lexer::{Fault, Kind as TokenKind, Lexer, SHOWN, Token};
use crate::proto::{self, ModelConfig};
use crate::shorten::shorten;
use crate::text::suggest::nearest;

/// The error of a text that is not a configuration in JSON, and its position.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {}{message}", in_field(.field))]
pub struct JsonError {
    line: usize,
    column: usize,
    field: String,
    message: String,
}

fn in_field(field: &str) -> String {
    if field.is_empty() { String::new() } else { format!("field '{field}': ") }
}

impl JsonError {
    /// The line, counted from 1.
    pub fn line(&self) -> usize {
        self.line
    }

    /// The column in characters, counted from 1.
    pub fn column(&self) -> usize {
        self.column
    }

    /// The path of the field being read, as in [`ValidationError`](crate::ValidationError); empty for the whole text.
    pub fn field(&self) -> &str {
        &self.field
    }

    /// The error, and what would be right.
    pub fn message(&self) -> &str {
        &self.message
    }
}

/// Reads a configuration. Text from [`to_json`](crate::to_json) is read back unchanged.
///
/// # Errors
/// The first error in the text.
pub fn from_json(text: &str) -> Result<ModelConfig, JsonError> {
    let mut reader = Reader { lexer: Lexer::new(text), token: None, path: String::new() };
    let mut message = DynamicMessage::new(proto::descriptor());
    let result = reader
        .document(&mut message)
        .and_then(|()| message.transcode_to().map_err(|error| Fault::new(text.len(), error.to_string())));
    result.map_err(|fault| {
        let before = text.get(..fault.offset).unwrap_or(text);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        JsonError {
            line: before.bytes().filter(|&byte| byte == b'\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            field: reader.path,
            message: fault.message,
        }
    })
}

struct Reader<'a> {
    lexer: Lexer<'a>,
    /// A peeked token.
    token: Option<Token<'a>>,
    path: String,
}

impl<'a> Reader<'a> {
    fn document(&mut self, message: &mut DynamicMessage) -> Result<(), Fault> {
        self.message(message)?;
        let token = self.take()?;
        match token.kind {
            TokenKind::End => Ok(()),
            _ => Err(expected("the end of the configuration", &token)),
        }
    }

    fn take(&mut self) -> Result<Token<'a>, Fault> {
        self.token.take().map_or_else(|| self.lexer.next(), Ok)
    }

    /// Takes the next token if it is `kind`.
    fn accept(&mut self, kind: &TokenKind<'_>) -> Result<bool, Fault> {
        let token = self.take()?;
        let fits = token.kind == *kind;
        if !fits {
            self.token = Some(token);
        }
        Ok(fits)
    }

    fn accept_mark(&mut self, mark: char) -> Result<bool, Fault> {
        self.accept(&TokenKind::Mark(mark))
    }

    fn message(&mut self, message: &mut DynamicMessage) -> Result<(), Fault> {
        let descriptor = message.descriptor();
        self.members(|reader, name, start| {
            let field = descriptor
                .get_field_by_name(&name)
                .or_else(|| descriptor.get_field_by_json_name(&name))
                .ok_or_else(|| unknown_field(&descriptor, &name, start))?;
            reader.field(message, &field, start)
        })
    }

    /// The members of an object, with the name and its byte offset.
    fn members(
        &mut self,
        mut member: impl FnMut(&mut Self, String, usize) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let open = self.take()?;
        if open.kind != TokenKind::Mark('{') {
            return Err(expected("an object: '{'", &open));
        }
        while !self.accept_mark('}')? {
            let name = self.take()?;
            let text = match name.kind {
                TokenKind::Text(ref text) => text.clone().into_owned(),
                TokenKind::Word(text) if !matches!(text, "true" | "false" | "null") => text.to_owned(),
                _ => return Err(expected("a field's name or '}'", &name)),
            };
            let colon = self.take()?;
            if colon.kind != TokenKind::Mark(':') {
                return Err(expected("':'", &colon));
            }
            member(self, text, name.start)?;
            if !self.accept_mark(',')? {
                let end = self.take()?;
                if end.kind != TokenKind::Mark('}') {
                    return Err(expected("',' or '}'", &end));
                }
                break;
            }
        }
        Ok(())
    }

    fn field(
        &mut self,
        message: &mut DynamicMessage,
        field: &FieldDescriptor,
        start: usize,
    ) -> Result<(), Fault> {
        let above = self.path.len();
        if above > 0 {
            self.path.push('.');
        }
        self.path.push_str(field.name());
        if !self.accept(&TokenKind::Word("null"))? {
            check_choice(message, field, start)?;
            self.value_of(message, field)?;
        }
        self.path.truncate(above);
        Ok(())
    }

    fn value_of(&mut self, message: &mut DynamicMessage, field: &FieldDescriptor) -> Result<(), Fault> {
        if field.is_map() {
            return self.map(message, field);
        }
        if field.is_list() {
            return self.list(message, field);
        }
        match message.get_field_mut(field) {
            Value::Message(inner) => self.message(inner),
            plain => {
                *plain = self.value(&field.kind())?;
                Ok(())
            }
        }
    }

    fn map(&mut self, message: &mut DynamicMessage, field: &FieldDescriptor) -> Result<(), Fault> {
        let Kind::Message(entry) = field.kind() else { unreachable!("a map's entries are messages") };
        let (key_kind, value_kind) =
            (entry.map_entry_key_field().kind(), entry.map_entry_value_field().kind());
        let above = self.path.len();
        self.members(|reader, name, start| {
            reader.path.push_str(&format!("[{:?}]", shorten(&name, SHOWN)));
            let key = match key_kind {
                Kind::String => MapKey::String(name),
                Kind::Uint64 => MapKey::U64(
                    name.parse().map_err(|_| Fault::new(start, "expected a non-negative integer key"))?,
                ),
                _ => unreachable!("the schema has no such key"),
            };
            let value = if reader.accept(&TokenKind::Word("null"))? {
                Value::default_value(&value_kind)
            } else {
                reader.value(&value_kind)?
            };
            let entries = message.get_field_mut(field).as_map_mut();
            if entries.is_some_and(|entries| entries.insert(key, value).is_some()) {
                return Err(Fault::new(start, "the key is set twice"));
            }
            reader.path.truncate(above);
            Ok(())
        })
    }

    fn list(&mut self, message: &mut DynamicMessage, field: &FieldDescriptor) -> Result<(), Fault> {
        let kind = field.kind();
        if !self.accept_mark('[')? {
            let value = self.value(&kind)?;
            push(message, field, value);
            return Ok(());
        }
        let above = self.path.len();
        while !self.accept_mark(']')? {
            if !self.accept(&TokenKind::Word("null"))? {
                let index = message.get_field(field).as_list().map_or(0, <[Value]>::len);
                self.path.push_str(&format!("[{index}]"));
                let value = self.value(&kind)?;
                push(message, field, value);
                self.path.truncate(above);
            }
            if !self.accept_mark(',')? {
                let end = self.take()?;
                if end.kind != TokenKind::Mark(']') {
                    return Err(expected("',' or ']'", &end));
                }
                break;
            }
        }
        Ok(())
    }

    fn value(&mut self, kind: &Kind) -> Result<Value, Fault> {
        if let Kind::Message(descriptor) = kind {
            let mut message = DynamicMessage::new(descriptor.clone());
            self.message(&mut message)?;
            return Ok(Value::Message(message));
        }
        let token = self.take()?;
        scalar(kind, &token)
    }
}

fn push(message: &mut DynamicMessage, field: &FieldDescriptor, value: Value) {
    if let Some(list) = message.get_field_mut(field).as_list_mut() {
        list.push(value);
    }
}

fn expected(what: &str, found: &Token<'_>) -> Fault {
    Fault::new(found.start, format!("expected {what}, found {}", found.describe()))
}

fn unknown_field(descriptor: &MessageDescriptor, name: &str, start: usize) -> Fault {
    let fields: Vec<_> = descriptor.fields().collect();
    let message = format!("{} has no field '{}'", descriptor.name(), shorten(name, SHOWN));
    Fault::new(start, with_suggestion(message, nearest(name, fields.iter().map(FieldDescriptor::name))))
}

fn with_suggestion(mut message: String, nearest: Option<&str>) -> String {
    if let Some(nearest) = nearest {
        message += &format!("; did you mean '{nearest}'?");
    }
    message
}

/// Checks that at most one member of a oneof is set, and only once.
fn check_choice(message: &DynamicMessage, field: &FieldDescriptor, start: usize) -> Result<(), Fault> {
    let Some(choice) = field.containing_oneof() else { return Ok(()) };
    match choice.fields().find(|other| message.has_field(other)) {
        None => Ok(()),
        Some(other) if other == *field => Err(Fault::new(start, format!("'{}' is set twice", field.name()))),
        Some(other) => {
            let message = format!("'{}' conflicts with '{}': set only one", field.name(), other.name());
            Err(Fault::new(start, message))
        }
    }
}

fn scalar(kind: &Kind, token: &Token<'_>) -> Result<Value, Fault> {
    let value = match (kind, &token.kind) {
        (Kind::String, TokenKind::Text(text)) => Some(Value::String(text.clone().into_owned())),
        (Kind::Bool, TokenKind::Word("true")) => Some(Value::Bool(true)),
        (Kind::Bool, TokenKind::Word("false")) => Some(Value::Bool(false)),
        (Kind::Bool, TokenKind::Text(text)) => text.parse().ok().map(Value::Bool),
        (Kind::Int32, kind) => integer(kind).and_then(|value| i32::try_from(value).ok()).map(Value::I32),
        (Kind::Int64, kind) => integer(kind).and_then(|value| i64::try_from(value).ok()).map(Value::I64),
        (Kind::Uint32, kind) => integer(kind).and_then(|value| u32::try_from(value).ok()).map(Value::U32),
        (Kind::Uint64, kind) => integer(kind).and_then(|value| u64::try_from(value).ok()).map(Value::U64),
        (Kind::Float, kind) => {
            let narrow = |value: f64| {
                #[allow(
                    clippy::cast_possible_truncation,
                    reason = "what a float cannot hold becomes infinite"
                )]
                let narrow = value as f32;
                (narrow.is_finite() || !value.is_finite()).then_some(Value::F32(narrow))
            };
            float(kind).and_then(narrow)
        }
        (Kind::Double, kind) => float(kind).map(Value::F64),
        (Kind::Enum(_), TokenKind::Text(_) | TokenKind::Number(_)) => return enumeration(kind, token),
        _ => None,
    };
    value.ok_or_else(|| expected(expected_kind(kind), token))
}

fn expected_kind(kind: &Kind) -> &'static str {
    match kind {
        Kind::String => "a string",
        Kind::Bool => "true or false",
        Kind::Int32 => "a 32-bit integer",
        Kind::Int64 => "a 64-bit integer",
        Kind::Uint32 => "an unsigned 32-bit integer",
        Kind::Uint64 => "an unsigned 64-bit integer",
        Kind::Enum(_) => "an enum value's name",
        _ => "a number",
    }
}

/// An integer in any notation, as a number or as a string of digits.
fn integer(kind: &TokenKind<'_>) -> Option<i128> {
    match kind {
        TokenKind::Text(text) => text.parse().ok(),
        TokenKind::Number(text) => {
            let exact = Some(*text).filter(|text| is_number(text))?;
            exact.parse().ok().or_else(|| as_whole_number(exact.parse().ok()?))
        }
        _ => None,
    }
}

/// Values below 2^64 in magnitude fit any field that can hold them.
fn as_whole_number(value: f64) -> Option<i128> {
    #[allow(clippy::cast_possible_truncation, reason = "it is whole and within the range")]
    (value.fract() == 0.0 && value.abs() < 18_446_744_073_709_551_616.0).then_some(value as i128)
}

/// A finite number, or one of protobuf's names for the others.
fn float(kind: &TokenKind<'_>) -> Option<f64> {
    match kind {
        TokenKind::Text(text) => match text.as_ref() {
            "NaN" => Some(f64::NAN),
            "Infinity" => Some(f64::INFINITY),
            "-Infinity" => Some(f64::NEG_INFINITY),
            digits => {
                digits.parse().ok().filter(|_| is_number(digits)).filter(|value: &f64| value.is_finite())
            }
        },
        TokenKind::Number(text) => {
            text.parse().ok().filter(|_| is_number(text)).filter(|value: &f64| value.is_finite())
        }
        _ => None,
    }
}

/// Whether a text is a JSON number. The lexer accepts everything similar.
fn is_number(text: &str) -> bool {
    let text = text.strip_prefix('-').unwrap_or(text);
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let (mantissa, exponent) = text.split_once(['e', 'E']).map_or((text, None), |(m, e)| (m, Some(e)));
    let (whole, fraction) = mantissa.split_once('.').map_or((mantissa, None), |(w, f)| (w, Some(f)));
    let signless = |exponent: &'_ str| exponent.strip_prefix(['+', '-']).unwrap_or(exponent).to_owned();
    digits(whole)
        && (whole == "0" || !whole.starts_with('0'))
        && fraction.is_none_or(digits)
        && exponent.is_none_or(|exponent| digits(&signless(exponent)))
}

/// A value by its name in any case, optionally with `-` for `_`, or by its number, which may be unknown.
fn enumeration(kind: &Kind, token: &Token<'_>) -> Result<Value, Fault> {
    let Kind::Enum(descriptor) = kind else { return Err(expected(expected_kind(kind), token)) };
    if let TokenKind::Text(name) = &token.kind {
        let plain = name.replace('-', "_");
        if let Some(value) = descriptor.values().find(|value| value.name().eq_ignore_ascii_case(&plain)) {
            return Ok(Value::EnumNumber(value.number()));
        }
    }
    if let Some(number) = integer(&token.kind).and_then(|number| i32::try_from(number).ok()) {
        return Ok(Value::EnumNumber(number));
    }
    let TokenKind::Text(name) = &token.kind else { return Err(expected(expected_kind(kind), token)) };
    let values: Vec<_> = descriptor.values().collect();
    let message = format!("{} is not a value of {}", token.describe(), descriptor.name());
    Err(Fault::new(
        token.start,
        with_suggestion(message, nearest(name, values.iter().map(|value| value.name()))),
    ))
}

#[cfg(test)]
mod tests;

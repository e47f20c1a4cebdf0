//! Builds a message from tokens, guided by the schema's descriptors.
//!
//! Descends only as deep as the schema, so the text cannot choose the depth. Errors in a single field or value go to
//! the [`Watch`], which decides whether to continue.

use prost_reflect::{
    DynamicMessage, EnumDescriptor, FieldDescriptor, Kind, MessageDescriptor, ReflectMessage, Value,
};

use super::error::Problem;
use super::lexer::{Lexer, Token, TokenKind, unescape};
use super::suggest::nearest;
use super::watch::{Strict, Watch};

/// Reads a text as one message, or up to its first problem.
pub(super) fn parse(descriptor: MessageDescriptor, text: &str) -> Result<DynamicMessage, Problem> {
    let mut message = DynamicMessage::new(descriptor);
    parse_into(&mut message, text, &mut Strict)?;
    Ok(message)
}

/// Reads a text into `message`, as far as `watch` permits. Wrong fields and values are omitted; in a list, the
/// default replaces them, so that the other elements keep their indices.
///
/// # Errors
/// The problem that ended the reading. `message` contains everything before it, except the top-level field with the
/// problem.
pub(super) fn parse_into<W: Watch>(
    message: &mut DynamicMessage,
    text: &str,
    watch: &mut W,
) -> Result<(), Problem> {
    let mut lexer = Lexer::new(text);
    let token = lexer.next()?;
    let mut parser = Parser { lexer, token, watch };
    while parser.token.kind != TokenKind::End {
        parser.field(message)?;
    }
    Ok(())
}

/// The number of the key's field in every map entry, fixed by protobuf.
const KEY: u32 = 1;

struct Parser<'a, 'w, W> {
    lexer: Lexer<'a>,
    /// The next unused token.
    token: Token<'a>,
    watch: &'w mut W,
}

impl<'a, W: Watch> Parser<'a, '_, W> {
    fn advance(&mut self) -> Result<Token<'a>, Problem> {
        let next = self.lexer.next()?;
        Ok(std::mem::replace(&mut self.token, next))
    }

    fn accept(&mut self, symbol: char) -> Result<bool, Problem> {
        let found = self.token.is_symbol(symbol);
        if found {
            self.advance()?;
        }
        Ok(found)
    }

    /// The error for a token other than `expected`.
    fn expected(&self, expected: &str) -> Problem {
        Problem::new(self.token.start, format!("expected {expected}, found {}", self.token.describe()))
    }

    /// Like [`Self::expected`], for a value of the wrong type.
    fn expected_value(&self, expected: &str) -> Problem {
        self.expected(expected).recoverable()
    }

    fn field(&mut self, message: &mut DynamicMessage) -> Result<(), Problem> {
        if self.token.kind != TokenKind::Ident {
            return Err(self.expected("a field name"));
        }
        let name = self.advance()?;
        let descriptor = message.descriptor();
        match descriptor.get_field_by_name(name.text) {
            Some(field) => self.known_field(&name, &field, message)?,
            None => {
                self.watch.note(unknown_field(&name, &descriptor))?;
                if !self.accept(':')? && !self.token.opens() {
                    return Err(self.expected(&format!("':' after {}", name.describe())));
                }
                self.skip_value()?;
            }
        }
        if !self.accept(',')? {
            self.accept(';')?;
        }
        Ok(())
    }

    fn known_field(
        &mut self,
        name: &Token<'_>,
        field: &FieldDescriptor,
        message: &mut DynamicMessage,
    ) -> Result<(), Problem> {
        let mut spare;
        let taken = check_not_set(message, field, name);
        self.watch.enter(field, name.start);
        let message = match taken {
            Ok(()) => message,
            // A repeated setting is still checked, but the first one wins.
            Err(problem) => {
                self.watch.note(problem)?;
                spare = DynamicMessage::new(message.descriptor());
                &mut spare
            }
        };
        let is_message = matches!(field.kind(), Kind::Message(_));
        if !self.accept(':')? && !is_message {
            return Err(self.expected(&format!("':' after '{}'", field.name())));
        }
        if field.is_map() {
            self.elements(name, field, |value| {
                if let Some(entry) = value {
                    insert_entry(message, field, entry);
                }
            })?;
        } else if field.is_list() {
            self.elements(name, field, |value| {
                if let Some(list) = message.get_field_mut(field).as_list_mut() {
                    list.push(value.unwrap_or_else(|| Value::default_value(&field.kind())));
                }
            })?;
        } else if let Some(value) = self.value(field)? {
            if message.descriptor().is_map_entry() && field.number() == KEY {
                self.watch.key(&value);
            }
            message.set_field(field, value);
        }
        self.watch.leave();
        Ok(())
    }

    /// One value, or a bracketed list of them.
    fn elements(
        &mut self,
        name: &Token<'_>,
        field: &FieldDescriptor,
        mut add: impl FnMut(Option<Value>),
    ) -> Result<(), Problem> {
        if !self.accept('[')? {
            add(self.element(name.start, field)?);
            return Ok(());
        }
        if self.accept(']')? {
            return Ok(());
        }
        loop {
            add(self.element(self.token.start, field)?);
            if self.accept(']')? {
                return Ok(());
            }
            if !self.accept(',')? {
                return Err(self.expected(&format!("',' or ']' in the list of '{}'", field.name())));
            }
        }
    }

    fn element(&mut self, start: usize, field: &FieldDescriptor) -> Result<Option<Value>, Problem> {
        self.watch.enter_element(start);
        let value = self.value(field)?;
        self.watch.leave();
        Ok(value)
    }

    /// One value; `None` if it was wrong and skipped.
    fn value(&mut self, field: &FieldDescriptor) -> Result<Option<Value>, Problem> {
        let (lexer, token) = (self.lexer, self.token);
        match self.exact_value(field) {
            Ok(value) => Ok(Some(value)),
            Err(problem) if problem.is_recoverable() && token.begins_value() => {
                self.watch.note(problem.unrecoverable())?;
                (self.lexer, self.token) = (lexer, token);
                self.skip_value()?;
                Ok(None)
            }
            Err(problem) => Err(problem.unrecoverable()),
        }
    }

    /// Skips any value or list, in any form and at any depth.
    fn skip_value(&mut self) -> Result<(), Problem> {
        let first = self.token;
        if !first.opens() {
            while self.accept('-')? {}
            match self.token.kind {
                TokenKind::Ident | TokenKind::Integer | TokenKind::Float => self.advance()?,
                TokenKind::String => {
                    while self.token.kind == TokenKind::String {
                        self.advance()?;
                    }
                    return Ok(());
                }
                _ => return Err(self.expected("a value")),
            };
            return Ok(());
        }
        let mut open = Vec::new();
        loop {
            if let Some(closing) = self.token.closing() {
                open.push((self.token, closing));
            } else if let Some(&(opening, closing)) = open.last() {
                match self.token.kind {
                    TokenKind::End => {
                        return Err(Problem::new(opening.start, format!("'{}' is not closed", opening.text)));
                    }
                    TokenKind::Symbol(symbol @ ('}' | ']' | '>')) if symbol == closing => {
                        open.pop();
                    }
                    TokenKind::Symbol('}' | ']' | '>') => {
                        return Err(self.expected(&format!("'{closing}' to close '{}'", opening.text)));
                    }
                    _ => {}
                }
            }
            self.advance()?;
            if open.is_empty() {
                return Ok(());
            }
        }
    }

    fn exact_value(&mut self, field: &FieldDescriptor) -> Result<Value, Problem> {
        Ok(match field.kind() {
            Kind::Message(descriptor) => Value::Message(self.message(field, descriptor)?),
            Kind::Enum(descriptor) => Value::EnumNumber(self.enum_value(field, &descriptor)?),
            Kind::Bool => Value::Bool(self.boolean(field)?),
            Kind::String => Value::String(self.string(field)?),
            Kind::Bytes => Value::Bytes(self.bytes(field)?.into()),
            Kind::Float => Value::F32(self.float(field)? as f32),
            Kind::Double => Value::F64(self.float(field)?),
            Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => {
                Value::I32(self.integer(field, "a 32-bit integer")?)
            }
            Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => {
                Value::I64(self.integer(field, "a 64-bit integer")?)
            }
            Kind::Uint32 | Kind::Fixed32 => Value::U32(self.integer(field, "an unsigned 32-bit integer")?),
            Kind::Uint64 | Kind::Fixed64 => Value::U64(self.integer(field, "an unsigned 64-bit integer")?),
        })
    }

    fn message(
        &mut self,
        field: &FieldDescriptor,
        descriptor: MessageDescriptor,
    ) -> Result<DynamicMessage, Problem> {
        let opening = self.token;
        let closing = match opening.kind {
            TokenKind::Symbol('{') => '}',
            TokenKind::Symbol('<') => '>',
            _ => return Err(self.expected_value(&format!("'{{' to open '{}'", field.name()))),
        };
        self.advance()?;
        let mut message = DynamicMessage::new(descriptor);
        while !self.accept(closing)? {
            match self.token.kind {
                TokenKind::Ident => self.field(&mut message)?,
                TokenKind::End => {
                    let what = format!("'{}' of '{}' is not closed", opening.text, field.name());
                    return Err(Problem::new(opening.start, what));
                }
                _ => {
                    return Err(self.expected(&format!("a field name or '{closing}' in '{}'", field.name())));
                }
            }
        }
        Ok(message)
    }

    fn enum_value(&mut self, field: &FieldDescriptor, descriptor: &EnumDescriptor) -> Result<i32, Problem> {
        match self.token.kind {
            TokenKind::Ident => {
                let token = self.advance()?;
                match descriptor.get_value_by_name(token.text) {
                    Some(value) => Ok(value.number()),
                    None => Err(unknown_value(&token, field, descriptor)),
                }
            }
            // The number of the value. Unnamed numbers are allowed, as everywhere in protobuf 3.
            TokenKind::Integer | TokenKind::Symbol('-') => self.integer(field, "a 32-bit integer"),
            _ => Err(self.expected_value(&format!("the name of a value for '{}'", field.name()))),
        }
    }

    fn boolean(&mut self, field: &FieldDescriptor) -> Result<bool, Problem> {
        let value = match (self.token.kind, self.token.text) {
            (TokenKind::Ident, "true" | "True" | "t") => true,
            (TokenKind::Ident, "false" | "False" | "f") => false,
            (TokenKind::Integer, text) if magnitude(text) == Some(1) => true,
            (TokenKind::Integer, text) if magnitude(text) == Some(0) => false,
            _ => return Err(self.expected_value(&format!("true or false for '{}'", field.name()))),
        };
        self.advance()?;
        Ok(value)
    }

    fn integer<T: TryFrom<i128>>(&mut self, field: &FieldDescriptor, kind: &str) -> Result<T, Problem> {
        let start = self.token.start;
        let negative = self.accept('-')?;
        if self.token.kind != TokenKind::Integer {
            return Err(self.expected_value(&format!("{kind} for '{}'", field.name())));
        }
        let token = self.advance()?;
        magnitude(token.text)
            .map(|value| if negative { -i128::from(value) } else { i128::from(value) })
            .and_then(|value| T::try_from(value).ok())
            .ok_or_else(|| {
                let sign = if negative { "-" } else { "" };
                let what = format!("{sign}{} is out of range for '{}', {kind}", token.text, field.name());
                Problem::new(start, what).recoverable()
            })
    }

    fn float(&mut self, field: &FieldDescriptor) -> Result<f64, Problem> {
        let negative = self.accept('-')?;
        let value = match (self.token.kind, self.token.text) {
            (TokenKind::Float, text) => text.trim_end_matches(['f', 'F']).parse().ok(),
            (TokenKind::Integer, text) if text == "0" || !text.starts_with('0') => text.parse().ok(),
            (TokenKind::Ident, text)
                if ["inf", "infinity"].iter().any(|name| text.eq_ignore_ascii_case(name)) =>
            {
                Some(f64::INFINITY)
            }
            (TokenKind::Ident, text) if text.eq_ignore_ascii_case("nan") => Some(f64::NAN),
            _ => None,
        };
        let Some(value) = value else {
            return Err(self.expected_value(&format!("a decimal number for '{}'", field.name())));
        };
        self.advance()?;
        Ok(if negative { -value } else { value })
    }

    fn string(&mut self, field: &FieldDescriptor) -> Result<String, Problem> {
        let start = self.token.start;
        String::from_utf8(self.bytes(field)?).map_err(|_| {
            Problem::new(start, format!("the string for '{}' is not valid UTF-8", field.name())).recoverable()
        })
    }

    /// One string, or several adjacent ones, which are concatenated.
    fn bytes(&mut self, field: &FieldDescriptor) -> Result<Vec<u8>, Problem> {
        if self.token.kind != TokenKind::String {
            return Err(self.expected_value(&format!("a string in quotes for '{}'", field.name())));
        }
        let mut value = Vec::new();
        while self.token.kind == TokenKind::String {
            unescape(&self.token, &mut value).map_err(Problem::recoverable)?;
            self.advance()?;
        }
        Ok(value)
    }
}

/// Protobuf refuses to set a field twice unless it is repeated. A plain field set to its default value does not count
/// as set.
fn check_not_set(message: &DynamicMessage, field: &FieldDescriptor, name: &Token<'_>) -> Result<(), Problem> {
    if field.is_list() || field.is_map() {
        return Ok(());
    }
    if message.has_field(field) {
        return Err(Problem::new(name.start, format!("'{}' is set twice", field.name())));
    }
    let Some(oneof) = field.containing_oneof() else { return Ok(()) };
    match oneof.fields().find(|other| message.has_field(other)) {
        Some(other) => {
            let what = format!("'{}' conflicts with '{}': set only one", field.name(), other.name());
            Err(Problem::new(name.start, what))
        }
        None => Ok(()),
    }
}

/// Inserts an entry into the map; a later entry replaces an earlier one with the same key.
fn insert_entry(message: &mut DynamicMessage, field: &FieldDescriptor, entry: Value) {
    let Value::Message(entry) = entry else { return };
    let descriptor = entry.descriptor();
    let key = entry.get_field(&descriptor.map_entry_key_field()).into_owned();
    let value = entry.get_field(&descriptor.map_entry_value_field()).into_owned();
    if let (Some(key), Some(map)) = (key.into_map_key(), message.get_field_mut(field).as_map_mut()) {
        map.insert(key, value);
    }
}

/// The value of an integer token, if it fits into 64 bits.
fn magnitude(text: &str) -> Option<u64> {
    if let Some(hex) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        u64::from_str_radix(hex, 16).ok()
    } else if text.len() > 1 && text.starts_with('0') {
        u64::from_str_radix(text, 8).ok()
    } else {
        text.parse().ok()
    }
}

fn unknown_field(name: &Token<'_>, descriptor: &MessageDescriptor) -> Problem {
    let fields: Vec<_> = descriptor.fields().collect();
    let what = if descriptor.is_map_entry() { "a map's entry" } else { descriptor.name() };
    Problem::new(name.start, format!("{what} has no field {}", name.describe()))
        .with_suggestion(nearest(name.text, fields.iter().map(FieldDescriptor::name)))
        .unknown_field(name.text)
}

fn unknown_value(name: &Token<'_>, field: &FieldDescriptor, descriptor: &EnumDescriptor) -> Problem {
    let values: Vec<_> = descriptor.values().collect();
    let message = format!("{} is not a value of '{}'", name.describe(), field.name());
    let problem = match nearest(name.text, values.iter().map(|value| value.name())) {
        Some(near) => Problem::new(name.start, message).with_suggestion(Some(near)),
        None => {
            let names: Vec<_> = values.iter().map(|value| value.name()).collect();
            Problem::new(name.start, format!("{message}; values are {}", names.join(", ")))
        }
    };
    problem.recoverable()
}

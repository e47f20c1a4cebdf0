//! An error in a text, and its place.

use std::fmt;

/// A place in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The line, counted from 1.
    pub line: usize,
    /// The column in characters, counted from 1. A tab is one character.
    pub column: usize,
}

/// `line:column`, in the form that editors accept after a file's name.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// The error of a text that is not a configuration, and its position.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {}, column {}: {message}", place.line, place.column)]
pub struct ParseError {
    place: Place,
    message: String,
    nearest: Option<String>,
}

impl ParseError {
    /// The position of the error.
    pub fn place(&self) -> Place {
        self.place
    }

    /// The line, counted from 1.
    pub fn line(&self) -> usize {
        self.place.line
    }

    /// The column in characters, counted from 1. A tab is one character.
    pub fn column(&self) -> usize {
        self.place.column
    }

    /// The error, without the position.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The name that was probably meant, if a field or a value is unknown. The message contains it, too.
    pub fn nearest(&self) -> Option<&str> {
        self.nearest.as_deref()
    }
}

/// An error at a byte offset, before lines are counted.
#[derive(Debug)]
pub(super) struct Problem {
    pub(super) offset: usize,
    message: String,
    /// The field's name in the text, if the schema has no such field.
    pub(super) unknown: Option<String>,
    nearest: Option<String>,
    /// Whether only a single value is wrong, so that parsing can continue after it.
    in_value: bool,
}

impl Problem {
    pub(super) fn new(offset: usize, message: impl Into<String>) -> Self {
        Self { offset, message: message.into(), unknown: None, nearest: None, in_value: false }
    }

    /// Adds the name that was probably meant.
    pub(super) fn with_suggestion(mut self, nearest: Option<&str>) -> Self {
        if let Some(nearest) = nearest {
            self.message += &format!("; did you mean '{nearest}'?");
            self.nearest = Some(nearest.to_owned());
        }
        self
    }

    /// Marks the problem as a field unknown to the schema.
    pub(super) fn unknown_field(mut self, name: &str) -> Self {
        self.unknown = Some(name.to_owned());
        self
    }

    /// Marks a single value as wrong, so that parsing can continue after it.
    pub(super) fn recoverable(mut self) -> Self {
        self.in_value = true;
        self
    }

    /// Marks the rest of the text as unreadable.
    pub(super) fn unrecoverable(mut self) -> Self {
        self.in_value = false;
        self
    }

    pub(super) fn is_recoverable(&self) -> bool {
        self.in_value
    }

    pub(super) fn locate(self, text: &str) -> ParseError {
        let mut cursor = Cursor::new(text);
        let place = cursor.place(self.offset);
        self.at(place)
    }

    pub(super) fn at(self, place: Place) -> ParseError {
        ParseError { place, message: self.message, nearest: self.nearest }
    }
}

/// Counts lines and columns. In forward order, each byte of the text is read once.
#[derive(Debug)]
pub(super) struct Cursor<'a> {
    text: &'a str,
    offset: usize,
    place: Place,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, offset: 0, place: Place { line: 1, column: 1 } }
    }

    /// The position of a byte offset.
    pub(super) fn place(&mut self, offset: usize) -> Place {
        if offset < self.offset {
            *self = Self::new(self.text);
        }
        let passed = self.text.get(self.offset..offset).unwrap_or_default();
        match passed.rfind('\n') {
            Some(newline) => {
                self.place.line += passed.bytes().filter(|&byte| byte == b'\n').count();
                self.place.column = passed[newline + 1..].chars().count() + 1;
            }
            None => self.place.column += passed.chars().count(),
        }
        self.offset += passed.len();
        self.place
    }
}

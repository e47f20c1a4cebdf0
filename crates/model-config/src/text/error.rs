//! What is wrong with a text, and where.

/// Why a text is no configuration, and where that shows.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {message}")]
pub struct ParseError {
    line: usize,
    column: usize,
    message: String,
}

impl ParseError {
    /// The line, counted from 1.
    pub fn line(&self) -> usize {
        self.line
    }

    /// The column in characters, counted from 1. A tab is one character.
    pub fn column(&self) -> usize {
        self.column
    }

    /// What is wrong, without the place.
    pub fn message(&self) -> &str {
        &self.message
    }
}

/// An error at a byte of the text, before anybody has counted lines.
#[derive(Debug)]
pub(super) struct Problem {
    offset: usize,
    message: String,
}

impl Problem {
    pub(super) fn new(offset: usize, message: impl Into<String>) -> Self {
        Self { offset, message: message.into() }
    }

    pub(super) fn locate(self, text: &str) -> ParseError {
        let before = text.get(..self.offset).unwrap_or(text);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        ParseError {
            line: before.bytes().filter(|&byte| byte == b'\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            message: self.message,
        }
    }
}

//! Splits JSON into tokens, with the extensions of Triton's reader: single-quoted strings, unquoted names. Knows
//! nothing of configurations.

use std::borrow::Cow;

use crate::shorten::shorten;

/// Limit of text quoted in a message, in characters.
pub(super) const SHOWN: usize = 60;

/// An error and its byte offset.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) offset: usize,
    pub(super) message: String,
}

impl Fault {
    pub(super) fn new(offset: usize, message: impl Into<String>) -> Self {
        Self { offset, message: message.into() }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Kind<'a> {
    /// One of `{}[]:,`.
    Mark(char),
    /// The contents of a string, with escapes resolved.
    Text(Cow<'a, str>),
    /// As written; begins with a digit or a minus.
    Number(&'a str),
    /// `true`, `false`, `null`, or an unquoted name.
    Word(&'a str),
    End,
}

/// A token and its byte offset.
#[derive(Debug, Clone)]
pub(super) struct Token<'a> {
    pub(super) kind: Kind<'a>,
    pub(super) start: usize,
}

impl Token<'_> {
    pub(super) fn describe(&self) -> String {
        match &self.kind {
            Kind::Mark(mark) => format!("'{mark}'"),
            Kind::Text(text) => format!("\"{}\"", shorten(text, SHOWN)),
            Kind::Number(text) | Kind::Word(text) => format!("'{}'", shorten(text, SHOWN)),
            Kind::End => "the end of the text".to_owned(),
        }
    }
}

#[derive(Debug)]
pub(super) struct Lexer<'a> {
    text: &'a str,
    position: usize,
}

impl<'a> Lexer<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, position: 0 }
    }

    pub(super) fn next(&mut self) -> Result<Token<'a>, Fault> {
        let rest = self.rest().trim_start_matches([' ', '\t', '\n', '\r']);
        let start = self.text.len() - rest.len();
        self.position = start;
        let kind = match rest.chars().next() {
            None => Kind::End,
            Some(mark @ ('{' | '}' | '[' | ']' | ':' | ',')) => {
                self.position += 1;
                Kind::Mark(mark)
            }
            Some(quote @ ('"' | '\'')) => {
                self.position += 1;
                Kind::Text(self.string(quote)?)
            }
            Some('-' | '0'..='9') => {
                Kind::Number(self.take(|c| matches!(c, '0'..='9' | '+' | '-' | '.' | 'e' | 'E')))
            }
            Some('a'..='z' | 'A'..='Z' | '_' | '$') => {
                Kind::Word(self.take(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '$')))
            }
            Some(other) => {
                return Err(Fault::new(start, format!("{other:?} is not valid JSON here")));
            }
        };
        Ok(Token { kind, start })
    }

    fn rest(&self) -> &'a str {
        &self.text[self.position..]
    }

    fn take(&mut self, belongs: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let end = rest.find(|c| !belongs(c)).unwrap_or(rest.len());
        self.position += end;
        &rest[..end]
    }

    /// The rest of a string, after its opening quote.
    fn string(&mut self, quote: char) -> Result<Cow<'a, str>, Fault> {
        let start = self.position - 1;
        let mut text = Cow::Borrowed("");
        loop {
            let plain = self.take(|c| c != quote && c != '\\');
            if text.is_empty() {
                text = Cow::Borrowed(plain);
            } else {
                text.to_mut().push_str(plain);
            }
            match self.rest().chars().next() {
                None => return Err(Fault::new(start, "the string is not closed")),
                Some('\\') => text.to_mut().push(self.escape()?),
                Some(_) => {
                    self.position += 1;
                    return Ok(text);
                }
            }
        }
    }

    fn escape(&mut self) -> Result<char, Fault> {
        let start = self.position;
        let Some(letter) = self.rest().chars().nth(1) else {
            return Err(Fault::new(start, "the string ends inside an escape sequence"));
        };
        self.position += 1 + letter.len_utf8();
        let meant = match letter {
            'b' => '\u{8}',
            'f' => '\u{c}',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'v' => '\u{b}',
            'u' => return self.unicode(start),
            other => other,
        };
        Ok(meant)
    }

    /// The character of a `\u` escape; a character outside the basic plane takes two escapes.
    fn unicode(&mut self, start: usize) -> Result<char, Fault> {
        let first = self.four_digits(start)?;
        let code = if matches!(first, 0xD800..=0xDBFF) && self.rest().starts_with("\\u") {
            self.position += 2;
            match self.four_digits(start)? {
                second @ 0xDC00..=0xDFFF => 0x1_0000 + ((first - 0xD800) << 10) + (second - 0xDC00),
                _ => first,
            }
        } else {
            first
        };
        char::from_u32(code).ok_or_else(|| Fault::new(start, "unpaired surrogate"))
    }

    fn four_digits(&mut self, start: usize) -> Result<u32, Fault> {
        let digits =
            self.rest().get(..4).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let code = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok());
        self.position += 4;
        code.ok_or_else(|| Fault::new(start, "'\\u' needs four hexadecimal digits"))
    }
}

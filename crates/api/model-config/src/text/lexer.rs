//! Splits a text into tokens, like protobuf's own reader.

use super::error::Problem;

/// A piece of the text.
#[derive(Debug, Clone, Copy)]
pub(super) struct Token<'a> {
    pub(super) kind: TokenKind,
    /// As written; strings include their quotes.
    pub(super) text: &'a str,
    /// The byte offset of its start.
    pub(super) start: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TokenKind {
    Ident,
    /// Without a sign; decimal, `0x` and hexadecimal digits, or `0` and octal digits.
    Integer,
    Float,
    String,
    Symbol(char),
    End,
}

impl Token<'_> {
    pub(super) fn is_symbol(&self, symbol: char) -> bool {
        self.kind == TokenKind::Symbol(symbol)
    }

    /// The closing bracket for an opening one.
    pub(super) fn closing(&self) -> Option<char> {
        match self.kind {
            TokenKind::Symbol('{') => Some('}'),
            TokenKind::Symbol('[') => Some(']'),
            TokenKind::Symbol('<') => Some('>'),
            _ => None,
        }
    }

    /// Whether the token opens a message or a list.
    pub(super) fn opens(&self) -> bool {
        self.closing().is_some()
    }

    /// Whether the token can begin a value of any type, or a list.
    pub(super) fn begins_value(&self) -> bool {
        self.opens() || self.is_symbol('-') || !matches!(self.kind, TokenKind::Symbol(_) | TokenKind::End)
    }

    /// The token's description for error messages.
    pub(super) fn describe(&self) -> String {
        const LONGEST: usize = 40;
        match self.kind {
            TokenKind::End => "the end of the text".to_owned(),
            TokenKind::String if self.text.chars().count() > LONGEST => "a string".to_owned(),
            TokenKind::String => format!("the string {}", self.text),
            _ if self.text.chars().count() > LONGEST => {
                format!("'{}...'", self.text.chars().take(LONGEST).collect::<String>())
            }
            _ => format!("'{}'", self.text),
        }
    }
}

#[derive(Clone, Copy)]
pub(super) struct Lexer<'a> {
    text: &'a str,
    offset: usize,
}

impl<'a> Lexer<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        // Some editors prepend a byte order mark.
        let offset = if text.starts_with('\u{feff}') { '\u{feff}'.len_utf8() } else { 0 };
        Self { text, offset }
    }

    pub(super) fn next(&mut self) -> Result<Token<'a>, Problem> {
        self.skip_space_and_comments();
        let start = self.offset;
        let Some(first) = self.peek(0) else {
            return Ok(Token { kind: TokenKind::End, text: "", start });
        };
        let kind = match first {
            b'a'..=b'z' | b'A'..=b'Z' | b'_' => {
                self.skip_while(is_ident);
                TokenKind::Ident
            }
            b'0'..=b'9' => self.number()?,
            b'.' if self.peek(1).is_some_and(|byte| byte.is_ascii_digit()) => self.number()?,
            b'"' | b'\'' => self.string(first)?,
            b'{' | b'}' | b'[' | b']' | b'<' | b'>' | b':' | b',' | b';' | b'-' | b'.' | b'/' => {
                self.offset += 1;
                TokenKind::Symbol(char::from(first))
            }
            _ => {
                let found = self.text[start..].chars().next().unwrap_or_default();
                return Err(Problem::new(start, format!("unexpected character {found:?}")));
            }
        };
        Ok(Token { kind, text: &self.text[start..self.offset], start })
    }

    fn peek(&self, ahead: usize) -> Option<u8> {
        self.text.as_bytes().get(self.offset + ahead).copied()
    }

    fn skip_while(&mut self, accept: impl Fn(u8) -> bool) -> usize {
        let rest = &self.text.as_bytes()[self.offset..];
        let count = rest.iter().position(|&byte| !accept(byte)).unwrap_or(rest.len());
        self.offset += count;
        count
    }

    fn skip_space_and_comments(&mut self) {
        loop {
            self.skip_while(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c));
            if self.peek(0) != Some(b'#') {
                return;
            }
            self.skip_while(|byte| byte != b'\n');
        }
    }

    fn number(&mut self) -> Result<TokenKind, Problem> {
        let start = self.offset;
        let mut kind = TokenKind::Integer;
        if self.peek(0) == Some(b'0') && matches!(self.peek(1), Some(b'x' | b'X')) {
            self.offset += 2;
            if self.skip_while(|byte| byte.is_ascii_hexdigit()) == 0 {
                return Err(Problem::new(start, "'0x' must be followed by hexadecimal digits"));
            }
        } else if self.peek(0) == Some(b'0') && self.peek(1).is_some_and(|byte| byte.is_ascii_digit()) {
            self.skip_while(|byte| matches!(byte, b'0'..=b'7'));
            if self.peek(0).is_some_and(|byte| byte.is_ascii_digit()) {
                return Err(Problem::new(
                    start,
                    "a number with a leading 0 is octal and cannot contain 8 or 9",
                ));
            }
        } else {
            kind = self.decimal(start)?;
        }
        match self.peek(0) {
            Some(byte) if is_ident(byte) => {
                Err(Problem::new(start, "a number must be followed by white space or punctuation"))
            }
            Some(b'.') => Err(Problem::new(start, "a number cannot have a decimal point here")),
            _ => Ok(kind),
        }
    }

    fn decimal(&mut self, start: usize) -> Result<TokenKind, Problem> {
        let is_digit = |byte: u8| byte.is_ascii_digit();
        let mut kind = TokenKind::Integer;
        self.skip_while(is_digit);
        if self.peek(0) == Some(b'.') {
            kind = TokenKind::Float;
            self.offset += 1;
            self.skip_while(is_digit);
        }
        if matches!(self.peek(0), Some(b'e' | b'E')) {
            kind = TokenKind::Float;
            self.offset += 1;
            if matches!(self.peek(0), Some(b'+' | b'-')) {
                self.offset += 1;
            }
            if self.skip_while(is_digit) == 0 {
                return Err(Problem::new(start, "'e' must be followed by an exponent"));
            }
        }
        if matches!(self.peek(0), Some(b'f' | b'F')) {
            kind = TokenKind::Float;
            self.offset += 1;
        }
        Ok(kind)
    }

    fn string(&mut self, quote: u8) -> Result<TokenKind, Problem> {
        let start = self.offset;
        self.offset += 1;
        loop {
            self.skip_while(|byte| byte != quote && !matches!(byte, b'\\' | b'\n' | 0));
            match (self.peek(0), self.peek(1)) {
                (Some(byte), _) if byte == quote => {
                    self.offset += 1;
                    return Ok(TokenKind::String);
                }
                (Some(0), _) | (Some(b'\\'), Some(0)) => {
                    return Err(Problem::new(self.offset, "a string cannot contain a NUL character"));
                }
                (Some(b'\n'), _) | (Some(b'\\'), Some(b'\n')) => {
                    return Err(Problem::new(start, "the string is not closed on its line"));
                }
                (Some(_), Some(_)) => {
                    // A backslash and the escaped character.
                    self.offset += 1;
                    self.offset += self.text[self.offset..].chars().next().map_or(0, char::len_utf8);
                }
                _ => return Err(Problem::new(start, "the string does not end")),
            }
        }
    }
}

fn is_ident(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Appends the value of a string token.
pub(super) fn unescape(token: &Token<'_>, out: &mut Vec<u8>) -> Result<(), Problem> {
    let body = &token.text[1..token.text.len() - 1];
    let body_start = token.start + 1;
    let mut rest = body;
    while let Some(backslash) = rest.find('\\') {
        out.extend_from_slice(&rest.as_bytes()[..backslash]);
        let at = body_start + (body.len() - rest.len()) + backslash;
        rest = escape(&rest[backslash + 1..], out).map_err(|message| Problem::new(at, message))?;
    }
    out.extend_from_slice(rest.as_bytes());
    Ok(())
}

/// Appends the character of the escape at the start of `rest`, without its backslash; returns the remaining text.
fn escape<'a>(rest: &'a str, out: &mut Vec<u8>) -> Result<&'a str, &'static str> {
    let Some(letter) = rest.chars().next() else {
        return Err("incomplete escape sequence");
    };
    let simple = match letter {
        'a' => 0x07,
        'b' => 0x08,
        'f' => 0x0c,
        'n' => b'\n',
        'r' => b'\r',
        't' => b'\t',
        'v' => 0x0b,
        '\\' | '?' | '\'' | '"' => letter as u8,
        '0'..='7' => {
            let (value, after) = digits(rest, 8, 3).ok_or("the escape sequence is not octal")?;
            out.push(u8::try_from(value).map_err(|_| "an octal escape goes up to \\377")?);
            return Ok(after);
        }
        'x' | 'X' => {
            let (value, after) =
                digits(&rest[1..], 16, 2).ok_or("'\\x' must be followed by hexadecimal digits")?;
            out.push(value as u8);
            return Ok(after);
        }
        'u' => return unicode(&rest[1..], out),
        'U' => {
            let (value, after) =
                exactly(&rest[1..], 8).ok_or("'\\U' must be followed by 8 hexadecimal digits")?;
            push_char(char::from_u32(value), out)?;
            return Ok(after);
        }
        _ => return Err("unknown escape sequence"),
    };
    out.push(simple);
    Ok(&rest[1..])
}

/// `\u` and four digits; two escapes may be the surrogates of one character, as in UTF-16.
fn unicode<'a>(rest: &'a str, out: &mut Vec<u8>) -> Result<&'a str, &'static str> {
    const MISSING: &str = "'\\u' must be followed by 4 hexadecimal digits";
    let (value, after) = exactly(rest, 4).ok_or(MISSING)?;
    if let 0xd800..=0xdbff = value
        && let Some(second) = after.strip_prefix("\\u")
    {
        let (low, after) = exactly(second, 4).ok_or(MISSING)?;
        if let 0xdc00..=0xdfff = low {
            push_char(char::from_u32(0x10000 + ((value - 0xd800) << 10) + (low - 0xdc00)), out)?;
            return Ok(after);
        }
    }
    push_char(char::from_u32(value), out)?;
    Ok(after)
}

fn push_char(value: Option<char>, out: &mut Vec<u8>) -> Result<(), &'static str> {
    let value = value.ok_or("the escape sequence is not a Unicode character")?;
    out.extend_from_slice(value.encode_utf8(&mut [0; 4]).as_bytes());
    Ok(())
}

fn exactly(rest: &str, count: usize) -> Option<(u32, &str)> {
    digits(rest, 16, count).filter(|(_, after)| rest.len() - after.len() == count)
}

/// The number at the start of `rest`, with one to `longest` digits, and the remaining text.
fn digits(rest: &str, radix: u32, longest: usize) -> Option<(u32, &str)> {
    let count = rest.chars().take(longest).take_while(|digit| digit.is_digit(radix)).count();
    let (number, after) = rest.split_at_checked(count)?;
    Some((u32::from_str_radix(number, radix).ok()?, after))
}

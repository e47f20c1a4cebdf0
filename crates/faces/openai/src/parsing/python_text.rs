//! A string literal of Python, read while it arrives, as a string of JSON.

/// A literal behind its first quote.
#[derive(Clone, Debug)]
pub(super) struct PythonText {
    quote: char,
    /// Whether backslashes stand for themselves.
    is_raw: bool,
    place: Place,
    /// The quotes in front of the next character.
    quotes: usize,
    /// The first half of a character whose two escapes are UTF-16.
    half: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    /// Behind its first quotes, of which more may follow.
    Opening,
    Short,
    /// Between three quotes.
    Long,
    /// Behind a backslash and these characters.
    Escape {
        text: String,
        is_long: bool,
    },
}

/// The effect of a character on a literal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The character belongs to the literal.
    More,
    /// The character ends the literal.
    Over,
    /// The literal has ended in front of the character.
    Behind,
}

impl PythonText {
    pub(super) fn new(quote: char, is_raw: bool) -> Self {
        Self { quote, is_raw, place: Place::Opening, quotes: 1, half: None }
    }

    /// Reads a character. Adds what it completes to the inside of a string of JSON.
    pub(super) fn push(&mut self, character: char, json: &mut String) -> Step {
        match &self.place {
            Place::Opening => {
                if character == self.quote {
                    self.quotes += 1;
                    if self.quotes == 3 {
                        (self.place, self.quotes) = (Place::Long, 0);
                    }
                    return Step::More;
                }
                if self.quotes == 2 {
                    return Step::Behind;
                }
                (self.place, self.quotes) = (Place::Short, 0);
                self.inside(character, false, json)
            }
            Place::Short => self.inside(character, false, json),
            Place::Long => self.inside(character, true, json),
            Place::Escape { text, is_long } => {
                let (text, is_long) = (text.clone(), *is_long);
                self.escape(text, character, is_long, json)
            }
        }
    }

    fn inside(&mut self, character: char, is_long: bool, json: &mut String) -> Step {
        if character == self.quote {
            self.quotes += 1;
            let is_over = !is_long || self.quotes == 3;
            if is_over {
                self.finish(json);
            }
            return if is_over { Step::Over } else { Step::More };
        }
        for _ in 0..std::mem::take(&mut self.quotes) {
            self.add(self.quote, json);
        }
        if character == '\\' {
            self.place = Place::Escape { text: String::new(), is_long };
        } else {
            self.add(character, json);
        }
        Step::More
    }

    /// Reads a character behind a backslash and the text of an escape.
    fn escape(&mut self, mut text: String, character: char, is_long: bool, json: &mut String) -> Step {
        let inside = if is_long { Place::Long } else { Place::Short };
        if self.is_raw {
            self.place = inside;
            self.add('\\', json);
            self.add(character, json);
            return Step::More;
        }
        let Some(kind) = text.chars().next() else {
            let plain = match character {
                'x' | 'u' | 'U' | '0'..='7' => {
                    text.push(character);
                    self.place = Place::Escape { text, is_long };
                    return Step::More;
                }
                '\n' => None,
                '\\' | '\'' | '"' => Some(character),
                'a' => Some('\u{7}'),
                'b' => Some('\u{8}'),
                'f' => Some('\u{c}'),
                'n' => Some('\n'),
                'r' => Some('\r'),
                't' => Some('\t'),
                'v' => Some('\u{b}'),
                other => {
                    self.add('\\', json);
                    Some(other)
                }
            };
            self.place = inside;
            if let Some(plain) = plain {
                self.add(plain, json);
            }
            return Step::More;
        };
        let (radix, length) = match kind {
            'x' => (16, 3),
            'u' => (16, 5),
            'U' => (16, 9),
            _ => (8, 3),
        };
        let takes = character.is_digit(radix);
        if takes {
            text.push(character);
        }
        if takes && text.len() < length {
            self.place = Place::Escape { text, is_long };
            return Step::More;
        }
        self.place = inside;
        let digits = text.get(if radix == 8 { 0 } else { 1 }..).unwrap_or_default();
        match u32::from_str_radix(digits, radix) {
            Ok(code) if radix == 8 || text.len() == length => self.code(code, json),
            // Too few digits.
            _ => {
                self.add('\\', json);
                text.chars().for_each(|character| self.add(character, json));
            }
        }
        if takes { Step::More } else { self.push(character, json) }
    }

    /// Adds the character of an escape.
    fn code(&mut self, code: u32, json: &mut String) {
        match (self.half.take(), code) {
            (Some(high), 0xDC00..=0xDFFF) => {
                add(char::from_u32(0x10000 + ((high - 0xD800) << 10) + (code - 0xDC00)), json);
            }
            (half, _) => {
                if half.is_some() {
                    add(None, json);
                }
                match code {
                    0xD800..=0xDBFF => self.half = Some(code),
                    code => add(char::from_u32(code), json),
                }
            }
        }
    }

    fn add(&mut self, character: char, json: &mut String) {
        if self.half.take().is_some() {
            add(None, json);
        }
        add(Some(character), json);
    }

    /// Adds what is still held of a literal that has ended, or was cut off.
    pub(super) fn finish(&mut self, json: &mut String) {
        if self.half.take().is_some() {
            add(None, json);
        }
    }
}

/// Adds a character to the inside of a string of JSON; a replacement character for a number without one.
fn add(character: Option<char>, json: &mut String) {
    match character.unwrap_or(char::REPLACEMENT_CHARACTER) {
        character @ ('"' | '\\') => json.extend(['\\', character]),
        '\n' => json.push_str("\\n"),
        '\r' => json.push_str("\\r"),
        '\t' => json.push_str("\\t"),
        character if character < ' ' => json.push_str(&format!("\\u{:04x}", u32::from(character))),
        character => json.push(character),
    }
}

//! The arguments of a Python call as an object of JSON, translated while they arrive. Literals become JSON. Anything else is passed on as
//! it is, which leaves the object invalid, as an object is that a model writes wrongly itself.

use serde_json::value::RawValue;

use super::python_text::{PythonText, Step};

/// Arguments behind their opening parenthesis.
#[derive(Debug)]
pub(super) struct PythonArguments {
    place: Place,
    /// The open brackets within an argument.
    brackets: Vec<Bracket>,
    /// The number of brackets around the outermost open group, and its place in the JSON.
    group: Option<(usize, usize)>,
    /// Whether a comma precedes what comes next, unless that is a closing bracket.
    has_comma: bool,
    is_first: bool,
    /// Whether a value precedes.
    is_behind: bool,
    /// JSON that is not passed on yet.
    json: String,
    /// The length of the JSON that was passed on.
    passed: usize,
}

#[derive(Debug)]
enum Place {
    /// In front of an argument, or in its name. `is_over` behind whitespace.
    Name {
        name: String,
        is_over: bool,
    },
    /// Between two values.
    Between,
    /// In a number, a constant, or a name.
    Word(String),
    Text(PythonText),
    /// Behind a text, which another one may continue.
    AfterText,
}

#[derive(Clone, Copy, Debug)]
enum Bracket {
    List,
    Dict {
        is_key: bool,
    },
    /// A tuple, or a value in parentheses. At this place of the JSON is a space, which becomes the bracket of a list.
    Group {
        at: usize,
        has_comma: bool,
    },
    /// A call, which is passed on as it is.
    Call,
}

impl PythonArguments {
    pub(super) fn new() -> Self {
        Self {
            place: Place::Name { name: String::new(), is_over: false },
            brackets: Vec::new(),
            group: None,
            has_comma: false,
            is_first: true,
            is_behind: false,
            json: "{".to_owned(),
            passed: 0,
        }
    }

    /// Reads up to the end of the call. Returns the length of what belongs to it, if it has ended.
    pub(super) fn push(&mut self, text: &str) -> Option<usize> {
        text.char_indices().find_map(|(at, character)| {
            match character {
                _ if matches!(self.place, Place::Text(_)) => {}
                // No literal has this character: the call is cut.
                '<' => return Some(at),
                // A parenthesis too few.
                ']' if self.brackets.is_empty() => {
                    self.end();
                    return Some(at);
                }
                _ => {}
            }
            self.read(character).then_some(at + character.len_utf8())
        })
    }

    /// The JSON that is known since the last call.
    pub(super) fn take(&mut self) -> String {
        let json = match self.group.map(|(_, at)| at - self.passed) {
            None => std::mem::take(&mut self.json),
            Some(0) => String::new(),
            Some(at) => {
                let rest = self.json.split_off(at);
                std::mem::replace(&mut self.json, rest)
            }
        };
        self.passed += json.len();
        json
    }

    /// The rest of the JSON of arguments that were cut off.
    pub(super) fn finish(&mut self) -> String {
        if let Place::Text(text) = &mut self.place {
            text.finish(&mut self.json);
        }
        self.end_value();
        std::mem::take(&mut self.json)
    }

    /// Reads a character. Returns whether it ends the call.
    fn read(&mut self, character: char) -> bool {
        match &mut self.place {
            Place::Name { name, is_over } => {
                if character.is_whitespace() {
                    *is_over = !name.is_empty();
                    return false;
                }
                if !*is_over && is_name(character) {
                    name.push(character);
                    return false;
                }
                let name = std::mem::take(name);
                self.place = Place::Between;
                match character {
                    ')' if name.is_empty() => {
                        self.end();
                        return true;
                    }
                    '=' if !name.is_empty() => {
                        self.separate();
                        self.json.push_str(&serde_json::Value::from(name).to_string());
                        self.json.push_str(": ");
                        return false;
                    }
                    // An argument without a name.
                    _ => {
                        self.separate();
                        if !name.is_empty() {
                            self.place = Place::Word(name);
                        }
                    }
                }
                self.read(character)
            }
            Place::Text(text) => {
                match text.push(character, &mut self.json) {
                    Step::More => return false,
                    Step::Over => self.place = Place::AfterText,
                    Step::Behind => {
                        self.place = Place::AfterText;
                        return self.read(character);
                    }
                }
                false
            }
            Place::AfterText if matches!(character, '\'' | '"') => {
                self.place = Place::Text(PythonText::new(character, false));
                false
            }
            Place::AfterText if character.is_whitespace() => false,
            Place::Word(word) => {
                let is_exponent = matches!(character, '+' | '-')
                    && word.ends_with(['e', 'E'])
                    && word.starts_with(|first: char| {
                        first.is_ascii_digit() || matches!(first, '-' | '+' | '.')
                    });
                if is_name(character) || character == '.' || is_exponent {
                    word.push(character);
                    return false;
                }
                let is_raw = matches!(word.as_str(), "r" | "R");
                if matches!(character, '\'' | '"') && (is_raw || matches!(word.as_str(), "u" | "U")) {
                    self.begin_text(character, is_raw);
                    return false;
                }
                self.end_value();
                self.read(character)
            }
            Place::AfterText => {
                self.end_value();
                self.read(character)
            }
            Place::Between => self.between(character),
        }
    }

    fn between(&mut self, character: char) -> bool {
        match character {
            _ if character.is_whitespace() => {}
            '\'' | '"' => self.begin_text(character, false),
            ',' => self.comma(),
            ':' => {
                self.json.push_str(": ");
                self.is_behind = false;
                if let Some(Bracket::Dict { is_key }) = self.brackets.last_mut() {
                    *is_key = false;
                }
            }
            '[' | '{' | '(' => self.open(character),
            ')' if self.brackets.is_empty() => {
                self.end();
                return true;
            }
            ']' | '}' | ')' => self.close(character),
            '-' | '+' => {
                self.begin_value();
                self.place = Place::Word(character.to_string());
            }
            _ if is_name(character) || character == '.' => {
                self.begin_value();
                self.place = Place::Word(character.to_string());
            }
            _ => {
                self.is_behind = false;
                self.begin_value();
                self.json.push(character);
            }
        }
        false
    }

    fn open(&mut self, character: char) {
        let is_call = std::mem::take(&mut self.is_behind) && character == '(';
        self.begin_value();
        let at = self.passed + self.json.len();
        let bracket = match character {
            '[' => Bracket::List,
            '{' => Bracket::Dict { is_key: true },
            _ if is_call => Bracket::Call,
            _ => Bracket::Group { at, has_comma: false },
        };
        let is_group = matches!(bracket, Bracket::Group { .. });
        if is_group && self.group.is_none() {
            self.group = Some((self.brackets.len(), at));
        }
        self.brackets.push(bracket);
        self.json.push(if is_group { ' ' } else { character });
    }

    fn comma(&mut self) {
        self.is_behind = false;
        match self.brackets.last_mut() {
            None => {
                self.place = Place::Name { name: String::new(), is_over: false };
                return;
            }
            Some(Bracket::Dict { is_key }) => *is_key = true,
            Some(Bracket::Group { has_comma, .. }) => *has_comma = true,
            Some(Bracket::List | Bracket::Call) => {}
        }
        self.has_comma = true;
    }

    fn close(&mut self, character: char) {
        let is_empty = |at: usize| self.passed + self.json.len() == at + 1;
        match (character, self.brackets.last().copied()) {
            (']', Some(Bracket::List)) | ('}', Some(Bracket::Dict { .. })) | (')', Some(Bracket::Call)) => {
                self.json.push(character);
            }
            (')', Some(Bracket::Group { at, has_comma })) => {
                if has_comma || is_empty(at) {
                    let at = at - self.passed;
                    self.json.replace_range(at..=at, "[");
                    self.json.push(']');
                }
            }
            _ => {
                self.json.push(character);
                return;
            }
        }
        (self.has_comma, self.is_behind) = (false, true);
        self.brackets.pop();
        self.group = self.group.filter(|(outer, _)| *outer < self.brackets.len());
    }

    /// Separates an argument from the one before.
    fn separate(&mut self) {
        self.is_behind = false;
        if !std::mem::take(&mut self.is_first) {
            self.json.push_str(", ");
        }
    }

    fn begin_value(&mut self) {
        if std::mem::take(&mut self.has_comma) {
            self.json.push_str(", ");
        }
        if std::mem::take(&mut self.is_behind) {
            self.json.push(' ');
        }
    }

    fn begin_text(&mut self, quote: char, is_raw: bool) {
        self.begin_value();
        self.json.push('"');
        self.place = Place::Text(PythonText::new(quote, is_raw));
    }

    /// Ends a word or a text.
    fn end_value(&mut self) {
        match std::mem::replace(&mut self.place, Place::Between) {
            Place::Word(word) => {
                let value = word_json(&word);
                match self.brackets.last() {
                    Some(Bracket::Dict { is_key: true }) => {
                        self.json.push_str(&serde_json::Value::from(value).to_string());
                    }
                    _ => self.json.push_str(&value),
                }
            }
            Place::AfterText => self.json.push('"'),
            place => {
                self.place = place;
                return;
            }
        }
        self.is_behind = true;
    }

    /// Ends the call.
    fn end(&mut self) {
        self.end_value();
        self.json.push('}');
    }
}

/// Whether a character may be in a name or number.
pub(super) fn is_name(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// The JSON of a number or constant. Models also write JSON's own constants.
fn word_json(word: &str) -> String {
    match word {
        "True" => "true".to_owned(),
        "False" => "false".to_owned(),
        "None" => "null".to_owned(),
        _ => number_json(word).unwrap_or_else(|| word.to_owned()),
    }
}

/// The JSON of a number, which Python writes in more ways.
fn number_json(word: &str) -> Option<String> {
    let (sign, digits) = match word.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", word.strip_prefix('+').unwrap_or(word)),
    };
    if !digits.starts_with(|first: char| first.is_ascii_digit() || first == '.') {
        return None;
    }
    let digits = digits.replace('_', "").to_ascii_lowercase();
    for (prefix, radix) in [("0x", 16), ("0o", 8), ("0b", 2)] {
        if let Some(digits) = digits.strip_prefix(prefix) {
            return Some(format!("{sign}{}", u128::from_str_radix(digits, radix).ok()?));
        }
    }
    let (number, exponent) =
        digits.split_once('e').map_or((digits.as_str(), None), |(number, exponent)| (number, Some(exponent)));
    let (whole, fraction) =
        number.split_once('.').map_or((number, None), |(whole, fraction)| (whole, Some(fraction)));
    let zero = |digits: &str| if digits.is_empty() { "0".to_owned() } else { digits.to_owned() };
    let mut json = format!("{sign}{}", zero(whole));
    if let Some(fraction) = fraction {
        json.push('.');
        json.push_str(&zero(fraction));
    }
    if let Some(exponent) = exponent {
        json.push('e');
        json.push_str(exponent);
    }
    // Complex numbers, names and numbers of several lines are none of JSON.
    serde_json::from_str::<&RawValue>(&json).is_ok().then_some(json)
}

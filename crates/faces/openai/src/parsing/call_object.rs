//! A tool call as a JSON object with `name` and `arguments`, read while it arrives: the name is known before the end of the
//! arguments, whose text is passed on as it is written.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::Part;
use super::brackets::Brackets;

/// A call that is being read.
#[derive(Debug)]
pub(super) struct CallObject {
    /// Whether a call has to have arguments.
    needs_arguments: bool,
    /// The text in front of the arguments, or all of it until a name is known.
    head: String,
    brackets: Brackets,
    state: State,
    name: Option<String>,
    /// The key of the member that is being read.
    key: Option<String>,
    /// Where the string that is being read, or that was read last, begins in `head`.
    string: usize,
    /// Whether the text is behind the colon of a member.
    is_value: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Head,
    Arguments,
    Tail,
}

/// The end of a call.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct End {
    /// The text behind the call.
    pub rest: String,
    /// Text that turned out to be no call.
    pub rejected: Option<String>,
}

impl CallObject {
    pub(super) fn new(needs_arguments: bool) -> Self {
        Self {
            needs_arguments,
            head: String::new(),
            brackets: Brackets::default(),
            state: State::Head,
            name: None,
            key: None,
            string: 0,
            is_value: false,
        }
    }

    /// Adds a piece, which begins with `{` if it is the first one.
    pub(super) fn push(&mut self, piece: &str, parts: &mut Vec<Part>) -> Option<End> {
        // Where the arguments begin that are not passed on.
        let mut begin = 0;
        for (at, character) in piece.char_indices() {
            let after = at + character.len_utf8();
            let was_string = self.brackets.is_string();
            if character == '<' && !was_string {
                // JSON has no such character: the object is cut.
                self.pass_on(piece.get(begin..at), parts);
                return Some(self.end(piece.get(at..), parts));
            }
            self.brackets.push(character);
            match self.state {
                State::Head => {
                    self.head.push(character);
                    if self.brackets.depth() == 0 {
                        return Some(self.end(piece.get(after..), parts));
                    }
                    if self.begins_arguments(character, was_string) {
                        self.head.clear();
                        parts.push(Part::Call(self.name.take().unwrap_or_default()));
                        self.state = State::Arguments;
                        begin = at;
                    }
                }
                State::Arguments if self.brackets.depth() == 1 => {
                    self.pass_on(piece.get(begin..after), parts);
                    self.state = State::Tail;
                }
                State::Tail if self.brackets.depth() == 0 => {
                    return Some(self.end(piece.get(after..), parts));
                }
                State::Arguments | State::Tail => {}
            }
        }
        self.pass_on(piece.get(begin..), parts);
        None
    }

    /// Ends an object whose output has ended. Returns its text unless it is a call.
    pub(super) fn finish(&mut self, parts: &mut Vec<Part>) -> Option<String> {
        self.end(None, parts).rejected
    }

    /// Reads a character of the head. Returns whether it opens the arguments of a call whose name is known.
    fn begins_arguments(&mut self, character: char, was_string: bool) -> bool {
        let is_string = self.brackets.is_string();
        match self.brackets.depth() {
            1 if was_string && !is_string => {
                let text = self.head.get(self.string..).unwrap_or_default();
                let text = serde_json::from_str::<String>(text).ok();
                if !self.is_value {
                    self.key = text;
                } else if self.key.as_deref() == Some("name") && self.name.is_none() {
                    self.name = text;
                }
            }
            1 if is_string && !was_string => self.string = self.head.len() - 1,
            1 if !is_string => self.is_value = (self.is_value && character != ',') || character == ':',
            2 if character == '{' && !was_string => {
                let is_key = matches!(self.key.as_deref(), Some("arguments" | "parameters"));
                return is_key && self.is_value && self.name.is_some();
            }
            _ => {}
        }
        false
    }

    /// Passes on more of the arguments.
    fn pass_on(&self, text: Option<&str>, parts: &mut Vec<Part>) {
        let text = text.filter(|text| self.state == State::Arguments && !text.is_empty());
        parts.extend(text.map(|text| Part::Arguments(text.to_owned())));
    }

    fn end(&mut self, rest: Option<&str>, parts: &mut Vec<Part>) -> End {
        let (head, rest) = (std::mem::take(&mut self.head), rest.unwrap_or_default().to_owned());
        if self.state != State::Head {
            return End { rest, rejected: None };
        }
        let rejected = match whole_call(&head, self.needs_arguments) {
            Some((name, arguments)) => {
                parts.extend([Part::Call(name), Part::Arguments(arguments)]);
                None
            }
            None => Some(head),
        };
        End { rest, rejected }
    }
}

/// A call as models write it. Families disagree about the name of the arguments.
#[derive(Deserialize)]
struct WrittenCall<'a> {
    name: String,
    #[serde(borrow, alias = "parameters")]
    arguments: Option<&'a RawValue>,
}

/// The name and arguments in a JSON object whose arguments precede the name, are absent, or a text of JSON.
fn whole_call(text: &str, needs_arguments: bool) -> Option<(String, String)> {
    let call: WrittenCall<'_> = serde_json::from_str(text).ok()?;
    if needs_arguments && call.arguments.is_none() {
        return None;
    }
    let arguments = call.arguments.map_or("{}", RawValue::get);
    let arguments = match serde_json::from_str::<String>(arguments) {
        Ok(text) => text,
        Err(_) => arguments.to_owned(),
    };
    Some((call.name, arguments))
}

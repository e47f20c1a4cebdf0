//! Tool calls written as JSON: behind a mark, in place of an answer, or as an output of which the form is forced.

use super::Part;
use super::brackets::Brackets;
use super::call_object::{CallObject, End};
use super::surroundings::Surroundings;
use crate::search::{Search, search};

/// The mark in front of Mistral's calls.
pub(super) const MISTRAL: &str = "[TOOL_CALLS]";
/// Some models write this behind the calls.
const MISTRAL_END: &str = "[/TOOL_CALLS]";
const ARGUMENTS: &str = "[ARGS]";
const IDENTIFIER: &str = "[CALL_ID]";
const PYTHON_TAG: &str = "<|python_tag|>";

/// The longest name or identifier of a call, in bytes.
const LONGEST_NAME: usize = 256;

/// Where the calls of an output are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// Behind `[TOOL_CALLS]`: a list, or `NAME[ARGS]{..}`.
    Mistral,
    /// From the first character, if that opens an object or a list, or behind `<|python_tag|>`.
    Llama3,
    /// The whole output is the arguments of a function.
    Arguments(String),
    /// The whole output is a list of calls.
    List,
}

/// Finds calls in an output.
#[derive(Debug)]
pub(super) struct JsonCalls {
    layout: Layout,
    held: String,
    place: Place,
    surroundings: Surroundings,
    /// Whether the list that is being read has a call.
    is_list_of_calls: bool,
}

#[derive(Debug)]
enum Place {
    /// In text in which a mark may follow.
    Content,
    /// In front of an object or a list, if the next character opens one.
    Object,
    /// In front of a list, or of a name with its arguments.
    ListOrName,
    /// In a list, in front of a call or behind one.
    List,
    /// In front of the arguments of a call with a name of its own.
    Name,
    /// In the arguments of such a call.
    Arguments(Brackets),
    /// In a call, within a list if `is_listed`.
    Call { object: CallObject, is_listed: bool },
    /// In an output that is the arguments of a function.
    Whole { is_begun: bool },
}

impl JsonCalls {
    pub(super) fn new(layout: Layout) -> Self {
        let place = match layout {
            Layout::Mistral => Place::Content,
            Layout::Llama3 => Place::Object,
            Layout::Arguments(_) => Place::Whole { is_begun: false },
            Layout::List => Place::ListOrName,
        };
        let surroundings = Surroundings::default();
        Self { layout, held: String::new(), place, surroundings, is_list_of_calls: false }
    }

    pub(super) fn push(&mut self, piece: &str, parts: &mut Vec<Part>) {
        self.held.push_str(piece);
        while self.advance(parts) {}
    }

    /// Reads up to the next place. Returns false if that takes more of the output.
    fn advance(&mut self, parts: &mut Vec<Part>) -> bool {
        let before = parts.len();
        match &mut self.place {
            Place::Content => self.content(parts),
            Place::Object => self.object(),
            Place::ListOrName => self.list_or_name(),
            Place::List => self.list(parts),
            Place::Name => self.name(parts),
            Place::Arguments(brackets) => {
                let end = self.held.char_indices().find_map(|(at, character)| {
                    brackets.push(character);
                    (brackets.depth() == 0).then_some(at + character.len_utf8())
                });
                let arguments: String = self.held.drain(..end.unwrap_or(self.held.len())).collect();
                if !arguments.is_empty() {
                    parts.push(Part::Arguments(arguments));
                }
                if end.is_some() {
                    self.place = Place::Content;
                }
                end.is_some()
            }
            Place::Call { object, is_listed } => {
                let (end, is_listed) = (object.push(&self.held, parts), *is_listed);
                self.held.clear();
                self.is_list_of_calls |= self.surroundings.note_calls(parts, before);
                let Some(End { rest, rejected }) = end else { return false };
                self.held = rest;
                self.place = match (is_listed, &self.layout, &rejected) {
                    (true, ..) => Place::List,
                    (false, Layout::Llama3, None) => Place::Object,
                    (false, ..) => Place::Content,
                };
                if let Some(text) = rejected {
                    self.surroundings.text(&text, parts);
                }
                true
            }
            Place::Whole { is_begun } => {
                let blank = if *is_begun { 0 } else { self.held.len() - self.held.trim_start().len() };
                let text = self.held.split_off(blank);
                self.held.clear();
                // Whitespace at the end waits for what follows.
                self.held.push_str(text.get(text.trim_end().len()..).unwrap_or_default());
                let text = text.trim_end();
                if !text.is_empty() {
                    if let (false, Layout::Arguments(name)) = (*is_begun, &self.layout) {
                        parts.push(Part::Call(name.clone()));
                        self.surroundings.note_calls(parts, before);
                    }
                    self.place = Place::Whole { is_begun: true };
                    parts.push(Part::Arguments(text.to_owned()));
                }
                false
            }
        }
    }

    fn content(&mut self, parts: &mut Vec<Part>) -> bool {
        let marks: &[&str] = match self.layout {
            Layout::Mistral if self.surroundings.has_called() => &[MISTRAL, MISTRAL_END],
            Layout::Mistral => &[MISTRAL],
            Layout::Llama3 => &[PYTHON_TAG],
            Layout::Arguments(_) | Layout::List => &[],
        };
        let (end, mark) = match search(&self.held, marks) {
            Search::Found { start, which: 1, .. } => {
                let text: String = self.held.drain(..start + MISTRAL_END.len()).collect();
                self.surroundings.text(text.get(..start).unwrap_or_default(), parts);
                self.surroundings.clear();
                return true;
            }
            Search::Found { start, end, .. } => (start, Some(end)),
            Search::Missing { safe } => (safe, None),
        };
        let rest = self.held.split_off(mark.unwrap_or(end));
        let text = std::mem::replace(&mut self.held, rest);
        self.surroundings.text(text.get(..end).unwrap_or_default(), parts);
        self.surroundings.mark(text.get(end..).unwrap_or_default());
        if mark.is_some() {
            self.place = if self.layout == Layout::Mistral { Place::ListOrName } else { Place::Object };
        }
        mark.is_some()
    }

    /// Moves what precedes the next call to the surroundings. Returns false if nothing follows yet.
    fn skip(&mut self, is_skipped: impl Fn(char) -> bool) -> bool {
        let end = self.held.len() - self.held.trim_start_matches(is_skipped).len();
        let skipped: String = self.held.drain(..end).collect();
        self.surroundings.mark(&skipped);
        !self.held.is_empty()
    }

    /// Begins a call if an object follows.
    fn begins_call(&mut self, is_listed: bool) -> bool {
        let is_object = self.held.starts_with('{');
        if is_object {
            // An answer of Llama's may be an object, too.
            let object = CallObject::new(self.layout == Layout::Llama3);
            self.place = Place::Call { object, is_listed };
        }
        is_object
    }

    fn object(&mut self) -> bool {
        if !self.skip(|character| character.is_whitespace() || character == ';') {
            return false;
        }
        // Some models write a list.
        if !self.begins_call(false) && !self.begins_list() {
            self.place = Place::Content;
        }
        true
    }

    fn begins_list(&mut self) -> bool {
        let is_list = self.held.starts_with('[');
        if is_list {
            self.held.remove(0);
            self.surroundings.mark("[");
            self.is_list_of_calls = false;
            self.place = Place::List;
        }
        is_list
    }

    fn list_or_name(&mut self) -> bool {
        if !self.skip(char::is_whitespace) {
            return false;
        }
        if !self.begins_list() && !self.begins_call(false) {
            self.place = if self.layout == Layout::Mistral { Place::Name } else { Place::Content };
        }
        true
    }

    fn list(&mut self, parts: &mut Vec<Part>) -> bool {
        if !self.skip(|character| character.is_whitespace() || character == ',') {
            return false;
        }
        if !self.begins_call(true) {
            self.place = Place::Content;
            if self.held.starts_with(']') {
                self.held.remove(0);
                match self.is_list_of_calls {
                    true => self.surroundings.clear(),
                    false => self.surroundings.text("]", parts),
                }
            }
        }
        true
    }

    /// Reads `NAME[ARGS]` or `NAME[CALL_ID]ID[ARGS]` in front of an object; the marks may be missing.
    fn name(&mut self, parts: &mut Vec<Part>) -> bool {
        let limit = self.held.floor_char_boundary(LONGEST_NAME);
        let head = self.held.get(..limit).unwrap_or_default();
        let Some(end) = head.find('{') else {
            // The marks' own brackets are the only ones that a name may be followed by.
            let is_text = self.held.len() > LONGEST_NAME || name_of(head).is_none();
            if is_text {
                self.place = Place::Content;
            }
            return is_text;
        };
        let Some(name) = name_of(head.get(..end).unwrap_or_default()).filter(|name| !name.is_empty()) else {
            self.place = Place::Content;
            return true;
        };
        parts.push(Part::Call(name.to_owned()));
        self.held.drain(..end);
        self.surroundings.note_calls(parts, parts.len() - 1);
        self.place = Place::Arguments(Brackets::default());
        true
    }

    pub(super) fn finish(&mut self, parts: &mut Vec<Part>) {
        let before = parts.len();
        let rejected = match &mut self.place {
            Place::Call { object, .. } => object.finish(parts),
            Place::Whole { is_begun: true } => {
                self.held.clear();
                None
            }
            _ => None,
        };
        self.surroundings.note_calls(parts, before);
        let rest = rejected.unwrap_or_default() + &std::mem::take(&mut self.held);
        self.surroundings.text(&rest, parts);
        self.surroundings.finish(parts);
    }
}

/// The name in text up to the arguments of a call, which may have arrived in part. `None` if the text cannot begin a call.
fn name_of(text: &str) -> Option<&str> {
    let end = text.find('[').unwrap_or(text.len());
    let (name, marks) = text.split_at_checked(end)?;
    let is_name =
        |character: char| character.is_alphanumeric() || matches!(character, '_' | '-' | '.' | ':' | '/');
    let name = name.trim_end();
    let marks = match marks.strip_prefix(IDENTIFIER) {
        Some(behind) => behind.trim_start_matches(char::is_alphanumeric),
        None => marks,
    };
    let begins = |mark: &str| {
        mark.starts_with(marks) || marks.strip_prefix(mark).is_some_and(|rest| rest.trim().is_empty())
    };
    let is_call =
        name.chars().all(is_name) && (marks.trim().is_empty() || begins(ARGUMENTS) || begins(IDENTIFIER));
    is_call.then_some(name)
}

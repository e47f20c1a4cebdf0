//! Tool calls as a list of Python: `[NAME(ARGUMENT=VALUE, ..), ..]`, as Llama 3.2 and 4 write them, also between
//! `<|python_start|>` and `<|python_end|>`. Arguments have names: a call without them is text.

use std::sync::Arc;

use super::Part;
use super::python_arguments::{PythonArguments, is_name};
use super::surroundings::Surroundings;
use crate::search::{Search, search};
use crate::tools::Tool;

/// The beginning of the example in templates of this format.
pub(super) const EXAMPLE: &str = "[func_name1(";
const LIST: &str = "[";
const START: &str = "<|python_start|>";
const END: &str = "<|python_end|>";

/// The longest text of a call up to its first value, in bytes.
const LONGEST_HEAD: usize = 512;

/// Finds calls in an output.
#[derive(Debug)]
pub(super) struct PythonicCalls {
    tools: Arc<[Tool]>,
    held: String,
    place: Place,
    surroundings: Surroundings,
    /// Whether a list is at a place of calls: in front of all text, or behind a mark. Elsewhere, it is text unless it has the name of a tool.
    is_expected: bool,
}

#[derive(Debug)]
enum Place {
    Outside,
    /// In front of a call, within a list: the first one, or another.
    Head {
        is_first: bool,
    },
    Arguments(PythonArguments),
    /// Behind a call.
    Behind,
}

impl PythonicCalls {
    pub(super) fn new(tools: Arc<[Tool]>) -> Self {
        let surroundings = Surroundings::default();
        Self { tools, held: String::new(), place: Place::Outside, surroundings, is_expected: true }
    }

    pub(super) fn push(&mut self, piece: &str, parts: &mut Vec<Part>) {
        self.held.push_str(piece);
        while self.advance(parts) {}
    }

    /// Reads up to the next place. Returns false if that takes more of the output.
    fn advance(&mut self, parts: &mut Vec<Part>) -> bool {
        match &mut self.place {
            Place::Outside => self.outside(parts),
            Place::Head { .. } => self.head(parts),
            Place::Arguments(arguments) => {
                let end = arguments.push(&self.held);
                self.held.drain(..end.unwrap_or(self.held.len()));
                let json = match end {
                    Some(_) => arguments.finish(),
                    None => arguments.take(),
                };
                if !json.is_empty() {
                    parts.push(Part::Arguments(json));
                }
                if end.is_some() {
                    self.place = Place::Behind;
                }
                end.is_some()
            }
            Place::Behind => self.behind(),
        }
    }

    fn outside(&mut self, parts: &mut Vec<Part>) -> bool {
        let (start, mark) = match search(&self.held, &[LIST, START, END]) {
            Search::Found { start, end, which } => (start, Some((end, which))),
            Search::Missing { safe } => (safe, None),
        };
        let rest = self.held.split_off(mark.map_or(start, |(end, _)| end));
        let text = std::mem::replace(&mut self.held, rest);
        let (text, mark_text) = text.split_at_checked(start).unwrap_or((&text, ""));
        self.is_expected &= text.trim().is_empty();
        self.surroundings.text(text, parts);
        let Some((_, which)) = mark else { return false };
        match which {
            2 if self.surroundings.has_called() => self.surroundings.clear(),
            _ => self.surroundings.mark(mark_text),
        }
        match which {
            0 => self.place = Place::Head { is_first: true },
            _ => self.is_expected = true,
        }
        true
    }

    fn head(&mut self, parts: &mut Vec<Part>) -> bool {
        let limit = self.held.floor_char_boundary(LONGEST_HEAD);
        match Head::read(self.held.get(..limit).unwrap_or_default()) {
            Head::Incomplete if self.held.len() == limit => return false,
            Head::Call { name, length } if self.is_expected || self.has_tool(name) => {
                parts.push(Part::Call(name.to_owned()));
                self.surroundings.note_calls(parts, parts.len() - 1);
                self.held.drain(..length);
                self.place = Place::Arguments(PythonArguments::new());
            }
            Head::Incomplete | Head::Call { .. } | Head::Other => self.place = Place::Outside,
        }
        true
    }

    fn has_tool(&self, name: &str) -> bool {
        self.tools.iter().any(|tool| tool.name == name)
    }

    fn behind(&mut self) -> bool {
        let blank = self.held.len() - self.held.trim_start().len();
        let text: String = self.held.drain(..blank).collect();
        self.surroundings.mark(&text);
        match self.held.chars().next() {
            None => return false,
            Some(',') => {
                self.held.remove(0);
                self.surroundings.mark(",");
                self.place = Place::Head { is_first: false };
            }
            Some(']') => {
                self.held.remove(0);
                self.surroundings.clear();
                // Models also write a list for each call.
                self.is_expected = true;
                self.place = Place::Outside;
            }
            Some(_) => self.place = Place::Outside,
        }
        true
    }

    pub(super) fn finish(&mut self, parts: &mut Vec<Part>) {
        match &mut self.place {
            Place::Arguments(arguments) => {
                let json = arguments.finish();
                if !json.is_empty() {
                    parts.push(Part::Arguments(json));
                }
            }
            // A list that was cut off between two calls.
            Place::Head { is_first: false } if self.held.trim().is_empty() => self.surroundings.clear(),
            Place::Outside | Place::Head { .. } | Place::Behind => {}
        }
        self.surroundings.text(&std::mem::take(&mut self.held), parts);
        self.surroundings.finish(parts);
    }
}

/// The beginning of a call: its name, the parenthesis, and the name of the first argument.
#[derive(Debug, PartialEq, Eq)]
enum Head<'a> {
    /// A call whose arguments begin behind this length.
    Call {
        name: &'a str,
        length: usize,
    },
    /// The beginning of one, perhaps.
    Incomplete,
    Other,
}

impl<'a> Head<'a> {
    fn read(text: &'a str) -> Self {
        let name_text = text.trim_start();
        let name_end = name_text.find(|character| !is_name(character) && !matches!(character, '.' | '-'));
        let Some((name, behind)) = name_end.and_then(|end| name_text.split_at_checked(end)) else {
            return if begins_name(name_text) { Self::Incomplete } else { Self::Other };
        };
        if name.is_empty() || !begins_name(name) {
            return Self::Other;
        }
        let behind = behind.trim_start();
        let Some(arguments) = behind.strip_prefix('(') else {
            return if behind.is_empty() { Self::Incomplete } else { Self::Other };
        };
        let call = Self::Call { name, length: text.len() - arguments.len() };
        let argument = arguments.trim_start();
        if argument.starts_with(')') {
            return call;
        }
        let Some(end) = argument.find(|character| !is_name(character)) else {
            return if begins_name(argument) { Self::Incomplete } else { Self::Other };
        };
        let (argument, behind) = argument.split_at_checked(end).unwrap_or((argument, ""));
        let behind = behind.trim_start();
        match behind.strip_prefix('=') {
            _ if argument.is_empty() || !begins_name(argument) => Self::Other,
            // A comparison.
            Some(value) if value.starts_with('=') => Self::Other,
            Some(value) if !value.is_empty() => call,
            Some(_) => Self::Incomplete,
            None if behind.is_empty() => Self::Incomplete,
            None => Self::Other,
        }
    }
}

/// Whether a text may be the beginning of a name.
fn begins_name(text: &str) -> bool {
    text.chars().next().is_none_or(|first| first.is_alphabetic() || first == '_')
}

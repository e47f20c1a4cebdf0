//! A tool call as tags: `<function=NAME><parameter=NAME>VALUE</parameter></function>`, read while it arrives. Its arguments become
//! an object of JSON.

use std::sync::Arc;

use super::Part;
use super::call_object::End;
use crate::search::{Search, search};
use crate::tools::Tool;

/// The mark in front of a function's name.
pub(super) const FUNCTION: &str = "<function=";
const FUNCTION_END: &str = "</function>";
const PARAMETER: &str = "<parameter=";
const PARAMETER_END: &str = "</parameter>";
/// The end of the outer tag, which ends a function without an end.
const OUTER_END: &str = "</tool_call>";
/// The ends of a value. Its own one may be missing.
const VALUE_ENDS: [&str; 3] = [PARAMETER_END, PARAMETER, FUNCTION_END];

/// The longest name, in bytes.
const LONGEST_NAME: usize = 256;

/// A call that is being read.
#[derive(Debug)]
pub(super) struct FunctionTags {
    tools: Arc<[Tool]>,
    held: String,
    place: Place,
    /// The function's name, once it is read.
    name: String,
    has_parameters: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Name,
    Between,
    ParameterName,
    /// In a value that is a text, whose beginning is passed on if `is_begun`.
    Text {
        is_begun: bool,
    },
    /// In a value of this type, if the schema declares one.
    Value {
        kind: Option<String>,
    },
}

impl FunctionTags {
    /// A call whose name follows.
    pub(super) fn new(tools: Arc<[Tool]>) -> Self {
        Self { tools, held: String::new(), place: Place::Name, name: String::new(), has_parameters: false }
    }

    pub(super) fn push(&mut self, piece: &str, parts: &mut Vec<Part>) -> Option<End> {
        self.held.push_str(piece);
        let mut arguments = String::new();
        let mut step = Step::Again;
        while matches!(step, Step::Again) {
            step = self.advance(&mut arguments, parts);
        }
        if !arguments.is_empty() {
            parts.push(Part::Arguments(arguments));
        }
        let rejected = match step {
            Step::Again | Step::More => return None,
            Step::Over => None,
            Step::Rejected(text) => Some(text),
        };
        Some(End { rest: std::mem::take(&mut self.held), rejected })
    }

    /// Reads up to the next place.
    fn advance(&mut self, arguments: &mut String, parts: &mut Vec<Part>) -> Step {
        match self.place.clone() {
            Place::Name => match self.tag_name() {
                Tag::Missing => return Step::More,
                Tag::Invalid(text) => return Step::Rejected(text),
                Tag::Named(name) => {
                    parts.push(Part::Call(name.clone()));
                    arguments.push('{');
                    self.name = name;
                    self.place = Place::Between;
                }
            },
            Place::Between => {
                let ends = [PARAMETER, FUNCTION_END, OUTER_END];
                match search(&self.held, &ends) {
                    Search::Found { end, which: 0, .. } => {
                        self.held.drain(..end);
                        self.place = Place::ParameterName;
                    }
                    Search::Found { start, end, which } => {
                        self.held.drain(..if which == 1 { end } else { start });
                        arguments.push('}');
                        return Step::Over;
                    }
                    Search::Missing { safe } => {
                        self.held.drain(..safe);
                        return Step::More;
                    }
                }
            }
            Place::ParameterName => match self.tag_name() {
                Tag::Missing => return Step::More,
                Tag::Invalid(_) => self.place = Place::Between,
                Tag::Named(name) => {
                    arguments.push_str(if self.has_parameters { ", " } else { "" });
                    self.has_parameters = true;
                    arguments.push_str(&serde_json::Value::from(name.as_str()).to_string());
                    arguments.push_str(": ");
                    let tool = self.tools.iter().find(|tool| tool.name == self.name);
                    let kind = tool.and_then(|tool| tool.parameter_type(&name));
                    self.place = match kind {
                        Some("string") => Place::Text { is_begun: false },
                        kind => Place::Value { kind: kind.map(str::to_owned) },
                    };
                }
            },
            Place::Text { is_begun } => return self.text(is_begun, arguments),
            Place::Value { kind } => match search(&self.held, &VALUE_ENDS) {
                Search::Found { start, end, which } => {
                    let value: String = self.held.drain(..start).collect();
                    arguments.push_str(&value_json(&value, kind.as_deref()));
                    self.end_value(end - start, which);
                }
                Search::Missing { .. } => return Step::More,
            },
        }
        Step::Again
    }

    /// Reads a value that is a text.
    fn text(&mut self, is_begun: bool, arguments: &mut String) -> Step {
        if !is_begun {
            if self.held.is_empty() {
                return Step::More;
            }
            if self.held.starts_with('\n') {
                self.held.remove(0);
            }
            arguments.push('"');
            self.place = Place::Text { is_begun: true };
        }
        match search(&self.held, &VALUE_ENDS) {
            Search::Found { start, end, which } => {
                let value: String = self.held.drain(..start).collect();
                arguments.push_str(escaped(value.strip_suffix('\n').unwrap_or(&value)).as_str());
                arguments.push('"');
                self.end_value(end - start, which);
                Step::Again
            }
            Search::Missing { safe } => {
                // A line's end in front of a tag does not belong to the value.
                let safe =
                    self.held.get(..safe).map_or(0, |text| text.strip_suffix('\n').unwrap_or(text).len());
                let value: String = self.held.drain(..safe).collect();
                arguments.push_str(&escaped(&value));
                Step::More
            }
        }
    }

    /// Goes on behind a value that a mark of this length ends.
    fn end_value(&mut self, length: usize, which: usize) {
        if which == 0 {
            self.held.drain(..length);
        }
        self.place = Place::Between;
    }

    /// Takes the name up to the end of its tag.
    fn tag_name(&mut self) -> Tag {
        let limit = self.held.floor_char_boundary(LONGEST_NAME);
        let beginning = self.held.get(..limit).unwrap_or_default();
        let Some(end) = beginning.find(['>', '<', '\n']) else {
            return match self.held.len() > LONGEST_NAME {
                true => Tag::Invalid(self.held.drain(..limit).collect()),
                false => Tag::Missing,
            };
        };
        let is_closed = self.held.get(end..).is_some_and(|rest| rest.starts_with('>'));
        let text: String = self.held.drain(..end).collect();
        let name = text.trim();
        if name.is_empty() || !is_closed {
            return Tag::Invalid(text);
        }
        self.held.remove(0);
        Tag::Named(name.to_owned())
    }

    /// Ends a call whose output has ended. The arguments end with it if a value was cut off. Returns its text if it is none.
    pub(super) fn finish(&mut self, parts: &mut Vec<Part>) -> Option<String> {
        let mut arguments = String::new();
        let rest = std::mem::take(&mut self.held);
        match &self.place {
            Place::Name => return Some(rest),
            Place::Between => arguments.push('}'),
            Place::ParameterName => {}
            Place::Text { is_begun } => {
                arguments.push_str(if *is_begun { "" } else { "\"" });
                arguments.push_str(&escaped(&rest));
            }
            Place::Value { .. } => arguments.push_str(rest.strip_prefix('\n').unwrap_or(&rest)),
        }
        if !arguments.is_empty() {
            parts.push(Part::Arguments(arguments));
        }
        None
    }
}

/// How reading continues.
enum Step {
    /// Another one.
    Again,
    /// More of the output.
    More,
    /// Behind the call, which has ended.
    Over,
    /// Behind this text, which is not a call.
    Rejected(String),
}

enum Tag {
    Named(String),
    Invalid(String),
    /// The tag has no end yet.
    Missing,
}

/// A text as it is between the quotes of a string.
fn escaped(text: &str) -> String {
    let mut json = serde_json::Value::from(text).to_string();
    json.pop();
    json.split_off(1)
}

/// The JSON of an argument: a text if the schema declares one, or if the value is not JSON.
fn value_json(value: &str, declared: Option<&str>) -> String {
    let value = value.strip_prefix('\n').unwrap_or(value);
    let value = value.strip_suffix('\n').unwrap_or(value);
    match serde_json::from_str::<serde_json::Value>(value) {
        Ok(_) => value.trim().to_owned(),
        // As models write Python.
        _ if declared == Some("boolean") && value.trim().eq_ignore_ascii_case("true") => "true".to_owned(),
        _ if declared == Some("boolean") && value.trim().eq_ignore_ascii_case("false") => "false".to_owned(),
        _ => serde_json::Value::from(value).to_string(),
    }
}

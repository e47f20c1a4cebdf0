//! Tool calls written as JSON, from some place in an output to its end.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Part, ToolCall};
use crate::search::{Search, search};

const MISTRAL: &str = "[TOOL_CALLS]";
const MISTRAL_ARGUMENTS: &str = "[ARGS]";
const PYTHON_TAG: &str = "<|python_tag|>";

/// Where the calls of an output are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// Behind `[TOOL_CALLS]`.
    Mistral,
    /// From the first character, if that opens an object, or behind `<|python_tag|>`.
    Llama3,
    /// The whole output is the arguments of a function.
    Arguments(String),
    /// The whole output is a list of calls.
    List,
}

/// Finds calls in an output. They are complete at its end.
#[derive(Debug)]
pub(super) struct JsonCalls {
    layout: Layout,
    held: String,
    place: Place,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Beginning,
    Content,
    Calls,
}

impl JsonCalls {
    pub(super) fn new(layout: Layout) -> Self {
        let place = match layout {
            Layout::Mistral => Place::Content,
            Layout::Llama3 => Place::Beginning,
            Layout::Arguments(_) | Layout::List => Place::Calls,
        };
        Self { layout, held: String::new(), place }
    }

    pub(super) fn push(&mut self, piece: &str, parts: &mut Vec<Part>) {
        self.held.push_str(piece);
        if self.place == Place::Beginning {
            self.place = match self.held.trim_start().chars().next() {
                None => return,
                Some('{') => Place::Calls,
                Some(_) => Place::Content,
            };
        }
        if self.place == Place::Content {
            let mark = if self.layout == Layout::Mistral { MISTRAL } else { PYTHON_TAG };
            let content: String = match search(&self.held, &[mark]) {
                Search::Found { start, end, .. } => {
                    self.place = Place::Calls;
                    let rest = self.held.split_off(end);
                    self.held.truncate(start);
                    let content = std::mem::replace(&mut self.held, rest);
                    content.trim_end().to_owned()
                }
                Search::Missing { safe } => {
                    // Whitespace in front of a call is not part of the answer.
                    let safe = self.held.get(..safe).map_or(0, |text| text.trim_end().len());
                    self.held.drain(..safe).collect()
                }
            };
            if !content.is_empty() {
                parts.push(Part::Content(content));
            }
        }
    }

    pub(super) fn finish(&mut self, parts: &mut Vec<Part>) {
        let text = std::mem::take(&mut self.held);
        if text.is_empty() {
            return;
        }
        let calls = match (&self.layout, self.place) {
            (_, Place::Beginning | Place::Content) => None,
            (Layout::Mistral, _) => list(&text).or_else(|| named_calls(&text)),
            (Layout::Llama3, _) => separated(&text),
            (Layout::Arguments(name), _) => {
                let call = ToolCall { name: name.clone(), arguments: text.trim().to_owned() };
                Some(vec![call])
            }
            (Layout::List, _) => list(&text),
        };
        match calls {
            Some(calls) => parts.extend(calls.into_iter().map(Part::Call)),
            None => parts.push(Part::Content(text)),
        }
    }
}

/// A call as models write it. Families disagree about the name of the arguments.
#[derive(Deserialize)]
struct WrittenCall<'a> {
    name: String,
    #[serde(borrow, alias = "parameters")]
    arguments: Option<&'a RawValue>,
}

impl WrittenCall<'_> {
    fn into_call(self) -> ToolCall {
        let arguments = self.arguments.map_or("{}", RawValue::get);
        // Some models write the arguments as a text of JSON.
        let arguments = match serde_json::from_str::<String>(arguments) {
            Ok(text) => text,
            Err(_) => arguments.to_owned(),
        };
        ToolCall { name: self.name, arguments }
    }
}

/// The call in a JSON object. `None` if the text is no such object.
pub(super) fn call_of_json(text: &str) -> Option<ToolCall> {
    serde_json::from_str::<WrittenCall<'_>>(text.trim()).ok().map(WrittenCall::into_call)
}

/// The calls in a JSON list.
fn list(text: &str) -> Option<Vec<ToolCall>> {
    let mut values = serde_json::Deserializer::from_str(text.trim()).into_iter::<Vec<WrittenCall<'_>>>();
    let calls = values.next()?.ok()?;
    Some(calls.into_iter().map(WrittenCall::into_call).collect())
}

/// The calls in objects with semicolons between them.
fn separated(text: &str) -> Option<Vec<ToolCall>> {
    let text = text.trim();
    let mut rest = text.strip_prefix(PYTHON_TAG).unwrap_or(text);
    let mut calls = Vec::new();
    loop {
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<WrittenCall<'_>>();
        calls.push(values.next()?.ok()?.into_call());
        rest = rest.get(values.byte_offset()..)?.trim_start();
        match rest.strip_prefix(';') {
            Some(after) if !after.trim().is_empty() => rest = after,
            _ if rest.is_empty() || rest.trim() == ";" => return Some(calls),
            _ => return None,
        }
    }
}

/// The calls in `NAME[ARGS]{..}`, with `[TOOL_CALLS]` between them.
fn named_calls(text: &str) -> Option<Vec<ToolCall>> {
    let calls = text.split(MISTRAL).filter(|call| !call.trim().is_empty()).map(|call| {
        let (name, arguments) = match call.split_once(MISTRAL_ARGUMENTS) {
            Some((name, arguments)) => (name, arguments),
            None => call.split_at_checked(call.find('{')?)?,
        };
        serde_json::from_str::<&RawValue>(arguments.trim()).ok()?;
        Some(ToolCall { name: name.trim().to_owned(), arguments: arguments.trim().to_owned() })
    });
    calls.collect()
}

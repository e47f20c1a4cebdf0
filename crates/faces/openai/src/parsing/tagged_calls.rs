//! Tool calls between `<tool_call>` and `</tool_call>`: JSON, or tags within.

use std::sync::Arc;

use super::json_calls::call_of_json;
use super::{Part, ToolCall};
use crate::search::{Search, search};
use crate::tools::Tool;

const OPENING: &str = "<tool_call>";
const CLOSING: &str = "</tool_call>";
/// Some models leave out the outer tag.
const FUNCTION: &str = "<function=";
const FUNCTION_END: &str = "</function>";

/// Finds tagged calls in an output.
#[derive(Debug)]
pub(super) struct TaggedCalls {
    /// The tools, if arguments are written in tags: the schemas distinguish texts from other values.
    tools: Option<Arc<[Tool]>>,
    held: String,
    /// The mark that ends the call whose text is being read.
    end: Option<&'static str>,
    /// How much of a call's text has no end.
    searched: usize,
    /// Whether a call was found: whitespace between calls is no content.
    has_called: bool,
}

impl TaggedCalls {
    /// Calls written as JSON.
    pub(super) fn hermes() -> Self {
        Self { tools: None, held: String::new(), end: None, searched: 0, has_called: false }
    }

    /// Calls written as tags.
    pub(super) fn qwen3_coder(tools: Arc<[Tool]>) -> Self {
        Self { tools: Some(tools), ..Self::hermes() }
    }

    pub(super) fn push(&mut self, piece: &str, parts: &mut Vec<Part>) {
        self.held.push_str(piece);
        loop {
            let Some(end) = self.end else {
                let marks: &[&str] = if self.tools.is_some() { &[OPENING, FUNCTION] } else { &[OPENING] };
                match search(&self.held, marks) {
                    Search::Found { start, end, which } => {
                        let rest = self.held.split_off(if which == 0 { end } else { start });
                        self.held.truncate(start);
                        let content = std::mem::replace(&mut self.held, rest);
                        self.add_content(content, true, parts);
                        self.end = Some(if which == 0 { CLOSING } else { FUNCTION_END });
                        self.searched = 0;
                        continue;
                    }
                    Search::Missing { safe } => {
                        // Whitespace in front of a call is not part of the answer.
                        let safe = self.held.get(..safe).map_or(0, |text| text.trim_end().len());
                        let content = self.held.drain(..safe).collect();
                        self.add_content(content, false, parts);
                        return;
                    }
                }
            };
            let Some(found) = self.held.get(self.searched..).and_then(|text| text.find(end)) else {
                // The mark may begin at the end of what was searched.
                self.searched = self.held.floor_char_boundary(self.held.len().saturating_sub(end.len()));
                return;
            };
            let start = self.searched + found;
            let rest = self.held.split_off(start + end.len());
            self.held.truncate(start);
            let text = std::mem::replace(&mut self.held, rest);
            self.add_call(&text, parts);
            self.end = None;
        }
    }

    pub(super) fn finish(&mut self, parts: &mut Vec<Part>) {
        let rest = std::mem::take(&mut self.held);
        match self.end.take() {
            // The end of the last call may be missing.
            Some(_) => self.add_call(&rest, parts),
            None => self.add_content(rest, false, parts),
        }
    }

    fn add_content(&self, content: String, is_before_call: bool, parts: &mut Vec<Part>) {
        let content = if is_before_call { content.trim_end().to_owned() } else { content };
        if content.is_empty() || (self.has_called && content.trim().is_empty()) {
            return;
        }
        parts.push(Part::Content(content));
    }

    /// Adds the call with this text. Text that is not a call is content.
    fn add_call(&mut self, text: &str, parts: &mut Vec<Part>) {
        let call = match &self.tools {
            None => call_of_json(text),
            Some(tools) => call_of_tags(text, tools).or_else(|| call_of_json(text)),
        };
        match call {
            Some(call) => {
                self.has_called = true;
                parts.push(Part::Call(call));
            }
            None => parts.push(Part::Content(text.to_owned())),
        }
    }
}

/// The call in `<function=NAME><parameter=NAME>VALUE</parameter>..`.
fn call_of_tags(text: &str, tools: &[Tool]) -> Option<ToolCall> {
    let (_, inside) = text.split_once(FUNCTION)?;
    let (name, mut rest) = inside.split_once('>')?;
    let name = name.trim();
    let tool = tools.iter().find(|tool| tool.name == name);
    let mut arguments = String::from("{");
    while let Some((_, parameter)) = rest.split_once("<parameter=") {
        let (parameter_name, value) = parameter.split_once('>')?;
        // The end of a value may be missing in front of the next parameter.
        let ends = ["</parameter>", "<parameter=", FUNCTION_END];
        let end = ends.iter().filter_map(|end| value.find(end)).min().unwrap_or(value.len());
        let (value, after) = value.split_at_checked(end)?;
        rest = after;
        let value = value.strip_prefix('\n').unwrap_or(value);
        let value = value.strip_suffix('\n').unwrap_or(value);
        if arguments.len() > 1 {
            arguments.push_str(", ");
        }
        let parameter_name = parameter_name.trim();
        arguments.push_str(&serde_json::Value::from(parameter_name).to_string());
        arguments.push_str(": ");
        arguments.push_str(&argument(value, tool.and_then(|tool| tool.parameter_type(parameter_name))));
    }
    arguments.push('}');
    Some(ToolCall { name: name.to_owned(), arguments })
}

/// The JSON of an argument: a text if the schema declares one, or if the value is not JSON.
fn argument(value: &str, declared: Option<&str>) -> String {
    let is_text = declared == Some("string");
    match serde_json::from_str::<serde_json::Value>(value) {
        Ok(_) if !is_text => value.trim().to_owned(),
        // As models write Python.
        _ if declared == Some("boolean") && value.trim().eq_ignore_ascii_case("true") => "true".to_owned(),
        _ if declared == Some("boolean") && value.trim().eq_ignore_ascii_case("false") => "false".to_owned(),
        _ => serde_json::Value::from(value).to_string(),
    }
}

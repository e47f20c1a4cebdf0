//! Parsing of a model's text: reasoning, tool calls, and the answer itself.

mod json_calls;
mod reasoning;
mod tagged_calls;

use std::sync::Arc;

use nereid_core::Model;

use self::json_calls::{JsonCalls, Layout};
use self::reasoning::Reasoning;
use self::tagged_calls::TaggedCalls;
use crate::template::ChatTemplate;
use crate::tools::Tool;

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// More of the answer's text.
    Content(String),
    /// More of the reasoning before the answer.
    Reasoning(String),
    /// A tool call.
    Call(ToolCall),
}

/// A call of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ToolCall {
    /// The function's name.
    pub name: String,
    /// The arguments, a JSON object.
    pub arguments: String,
}

/// The format of the tool calls that a family of models writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ToolFormat {
    /// `<tool_call>{"name": .., "arguments": ..}</tool_call>`.
    Hermes,
    /// `<tool_call><function=NAME><parameter=NAME>VALUE</parameter></function></tool_call>`.
    Qwen3Coder,
    /// `[TOOL_CALLS][{"name": .., "arguments": ..}]`, or `[TOOL_CALLS]NAME[ARGS]{..}`.
    Mistral,
    /// `{"name": .., "parameters": ..}`, with `;` between several, or behind `<|python_tag|>`.
    Llama3,
}

impl ToolFormat {
    /// The names that a configuration may use.
    pub(crate) const NAMES: &str = "hermes, qwen3, qwen3_coder, mistral, llama3";

    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "hermes" | "qwen3" | "qwen25" => Self::Hermes,
            "qwen3_coder" | "qwen3_xml" => Self::Qwen3Coder,
            "mistral" => Self::Mistral,
            "llama3" | "llama3_json" | "llama4_json" => Self::Llama3,
            _ => return None,
        })
    }

    /// The format that a chat template shows to its model.
    fn in_template(template: &ChatTemplate) -> Option<Self> {
        if template.mentions("<tool_call>") {
            return Some(if template.mentions("<function=") { Self::Qwen3Coder } else { Self::Hermes });
        }
        if template.mentions("[TOOL_CALLS]") {
            return Some(Self::Mistral);
        }
        let is_llama = template.mentions("<|python_tag|>")
            || template.mentions("\"parameters\": dictionary of argument");
        is_llama.then_some(Self::Llama3)
    }
}

/// How a model writes tool calls and reasoning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Formats {
    /// The format of its tool calls, if known.
    pub tools: Option<ToolFormat>,
    /// Whether the model reasons between `<think>` and `</think>`.
    pub reasons: bool,
}

impl Formats {
    /// The formats that the parameters `tool_call_parser` and `reasoning_parser` of a model name, or else those of its template.
    ///
    /// # Errors
    /// A parameter names an unknown format.
    pub(crate) fn of(model: &Model, template: Option<&ChatTemplate>) -> Result<Self, String> {
        let parameters = &model.config().parameters;
        let parameter = |name: &str| parameters.get(name).map(|value| value.string_value.as_str());
        let tools = match parameter("tool_call_parser") {
            None => template.and_then(ToolFormat::in_template),
            Some("none") => None,
            Some(name) => Some(ToolFormat::named(name).ok_or_else(|| {
                format!("unknown tool_call_parser '{name}' (available: none, {})", ToolFormat::NAMES)
            })?),
        };
        let reasons = match parameter("reasoning_parser") {
            None => template.is_some_and(|template| template.mentions("</think>")),
            Some("none") => false,
            Some("think" | "qwen3" | "deepseek_r1") => true,
            Some(name) => {
                return Err(format!(
                    "unknown reasoning_parser '{name}' (available: none, think, qwen3, deepseek_r1)"
                ));
            }
        };
        Ok(Self { tools, reasons })
    }
}

/// How to read the output for one request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Parsing {
    /// Whether reasoning is recognised; `Some(true)` if the prompt has begun it.
    pub reasoning: Option<bool>,
    /// The format of tool calls.
    pub calls: Calls,
}

/// The format of the tool calls in an output.
#[derive(Clone, Debug, Default)]
pub(crate) enum Calls {
    /// There are none.
    #[default]
    None,
    /// As the model writes them by itself.
    Written(ToolFormat, Arc<[Tool]>),
    /// The whole output is the arguments of this function.
    Arguments(String),
    /// The whole output is a list of calls.
    List,
}

impl Parsing {
    /// A reader of one output.
    pub(crate) fn parser(&self) -> Parser {
        let calls = match &self.calls {
            Calls::None => CallParser::None,
            Calls::Written(ToolFormat::Hermes, _) => CallParser::Tagged(TaggedCalls::hermes()),
            Calls::Written(ToolFormat::Qwen3Coder, tools) => {
                CallParser::Tagged(TaggedCalls::qwen3_coder(Arc::clone(tools)))
            }
            Calls::Written(ToolFormat::Mistral, _) => CallParser::Json(JsonCalls::new(Layout::Mistral)),
            Calls::Written(ToolFormat::Llama3, _) => CallParser::Json(JsonCalls::new(Layout::Llama3)),
            Calls::Arguments(name) => CallParser::Json(JsonCalls::new(Layout::Arguments(name.clone()))),
            Calls::List => CallParser::Json(JsonCalls::new(Layout::List)),
        };
        Parser { reasoning: self.reasoning.map(Reasoning::new), calls, has_called: false }
    }
}

/// Reads an output piece by piece.
#[derive(Debug, Default)]
pub(crate) struct Parser {
    reasoning: Option<Reasoning>,
    calls: CallParser,
    has_called: bool,
}

#[derive(Debug, Default)]
enum CallParser {
    #[default]
    None,
    Tagged(TaggedCalls),
    Json(JsonCalls),
}

impl Parser {
    /// Adds the parts that are complete with this piece.
    pub(crate) fn push(&mut self, piece: String, parts: &mut Vec<Part>) {
        let Some(reasoning) = &mut self.reasoning else { return self.push_answer(piece, parts) };
        let (thought, answer) = reasoning.push(piece);
        if !thought.is_empty() {
            parts.push(Part::Reasoning(thought));
        }
        self.push_answer(answer, parts);
    }

    fn push_answer(&mut self, piece: String, parts: &mut Vec<Part>) {
        if piece.is_empty() {
            return;
        }
        let before = parts.len();
        match &mut self.calls {
            CallParser::None => parts.push(Part::Content(piece)),
            CallParser::Tagged(calls) => calls.push(&piece, parts),
            CallParser::Json(calls) => calls.push(&piece, parts),
        }
        self.note_calls(parts, before);
    }

    /// Adds the rest of an output that has ended.
    pub(crate) fn finish(&mut self, parts: &mut Vec<Part>) {
        if let Some(reasoning) = &mut self.reasoning {
            let (thought, answer) = reasoning.finish();
            if !thought.is_empty() {
                parts.push(Part::Reasoning(thought));
            }
            self.push_answer(answer, parts);
        }
        let before = parts.len();
        match &mut self.calls {
            CallParser::None => {}
            CallParser::Tagged(calls) => calls.finish(parts),
            CallParser::Json(calls) => calls.finish(parts),
        }
        self.note_calls(parts, before);
    }

    fn note_calls(&mut self, parts: &[Part], before: usize) {
        let new = parts.get(before..).unwrap_or_default();
        self.has_called |= new.iter().any(|part| matches!(part, Part::Call(_)));
    }

    /// Whether a tool was called.
    pub(crate) fn has_called(&self) -> bool {
        self.has_called
    }
}

#[cfg(test)]
mod tests;

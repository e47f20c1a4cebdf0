//! Parsing of a model's text: reasoning, tool calls, and the answer itself.

mod brackets;
mod call_object;
mod deepseek;
mod formats;
mod function_tags;
mod harmony;
mod json_calls;
mod python_arguments;
mod python_text;
mod pythonic_calls;
mod reasoning;
mod surroundings;
mod tagged_calls;

use std::sync::Arc;

use self::deepseek::DeepSeekCalls;
use self::harmony::Harmony;
use self::json_calls::{JsonCalls, Layout};
use self::pythonic_calls::PythonicCalls;
use self::reasoning::{Reasoning, Rest};
use self::tagged_calls::TaggedCalls;
use crate::tools::Tool;

pub(crate) use self::formats::{Formats, ToolFormat};
pub(crate) use self::harmony::{CHANNEL, FINAL_HEADER, call_header};
pub(crate) use self::reasoning::Tags;

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// More of the answer's text.
    Content(String),
    /// More of the reasoning before the answer.
    Reasoning(String),
    /// A call of the function with this name begins.
    Call(String),
    /// More of the arguments of the last call, as the model wrote them: a JSON object unless the model failed or was cut off.
    Arguments(String),
}

/// A call of a function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ToolCall {
    /// The function's name.
    pub name: String,
    /// The arguments, a JSON object.
    pub arguments: String,
}

/// How to read the output for one request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Parsing {
    /// Where reasoning is.
    pub reasoning: Reasons,
    /// The format of tool calls.
    pub calls: Calls,
    /// Whether all calls but the first one are dropped.
    pub single_call: bool,
}

/// Where the reasoning in an output is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Reasons {
    /// There is none.
    #[default]
    Nowhere,
    /// Between two tags.
    Tags {
        /// The tags.
        tags: Tags,
        /// Whether the prompt has begun it.
        has_begun: bool,
    },
    /// In messages. The prompt holds this beginning of the first one.
    Messages(String),
}

impl Reasons {
    /// Whether its marks are special tokens, which engines leave out by default.
    pub(crate) fn has_special_marks(&self) -> bool {
        match self {
            Self::Nowhere => false,
            Self::Tags { tags, .. } => *tags == reasoning::MISTRAL,
            Self::Messages(_) => true,
        }
    }
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
        if let Reasons::Messages(beginning) = &self.reasoning {
            let tools = match &self.calls {
                Calls::Written(_, tools) => Some(Arc::clone(tools)),
                Calls::None | Calls::Arguments(_) | Calls::List => None,
            };
            let calls = CallParser::Harmony(Harmony::new(tools, beginning));
            return Parser { calls, single_call: self.single_call, ..Parser::default() };
        }
        let (calls, mark) = match &self.calls {
            Calls::None => (CallParser::None, None),
            Calls::Written(format, tools) => (format.parser(tools), format.mark()),
            Calls::Arguments(name) => {
                (CallParser::Json(JsonCalls::new(Layout::Arguments(name.clone()))), None)
            }
            Calls::List => (CallParser::Json(JsonCalls::new(Layout::List)), None),
        };
        let reasoning = match self.reasoning {
            Reasons::Tags { tags, has_begun } => Some(Reasoning::new(tags, has_begun, mark)),
            Reasons::Nowhere | Reasons::Messages(_) => None,
        };
        Parser { reasoning, calls, single_call: self.single_call, ..Parser::default() }
    }
}

impl ToolFormat {
    fn parser(self, tools: &Arc<[Tool]>) -> CallParser {
        match self {
            Self::Hermes => CallParser::Tagged(TaggedCalls::hermes()),
            Self::Qwen3Coder => CallParser::Tagged(TaggedCalls::qwen3_coder(Arc::clone(tools))),
            Self::Mistral => CallParser::Json(JsonCalls::new(Layout::Mistral)),
            Self::Llama3 => CallParser::Json(JsonCalls::new(Layout::Llama3)),
            Self::Pythonic => CallParser::Pythonic(PythonicCalls::new(Arc::clone(tools))),
            Self::DeepSeek => CallParser::DeepSeek(DeepSeekCalls::new()),
            Self::Harmony => CallParser::Harmony(Harmony::new(Some(Arc::clone(tools)), "")),
        }
    }
}

/// Reads an output piece by piece.
#[derive(Debug, Default)]
pub(crate) struct Parser {
    reasoning: Option<Reasoning>,
    calls: CallParser,
    single_call: bool,
    has_called: bool,
    /// Whether the last call was dropped.
    drops_call: bool,
}

#[derive(Debug, Default)]
enum CallParser {
    #[default]
    None,
    Tagged(TaggedCalls),
    Json(JsonCalls),
    Pythonic(PythonicCalls),
    DeepSeek(DeepSeekCalls),
    Harmony(Harmony),
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
            CallParser::Pythonic(calls) => calls.push(&piece, parts),
            CallParser::DeepSeek(calls) => calls.push(&piece, parts),
            CallParser::Harmony(messages) => messages.push(&piece, parts),
        }
        self.note_calls(parts, before);
    }

    /// Adds the rest of an output that has ended.
    pub(crate) fn finish(&mut self, parts: &mut Vec<Part>) {
        let begin = parts.len();
        let mut is_thought = false;
        match self.reasoning.as_mut().map(Reasoning::finish) {
            None => {}
            Some(Rest::Thought(text)) if text.is_empty() => {}
            Some(Rest::Thought(text)) => parts.push(Part::Reasoning(text)),
            Some(Rest::Answer(text)) => self.push_answer(text, parts),
            Some(Rest::Calls(text)) => {
                is_thought = true;
                self.push_answer(text, parts);
            }
        }
        let before = parts.len();
        match &mut self.calls {
            CallParser::None => {}
            CallParser::Tagged(calls) => calls.finish(parts),
            CallParser::Json(calls) => calls.finish(parts),
            CallParser::Pythonic(calls) => calls.finish(parts),
            CallParser::DeepSeek(calls) => calls.finish(parts),
            CallParser::Harmony(messages) => messages.finish(parts),
        }
        self.note_calls(parts, before);
        if is_thought {
            // Text that is not a call is still reasoning.
            for part in parts.iter_mut().skip(begin) {
                if let Part::Content(text) = part {
                    *part = Part::Reasoning(std::mem::take(text));
                }
            }
        }
    }

    /// Notes the calls in the parts from `before` on.
    fn note_calls(&mut self, parts: &mut Vec<Part>, before: usize) {
        let mut place = 0;
        parts.retain(|part| {
            place += 1;
            match part {
                _ if place <= before => return true,
                Part::Call(_) => {
                    self.drops_call = self.single_call && self.has_called;
                    self.has_called = true;
                }
                Part::Arguments(_) => {}
                Part::Content(_) | Part::Reasoning(_) => return true,
            }
            !self.drops_call
        });
    }

    /// Whether a tool was called.
    pub(crate) fn has_called(&self) -> bool {
        self.has_called
    }
}

#[cfg(test)]
mod tests;

//! Parsing of a model's text: reasoning, tool calls, and the answer itself.

mod brackets;
mod call_object;
mod deepseek;
mod function_tags;
mod harmony;
mod json_calls;
mod reasoning;
mod surroundings;
mod tagged_calls;

use std::sync::Arc;

use nereid_core::Model;

use self::deepseek::DeepSeekCalls;
use self::harmony::Harmony;
use self::json_calls::{JsonCalls, Layout};
use self::reasoning::{Reasoning, Rest};
use self::tagged_calls::TaggedCalls;
use crate::template::ChatTemplate;
use crate::tools::Tool;

pub(crate) use self::harmony::{CHANNEL, FINAL_HEADER, call_header};

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

/// The format of the tool calls that a family of models writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ToolFormat {
    /// `<tool_call>{"name": .., "arguments": ..}</tool_call>`.
    Hermes,
    /// `<tool_call><function=NAME><parameter=NAME>VALUE</parameter></function></tool_call>`.
    Qwen3Coder,
    /// Messages in channels, one for each call.
    Harmony,
    /// `[TOOL_CALLS][{"name": .., "arguments": ..}]`, or `[TOOL_CALLS]NAME[ARGS]{..}`.
    Mistral,
    /// `<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{..}<｜tool▁call▁end｜>`.
    DeepSeek,
    /// `{"name": .., "parameters": ..}`, with `;` between several, or behind `<|python_tag|>`.
    Llama3,
}

impl ToolFormat {
    /// The names that a configuration may use.
    pub(crate) const NAMES: &str = "hermes, qwen3, qwen3_coder, mistral, llama3, gpt_oss, deepseek_v3";

    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "hermes" | "qwen3" | "qwen25" => Self::Hermes,
            "qwen3_coder" | "qwen3_xml" => Self::Qwen3Coder,
            "mistral" => Self::Mistral,
            "llama3" | "llama3_json" | "llama4_json" => Self::Llama3,
            "gpt_oss" | "openai" | "harmony" => Self::Harmony,
            "deepseek_v3" | "deepseek_v31" | "deepseek_v3_1" | "deepseek_r1" => Self::DeepSeek,
            _ => return None,
        })
    }

    /// The format that a chat template shows to its model.
    fn in_template(template: &ChatTemplate) -> Option<Self> {
        if template.mentions(CHANNEL) {
            return Some(Self::Harmony);
        }
        if template.mentions(deepseek::LIST) {
            return Some(Self::DeepSeek);
        }
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

    /// The mark in front of calls, if it stands nowhere else.
    fn mark(self) -> Option<&'static str> {
        match self {
            Self::Hermes | Self::Qwen3Coder => Some(tagged_calls::OPENING),
            Self::Mistral => Some(json_calls::MISTRAL),
            Self::DeepSeek => Some(deepseek::LIST),
            Self::Llama3 | Self::Harmony => None,
        }
    }

    /// Whether the marks of a model's format are special tokens, which engines leave out by default.
    pub(crate) fn has_special_marks(self) -> bool {
        matches!(self, Self::Mistral | Self::Harmony | Self::DeepSeek)
    }
}

/// How a model writes tool calls and reasoning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Formats {
    /// The format of its tool calls, if known.
    pub tools: Option<ToolFormat>,
    /// How it writes reasoning.
    pub reasoning: ReasoningFormat,
}

/// How a model writes its reasoning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ReasoningFormat {
    /// Not at all.
    #[default]
    None,
    /// Between `<think>` and `</think>`, in front of the answer.
    Think,
    /// In messages of the channel `analysis`.
    Harmony,
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
        let reasoning = match parameter("reasoning_parser") {
            None if tools == Some(ToolFormat::Harmony) => ReasoningFormat::Harmony,
            None => match template {
                Some(template) if template.mentions(CHANNEL) => ReasoningFormat::Harmony,
                Some(template) if template.mentions("</think>") => ReasoningFormat::Think,
                _ => ReasoningFormat::None,
            },
            Some("none") => ReasoningFormat::None,
            Some("think" | "qwen3" | "deepseek_r1") => ReasoningFormat::Think,
            Some("gpt_oss" | "openai_gptoss" | "harmony") => ReasoningFormat::Harmony,
            Some(name) => {
                return Err(format!(
                    "unknown reasoning_parser '{name}' (available: none, think, qwen3, deepseek_r1, gpt_oss)"
                ));
            }
        };
        Ok(Self { tools, reasoning })
    }

    /// Whether outputs are messages in channels.
    pub(crate) fn has_messages(self) -> bool {
        self.tools == Some(ToolFormat::Harmony) || self.reasoning == ReasoningFormat::Harmony
    }
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
    /// Between `<think>` and `</think>`.
    Tags {
        /// Whether the prompt has begun it.
        has_begun: bool,
    },
    /// In messages. The prompt holds this beginning of the first one.
    Messages(String),
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
            Reasons::Tags { has_begun } => Some(Reasoning::new(has_begun, mark)),
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

//! A chat completion as one document.

use serde::Serialize;

use super::Head;
use super::plan::AnswerForm;
use crate::choices::{Delta, Usage};
use crate::contract::Finish;
use crate::exchange::random_id;
use crate::logprobs::{ChatLogprobs, TokenLogprobs};
use crate::parsing::{Parser, Part, ToolCall};

/// The choices of an answer while they arrive.
pub(crate) struct Whole {
    choices: Vec<Choice>,
}

/// A choice.
#[derive(Debug, Default)]
pub(crate) struct Choice {
    parser: Parser,
    /// The text of the answer.
    pub content: String,
    /// The reasoning before it.
    pub reasoning: String,
    /// The tool calls.
    pub calls: Vec<ToolCall>,
    logprobs: Vec<TokenLogprobs>,
    /// Why it ended.
    pub finish: Option<Finish>,
}

impl Whole {
    pub(crate) fn new(form: &AnswerForm) -> Self {
        let choice = || Choice { parser: form.parsing.parser(), ..Choice::default() };
        Self { choices: std::iter::repeat_with(choice).take(form.count).collect() }
    }

    /// Adds a piece.
    pub(crate) fn add(&mut self, delta: Delta) {
        let Some(choice) = self.choices.get_mut(delta.index) else { return };
        let mut parts = Vec::new();
        choice.parser.push(delta.text, &mut parts);
        if delta.finish.is_some() {
            choice.finish = delta.finish;
            choice.parser.finish(&mut parts);
        }
        choice.logprobs.extend(delta.logprobs.into_iter().flatten());
        for part in parts {
            match part {
                Part::Content(text) => choice.content.push_str(&text),
                Part::Reasoning(text) => choice.reasoning.push_str(&text),
                Part::Call(name) => choice.calls.push(ToolCall { name, arguments: String::new() }),
                Part::Arguments(text) => {
                    if let Some(call) = choice.calls.last_mut() {
                        call.arguments.push_str(&text);
                    }
                }
            }
        }
    }

    /// The document.
    pub(crate) fn into_document(
        self,
        head: &Head,
        usage: Option<Usage>,
        top_logprobs: Option<usize>,
    ) -> Vec<u8> {
        let choices = self.choices.iter().enumerate().map(|(index, choice)| DocumentChoice {
            index,
            message: Message {
                role: "assistant",
                // An answer with nothing but tool calls has null content.
                content: (!choice.content.is_empty() || choice.calls.is_empty()).then_some(&choice.content),
                refusal: None,
                reasoning_content: (!choice.reasoning.is_empty()).then_some(&choice.reasoning),
                tool_calls: choice.calls.iter().map(WireCall::new).collect(),
            },
            logprobs: top_logprobs.map(|top| ChatLogprobs::new(&choice.logprobs, top)),
            finish_reason: finish_reason(choice.finish, !choice.calls.is_empty()),
        });
        let document = Document {
            id: &head.id,
            object: "chat.completion",
            created: head.created,
            model: &head.model,
            choices: choices.collect(),
            usage,
            system_fingerprint: None,
        };
        serde_json::to_vec(&document).unwrap_or_default()
    }
}

/// The name of the reason for a choice's end.
pub(super) fn finish_reason(finish: Option<Finish>, has_called: bool) -> &'static str {
    match finish {
        Some(Finish::Stop) | None if has_called => "tool_calls",
        finish => finish.unwrap_or(Finish::Stop).name(),
    }
}

#[derive(Serialize)]
struct Document<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<DocumentChoice<'a>>,
    usage: Option<Usage>,
    system_fingerprint: Option<&'static str>,
}

#[derive(Serialize)]
struct DocumentChoice<'a> {
    index: usize,
    message: Message<'a>,
    logprobs: Option<ChatLogprobs<'a>>,
    finish_reason: &'static str,
}

#[derive(Serialize)]
struct Message<'a> {
    role: &'static str,
    content: Option<&'a String>,
    refusal: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<&'a String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<WireCall<'a>>,
}

/// A tool call on the wire, or a piece of one.
#[derive(Serialize)]
pub(super) struct WireCall<'a> {
    /// The place of the call, in streams only.
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    r#type: Option<&'static str>,
    function: WireFunction<'a>,
}

#[derive(Serialize)]
struct WireFunction<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    arguments: &'a str,
}

impl<'a> WireCall<'a> {
    /// The call with a new identifier.
    fn new(call: &'a ToolCall) -> Self {
        Self { index: None, ..Self::begun(0, &call.name).with_arguments(&call.arguments) }
    }

    /// The beginning of the call at this place of a stream, with a new identifier.
    pub(super) fn begun(index: usize, name: &'a str) -> Self {
        let function = WireFunction { name: Some(name), arguments: "" };
        Self { index: Some(index), id: Some(random_id("call_")), r#type: Some("function"), function }
    }

    /// More of the arguments of the call at this place of a stream.
    pub(super) fn more(index: usize, arguments: &'a str) -> Self {
        let function = WireFunction { name: None, arguments };
        Self { index: Some(index), id: None, r#type: None, function }
    }

    fn with_arguments(self, arguments: &'a str) -> Self {
        Self { function: WireFunction { arguments, ..self.function }, ..self }
    }
}

//! An answer as one document.

use serde_json::{Value, json};

use super::Head;
use super::locator::Locator;
use crate::chat::plan::AnswerForm;
use crate::choices::{Delta, Usage};
use crate::contract::Finish;
use crate::exchange::random_id;
use crate::parsing::{Parser, Part, ToolCall};

/// An answer while it arrives.
pub(super) struct Answer {
    parser: Parser,
    reasoning: String,
    content: String,
    calls: Vec<ToolCall>,
    finish: Option<Finish>,
}

impl Answer {
    pub(super) fn new(form: &AnswerForm) -> Self {
        Self {
            parser: form.parsing.parser(),
            reasoning: String::new(),
            content: String::new(),
            calls: Vec::new(),
            finish: None,
        }
    }

    /// Adds a piece.
    pub(super) fn add(&mut self, delta: Delta) {
        let mut parts = Vec::new();
        self.parser.push(delta.text, &mut parts);
        if delta.finish.is_some() {
            self.finish = delta.finish;
            self.parser.finish(&mut parts);
        }
        for part in parts {
            match part {
                Part::Content(text) => self.content.push_str(&text),
                Part::Reasoning(text) => self.reasoning.push_str(&text),
                Part::Call(name) => self.calls.push(ToolCall { name, arguments: String::new() }),
                Part::Arguments(text) => {
                    if let Some(call) = self.calls.last_mut() {
                        call.arguments.push_str(&text);
                    }
                }
            }
        }
    }

    /// How the answer ended.
    pub(super) fn status(&self) -> Status {
        Status::of(self.finish)
    }

    /// The items of the answer, which is complete and has this locator.
    pub(super) fn items(&self, locator: Locator) -> Vec<Value> {
        let status = self.status().name();
        let mut items = Vec::new();
        if !self.reasoning.is_empty() {
            items.push(reasoning_item(&locator.item("rs_", items.len()), &self.reasoning));
        }
        if !self.content.is_empty() || self.calls.is_empty() {
            items.push(message_item(&locator.item("msg_", items.len()), status, Some(&self.content)));
        }
        for call in &self.calls {
            let id = locator.item("fc_", items.len());
            items.push(call_item(&id, &random_id("call_"), status, call));
        }
        items
    }
}

/// The status of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    InProgress,
    Completed,
    /// The limit of tokens is reached.
    Incomplete,
    Failed,
}

impl Status {
    pub(super) fn of(finish: Option<Finish>) -> Self {
        if finish == Some(Finish::Length) { Self::Incomplete } else { Self::Completed }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
            Self::Incomplete => "incomplete",
            Self::Failed => "failed",
        }
    }
}

/// The document of an answer.
pub(super) fn envelope(head: &Head, status: Status, items: Vec<Value>, usage: Option<Usage>) -> Value {
    let usage = usage.map(|usage| {
        let cached = usage.prompt_tokens_details.map_or(0, |details| details.cached_tokens);
        json!({
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": cached},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage.total_tokens,
        })
    });
    let incomplete = (status == Status::Incomplete).then(|| json!({"reason": "max_output_tokens"}));
    let mut document = json!({
        "id": head.id,
        "object": "response",
        "created_at": head.created,
        "status": status.name(),
        "error": null,
        "incomplete_details": incomplete,
        "model": head.model,
        "output": items,
        "previous_response_id": head.previous,
        "reasoning": {"effort": null, "summary": null},
        "store": head.stores,
        "usage": usage,
    });
    if let Some(fields) = document.as_object_mut() {
        fields.extend(head.echo.clone());
    }
    document
}

/// A message. `None` for the text of one that has just begun.
pub(super) fn message_item(id: &str, status: &str, text: Option<&str>) -> Value {
    let content: Vec<Value> = text.map(text_part).into_iter().collect();
    json!({"id": id, "type": "message", "status": status, "role": "assistant", "content": content})
}

/// The text of a message.
pub(super) fn text_part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

/// The reasoning before an answer.
pub(super) fn reasoning_item(id: &str, text: &str) -> Value {
    json!({"id": id, "type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}]})
}

/// A tool call.
pub(super) fn call_item(id: &str, call_id: &str, status: &str, call: &ToolCall) -> Value {
    json!({"id": id, "type": "function_call", "status": status, "call_id": call_id, "name": call.name,
        "arguments": call.arguments})
}

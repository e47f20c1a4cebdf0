//! An answer as a stream of events. Each has a name, which its data repeats as `type`, and a number.

use std::task::{Context, Poll, ready};

use serde_json::{Value, json};

use super::whole::{Status, call_item, envelope, message_item, reasoning_item, text_part};
use super::{Head, Keeper};
use crate::chat::plan::AnswerForm;
use crate::choices::{Choices, Delta};
use crate::contract::Finish;
use crate::error::Outcome;
use crate::exchange::random_id;
use crate::parsing::{Parser, Part, ToolCall};
use crate::sse::{self, Events};

/// The events of an answer.
pub(super) struct ResponseStream {
    head: Head,
    choices: Choices,
    parser: Parser,
    single_call: bool,
    /// Stores the complete answer; `None` if the client wants no storage.
    keeper: Option<Keeper>,
    calls: usize,
    finish: Option<Finish>,
    /// The item that is being written.
    open: Option<Open>,
    /// The items that are complete.
    items: Vec<Value>,
    /// The number of the next event.
    sequence: u64,
}

/// An item that is being written.
struct Open {
    id: String,
    is_reasoning: bool,
    text: String,
}

impl ResponseStream {
    pub(super) fn new(head: Head, choices: Choices, form: &AnswerForm, keeper: Option<Keeper>) -> Self {
        Self {
            head,
            choices,
            parser: form.parsing.parser(),
            single_call: form.single_call,
            keeper,
            calls: 0,
            finish: None,
            open: None,
            items: Vec::new(),
            sequence: 0,
        }
    }

    /// Writes the events in front of the answer.
    pub(super) fn begin(&mut self, output: &mut Vec<u8>) {
        let response = envelope(&self.head, Status::InProgress, Vec::new(), None);
        self.emit(output, "response.created", json!({"response": response}));
        self.emit(output, "response.in_progress", json!({"response": response}));
    }

    /// Writes what is new, `None` being the end. Returns whether more follows.
    pub(super) fn write(&mut self, news: Option<Outcome<Delta>>, output: &mut Vec<u8>) -> bool {
        match news {
            Some(Ok(delta)) => {
                self.write_delta(delta, output);
                true
            }
            Some(Err(failure)) => {
                let mut response =
                    envelope(&self.head, Status::Failed, std::mem::take(&mut self.items), None);
                if let Some(error) = response.get_mut("error") {
                    *error = json!({"code": "server_error", "message": failure.message()});
                }
                self.emit(output, "response.failed", json!({"response": response}));
                false
            }
            None => {
                self.close(output);
                let status = Status::of(self.finish);
                let items = std::mem::take(&mut self.items);
                let mut response = envelope(&self.head, status, items, self.choices.usage());
                if let Some(keeper) = self.keeper.take() {
                    keeper.keep(&mut response);
                }
                self.emit(output, &format!("response.{}", status.name()), json!({"response": response}));
                false
            }
        }
    }

    /// Writes an event.
    fn emit(&mut self, output: &mut Vec<u8>, name: &str, mut data: Value) {
        if let Some(fields) = data.as_object_mut() {
            fields.insert("type".to_owned(), name.into());
            fields.insert("sequence_number".to_owned(), self.sequence.into());
        }
        self.sequence += 1;
        sse::named_event(output, name, &data);
    }

    fn write_delta(&mut self, delta: Delta, output: &mut Vec<u8>) {
        let mut parts = Vec::new();
        self.parser.push(delta.text, &mut parts);
        if delta.finish.is_some() {
            self.finish = delta.finish;
            self.parser.finish(&mut parts);
        }
        for part in parts {
            match part {
                Part::Content(text) => self.write_text(false, &text, output),
                Part::Reasoning(text) => self.write_text(true, &text, output),
                Part::Call(_) if self.single_call && self.calls > 0 => {}
                Part::Call(call) => self.write_call(&call, output),
            }
        }
        let is_empty = self.items.is_empty() && self.open.is_none();
        if self.finish.is_some() && is_empty {
            self.write_text(false, "", output);
        }
    }

    fn write_text(&mut self, is_reasoning: bool, text: &str, output: &mut Vec<u8>) {
        if self.open.as_ref().is_none_or(|open| open.is_reasoning != is_reasoning) {
            self.close(output);
            self.open(is_reasoning, output);
        }
        let Some(open) = &mut self.open else { return };
        open.text.push_str(text);
        let (id, index) = (open.id.clone(), self.items.len());
        let place = json!({"item_id": id, "output_index": index, "content_index": 0, "delta": text});
        match is_reasoning {
            true => self.emit(output, "response.reasoning_text.delta", place),
            false => self.emit(output, "response.output_text.delta", with(place, "logprobs", json!([]))),
        }
    }

    /// Begins an item.
    fn open(&mut self, is_reasoning: bool, output: &mut Vec<u8>) {
        let index = self.items.len();
        let id = random_id(if is_reasoning { "rs_" } else { "msg_" });
        let item = match is_reasoning {
            true => json!({"id": id, "type": "reasoning", "summary": []}),
            false => message_item(&id, "in_progress", None),
        };
        self.emit(output, "response.output_item.added", json!({"output_index": index, "item": item}));
        if !is_reasoning {
            let part =
                json!({"item_id": id, "output_index": index, "content_index": 0, "part": text_part("")});
            self.emit(output, "response.content_part.added", part);
        }
        self.open = Some(Open { id, is_reasoning, text: String::new() });
    }

    /// Ends the item that is being written, if there is one.
    fn close(&mut self, output: &mut Vec<u8>) {
        let Some(Open { id, is_reasoning, text }) = self.open.take() else { return };
        let index = self.items.len();
        let place = json!({"item_id": id, "output_index": index, "content_index": 0});
        let item = if is_reasoning {
            self.emit(output, "response.reasoning_text.done", with(place, "text", text.as_str().into()));
            reasoning_item(&id, &text)
        } else {
            let done = with(with(place.clone(), "text", text.as_str().into()), "logprobs", json!([]));
            self.emit(output, "response.output_text.done", done);
            self.emit(output, "response.content_part.done", with(place, "part", text_part(&text)));
            message_item(&id, Status::of(self.finish).name(), Some(&text))
        };
        self.emit(output, "response.output_item.done", json!({"output_index": index, "item": item}));
        self.items.push(item);
    }

    fn write_call(&mut self, call: &ToolCall, output: &mut Vec<u8>) {
        self.close(output);
        self.calls += 1;
        let (id, call_id, index) = (random_id("fc_"), random_id("call_"), self.items.len());
        let begun = ToolCall { name: call.name.clone(), arguments: String::new() };
        let begun = call_item(&id, &call_id, "in_progress", &begun);
        self.emit(output, "response.output_item.added", json!({"output_index": index, "item": begun}));
        let place = json!({"item_id": id, "output_index": index});
        let arguments = Value::from(call.arguments.as_str());
        self.emit(
            output,
            "response.function_call_arguments.delta",
            with(place.clone(), "delta", arguments.clone()),
        );
        let done = with(with(place, "arguments", arguments), "name", call.name.as_str().into());
        self.emit(output, "response.function_call_arguments.done", done);
        let item = call_item(&id, &call_id, "completed", call);
        self.emit(output, "response.output_item.done", json!({"output_index": index, "item": item}));
        self.items.push(item);
    }
}

/// The object with another member.
fn with(mut object: Value, name: &str, value: Value) -> Value {
    if let Some(fields) = object.as_object_mut() {
        fields.insert(name.to_owned(), value);
    }
    object
}

impl Events for ResponseStream {
    fn poll_events(&mut self, context: &mut Context<'_>, output: &mut Vec<u8>) -> Poll<bool> {
        let news = ready!(self.choices.poll_next(context));
        Poll::Ready(self.write(news, output))
    }
}

//! An answer as a stream of events. Each has a name, which its data repeats as `type`, and a number.

use std::task::{Context, Poll, ready};

use serde_json::{Value, json};

use super::locator::Locator;
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
    /// Stores the complete answer; `None` if the client wants no storage.
    keeper: Option<Keeper>,
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
    kind: Kind,
    text: String,
}

/// The kind of an item.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Message,
    Reasoning,
    /// A call, whose text is its arguments.
    Call {
        id: String,
        name: String,
    },
}

impl ResponseStream {
    pub(super) fn new(head: Head, choices: Choices, form: &AnswerForm, keeper: Option<Keeper>) -> Self {
        Self {
            head,
            choices,
            parser: form.parsing.parser(),
            keeper,
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
                Part::Content(text) => self.write_text(Kind::Message, &text, output),
                Part::Reasoning(text) => self.write_text(Kind::Reasoning, &text, output),
                Part::Call(name) => self.begin_call(name, output),
                Part::Arguments(text) => self.write_arguments(&text, output),
            }
        }
        let is_empty = self.items.is_empty() && self.open.is_none();
        if self.finish.is_some() && is_empty {
            self.write_text(Kind::Message, "", output);
        }
    }

    fn write_text(&mut self, kind: Kind, text: &str, output: &mut Vec<u8>) {
        if self.open.as_ref().is_none_or(|open| open.kind != kind) {
            self.open(kind, output);
        }
        let Some(open) = &mut self.open else { return };
        open.text.push_str(text);
        let is_reasoning = open.kind == Kind::Reasoning;
        let (id, index) = (open.id.clone(), self.items.len());
        let place = json!({"item_id": id, "output_index": index, "content_index": 0, "delta": text});
        match is_reasoning {
            true => self.emit(output, "response.reasoning_text.delta", place),
            false => self.emit(output, "response.output_text.delta", with(place, "logprobs", json!([]))),
        }
    }

    fn begin_call(&mut self, name: String, output: &mut Vec<u8>) {
        self.open(Kind::Call { id: random_id("call_"), name }, output);
    }

    fn write_arguments(&mut self, text: &str, output: &mut Vec<u8>) {
        let Some(open) = &mut self.open else { return };
        open.text.push_str(text);
        let data = json!({"item_id": open.id, "output_index": self.items.len(), "delta": text});
        self.emit(output, "response.function_call_arguments.delta", data);
    }

    /// Begins an item. The one before it ends.
    fn open(&mut self, kind: Kind, output: &mut Vec<u8>) {
        self.close(output);
        let index = self.items.len();
        let prefix = match kind {
            Kind::Message => "msg_",
            Kind::Reasoning => "rs_",
            Kind::Call { .. } => "fc_",
        };
        let id = Locator::of_answer(&self.head.id).item(prefix, index);
        let item = match &kind {
            Kind::Message => message_item(&id, "in_progress", None),
            Kind::Reasoning => json!({"id": id, "type": "reasoning", "summary": []}),
            Kind::Call { id: call_id, name } => call_item(&id, call_id, "in_progress", &call(name, "")),
        };
        self.emit(output, "response.output_item.added", json!({"output_index": index, "item": item}));
        if kind == Kind::Message {
            let part =
                json!({"item_id": id, "output_index": index, "content_index": 0, "part": text_part("")});
            self.emit(output, "response.content_part.added", part);
        }
        self.open = Some(Open { id, kind, text: String::new() });
    }

    /// Ends the item that is being written, if there is one.
    fn close(&mut self, output: &mut Vec<u8>) {
        let Some(Open { id, kind, text }) = self.open.take() else { return };
        let index = self.items.len();
        let place = json!({"item_id": id, "output_index": index});
        let item = match kind {
            Kind::Reasoning => {
                let done = with(with(place, "content_index", 0.into()), "text", text.as_str().into());
                self.emit(output, "response.reasoning_text.done", done);
                reasoning_item(&id, &text)
            }
            Kind::Message => {
                let place = with(place, "content_index", 0.into());
                let done = with(with(place.clone(), "text", text.as_str().into()), "logprobs", json!([]));
                self.emit(output, "response.output_text.done", done);
                self.emit(output, "response.content_part.done", with(place, "part", text_part(&text)));
                message_item(&id, Status::of(self.finish).name(), Some(&text))
            }
            Kind::Call { id: call_id, name } => {
                let done = with(with(place, "arguments", text.as_str().into()), "name", name.as_str().into());
                self.emit(output, "response.function_call_arguments.done", done);
                call_item(&id, &call_id, Status::of(self.finish).name(), &call(&name, &text))
            }
        };
        self.emit(output, "response.output_item.done", json!({"output_index": index, "item": item}));
        self.items.push(item);
    }
}

fn call(name: &str, arguments: &str) -> ToolCall {
    ToolCall { name: name.to_owned(), arguments: arguments.to_owned() }
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

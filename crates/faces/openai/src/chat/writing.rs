//! A chat completion as a stream of events.

use std::task::{Context, Poll, ready};

use serde::Serialize;

use super::Head;
use super::plan::AnswerForm;
use super::whole::{WireCall, finish_reason};
use crate::choices::{Choices, Delta, Usage};
use crate::error::Outcome;
use crate::logprobs::{ChatLogprobs, TokenLogprobs};
use crate::parsing::{Parser, Part};
use crate::sse::{self, Events};

/// The chunks of an answer.
pub(crate) struct ChatStream {
    head: Head,
    choices: Choices,
    states: Vec<State>,
    /// Parts of the piece being written, kept for its memory.
    parts: Vec<Part>,
    include_usage: bool,
    top_logprobs: Option<usize>,
}

/// The progress of a choice.
#[derive(Debug)]
struct State {
    parser: Parser,
    has_begun: bool,
    calls: usize,
    /// Probabilities of tokens whose text is not written yet.
    logprobs: Vec<TokenLogprobs>,
}

impl ChatStream {
    pub(crate) fn new(head: Head, choices: Choices, form: &AnswerForm) -> Self {
        let state =
            || State { parser: form.parsing.parser(), has_begun: false, calls: 0, logprobs: Vec::new() };
        Self {
            head,
            choices,
            states: std::iter::repeat_with(state).take(form.count).collect(),
            parts: Vec::new(),
            include_usage: form.include_usage,
            top_logprobs: form.top_logprobs,
        }
    }

    /// Writes what is new of the choices, `None` being their end. Returns whether more follows.
    pub(crate) fn write(&mut self, news: Option<Outcome<Delta>>, output: &mut Vec<u8>) -> bool {
        match news {
            Some(Ok(delta)) => {
                self.write_delta(delta, output);
                true
            }
            Some(Err(failure)) => {
                sse::error_event(output, &failure.body());
                sse::done(output);
                false
            }
            None => {
                if self.include_usage {
                    let chunk = Chunk { usage: Some(self.choices.usage()), ..self.chunk([]) };
                    sse::event(output, &chunk);
                }
                sse::done(output);
                false
            }
        }
    }

    fn chunk<'a, const N: usize>(&'a self, choices: [ChunkChoice<'a>; N]) -> Chunk<'a, N> {
        Chunk {
            id: &self.head.id,
            object: "chat.completion.chunk",
            created: self.head.created,
            model: &self.head.model,
            choices: Choice(choices),
            usage: None,
        }
    }

    fn write_delta(&mut self, delta: Delta, output: &mut Vec<u8>) {
        let index = delta.index;
        let mut parts = std::mem::take(&mut self.parts);
        let Some(state) = self.states.get_mut(index) else { return };
        let is_first = !std::mem::replace(&mut state.has_begun, true);
        state.parser.push(delta.text, &mut parts);
        state.logprobs.extend(delta.logprobs.into_iter().flatten());
        let mut finish = None;
        if delta.finish.is_some() {
            state.parser.finish(&mut parts);
            finish = Some(finish_reason(delta.finish, state.parser.has_called()));
        }
        let (mut calls, mut logprobs) = (state.calls, std::mem::take(&mut state.logprobs));
        if is_first {
            let message = Message { role: Some("assistant"), content: Some(""), ..Message::default() };
            sse::event(output, &self.chunk([ChunkChoice::new(index, message)]));
        }
        for part in &parts {
            let message = match part {
                Part::Content(text) => Message { content: Some(text), ..Message::default() },
                Part::Reasoning(text) => Message { reasoning_content: Some(text), ..Message::default() },
                Part::Call(name) => {
                    calls += 1;
                    let call = WireCall::begun(calls - 1, name);
                    Message { tool_calls: Some([call]), ..Message::default() }
                }
                Part::Arguments(text) => {
                    let call = WireCall::more(calls.saturating_sub(1), text);
                    Message { tool_calls: Some([call]), ..Message::default() }
                }
            };
            let choice = ChunkChoice::new(index, message);
            let logprobs = std::mem::take(&mut logprobs);
            let top = self.top_logprobs.filter(|_| !logprobs.is_empty());
            let choice = ChunkChoice { logprobs: top.map(|top| ChatLogprobs::new(&logprobs, top)), ..choice };
            sse::event(output, &self.chunk([choice]));
        }
        if finish.is_some() {
            let choice = ChunkChoice::new(index, Message::default());
            let top = self.top_logprobs.filter(|_| !logprobs.is_empty());
            let logprobs = top.map(|top| ChatLogprobs::new(&logprobs, top));
            let choice = ChunkChoice { finish_reason: finish, logprobs, ..choice };
            sse::event(output, &self.chunk([choice]));
        }
        parts.clear();
        self.parts = parts;
        if let Some(state) = self.states.get_mut(index) {
            state.calls = calls;
            if finish.is_none() {
                state.logprobs = logprobs;
            }
        }
    }
}

impl Events for ChatStream {
    fn poll_events(&mut self, context: &mut Context<'_>, output: &mut Vec<u8>) -> Poll<bool> {
        let news = ready!(self.choices.poll_next(context));
        Poll::Ready(self.write(news, output))
    }
}

#[derive(Serialize)]
struct Chunk<'a, const N: usize> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Choice<'a, N>,
    /// Null where the model counts no tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Usage>>,
}

/// Serialised as a list.
struct Choice<'a, const N: usize>([ChunkChoice<'a>; N]);

impl<const N: usize> Serialize for Choice<'_, N> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(&self.0)
    }
}

#[derive(Serialize)]
struct ChunkChoice<'a> {
    index: usize,
    delta: Message<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<ChatLogprobs<'a>>,
    finish_reason: Option<&'static str>,
}

impl<'a> ChunkChoice<'a> {
    fn new(index: usize, delta: Message<'a>) -> Self {
        Self { index, delta, logprobs: None, finish_reason: None }
    }
}

#[derive(Default, Serialize)]
struct Message<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_calls: Option<[WireCall<'a>; 1]>,
}

//! Reasoning between two tags, in front of the answer. Models also call tools in the midst of it, without an end: from a
//! mark of a call on, the reasoning waits for its end, and without one becomes the answer.

use crate::search::{Search, search};

/// The tags around the reasoning of a family of models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tags {
    pub opening: &'static str,
    pub closing: &'static str,
}

/// The tags of most families.
pub(super) const THINK: Tags = Tags { opening: "<think>", closing: "</think>" };
/// Mistral's, which are special tokens.
pub(super) const MISTRAL: Tags = Tags { opening: "[THINK]", closing: "[/THINK]" };

/// Separates reasoning from the answer.
#[derive(Debug)]
pub(super) struct Reasoning {
    tags: Tags,
    state: State,
    /// Text that is not assigned yet.
    held: String,
    /// The mark in front of a tool call.
    call: Option<&'static str>,
    /// How much of the held text has no end of the reasoning.
    searched: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The output may begin with reasoning.
    Beginning,
    /// Within the reasoning.
    Inside,
    /// Within the reasoning, behind the mark of a call, which is held.
    Calling,
    /// Behind the reasoning, where whitespace in front of the answer is dropped.
    Behind,
    /// Within the answer.
    Over,
}

impl Reasoning {
    /// The state at the beginning of an output. `has_begun` if the prompt ends within the reasoning; `call` is the mark in front of
    /// tool calls.
    pub(super) fn new(tags: Tags, has_begun: bool, call: Option<&'static str>) -> Self {
        let state = if has_begun { State::Inside } else { State::Beginning };
        Self { tags, state, held: String::new(), call, searched: 0 }
    }

    /// The reasoning and the part of the answer that are complete with this piece.
    pub(super) fn push(&mut self, piece: String) -> (String, String) {
        if self.state == State::Over {
            return (String::new(), piece);
        }
        self.held.push_str(&piece);
        let Tags { opening, closing } = self.tags;
        let mut thought = String::new();
        if self.state == State::Beginning {
            let text = self.held.trim_start();
            if let Some(inside) = text.strip_prefix(opening) {
                self.held = inside.to_owned();
                self.state = State::Inside;
            } else if !opening.starts_with(text) {
                self.state = State::Over;
                return (thought, std::mem::take(&mut self.held));
            }
        }
        if self.state == State::Inside {
            let marks = [closing, self.call.unwrap_or(closing)];
            let (end, state) = match search(&self.held, &marks) {
                Search::Found { start, .. } => (start, State::Calling),
                Search::Missing { safe } => (safe, State::Inside),
            };
            thought.extend(self.held.drain(..end));
            self.state = state;
            self.searched = 0;
        }
        if self.state == State::Calling {
            match self.held.get(self.searched..).and_then(|text| text.find(closing)) {
                Some(found) => {
                    let start = self.searched + found;
                    let rest = self.held.split_off(start + closing.len());
                    self.held.truncate(start);
                    thought.push_str(&std::mem::replace(&mut self.held, rest));
                    self.state = State::Behind;
                }
                None => {
                    let searched = self.held.len().saturating_sub(closing.len());
                    self.searched = self.held.floor_char_boundary(searched);
                }
            }
        }
        if self.state == State::Behind {
            let answer = self.held.trim_start();
            if !answer.is_empty() {
                let answer = answer.to_owned();
                self.held.clear();
                self.state = State::Over;
                return (thought, answer);
            }
        }
        (thought, String::new())
    }

    /// The rest of an output that has ended.
    pub(super) fn finish(&mut self) -> Rest {
        let rest = std::mem::take(&mut self.held);
        match self.state {
            State::Inside => Rest::Thought(rest),
            State::Calling => Rest::Calls(rest),
            State::Behind => Rest::Answer(String::new()),
            State::Beginning | State::Over => Rest::Answer(rest),
        }
    }
}

/// The rest of an output.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Rest {
    Thought(String),
    Answer(String),
    /// Reasoning with calls, or what looks like some.
    Calls(String),
}

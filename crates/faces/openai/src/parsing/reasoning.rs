//! Reasoning between `<think>` and `</think>`, in front of the answer.

use crate::search::{Search, search};

const OPENING: &str = "<think>";
const CLOSING: &str = "</think>";

/// Separates reasoning from the answer.
#[derive(Debug)]
pub(super) struct Reasoning {
    state: State,
    /// Text that is not assigned yet.
    held: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The output may begin with reasoning.
    Beginning,
    /// Within the reasoning.
    Inside,
    /// Behind the reasoning, where whitespace in front of the answer is dropped.
    Behind,
    /// Within the answer.
    Over,
}

impl Reasoning {
    /// The state at the beginning of an output. `has_begun` if the prompt ends within the reasoning.
    pub(super) fn new(has_begun: bool) -> Self {
        let state = if has_begun { State::Inside } else { State::Beginning };
        Self { state, held: String::new() }
    }

    /// The reasoning and the part of the answer that are complete with this piece.
    pub(super) fn push(&mut self, piece: String) -> (String, String) {
        if self.state == State::Over {
            return (String::new(), piece);
        }
        self.held.push_str(&piece);
        let mut thought = String::new();
        if self.state == State::Beginning {
            let text = self.held.trim_start();
            if let Some(inside) = text.strip_prefix(OPENING) {
                self.held = inside.to_owned();
                self.state = State::Inside;
            } else if !OPENING.starts_with(text) {
                self.state = State::Over;
                return (thought, std::mem::take(&mut self.held));
            }
        }
        if self.state == State::Inside {
            match search(&self.held, &[CLOSING]) {
                Search::Found { start, end, .. } => {
                    let rest = self.held.split_off(end);
                    self.held.truncate(start);
                    thought = std::mem::replace(&mut self.held, rest);
                    self.state = State::Behind;
                }
                Search::Missing { safe } => thought.extend(self.held.drain(..safe)),
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
    pub(super) fn finish(&mut self) -> (String, String) {
        let rest = std::mem::take(&mut self.held);
        match self.state {
            State::Inside => (rest, String::new()),
            State::Behind => (String::new(), String::new()),
            State::Beginning | State::Over => (String::new(), rest),
        }
    }
}

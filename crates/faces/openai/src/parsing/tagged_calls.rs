//! Tool calls between `<tool_call>` and `</tool_call>`: objects of JSON, or tags within.

use std::sync::Arc;

use super::Part;
use super::call_object::{CallObject, End};
use super::function_tags::{FUNCTION, FunctionTags};
use super::surroundings::Surroundings;
use crate::search::{Search, search};
use crate::tools::Tool;

/// The mark in front of calls.
pub(super) const OPENING: &str = "<tool_call>";
pub(super) const CLOSING: &str = "</tool_call>";

/// Finds tagged calls in an output.
#[derive(Debug)]
pub(super) struct TaggedCalls {
    /// The tools, if arguments are written in tags: the schemas distinguish texts from other values.
    tools: Option<Arc<[Tool]>>,
    held: String,
    place: Place,
    surroundings: Surroundings,
    /// Whether a call was found since the last opening tag.
    has_called: bool,
}

#[derive(Debug)]
enum Place {
    Outside,
    /// Behind an opening tag, or behind a call.
    Inside,
    /// Behind an opening tag, in text that is not a call.
    Other,
    Object(CallObject),
    Function(FunctionTags),
}

impl TaggedCalls {
    /// Calls written as JSON.
    pub(super) fn hermes() -> Self {
        let surroundings = Surroundings::default();
        Self { tools: None, held: String::new(), place: Place::Outside, surroundings, has_called: false }
    }

    /// Calls written as tags.
    pub(super) fn qwen3_coder(tools: Arc<[Tool]>) -> Self {
        Self { tools: Some(tools), ..Self::hermes() }
    }

    pub(super) fn push(&mut self, piece: &str, parts: &mut Vec<Part>) {
        self.held.push_str(piece);
        while self.advance(parts) {}
    }

    /// Reads up to the next place. Returns false if that takes more of the output.
    fn advance(&mut self, parts: &mut Vec<Part>) -> bool {
        let before = parts.len();
        match &mut self.place {
            Place::Outside => return self.outside(parts),
            Place::Inside => return self.inside(parts),
            Place::Other => match search(&self.held, &[CLOSING]) {
                Search::Found { end, .. } => {
                    self.place = Place::Outside;
                    let text: String = self.held.drain(..end).collect();
                    self.surroundings.text(&text, parts);
                }
                Search::Missing { safe } => {
                    let text: String = self.held.drain(..safe).collect();
                    self.surroundings.text(&text, parts);
                    return false;
                }
            },
            Place::Object(object) => {
                let end = object.push(&self.held, parts);
                return self.end(end, before, parts);
            }
            Place::Function(function) => {
                let end = function.push(&self.held, parts);
                return self.end(end, before, parts);
            }
        }
        true
    }

    fn outside(&mut self, parts: &mut Vec<Part>) -> bool {
        // Some models leave out the outer tag.
        let marks: &[&str] = if self.tools.is_some() { &[OPENING, FUNCTION] } else { &[OPENING] };
        match search(&self.held, marks) {
            Search::Found { start, end, which } => {
                let rest = self.held.split_off(end);
                let text = std::mem::replace(&mut self.held, rest);
                self.surroundings.text(text.get(..start).unwrap_or_default(), parts);
                self.surroundings.mark(text.get(start..).unwrap_or_default());
                self.has_called = false;
                self.place = if which == 0 { Place::Inside } else { self.function() };
                true
            }
            Search::Missing { safe } => {
                let text: String = self.held.drain(..safe).collect();
                self.surroundings.text(&text, parts);
                false
            }
        }
    }

    fn function(&self) -> Place {
        Place::Function(FunctionTags::new(self.tools.clone().unwrap_or_default()))
    }

    fn inside(&mut self, parts: &mut Vec<Part>) -> bool {
        // Models write a brace too many, or commas between calls.
        let is_skipped = |character: char| {
            character.is_whitespace() || (self.has_called && matches!(character, '}' | ','))
        };
        let skipped = self.held.len() - self.held.trim_start_matches(is_skipped).len();
        let text: String = self.held.drain(..skipped).collect();
        if !self.has_called {
            self.surroundings.mark(&text);
        }
        if self.held.is_empty() {
            return false;
        }
        if self.held.starts_with('{') {
            self.place = Place::Object(CallObject::new(false));
            return true;
        }
        let marks = [CLOSING, OPENING, FUNCTION];
        let marks = if self.tools.is_some() { &marks[..] } else { marks.get(..2).unwrap_or_default() };
        let Some(mark) = marks.iter().find(|mark| self.held.starts_with(**mark)) else {
            let may_follow = marks.iter().any(|mark| mark.starts_with(&self.held));
            if !may_follow {
                self.place = Place::Other;
            }
            return !may_follow;
        };
        self.held.drain(..mark.len());
        match *mark {
            CLOSING => {
                self.place = Place::Outside;
                if !self.has_called {
                    self.surroundings.text(CLOSING, parts);
                }
            }
            FUNCTION => {
                self.surroundings.mark(mark);
                self.place = self.function();
            }
            _ => self.surroundings.mark(mark),
        }
        true
    }

    /// Notes the calls in the parts from `before` on, and the end of the call that was read, if it has ended.
    fn end(&mut self, end: Option<End>, before: usize, parts: &mut Vec<Part>) -> bool {
        self.has_called |= self.surroundings.note_calls(parts, before);
        let Some(End { rest, rejected }) = end else {
            self.held.clear();
            return false;
        };
        self.held = rest;
        if let Some(text) = rejected {
            self.surroundings.text(&text, parts);
        }
        self.place = Place::Inside;
        true
    }

    pub(super) fn finish(&mut self, parts: &mut Vec<Part>) {
        let before = parts.len();
        let rejected = match &mut self.place {
            Place::Object(object) => object.finish(parts),
            Place::Function(function) => function.finish(parts),
            Place::Outside | Place::Inside | Place::Other => None,
        };
        self.surroundings.note_calls(parts, before);
        let rest = rejected.unwrap_or_default() + &std::mem::take(&mut self.held);
        self.surroundings.text(&rest, parts);
        self.surroundings.finish(parts);
    }
}

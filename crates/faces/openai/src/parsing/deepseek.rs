//! DeepSeek's tool calls: `<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{..}<｜tool▁call▁end｜>` between marks of a list, as V3.1 writes them, and with
//! the type in place of the name, the name behind it, and the arguments as a block of code, as V3 and R1 do.

use super::Part;
use super::brackets::Brackets;
use super::surroundings::Surroundings;
use crate::search::{Search, search};

/// The mark in front of a list of calls, by which templates of this format are recognised.
pub(super) const LIST: &str = "<｜tool▁calls▁begin｜>";
const LIST_END: &str = "<｜tool▁calls▁end｜>";
const CALL: &str = "<｜tool▁call▁begin｜>";
const CALL_END: &str = "<｜tool▁call▁end｜>";
const SEPARATOR: &str = "<｜tool▁sep｜>";

/// The type of a call in front of its name.
const FUNCTION: &str = "function";
const CODE: &str = "```json";

/// The longest name, in bytes, with what is around it.
const LONGEST_NAME: usize = 320;

/// Finds calls in an output.
#[derive(Debug)]
pub(super) struct DeepSeekCalls {
    held: String,
    place: Place,
    surroundings: Surroundings,
}

#[derive(Clone, Copy, Debug)]
enum Place {
    Outside,
    /// Behind the mark of a call.
    Name,
    /// In the arguments of a call.
    Arguments(Brackets),
    /// Behind the arguments, in front of the end of the call.
    Behind,
}

impl DeepSeekCalls {
    pub(super) fn new() -> Self {
        Self { held: String::new(), place: Place::Outside, surroundings: Surroundings::default() }
    }

    pub(super) fn push(&mut self, piece: &str, parts: &mut Vec<Part>) {
        self.held.push_str(piece);
        while self.advance(parts) {}
    }

    /// Reads up to the next place. Returns false if that takes more of the output.
    fn advance(&mut self, parts: &mut Vec<Part>) -> bool {
        match &mut self.place {
            Place::Outside => match search(&self.held, &[CALL, LIST, LIST_END]) {
                Search::Found { start, end, which } => {
                    let rest = self.held.split_off(end);
                    let text = std::mem::replace(&mut self.held, rest);
                    self.surroundings.text(text.get(..start).unwrap_or_default(), parts);
                    match which {
                        2 if self.surroundings.has_called() => self.surroundings.clear(),
                        _ => self.surroundings.mark(text.get(start..).unwrap_or_default()),
                    }
                    if which == 0 {
                        self.place = Place::Name;
                    }
                    true
                }
                Search::Missing { safe } => {
                    let text: String = self.held.drain(..safe).collect();
                    self.surroundings.text(&text, parts);
                    false
                }
            },
            Place::Name => self.name(parts),
            Place::Arguments(brackets) => {
                let mut end = None;
                for (at, character) in self.held.char_indices() {
                    if character == '<' && !brackets.is_string() {
                        end = Some(at);
                        break;
                    }
                    brackets.push(character);
                    if brackets.depth() == 0 {
                        end = Some(at + character.len_utf8());
                        break;
                    }
                }
                let arguments: String = self.held.drain(..end.unwrap_or(self.held.len())).collect();
                if !arguments.is_empty() {
                    parts.push(Part::Arguments(arguments));
                }
                if end.is_some() {
                    self.place = Place::Behind;
                }
                end.is_some()
            }
            Place::Behind => {
                // The end of a block of code, and of the call.
                match search(&self.held, &[CALL_END, CALL, LIST_END]) {
                    Search::Found { start, end, which } => {
                        self.held.drain(..if which == 0 { end } else { start });
                        self.place = Place::Outside;
                        true
                    }
                    Search::Missing { safe } => {
                        self.held.drain(..safe);
                        false
                    }
                }
            }
        }
    }

    /// Reads a name up to the brace of the arguments.
    fn name(&mut self, parts: &mut Vec<Part>) -> bool {
        let limit = self.held.floor_char_boundary(LONGEST_NAME);
        let head = self.held.get(..limit).unwrap_or_default();
        let end = head.find('{');
        let Some(end) = end.filter(|end| !head.get(..*end).unwrap_or_default().contains(CALL_END)) else {
            let is_text = self.held.len() > LONGEST_NAME || head.contains(CALL_END);
            if is_text {
                self.place = Place::Outside;
                // The call's mark is in the surroundings; its end is not one of theirs.
                let end = head.find(CALL_END).map_or(limit, |at| at + CALL_END.len());
                let text: String = self.held.drain(..end).collect();
                self.surroundings.text(&text, parts);
            }
            return is_text;
        };
        let head: String = self.held.drain(..end).collect();
        let name = match head.split_once(SEPARATOR) {
            Some((kind, rest)) if kind.trim() == FUNCTION => {
                rest.split('\n').next().unwrap_or_default().replace(CODE, "")
            }
            Some((name, _)) => name.to_owned(),
            None => String::new(),
        };
        let name = name.trim();
        if name.is_empty() || name.contains(char::is_whitespace) {
            self.place = Place::Outside;
            self.surroundings.text(&head, parts);
            return true;
        }
        parts.push(Part::Call(name.to_owned()));
        self.surroundings.note_calls(parts, parts.len() - 1);
        self.place = Place::Arguments(Brackets::default());
        true
    }

    pub(super) fn finish(&mut self, parts: &mut Vec<Part>) {
        let rest = std::mem::take(&mut self.held);
        if !matches!(self.place, Place::Behind) {
            self.surroundings.text(&rest, parts);
        }
        self.surroundings.finish(parts);
    }
}

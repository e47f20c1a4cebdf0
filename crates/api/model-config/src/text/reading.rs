//! Reads an entire text despite errors, to report all of them.

use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, MapKey, Value};

use super::error::{Cursor, ParseError, Problem};
use super::parser;
use super::places::{Places, ROOT, show_key};
use super::watch::Watch;
use crate::proto::{self, ModelConfig};

/// Limit of collected problems. More are useless, and a text of nonsense has no end of them.
const MOST_PROBLEMS: usize = 1000;

/// The contents of a text, the positions of its fields, and all its textual problems.
#[derive(Debug, Clone)]
pub struct Reading {
    /// The configuration, as far as it could be read: without wrong fields and values, and without the text after a
    /// syntax error.
    pub config: ModelConfig,
    /// The position of each field.
    pub places: Places,
    /// The problems, in the order of the text. Empty if [`parse_text`](crate::parse_text) accepts the text.
    pub problems: Vec<TextProblem>,
    /// Whether the entire text was read. Otherwise the last problem, a syntax error or too many other problems, is
    /// the one that stopped it.
    pub complete: bool,
}

impl Reading {
    /// Whether a textual problem is the likely cause of an error in the field at `path`: the text misspells the
    /// field, or part of it.
    pub fn explains(&self, path: &str) -> bool {
        self.problems.iter().any(|problem| is_within(path, &problem.meant) || is_within(&problem.meant, path))
    }
}

/// Whether `path` equals `outer` or is inside it.
fn is_within(path: &str, outer: &str) -> bool {
    !outer.is_empty()
        && path.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// A problem in a text, and the field that it concerns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextProblem {
    error: ParseError,
    field: String,
    meant: String,
}

impl TextProblem {
    /// The error and its position.
    pub fn error(&self) -> &ParseError {
        &self.error
    }

    /// The path of the field as written in the text, such as `input[0].dims[1]`, even if the schema has no such
    /// field; empty outside of fields. For a syntax error, the field that contains it.
    pub fn field(&self) -> &str {
        &self.field
    }
}

/// Reads a configuration like [`parse_text`](crate::parse_text), but continues after fields that do not exist, are
/// set twice or have a value of the wrong type, and records the position of each field. Takes more time and memory.
#[expect(clippy::expect_used, reason = "type and descriptors come from the same schema")]
pub fn read_text(text: &str) -> Reading {
    let mut collector = Collector {
        cursor: Cursor::new(text),
        places: Places::default(),
        problems: Vec::new(),
        frames: vec![Frame::new(ROOT, Step::Root)],
    };
    let mut message = DynamicMessage::new(proto::descriptor());
    let end = parser::parse_into(&mut message, text, &mut collector);
    let complete = end.is_ok();
    if let Err(problem) = end {
        collector.add(problem);
    }
    collector.places.sort();
    let config = message.transcode_to().expect("type and descriptors come from the same schema");
    Reading { config, places: collector.places, problems: collector.problems, complete }
}

struct Collector<'a> {
    cursor: Cursor<'a>,
    places: Places,
    problems: Vec<TextProblem>,
    /// The fields and elements being read, from the outside in.
    frames: Vec<Frame>,
}

/// The entire text, a field, or an element being read.
struct Frame {
    node: u32,
    step: Step,
    /// The repeated fields of this message seen so far.
    lists: Vec<List>,
}

enum Step {
    Root,
    Field(FieldDescriptor),
    Element(u32),
    Entry { key: MapKey, is_known: bool },
}

/// A repeated field may occur several times; all occurrences form one list.
struct List {
    node: u32,
    field: u32,
    length: u32,
}

impl Frame {
    fn new(node: u32, step: Step) -> Self {
        Self { node, step, lists: Vec::new() }
    }
}

impl Collector<'_> {
    /// The path of the innermost frame.
    fn path(&self) -> String {
        let mut path = String::new();
        let mut in_entry = false;
        for frame in &self.frames {
            match &frame.step {
                // Paths go through a map by its keys, not by the entry messages of the text.
                Step::Field(field) if in_entry && field.name() == "value" => {}
                Step::Field(field) if path.is_empty() => path += field.name(),
                Step::Field(field) => path += &format!(".{}", field.name()),
                Step::Element(index) => path += &format!("[{index}]"),
                Step::Entry { key, is_known: true } => path += &format!("[{}]", show_key(key)),
                Step::Entry { .. } | Step::Root => {}
            }
            in_entry = matches!(frame.step, Step::Entry { .. });
        }
        path
    }

    fn add(&mut self, problem: Problem) {
        let place = self.cursor.place(problem.offset);
        let inside = self.path();
        let below = |name: &str| if inside.is_empty() { name.to_owned() } else { format!("{inside}.{name}") };
        let field = problem.unknown.as_deref().map(below);
        let is_unknown = field.is_some();
        let error = problem.at(place);
        let meant = match error.nearest() {
            Some(nearest) if is_unknown => below(nearest),
            _ => field.clone().unwrap_or_else(|| inside.clone()),
        };
        self.problems.push(TextProblem { error, field: field.unwrap_or(inside), meant });
    }
}

impl Watch for Collector<'_> {
    fn note(&mut self, problem: Problem) -> Result<(), Problem> {
        if self.problems.len() + 1 >= MOST_PROBLEMS {
            let message = format!("reading stops after {} earlier problems", self.problems.len());
            return Err(Problem::new(problem.offset, message));
        }
        self.add(problem);
        Ok(())
    }

    fn enter(&mut self, field: &FieldDescriptor, offset: usize) {
        let place = self.cursor.place(offset);
        let Some(around) = self.frames.last_mut() else { return };
        let number = field.number();
        let node = if field.is_list() || field.is_map() {
            match around.lists.iter().find(|list| list.field == number) {
                Some(list) => list.node,
                None => {
                    let node = self.places.add(around.node, number, place);
                    around.lists.push(List { node, field: number, length: 0 });
                    node
                }
            }
        } else {
            self.places.add(around.node, number, place)
        };
        self.frames.push(Frame::new(node, Step::Field(field.clone())));
    }

    fn enter_element(&mut self, offset: usize) {
        let place = self.cursor.place(offset);
        let [.., around, Frame { node, step: Step::Field(field), .. }] = self.frames.as_mut_slice() else {
            return;
        };
        let Some(list) = around.lists.iter_mut().find(|list| list.node == *node) else { return };
        let index = list.length;
        list.length += 1;
        let step = match field.kind() {
            Kind::Message(entry) if field.is_map() => {
                // An omitted key has the default value.
                let key = Value::default_value(&entry.map_entry_key_field().kind()).into_map_key();
                let Some(key) = key else { return };
                Step::Entry { key, is_known: false }
            }
            _ => Step::Element(index),
        };
        let node = self.places.add(*node, index, place);
        self.frames.push(Frame::new(node, step));
    }

    fn key(&mut self, value: &Value) {
        let entry = self.frames.iter_mut().rev().nth(1).map(|frame| &mut frame.step);
        if let Some(Step::Entry { key, is_known: is_known @ false }) = entry
            && let Some(value) = value.clone().into_map_key()
        {
            (*key, *is_known) = (value, true);
        }
    }

    fn leave(&mut self) {
        let Some(frame) = self.frames.pop() else { return };
        if let (Step::Entry { key, .. }, Some(map)) = (frame.step, self.frames.last()) {
            self.places.add_key(map.node, &key, frame.node);
        }
    }
}

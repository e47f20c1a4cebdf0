//! Reads a whole text despite errors, to report all of them.

use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, MapKey, Value};

use super::error::{Cursor, ParseError, Problem};
use super::parser;
use super::places::{Places, ROOT, show_key};
use super::watch::Watch;
use crate::proto::{self, ModelConfig};

/// How many problems are collected. Nobody reads more, and a text of nonsense has no end of them.
const MOST_PROBLEMS: usize = 1000;

/// What a text says, where it says it, and all that is wrong with it as a text.
#[derive(Debug, Clone)]
pub struct Reading {
    /// The configuration, as far as it could be read: without the fields and values that are wrong, and without what
    /// follows an error of syntax.
    pub config: ModelConfig,
    /// Where each field stands.
    pub places: Places,
    /// What is wrong, in the order of the text. Empty where [`parse_text`](crate::parse_text) accepts the text.
    pub problems: Vec<TextProblem>,
    /// Whether the reading reached the end of the text. If not, an error of syntax or a great many other problems
    /// stopped it; the last problem says so.
    pub complete: bool,
}

impl Reading {
    /// Whether a problem of the text is the likely reason for anything that is wrong with the field at `path`: the
    /// text names the field, or part of it, in a wrong way.
    pub fn explains(&self, path: &str) -> bool {
        self.problems.iter().any(|problem| is_within(path, &problem.meant) || is_within(&problem.meant, path))
    }
}

/// Whether `path` is `outer` or stands in it.
fn is_within(path: &str, outer: &str) -> bool {
    !outer.is_empty()
        && path.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// Something wrong in a text, and which field it is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextProblem {
    error: ParseError,
    field: String,
    meant: String,
}

impl TextProblem {
    /// What is wrong, and where.
    pub fn error(&self) -> &ParseError {
        &self.error
    }

    /// The path of the field as the text names it, such as `input[0].dims[1]`, also where the schema has no such
    /// field; empty where the problem is in none. Of an error of syntax, the field in which it shows.
    pub fn field(&self) -> &str {
        &self.field
    }
}

/// Reads a configuration as [`parse_text`](crate::parse_text) does, but goes on behind fields that do not exist, are
/// given twice or have a value of the wrong type, and notes where each field stands. It takes more time and memory.
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
    /// The fields and elements that the parser is in, from the outside in.
    frames: Vec<Frame>,
}

/// The whole text, a field or an element that is being read.
struct Frame {
    node: u32,
    step: Step,
    /// The repeated fields of this message that have come up.
    lists: Vec<List>,
}

enum Step {
    Root,
    Field(FieldDescriptor),
    Element(u32),
    Entry { key: MapKey, is_known: bool },
}

/// A repeated field may come up several times; all of it is one list.
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
    /// The path of what the parser is in.
    fn path(&self) -> String {
        let mut path = String::new();
        let mut in_entry = false;
        for frame in &self.frames {
            match &frame.step {
                // Paths lead through a map by its keys, not by the messages that its entries are in the text.
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
            let message =
                format!("there are {} problems before this one; the rest is not read", self.problems.len());
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
                // A key that is left out is the default one.
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

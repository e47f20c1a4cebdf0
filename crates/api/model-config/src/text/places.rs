//! The position of each field of a configuration in its text.
//!
//! Knows paths and positions, not problems.

use std::collections::HashMap;

use prost_reflect::{FieldDescriptor, Kind, MapKey, MessageDescriptor};

use super::error::Place;
use crate::proto;

/// The positions of all fields in a text.
///
/// A field is found by its path: dot-separated schema names, with an index after a repeated field and a key after a
/// map, as in `input[0].dims[1]` or `parameters["k"].string_value`. The position of a field is its name's; the
/// position of an element in a bracketed list is its value's.
#[derive(Debug, Clone, Default)]
pub struct Places {
    nodes: Vec<Node>,
    /// Indices into `nodes`, by parent and step; among equal steps, in the order of the text.
    order: Vec<u32>,
    /// Map entries by map and key.
    entries: HashMap<(u32, String), u32>,
}

/// The entire text, which has no position.
pub(super) const ROOT: u32 = u32::MAX;

/// A field, or an element of one.
#[derive(Debug, Clone)]
struct Node {
    parent: u32,
    /// The field's number in its message, or the element's index in its list or map.
    step: u32,
    // Half the size of `Place`: a long text has a node for each of its numbers.
    line: u32,
    column: u32,
}

impl Places {
    /// The position of the field at `path`, or else of the nearest enclosing field in the text. `None` if the text
    /// contains neither.
    pub fn find(&self, path: &str) -> Option<Place> {
        let mut found = None;
        let mut node = ROOT;
        let mut message = Some(proto::descriptor());
        for step in steps(path) {
            let Some((next, inner)) = self.follow(node, message.as_ref(), &step) else { break };
            (node, message) = (next, inner);
            found = Some(node);
        }
        let node = self.nodes.get(found? as usize)?;
        Some(Place { line: node.line as usize, column: node.column as usize })
    }

    /// The node that a step leads to, and the message that contains the next fields.
    fn follow(
        &self,
        from: u32,
        message: Option<&MessageDescriptor>,
        step: &Step<'_>,
    ) -> Option<(u32, Option<MessageDescriptor>)> {
        let field = message?.get_field_by_name(step.name)?;
        let node = self.child(from, field.number())?;
        let inner = message_of(&field);
        let Some(index) = &step.index else { return Some((node, inner)) };
        if !field.is_map() {
            let element = index.parse().ok().and_then(|index| self.child(node, index));
            // An index missing from the text resolves to the list.
            return Some(element.map_or((node, None), |element| (element, inner)));
        }
        let Some(&entry) = self.entries.get(&(node, index.clone())) else { return Some((node, None)) };
        // Fields after a key belong to the value; the entry itself has the key's position.
        let value = inner?.map_entry_value_field();
        Some(match (message_of(&value), self.child(entry, value.number())) {
            (Some(inner), Some(value)) => (value, Some(inner)),
            _ => (entry, None),
        })
    }

    fn child(&self, parent: u32, step: u32) -> Option<u32> {
        let key = |&index: &u32| {
            let node = &self.nodes[index as usize];
            (node.parent, node.step)
        };
        let first = self.order.partition_point(|index| key(index) < (parent, step));
        self.order.get(first).copied().filter(|index| key(index) == (parent, step))
    }

    /// Adds a field or element under another, and returns its node.
    pub(super) fn add(&mut self, parent: u32, step: u32, place: Place) -> u32 {
        let narrow = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        self.nodes.push(Node { parent, step, line: narrow(place.line), column: narrow(place.column) });
        narrow(self.nodes.len() - 1)
    }

    /// Sets the key of a map entry; a later entry with the same key wins.
    pub(super) fn add_key(&mut self, map: u32, key: &MapKey, entry: u32) {
        self.entries.insert((map, plain(key)), entry);
    }

    /// Called once, after everything is added.
    pub(super) fn sort(&mut self) {
        self.order = (0..u32::try_from(self.nodes.len()).unwrap_or(u32::MAX)).collect();
        let nodes = &self.nodes;
        self.order.sort_unstable_by_key(|&index| {
            let node = &nodes[index as usize];
            (node.parent, node.step, index)
        });
    }
}

fn message_of(field: &FieldDescriptor) -> Option<MessageDescriptor> {
    match field.kind() {
        Kind::Message(message) => Some(message),
        _ => None,
    }
}

/// A part of a path: a field, optionally with an index or a key (without quotes).
#[derive(Debug, PartialEq, Eq)]
struct Step<'a> {
    name: &'a str,
    index: Option<String>,
}

/// The parts of a path, up to the first invalid part.
fn steps(path: &str) -> impl Iterator<Item = Step<'_>> {
    let mut rest = Some(path);
    std::iter::from_fn(move || {
        let text = rest.take()?;
        let end = text.find(['.', '[']).unwrap_or(text.len());
        let (name, after) = text.split_at(end);
        let (index, after) = match after.strip_prefix('[') {
            Some(inside) => {
                let (index, after) = index(inside)?;
                (Some(index), after)
            }
            None => (None, after),
        };
        rest = after.strip_prefix('.');
        Some(Step { name, index })
    })
}

/// The contents of brackets whose opening one is already removed, and the text after them.
fn index(inside: &str) -> Option<(String, &str)> {
    let Some(quoted) = inside.strip_prefix('"') else {
        let (index, after) = inside.split_once(']')?;
        return Some((index.to_owned(), after));
    };
    let mut key = String::new();
    let mut letters = quoted.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => return Some((key, quoted[at + 1..].strip_prefix(']')?)),
            '\\' => key.push(match letters.next()?.1 {
                'n' => '\n',
                'r' => '\r',
                't' => '\t',
                '0' => '\0',
                'u' => {
                    let digits =
                        letters.by_ref().map(|(_, letter)| letter).skip_while(|&letter| letter == '{');
                    let digits: String = digits.take_while(|&letter| letter != '}').collect();
                    char::from_u32(u32::from_str_radix(&digits, 16).ok()?)?
                }
                letter => letter,
            }),
            letter => key.push(letter),
        }
    }
    None
}

/// A map key in path form: strings quoted and escaped as in Rust, numbers plain.
pub(super) fn show_key(key: &MapKey) -> String {
    match key {
        MapKey::String(text) => format!("{text:?}"),
        key => plain(key),
    }
}

fn plain(key: &MapKey) -> String {
    match key {
        MapKey::Bool(value) => value.to_string(),
        MapKey::I32(value) => value.to_string(),
        MapKey::I64(value) => value.to_string(),
        MapKey::U32(value) => value.to_string(),
        MapKey::U64(value) => value.to_string(),
        MapKey::String(text) => text.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(path: &str, expected: &[(&str, Option<&str>)]) {
        let found: Vec<_> = steps(path).collect();
        let found: Vec<_> = found.iter().map(|step| (step.name, step.index.as_deref())).collect();
        assert_eq!(found, expected, "{path}");
    }

    #[test]
    fn path_splits_into_fields_indices_and_keys() {
        check("name", &[("name", None)]);
        check("input[0].dims[1]", &[("input", Some("0")), ("dims", Some("1"))]);
        check("a.b[k].c", &[("a", None), ("b", Some("k")), ("c", None)]);
        check(r#"parameters["a.b]"].x"#, &[("parameters", Some("a.b]")), ("x", None)]);
        for key in ["\"\\", "\n\r\t\0\u{1b}é\u{200b}'", ""] {
            let path = format!("parameters[{}].x", show_key(&MapKey::String(key.to_owned())));
            check(&path, &[("parameters", Some(key)), ("x", None)]);
        }
        check("policy[10]", &[("policy", Some("10"))]);
    }

    #[test]
    fn invalid_part_ends_the_path() {
        check("", &[("", None)]);
        check("a[0", &[]);
        check("a.b[\"x", &[("a", None)]);
        check("a[0]b.c", &[("a", Some("0"))]);
        check("a[\"x\"b", &[]);
    }
}

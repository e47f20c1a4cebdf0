//! The schema's guarantees, and the structure that the parser relies on.

use std::collections::BTreeSet;

use prost_reflect::{EnumDescriptor, FieldDescriptor, Kind, MessageDescriptor};

use super::descriptor;

/// Every message, field and enum value that the wire and the text format promise, written by hand instead of derived
/// from our `.proto` file.
const FACTS: &str = include_str!("facts.txt");

fn type_name(kind: &Kind) -> String {
    match kind {
        Kind::Message(message) => message.name().to_owned(),
        Kind::Enum(enumeration) => enumeration.name().to_owned(),
        scalar => format!("{scalar:?}"),
    }
}

fn field_fact(path: &str, field: &FieldDescriptor) -> String {
    let kind = field.kind();
    let kind = match kind.as_message() {
        Some(entry) if field.is_map() => format!(
            "map<{}, {}>",
            type_name(&entry.map_entry_key_field().kind()),
            type_name(&entry.map_entry_value_field().kind())
        ),
        _ if field.is_list() => format!("repeated {}", type_name(&kind)),
        _ => type_name(&kind),
    };
    let oneof = field.containing_oneof().map(|oneof| format!(" oneof {}", oneof.name()));
    format!("{path}.{} {} {kind}{}", field.name(), field.number(), oneof.unwrap_or_default())
}

fn add_enum(path: &str, enumeration: &EnumDescriptor, facts: &mut BTreeSet<String>) {
    for value in enumeration.values() {
        facts.insert(format!("{path}.{} = {}", value.name(), value.number()));
    }
}

fn add_message(message: &MessageDescriptor, facts: &mut BTreeSet<String>) {
    let path = message.full_name().strip_prefix("inference.").unwrap();
    facts.insert(format!("message {path}"));
    facts.extend(message.fields().map(|field| field_fact(path, &field)));
    for enumeration in message.child_enums() {
        add_enum(enumeration.full_name().strip_prefix("inference.").unwrap(), &enumeration, facts);
    }
    for child in message.child_messages().filter(|child| !child.is_map_entry()) {
        add_message(&child, facts);
    }
}

#[test]
fn schema_matches_the_promised_facts() {
    let file = descriptor().parent_file();
    let mut actual = BTreeSet::new();
    for message in file.messages() {
        add_message(&message, &mut actual);
    }
    for enumeration in file.enums() {
        add_enum(enumeration.name(), &enumeration, &mut actual);
    }
    let expected: BTreeSet<String> = FACTS.lines().map(str::to_owned).collect();

    let missing: Vec<_> = expected.difference(&actual).collect();
    let unexpected: Vec<_> = actual.difference(&expected).collect();
    assert!(
        missing.is_empty() && unexpected.is_empty(),
        "missing: {missing:#?}\nunexpected: {unexpected:#?}"
    );
}

/// The parser descends no deeper than the schema, so no text can overflow its stack.
#[test]
fn no_message_contains_itself() {
    fn depth(message: &MessageDescriptor, above: usize) -> usize {
        assert!(above < 16, "{} is nested without end", message.full_name());
        let below = message.fields().filter_map(|field| Some(depth(field.kind().as_message()?, above + 1)));
        1 + below.max().unwrap_or(0)
    }
    assert_eq!(depth(&descriptor(), 0), 7);
}

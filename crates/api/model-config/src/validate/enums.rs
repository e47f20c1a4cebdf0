//! Enums: the text and JSON may contain any number, but only some are valid.

use prost_reflect::{DynamicMessage, Kind, MapKey, Value};

use super::report::Report;
use crate::proto::{self, ModelConfig};

/// Reports every number that its enum does not define. The reference accepts most of them as the default.
pub(super) fn check(config: &ModelConfig, report: &mut Report) {
    let mut path = String::new();
    check_message(&proto::to_dynamic(config), &mut path, report);
}

/// Descends no deeper than the schema.
fn check_message(message: &DynamicMessage, path: &mut String, report: &mut Report) {
    let above = path.len();
    for (field, value) in message.fields() {
        if !path.is_empty() {
            path.push('.');
        }
        path.push_str(field.name());
        let kind = match field.kind() {
            Kind::Message(entry) if field.is_map() => entry.map_entry_value_field().kind(),
            kind => kind,
        };
        if matches!(kind, Kind::Message(_) | Kind::Enum(_)) {
            check_value(value, &kind, path, report);
        }
        path.truncate(above);
    }
}

fn check_value(value: &Value, kind: &Kind, path: &mut String, report: &mut Report) {
    let here = path.len();
    match value {
        Value::EnumNumber(number) => check_number(*number, kind, path, report),
        Value::Message(message) => check_message(message, path, report),
        Value::List(list) => {
            for (index, value) in list.iter().enumerate() {
                path.push_str(&format!("[{index}]"));
                check_value(value, kind, path, report);
                path.truncate(here);
            }
        }
        Value::Map(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_by_key(|&(key, _)| key);
            for (key, value) in entries {
                path.push_str(&match key {
                    MapKey::String(key) => format!("[{key:?}]"),
                    MapKey::U64(key) => format!("[{key}]"),
                    MapKey::Bool(_) | MapKey::I32(_) | MapKey::I64(_) | MapKey::U32(_) => {
                        unreachable!("the schema has no such key")
                    }
                });
                check_value(value, kind, path, report);
                path.truncate(here);
            }
        }
        _ => {}
    }
}

fn check_number(number: i32, kind: &Kind, path: &str, report: &mut Report) {
    let Some(descriptor) = kind.as_enum() else { return };
    if descriptor.get_value(number).is_none() {
        let names: Vec<_> = descriptor.values().map(|value| value.name().to_owned()).collect();
        report.add(path, format!("{number} is not a valid value, must be one of {}", names.join(", ")));
    }
}

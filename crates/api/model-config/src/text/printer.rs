//! Prints a message as text, ordered by field numbers and map keys.

use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, MapKey, Value};

/// The text of a message's fields; empty if none is set.
pub(super) fn print(message: &DynamicMessage) -> String {
    let mut printer = Printer { out: String::new(), depth: 0 };
    printer.fields(message);
    printer.out
}

struct Printer {
    out: String,
    depth: usize,
}

impl Printer {
    fn line(&mut self, text: &str) {
        self.out.extend(std::iter::repeat_n("  ", self.depth));
        self.out += text;
        self.out.push('\n');
    }

    fn fields(&mut self, message: &DynamicMessage) {
        for (field, value) in message.fields() {
            match value {
                Value::Map(map) => {
                    let mut entries: Vec<_> = map.iter().collect();
                    entries.sort_by_key(|&(key, _)| key);
                    for (key, value) in entries {
                        self.entry(&field, key, value);
                    }
                }
                Value::List(list) if matches!(field.kind(), Kind::Message(_)) => {
                    for value in list {
                        self.field(field.name(), value, &field.kind());
                    }
                }
                Value::List(list) => {
                    let values: Vec<_> = list.iter().map(|value| scalar(value, &field.kind())).collect();
                    self.line(&format!("{}: [ {} ]", field.name(), values.join(", ")));
                }
                value => self.field(field.name(), value, &field.kind()),
            }
        }
    }

    fn field(&mut self, name: &str, value: &Value, kind: &Kind) {
        if let Value::Message(message) = value {
            self.line(&format!("{name} {{"));
            self.depth += 1;
            self.fields(message);
            self.depth -= 1;
            self.line("}");
        } else {
            self.line(&format!("{name}: {}", scalar(value, kind)));
        }
    }

    fn entry(&mut self, field: &FieldDescriptor, key: &MapKey, value: &Value) {
        let kind = field.kind();
        let Some(entry) = kind.as_message() else { return };
        self.line(&format!("{} {{", field.name()));
        self.depth += 1;
        self.field("key", &Value::from(key.clone()), &entry.map_entry_key_field().kind());
        self.field("value", value, &entry.map_entry_value_field().kind());
        self.depth -= 1;
        self.line("}");
    }
}

fn scalar(value: &Value, kind: &Kind) -> String {
    match value {
        Value::Bool(value) => value.to_string(),
        Value::I32(value) => value.to_string(),
        Value::I64(value) => value.to_string(),
        Value::U32(value) => value.to_string(),
        Value::U64(value) => value.to_string(),
        Value::F32(value) => format!("{value:?}"),
        Value::F64(value) => format!("{value:?}"),
        Value::EnumNumber(number) => {
            let named = kind.as_enum().and_then(|descriptor| descriptor.get_value(*number));
            named.map_or_else(|| number.to_string(), |value| value.name().to_owned())
        }
        Value::String(value) => quote(value),
        Value::Bytes(_) | Value::Message(_) | Value::List(_) | Value::Map(_) => {
            unreachable!("the schema has no such scalar")
        }
    }
}

fn quote(value: &str) -> String {
    let mut quoted = String::with_capacity(value.len() + 2);
    quoted.push('"');
    for letter in value.chars() {
        match letter {
            '"' => quoted += "\\\"",
            '\\' => quoted += "\\\\",
            '\n' => quoted += "\\n",
            '\r' => quoted += "\\r",
            '\t' => quoted += "\\t",
            // Three digits, so that a following digit is not read as part of the escape.
            _ if letter.is_ascii_control() => {
                quoted += &format!("\\{:03o}", u32::from(letter));
            }
            _ => quoted.push(letter),
        }
    }
    quoted.push('"');
    quoted
}

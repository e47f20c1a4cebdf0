//! Writes a configuration as JSON, as the configuration endpoint returns it. [`from_json`] reads JSON.
//!
//! Every plain field is written, even with its default value (except [`WHEN_SET`]); messages and members of a oneof
//! only if they are set. Names are the schema's, and 64-bit integers are numbers (except a few fields, see
//! [`AS_STRINGS`]). Fields are ordered by number and map entries by key, so that equal configurations produce equal
//! text. Driven by the descriptors.

mod lexer;
mod reader;

pub use reader::{JsonError, from_json};

use prost_reflect::{DynamicMessage, Kind, MapKey, ReflectMessage, Value};
use serde::ser::{Error as _, Serialize, SerializeMap, Serializer};

use crate::proto::{self, ModelConfig};

/// The fields whose 64-bit integers are strings, as protobuf writes them. The reference converts all others into
/// numbers but omits these, and readers of its configurations expect that.
const AS_STRINGS: [&str; 3] = [
    "inference.ModelSequenceBatching.InitialState.dims",
    "inference.ModelOptimizationPolicy.Cuda.GraphSpec.Shape.dim",
    "inference.ModelInstanceGroup.SecondaryDevice.device_id",
];

/// Plain fields that are written only if they are set. Triton 2.51 does not know them, so its readers encounter them
/// only if a user sets them.
const WHEN_SET: [&str; 1] = ["inference.ModelEnsembling.max_inflight_requests"];

/// The configuration as a JSON object.
#[expect(clippy::expect_used, reason = "writing names and values to memory cannot fail")]
pub fn to_json(config: &ModelConfig) -> String {
    let message = proto::to_dynamic(config);
    serde_json::to_string(&Message(&message)).expect("names are strings, and writing to memory cannot fail")
}

struct Message<'a>(&'a DynamicMessage);

impl Serialize for Message<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for field in self.0.descriptor().fields() {
            let is_always_shown = !field.supports_presence() && !WHEN_SET.contains(&field.full_name());
            if is_always_shown || self.0.has_field(&field) {
                let value = self.0.get_field(&field);
                let as_strings = AS_STRINGS.contains(&field.full_name());
                map.serialize_entry(field.name(), &Item { value: &value, kind: &field.kind(), as_strings })?;
            }
        }
        map.end()
    }
}

/// A value of a field; `kind` is the kind of its elements if it is a list, and of its entries if it is a map.
struct Item<'a> {
    value: &'a Value,
    kind: &'a Kind,
    /// Whether 64-bit integers are strings.
    as_strings: bool,
}

impl Serialize for Item<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.value {
            Value::Bool(value) => serializer.serialize_bool(*value),
            Value::I32(value) => serializer.serialize_i32(*value),
            Value::I64(value) if self.as_strings => serializer.collect_str(value),
            Value::I64(value) => serializer.serialize_i64(*value),
            Value::U32(value) => serializer.serialize_u32(*value),
            Value::U64(value) => serializer.serialize_u64(*value),
            Value::F32(value) if value.is_finite() => serializer.serialize_f32(*value),
            Value::F32(value) => serializer.serialize_str(not_finite(f64::from(*value))),
            Value::F64(value) if value.is_finite() => serializer.serialize_f64(*value),
            Value::F64(value) => serializer.serialize_str(not_finite(*value)),
            Value::String(value) => serializer.serialize_str(value),
            Value::EnumNumber(number) => {
                match self.kind.as_enum().and_then(|descriptor| descriptor.get_value(*number)) {
                    Some(value) => serializer.serialize_str(value.name()),
                    None => serializer.serialize_i32(*number),
                }
            }
            Value::Message(message) => Message(message).serialize(serializer),
            Value::List(list) => {
                let as_strings = self.as_strings;
                serializer.collect_seq(list.iter().map(|value| Item { value, kind: self.kind, as_strings }))
            }
            Value::Map(map) => {
                let Some(entry) = self.kind.as_message() else {
                    return Err(S::Error::custom("the entries of a map are messages"));
                };
                let kind = entry.map_entry_value_field().kind();
                let mut entries: Vec<_> = map.iter().collect();
                entries.sort_by_key(|&(key, _)| key);
                serializer.collect_map(
                    entries
                        .into_iter()
                        .map(|(key, value)| (Key(key), Item { value, kind: &kind, as_strings: false })),
                )
            }
            Value::Bytes(_) => unreachable!("the schema has no such field"),
        }
    }
}

/// Protobuf's name in JSON for a number without digits.
fn not_finite(value: f64) -> &'static str {
    match value {
        f64::INFINITY => "Infinity",
        f64::NEG_INFINITY => "-Infinity",
        _ => "NaN",
    }
}

/// A map's key. The writer quotes numbers, as JSON requires.
struct Key<'a>(&'a MapKey);

impl Serialize for Key<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            MapKey::String(key) => serializer.serialize_str(key),
            MapKey::U64(key) => serializer.serialize_u64(*key),
            MapKey::Bool(_) | MapKey::I32(_) | MapKey::I64(_) | MapKey::U32(_) => {
                unreachable!("the schema has no such key")
            }
        }
    }
}

#[cfg(test)]
mod tests;

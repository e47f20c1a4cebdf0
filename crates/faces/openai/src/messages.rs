//! The messages of a conversation, in the form that chat templates expect: content as text, arguments of tool calls as objects.

use minijinja::Value;
use minijinja::value::ValueKind;
use serde_json::value::RawValue;

use crate::error::{Failure, Outcome};
use crate::fields::read;

/// Reads the messages of a chat completion. `takes_developer` if the template knows that role, which otherwise becomes `system`.
///
/// # Errors
/// A message is invalid, or has content other than text.
pub(crate) fn read_messages(raw: &RawValue, takes_developer: bool) -> Outcome<Vec<Value>> {
    normalise(&read::<Vec<Value>>("messages", raw)?, "messages", takes_developer)
}

/// Brings messages, which the field of this name holds, into the form that templates expect.
///
/// # Errors
/// As for [`read_messages`].
pub(crate) fn normalise(
    messages: &[Value],
    field: &'static str,
    takes_developer: bool,
) -> Outcome<Vec<Value>> {
    if messages.is_empty() {
        return Err(Failure::invalid_field(field, format!("'{field}' must not be empty")));
    }
    let indexed = messages.iter().enumerate();
    indexed
        .map(|(index, message)| normalised(&format!("{field}[{index}]"), message, takes_developer))
        .collect()
}

/// 400 for a message at this place, which begins with the name of its field.
fn invalid(place: &str, fault: &str) -> Box<Failure> {
    let field = place.split('[').next().unwrap_or_default().to_owned();
    Failure::invalid_field(field, format!("'{place}{fault}"))
}

fn normalised(place: &str, message: &Value, takes_developer: bool) -> Outcome<Value> {
    if message.kind() != ValueKind::Map {
        return Err(invalid(place, "' is not an object"));
    }
    let mut fields = pairs(message);
    let mut has_content = false;
    let mut role = None;
    for (name, value) in &mut fields {
        match name.as_str() {
            Some("role") => {
                if value.as_str() == Some("developer") && !takes_developer {
                    *value = Value::from("system");
                }
                role = value.as_str().map(str::to_owned);
            }
            Some("content") => {
                *value = content(place, value)?;
                has_content = true;
            }
            Some("tool_calls") if value.kind() == ValueKind::Seq => {
                let calls = value.try_iter().into_iter().flatten().map(|call| with_parsed_arguments(&call));
                *value = Value::from(calls.collect::<Vec<_>>());
            }
            _ => {}
        }
    }
    let Some(role) = role else { return Err(invalid(place, "' has no 'role'")) };
    if !has_content {
        if role != "assistant" {
            return Err(invalid(place, "' has no 'content'"));
        }
        fields.push((Value::from("content"), Value::from("")));
    }
    // Templates test whether these exist.
    fields.retain(|(name, value)| !(value.is_none() && matches!(name.as_str(), Some("tool_calls" | "name"))));
    Ok(Value::from_pairs(fields))
}

/// The members of an object, in order.
fn pairs(object: &Value) -> Vec<(Value, Value)> {
    let keys = object.try_iter().into_iter().flatten();
    keys.filter_map(|key| Some((key.clone(), object.get_item(&key).ok()?))).collect()
}

/// The text of a message's content.
fn content(place: &str, content: &Value) -> Outcome<Value> {
    match content.kind() {
        ValueKind::String => Ok(content.clone()),
        ValueKind::None | ValueKind::Undefined => Ok(Value::from("")),
        ValueKind::Seq => {
            let mut texts = Vec::new();
            for part in content.try_iter().into_iter().flatten() {
                texts.push(part_text(place, &part)?);
            }
            Ok(Value::from(texts.join("\n")))
        }
        _ => Err(invalid(place, ".content' is neither a text nor a list of parts")),
    }
}

/// The text of a part.
fn part_text(place: &str, part: &Value) -> Outcome<String> {
    if let Some(text) = part.as_str() {
        return Ok(text.to_owned());
    }
    let member = |name: &str| part.get_attr(name).ok().and_then(|value| value.as_str().map(str::to_owned));
    let kind = member("type").unwrap_or_default();
    let text = match kind.as_str() {
        "text" | "input_text" | "output_text" => member("text"),
        "refusal" => member("refusal"),
        "" => return Err(invalid(place, ".content' has a part without 'type'")),
        other => {
            let message =
                format!("'{place}.content': parts of type '{other}' are not supported; only text is");
            return Err(Failure::unsupported(
                place.split('[').next().unwrap_or_default().to_owned(),
                message,
            ));
        }
    };
    text.ok_or_else(|| invalid(place, &format!(".content' has a part of type '{kind}' without text")))
}

/// A tool call whose arguments, which clients send as a text of JSON, are an object, as most templates expect.
fn with_parsed_arguments(call: &Value) -> Value {
    let changed = |object: &Value, member: &str, change: &dyn Fn(&Value) -> Value| {
        let mut fields = pairs(object);
        for (name, value) in &mut fields {
            if name.as_str() == Some(member) {
                *value = change(value);
            }
        }
        Value::from_pairs(fields)
    };
    let parsed = |arguments: &Value| match arguments.as_str() {
        Some(text) => match serde_json::from_str::<Value>(text) {
            Ok(parsed) if parsed.kind() == ValueKind::Map => parsed,
            _ => arguments.clone(),
        },
        None => arguments.clone(),
    };
    changed(call, "function", &|function| match function.kind() {
        ValueKind::Map => changed(function, "arguments", &parsed),
        _ => function.clone(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;

    fn read_json(messages: &Json, takes_developer: bool) -> Outcome<Json> {
        let raw = serde_json::value::to_raw_value(messages).unwrap();
        let values = read_messages(&raw, takes_developer)?;
        Ok(serde_json::to_value(values).unwrap())
    }

    #[test]
    fn content_becomes_text_and_arguments_become_objects() {
        for (given, expected) in [
            (json!({"role": "user", "content": "a"}), json!({"role": "user", "content": "a"})),
            (
                json!({"role": "user", "content": [{"type": "text", "text": "a"}, "b", {"type": "input_text", "text": "c"}]}),
                json!({"role": "user", "content": "a\nb\nc"}),
            ),
            (json!({"role": "assistant"}), json!({"role": "assistant", "content": ""})),
            (
                json!({"role": "assistant", "content": null, "tool_calls": [
                    {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"b\": 1, \"a\": [2]}"}},
                    {"id": "2", "type": "function", "function": {"name": "g", "arguments": "no json"}}]}),
                json!({"role": "assistant", "content": "", "tool_calls": [
                    {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"b": 1, "a": [2]}}},
                    {"id": "2", "type": "function", "function": {"name": "g", "arguments": "no json"}}]}),
            ),
            (
                json!({"role": "tool", "tool_call_id": "1", "content": "x", "name": null, "tool_calls": null}),
                json!({"role": "tool", "tool_call_id": "1", "content": "x"}),
            ),
            (json!({"role": "developer", "content": "a"}), json!({"role": "system", "content": "a"})),
        ] {
            assert_eq!(read_json(&json!([given]), false).unwrap(), json!([expected]));
        }
        let kept = json!([{"role": "developer", "content": "a"}]);
        assert_eq!(read_json(&kept, true).unwrap(), kept);
    }

    #[test]
    fn invalid_messages_are_refused_by_place() {
        for (messages, expected) in [
            (json!([]), "must not be empty"),
            (json!(["x"]), "'messages[0]' is not an object"),
            (json!([{"role": "user", "content": "a"}, {"content": "a"}]), "'messages[1]' has no 'role'"),
            (json!([{"role": 1, "content": "a"}]), "'messages[0]' has no 'role'"),
            (json!([{"role": "user"}]), "'messages[0]' has no 'content'"),
            (json!([{"role": "user", "content": 1}]), "neither a text nor a list"),
            (json!([{"role": "user", "content": [{"text": "a"}]}]), "without 'type'"),
            (json!([{"role": "user", "content": [{"type": "text"}]}]), "without text"),
            (
                json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
                "'image_url' are not supported",
            ),
            (json!({}), "'messages': invalid type"),
        ] {
            let failure = read_json(&messages, false).unwrap_err();
            let body = String::from_utf8(failure.body()).unwrap();
            assert!(body.contains(expected), "{messages}: {body}");
        }
    }
}

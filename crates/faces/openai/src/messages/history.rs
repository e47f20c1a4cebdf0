//! Earlier turns of the assistant, as families of models expect them.

use std::hash::{DefaultHasher, Hash, Hasher};

use minijinja::Value;
use minijinja::value::ValueKind;

use super::pairs;

/// The members in which clients send the reasoning of earlier turns, and in which templates look for it.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// Gives the reasoning in a message the names that templates have for it, as transformers does.
pub(super) fn name_reasoning(fields: &mut Vec<(Value, Value)>) {
    let sent = REASONING.iter().find_map(|name| {
        let field = fields.iter().find(|(key, value)| key.as_str() == Some(name) && !value.is_none());
        field.map(|(_, value)| value.clone())
    });
    // Templates test whether these exist.
    fields
        .retain(|(key, value)| !(value.is_none() && REASONING.iter().any(|name| key.as_str() == Some(name))));
    if let Some(reasoning) = sent {
        if fields.iter().all(|(key, _)| key.as_str() != Some("thinking")) {
            set(fields, "thinking", reasoning.clone());
        }
        set(fields, "reasoning_content", reasoning);
    }
}

/// Puts the reasoning of a message in front of its content, unless that has some.
pub(super) fn put_reasoning_in_content(fields: &mut Vec<(Value, Value)>) {
    let field =
        |name: &str| fields.iter().find(|(key, _)| key.as_str() == Some(name)).map(|(_, value)| value);
    let Some(thought) = field("thinking").filter(|thought| thought.len() != Some(0)) else { return };
    let part = |kind: &str, text: &Value| {
        Value::from_pairs([("type".to_owned(), Value::from(kind)), (kind.to_owned(), text.clone())])
    };
    let content = field("content").cloned().unwrap_or_default();
    let is_thought = |part: &Value| member(part, "type").as_deref() == Some("thinking");
    let mut parts = vec![part("thinking", thought)];
    match content.as_str() {
        Some("") => {}
        Some(_) => parts.push(part("text", &content)),
        None => parts.extend(content.try_iter().into_iter().flatten()),
    }
    if !parts.iter().skip(1).any(is_thought) {
        set(fields, "content", Value::from(parts));
    }
}

/// The length of the identifiers of calls in Mistral's templates, which refuse all others.
const SHORT_ID: usize = 9;

/// Gives the calls and answers in a message identifiers of that length.
pub(super) fn shorten_ids(message: &mut Value) {
    let shortened = |object: &Value, name: &str| {
        let mut fields = pairs(object);
        if let Some(id) = member(object, name) {
            set(&mut fields, name, short_id(&id).into());
        }
        fields
    };
    let mut fields = shortened(message, "tool_call_id");
    if let Some((_, calls)) = fields.iter_mut().find(|(key, _)| key.as_str() == Some("tool_calls")) {
        let ids =
            calls.try_iter().into_iter().flatten().map(|call| Value::from_pairs(shortened(&call, "id")));
        *calls = Value::from(ids.collect::<Vec<_>>());
    }
    *message = Value::from_pairs(fields);
}

/// An identifier of letters and digits that stands for this one.
fn short_id(id: &str) -> String {
    if id.len() == SHORT_ID && id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return id.to_owned();
    }
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    let mut rest = hasher.finish();
    let digits = (0..SHORT_ID).map(|_| {
        let digit = char::from_digit((rest % 36) as u32, 36).unwrap_or('0');
        rest /= 36;
        digit
    });
    digits.collect()
}

/// Sets a member of a message.
fn set(fields: &mut Vec<(Value, Value)>, name: &str, value: Value) {
    match fields.iter_mut().find(|(key, _)| key.as_str() == Some(name)) {
        Some((_, old)) => *old = value,
        None => fields.push((name.into(), value)),
    }
}

/// Messages as gpt-oss's template shows them: with at most one call each, which its answer follows, and either reasoning or content in
/// front of it.
pub(super) fn with_single_calls(messages: Vec<Value>) -> Vec<Value> {
    let mut single = Vec::with_capacity(messages.len());
    let mut messages = messages.into_iter().peekable();
    while let Some(message) = messages.next() {
        let calls = message.get_attr("tool_calls").unwrap_or_default();
        if calls.kind() != ValueKind::Seq {
            single.push(message);
            continue;
        }
        let thinking = member(&message, "thinking").filter(|text| !text.is_empty());
        let content = member(&message, "content").filter(|text| !text.is_empty());
        let message = match thinking.zip(content) {
            None => message,
            Some((thinking, content)) => {
                let mut fields = pairs(&message);
                set(&mut fields, "thinking", format!("{thinking}\n{content}").into());
                set(&mut fields, "content", "".into());
                Value::from_pairs(fields)
            }
        };
        let is_answer = |message: &Value| member(message, "role").as_deref() == Some("tool");
        let mut answers = Vec::new();
        while let Some(answer) = messages.next_if(is_answer) {
            answers.push(answer);
        }
        for (index, call) in calls.try_iter().into_iter().flatten().enumerate() {
            let id = member(&call, "id");
            let mut fields = pairs(&message);
            set(&mut fields, "tool_calls", Value::from(vec![call]));
            if index > 0 {
                // The text precedes the first call.
                set(&mut fields, "content", "".into());
                fields.retain(|(key, _)| !REASONING.iter().any(|sent| key.as_str() == Some(sent)));
            }
            single.push(Value::from_pairs(fields));
            let answer =
                answers.iter().position(|answer| id.is_some() && member(answer, "tool_call_id") == id);
            single.extend(answer.map(|answer| answers.remove(answer)));
        }
        single.extend(answers);
    }
    single
}

/// A text in a message.
fn member(message: &Value, name: &str) -> Option<String> {
    message.get_attr(name).ok()?.as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use minijinja::value::Serde;
    use serde_json::{Value as Json, json};

    use super::*;

    #[test]
    fn reasoning_has_the_names_that_templates_know() {
        let named = |message: Json| {
            let mut fields = pairs(&Value::from(Serde(message)));
            name_reasoning(&mut fields);
            serde_json::to_value(Value::from_pairs(fields)).unwrap()
        };
        for name in REASONING {
            let message = named(json!({"content": "a", name: "r"}));
            assert_eq!((&message["reasoning_content"], &message["thinking"]), (&json!("r"), &json!("r")));
        }
        let both = named(json!({"thinking": "t", "reasoning_content": "r"}));
        assert_eq!(both, json!({"thinking": "t", "reasoning_content": "r"}));
        assert_eq!(
            named(json!({"content": "a", "thinking": null, "reasoning": null})),
            json!({"content": "a"})
        );
    }

    #[test]
    fn identifiers_have_the_length_that_templates_want() {
        let message = |id: &str| {
            json!({"role": "assistant", "content": "", "tool_calls": [
                {"id": id, "type": "function", "function": {"name": "f", "arguments": {}}}, {"type": "function"}]})
        };
        let short = |message: &Json| {
            let mut message = Value::from(Serde(message));
            shorten_ids(&mut message);
            serde_json::to_value(message).unwrap()
        };
        assert_eq!(short(&message("aB3defghi")), message("aB3defghi"));
        let mut known = std::collections::HashSet::new();
        for id in
            ["call_0123456789abcdef", "call_0123456789abcdee", "", "1", "ééééx", "aaaa-bbbb", "äbcdefgh"]
        {
            let called = short(&message(id));
            let new = called["tool_calls"][0]["id"].as_str().unwrap().to_owned();
            assert_eq!(called, message(&new));
            assert!(new.len() == 9 && new.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{id}: {new}");
            let answer = short(&json!({"role": "tool", "tool_call_id": id, "content": "x"}));
            assert_eq!(answer, json!({"role": "tool", "tool_call_id": new, "content": "x"}));
            assert!(known.insert(new), "{id}");
        }
    }

    #[test]
    fn calls_at_once_become_messages_with_their_answers() {
        let call =
            |id: &str| json!({"id": id, "type": "function", "function": {"name": id, "arguments": {}}});
        let answer = |id: &str| json!({"role": "tool", "tool_call_id": id, "content": id});
        let calls = |content: &str, calls: &[Json]| json!({"role": "assistant", "content": content, "tool_calls": calls});
        let with_reasoning = |mut message: Json| {
            message["thinking"] = "r".into();
            message
        };
        let mut reasoning = calls("", &[call("a")]);
        reasoning["thinking"] = "r\nt".into();
        for (given, expected) in [
            (
                json!([with_reasoning(calls("t", &[call("a"), call("b"), call("c")])), answer("b"), answer("a"), answer("x"),
                    {"role": "user", "content": "u"}]),
                json!([reasoning, answer("a"), calls("", &[call("b")]), answer("b"),
                    calls("", &[call("c")]), answer("x"), {"role": "user", "content": "u"}]),
            ),
            (json!([calls("t", &[call("a")]), answer("a")]), json!([calls("t", &[call("a")]), answer("a")])),
        ] {
            let given: Vec<Value> =
                given.as_array().unwrap().iter().map(|message| Value::from(Serde(message))).collect();
            assert_eq!(serde_json::to_value(with_single_calls(given)).unwrap(), expected);
        }
    }
}

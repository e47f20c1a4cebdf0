//! Earlier turns of the assistant, as families of models expect them.

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

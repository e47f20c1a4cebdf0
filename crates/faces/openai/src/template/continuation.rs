//! Prompts that end within the last message, which the model is to continue: as in transformers, a mark at the message's end shows where.

use minijinja::Value;
use minijinja::value::ValueKind;

use crate::error::{Failure, Outcome};

/// The mark, and what shows that the template keeps the spaces at the end of a message.
const MARK: &str = "continue the final message here";
const SPACE: &str = " ";

/// Marks the end of the last message.
///
/// # Errors
/// The message has no text.
pub(super) fn mark(messages: &mut [Value]) -> Outcome<()> {
    let none =
        || Failure::invalid_field("messages", "'continue_final_message': the last message has no text");
    let last = messages.last_mut().ok_or_else(none)?;
    let content = last.get_attr("content").unwrap_or_default();
    let marked = match content.kind() {
        ValueKind::String => Value::from(format!("{content}{MARK}{SPACE}")),
        ValueKind::Seq => {
            let mut parts: Vec<Value> = content.try_iter().into_iter().flatten().collect();
            let text_of = |part: &Value| part.get_attr("text").ok().filter(|text| text.as_str().is_some());
            let part = parts.iter_mut().rev().find(|part| text_of(part).is_some()).ok_or_else(none)?;
            *part = with(part, "text", &format!("{}{MARK}{SPACE}", text_of(part).unwrap_or_default()).into());
            Value::from(parts)
        }
        _ => return Err(none()),
    };
    *last = with(last, "content", &marked);
    Ok(())
}

/// The prompt up to the mark.
///
/// # Errors
/// The template leaves the last message out.
pub(super) fn cut(mut prompt: String) -> Outcome<String> {
    let end = prompt.rfind(MARK).ok_or_else(|| {
        Failure::invalid_field(
            "messages",
            "'continue_final_message': the chat template does not show the last message",
        )
    })?;
    let keeps_spaces = prompt.get(end + MARK.len()..).is_some_and(|rest| rest.starts_with(SPACE));
    prompt.truncate(end);
    if !keeps_spaces {
        prompt.truncate(prompt.trim_end().len());
    }
    Ok(prompt)
}

/// The object with another value of a member.
fn with(object: &Value, name: &str, value: &Value) -> Value {
    let keys = object.try_iter().into_iter().flatten();
    let pairs = keys.filter_map(|key| {
        let old = object.get_item(&key).ok()?;
        Some(if key.as_str() == Some(name) { (key, value.clone()) } else { (key, old) })
    });
    Value::from_pairs(pairs.collect::<Vec<_>>())
}

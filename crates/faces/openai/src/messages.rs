//! The messages of a conversation, in the form that chat templates expect: content as text or as a list of parts, arguments of tool
//! calls as objects.

mod history;

use minijinja::Value;
use minijinja::value::ValueKind;
use serde_json::value::RawValue;

use crate::error::{Failure, Outcome};
use crate::exchange::Request;
use crate::fields::read;
use crate::images::{ImageReader, Images};
use crate::parsing::CHANNEL;

/// The messages of a conversation for a template, and the images in them.
#[derive(Debug)]
pub(crate) struct Messages {
    pub messages: Vec<Value>,
    pub images: Images,
}

/// Reads the messages of a chat completion.
///
/// # Errors
/// A message is invalid, or has content that the model does not take.
pub(crate) fn read_messages(request: &Request, raw: &RawValue) -> Outcome<Messages> {
    normalise(request, &read::<Vec<Value>>("messages", raw)?, "messages")
}

/// Brings messages, which the field of this name holds, into the form that the model's template expects.
///
/// # Errors
/// As for [`read_messages`].
pub(crate) fn normalise(request: &Request, messages: &[Value], field: &'static str) -> Outcome<Messages> {
    let template = request.profile.chat_template(&request.name)?;
    let content = template.content();
    let images = ImageReader {
        model: &request.name,
        contract: request.profile.images(&request.name)?,
        has_place: content.has_images,
        images: Images::default(),
    };
    let reader = Reader {
        takes_developer: template.mentions("developer"),
        takes_thoughts: template.mentions("[/THINK]") && template.mentions("'thinking'"),
        has_lists: content.needs_lists,
        images,
    };
    let mut read = reader.read(messages, field)?;
    if template.mentions("length != 9") {
        read.messages.iter_mut().for_each(history::shorten_ids);
    }
    if template.mentions(CHANNEL) {
        read.messages = history::with_single_calls(read.messages);
    }
    Ok(read)
}

/// Brings messages into the form that a template expects.
struct Reader<'a> {
    /// Whether the template knows this role, which otherwise becomes `system`.
    takes_developer: bool,
    /// Whether reasoning is a part of the content, as in Mistral's templates.
    takes_thoughts: bool,
    /// Whether content is a list even if it is only text.
    has_lists: bool,
    images: ImageReader<'a>,
}

impl Reader<'_> {
    fn read(mut self, messages: &[Value], field: &'static str) -> Outcome<Messages> {
        if messages.is_empty() {
            return Err(Failure::invalid_field(field, format!("'{field}' must not be empty")));
        }
        let indexed = messages.iter().enumerate();
        let messages = indexed.map(|(index, message)| self.message(&format!("{field}[{index}]"), message));
        let messages = messages.collect::<Outcome<_>>()?;
        Ok(Messages { messages, images: self.images.finish(field)? })
    }

    fn message(&mut self, place: &str, message: &Value) -> Outcome<Value> {
        if message.kind() != ValueKind::Map {
            return Err(invalid(place, "' is not an object"));
        }
        let role = message.get_attr("role").unwrap_or_default();
        let Some(role) = role.as_str() else { return Err(invalid(place, "' has no 'role'")) };
        let mut fields = pairs(message);
        let mut has_content = false;
        for (name, value) in &mut fields {
            match name.as_str() {
                Some("role") if role == "developer" && !self.takes_developer => {
                    *value = Value::from("system")
                }
                Some("content") => {
                    *value = self.content(place, role, value)?;
                    has_content = true;
                }
                Some("tool_calls") if value.kind() == ValueKind::Seq => {
                    let calls =
                        value.try_iter().into_iter().flatten().map(|call| with_parsed_arguments(&call));
                    *value = Value::from(calls.collect::<Vec<_>>());
                }
                _ => {}
            }
        }
        if !has_content {
            if role != "assistant" {
                return Err(invalid(place, "' has no 'content'"));
            }
            fields.push((Value::from("content"), self.content_of(Vec::new())));
        }
        // Templates test whether these exist.
        fields.retain(|(name, value)| {
            let is_empty = value.is_none() || value.len() == Some(0);
            !(is_empty && matches!(name.as_str(), Some("tool_calls" | "name")))
        });
        if role == "assistant" {
            history::name_reasoning(&mut fields);
            if self.takes_thoughts {
                history::put_reasoning_in_content(&mut fields);
            }
        }
        Ok(Value::from_pairs(fields))
    }

    /// The content of a message: its text, or a list of its parts.
    fn content(&mut self, place: &str, role: &str, content: &Value) -> Outcome<Value> {
        let mut parts = Vec::new();
        match content.kind() {
            ValueKind::String if !self.has_lists => return Ok(content.clone()),
            ValueKind::String => parts.push(Part::Text(content.clone())),
            ValueKind::None | ValueKind::Undefined => {}
            ValueKind::Seq => {
                for (index, part) in content.try_iter().into_iter().flatten().enumerate() {
                    parts.push(self.part(place, index, role, &part)?);
                }
            }
            _ => return Err(invalid(place, ".content' is neither a text nor a list of parts")),
        }
        Ok(self.content_of(parts))
    }

    fn content_of(&self, parts: Vec<Part>) -> Value {
        if self.has_lists || !parts.iter().all(|part| matches!(part, Part::Text(_))) {
            return parts.into_iter().map(Part::into_value).collect();
        }
        let texts: Vec<_> = parts.iter().filter_map(Part::text).collect();
        Value::from(texts.join("\n"))
    }

    fn part(&mut self, place: &str, index: usize, role: &str, part: &Value) -> Outcome<Part> {
        if part.as_str().is_some() {
            return Ok(Part::Text(part.clone()));
        }
        let member = |name: &str| part.get_attr(name).ok().filter(|value| value.as_str().is_some());
        let kind = member("type").unwrap_or_default();
        let text = match kind.as_str().unwrap_or_default() {
            "text" | "input_text" | "output_text" => member("text"),
            "refusal" => member("refusal"),
            "image_url" | "input_image" => {
                self.image(&format!("{place}.content[{index}]"), role, part)?;
                return Ok(Part::Image);
            }
            "thinking" if self.takes_thoughts && matches!(role, "system" | "assistant") => {
                let thought = thought(part);
                let none = || invalid(place, ".content' has a part of type 'thinking' without text");
                return thought.map(Part::Thought).ok_or_else(none);
            }
            "" => return Err(invalid(place, ".content' has a part without 'type'")),
            other => {
                let message = format!(
                    "'{place}.content': parts of type '{other}' are not supported; only text and images are"
                );
                return Err(Failure::unsupported(field_of(place), message));
            }
        };
        text.map(Part::Text)
            .ok_or_else(|| invalid(place, &format!(".content' has a part of type '{kind}' without text")))
    }

    /// Adds the image of a part: as an object with its URL, as in chat completions, or as the URL, as in responses.
    fn image(&mut self, place: &str, role: &str, part: &Value) -> Outcome<()> {
        let image = part.get_attr("image_url").unwrap_or_default();
        let url =
            if image.kind() == ValueKind::Map { image.get_attr("url").unwrap_or_default() } else { image };
        match url.as_str() {
            _ if role != "user" => Err(invalid(
                place,
                &format!(
                    "' is an image in a message of role '{role}'; only messages of role 'user' have images"
                ),
            )),
            Some(url) => self.images.add(place, url),
            None => Err(invalid(place, "' has no URL in 'image_url'")),
        }
    }
}

/// A part of a message's content.
#[derive(Debug)]
enum Part {
    Text(Value),
    /// Reasoning.
    Thought(String),
    /// The image itself goes to the model.
    Image,
}

impl Part {
    fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => text.as_str(),
            Self::Thought(_) | Self::Image => None,
        }
    }

    /// The element of a list of parts.
    fn into_value(self) -> Value {
        let kind = |kind: &str| ("type", Value::from(kind));
        match self {
            Self::Text(text) => Value::from_pairs([kind("text"), ("text", text)]),
            Self::Thought(text) => Value::from_pairs([kind("thinking"), ("thinking", text.into())]),
            Self::Image => Value::from_pairs([kind("image")]),
        }
    }
}

/// The text of a part that is reasoning, which may be a list of texts.
fn thought(part: &Value) -> Option<String> {
    let thought = part.get_attr("thinking").ok()?;
    if thought.kind() != ValueKind::Seq {
        return thought.as_str().map(str::to_owned);
    }
    let texts = thought.try_iter().ok()?.map(|part| part.get_attr("text").ok()?.as_str().map(str::to_owned));
    texts.collect()
}

/// The field that a message is in.
fn field_of(place: &str) -> String {
    place.split('[').next().unwrap_or_default().to_owned()
}

/// 400 for a message at this place, which begins with the name of its field.
fn invalid(place: &str, fault: &str) -> Box<Failure> {
    Failure::invalid_field(field_of(place), format!("'{place}{fault}"))
}

/// The members of an object, in order.
fn pairs(object: &Value) -> Vec<(Value, Value)> {
    let keys = object.try_iter().into_iter().flatten();
    keys.filter_map(|key| Some((key.clone(), object.get_item(&key).ok()?))).collect()
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

    fn reader() -> Reader<'static> {
        let images = ImageReader { model: "m", contract: None, has_place: false, images: Images::default() };
        Reader { takes_developer: false, takes_thoughts: false, has_lists: false, images }
    }

    fn read_by(reader: Reader<'_>, messages: &Json) -> Outcome<Json> {
        let raw = serde_json::value::to_raw_value(messages).unwrap();
        let read = reader.read(&read::<Vec<Value>>("messages", &raw)?, "messages")?;
        Ok(serde_json::to_value(read.messages).unwrap())
    }

    fn read_json(messages: &Json, takes_developer: bool) -> Outcome<Json> {
        read_by(Reader { takes_developer, ..reader() }, messages)
    }

    #[test]
    fn templates_of_lists_have_them_also_for_texts() {
        let text = |text: &str| json!({"type": "text", "text": text});
        for (given, expected) in [
            (json!({"role": "user", "content": "a"}), json!({"role": "user", "content": [text("a")]})),
            (
                json!({"role": "user", "content": ["a", {"type": "text", "text": "b"}]}),
                json!({"role": "user", "content": [text("a"), text("b")]}),
            ),
            (json!({"role": "assistant", "content": null}), json!({"role": "assistant", "content": []})),
            (json!({"role": "assistant"}), json!({"role": "assistant", "content": []})),
        ] {
            let reader = Reader { has_lists: true, ..reader() };
            assert_eq!(read_by(reader, &json!([given])).unwrap(), json!([expected]));
        }
    }

    #[test]
    fn reasoning_is_a_part_of_content_for_templates_that_expect_it_there() {
        let (thought, text) =
            (json!({"type": "thinking", "thinking": "r s"}), json!({"type": "text", "text": "a"}));
        let calls = json!([{"id": "1", "type": "function", "function": {"name": "f", "arguments": {}}}]);
        let parts = json!([{"type": "text", "text": "r "}, {"type": "text", "text": "s"}]);
        for (given, expected) in [
            (
                json!({"role": "assistant", "content": "a", "reasoning_content": "r s"}),
                json!([thought, text]),
            ),
            (json!({"role": "assistant", "content": ["a"], "reasoning": "r s"}), json!([thought, text])),
            (
                json!({"role": "assistant", "content": null, "tool_calls": calls, "thinking": "r s"}),
                json!([thought]),
            ),
            (json!({"role": "assistant", "content": "a", "reasoning_content": ""}), json!("a")),
            (json!({"role": "assistant", "content": "a"}), json!("a")),
            (
                json!({"role": "assistant", "content": [{"type": "thinking", "thinking": parts}, "a"], "reasoning": "x"}),
                json!([thought, text]),
            ),
            (json!({"role": "system", "content": ["a", thought]}), json!([text, thought])),
        ] {
            let read = read_by(Reader { takes_thoughts: true, ..reader() }, &json!([given])).unwrap();
            assert_eq!(read[0]["content"], expected, "{given}");
        }
        for (given, takes_thoughts) in [
            (json!({"role": "assistant", "content": [{"type": "thinking"}]}), true),
            (
                json!({"role": "assistant", "content": [{"type": "thinking", "thinking": [{"type": "text"}]}]}),
                true,
            ),
            (json!({"role": "user", "content": [thought]}), true),
            (json!({"role": "assistant", "content": [thought]}), false),
        ] {
            let failure = read_by(Reader { takes_thoughts, ..reader() }, &json!([given])).unwrap_err();
            let body = String::from_utf8(failure.body()).unwrap();
            assert!(body.contains("'thinking'"), "{given}: {body}");
        }
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
                json!({"role": "assistant", "content": "x", "tool_calls": []}),
                json!({"role": "assistant", "content": "x"}),
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
                json!([{"role": "user", "content": [{"type": "file"}]}]),
                "'file' are not supported; only text and",
            ),
            (
                json!([{"role": "user", "content": ["a", {"type": "image_url", "image_url": {"url": "x"}}]}]),
                "'messages[0].content[1]': model 'm' takes no images",
            ),
            (
                json!([{"role": "user", "content": [{"type": "image_url"}]}]),
                "content[0]' has no URL in 'image_url'",
            ),
            (
                json!([{"role": "user", "content": [{"type": "input_image", "file_id": "x"}]}]),
                "content[0]' has no URL in 'image_url'",
            ),
            (
                json!([{"role": "system", "content": [{"type": "image_url", "image_url": "x"}]}]),
                "an image in a message of role 'system'",
            ),
            (json!({}), "'messages': invalid type"),
        ] {
            let failure = read_json(&messages, false).unwrap_err();
            let body = String::from_utf8(failure.body()).unwrap();
            assert!(body.contains(expected), "{messages}: {body}");
        }
    }
}

//! From the items of a request to the messages of a conversation.

use std::collections::{HashMap, HashSet};

use minijinja::Value;
use minijinja::value::Serde;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value as Json, json};

use nereid_core::Principal;

use super::locator::Locator;
use super::store::{Store, Turn};
use crate::chat::plan::{Plan, planned};
use crate::error::{Failure, Outcome};
use crate::exchange::Request;
use crate::fields::{Fields, read};
use crate::messages::normalise;

/// Fields of a request that an answer repeats, and their values without one.
const ECHOED: &[(&str, &str)] = &[
    ("instructions", "null"),
    ("max_output_tokens", "null"),
    ("metadata", "{}"),
    ("parallel_tool_calls", "true"),
    ("temperature", "1.0"),
    ("text", "{\"format\":{\"type\":\"text\"}}"),
    ("tool_choice", "\"auto\""),
    ("tools", "[]"),
    ("top_p", "1.0"),
    ("truncation", "\"disabled\""),
];

/// Fields that need stored conversations, or tools of OpenAI's.
const REFUSED: &[&str] = &["background", "conversation", "max_tool_calls", "prompt", "logprobs", "n"];

/// A request, ready to be sent to its model.
pub(super) struct Planned {
    pub plan: Plan,
    /// Fields that the answer repeats.
    pub echo: Map<String, Json>,
    /// The identifier of the previous answer.
    pub previous: Option<String>,
    /// The conversation before the request.
    pub turns: Vec<Turn>,
    /// The items of the request.
    pub input: Vec<Json>,
    /// Whether to store the answer.
    pub stores: bool,
}

/// Reads a request, which may continue an answer of its principal.
pub(super) fn plan(request: &Request, store: &Store, principal: Option<&Principal>) -> Outcome<Planned> {
    let mut fields = Fields::parse(&request.json)?;
    fields.ignore(&["model"]);
    for name in REFUSED {
        if fields.take_raw(name).is_some_and(|value| value.get() != "false") {
            return Err(Failure::unsupported(*name, format!("'{name}' is not supported")));
        }
    }
    let echo = ECHOED.iter().map(|(name, absent)| {
        let value = fields.get_raw(name).map_or(*absent, RawValue::get);
        ((*name).to_owned(), serde_json::from_str(value).unwrap_or_default())
    });
    let echo = echo.collect();
    for (name, allowed) in [("include", "[]"), ("truncation", "\"disabled\"")] {
        let value = fields.take_raw(name).map(RawValue::get);
        if value.is_some_and(|value| value != allowed) {
            return Err(Failure::unsupported(name, format!("'{name}' is not supported with this value")));
        }
    }
    let instructions: Option<String> = fields.take("instructions")?;
    let input =
        fields.take_raw("input").ok_or_else(|| Failure::invalid_field("input", "'input' is missing"))?;
    let stores = fields.take("store")?.unwrap_or(true) && store.has_room();
    let previous: Option<String> = fields.take("previous_response_id")?;
    let turns = match &previous {
        None => Vec::new(),
        Some(id) => match store.get(Locator::of_answer(id), principal) {
            Some(answer) => answer.turns.clone(),
            None => {
                let message = format!("Previous response with id '{id}' not found.");
                return Err(Failure::unknown_answer("previous_response_id", message));
            }
        },
    };
    let input = with_stored(items(input)?, store, principal)?;
    let messages = messages(instructions, &turns, &input)?;
    let messages = normalise(request, &messages, "input")?;
    fields.rename("max_output_tokens", "max_tokens");
    take_text(&mut fields)?;
    take_reasoning(&mut fields)?;
    let plan = planned(request, fields, messages)?;
    Ok(Planned { plan, echo, previous, turns, input, stores })
}

/// Moves the form of the output to the field of chat completions.
fn take_text<'a>(fields: &mut Fields<'a>) -> Outcome<()> {
    #[derive(Deserialize)]
    struct Text<'a> {
        #[serde(borrow)]
        format: Option<&'a RawValue>,
    }
    let Some(raw) = fields.take_raw("text") else { return Ok(()) };
    let text: Text<'a> = serde_json::from_str(raw.get())
        .map_err(|error| Failure::invalid_field("text", format!("'text': {error}")))?;
    if let Some(format) = text.format {
        fields.push("response_format", format);
    }
    Ok(())
}

/// Moves the effort to the field of chat completions.
fn take_reasoning<'a>(fields: &mut Fields<'a>) -> Outcome<()> {
    #[derive(Deserialize)]
    struct Reasoning<'a> {
        #[serde(borrow)]
        effort: Option<&'a RawValue>,
    }
    let Some(raw) = fields.take_raw("reasoning") else { return Ok(()) };
    let reasoning: Reasoning<'a> = serde_json::from_str(raw.get())
        .map_err(|error| Failure::invalid_field("reasoning", format!("'reasoning': {error}")))?;
    if let Some(effort) = reasoning.effort {
        fields.push("reasoning_effort", effort);
    }
    Ok(())
}

/// A text, or the items of a conversation.
#[derive(Deserialize)]
#[serde(untagged)]
enum Input {
    Text(String),
    Items(Vec<Json>),
}

/// The items of a request.
fn items(input: &RawValue) -> Outcome<Vec<Json>> {
    Ok(match read("input", input)? {
        Input::Text(text) => vec![json!({"type": "message", "role": "user", "content": text})],
        Input::Items(items) => items,
    })
}

/// Replaces references by the stored items they name. An item can be referenced once, so that a short request is
/// never longer than the store.
fn with_stored(items: Vec<Json>, store: &Store, principal: Option<&Principal>) -> Outcome<Vec<Json>> {
    let mut answers = HashSet::new();
    let mut stored: HashMap<String, Json> = HashMap::new();
    let mut resolved = Vec::with_capacity(items.len());
    for (index, item) in items.into_iter().enumerate() {
        let Some(id) = reference(&item) else {
            resolved.push(item);
            continue;
        };
        if !stored.contains_key(id)
            && let Some(locator) = Locator::of_item(id)
            && answers.insert(locator)
            && let Some(answer) = store.get(locator, principal)
        {
            let turn = answer.turns.last().map_or("[]", |turn| &**turn);
            let turn: Vec<Json> = serde_json::from_str(turn).unwrap_or_default();
            let named =
                turn.into_iter().filter_map(|item| Some((item.get("id")?.as_str()?.to_owned(), item)));
            // The turn has the items of the request, too.
            stored.extend(named.filter(|(id, _)| Locator::of_item(id) == Some(locator)));
        }
        resolved.push(stored.remove(id).ok_or_else(|| {
            let message =
                format!("'input[{index}]': there is no stored item '{id}', or it is referenced twice");
            Failure::invalid_field("input", message)
        })?);
    }
    Ok(resolved)
}

/// The identifier in a reference to an item, whose type may be left out.
fn reference(item: &Json) -> Option<&str> {
    let is_plain = || item.get("type").is_none_or(Json::is_null) && item.get("role").is_none();
    let is_reference = item.get("type").and_then(Json::as_str) == Some("item_reference") || is_plain();
    item.get("id").filter(|_| is_reference)?.as_str()
}

/// The messages of a conversation, in the form of chat completions: the turns before a request, and its own items.
fn messages(instructions: Option<String>, turns: &[Turn], input: &[Json]) -> Outcome<Vec<Value>> {
    let (mut messages, mut reasoning): (Vec<Json>, String) = Default::default();
    messages.extend(instructions.map(|text| json!({"role": "system", "content": text})));
    for turn in turns {
        let items: Vec<Json> = serde_json::from_str(turn)
            .map_err(|error| Failure::broken_model(format!("a stored answer is invalid: {error}")))?;
        for (index, item) in items.into_iter().enumerate() {
            add_item(&mut messages, &mut reasoning, index, item)?;
        }
    }
    for (index, item) in input.iter().enumerate() {
        add_item(&mut messages, &mut reasoning, index, item.clone())?;
    }
    Ok(messages.into_iter().map(|message| Value::from(Serde(message))).collect())
}

/// Adds an item to the messages. `reasoning` is what the assistant thought before the item.
fn add_item(messages: &mut Vec<Json>, reasoning: &mut String, index: usize, item: Json) -> Outcome<()> {
    let Json::Object(mut item) = item else {
        return Err(Failure::invalid_field("input", format!("'input[{index}]' is not an object")));
    };
    let mut take = |name: &str| item.remove(name).unwrap_or_default();
    let kind = take("type");
    match kind.as_str() {
        Some("message") | None => {
            let mut message = json!({"role": take("role"), "content": take("content")});
            add_reasoning(&mut message, reasoning);
            messages.push(message);
        }
        Some("function_call") => {
            let function = json!({"name": take("name"), "arguments": take("arguments")});
            let call = json!({"id": take("call_id"), "type": "function", "function": function});
            // Calls at once are one message.
            match messages.last_mut().and_then(|last| last.get_mut("tool_calls")) {
                Some(Json::Array(calls)) if reasoning.is_empty() => calls.push(call),
                _ => {
                    let mut message = json!({"role": "assistant", "content": null, "tool_calls": [call]});
                    add_reasoning(&mut message, reasoning);
                    messages.push(message);
                }
            }
        }
        Some("function_call_output") => {
            messages
                .push(json!({"role": "tool", "tool_call_id": take("call_id"), "content": take("output")}));
        }
        // Templates show it as far as the model is to see it.
        Some("reasoning") => {
            let texts = take("content");
            let texts = texts.as_array().into_iter().flatten();
            reasoning.extend(texts.filter_map(|part| part.get("text").and_then(Json::as_str)));
        }
        Some(other) => {
            let message = format!("'input[{index}]': items of type '{other}' are not supported");
            return Err(Failure::unsupported("input", message));
        }
    }
    Ok(())
}

/// Adds the reasoning before a message of the assistant's.
fn add_reasoning(message: &mut Json, reasoning: &mut String) {
    let reasoning = std::mem::take(reasoning);
    let is_assistants = message.get("role").and_then(Json::as_str) == Some("assistant");
    if let Some(fields) = message.as_object_mut().filter(|_| is_assistants && !reasoning.is_empty()) {
        fields.insert("reasoning_content".to_owned(), reasoning.into());
    }
}

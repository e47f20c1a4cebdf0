//! Control tokens in the texts of a conversation, which a prompt has as plain text.
//!
//! A template writes the control tokens that separate messages, and the model's tokenizer finds them in the prompt: also those that a
//! client wrote into a message. So such a text is enclosed in marks, between which the tokenizer knows no control tokens.

use aho_corasick::{AhoCorasick, Input, MatchKind};
use minijinja::Value;
use minijinja::value::ValueKind;
use nereid_core::Model;
use nereid_core::backend_api::DataType;

use crate::template::Conversation;

/// The parameter of a model with the texts of its control tokens, as a list in JSON.
const PARAMETER: &str = "control_tokens";

/// The input with the mark.
pub(crate) const INPUT: &str = "literal_mark";

/// Noncharacters of Unicode. The first one that is not in a conversation is its mark.
const MARKS: std::ops::RangeInclusive<char> = '\u{FDD0}'..='\u{FDEF}';

/// The control tokens of a model that takes marks.
#[derive(Debug)]
pub(crate) struct ControlTokens {
    texts: AhoCorasick,
    /// The length of the longest one, in bytes.
    longest: usize,
}

impl ControlTokens {
    /// The control tokens of a model. `None` if they are unknown, or the model takes no marks.
    ///
    /// # Errors
    /// The parameter is not a list of texts.
    pub(crate) fn of(model: &Model) -> Result<Option<Self>, String> {
        let takes_marks =
            model.signature().input(INPUT).is_some_and(|input| input.data_type == DataType::Bytes);
        let Some(listed) = model.config().parameters.get(PARAMETER).filter(|_| takes_marks) else {
            return Ok(None);
        };
        let texts: Vec<String> = serde_json::from_str(&listed.string_value)
            .map_err(|error| format!("parameter '{PARAMETER}' is not a list of texts: {error}"))?;
        Self::new(&texts).map_err(|error| format!("parameter '{PARAMETER}': {error}"))
    }

    fn new(texts: &[String]) -> Result<Option<Self>, aho_corasick::BuildError> {
        let texts: Vec<&str> = texts.iter().map(String::as_str).filter(|text| !text.is_empty()).collect();
        let Some(longest) = texts.iter().map(|text| text.len()).max() else { return Ok(None) };
        let texts = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(texts)?;
        Ok(Some(Self { texts, longest }))
    }

    /// Encloses the control tokens in the texts of a conversation in marks. Returns the mark; `None` if there is nothing to mark.
    pub(crate) fn enclose(&self, conversation: &mut Conversation) -> Option<char> {
        let Conversation { messages, tools, variables, .. } = &*conversation;
        let values = || {
            let variables = variables.iter().map(|(_, value)| value);
            messages.iter().chain(tools).chain(variables)
        };
        if !values().any(|value| self.is_in(value)) {
            return None;
        }
        // If a conversation has all of these characters, its control tokens are kept.
        let mark = MARKS.clone().find(|mark| !values().any(|value| has(value, *mark)))?;
        let values = messages_and(conversation);
        values.for_each(|value| *value = self.enclosed(value, mark));
        Some(mark)
    }

    /// Whether a control token is in a value.
    fn is_in(&self, value: &Value) -> bool {
        match value.kind() {
            ValueKind::String => value.as_str().is_some_and(|text| self.texts.is_match(text)),
            ValueKind::Seq => {
                let mut before = String::new();
                let mut parts = value.try_iter().into_iter().flatten();
                parts.any(|part| self.is_in(&part) || self.continues(&mut before, &part))
            }
            ValueKind::Map => pairs(value).iter().any(|(name, value)| self.is_in(name) || self.is_in(value)),
            _ => false,
        }
    }

    /// Whether a control token begins in the parts before one of a message's content, and continues in this one. `before` is the end
    /// of their text.
    fn continues(&self, before: &mut String, part: &Value) -> bool {
        let text = part.get_attr("text").unwrap_or_default();
        let Some(text) = text.as_str() else {
            before.clear();
            return false;
        };
        let boundary = before.len();
        let room = text.floor_char_boundary(self.longest);
        before.push_str(text.get(..room).unwrap_or(text));
        // A shorter token before the boundary must not hide one across it.
        let across = |start| {
            let found = self.texts.find(Input::new(before.as_str()).range(start..))?;
            Some(found.start() < boundary && found.end() > boundary)
        };
        let starts = before.char_indices().map(|(start, _)| start).take_while(|start| *start < boundary);
        let continues = starts.clone().any(|start| across(start) == Some(true));
        if room < text.len() {
            before.clear();
            before.push_str(text);
        }
        let start = before.ceil_char_boundary(before.len().saturating_sub(self.longest));
        before.drain(..start);
        continues
    }

    /// The value with its control tokens enclosed.
    fn enclosed(&self, value: &Value, mark: char) -> Value {
        match value.kind() {
            ValueKind::String => match value.as_str() {
                Some(text) if self.texts.is_match(text) => Value::from(self.enclosed_text(text, mark)),
                _ => value.clone(),
            },
            ValueKind::Seq => {
                let mut before = String::new();
                let part = |part: Value| {
                    let continues = self.continues(&mut before, &part);
                    let enclosed = self.enclosed(&part, mark);
                    if continues { parted(&enclosed, mark) } else { enclosed }
                };
                Value::from(value.try_iter().into_iter().flatten().map(part).collect::<Vec<_>>())
            }
            ValueKind::Map => {
                let pair = |(name, value)| (self.enclosed(&name, mark), self.enclosed(&value, mark));
                Value::from_pairs(pairs(value).into_iter().map(pair))
            }
            _ => value.clone(),
        }
    }

    fn enclosed_text(&self, text: &str, mark: char) -> String {
        let mut enclosed = String::with_capacity(text.len() + 16);
        let mut rest = 0;
        for found in self.texts.find_iter(text) {
            enclosed.push_str(text.get(rest..found.start()).unwrap_or_default());
            enclosed.push(mark);
            enclosed.push_str(text.get(found.range()).unwrap_or_default());
            enclosed.push(mark);
            rest = found.end();
        }
        enclosed.push_str(text.get(rest..).unwrap_or_default());
        enclosed
    }
}

/// A part of content, with an empty text enclosed in front of it: no token spans that.
fn parted(part: &Value, mark: char) -> Value {
    let pair = |(name, value): (Value, Value)| match (name.as_str(), value.as_str()) {
        (Some("text"), Some(text)) => (name, Value::from(format!("{mark}{mark}{text}"))),
        _ => (name, value),
    };
    Value::from_pairs(pairs(part).into_iter().map(pair))
}

/// Values from a client in the input of a template.
fn messages_and(conversation: &mut Conversation) -> impl Iterator<Item = &mut Value> {
    let Conversation { messages, tools, variables, .. } = conversation;
    messages.iter_mut().chain(tools).chain(variables.iter_mut().map(|(_, value)| value))
}

/// Whether a character is in a value.
fn has(value: &Value, character: char) -> bool {
    match value.kind() {
        ValueKind::String => value.as_str().is_some_and(|text| text.contains(character)),
        ValueKind::Seq => value.try_iter().into_iter().flatten().any(|value| has(&value, character)),
        ValueKind::Map => {
            pairs(value).iter().any(|(name, value)| has(name, character) || has(value, character))
        }
        _ => false,
    }
}

/// The names and values of an object.
fn pairs(value: &Value) -> Vec<(Value, Value)> {
    let names = value.try_iter().into_iter().flatten();
    names
        .map(|name| {
            let value = value.get_item(&name).unwrap_or_default();
            (name, value)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The texts of the messages after enclosing the control tokens `<a>`, `<a><b>` and `[c]`, with `|` for the mark.
    fn enclosed(messages: serde_json::Value) -> (Option<char>, serde_json::Value) {
        let tokens = ["<a>", "<a><b>", "[c]", ""].map(str::to_owned);
        let tokens = ControlTokens::new(&tokens).unwrap().unwrap();
        let mut conversation = Conversation {
            messages: vec![serde_json::from_value(messages).unwrap()],
            ..Conversation::default()
        };
        let mark = tokens.enclose(&mut conversation);
        let json = serde_json::to_string(&conversation.messages[0]).unwrap();
        let shown = mark.map_or(json.clone(), |mark| json.replace(mark, "|"));
        (mark, serde_json::from_str(&shown).unwrap())
    }

    #[test]
    fn control_tokens_are_enclosed_wherever_they_are() {
        use serde_json::json;
        for (given, expected) in [
            (json!("x<a>y"), json!("x|<a>|y")),
            (json!("<a><b><a>"), json!("|<a><b>||<a>|")),
            (json!("ä<a"), json!("ä<a")),
            (json!({"role": "user", "content": "[c]"}), json!({"role": "user", "content": "|[c]|"})),
            (
                json!({"z[c]": {"a": ["<a>", 1, null, true]}}),
                json!({"z|[c]|": {"a": ["|<a>|", 1, null, true]}}),
            ),
            (json!([{"text": "x<"}, {"text": "a>y"}]), json!([{"text": "x<"}, {"text": "||a>y"}])),
            (
                json!([{"text": "<a"}, {"text": ">"}, {"text": "<b>"}]),
                json!([{"text": "<a"}, {"text": "||>"}, {"text": "||<b>"}]),
            ),
            (
                json!([{"text": "<"}, {"text": "a"}, {"text": ">"}]),
                json!([{"text": "<"}, {"text": "a"}, {"text": "||>"}]),
            ),
            (
                json!([{"text": "<"}, {"type": "image"}, {"text": "a>"}]),
                json!([{"text": "<"}, {"type": "image"}, {"text": "a>"}]),
            ),
        ] {
            assert_eq!(enclosed(given.clone()).1, expected, "{given}");
        }
        assert_eq!(enclosed(json!("plain <b> text")).0, None);
    }

    #[test]
    fn mark_is_a_character_that_the_conversation_does_not_have() {
        use serde_json::json;
        assert_eq!(enclosed(json!("<a>")).0, Some('\u{FDD0}'));
        assert_eq!(enclosed(json!(["<a>", {"\u{FDD0}": "\u{FDD1}"}])).0, Some('\u{FDD2}'));
        let all: String = MARKS.collect();
        assert_eq!(enclosed(json!(format!("<a>{all}"))).0, None);
    }
}

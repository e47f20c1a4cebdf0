//! The form that a request demands of its output, as vLLM's `structured_outputs` names it: JSON, a regular expression, one of several
//! texts, or a grammar.

use serde_json::{Map, Value};

use nereid_backend_api::{Error, Result};

/// The longest description of a form, in bytes. The time to compile it grows with its length.
pub(crate) const MAX_LENGTH: usize = 256 << 10;

/// The form of an output.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Structure {
    pub(crate) form: Form,
    pub(crate) whitespace: Whitespace,
}

/// A pattern that the whole output matches.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Form {
    /// JSON that matches this schema.
    Json(Value),
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// A grammar in Lark's notation or in llama.cpp's (GBNF).
    Grammar(String),
}

/// The white space between the tokens of JSON.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum Whitespace {
    /// Any, up to a length that a model can indent by.
    #[default]
    Any,
    None,
    /// Matches this regular expression.
    Pattern(String),
}

/// The fields of `structured_outputs` in a request, with the older names of each.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    forms: Vec<(&'static str, Form)>,
    whitespace: Whitespace,
}

impl Parts {
    /// Takes a sampling parameter. Returns whether it belongs to the structure.
    ///
    /// # Errors
    /// `InvalidArg` for an invalid value, `Unsupported` for a form that this engine lacks.
    pub(crate) fn take(&mut self, name: &str, value: &Value) -> Result<bool> {
        match name {
            "structured_outputs" | "guided_decoding" => {
                let fields = fields(name, value)?;
                for (field, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
                    self.set(field, value)?;
                }
            }
            "guided_decoding_backend" => {}
            _ => match name.strip_prefix("guided_") {
                Some(field) => self.set(field, value)?,
                None => return Ok(false),
            },
        }
        Ok(true)
    }

    fn set(&mut self, field: &str, value: &Value) -> Result<()> {
        if value.to_string().len() > MAX_LENGTH {
            return Err(Error::invalid_arg(format!(
                "structured output: '{field}' is longer than {MAX_LENGTH} bytes"
            )));
        }
        let text = || value.as_str().map(str::to_owned).ok_or_else(|| wrong(field, "text"));
        let truth = || value.as_bool().ok_or_else(|| wrong(field, "true or false"));
        match field {
            "json" => self.forms.push(("json", Form::Json(schema(value)?))),
            "json_object" => {
                if truth()? {
                    self.forms.push(("json_object", Form::Json(serde_json::json!({"type": "object"}))));
                }
            }
            "regex" => self.forms.push(("regex", Form::Regex(text()?))),
            "grammar" => self.forms.push(("grammar", Form::Grammar(text()?))),
            "choice" => {
                let texts = value.as_array().filter(|texts| !texts.is_empty());
                let texts = texts.and_then(|texts| {
                    texts.iter().map(|text| text.as_str().map(str::to_owned)).collect::<Option<Vec<_>>>()
                });
                let texts = texts.ok_or_else(|| wrong(field, "a list of texts that is not empty"))?;
                self.forms.push(("choice", Form::Choice(texts)));
            }
            "disable_any_whitespace" => {
                if truth()? {
                    self.whitespace = Whitespace::None;
                }
            }
            "whitespace_pattern" => self.whitespace = Whitespace::Pattern(text()?),
            "disable_fallback" | "backend" | "_backend" | "_backend_was_auto" => {}
            "disable_additional_properties" if value == &Value::Bool(false) => {}
            _ => {
                return Err(Error::unsupported(format!(
                    "backend 'llamacpp' does not support structured output by '{field}' (available: json, json_object, regex, choice, \
                     grammar)"
                )));
            }
        }
        Ok(())
    }

    /// The structure; `None` for free text.
    ///
    /// # Errors
    /// `InvalidArg` for several forms.
    pub(crate) fn finish(mut self) -> Result<Option<Structure>> {
        if let [(first, _), (second, _), ..] = self.forms.as_slice() {
            return Err(Error::invalid_arg(format!(
                "structured output has two forms, '{first}' and '{second}', but only one may be set"
            )));
        }
        let form = self.forms.pop();
        Ok(form.map(|(_, form)| Structure { form, whitespace: self.whitespace }))
    }
}

fn wrong(field: &str, expected: &str) -> Error {
    Error::invalid_arg(format!("structured output: '{field}' must be {expected}"))
}

/// The fields of an object, which may be in a text, as Triton's frontend sends it.
fn fields(name: &str, value: &Value) -> Result<Map<String, Value>> {
    let parsed = match value {
        Value::Object(fields) => Some(fields.clone()),
        Value::String(text) => serde_json::from_str(text).ok(),
        _ => None,
    };
    parsed.ok_or_else(|| {
        Error::invalid_arg(format!("sampling parameter '{name}' must be a JSON object, or the text of one"))
    })
}

/// A schema: an object or a truth value, or the text of one.
fn schema(value: &Value) -> Result<Value> {
    let parsed = match value {
        Value::String(text) => serde_json::from_str(text)
            .map_err(|error| Error::invalid_arg(format!("structured output: 'json' is not JSON: {error}")))?,
        value => value.clone(),
    };
    match parsed {
        Value::Object(_) | Value::Bool(_) => Ok(parsed),
        _ => Err(wrong("json", "a JSON schema")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(parameters: &Value) -> Result<Option<Structure>> {
        let mut parts = Parts::default();
        for (name, value) in parameters.as_object().unwrap() {
            assert!(parts.take(name, value)?, "{name}");
        }
        parts.finish()
    }

    #[test]
    fn forms_have_the_names_of_vllm() {
        let object = Form::Json(json!({"type": "object"}));
        for (parameters, expected) in [
            (json!({"structured_outputs": {}}), None),
            (json!({"structured_outputs": {"json": null, "json_object": false}}), None),
            (json!({"structured_outputs": {"json": {"type": "object"}}}), Some(object.clone())),
            (
                json!({"structured_outputs": "{\"json\": \"{\\\"type\\\": \\\"object\\\"}\"}"}),
                Some(object.clone()),
            ),
            (json!({"structured_outputs": {"json_object": true, "regex": null}}), Some(object.clone())),
            (json!({"guided_decoding": {"json": true}}), Some(Form::Json(json!(true)))),
            (json!({"guided_json": {"type": "object"}, "guided_decoding_backend": "xgrammar"}), Some(object)),
            (json!({"guided_regex": "a+"}), Some(Form::Regex("a+".to_owned()))),
            (json!({"guided_choice": ["a", ""]}), Some(Form::Choice(vec!["a".to_owned(), String::new()]))),
            (json!({"guided_grammar": "start: A"}), Some(Form::Grammar("start: A".to_owned()))),
        ] {
            assert_eq!(parse(&parameters).unwrap().map(|structure| structure.form), expected, "{parameters}");
        }
    }

    #[test]
    fn whitespace_belongs_to_the_form() {
        for (parameters, expected) in [
            (json!({"structured_outputs": {"json_object": true}}), Whitespace::Any),
            (
                json!({"structured_outputs": {"json_object": true, "disable_any_whitespace": true}}),
                Whitespace::None,
            ),
            (
                json!({"guided_whitespace_pattern": " ?", "guided_json": true}),
                Whitespace::Pattern(" ?".to_owned()),
            ),
        ] {
            assert_eq!(parse(&parameters).unwrap().unwrap().whitespace, expected, "{parameters}");
        }
    }

    #[test]
    fn invalid_forms_are_refused_by_name() {
        for (parameters, expected) in [
            (json!({"structured_outputs": 1}), "'structured_outputs' must be a JSON object"),
            (json!({"structured_outputs": "{"}), "'structured_outputs' must be a JSON object"),
            (json!({"structured_outputs": {"json": "{"}}), "'json' is not JSON"),
            (json!({"structured_outputs": {"json": [1]}}), "'json' must be a JSON schema"),
            (json!({"guided_choice": []}), "'choice' must be a list of texts"),
            (json!({"guided_choice": [1]}), "'choice' must be a list of texts"),
            (json!({"guided_regex": 1}), "'regex' must be text"),
            (json!({"guided_json_object": "yes"}), "'json_object' must be true or false"),
            (json!({"guided_regex": "a", "guided_json": true}), "has two forms, 'json' and 'regex'"),
            (json!({"structured_outputs": {"structural_tag": "{}"}}), "by 'structural_tag'"),
            (json!({"guided_regex": "a".repeat(MAX_LENGTH)}), "'regex' is longer than 262144 bytes"),
        ] {
            let error = parse(&parameters).unwrap_err();
            // Parameters of a request have no order.
            let swapped = expected.replace("'json' and 'regex'", "'regex' and 'json'");
            assert!(error.message().contains(expected) || error.message().contains(&swapped), "{error}");
        }
    }
}

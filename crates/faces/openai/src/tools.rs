//! The tools of a request, and which of them the model has to call.

use std::borrow::Cow;

use minijinja::Value;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::contract::Guide;
use crate::error::{Failure, Outcome};
use crate::fields::{Fields, read};

/// A function that the model may call.
#[derive(Debug)]
pub(crate) struct Tool {
    /// The function's name.
    pub name: String,
    /// The JSON schema of its arguments; any object without one.
    parameters: Option<Box<RawValue>>,
    /// The types of the arguments that the schema declares by `type`.
    types: Vec<(String, String)>,
}

/// The tools of a request and its choice among them.
#[derive(Debug, Default)]
pub(crate) struct ToolSet {
    /// The tools.
    pub tools: Vec<Tool>,
    /// The tools as the chat template gets them.
    pub for_template: Option<Value>,
    /// The client's choice.
    pub choice: ToolChoice,
}

/// Which tool the model has to call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum ToolChoice {
    /// None.
    #[default]
    None,
    /// Any number of calls of any tools.
    Auto,
    /// At least one.
    Required,
    /// The one with this name.
    Function(String),
}

impl Tool {
    /// The type of an argument, if the schema names one.
    pub(crate) fn parameter_type(&self, name: &str) -> Option<&str> {
        self.types.iter().find(|(known, _)| known == name).map(|(_, kind)| kind.as_str())
    }

    fn schema(&self) -> &str {
        self.parameters.as_ref().map_or("{\"type\":\"object\"}", |schema| schema.get())
    }
}

/// A tool on the wire: the function's fields are in `function`, or next to `type` as in `/v1/responses`.
#[derive(Deserialize)]
struct WireTool {
    r#type: String,
    function: Option<WireFunction>,
    name: Option<String>,
    parameters: Option<Box<RawValue>>,
}

#[derive(Deserialize)]
struct WireFunction {
    name: String,
    parameters: Option<Box<RawValue>>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum WireChoice {
    Word(String),
    Function { function: WireName },
    Flat { name: String },
}

#[derive(Deserialize)]
struct WireName {
    name: String,
}

impl ToolSet {
    /// Takes `tools` and `tool_choice` from a request.
    ///
    /// # Errors
    /// They are invalid.
    pub(crate) fn take(fields: &mut Fields<'_>) -> Outcome<Self> {
        let raw = fields.take_raw("tools");
        let choice: Option<WireChoice> = fields.take("tool_choice")?;
        let tools = raw.map(|raw| read::<Vec<WireTool>>("tools", raw)).transpose()?.unwrap_or_default();
        let tools: Vec<Tool> = tools.into_iter().map(Tool::try_from).collect::<Outcome<_>>()?;
        let choice = match choice {
            None if tools.is_empty() => ToolChoice::None,
            None => ToolChoice::Auto,
            Some(WireChoice::Word(word)) => match word.as_str() {
                "none" => ToolChoice::None,
                "auto" if tools.is_empty() => ToolChoice::None,
                "auto" => ToolChoice::Auto,
                "required" => ToolChoice::Required,
                _ => {
                    let message = format!("'tool_choice': unknown value '{word}'");
                    return Err(Failure::invalid_field("tool_choice", message));
                }
            },
            Some(WireChoice::Function { function: WireName { name } } | WireChoice::Flat { name }) => {
                ToolChoice::Function(name)
            }
        };
        match &choice {
            ToolChoice::Required if tools.is_empty() => {
                return Err(Failure::invalid_field(
                    "tool_choice",
                    "\"required\" tool choice requires 'tools' to be provided",
                ));
            }
            ToolChoice::Function(name) if tools.iter().all(|tool| tool.name != *name) => {
                return Err(Failure::invalid_field(
                    "tool_choice",
                    format!("'tools' has no function '{name}'"),
                ));
            }
            _ => {}
        }
        // A model that may not call a tool does not see any.
        let shown = raw.filter(|_| choice != ToolChoice::None && !tools.is_empty());
        let for_template = shown.map(|raw| read::<Vec<Value>>("tools", raw)).transpose()?;
        let for_template =
            for_template.map(|tools| Value::from(tools.into_iter().map(nested).collect::<Vec<_>>()));
        Ok(Self { tools, for_template, choice })
    }

    /// The form of an output that has to be a call; with `is_single`, no more than one.
    pub(crate) fn guide(&self, is_single: bool) -> Option<Guide<'static>> {
        let schema = match &self.choice {
            ToolChoice::None | ToolChoice::Auto => return None,
            ToolChoice::Function(name) => {
                self.tools.iter().find(|tool| tool.name == *name)?.schema().to_owned()
            }
            ToolChoice::Required => {
                let mut definitions = serde_json::Map::new();
                let calls = self.tools.iter().enumerate().map(|(number, tool)| {
                    let name = serde_json::Value::from(tool.name.as_str());
                    let schema = hoisted(tool.schema(), number, &mut definitions);
                    format!(
                        "{{\"type\":\"object\",\"properties\":{{\"name\":{{\"type\":\"string\",\"enum\":[{name}]}},\
                         \"parameters\":{schema}}},\"required\":[\"name\",\"parameters\"],\"additionalProperties\":false}}"
                    )
                });
                let calls: Vec<_> = calls.collect();
                let definitions = match definitions.is_empty() {
                    true => String::new(),
                    false => format!("\"$defs\":{},", serde_json::Value::from(definitions)),
                };
                let (calls, most) = (calls.join(","), if is_single { ",\"maxItems\":1" } else { "" });
                format!(
                    "{{{definitions}\"type\":\"array\",\"minItems\":1{most},\"items\":{{\"anyOf\":[{calls}]}}}}"
                )
            }
        };
        Some(Guide::JsonSchema(schema.into()))
    }
}

/// A tool's schema as a part of another one. Its definitions move to `definitions`, with names that no other tool has: references
/// count from the root of a schema.
fn hoisted<'a>(
    schema: &'a str,
    number: usize,
    definitions: &mut serde_json::Map<String, serde_json::Value>,
) -> Cow<'a, str> {
    if !schema.contains("\"$ref\"") {
        return schema.into();
    }
    let Ok(mut parsed) = serde_json::from_str::<serde_json::Value>(schema) else { return schema.into() };
    for key in ["$defs", "definitions"] {
        let prefix = format!("#/{key}/");
        rename_references(&mut parsed, &prefix, number);
        let found = parsed.as_object_mut().and_then(|fields| fields.remove(key));
        if let Some(serde_json::Value::Object(found)) = found {
            definitions.extend(found.into_iter().map(|(name, value)| (format!("{number}_{name}"), value)));
        }
    }
    parsed.to_string().into()
}

/// Directs the references that begin with `prefix` to the definitions of a tool.
fn rename_references(schema: &mut serde_json::Value, prefix: &str, number: usize) {
    match schema {
        serde_json::Value::Object(fields) => {
            for (key, value) in fields {
                match value {
                    serde_json::Value::String(reference) if key == "$ref" => {
                        if let Some(name) = reference.strip_prefix(prefix) {
                            *reference = format!("#/$defs/{number}_{name}");
                        }
                    }
                    value => rename_references(value, prefix, number),
                }
            }
        }
        serde_json::Value::Array(items) => {
            items.iter_mut().for_each(|item| rename_references(item, prefix, number));
        }
        _ => {}
    }
}

/// A tool with its function's fields in `function`, as templates expect it.
fn nested(tool: Value) -> Value {
    let is_nested =
        tool.get_attr("function").is_ok_and(|function| !function.is_undefined() && !function.is_none());
    if is_nested {
        return tool;
    }
    let fields =
        tool.try_iter().into_iter().flatten().filter(|key| !matches!(key.as_str(), Some("type" | "strict")));
    let fields = fields.filter_map(|key| Some((key.clone(), tool.get_item(&key).ok()?)));
    let function = Value::from_pairs(fields.collect::<Vec<_>>());
    Value::from_pairs([("type", Value::from("function")), ("function", function)])
}

impl TryFrom<WireTool> for Tool {
    type Error = Box<Failure>;

    fn try_from(tool: WireTool) -> Outcome<Self> {
        if tool.r#type != "function" {
            let message = format!("tools of type '{}' are not supported; only functions are", tool.r#type);
            return Err(Failure::unsupported("tools", message));
        }
        let (name, parameters) = match (tool.function, tool.name) {
            (Some(function), _) => (function.name, function.parameters),
            (None, Some(name)) => (name, tool.parameters),
            (None, None) => return Err(Failure::invalid_field("tools", "a function has no name")),
        };
        let parameters = parameters.filter(|schema| schema.get() != "null");
        let types = parameters.as_ref().map(|schema| types(schema)).unwrap_or_default();
        Ok(Self { name, parameters, types })
    }
}

/// The types of the properties in a schema.
fn types(schema: &RawValue) -> Vec<(String, String)> {
    let schema: serde_json::Value = serde_json::from_str(schema.get()).unwrap_or_default();
    let properties = schema.get("properties").and_then(serde_json::Value::as_object);
    let types = properties
        .into_iter()
        .flatten()
        .filter_map(|(name, property)| Some((name.clone(), property.get("type")?.as_str()?.to_owned())));
    types.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn take(json: &serde_json::Value) -> Outcome<ToolSet> {
        ToolSet::take(&mut Fields::parse(json.to_string().as_bytes())?)
    }

    #[test]
    fn choice_follows_from_the_tools_unless_it_is_given() {
        let tools = json!([{"type": "function", "function": {"name": "f"}}]);
        for (request, choice, is_shown) in [
            (json!({}), ToolChoice::None, false),
            (json!({"tools": []}), ToolChoice::None, false),
            (json!({"tool_choice": "auto"}), ToolChoice::None, false),
            (json!({"tools": tools}), ToolChoice::Auto, true),
            (json!({"tools": tools, "tool_choice": "none"}), ToolChoice::None, false),
            (json!({"tools": tools, "tool_choice": "required"}), ToolChoice::Required, true),
            (
                json!({"tools": tools, "tool_choice": {"type": "function", "name": "f"}}),
                ToolChoice::Function("f".into()),
                true,
            ),
        ] {
            let set = take(&request).unwrap();
            assert_eq!((set.choice, set.for_template.is_some()), (choice, is_shown), "{request}");
        }
        let unknown = json!({"tools": tools, "tool_choice": {"type": "function", "function": {"name": "g"}}});
        assert!(take(&unknown).is_err());
    }

    #[test]
    fn references_of_several_tools_lead_to_their_own_definitions() {
        let schema = |kind: &str, key: &str| {
            json!({"type": "object", "properties": {"p": {"$ref": format!("#/{key}/P")}},
                key: {"P": {"anyOf": [{"type": kind}, {"type": "array", "items": {"$ref": format!("#/{key}/P")}}]}}})
        };
        let tool =
            |name, schema| json!({"type": "function", "function": {"name": name, "parameters": schema}});
        let tools =
            json!([tool("f", schema("string", "$defs")), tool("g", schema("integer", "definitions"))]);
        let guide = take(&json!({"tools": tools, "tool_choice": "required"})).unwrap().guide(false);
        let Some(Guide::JsonSchema(text)) = guide else { panic!("no schema") };
        let found: serde_json::Value = serde_json::from_str(&text).unwrap();
        for (number, kind) in [(0, "string"), (1, "integer")] {
            let reference = json!({"$ref": format!("#/$defs/{number}_P")});
            let parameters = &found["items"]["anyOf"][number]["properties"]["parameters"];
            assert_eq!(*parameters, json!({"type": "object", "properties": {"p": reference}}));
            let definition = json!({"anyOf": [{"type": kind}, {"type": "array", "items": reference}]});
            assert_eq!(found["$defs"][format!("{number}_P")], definition);
        }
    }

    #[test]
    fn templates_get_tools_in_one_form() {
        let schema = json!({"type": "object", "properties": {"a": {"type": "string"}, "b": {}}});
        for tool in [
            json!({"type": "function", "name": "f", "description": "d", "parameters": schema, "strict": true}),
            json!({"type": "function", "function": {"name": "f", "description": "d", "parameters": schema}}),
        ] {
            let set = take(&json!({"tools": [tool]})).unwrap();
            assert_eq!(
                (set.tools[0].parameter_type("a"), set.tools[0].parameter_type("b")),
                (Some("string"), None)
            );
            assert_eq!(
                serde_json::to_value(set.for_template.unwrap()).unwrap(),
                json!([{"type": "function", "function": {"name": "f", "description": "d", "parameters": schema}}])
            );
        }
        for invalid in
            [json!([{"type": "function"}]), json!([{"type": "custom", "name": "x"}]), json!([1]), json!({})]
        {
            assert!(take(&json!({"tools": invalid})).is_err(), "{invalid}");
        }
    }
}

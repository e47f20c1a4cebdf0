//! Reads the call specification of a package of AOTInductor: the names of its inputs and outputs.
//!
//! The package's code takes and returns plain lists of tensors. The specification describes how they nest in the
//! arguments and the result of the model's `forward`. Names follow Triton: `ARGS[1]`, `KWARGS[mask]`,
//! `RESULT[0][key]`, or `RESULT` alone for a model that returns one tensor.

use serde::Deserialize;
use serde_json::Value;

use crate::naming::{Argument, Kind};

/// The inputs and outputs of a package, in the order of its code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CallSpec {
    pub(crate) arguments: Vec<Argument>,
    pub(crate) results: Vec<String>,
}

/// A value of `forward`: a container, or a tensor if it has no type.
#[derive(Deserialize)]
struct Node {
    #[serde(rename = "type")]
    kind: Option<String>,
    /// The keys of a dictionary, as a list or as the text of one.
    #[serde(default)]
    context: Value,
    #[serde(default)]
    children_spec: Vec<Node>,
}

impl CallSpec {
    /// Reads the specifications of the inputs and of the outputs.
    ///
    /// # Errors
    /// The specification is malformed.
    pub(crate) fn read(inputs: &str, outputs: &str) -> Result<Self, String> {
        let inputs = node(inputs).map_err(|error| format!("the specification of its inputs: {error}"))?;
        let outputs = node(outputs).map_err(|error| format!("the specification of its outputs: {error}"))?;
        let [positional, by_key] = &inputs.children_spec[..] else {
            return Err(format!(
                "the specification of its inputs has {} parts, expected positional and keyword arguments",
                inputs.children_spec.len()
            ));
        };
        let mut names = Vec::new();
        positional.tensors("ARGS", &mut names);
        by_key.tensors("KWARGS", &mut names);
        let mut results = Vec::new();
        outputs.tensors("RESULT", &mut results);
        // Compiled code may write to any input.
        let argument = |name| Argument { name, kind: Kind::Tensor, is_required: true, is_written: true };
        Ok(Self { arguments: names.into_iter().map(argument).collect(), results })
    }
}

/// The root, which follows the version of the format.
fn node(text: &str) -> Result<Node, serde_json::Error> {
    let (_version, node): (Value, Node) = serde_json::from_str(text)?;
    Ok(node)
}

impl Node {
    /// Adds the names of all tensors below this node, in order. `name` is the node's name.
    fn tensors(&self, name: &str, names: &mut Vec<String>) {
        if self.kind.is_none() {
            names.push(name.to_owned());
            return;
        }
        let keys = self.keys();
        for (at, child) in self.children_spec.iter().enumerate() {
            let key = keys.as_ref().map_or_else(|| at.to_string(), |keys| keys[at].clone());
            child.tensors(&format!("{name}[{key}]"), names);
        }
    }

    /// A key for each child. `None` for a container whose positions count.
    fn keys(&self) -> Option<Vec<String>> {
        let read;
        let listed = match &self.context {
            Value::String(text) => {
                read = serde_json::from_str::<Value>(text).ok()?;
                read.as_array()?
            }
            context => context.as_array()?,
        };
        let key = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        (listed.len() == self.children_spec.len()).then(|| listed.iter().map(key).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_specifications_are_refused() {
        const TENSOR: &str = r#"{"type": null, "context": null, "children_spec": []}"#;
        let tuple = |children: &str| {
            format!(r#"{{"type": "builtins.tuple", "context": "null", "children_spec": [{children}]}}"#)
        };
        let inputs = format!("[1, {}]", tuple(&format!("{}, {}", tuple(TENSOR), tuple(""))));
        let outputs = format!("[1, {TENSOR}]");
        assert!(CallSpec::read(&inputs, &outputs).is_ok());
        let deep = format!("[1, {}{}]", r#"{"children_spec": ["#.repeat(500), "]}".repeat(500));
        for (inputs, outputs, reason) in [
            ("", outputs.as_str(), "inputs: EOF"),
            (&inputs, "[]", "outputs: invalid length 0"),
            (&inputs, "[1, 2]", "outputs: invalid type"),
            (&outputs, &outputs, "has 0 parts"),
            (&inputs, &deep, "recursion"),
        ] {
            let error = CallSpec::read(inputs, outputs).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }
}

//! A model's configuration as the server provides it: JSON, with shortcuts to common fields.

use serde_json::{Map, Value, json};

use crate::error::{Error, Result};
use tensor_types::DataType;

/// A model's configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    json: Value,
}

/// A configured input or output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorConfig {
    /// The tensor's name.
    pub name: String,
    /// `None` if the configuration has `TYPE_INVALID` or no type.
    pub data_type: Option<DataType>,
    /// Without the batch dimension; -1 is any size.
    pub dims: Vec<i64>,
}

impl ModelConfig {
    pub(crate) fn new(json: Value) -> Result<Self> {
        if json.is_object() {
            return Ok(Self { json });
        }
        Err(Error::internal("the server's model configuration is not a JSON object"))
    }

    /// The whole configuration, in the form of `GET v2/models/<name>/config`.
    pub fn json(&self) -> &Value {
        &self.json
    }

    /// The whole configuration, for completion.
    pub fn json_mut(&mut self) -> &mut Value {
        &mut self.json
    }

    /// The largest batch size; 0 if the model does not support batching.
    pub fn max_batch_size(&self) -> u64 {
        self.json["max_batch_size"].as_u64().unwrap_or(0)
    }

    /// Sets the largest batch size.
    pub fn set_max_batch_size(&mut self, size: u64) {
        self.set("max_batch_size", json!(size));
    }

    /// Whether a request may have any number of responses.
    pub fn is_decoupled(&self) -> bool {
        self.json["model_transaction_policy"]["decoupled"].as_bool().unwrap_or(false)
    }

    /// Sets whether a request may have any number of responses.
    pub fn set_decoupled(&mut self, decoupled: bool) {
        self.set("model_transaction_policy", json!({ "decoupled": decoupled }));
    }

    /// Whether requests of a sequence may be executed again: `sequence_batching { iterative_sequence: true }`.
    pub fn is_iterative(&self) -> bool {
        self.json["sequence_batching"]["iterative_sequence"].as_bool().unwrap_or(false)
    }

    /// A parameter of the configuration.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.json["parameters"].get(name)?.get("string_value")?.as_str()
    }

    /// The configured inputs.
    pub fn inputs(&self) -> Vec<TensorConfig> {
        self.tensors("input")
    }

    /// The configured outputs.
    pub fn outputs(&self) -> Vec<TensorConfig> {
        self.tensors("output")
    }

    /// Adds an input, unless one of that name is configured; `dims` without the batch dimension.
    pub fn add_input(&mut self, name: &str, data_type: DataType, dims: &[i64]) {
        self.add_tensor("input", name, data_type, dims);
    }

    /// Adds an output, unless one of that name is configured.
    pub fn add_output(&mut self, name: &str, data_type: DataType, dims: &[i64]) {
        self.add_tensor("output", name, data_type, dims);
    }

    fn set(&mut self, key: &str, value: Value) {
        if let Value::Object(fields) = &mut self.json {
            fields.insert(key.to_owned(), value);
        }
    }

    fn tensors(&self, key: &str) -> Vec<TensorConfig> {
        let list = self.json[key].as_array().map(Vec::as_slice).unwrap_or_default();
        list.iter()
            .map(|tensor| TensorConfig {
                name: tensor["name"].as_str().unwrap_or_default().to_owned(),
                data_type: tensor["data_type"].as_str().and_then(DataType::from_config_name),
                dims: tensor["dims"]
                    .as_array()
                    .map(|dims| dims.iter().filter_map(integer).collect())
                    .unwrap_or_default(),
            })
            .collect()
    }

    fn add_tensor(&mut self, key: &str, name: &str, data_type: DataType, dims: &[i64]) {
        if self.tensors(key).iter().any(|tensor| tensor.name == name) {
            return;
        }
        let tensor = json!({ "name": name, "data_type": data_type.config_name(), "dims": dims });
        match self.json[key].as_array_mut() {
            Some(list) => list.push(tensor),
            None => self.set(key, json!([tensor])),
        }
    }
}

/// Protobuf's JSON may encode 64-bit numbers as strings.
fn integer(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| value.as_str()?.parse().ok())
}

/// The command-line settings in a backend's configuration.
pub(crate) fn command_line(config: &Value) -> Option<&Map<String, Value>> {
    config["cmdline"].as_object()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(json: Value) -> ModelConfig {
        ModelConfig::new(json).unwrap()
    }

    #[test]
    fn present_fields_are_read() {
        let config = config(json!({
            "max_batch_size": 8,
            "input": [{"name": "A", "data_type": "TYPE_STRING", "dims": ["-1", 3]}],
            "output": [{"name": "B", "data_type": "TYPE_INVALID"}],
            "model_transaction_policy": {"decoupled": true},
            "sequence_batching": {"iterative_sequence": true},
            "parameters": {"mode": {"string_value": "fast"}},
        }));
        assert_eq!(config.max_batch_size(), 8);
        assert!(config.is_decoupled());
        assert!(config.is_iterative());
        assert_eq!(config.parameter("mode"), Some("fast"));
        assert_eq!(config.parameter("other"), None);
        assert_eq!(
            config.inputs(),
            [TensorConfig { name: "A".into(), data_type: Some(DataType::Bytes), dims: vec![-1, 3] }]
        );
        assert_eq!(config.outputs(), [TensorConfig { name: "B".into(), data_type: None, dims: vec![] }]);
    }

    #[test]
    fn missing_fields_have_defaults() {
        let config = config(json!({}));
        assert_eq!(config.max_batch_size(), 0);
        assert!(!config.is_decoupled());
        assert!(!config.is_iterative());
        assert_eq!(config.inputs(), []);
    }

    #[test]
    fn non_object_is_refused() {
        assert!(ModelConfig::new(json!([1])).is_err());
    }

    #[test]
    fn completion_adds_tensors_and_keeps_existing_ones() {
        let mut config = config(json!({"input": [{"name": "A", "data_type": "TYPE_FP32", "dims": [2]}]}));
        config.add_input("A", DataType::Int8, &[7]);
        config.add_input("B", DataType::Bytes, &[-1]);
        config.add_output("C", DataType::Fp16, &[1]);
        config.set_max_batch_size(4);
        config.set_decoupled(true);
        let names: Vec<_> =
            config.inputs().into_iter().map(|tensor| (tensor.name, tensor.data_type)).collect();
        assert_eq!(names, [("A".into(), Some(DataType::Fp32)), ("B".into(), Some(DataType::Bytes))]);
        assert_eq!(config.outputs()[0].data_type, Some(DataType::Fp16));
        assert_eq!(config.max_batch_size(), 4);
        assert!(config.is_decoupled());
    }
}

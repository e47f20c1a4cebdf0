//! The fields of a response, encoded as they are added: nothing is allocated for each.

use nereid_core::backend_api::ParameterValue;
use prost::encoding::{
    WireType, bool, double, encode_key, encode_varint, encoded_len_varint, int64, key_len,
};

/// The tags of `ModelInferResponse`.
const MODEL_NAME: u32 = 1;
const MODEL_VERSION: u32 = 2;
const ID: u32 = 3;
const PARAMETERS: u32 = 4;
const OUTPUTS: u32 = 5;

/// The tags of `InferOutputTensor`.
const NAME: u32 = 1;
const DATATYPE: u32 = 2;
const SHAPE: u32 = 3;

/// The tags of an entry of a map.
const KEY: u32 = 1;
const VALUE: u32 = 2;

/// The tags of `InferParameter`.
const BOOL: u32 = 1;
const INT64: u32 = 2;
const STRING: u32 = 3;
const DOUBLE: u32 = 4;

/// Room for the fields of a usual response.
const USUAL: usize = 160;

/// All of a `ModelInferResponse` but the raw contents.
#[derive(Debug, Default)]
pub(crate) struct ResponseFields(Vec<u8>);

impl ResponseFields {
    /// The fields that identify a response.
    pub(crate) fn new(model_name: &str, model_version: &str, id: &str) -> Self {
        let mut fields = Vec::with_capacity(USUAL);
        put_string(MODEL_NAME, model_name, &mut fields);
        put_string(MODEL_VERSION, model_version, &mut fields);
        put_string(ID, id, &mut fields);
        Self(fields)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Adds a parameter of the response.
    pub(crate) fn parameter(&mut self, name: &str, value: &ParameterValue) {
        let fields = &mut self.0;
        // A value is there even if it is the default of its type.
        let length = match value {
            ParameterValue::Bool(value) => bool::encoded_len(BOOL, value),
            ParameterValue::Int(value) => int64::encoded_len(INT64, value),
            ParameterValue::String(value) => string_len(STRING, value),
            ParameterValue::Double(value) => double::encoded_len(DOUBLE, value),
        };
        let key = if name.is_empty() { 0 } else { string_len(KEY, name) };
        let entry = key + key_len(VALUE) + encoded_len_varint(length as u64) + length;
        put_head(PARAMETERS, entry, fields);
        put_string(KEY, name, fields);
        put_head(VALUE, length, fields);
        match value {
            ParameterValue::Bool(value) => bool::encode(BOOL, value, fields),
            ParameterValue::Int(value) => int64::encode(INT64, value, fields),
            ParameterValue::String(value) => put_text(STRING, value, fields),
            ParameterValue::Double(value) => double::encode(DOUBLE, value, fields),
        }
    }

    /// Adds an output, whose contents are elsewhere.
    pub(crate) fn output(&mut self, name: &str, datatype: &str, shape: &[i64]) {
        let fields = &mut self.0;
        let string_len = |tag, text: &str| if text.is_empty() { 0 } else { string_len(tag, text) };
        let length = string_len(NAME, name) + string_len(DATATYPE, datatype);
        put_head(OUTPUTS, length + int64::encoded_len_packed(SHAPE, shape), fields);
        put_string(NAME, name, fields);
        put_string(DATATYPE, datatype, fields);
        int64::encode_packed(SHAPE, shape, fields);
    }
}

fn string_len(tag: u32, text: &str) -> usize {
    key_len(tag) + encoded_len_varint(text.len() as u64) + text.len()
}

/// A string that is left out if it is empty.
fn put_string(tag: u32, text: &str, fields: &mut Vec<u8>) {
    if !text.is_empty() {
        put_text(tag, text, fields);
    }
}

fn put_text(tag: u32, text: &str, fields: &mut Vec<u8>) {
    put_head(tag, text.len(), fields);
    fields.extend_from_slice(text.as_bytes());
}

/// Tag and length of a field of this length.
pub(super) fn put_head(tag: u32, length: usize, fields: &mut Vec<u8>) {
    encode_key(tag, WireType::LengthDelimited, fields);
    encode_varint(length as u64, fields);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use prost::Message as _;

    use super::*;
    use crate::proto::infer_parameter::ParameterChoice;
    use crate::proto::model_infer_response::InferOutputTensor;
    use crate::proto::{InferParameter, ModelInferResponse};

    fn value() -> impl Strategy<Value = ParameterValue> {
        prop_oneof![
            any::<bool>().prop_map(ParameterValue::Bool),
            prop_oneof![Just(0), any::<i64>()].prop_map(ParameterValue::Int),
            prop_oneof![Just(0.0), -1e9..1e9].prop_map(ParameterValue::Double),
            "[a-zé]{0,200}".prop_map(|text| ParameterValue::String(text.into())),
        ]
    }

    fn of_prost(value: &ParameterValue) -> InferParameter {
        let choice = match value {
            ParameterValue::Bool(value) => ParameterChoice::BoolParam(*value),
            ParameterValue::Int(value) => ParameterChoice::Int64Param(*value),
            ParameterValue::Double(value) => ParameterChoice::DoubleParam(*value),
            ParameterValue::String(value) => ParameterChoice::StringParam(value.clone().into_owned()),
        };
        InferParameter { parameter_choice: Some(choice) }
    }

    proptest! {
        #[test]
        fn responses_encode_as_with_prost(
            names in prop::array::uniform3("[a-z]{0,200}"),
            parameters in prop::collection::btree_map("[a-z]{0,20}", value(), 0..4),
            outputs in prop::collection::vec(
                ("[A-Z0-9]{0,20}", "[A-Z0-9]{0,5}", prop::collection::vec(any::<i64>(), 0..5)),
                0..4,
            ),
        ) {
            let [model_name, model_version, id] = &names;
            let mut fields = ResponseFields::new(model_name, model_version, id);
            parameters.iter().for_each(|(name, value)| fields.parameter(name, value));
            outputs.iter().for_each(|(name, datatype, shape)| fields.output(name, datatype, shape));
            let outputs = outputs.into_iter().map(|(name, datatype, shape)| InferOutputTensor {
                name,
                datatype,
                shape,
                ..InferOutputTensor::default()
            });
            let wire: BTreeMap<_, _> =
                parameters.iter().map(|(name, value)| (name.clone(), of_prost(value))).collect();
            let expected = ModelInferResponse {
                model_name: model_name.clone(),
                model_version: model_version.clone(),
                id: id.clone(),
                parameters: wire,
                outputs: outputs.collect(),
                raw_output_contents: Vec::new(),
            };
            prop_assert_eq!(fields.bytes(), expected.encode_to_vec());
        }
    }
}

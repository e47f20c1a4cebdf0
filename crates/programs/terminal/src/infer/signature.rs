//! The inputs of a model, and the shapes that they take.

use serde_json::Value;
use tensor_types::DataType;

/// The inputs and outputs of a model.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Signature {
    pub(super) inputs: Vec<Input>,
    pub(super) outputs: Vec<String>,
    /// Whether a request may have any number of responses.
    pub(super) is_decoupled: bool,
}

/// A declared input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Input {
    pub(super) name: String,
    pub(super) data_type: DataType,
    /// The sizes of the dimensions; `None` for any size.
    pub(super) shape: Vec<Option<u64>>,
    pub(super) is_optional: bool,
    pub(super) format: Format,
}

/// Where the channels of an image are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Format {
    #[default]
    Unknown,
    ChannelsFirst,
    ChannelsLast,
}

impl Signature {
    /// Reads the metadata of a model, and its configuration if the server has one.
    ///
    /// # Errors
    /// The metadata is not of KServe v2.
    pub(super) fn read(metadata: &Value, config: &Value) -> Result<Self, String> {
        let list = |document: &Value, name: &str| document[name].as_array().cloned().unwrap_or_default();
        let configured = list(config, "input");
        let read = |input: &Value| {
            let name = name_of(input)?;
            let declared = configured.iter().find(|declared| declared["name"] == *name);
            Input::read(name, input, declared.unwrap_or(&Value::Null))
        };
        let inputs = list(metadata, "inputs").iter().map(read).collect::<Result<_, String>>()?;
        let outputs = list(metadata, "outputs").iter().map(name_of).collect::<Result<_, String>>()?;
        let is_decoupled = config["model_transaction_policy"]["decoupled"] == true;
        Ok(Self { inputs, outputs, is_decoupled })
    }

    /// The inputs, as a message names them.
    pub(super) fn describe(&self) -> String {
        let inputs = self.inputs.iter().map(|input| {
            let optional = if input.is_optional { ", optional" } else { "" };
            format!("{} ({}{optional})", input.name, input.describe())
        });
        inputs.collect::<Vec<_>>().join(", ")
    }
}

fn name_of(tensor: &Value) -> Result<String, String> {
    tensor["name"]
        .as_str()
        .map(str::to_owned)
        .ok_or_else(|| "the model's metadata has a tensor without a name".into())
}

impl Input {
    fn read(name: String, metadata: &Value, config: &Value) -> Result<Self, String> {
        let data_type = metadata["datatype"].as_str().unwrap_or_default();
        let data_type = DataType::from_protocol_name(data_type)
            .ok_or_else(|| format!("input '{name}' has the unknown datatype '{data_type}'"))?;
        // Some servers write sizes as texts.
        let size = |size: &Value| size.as_i64().or_else(|| size.as_str()?.parse().ok());
        let shape = metadata["shape"].as_array().map(Vec::as_slice).unwrap_or_default();
        let shape = shape.iter().map(|value| u64::try_from(size(value).unwrap_or(-1)).ok()).collect();
        let format = match config["format"].as_str() {
            Some("FORMAT_NCHW") => Format::ChannelsFirst,
            Some("FORMAT_NHWC") => Format::ChannelsLast,
            _ => Format::Unknown,
        };
        Ok(Self { name, data_type, shape, is_optional: config["optional"] == true, format })
    }

    /// Data type and shape, as a message has them.
    pub(super) fn describe(&self) -> String {
        let sizes =
            self.shape.iter().map(|size| size.map_or_else(|| "?".to_owned(), |size| size.to_string()));
        format!("{} [{}]", self.data_type.protocol_name(), sizes.collect::<Vec<_>>().join(", "))
    }

    /// Fits the shape of values to the declared one: prepends sizes of 1, or reshapes to the declared sizes if the number of values
    /// allows it.
    ///
    /// # Errors
    /// None fits.
    pub(super) fn fit(&self, given: &[u64]) -> Result<Vec<u64>, String> {
        let fits = |shape: &[u64]| {
            shape.len() == self.shape.len()
                && shape
                    .iter()
                    .zip(&self.shape)
                    .all(|(size, declared)| declared.is_none_or(|declared| declared == *size))
        };
        let missing = self.shape.len().saturating_sub(given.len());
        let padded = [vec![1; missing], given.to_vec()].concat();
        if fits(&padded) {
            return Ok(padded);
        }
        let unfit =
            || format!("input '{}': values of shape {given:?} do not fit {}", self.name, self.describe());
        let count = given.iter().try_fold(1_u64, |count, size| count.checked_mul(*size)).ok_or_else(unfit)?;
        let known = self.shape.iter().flatten().try_fold(1_u64, |count, size| count.checked_mul(*size));
        let known = known.ok_or_else(unfit)?;
        let wildcards = self.shape.iter().filter(|size| size.is_none()).count();
        let rest = match (wildcards, known) {
            (0, _) if known == count => 1,
            (1, 1..) if count % known == 0 => count / known,
            _ => return Err(unfit()),
        };
        Ok(self.shape.iter().map(|size| size.unwrap_or(rest)).collect())
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn input(shape: &[i64]) -> Input {
        Input::read("x".into(), &json!({"datatype": "FP32", "shape": shape}), &Value::Null).unwrap()
    }

    #[test]
    fn values_take_the_declared_shape() {
        for (declared, given, expected) in [
            (&[3][..], &[3][..], Some(&[3][..])),
            (&[-1, 3], &[3], Some(&[1, 3])),
            (&[-1, 3], &[2, 3], Some(&[2, 3])),
            (&[-1, 3], &[6], Some(&[2, 3])),
            (&[-1, 3], &[4], None),
            (&[-1, -1], &[4], Some(&[1, 4])),
            (&[-1, -1], &[2, 2, 2], None),
            (&[-1, 1], &[], Some(&[1, 1])),
            (&[1, 28, 28], &[28, 28], Some(&[1, 28, 28])),
            (&[28, 28], &[1, 1, 28, 28], Some(&[28, 28])),
            (&[28, 28], &[784], Some(&[28, 28])),
            (&[-1, 0], &[3], None),
            (&[], &[], Some(&[])),
            (&[], &[1], Some(&[])),
            (&[2], &[u64::MAX, u64::MAX], None),
        ] {
            assert_eq!(input(declared).fit(given).ok().as_deref(), expected, "{declared:?} {given:?}");
        }
        let error = input(&[-1, 3]).fit(&[4]).unwrap_err();
        assert_eq!(error, "input 'x': values of shape [4] do not fit FP32 [?, 3]");
    }

    proptest! {
        /// No value is lost, and all known sizes hold.
        #[test]
        fn fitted_shapes_keep_the_values(declared in vec(-1_i64..4, 0..5), given in vec(0_u64..4, 0..5)) {
            if let Ok(shape) = input(&declared).fit(&given) {
                prop_assert_eq!(shape.iter().product::<u64>(), given.iter().product::<u64>());
                prop_assert_eq!(shape.len(), declared.len());
                prop_assert!(shape.iter().zip(&declared).all(|(size, declared)| u64::try_from(*declared).is_ok_and(|declared| declared == *size) || *declared < 0));
            }
        }
    }

    #[test]
    fn metadata_and_configuration_make_the_signature() {
        let metadata = json!({
            "inputs": [{"name": "a", "datatype": "UINT8", "shape": [-1, "3"]}, {"name": "b", "datatype": "BYTES", "shape": [1]}],
            "outputs": [{"name": "c", "datatype": "FP32", "shape": [1]}],
        });
        let config = json!({
            "input": [{"name": "b", "optional": true, "format": "FORMAT_NHWC"}],
            "model_transaction_policy": {"decoupled": true},
        });
        let signature = Signature::read(&metadata, &config).unwrap();
        assert_eq!(signature.describe(), "a (UINT8 [?, 3]), b (BYTES [1], optional)");
        assert!(signature.is_decoupled && signature.inputs[1].format == Format::ChannelsLast);
        assert_eq!(signature.outputs, ["c"]);
        let plain = Signature::read(&metadata, &Value::Null).unwrap();
        assert!(!plain.is_decoupled && !plain.inputs[1].is_optional);
        for (metadata, expected) in [
            (json!({"inputs": [{"datatype": "FP32"}]}), "without a name"),
            (json!({"inputs": [{"name": "a", "datatype": "FP33"}]}), "unknown datatype 'FP33'"),
        ] {
            assert!(Signature::read(&metadata, &Value::Null).unwrap_err().contains(expected));
        }
    }
}

//! Requests for measurements: with the inputs that are given, and random ones for the others.

use std::collections::HashMap;

use bytes::Bytes;
use serde_json::{Map, Value};
use tensor_types::DataType;

use super::signature::{Input, Signature};
use super::tensor::{Element, Tensor};
use super::{Adjustment, arguments, body};

/// Random integers are below this, so that most models with tables of letters or words take them.
const INTEGERS: u64 = 10;
/// The most elements of a random input.
const MOST: u64 = 1 << 24;

/// A request.
#[derive(Clone, Copy, Debug)]
pub struct Sample<'a> {
    /// The model.
    pub model: &'a str,
    /// The model's metadata.
    pub metadata: &'a Value,
    /// The model's configuration.
    pub config: &'a Value,
    /// Inputs that are given, as `nereid infer` takes them.
    pub inputs: &'a [String],
    /// Shapes of random inputs, as `INPUT=SIZE,…`.
    pub shapes: &'a [String],
    /// Decides the random inputs.
    pub seed: u64,
}

impl Sample<'_> {
    /// The body in binary form, and the length of its JSON.
    ///
    /// # Errors
    /// A given input or shape does not fit the model.
    pub fn body(&self) -> Result<(Bytes, usize), String> {
        let tensors = self.tensors()?;
        body(&tensors.into_iter().map(|(tensor, _)| tensor).collect::<Vec<_>>(), Vec::new(), Map::new(), true)
    }

    /// The inputs in words.
    ///
    /// # Errors
    /// As of [`body`](Self::body).
    pub fn describe(&self) -> Result<String, String> {
        let described = self.tensors()?.into_iter().map(|(tensor, is_random)| {
            let kind = if is_random { "random " } else { "" };
            format!("{kind}{} {} {:?}", tensor.name, tensor.data_type.protocol_name(), tensor.shape)
        });
        Ok(described.collect::<Vec<_>>().join(", "))
    }

    /// The inputs, and whether each is random.
    fn tensors(&self) -> Result<Vec<(Tensor, bool)>, String> {
        let mut signature = Signature::read(self.metadata, self.config)?;
        let shapes = self.shapes(&signature)?;
        // Optional inputs are left out unless they are given.
        let is_given = |input: &Input| {
            self.inputs.iter().any(|given| given.split_once('=').is_some_and(|(name, _)| name == input.name))
        };
        let mut random = Vec::new();
        let mut seed = self.seed;
        for input in signature.inputs.iter_mut().filter(|input| !is_given(input)) {
            if input.is_optional && !shapes.contains_key(&input.name) {
                continue;
            }
            let shape = match shapes.get(&input.name) {
                Some(shape) => input.fit(shape)?,
                None => input.shape.iter().map(|size| size.unwrap_or(1)).collect(),
            };
            random.push((of_random(input, shape, &mut seed)?, true));
            // Not missing.
            input.is_optional = true;
        }
        let given = arguments::inputs(self.model, self.inputs, Adjustment::default(), &signature)?;
        Ok(given.into_iter().map(|tensor| (tensor, false)).chain(random).collect())
    }

    fn shapes(&self, signature: &Signature) -> Result<HashMap<String, Vec<u64>>, String> {
        let shape = |argument: &String| {
            let invalid = || format!("--shape is '{argument}', not INPUT=SIZE,SIZE as in x=1,3,224,224");
            let (name, sizes) = argument.split_once('=').ok_or_else(invalid)?;
            if signature.inputs.iter().all(|input| input.name != name) {
                return Err(format!(
                    "model '{}' has no input '{name}' (available: {})",
                    self.model,
                    signature.describe()
                ));
            }
            let sizes = sizes
                .split(',')
                .map(|size| size.trim().parse().map_err(|_| invalid()))
                .collect::<Result<_, _>>()?;
            Ok((name.to_owned(), sizes))
        };
        self.shapes.iter().map(shape).collect()
    }
}

fn of_random(input: &Input, shape: Vec<u64>, seed: &mut u64) -> Result<Tensor, String> {
    let too_large = || format!("input '{}' has too many elements", input.name);
    let count = shape.iter().try_fold(1_u64, |count, size| count.checked_mul(*size)).ok_or_else(too_large)?;
    if count > MOST {
        return Err(too_large());
    }
    let element = |_| match input.data_type {
        DataType::Bool => Element::Bool(next(seed) % 2 == 1),
        DataType::Fp16 | DataType::Bf16 | DataType::Fp32 | DataType::Fp64 => {
            Element::Float((next(seed) >> 11) as f64 / (1_u64 << 53) as f64)
        }
        DataType::Bytes => Element::Bytes(format!("text {}", next(seed) % INTEGERS).into_bytes()),
        _ => Element::Integer((next(seed) % INTEGERS).into()),
    };
    let elements: Vec<_> = (0..count).map(element).collect();
    Tensor::new(&input.name, input.data_type, shape, &elements)
}

/// The next number of a sequence that a seed decides (splitmix64).
fn next(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*seed ^ (*seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn sample<'a>(metadata: &'a Value, inputs: &'a [String], shapes: &'a [String], seed: u64) -> Sample<'a> {
        Sample { model: "m", metadata, config: &Value::Null, inputs, shapes, seed }
    }

    fn texts<const N: usize>(texts: [&str; N]) -> [String; N] {
        texts.map(str::to_owned)
    }

    #[test]
    fn inputs_of_every_type_are_random_and_follow_from_the_seed() {
        for data_type in ["BOOL", "UINT8", "INT8", "UINT64", "INT64", "FP16", "BF16", "FP32", "FP64", "BYTES"]
        {
            let metadata = json!({"inputs": [{"name": "x", "datatype": data_type, "shape": [-1, 64]}]});
            let body = |seed| sample(&metadata, &[], &[], seed).body().unwrap();
            let (bytes, length) = body(1);
            assert_eq!(body(1), (bytes.clone(), length), "{data_type}");
            assert_ne!(body(2).0[length..], bytes[length..], "{data_type}");
            let head: Value = serde_json::from_slice(&bytes[..length]).unwrap();
            assert_eq!(head["inputs"][0]["shape"], json!([1, 64]), "{data_type}");
            assert_eq!(head["inputs"][0]["parameters"]["binary_data_size"], bytes.len() - length);
        }
    }

    #[test]
    fn inputs_may_be_given_and_shapes_named() {
        let metadata = json!({"inputs": [
            {"name": "x", "datatype": "FP32", "shape": [-1, -1]}, {"name": "y", "datatype": "INT32", "shape": [2]},
        ]});
        let describe = |inputs: &[String], shapes: &[String]| sample(&metadata, inputs, shapes, 0).describe();
        assert_eq!(describe(&[], &[]).unwrap(), "random x FP32 [1, 1], random y INT32 [2]");
        assert_eq!(
            describe(&texts(["y=1,2"]), &texts(["x=3,5"])).unwrap(),
            "y INT32 [2], random x FP32 [3, 5]"
        );
        for (inputs, shapes, reason) in [
            (&texts(["z=1"])[..], &[][..], "no input 'z'"),
            (&texts(["y=1,2,3"]), &[], "do not fit"),
            (&[], &texts(["z=1"]), "no input 'z'"),
            (&[], &texts(["x"]), "not INPUT=SIZE"),
            (&[], &texts(["x=1,b"]), "not INPUT=SIZE"),
            (&[], &texts(["y=3"]), "do not fit"),
            (&[], &texts(["x=1000000,1000000"]), "too many elements"),
            (&[], &texts(["x=10000000000,10000000000"]), "too many elements"),
        ] {
            let error = describe(inputs, shapes).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }
}

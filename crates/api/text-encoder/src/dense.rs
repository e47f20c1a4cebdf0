//! A dense layer behind the pooling, with weights in a file of safetensors.

use serde::Deserialize;

use crate::Folders;
use crate::weights::Weights;

/// The file with the weights, and the largest one, in bytes.
const WEIGHTS: &str = "model.safetensors";
const WEIGHTS_LIMIT: u64 = 512 << 20;

/// The older form of the weights, which is not read: it may contain code.
const PICKLE: &str = "pytorch_model.bin";

/// The default name of the input and the output of a layer.
const EMBEDDING: &str = "sentence_embedding";

/// A layer: a matrix, a bias, and a function of each number.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Dense {
    /// The rows of the matrix, one for each number of the result.
    weights: Vec<f32>,
    inputs: usize,
    bias: Option<Vec<f32>>,
    activation: Activation,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Activation {
    Identity,
    Relu,
    Sigmoid,
    Tanh,
}

impl Activation {
    const ALL: [(&str, Self); 4] = [
        ("Identity", Self::Identity),
        ("ReLU", Self::Relu),
        ("Sigmoid", Self::Sigmoid),
        ("Tanh", Self::Tanh),
    ];

    /// The function of this class of PyTorch.
    fn named(class: &str) -> Result<Self, String> {
        let name = class.rsplit('.').next().unwrap_or(class);
        let known = Self::ALL.into_iter().find(|(known, _)| *known == name);
        known.map(|(_, activation)| activation).ok_or_else(|| {
            let names = Self::ALL.map(|(name, _)| name).join(", ");
            format!("unknown activation function '{class}' (available: {names})")
        })
    }

    fn of(self, value: f32) -> f32 {
        match self {
            Self::Identity => value,
            Self::Relu => value.max(0.0),
            Self::Sigmoid => 1.0 / (1.0 + (-value).exp()),
            Self::Tanh => value.tanh(),
        }
    }
}

/// The settings of a layer.
#[derive(Deserialize)]
struct Config {
    in_features: usize,
    out_features: usize,
    bias: Option<bool>,
    activation_function: Option<String>,
    module_input_name: Option<String>,
    module_output_name: Option<String>,
    use_residual: Option<bool>,
}

impl Dense {
    /// Reads the layer in this folder.
    pub(crate) fn read(folders: &Folders, folder: &str) -> Result<Self, String> {
        let settings = format!("{folder}/config.json");
        let (path, config) =
            folders.json::<Config>(&settings)?.ok_or_else(|| format!("{settings} is missing"))?;
        let invalid = |error: String| format!("{}: {error}", path.display());
        for (field, name) in [
            ("module_input_name", &config.module_input_name),
            ("module_output_name", &config.module_output_name),
        ] {
            if let Some(name) = name.as_ref().filter(|name| *name != EMBEDDING) {
                return Err(invalid(format!("{field}: '{name}' is not supported (available: {EMBEDDING})")));
            }
        }
        if config.use_residual == Some(true) {
            return Err(invalid("use_residual is not supported".to_owned()));
        }
        // The package's own default.
        let activation =
            config.activation_function.as_deref().map_or(Ok(Activation::Tanh), Activation::named);
        let activation = activation.map_err(invalid)?;
        let name = format!("{folder}/{WEIGHTS}");
        let Some((path, contents)) = folders.find(&name, WEIGHTS_LIMIT)? else {
            let is_pickle = folders.find(&format!("{folder}/{PICKLE}"), WEIGHTS_LIMIT)?.is_some();
            let why = if is_pickle {
                format!(", and {PICKLE} is not read, because it may contain code")
            } else {
                String::new()
            };
            return Err(format!("{name} is missing{why}"));
        };
        let invalid = |error: String| format!("{}: {error}", path.display());
        let weights = Weights::read(&contents).map_err(invalid)?;
        let (inputs, outputs) = (config.in_features, config.out_features);
        let has_bias = config.bias.unwrap_or(true);
        let matrix = weights.values("linear.weight", &[outputs, inputs]).map_err(invalid)?;
        let bias =
            has_bias.then(|| weights.values("linear.bias", &[outputs])).transpose().map_err(invalid)?;
        Ok(Self { weights: matrix, inputs, bias, activation })
    }

    /// The layer's result.
    ///
    /// # Errors
    /// The vector has another length than the layer takes.
    pub(crate) fn apply(&self, vector: &[f32]) -> Result<Vec<f32>, String> {
        if vector.len() != self.inputs {
            return Err(format!(
                "the model's vectors have {} numbers, but the dense layer takes {}",
                vector.len(),
                self.inputs
            ));
        }
        let bias = self.bias.iter().flatten().copied().chain(std::iter::repeat(0.0));
        let rows = self.weights.chunks_exact(self.inputs.max(1));
        Ok(rows.zip(bias).map(|(row, bias)| self.activation.of(dot(row, vector) + bias)).collect())
    }
}

/// The sum of products, in several sums so that processors compute them at once.
fn dot(left: &[f32], right: &[f32]) -> f32 {
    const LANES: usize = 16;
    let (lefts, left_rest) = left.as_chunks::<LANES>();
    let (rights, right_rest) = right.as_chunks::<LANES>();
    let mut sums = [0.0; LANES];
    for (left, right) in lefts.iter().zip(rights) {
        for (sum, (left, right)) in sums.iter_mut().zip(left.iter().zip(right)) {
            *sum += left * right;
        }
    }
    let rest: f32 = left_rest.iter().zip(right_rest).map(|(left, right)| left * right).sum();
    sums.iter().sum::<f32>() + rest
}

//! The inputs and outputs of a forest.

use nereid_backend_api::{DataType, Error, ModelConfig, Result};
use nereid_graph_executor::{Dims, Port, Signature};
use nereid_trees::{Task, shap};

use crate::options::Options;
use crate::precision::AnyForest;

const INPUT: &str = "input__0";
const OUTPUT: &str = "output__0";
const EXPLANATION: &str = "treeshap_output";

/// The contents of an output.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Results {
    /// The results of the link.
    Numbers,
    /// The probabilities of two classes, computed from the second.
    BothClasses,
    /// For each target, the number of the class with the highest score.
    Class,
    /// For each output, 1 if the probability of the second class exceeds this, or else 0.
    Above(f32),
    /// How much each feature moved the results.
    Explanation,
}

/// The types of a forest's tensors: single or double precision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Types {
    pub(crate) input: DataType,
    output: DataType,
    explanation: DataType,
}

impl Types {
    /// The configured types. Outputs without one have the input's.
    ///
    /// # Errors
    /// The configuration has another type.
    pub(crate) fn of(config: &ModelConfig) -> Result<Self> {
        let check = |role: &str, name: &str, data_type: Option<DataType>, default: DataType| match data_type {
            Some(data_type @ (DataType::Fp32 | DataType::Fp64)) => Ok(data_type),
            None => Ok(default),
            Some(other) => Err(Error::invalid_arg(format!(
                "{role} '{name}' is {other} in the configuration, but forests have TYPE_FP32 or TYPE_FP64"
            ))),
        };
        let input = config.input.iter().find(|input| input.name == INPUT);
        let input = input.and_then(|input| input.data_type().element_type());
        let input = check("input", INPUT, input, DataType::Fp32)?;
        let output = |name: &str| {
            let output = config.output.iter().find(|output| output.name == name);
            check("output", name, output.and_then(|output| output.data_type().element_type()), input)
        };
        Ok(Self { input, output: output(OUTPUT)?, explanation: output(EXPLANATION)? })
    }
}

/// The inputs and outputs of a forest.
pub(crate) struct Ports {
    pub(crate) signature: Signature,
    /// The contents of each output, in the signature's order.
    pub(crate) results: Vec<Results>,
}

impl Ports {
    /// # Errors
    /// The configuration does not fit the forest.
    pub(crate) fn new(
        forest: &AnyForest,
        options: &Options,
        types: Types,
        config: &ModelConfig,
    ) -> Result<Self> {
        let description = forest.description();
        let (features, outputs) = (description.features, description.outputs());
        let shapes = Shapes::of(config)?;
        let input = config.input.iter().find(|input| input.name == INPUT);
        let own = input.map(|input| shapes.of_row(&input.dims));
        check_width(INPUT, own, features as i64, "features")?;
        let port = |name: &str, data_type: DataType, dims: Option<&[i64]>, width: usize| {
            let row = dims.map_or_else(|| vec![width as i64], <[i64]>::to_vec);
            let row = row.into_iter().map(|dim| Some(if dim < 0 { width as i64 } else { dim }));
            let rows = (!shapes.is_one_row).then_some(None);
            let dims: Dims = rows.into_iter().chain(row).collect();
            Port { name: name.to_owned(), data_type, dims: Some(dims) }
        };
        let configured = |name: &str| {
            let output = config.output.iter().find(|output| output.name == name);
            output.map(|output| shapes.of_row(&output.dims))
        };
        let is_classifier = options.is_classifier.unwrap_or(description.task != Task::Numbers);
        let (results, width) = match (is_classifier, options.probabilities, outputs) {
            (true, true, 1) if configured(OUTPUT).map(width_of) != Some(Some(1)) => (Results::BothClasses, 2),
            (true, false, _) if outputs == 1 || description.task == Task::Binary => {
                (Results::Above(options.threshold), outputs)
            }
            (true, false, _) => (Results::Class, description.targets.len()),
            _ => (Results::Numbers, outputs),
        };
        check_width(OUTPUT, configured(OUTPUT), width as i64, "results")?;
        let mut ports = vec![port(OUTPUT, types.output, configured(OUTPUT), width)];
        let mut all = vec![results];
        if let Some(dims) = configured(EXPLANATION) {
            check_explained(forest)?;
            let width = outputs.saturating_mul(features + 1);
            check_width(
                EXPLANATION,
                Some(dims),
                width as i64,
                "values: for each result, one for each feature and the mean",
            )?;
            ports.push(port(EXPLANATION, types.explanation, Some(dims), width));
            all.push(Results::Explanation);
        }
        let signature = Signature { inputs: vec![port(INPUT, types.input, own, features)], outputs: ports };
        Ok(Self { signature, results: all })
    }
}

/// The configuration's way to count rows.
struct Shapes {
    batching: bool,
    /// Without batching, an input with one dimension is one row.
    is_one_row: bool,
}

impl Shapes {
    fn of(config: &ModelConfig) -> Result<Self> {
        let batching = config.max_batch_size > 0;
        let input = config.input.iter().find(|input| input.name == INPUT);
        if let Some(reshaped) = config.input.iter().find(|input| input.reshape.is_some()) {
            return Err(Error::invalid_arg(format!(
                "input '{}' has a reshape, which forests do not take",
                reshaped.name
            )));
        }
        if let Some(reshaped) = config.output.iter().find(|output| output.reshape.is_some()) {
            return Err(Error::invalid_arg(format!(
                "output '{}' has a reshape, which forests do not take",
                reshaped.name
            )));
        }
        Ok(Self { batching, is_one_row: !batching && input.is_some_and(|input| input.dims.len() == 1) })
    }

    /// The dimensions of a row.
    fn of_row<'a>(&self, dims: &'a [i64]) -> &'a [i64] {
        if self.batching || self.is_one_row { dims } else { dims.get(1..).unwrap_or(dims) }
    }
}

/// The number of values of a row; `None` if the configuration leaves it open.
fn width_of(dims: &[i64]) -> Option<i64> {
    dims.iter().try_fold(1_i64, |width, &dim| if dim < 0 { None } else { width.checked_mul(dim) })
}

fn check_width(name: &str, dims: Option<&[i64]>, expected: i64, what: &str) -> Result<()> {
    let Some(dims) = dims else { return Ok(()) };
    let open = dims.iter().filter(|&&dim| dim < 0).count();
    match width_of(dims) {
        Some(width) if width == expected => Ok(()),
        // The only open dimension is filled in.
        None if open == 1 && dims.len() == 1 => Ok(()),
        _ => Err(Error::invalid_arg(format!(
            "'{name}' has dims {dims:?} for a row, but the model has {expected} {what}"
        ))),
    }
}

fn check_explained(forest: &AnyForest) -> Result<()> {
    if forest.needs_features() {
        return Err(Error::unsupported(format!(
            "output '{EXPLANATION}' explains trees whose leaves are numbers, but the model has linear ones (linear_tree)"
        )));
    }
    if !forest.has_covers() {
        return Err(Error::invalid_arg(format!(
            "output '{EXPLANATION}' needs the weights of the training data, which the model's file does not have"
        )));
    }
    if forest.depth() > shap::MAX_DEPTH {
        return Err(Error::unsupported(format!(
            "output '{EXPLANATION}' explains trees up to {} deep, but the model has one of {}",
            shap::MAX_DEPTH,
            forest.depth()
        )));
    }
    Ok(())
}

//! Conditions, maps, fallbacks and time limits of ensembles: directives among the keys of a step's `input_map`, and parameters of the
//! ensemble for what does not belong to one step.
//!
//! A server without this feature refuses a step with a directive, because the step's model has no input of that name.

mod constant;

use std::collections::BTreeMap;
use std::time::Duration;

pub use self::constant::Constant;
use crate::proto::ModelConfig;
use crate::proto::model_config::SchedulingChoice;
use crate::proto::model_ensembling::Step;

/// The step runs where this BOOL tensor is true.
pub(crate) const IF: &str = "$if";
/// The step runs where this BOOL tensor is false.
pub(crate) const UNLESS: &str = "$unless";
/// The step replaces the step that writes this tensor, if that one fails. Also prefix of the parameters with the value of
/// a tensor whose step failed.
pub(crate) const ON_ERROR: &str = "$on_error";
/// The step runs once for each element of the tensor. The input's name follows.
pub(crate) const EACH: &str = "$each:";
/// The step fails if it takes longer than this duration.
pub(crate) const TIMEOUT: &str = "$timeout";

/// Prefix of the parameters with the value of a tensor whose step did not run.
const IF_SKIPPED: &str = "$if_skipped:";
const ON_ERROR_OF: &str = "$on_error:";
const MAX_ELEMENTS: &str = "$each_max_elements";
const MAX_IN_FLIGHT: &str = "$each_max_in_flight";
/// The names of all parameters, for suggestions.
const PARAMETERS: [&str; 4] = [IF_SKIPPED, ON_ERROR_OF, MAX_ELEMENTS, MAX_IN_FLIGHT];

/// The limits of a step's time limit.
const MIN_TIMEOUT: Duration = Duration::from_micros(1);
const MAX_TIMEOUT: Duration = Duration::from_secs(86_400);

/// Elements that a step may be mapped over per request, unless configured.
const DEFAULT_MAX_ELEMENTS: usize = 16_384;
/// Elements of one mapped step and request that are executed at a time, unless configured.
const DEFAULT_MAX_IN_FLIGHT: usize = 64;

/// The conditions, maps and fallbacks of an ensemble.
#[derive(Debug, Clone, PartialEq)]
pub struct EnsembleRules<'a> {
    /// One for each step.
    pub steps: Vec<StepRules<'a>>,
    /// Values of tensors where the step that writes them did not run, by tensor.
    pub if_skipped: BTreeMap<&'a str, Filler<'a>>,
    /// Values of tensors whose step failed, by tensor.
    pub on_error: BTreeMap<&'a str, Filler<'a>>,
    /// Maximum number of elements that a step is mapped over, for each request.
    pub max_elements: usize,
    /// Maximum number of elements of one step and request in progress.
    pub max_in_flight: usize,
}

/// The directives of a step.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StepRules<'a> {
    /// The inputs of the step's model, without directives.
    pub inputs: Vec<StepInput<'a>>,
    /// The step runs where this tensor is true.
    pub run_if: Option<&'a str>,
    /// The step runs where this tensor is false.
    pub unless: Option<&'a str>,
    /// The step runs if the step that writes this tensor, under the same conditions, fails.
    pub on_error: Option<&'a str>,
    /// The time limit of the step, as written.
    pub timeout: Option<&'a str>,
}

/// An input of a step's model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepInput<'a> {
    /// The key in the step's `input_map`.
    pub key: &'a str,
    /// The name in the model.
    pub name: &'a str,
    /// The tensor of the ensemble.
    pub tensor: &'a str,
    /// Whether the step runs once for each element of the tensor.
    pub each: bool,
}

/// The value of a tensor that no step wrote.
#[derive(Debug, Clone, PartialEq)]
pub enum Filler<'a> {
    /// Another tensor.
    Tensor(&'a str),
    /// A constant, in JSON.
    Json(serde_json::Value),
}

impl<'a> StepRules<'a> {
    /// Reads the directives of a step.
    pub fn of(step: &'a Step) -> Self {
        let mut rules = Self::default();
        for (key, tensor) in &step.input_map {
            match key.as_str() {
                IF => rules.run_if = Some(tensor),
                UNLESS => rules.unless = Some(tensor),
                ON_ERROR => rules.on_error = Some(tensor),
                TIMEOUT => rules.timeout = Some(tensor),
                key => {
                    let each = key.strip_prefix(EACH);
                    let name = each.unwrap_or(key);
                    rules.inputs.push(StepInput { key, name, tensor, each: each.is_some() });
                }
            }
        }
        rules
    }

    /// The conditions: tensors, and what they have to be.
    pub fn conditions(&self) -> impl Iterator<Item = (&'a str, bool)> + use<'a> {
        let run_if = self.run_if.map(|tensor| (tensor, true));
        run_if.into_iter().chain(self.unless.map(|tensor| (tensor, false)))
    }

    /// Whether the step runs once for each element of a tensor.
    pub fn is_mapped(&self) -> bool {
        self.inputs.iter().any(|input| input.each)
    }

    /// The time limit of the step. `None` if it is missing or invalid.
    pub fn time_limit(&self) -> Option<Duration> {
        self.timeout.and_then(parse_duration)
    }

    fn has_directives(&self) -> bool {
        let has_conditions = self.conditions().next().is_some();
        has_conditions || self.on_error.is_some() || self.timeout.is_some() || self.is_mapped()
    }

    fn has_conditions_of(&self, other: &Self) -> bool {
        self.run_if == other.run_if && self.unless == other.unless
    }
}

/// An invalid parameter of an ensemble.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidParameter {
    /// The parameter's key.
    pub key: String,
    /// The reason, and the accepted values.
    pub reason: String,
}

impl<'a> EnsembleRules<'a> {
    /// Reads the rules of an ensemble; `None` for other models, and for ensembles that have none.
    ///
    /// # Errors
    /// Parameters that start with `$` and are invalid.
    pub fn of(config: &'a ModelConfig) -> Result<Option<Self>, Vec<InvalidParameter>> {
        let Some(SchedulingChoice::EnsembleScheduling(ensemble)) = &config.scheduling_choice else {
            return Ok(None);
        };
        let mut rules = Self {
            steps: ensemble.step.iter().map(StepRules::of).collect(),
            if_skipped: BTreeMap::new(),
            on_error: BTreeMap::new(),
            max_elements: DEFAULT_MAX_ELEMENTS,
            max_in_flight: DEFAULT_MAX_IN_FLIGHT,
        };
        let mut invalid = Vec::new();
        let mut is_used = rules.steps.iter().any(StepRules::has_directives);
        for (key, parameter) in config.parameters.iter().filter(|(key, _)| key.starts_with('$')) {
            is_used = true;
            let value = parameter.string_value.as_str();
            if let Some(tensor) = key.strip_prefix(IF_SKIPPED) {
                rules.if_skipped.insert(tensor, Filler::of(value));
            } else if let Some(tensor) = key.strip_prefix(ON_ERROR_OF) {
                rules.on_error.insert(tensor, Filler::of(value));
            } else {
                let limit = match key.as_str() {
                    MAX_ELEMENTS => &mut rules.max_elements,
                    MAX_IN_FLIGHT => &mut rules.max_in_flight,
                    _ => {
                        let reason = format!("is unknown (available: {})", PARAMETERS.join(", "));
                        invalid.push(InvalidParameter { key: key.clone(), reason });
                        continue;
                    }
                };
                match value.parse() {
                    Ok(most) if most > 0 => *limit = most,
                    _ => {
                        let reason = format!("is '{value}', must be a positive number");
                        invalid.push(InvalidParameter { key: key.clone(), reason });
                    }
                }
            }
        }
        if !invalid.is_empty() {
            return Err(invalid);
        }
        Ok(is_used.then_some(rules))
    }

    /// Whether a step may fail without the request.
    pub fn has_fallbacks(&self) -> bool {
        !self.on_error.is_empty() || self.steps.iter().any(|step| step.on_error.is_some())
    }

    /// The values of tensors that no step wrote.
    pub fn fillers(&self) -> impl Iterator<Item = &Filler<'a>> {
        self.if_skipped.values().chain(self.on_error.values())
    }

    /// The steps that write each tensor, without fallbacks.
    pub fn writers(&self, steps: &'a [Step]) -> BTreeMap<&'a str, Vec<usize>> {
        let mut writers: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (index, step) in
            steps.iter().enumerate().filter(|&(index, _)| self.steps[index].on_error.is_none())
        {
            step.output_map.values().for_each(|tensor| writers.entry(tensor).or_default().push(index));
        }
        writers
    }

    /// The step that a fallback replaces: it writes the tensor of `$on_error` under the same conditions.
    pub fn replaced_by(&self, writers: &BTreeMap<&str, Vec<usize>>, fallback: usize) -> Option<usize> {
        let rules = &self.steps[fallback];
        let of_tensor = writers.get(rules.on_error?)?;
        of_tensor.iter().copied().find(|&index| rules.has_conditions_of(&self.steps[index]))
    }
}

impl<'a> Filler<'a> {
    fn of(value: &'a str) -> Self {
        serde_json::from_str(value).map_or(Self::Tensor(value), Self::Json)
    }

    /// The tensor, unless it is a constant.
    pub fn tensor(&self) -> Option<&'a str> {
        match self {
            Self::Tensor(tensor) => Some(tensor),
            Self::Json(_) => None,
        }
    }
}

/// A positive number with a unit, such as `250ms`, `1.5s` or `2m`; up to a day.
fn parse_duration(text: &str) -> Option<Duration> {
    let unit = text.find(|letter: char| letter.is_ascii_alphabetic())?;
    let (number, unit) = text.split_at_checked(unit)?;
    let seconds = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        _ => return None,
    };
    let is_plain = number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let number: f64 = number.parse().ok().filter(|_| is_plain)?;
    let duration = Duration::try_from_secs_f64(number * seconds).ok()?;
    (MIN_TIMEOUT..=MAX_TIMEOUT).contains(&duration).then_some(duration)
}

#[cfg(test)]
mod tests;

//! Maps inputs to a model's arguments, and outputs to its results.
//!
//! TorchScript files name no outputs, and inputs only as the arguments of `forward`. Triton's rules: an input is
//! named like an argument, or ends in `__` and an argument's number, or else is matched by its position in the
//! configuration. A model with a dictionary as its only argument gets all inputs in it, by name. An output ends in
//! `__` and its number, or is named like its entry if the model returns a dictionary, or else is matched by its
//! position in the configuration. Packages of AOTInductor name all inputs and outputs; these names replace the
//! argument names.
//!
//! `torch_naming.py` implements the same rules for PyTorch's own Python. The tests run both on one table,
//! `tests/naming.json`.

use nereid_backend_api::{Error, Result};

/// An argument of a model's `forward`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Argument {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    /// Whether the argument lacks a default.
    pub(crate) is_required: bool,
    /// Whether the model may write to its tensor.
    pub(crate) is_written: bool,
}

/// The type of an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Tensor,
    /// A dictionary of tensors.
    TensorsByName,
    /// A string or a list of strings.
    Texts,
    /// A single number.
    Number,
    /// A type that a request cannot carry.
    Unknown,
}

/// How a model is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// The input for each argument, if any.
    Arguments(Vec<Option<usize>>),
    /// All inputs in one dictionary.
    Dictionary,
}

impl Call {
    /// The argument that an input is; `None` for a part of the dictionary.
    pub(crate) fn argument<'a>(&self, input: usize, arguments: &'a [Argument]) -> Option<&'a Argument> {
        match self {
            Self::Arguments(places) => {
                places.iter().position(|place| *place == Some(input)).map(|at| &arguments[at])
            }
            Self::Dictionary => None,
        }
    }

    /// Whether a request may leave out an input: its argument has a default, or the dictionary is without it.
    pub(crate) fn may_lack(&self, input: usize, arguments: &[Argument]) -> bool {
        self.argument(input, arguments).is_none_or(|argument| !argument.is_required)
    }
}

/// Maps these inputs, each with whether it holds strings, to a model's arguments.
///
/// # Errors
/// `InvalidArg`, which names the unmatched input or argument.
pub(crate) fn call(inputs: &[(&str, bool)], arguments: &[Argument]) -> Result<Call> {
    let names: Vec<_> = arguments.iter().map(|argument| format!("'{}'", argument.name)).collect();
    let listed = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    if let [argument] = arguments
        && argument.kind == Kind::TensorsByName
    {
        if let Some((name, _)) = inputs.iter().find(|(_, is_text)| *is_text) {
            return Err(Error::invalid_arg(format!(
                "input '{name}' holds strings, but the model takes a dictionary of tensors"
            )));
        }
        return Ok(Call::Dictionary);
    }
    let by_name = |name: &str| arguments.iter().position(|argument| argument.name == name);
    let by_number = |name: &str| number(name).filter(|&at| at < arguments.len());
    let is_named = inputs.iter().any(|(name, _)| by_name(name).or_else(|| by_number(name)).is_some());
    let mut places = vec![None; arguments.len()];
    for (index, &(name, is_text)) in inputs.iter().enumerate() {
        let found = if is_named {
            by_name(name).or_else(|| by_number(name))
        } else {
            Some(index).filter(|&at| at < arguments.len())
        };
        let Some(at) = found else {
            return Err(Error::invalid_arg(format!(
                "input '{name}' is not an argument of the model's forward (its arguments: {listed})"
            )));
        };
        let argument = &arguments[at];
        if let Some(other) = places[at].replace(index) {
            let (other, _) = inputs[other];
            let argument = &argument.name;
            return Err(Error::invalid_arg(format!(
                "inputs '{other}' and '{name}' are the same argument '{argument}' of the model"
            )));
        }
        let fits = match argument.kind {
            Kind::Tensor | Kind::Number => !is_text,
            Kind::Texts => is_text,
            Kind::TensorsByName | Kind::Unknown => false,
        };
        if !fits {
            let takes = match argument.kind {
                Kind::Tensor => "a tensor of numbers",
                Kind::Number => "a number",
                Kind::Texts => "strings",
                Kind::TensorsByName | Kind::Unknown => "what a request cannot carry",
            };
            return Err(Error::invalid_arg(format!(
                "input '{name}': the argument '{}' of the model takes {takes}",
                argument.name
            )));
        }
    }
    let left =
        arguments.iter().zip(&places).find(|(argument, place)| argument.is_required && place.is_none());
    if let Some((argument, _)) = left {
        return Err(Error::invalid_arg(format!("the model's argument '{}' has no input", argument.name)));
    }
    // Trailing defaults need not be passed.
    while places.last().is_some_and(Option::is_none) {
        places.pop();
    }
    Ok(Call::Arguments(places))
}

/// The position of each output among a model's unnamed results.
///
/// # Errors
/// Two outputs are the same result.
pub(crate) fn results(outputs: &[&str]) -> Result<Vec<usize>> {
    let numbers: Option<Vec<_>> = outputs.iter().map(|name| number(name)).collect();
    distinct(outputs, numbers.unwrap_or_else(|| (0..outputs.len()).collect()))
}

/// The position of each output among these results, by name or number; if no output matches, by its position.
///
/// # Errors
/// `InvalidArg`, which names an output that is none of the results, or two that are the same one.
pub(crate) fn named_results(outputs: &[&str], names: &[String]) -> Result<Vec<usize>> {
    let find = |name: &str| {
        names.iter().position(|known| known == name).or_else(|| number(name).filter(|&at| at < names.len()))
    };
    let is_named = outputs.iter().any(|name| find(name).is_some());
    let place = |(index, name): (usize, &&str)| {
        let found = if is_named { find(name) } else { Some(index).filter(|&at| at < names.len()) };
        found.ok_or_else(|| {
            let listed: Vec<_> = names.iter().map(|name| format!("'{name}'")).collect();
            let listed = if listed.is_empty() { "none".to_owned() } else { listed.join(", ") };
            Error::invalid_arg(format!("output '{name}' is not one of the model's results ({listed})"))
        })
    };
    distinct(outputs, outputs.iter().enumerate().map(place).collect::<Result<_>>()?)
}

/// The positions, if they are distinct.
fn distinct(outputs: &[&str], places: Vec<usize>) -> Result<Vec<usize>> {
    for (at, place) in places.iter().enumerate() {
        if let Some(other) = places[..at].iter().position(|other| other == place) {
            let (one, two) = (outputs[other], outputs[at]);
            return Err(Error::invalid_arg(format!(
                "outputs '{one}' and '{two}' are the same result of the model"
            )));
        }
    }
    Ok(places)
}

/// The number at the end of a name such as `INPUT__0`.
fn number(name: &str) -> Option<usize> {
    let (_, digits) = name.rsplit_once("__")?;
    digits.bytes().all(|digit| digit.is_ascii_digit()).then(|| digits.parse().ok())?
}

#[cfg(test)]
mod tests;

//! Maps inputs to a model's arguments, and outputs to its results.
//!
//! TorchScript files name no outputs, and inputs only as the arguments of `forward`. Triton's rules: an input is named like
//! an argument, or ends in `__` and the number of one, or else its place in the configuration counts. A model with one
//! dictionary as its argument gets all inputs in it, by their names. An output ends in `__` and its number, or is named
//! like its entry where the model returns a dictionary, or else its place in the configuration counts.

use nereid_backend_api::{Error, Result};

/// An argument of a model's `forward`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Argument {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    /// Whether it has no default.
    pub(crate) is_required: bool,
    /// Whether the model may write to its tensor.
    pub(crate) is_written: bool,
}

/// What an argument takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Tensor,
    /// A dictionary of tensors.
    TensorsByName,
    /// A string or a list of strings.
    Texts,
    /// A single number.
    Number,
    /// Something that a request cannot carry.
    Unknown,
}

/// How a model is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// For each argument, the input that it gets.
    Arguments(Vec<Option<usize>>),
    /// All inputs in one dictionary.
    Dictionary,
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
                "input '{name}' is no argument of the model's forward (its arguments: {listed})"
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
    let places = numbers.unwrap_or_else(|| (0..outputs.len()).collect());
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
mod tests {
    use super::*;

    fn argument(name: &str) -> Argument {
        let is_required = !name.ends_with('?');
        let (name, kind) = match name.trim_end_matches('?').split_once(':') {
            Some((name, "text")) => (name, Kind::Texts),
            Some((name, "number")) => (name, Kind::Number),
            Some((name, "dictionary")) => (name, Kind::TensorsByName),
            Some((name, _)) => (name, Kind::Unknown),
            None => (name.trim_end_matches('?'), Kind::Tensor),
        };
        Argument { name: name.to_owned(), kind, is_required, is_written: false }
    }

    fn called(inputs: &[&str], arguments: &[&str]) -> Result<Call> {
        let inputs: Vec<_> =
            inputs.iter().map(|name| (name.trim_end_matches('"'), name.ends_with('"'))).collect();
        call(&inputs, &arguments.iter().map(|name| argument(name)).collect::<Vec<_>>())
    }

    #[test]
    fn inputs_are_arguments_by_name_by_number_or_by_place() {
        for (inputs, arguments, expected) in [
            (&["x", "y"][..], &["x", "y"][..], &[Some(0), Some(1)][..]),
            (&["y", "x"], &["x", "y"], &[Some(1), Some(0)]),
            (&["INPUT__1", "INPUT__0"], &["x", "y"], &[Some(1), Some(0)]),
            (&["A__0", "y"], &["x", "y"], &[Some(0), Some(1)]),
            (&["first", "second"], &["x", "y"], &[Some(0), Some(1)]),
            (&["x"], &["x", "y?"], &[Some(0)]),
            (&["y"], &["x?", "y"], &[None, Some(0)]),
            (&["words\"", "x"], &["x", "words:text"], &[Some(1), Some(0)]),
            (&["x", "rate"], &["x", "rate:number"], &[Some(0), Some(1)]),
            (&[], &["x?"], &[]),
        ] {
            let expected = Call::Arguments(expected.to_vec());
            assert_eq!(called(inputs, arguments), Ok(expected), "{inputs:?} {arguments:?}");
        }
        assert_eq!(called(&["a", "b", "c"], &["tensors:dictionary"]), Ok(Call::Dictionary));
    }

    #[test]
    fn what_does_not_fit_is_named() {
        for (inputs, arguments, message) in [
            (
                &["z", "x"][..],
                &["x", "y"][..],
                "input 'z' is no argument of the model's forward (its arguments: 'x', 'y')",
            ),
            (&["a", "b"], &["x"], "input 'b' is no argument of the model's forward (its arguments: 'x')"),
            (&["a"], &[], "input 'a' is no argument of the model's forward (its arguments: none)"),
            (&["x", "IN__0"], &["x", "y"], "inputs 'x' and 'IN__0' are the same argument 'x' of the model"),
            (&["x"], &["x", "y"], "the model's argument 'y' has no input"),
            (&["x\""], &["x"], "input 'x': the argument 'x' of the model takes a tensor of numbers"),
            (&["x"], &["x:text"], "input 'x': the argument 'x' of the model takes strings"),
            (
                &["x"],
                &["x:other"],
                "input 'x': the argument 'x' of the model takes what a request cannot carry",
            ),
            (
                &["a\""],
                &["d:dictionary"],
                "input 'a' holds strings, but the model takes a dictionary of tensors",
            ),
        ] {
            assert_eq!(called(inputs, arguments).unwrap_err().message(), message);
        }
    }

    #[test]
    fn outputs_are_results_by_number_or_by_place() {
        for (outputs, expected) in [
            (&["OUTPUT__0", "OUTPUT__1"][..], &[0, 1][..]),
            (&["OUTPUT__1", "OTHER__0"], &[1, 0]),
            (&["OUTPUT__2"], &[2]),
            (&["b", "a"], &[0, 1]),
            (&["b__1", "a"], &[0, 1]),
            (&["a__x", "b__"], &[0, 1]),
        ] {
            assert_eq!(results(outputs).unwrap(), expected, "{outputs:?}");
        }
        let error = results(&["A__1", "B__1"]).unwrap_err();
        assert_eq!(error.message(), "outputs 'A__1' and 'B__1' are the same result of the model");
    }
}

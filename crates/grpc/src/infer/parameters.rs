//! Parameters: what the wire carries, and what the server makes of it.

use std::collections::BTreeMap;

use nereid_core::backend_api::{Error, ParameterValue, Parameters, Result};

use crate::proto::InferParameter;
pub(super) use crate::proto::infer_parameter::ParameterChoice as Choice;

/// The value that was given.
///
/// # Errors
/// `InvalidArg` if none was.
pub(super) fn choice(name: &str, parameter: InferParameter) -> Result<Choice> {
    parameter.parameter_choice.ok_or_else(|| Error::invalid_arg(format!("parameter '{name}' has no value")))
}

/// The error for a value of another type than is wanted.
pub(super) fn wrong_type(name: &str, wanted: &str) -> Error {
    Error::invalid_arg(format!("parameter '{name}' has a value of another type than {wanted}"))
}

pub(super) fn boolean(name: &str, value: &Choice) -> Result<bool> {
    match value {
        Choice::BoolParam(value) => Ok(*value),
        _ => Err(wrong_type(name, "bool_param")),
    }
}

/// A whole number from 0 on, of either type.
pub(super) fn count(name: &str, value: &Choice) -> Result<u64> {
    match value {
        Choice::Uint64Param(value) => Ok(*value),
        Choice::Int64Param(_) => count_of_int64(name, value),
        _ => Err(wrong_type(name, "int64_param or uint64_param")),
    }
}

/// A whole number from 0 on, in the type with a sign.
pub(super) fn count_of_int64(name: &str, value: &Choice) -> Result<u64> {
    match value {
        Choice::Int64Param(value) => u64::try_from(*value).map_err(|_| {
            Error::invalid_arg(format!("parameter '{name}' is {value}, but takes a whole number from 0 on"))
        }),
        _ => Err(wrong_type(name, "int64_param")),
    }
}

/// A parameter that means something to the model alone.
pub(super) fn value(name: &str, value: Choice) -> Result<ParameterValue> {
    Ok(match value {
        Choice::BoolParam(value) => ParameterValue::Bool(value),
        Choice::Int64Param(value) => ParameterValue::Int(value),
        Choice::StringParam(value) => ParameterValue::String(value.into()),
        Choice::DoubleParam(value) => ParameterValue::Double(value),
        // The reference's rule: models know no such type.
        Choice::Uint64Param(_) => {
            return Err(wrong_type(name, "bool_param, int64_param, string_param and double_param"));
        }
    })
}

/// A response's parameters, as the wire carries them.
pub(super) fn to_wire(parameters: &Parameters) -> BTreeMap<String, InferParameter> {
    let wire = |value: &ParameterValue| match value {
        ParameterValue::Bool(value) => Choice::BoolParam(*value),
        ParameterValue::Int(value) => Choice::Int64Param(*value),
        ParameterValue::Double(value) => Choice::DoubleParam(*value),
        ParameterValue::String(value) => Choice::StringParam(value.clone().into_owned()),
    };
    parameters
        .iter()
        .map(|(name, value)| (name.to_owned(), InferParameter { parameter_choice: Some(wire(value)) }))
        .collect()
}

//! Parameters as the wire carries them.

use nereid_core::backend_api::{Error, ParameterValue, Result};
use nereid_protocol::parameters::{SequenceId, WireValue};

use crate::proto::InferParameter;
pub(super) use crate::proto::infer_parameter::ParameterChoice as Choice;

/// The value.
///
/// # Errors
/// `InvalidArg` if the parameter has no value.
pub(super) fn choice(name: &str, parameter: InferParameter) -> Result<Choice> {
    parameter.parameter_choice.ok_or_else(|| Error::invalid_arg(format!("parameter '{name}' has no value")))
}

/// The error for a value of the wrong type.
pub(super) fn wrong_type(name: &str, wanted: &str) -> Error {
    Error::invalid_arg(format!("parameter '{name}' has the wrong type; expected {wanted}"))
}

impl WireValue for Choice {
    fn boolean(self, name: &str) -> Result<bool> {
        match self {
            Self::BoolParam(value) => Ok(value),
            _ => Err(wrong_type(name, "bool_param")),
        }
    }

    fn count(self, name: &str) -> Result<u64> {
        match self {
            Self::Uint64Param(value) => Ok(value),
            Self::Int64Param(_) => count_of_int64(name, &self),
            _ => Err(wrong_type(name, "int64_param or uint64_param")),
        }
    }

    /// Negative values mean no timeout, too: the reference converts them to hundreds of thousands of years.
    fn micros(self, name: &str) -> Result<u64> {
        match self {
            Self::Int64Param(micros) => Ok(u64::try_from(micros).unwrap_or(0)),
            _ => Err(wrong_type(name, "int64_param")),
        }
    }

    fn sequence_id(self, name: &str) -> Result<SequenceId> {
        match self {
            // Reinterprets the bits: clients send ids above `i64::MAX` as negative numbers.
            Self::Int64Param(number) => Ok(SequenceId::Number(number.cast_unsigned())),
            Self::StringParam(text) => Ok(SequenceId::Text(text)),
            _ => Err(wrong_type(name, "int64_param or string_param")),
        }
    }

    fn custom(self, name: &str) -> Result<ParameterValue> {
        Ok(match self {
            Self::BoolParam(value) => ParameterValue::Bool(value),
            Self::Int64Param(value) => ParameterValue::Int(value),
            Self::StringParam(value) => ParameterValue::String(value.into()),
            Self::DoubleParam(value) => ParameterValue::Double(value),
            // The reference's rule: models have no parameters of this type.
            Self::Uint64Param(_) => {
                return Err(wrong_type(name, "bool_param, int64_param, string_param or double_param"));
            }
        })
    }
}

/// A non-negative integer in the signed type.
pub(super) fn count_of_int64(name: &str, value: &Choice) -> Result<u64> {
    match value {
        Choice::Int64Param(value) => u64::try_from(*value).map_err(|_| {
            Error::invalid_arg(format!("parameter '{name}' is {value}; expected a non-negative integer"))
        }),
        _ => Err(wrong_type(name, "int64_param")),
    }
}

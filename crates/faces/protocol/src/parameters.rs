//! The meaning of a request's parameters, by their names.

use std::collections::HashSet;
use std::time::Duration;

use nereid_backend_api::{
    CorrelationId, DataType, Error, InferRequest, ParameterValue, RequestedOutput, Result,
};

/// The longest id of a sequence, in bytes, as in the reference.
const MAX_SEQUENCE_ID: usize = 128;

/// Up to this many requested outputs are compared pairwise; more go through a set.
const FEW_OUTPUTS: usize = 16;

/// Tensors read of a request beyond those of its model, so that the refusal can name the wrong ones.
const SPARE_TENSORS: usize = 64;

/// Begins the names of parameters that clients cannot set.
const RESERVED_PREFIX: &str = "triton_";

/// Whether outputs over HTTP are binary, unless an output overrides it.
pub const BINARY_DATA_OUTPUT: &str = "binary_data_output";
/// Whether an output over HTTP is wanted in binary form.
pub const BINARY_DATA: &str = "binary_data";
/// The length of an input's binary data over HTTP.
pub const BINARY_DATA_SIZE: &str = "binary_data_size";
/// Number of top classes to return in place of the output.
pub const CLASSIFICATION: &str = "classification";
/// The shared memory region of an input or an output.
pub const SHARED_MEMORY_REGION: &str = "shared_memory_region";
/// Offset of the tensor in the region.
pub const SHARED_MEMORY_OFFSET: &str = "shared_memory_offset";
/// Size of the tensor in the region.
pub const SHARED_MEMORY_BYTE_SIZE: &str = "shared_memory_byte_size";

/// Names that headers cannot set as parameters.
const NOT_FORWARDED: [&str; 7] =
    ["sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers", BINARY_DATA_OUTPUT];

/// The value of a parameter, as a face's wire carries it. Reading fails with the face's own error for a value of another
/// type.
pub trait WireValue: Sized {
    /// The value as a boolean.
    ///
    /// # Errors
    /// The value has another type.
    fn boolean(self, name: &str) -> Result<bool>;

    /// The value as a non-negative integer.
    ///
    /// # Errors
    /// The value has another type, or is negative.
    fn count(self, name: &str) -> Result<u64>;

    /// The value as a time in microseconds; 0 for none.
    ///
    /// # Errors
    /// The value has another type.
    fn micros(self, name: &str) -> Result<u64> {
        self.count(name)
    }

    /// The value as a sequence id; 0 and the empty string mean none.
    ///
    /// # Errors
    /// The value has another type.
    fn sequence_id(self, name: &str) -> Result<SequenceId>;

    /// The value as a parameter for the model.
    ///
    /// # Errors
    /// Models have no parameters of this type.
    fn custom(self, name: &str) -> Result<ParameterValue>;
}

/// A sequence id as sent by clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SequenceId {
    /// A number.
    Number(u64),
    /// A text.
    Text(String),
}

/// Sets a parameter of a request: a reserved one, or one for the model.
///
/// # Errors
/// The name is reserved, or the value is of another type.
pub fn set_parameter<V: WireValue>(
    request: &mut InferRequest,
    name: impl AsRef<str> + Into<String>,
    value: V,
) -> Result<()> {
    let known = name.as_ref();
    match known {
        "sequence_id" => {
            request.correlation_id = match value.sequence_id(known)? {
                SequenceId::Number(0) => CorrelationId::None,
                SequenceId::Number(number) => CorrelationId::Number(number),
                SequenceId::Text(text) if text.is_empty() => CorrelationId::None,
                SequenceId::Text(text) if text.len() > MAX_SEQUENCE_ID => {
                    return Err(Error::unsupported(format!(
                        "the correlation ID has {} bytes; '{known}' may have up to {MAX_SEQUENCE_ID}",
                        text.len()
                    )));
                }
                SequenceId::Text(text) => CorrelationId::Text(text),
            };
        }
        "sequence_start" => request.sequence.start = value.boolean(known)?,
        "sequence_end" => request.sequence.end = value.boolean(known)?,
        "priority" => request.priority = value.count(known)?,
        "timeout" => {
            let timeout = Duration::from_micros(value.micros(known)?);
            request.timeout = (!timeout.is_zero()).then_some(timeout);
        }
        _ if known.starts_with(RESERVED_PREFIX) => {
            return Err(Error::invalid_arg(format!(
                "parameter '{known}': names that begin with '{RESERVED_PREFIX}' are reserved"
            )));
        }
        _ => {
            let value = value.custom(known)?;
            let name: String = name.into();
            request.parameters.set(name, value);
        }
    }
    Ok(())
}

/// Checks, before one more tensor is read, that a request has not far more than the model knows. It would be refused
/// anyway, but each takes more memory than it has bytes in the request.
///
/// # Errors
/// `InvalidArg` for too many.
pub fn check_count(what: &str, given: usize, known: usize) -> Result<()> {
    if given < known.saturating_add(SPARE_TENSORS) {
        return Ok(());
    }
    Err(Error::invalid_arg(format!("the request has more than {given} {what}, but its model has {known}")))
}

/// Checks that no output is requested twice.
///
/// # Errors
/// `InvalidArg` names a duplicate.
pub fn check_requested(outputs: &[RequestedOutput]) -> Result<()> {
    let twice = if outputs.len() <= FEW_OUTPUTS {
        let mut each = outputs.iter().enumerate();
        each.find(|(index, output)| outputs[..*index].iter().any(|other| other.name == output.name))
            .map(|(_, output)| output)
    } else {
        let mut names = HashSet::with_capacity(outputs.len());
        outputs.iter().find(|output| !names.insert(output.name.as_str()))
    };
    match twice {
        None => Ok(()),
        Some(output) => {
            Err(Error::invalid_arg(format!("output '{}' is requested more than once", output.name)))
        }
    }
}

/// Whether a header of this name cannot be forwarded as a parameter.
pub(crate) fn is_reserved(name: &str) -> bool {
    NOT_FORWARDED.contains(&name) || name.starts_with(RESERVED_PREFIX)
}

/// The error for an input or output of an unknown data type.
pub fn unknown_data_type(input: &str, data_type: &str) -> Error {
    let meant = meant_data_type(data_type);
    let hint = meant.map_or_else(String::new, |meant| format!("; did you mean '{meant}'?"));
    Error::invalid_arg(format!("input '{input}': unknown datatype '{data_type}'{hint}"))
}

/// The data type probably meant by a name from another library or a configuration, or in another case.
fn meant_data_type(name: &str) -> Option<&'static str> {
    let upper = name.trim().to_ascii_uppercase();
    let bare =
        ["TYPE_", "NP.", "NUMPY.", "TORCH.", "TF."].iter().find_map(|prefix| upper.strip_prefix(prefix));
    let bare = bare.unwrap_or(&upper);
    let same = DataType::ALL.iter().map(|data_type| data_type.protocol_name()).find(|known| *known == bare);
    same.or(match bare {
        "FLOAT" | "FLOAT32" | "F32" | "SINGLE" => Some("FP32"),
        "DOUBLE" | "FLOAT64" | "F64" => Some("FP64"),
        "HALF" | "FLOAT16" | "F16" => Some("FP16"),
        "BFLOAT16" | "BFLOAT" => Some("BF16"),
        "INT" | "LONG" | "I64" => Some("INT64"),
        "I32" => Some("INT32"),
        "U8" | "UCHAR" | "BYTE" => Some("UINT8"),
        "BOOLEAN" => Some("BOOL"),
        "STR" | "STRING" | "OBJECT" => Some("BYTES"),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use nereid_backend_api::ErrorCode;

    use super::*;

    /// A value of any type, read without checks.
    struct Any(u64);

    impl WireValue for Any {
        fn boolean(self, _: &str) -> Result<bool> {
            Ok(self.0 > 0)
        }

        fn count(self, _: &str) -> Result<u64> {
            Ok(self.0)
        }

        fn sequence_id(self, _: &str) -> Result<SequenceId> {
            Ok(if self.0 < 10 { SequenceId::Number(self.0) } else { SequenceId::Text("ten".into()) })
        }

        fn custom(self, _: &str) -> Result<ParameterValue> {
            Ok(ParameterValue::Bool(true))
        }
    }

    fn with(name: &str, value: u64) -> InferRequest {
        let mut request = InferRequest::default();
        set_parameter(&mut request, name, Any(value)).unwrap();
        request
    }

    #[test]
    fn known_names_set_fields_of_the_request() {
        assert_eq!(with("sequence_id", 7).correlation_id, CorrelationId::Number(7));
        assert_eq!(with("sequence_id", 10).correlation_id, CorrelationId::Text("ten".into()));
        assert_eq!(with("sequence_id", 0).correlation_id, CorrelationId::None);
        assert!(with("sequence_start", 1).sequence.start);
        assert!(with("sequence_end", 1).sequence.end);
        assert_eq!(with("priority", 2).priority, 2);
        assert_eq!(with("timeout", 5).timeout, Some(Duration::from_micros(5)));
        assert_eq!(with("timeout", 0).timeout, None);
        assert!(with("priority", 2).parameters.is_empty());
    }

    #[test]
    fn a_sequence_id_has_up_to_128_bytes() {
        struct Id(&'static str, usize);
        impl WireValue for Id {
            fn boolean(self, _: &str) -> Result<bool> {
                Err(Error::internal("not a boolean"))
            }

            fn count(self, _: &str) -> Result<u64> {
                Err(Error::internal("not a number"))
            }

            fn sequence_id(self, _: &str) -> Result<SequenceId> {
                Ok(SequenceId::Text(self.0.repeat(self.1)))
            }

            fn custom(self, _: &str) -> Result<ParameterValue> {
                Ok(ParameterValue::Bool(true))
            }
        }
        for (letter, count, fits) in [
            ("a", 1, true),
            ("a", 128, true),
            ("a", 129, false),
            ("é", 64, true),
            ("é", 65, false),
            ("a", 1 << 20, false),
        ] {
            let outcome = set_parameter(&mut InferRequest::default(), "sequence_id", Id(letter, count));
            assert_eq!(
                outcome.as_ref().map_err(Error::code).err(),
                (!fits).then_some(ErrorCode::Unsupported)
            );
            assert!(outcome.err().is_none_or(|error| error.message().contains("correlation ID")));
        }
    }

    #[test]
    fn far_more_tensors_than_the_model_has_are_refused() {
        for known in [0, 1, 1000] {
            for (more, fits) in
                [(0, true), (SPARE_TENSORS - 1, true), (SPARE_TENSORS, false), (1 << 20, false)]
            {
                assert_eq!(check_count("inputs", known + more, known).is_ok(), fits, "{known} and {more}");
            }
        }
    }

    #[test]
    fn duplicate_output_is_found_at_any_position() {
        for count in [2, 3, FEW_OUTPUTS, FEW_OUTPUTS + 1, 5000] {
            let mut outputs: Vec<_> = (0..count)
                .map(|index| RequestedOutput { name: format!("o{index}"), ..RequestedOutput::default() })
                .collect();
            assert_eq!(check_requested(&outputs), Ok(()), "{count}");
            for (first, second) in [(0, 1), (0, count - 1), (count - 2, count - 1)] {
                let name = std::mem::replace(&mut outputs[second].name, format!("o{first}"));
                let error = check_requested(&outputs).unwrap_err();
                assert!(error.message().contains(&format!("'o{first}'")), "{error}");
                outputs[second].name = name;
            }
        }
        assert_eq!(check_requested(&[]), Ok(()));
    }

    #[test]
    fn unreserved_names_are_model_parameters() {
        assert_eq!(with("temperature", 1).parameters.get("temperature"), Some(&ParameterValue::Bool(true)));
        let error = set_parameter(&mut InferRequest::default(), "triton_x", Any(1)).unwrap_err();
        assert!(error.message().contains("'triton_x'"), "{error}");
    }

    #[test]
    fn refusal_suggests_the_data_type_for_foreign_names() {
        for (given, meant) in [
            ("float32", "FP32"),
            ("fp32", "FP32"),
            ("TYPE_FP64", "FP64"),
            ("np.float16", "FP16"),
            ("torch.bfloat16", "BF16"),
            ("double", "FP64"),
            ("int64", "INT64"),
            ("uint8", "UINT8"),
            ("bool", "BOOL"),
            ("TYPE_STRING", "BYTES"),
            ("str", "BYTES"),
        ] {
            let error = unknown_data_type("x", given);
            assert!(error.message().ends_with(&format!("did you mean '{meant}'?")), "{error}");
        }
        for data_type in DataType::ALL {
            assert_eq!(
                meant_data_type(&data_type.protocol_name().to_lowercase()),
                Some(data_type.protocol_name())
            );
        }
        for given in ["", "FP33", "TYPE_", "complex64"] {
            assert!(!unknown_data_type("x", given).message().contains("did you mean"), "{given}");
        }
    }
}

//! Which requests a sequence batcher accepts.

use nereid_backend_api::{CorrelationId, DataType, Error, InferRequest, ModelConfig, Result};
use nereid_model_config::proto::model_config::SchedulingChoice;
use nereid_model_config::proto::model_sequence_batching::control::Kind;

/// The checks of one model.
pub struct SequenceChecks {
    /// The input that the sequence's id is given as, and its type.
    id: Option<(String, DataType)>,
    /// Whether a request may belong to no sequence: it is one of its own.
    iterates: bool,
}

impl SequenceChecks {
    /// The checks of a checked configuration; `None` without sequences.
    pub fn new(config: &ModelConfig) -> Option<Self> {
        let Some(SchedulingChoice::SequenceBatching(batching)) = &config.scheduling_choice else {
            return None;
        };
        let controls = batching.control_input.iter();
        let mut controls =
            controls.flat_map(|input| input.control.iter().map(|control| (&input.name, control)));
        let id = controls.find(|(_, control)| control.kind() == Kind::ControlSequenceCorrid);
        let id = id.and_then(|(name, control)| Some((name.clone(), control.data_type().element_type()?)));
        Some(Self { id, iterates: batching.iterative_sequence })
    }

    /// Checks a request of this batch size to the named model.
    ///
    /// # Errors
    /// `InvalidArg` for a request of several items, without an id, or with one that the model does not take.
    pub fn check(&self, request: &InferRequest, batch_size: usize, model: &str) -> Result<()> {
        if batch_size > 1 {
            return Err(Error::invalid_arg(format!(
                "model '{model}' uses sequence batching: each request must have batch size 1, not {batch_size}"
            )));
        }
        let text = match request.correlation_id {
            CorrelationId::None if !self.iterates => {
                return Err(Error::invalid_arg(format!(
                    "model '{model}' uses sequence batching: each request must specify a non-zero or non-empty \
                     correlation ID (sequence_id)"
                )));
            }
            CorrelationId::None | CorrelationId::Number(_) => false,
            CorrelationId::Text(_) => true,
        };
        match &self.id {
            Some((input, data_type)) if text != (*data_type == DataType::Bytes) => {
                Err(Error::invalid_arg(format!(
                    "model '{model}': the correlation ID (sequence_id) must be {}, since the model reads it as input '{input}' of type \
                 {data_type}",
                    if text { "a number" } else { "text" }
                )))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(config: &str, id: CorrelationId, batch_size: usize) -> std::result::Result<(), String> {
        let config = nereid_model_config::parse_text(config).unwrap();
        let request = InferRequest { correlation_id: id, ..InferRequest::default() };
        let checks = SequenceChecks::new(&config).expect("it takes sequences");
        checks.check(&request, batch_size, "m").map_err(|error| error.message().to_owned())
    }

    fn with_id(data_type: &str) -> String {
        let control = format!("control {{ kind: CONTROL_SEQUENCE_CORRID data_type: {data_type} }}");
        format!("sequence_batching {{ control_input {{ name: 'C' {control} }} }}")
    }

    #[test]
    fn a_request_needs_an_id_of_the_type_that_the_model_takes() {
        let (one, text) = (CorrelationId::Number(1), CorrelationId::Text("a".into()));
        assert_eq!(checked(&with_id("TYPE_UINT64"), one.clone(), 1), Ok(()));
        assert_eq!(checked(&with_id("TYPE_STRING"), text.clone(), 1), Ok(()));
        assert_eq!(checked("sequence_batching { }", text.clone(), 1), Ok(()));
        assert!(checked(&with_id("TYPE_INT32"), text, 1).unwrap_err().contains("must be a number"));
        assert!(checked(&with_id("TYPE_STRING"), one, 1).unwrap_err().contains("must be text"));
        let none = checked("sequence_batching { }", CorrelationId::None, 1);
        assert!(none.unwrap_err().contains("must specify a non-zero or non-empty correlation ID"));
    }

    #[test]
    fn a_model_that_iterates_takes_requests_without_an_id_unless_it_wants_text() {
        assert_eq!(checked("sequence_batching { iterative_sequence: true }", CorrelationId::None, 1), Ok(()));
        let text = with_id("TYPE_STRING").replace("batching {", "batching { iterative_sequence: true");
        assert!(checked(&text, CorrelationId::None, 1).unwrap_err().contains("must be text"));
    }

    #[test]
    fn a_request_of_several_items_is_refused() {
        let error = checked("sequence_batching { }", CorrelationId::Number(1), 2).unwrap_err();
        assert_eq!(error, "model 'm' uses sequence batching: each request must have batch size 1, not 2");
    }

    #[test]
    fn a_model_without_sequences_has_no_checks() {
        let config = nereid_model_config::parse_text("dynamic_batching { }").unwrap();
        assert!(SequenceChecks::new(&config).is_none());
    }
}

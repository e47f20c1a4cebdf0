//! Properties of an inner request: ids, flags, priority, timeout and parameters.

use std::ffi::{CString, c_char};
use std::time::Duration;

use nereid_backend_api::{
    CorrelationId, Error, InferRequest, ModelConfig, ParameterValue, Parameters, SequenceFlags,
};
use nereid_model_config::proto::model_config::SchedulingChoice;
use triton_sys::*;

use crate::boundary::exports;
use crate::text::c_string;

/// The priority levels of the requested model: none unless it batches dynamically with priority levels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Levels {
    count: u64,
    default: u64,
}

impl Levels {
    /// The levels of a model.
    pub(super) fn of(config: &ModelConfig) -> Self {
        match &config.scheduling_choice {
            Some(SchedulingChoice::DynamicBatching(batching)) if batching.priority_levels > 0 => {
                Self { count: batching.priority_levels, default: batching.default_priority_level }
            }
            _ => Self::default(),
        }
    }

    /// The level of a priority: the default if the model does not have it.
    fn level(self, priority: u64) -> u64 {
        if (1..=self.count).contains(&priority) { priority } else { self.default }
    }
}

/// The request's properties.
#[derive(Default)]
pub(super) struct Properties {
    id: CString,
    correlation_id: CorrelationId,
    correlation_text: CString,
    flags: u32,
    priority: u64,
    levels: Levels,
    timeout_us: u64,
    parameters: Parameters,
}

impl Properties {
    /// Properties of a request to a model with these levels.
    pub(super) fn new(levels: Levels) -> Self {
        Self { levels, priority: levels.level(0), ..Self::default() }
    }

    fn set_priority(&mut self, priority: u64) {
        self.priority = self.levels.level(priority);
    }

    /// A request with these properties, without a model and tensors.
    pub(super) fn to_request(&self) -> InferRequest {
        InferRequest {
            id: self.id.to_string_lossy().into_owned(),
            parameters: self.parameters.clone(),
            correlation_id: self.correlation_id.clone(),
            sequence: SequenceFlags {
                start: self.flags & TRITONSERVER_REQUEST_FLAG_SEQUENCE_START.0 != 0,
                end: self.flags & TRITONSERVER_REQUEST_FLAG_SEQUENCE_END.0 != 0,
            },
            priority: self.priority,
            timeout: (self.timeout_us > 0).then(|| Duration::from_micros(self.timeout_us)),
            ..InferRequest::default()
        }
    }
}

exports! {
    fn TRITONSERVER_InferenceRequestId(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        id: *mut *const c_char,
    ) {
        id.set(inference_request.get()?.fields().properties.id.as_ptr())?;
    }

    fn TRITONSERVER_InferenceRequestSetId(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        id: *const c_char,
    ) {
        inference_request.get()?.fields().properties.id = c_string(&id.read()?);
    }

    fn TRITONSERVER_InferenceRequestFlags(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        flags: *mut u32,
    ) {
        flags.set(inference_request.get()?.fields().properties.flags)?;
    }

    fn TRITONSERVER_InferenceRequestSetFlags(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        flags: u32,
    ) {
        inference_request.get()?.fields().properties.flags = flags;
    }

    fn TRITONSERVER_InferenceRequestCorrelationId(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        correlation_id: *mut u64,
    ) {
        correlation_id.set(match inference_request.get()?.fields().properties.correlation_id {
            CorrelationId::None => 0,
            CorrelationId::Number(number) => number,
            CorrelationId::Text(_) => {
                return Err(Error::invalid_arg("the request's correlation id is a string, not a number"));
            }
        })?;
    }

    fn TRITONSERVER_InferenceRequestCorrelationIdString(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        correlation_id: *mut *const c_char,
    ) {
        let request = inference_request.get()?;
        let fields = request.fields();
        let properties = &fields.properties;
        match properties.correlation_id {
            CorrelationId::Text(_) => correlation_id.set(properties.correlation_text.as_ptr())?,
            CorrelationId::None | CorrelationId::Number(_) => {
                return Err(Error::invalid_arg("the request's correlation id is a number, not a string"));
            }
        }
    }

    fn TRITONSERVER_InferenceRequestSetCorrelationId(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        correlation_id: u64,
    ) {
        inference_request.get()?.fields().properties.correlation_id = match correlation_id {
            0 => CorrelationId::None,
            number => CorrelationId::Number(number),
        };
    }

    fn TRITONSERVER_InferenceRequestSetCorrelationIdString(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        correlation_id: *const c_char,
    ) {
        let (request, text) = (inference_request.get()?, correlation_id.read()?.into_owned());
        let mut fields = request.fields();
        let properties = &mut fields.properties;
        properties.correlation_text = c_string(&text);
        properties.correlation_id = if text.is_empty() { CorrelationId::None } else { CorrelationId::Text(text) };
    }

    fn TRITONSERVER_InferenceRequestPriority(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        priority: *mut u32,
    ) {
        let level = inference_request.get()?.fields().properties.priority;
        priority.set(u32::try_from(level).unwrap_or(u32::MAX))?;
    }

    fn TRITONSERVER_InferenceRequestPriorityUInt64(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        priority: *mut u64,
    ) {
        priority.set(inference_request.get()?.fields().properties.priority)?;
    }

    fn TRITONSERVER_InferenceRequestSetPriority(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        priority: u32,
    ) {
        inference_request.get()?.fields().properties.set_priority(priority.into());
    }

    fn TRITONSERVER_InferenceRequestSetPriorityUInt64(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        priority: u64,
    ) {
        inference_request.get()?.fields().properties.set_priority(priority);
    }

    fn TRITONSERVER_InferenceRequestTimeoutMicroseconds(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        timeout_us: *mut u64,
    ) {
        timeout_us.set(inference_request.get()?.fields().properties.timeout_us)?;
    }

    fn TRITONSERVER_InferenceRequestSetTimeoutMicroseconds(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        timeout_us: u64,
    ) {
        inference_request.get()?.fields().properties.timeout_us = timeout_us;
    }

    fn TRITONSERVER_InferenceRequestSetStringParameter(
        request: *mut TRITONSERVER_InferenceRequest,
        key: *const c_char,
        value: *const c_char,
    ) {
        let value = ParameterValue::String(value.read()?.into_owned().into());
        request.get()?.fields().properties.parameters.set(key.read()?.into_owned(), value);
    }

    fn TRITONSERVER_InferenceRequestSetIntParameter(
        request: *mut TRITONSERVER_InferenceRequest,
        key: *const c_char,
        value: i64,
    ) {
        request.get()?.fields().properties.parameters.set(key.read()?.into_owned(), ParameterValue::Int(value));
    }

    fn TRITONSERVER_InferenceRequestSetBoolParameter(
        request: *mut TRITONSERVER_InferenceRequest,
        key: *const c_char,
        value: bool,
    ) {
        request.get()?.fields().properties.parameters.set(key.read()?.into_owned(), ParameterValue::Bool(value));
    }

    fn TRITONSERVER_InferenceRequestSetDoubleParameter(
        request: *mut TRITONSERVER_InferenceRequest,
        key: *const c_char,
        value: f64,
    ) {
        request.get()?.fields().properties.parameters.set(key.read()?.into_owned(), ParameterValue::Double(value));
    }
}

#[cfg(test)]
mod tests {
    use nereid_model_config::parse_text;

    use super::*;

    #[test]
    fn unknown_priority_becomes_the_default() {
        let levels = "dynamic_batching { priority_levels: 10 default_priority_level: 4 }";
        for (config, given, expected) in [
            (levels, 1, 1),
            (levels, 10, 10),
            (levels, 0, 4),
            (levels, 11, 4),
            (levels, u64::MAX, 4),
            ("dynamic_batching { }", 3, 0),
            ("sequence_batching { }", 3, 0),
            ("", 3, 0),
        ] {
            let mut properties = Properties::new(Levels::of(&parse_text(config).unwrap()));
            assert_eq!(properties.priority, properties.levels.default, "{config}");
            properties.set_priority(given);
            assert_eq!(properties.to_request().priority, expected, "{config}: {given}");
        }
    }
}

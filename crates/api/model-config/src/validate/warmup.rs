//! The rules for the requests that run before a model is ready.

use std::collections::HashMap;

use super::Stage;
use super::report::Report;
use super::tensor::ANY_SIZE;
use crate::backend::ENSEMBLE_PLATFORM;
use crate::proto::model_warmup::Input;
use crate::proto::{DataType, ModelConfig, ModelInput, ModelWarmup};

/// Limit of requests per warm-up. The reference creates any number, in memory.
const MOST_REQUESTS: u32 = 65_536;

/// The element size in bytes that overflow checks assume for any type.
const LARGEST_ELEMENT: i64 = 8;

pub(super) fn check(config: &ModelConfig, stage: Stage, report: &mut Report) {
    if config.platform == ENSEMBLE_PLATFORM {
        if !config.model_warmup.is_empty() {
            report.add("model_warmup", "an ensemble cannot be warmed up; warm up its models instead");
        }
        return;
    }
    let inputs: HashMap<&str, &ModelInput> =
        config.input.iter().map(|input| (input.name.as_str(), input)).collect();
    for (index, warmup) in config.model_warmup.iter().enumerate() {
        let path = format!("model_warmup[{index}]");
        if warmup.batch_size == 0 {
            // Ignored, regardless of its contents.
            continue;
        }
        if warmup.batch_size > MOST_REQUESTS {
            let reason = format!("is {}, must be at most {MOST_REQUESTS}", warmup.batch_size);
            report.add(format!("{path}.batch_size"), reason);
        }
        for (name, input) in &warmup.inputs {
            let path = format!("{path}.inputs[{name:?}]");
            check_input(&path, input, report);
            // Names other than the model's inputs may be controls or states: they go to the backend unchanged.
            if let Some(expected) = inputs.get(name.as_str()).filter(|_| stage == Stage::Final) {
                check_against(&path, input, expected, report);
            }
        }
        if stage == Stage::Final {
            check_all_given(config, &path, warmup, report);
        }
    }
}

fn check_input(path: &str, input: &Input, report: &mut Report) {
    if input.input_data_type.is_none() {
        report.add(path, "needs zero_data, random_data or input_data_file");
    }
    let mut bytes = Some(LARGEST_ELEMENT);
    for (position, &dim) in input.dims.iter().enumerate() {
        if dim < 0 {
            let field = format!("{path}.dims[{position}]");
            report.add(field, format!("is {dim}, must be a concrete size"));
            return;
        }
        bytes = bytes.and_then(|bytes| bytes.checked_mul(dim));
    }
    if bytes.is_none() {
        report.add(format!("{path}.dims"), format!("{:?} is too large", input.dims));
    }
}

fn check_against(path: &str, input: &Input, expected: &ModelInput, report: &mut Report) {
    if input.data_type != expected.data_type {
        let name = |number: i32| DataType::try_from(number).unwrap_or_default().as_str_name();
        let reason =
            format!("is {}, must be the input's type, {}", name(input.data_type), name(expected.data_type));
        report.add(format!("{path}.data_type"), reason);
    }
    let fits = input.dims.len() == expected.dims.len()
        && input.dims.iter().zip(&expected.dims).all(|(&dim, &expected)| {
            // Negative dimensions are reported already.
            dim < 0 || expected == ANY_SIZE || dim == expected
        });
    if !fits {
        let reason = format!("{:?} does not match the input's dims {:?}", input.dims, expected.dims);
        report.add(format!("{path}.dims"), reason);
    }
}

/// Checks that every required input is present.
fn check_all_given(config: &ModelConfig, path: &str, warmup: &ModelWarmup, report: &mut Report) {
    for input in &config.input {
        if !input.optional && !warmup.inputs.contains_key(&input.name) {
            let names = warmup.inputs.keys().map(String::as_str);
            let reason = format!("missing input '{}'", input.name);
            report.add_missing(format!("{path}.inputs"), reason, &input.name, names);
        }
    }
}

//! The rules for implicit state, kept between the requests of a sequence.

use std::collections::HashSet;

use super::report::Report;
use super::tensor::ANY_SIZE;
use crate::proto::model_sequence_batching::{InitialState, State};
use crate::proto::{DataType, ModelSequenceBatching};

pub(super) fn check(batching: &ModelSequenceBatching, report: &mut Report) {
    let mut inputs = HashSet::new();
    let mut outputs = HashSet::new();
    for (index, state) in batching.state.iter().enumerate() {
        let path = format!("sequence_batching.state[{index}]");
        let names = [
            ("input_name", &state.input_name, &mut inputs),
            ("output_name", &state.output_name, &mut outputs),
        ];
        for (field, name, seen) in names {
            if name.is_empty() {
                report.add(format!("{path}.{field}"), "is required");
            } else if !seen.insert(name.as_str()) {
                report
                    .add(format!("{path}.{field}"), format!("'{name}' is already the name of another state"));
            }
        }
        if state.data_type == DataType::TypeInvalid as i32 {
            report.add(format!("{path}.data_type"), "is required");
        }
        for (position, dim) in state.dims.iter().enumerate().filter(|&(_, &dim)| dim < ANY_SIZE) {
            let reason = format!("{dim} is not a dimension, must be at least 0, or -1 for any size");
            report.add(format!("{path}.dims[{position}]"), reason);
        }
        if state.initial_state.len() > 1 {
            let reason = format!("has {} entries, must have at most one", state.initial_state.len());
            report.add(format!("{path}.initial_state"), reason);
        }
        for (position, initial) in state.initial_state.iter().enumerate() {
            check_initial(&format!("{path}.initial_state[{position}]"), state, initial, report);
        }
    }
}

fn check_initial(path: &str, state: &State, initial: &InitialState, report: &mut Report) {
    let field = |name: &str| format!("{path}.{name}");
    if initial.name.is_empty() {
        report.add(field("name"), "is required");
    }
    if initial.data_type != state.data_type {
        let name = |number: i32| DataType::try_from(number).unwrap_or_default().as_str_name();
        let (given, expected) = (name(initial.data_type), name(state.data_type));
        report.add(field("data_type"), format!("is {given}, must be the state's type, {expected}"));
    }
    if initial.state_data.is_none() {
        report.add(path, "needs zero_data or data_file");
    }
    if initial.dims.len() != state.dims.len() {
        let reason = format!("{:?} and the state's {:?} differ in their number", initial.dims, state.dims);
        report.add(field("dims"), reason);
        return;
    }
    let mut elements = Some(1_i64);
    for (position, (&dim, &expected)) in initial.dims.iter().zip(&state.dims).enumerate() {
        let field = field(&format!("dims[{position}]"));
        if dim < 0 {
            report.add(field, format!("is {dim}, must be the size at the start of a sequence"));
        } else if expected != ANY_SIZE && dim != expected {
            report.add(field, format!("is {dim}, must be {expected} as in the state"));
        } else {
            elements = elements.and_then(|elements| elements.checked_mul(dim));
        }
    }
    if elements.is_none() {
        report.add(field("dims"), format!("{:?} has more elements than can be counted", initial.dims));
    }
}

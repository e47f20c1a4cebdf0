//! The rules for tensors that the server makes from a batch, and for outputs that it splits by special rules.

use std::collections::HashSet;

use super::Stage;
use super::report::Report;
use crate::proto::batch_input::Kind as BatchInputKind;
use crate::proto::batch_output::Kind as BatchOutputKind;
use crate::proto::{DataType, ModelConfig};

pub(super) fn check(config: &ModelConfig, stage: Stage, report: &mut Report) {
    let inputs: HashSet<&str> = config.input.iter().map(|input| input.name.as_str()).collect();
    let check_sources = |path: &str, kind: &str, sources: &[String], report: &mut Report| {
        let field = format!("{path}.source_input");
        if sources.len() != 1 {
            report.add(&*field, format!("names {} inputs, must name exactly one for {kind}", sources.len()));
        }
        for (index, source) in sources.iter().enumerate() {
            // Completion may still add the missing input.
            if stage == Stage::Final && !inputs.contains(source.as_str()) {
                let names = config.input.iter().map(|input| input.name.as_str());
                let reason = format!("the model has no input '{source}'");
                report.add_unknown(format!("{field}[{index}]"), reason, source, names);
            }
        }
    };
    for (index, batch_input) in config.batch_input.iter().enumerate() {
        let path = format!("batch_input[{index}]");
        if let Ok(kind) = BatchInputKind::try_from(batch_input.kind) {
            check_sources(&path, kind.as_str_name(), &batch_input.source_input, report);
        }
        if !matches!(DataType::try_from(batch_input.data_type), Ok(DataType::TypeInt32 | DataType::TypeFp32))
        {
            report.add(format!("{path}.data_type"), "must be TYPE_INT32 or TYPE_FP32");
        }
    }
    let outputs: HashSet<&str> = config.output.iter().map(|output| output.name.as_str()).collect();
    for (index, batch_output) in config.batch_output.iter().enumerate() {
        let path = format!("batch_output[{index}]");
        if let Ok(kind) = BatchOutputKind::try_from(batch_output.kind) {
            check_sources(&path, kind.as_str_name(), &batch_output.source_input, report);
        }
        let mut seen = HashSet::new();
        for (index, target) in batch_output.target_name.iter().enumerate() {
            let field = format!("{path}.target_name[{index}]");
            if !seen.insert(target) {
                report.add(field, format!("output '{target}' is named twice"));
            } else if stage == Stage::Final && !outputs.contains(target.as_str()) {
                let names = config.output.iter().map(|output| output.name.as_str());
                report.add_unknown(field, format!("the model has no output '{target}'"), target, names);
            }
        }
    }
}

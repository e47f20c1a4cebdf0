//! The rules for file names: none leads out of the model's folder. Their existence is not checked.

use std::path::{Component, Path};

use super::report::Report;
use crate::data_files;
use crate::proto::ModelConfig;

/// Whether a path stays below the folder that it is joined to: relative, without `..`, and not empty.
pub fn stays_in_folder(path: &Path) -> bool {
    let is_name = |part: &Component<'_>| matches!(part, Component::Normal(_));
    path.components().any(|part| is_name(&part))
        && path.components().all(|part| is_name(&part) || part == Component::CurDir)
}

pub(super) fn check(config: &ModelConfig, report: &mut Report) {
    check_name("default_model_filename", &config.default_model_filename, report);
    let mut by_capability: Vec<_> = config.cc_model_filenames.iter().collect();
    by_capability.sort();
    for (capability, name) in by_capability {
        check_name(&format!("cc_model_filenames[{capability:?}]"), name, report);
    }
    for (index, output) in config.output.iter().enumerate() {
        // As in the reference, a leading slash means the folder.
        let name = output.label_filename.trim_start_matches('/');
        check_name(&format!("output[{index}].label_filename"), name, report);
    }
    for file in data_files(config) {
        check_name(&file.field, &file.name, report);
    }
}

fn check_name(field: &str, name: &str, report: &mut Report) {
    if !name.is_empty() && !stays_in_folder(Path::new(name)) {
        report.add(
            field,
            format!("'{name}' must stay within the model's folder: a relative path without '..'"),
        );
    }
}

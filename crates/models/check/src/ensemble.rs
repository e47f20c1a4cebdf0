//! Checks ensembles against their members.

use std::collections::{BTreeMap, BTreeSet};

use nereid_core::model_config::proto::model_config::SchedulingChoice;
use nereid_core::model_config::proto::model_ensembling::Step;
use nereid_core::model_config::{ModelConfig, validate_ensemble};

use super::config::CheckedConfig;
use super::model::CheckedFolder;
use super::report::{Finding, Report};

/// Checks every ensemble of the repositories. Of a model whose configuration cannot be read, or is completed only
/// when it is loaded, no more is looked at than that it exists.
pub(crate) fn check(folders: &[CheckedFolder], report: &mut Report) {
    check_fit(folders, report);
    check_versions(folders, report);
    check_members(folders, report);
}

/// The steps of every ensemble whose configuration could be read, each with its path.
fn steps(folders: &[CheckedFolder]) -> impl Iterator<Item = (&CheckedFolder, &CheckedConfig, String, &Step)> {
    folders.iter().filter_map(|folder| Some((folder, folder.config.as_ref()?))).flat_map(
        |(folder, config)| {
            let steps = steps_of(&config.config).iter().enumerate();
            steps.map(move |(index, step)| (folder, config, step_path(index), step))
        },
    )
}

/// The names of the models that an ensemble uses; none for other models.
pub(crate) fn members(folder: &CheckedFolder) -> impl Iterator<Item = &str> {
    let steps = folder.config.iter().flat_map(|config| steps_of(&config.config));
    steps.map(|step| step.model_name.as_str())
}

fn steps_of(config: &ModelConfig) -> &[Step] {
    match &config.scheduling_choice {
        Some(SchedulingChoice::EnsembleScheduling(ensemble)) => &ensemble.step,
        _ => &[],
    }
}

fn step_path(index: usize) -> String {
    format!("ensemble_scheduling.step[{index}]")
}

/// The maps of an ensemble fit the inputs and outputs of its models.
fn check_fit(folders: &[CheckedFolder], report: &mut Report) {
    let unknown =
        folders.iter().filter(|folder| folder.config.as_ref().is_none_or(|config| !config.is_whole));
    // Stands for a model of which only the name is known.
    let stub = |name: &str| ModelConfig { name: name.to_owned(), ..ModelConfig::default() };
    let stubs: BTreeMap<_, _> = unknown.map(|folder| (folder.name.as_str(), stub(&folder.name))).collect();
    let known =
        folders.iter().filter_map(|folder| Some((folder.name.as_str(), &folder.config.as_ref()?.config)));
    let mut models: BTreeMap<&str, &ModelConfig> = known.collect();
    models.extend(stubs.iter().map(|(name, config)| (*name, config)));

    for folder in folders {
        let Some(checked) = folder.config.as_ref().filter(|config| config.is_read) else { continue };
        let Err(errors) = validate_ensemble(&checked.config, &models) else { continue };
        let is_about_stub = |field: &str| {
            steps_of(&checked.config).iter().enumerate().any(|(index, step)| {
                stubs.contains_key(step.model_name.as_str())
                    && field.starts_with(&format!("{}.", step_path(index)))
            })
        };
        for error in errors.errors().iter().filter(|error| !is_about_stub(error.field())) {
            let finding = checked.error(error.field(), error.reason()).knowing(error.nearest());
            report.findings.push(finding.of(&folder.name));
        }
    }
}

/// Checks that the version requested by each step is served.
fn check_versions(folders: &[CheckedFolder], report: &mut Report) {
    for (folder, config, path, step) in steps(folders).filter(|(.., step)| step.model_version >= 0) {
        let member = folders.iter().find(|member| member.name == step.model_name);
        if member.is_some_and(|member| !member.versions.contains(&step.model_version)) {
            let message = format!("model '{}' serves no version {}", step.model_name, step.model_version);
            report.findings.push(config.error(&format!("{path}.model_version"), message).of(&folder.name));
        }
    }
}

/// An ensemble loads only if its models do.
fn check_members(folders: &[CheckedFolder], report: &mut Report) {
    let mut reported = BTreeSet::new();
    loop {
        let failing = report.failing();
        let fresh: Vec<(String, Finding)> = steps(folders)
            .filter(|(folder, _, path, step)| {
                step.model_name != folder.name
                    && failing.contains(&step.model_name)
                    && !reported.contains(&format!("{} {path}", folder.name))
            })
            .map(|(folder, config, path, step)| {
                let message = format!("its model '{}' would not load", step.model_name);
                let finding = config.error(&format!("{path}.model_name"), message).of(&folder.name);
                (format!("{} {path}", folder.name), finding)
            })
            .collect();
        // What fails now may be a model of another ensemble.
        if fresh.is_empty() {
            return;
        }
        for (key, finding) in fresh {
            reported.insert(key);
            report.findings.push(finding);
        }
    }
}

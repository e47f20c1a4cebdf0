//! Checks the folders of repositories: which models they hold, and what else.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Error, ErrorKind};
use std::path::{Path, PathBuf};

use nereid_repository::{AGENTS_FILE, Misplaced};

use super::agents::Agents;
use super::model::{self, CheckedFolder};
use super::report::{CheckedModel, Finding, Report};
use super::{Context, deep, ensemble};

/// Checks all repositories as one, as a server serves them.
pub fn check(repositories: &[PathBuf], context: &Context<'_>) -> Report {
    let mut report = Report::default();
    let mut folders = Vec::new();
    for repository in repositories {
        for path in model_folders(repository, &mut report) {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let mut findings = Vec::new();
            folders.push(model::check(&path, &name, context, &mut findings));
            report.findings.extend(findings.into_iter().map(|finding| finding.of(&name)));
        }
    }
    let agents = Agents::read(repositories, &context.agents, &mut report);
    let mut agents_of = BTreeMap::new();
    for folder in &folders {
        let mut findings = Vec::new();
        if let Some(names) = agents.check(folder, &mut findings) {
            agents_of.insert(folder.path.clone(), names);
        }
        report.findings.extend(findings.into_iter().map(|finding| finding.of(&folder.name)));
    }
    check_names(&folders, &mut report);
    check_config_name(&folders, repositories, context, &mut report);
    ensemble::check(&folders, &mut report);
    if context.deep {
        let failing = report.failing();
        let loads = folders.iter().filter(|folder| !failing.contains(&folder.name));
        let found: Vec<_> = loads
            .flat_map(|folder| {
                deep::check(folder, context).into_iter().map(|finding| finding.of(&folder.name))
            })
            .collect();
        report.findings.extend(found);
    }
    let failing = report.failing();
    report.models = folders
        .iter()
        .map(|folder| {
            let agents = agents_of.remove(&folder.path);
            CheckedModel { agents, ..row(folder, !failing.contains(&folder.name)) }
        })
        .collect();
    report.sort();
    report
}

/// Checks one model of these repositories, and of other models only what an ensemble has to know of its members.
pub fn check_model(repositories: &[PathBuf], name: &str, context: &Context<'_>) -> Vec<Finding> {
    let mut report = Report::default();
    let mut folders = Vec::new();
    let mut wanted = vec![name.to_owned()];
    while let Some(next) = wanted.pop() {
        if folders.iter().any(|folder: &CheckedFolder| folder.name == next) {
            continue;
        }
        for path in repositories.iter().filter_map(|repository| model_folder(repository, &next)) {
            let mut findings = Vec::new();
            let folder = model::check(&path, &next, context, &mut findings);
            report.findings.extend(findings.into_iter().map(|finding| finding.of(&next)));
            wanted.extend(ensemble::members(&folder).map(str::to_owned));
            folders.push(folder);
        }
    }
    if folders.iter().any(CheckedFolder::is_ensemble) {
        // Of the others, only their names matter, which a member that does not exist may resemble.
        let others =
            repositories.iter().flat_map(|repository| fs::read_dir(repository).into_iter().flatten());
        let others = others.flatten().map(|entry| entry.path()).filter(|path| path.is_dir());
        for path in others.collect::<Vec<_>>() {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if folders.iter().all(|folder| folder.name != name) {
                folders.push(CheckedFolder { name, path, versions: Vec::new(), config: None });
            }
        }
    }
    let agents = Agents::read(repositories, &context.agents, &mut report);
    for folder in folders.iter().filter(|folder| folder.name == name) {
        let mut findings = Vec::new();
        agents.check(folder, &mut findings);
        report.findings.extend(findings.into_iter().map(|finding| finding.of(name)));
    }
    check_names(&folders, &mut report);
    ensemble::check(&folders, &mut report);
    report.findings.retain(|finding| finding.model.as_deref() == Some(name));
    report.sort();
    report.findings
}

/// The folder of a model. The name may come from anywhere, so it is looked for among the folders that are there.
fn model_folder(repository: &Path, name: &str) -> Option<PathBuf> {
    let mut entries = fs::read_dir(repository).ok()?.flatten();
    let entry = entries.find(|entry| entry.file_name().to_str() == Some(name))?;
    Some(entry.path()).filter(|path| path.is_dir())
}

fn row(folder: &CheckedFolder, would_load: bool) -> CheckedModel {
    CheckedModel {
        name: folder.name.clone(),
        repository: folder.path.parent().unwrap_or(Path::new("")).to_owned(),
        versions: folder.versions.clone(),
        backend: folder.backend(),
        agents: None,
        would_load,
    }
}

/// The folders of models. Other entries next to them are reported.
fn model_folders(repository: &Path, report: &mut Report) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    if repository.to_str().is_some_and(|location| location.contains("://")) && !repository.exists() {
        let message = "is not on this machine: copy it to a folder, and check that";
        report.findings.push(Finding::error(repository, message));
        return folders;
    }
    let listed = fs::read_dir(repository).and_then(|entries| entries.collect::<Result<Vec<_>, Error>>());
    let entries = match listed {
        Ok(entries) => entries,
        Err(error) => {
            let message = format!("cannot read the model repository: {error}");
            report.findings.push(Finding::error(repository, message));
            return folders;
        }
    };
    if let Some(misplaced) = Misplaced::find(repository) {
        report.findings.push(Finding::error(repository, misplaced.to_string()));
        return folders;
    }
    for entry in entries {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with('.') {
            continue;
        }
        match path.metadata() {
            Ok(metadata) if metadata.is_dir() => folders.push(path),
            Ok(_) if name == AGENTS_FILE || name != "config.pbtxt" && model::is_welcome(&name) => {}
            Ok(_) => report.findings.push(stray(path, &name)),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                report.findings.push(Finding::warning(path, "is a link that leads nowhere"));
            }
            Err(error) => report.findings.push(Finding::warning(path, format!("cannot be read: {error}"))),
        }
    }
    if folders.is_empty() {
        let message = "has no models: each needs a folder of its own, such as <model>/1/model.onnx";
        report.findings.push(Finding::warning(repository, message));
    }
    folders.sort();
    folders
}

fn stray(path: PathBuf, name: &str) -> Finding {
    match name {
        "config.pbtxt" => Finding::warning(
            path,
            "is a model's configuration, and nothing reads it here; is the repository the folder above?",
        ),
        _ => Finding::warning(path, "unused file: a model is a folder"),
    }
}

/// A name belongs to one model.
fn check_names(folders: &[CheckedFolder], report: &mut Report) {
    let mut places: BTreeMap<&str, Vec<&Path>> = BTreeMap::new();
    for folder in folders {
        places.entry(&folder.name).or_default().push(&folder.path);
    }
    for (name, paths) in places.iter().filter(|(_, paths)| paths.len() > 1) {
        for (index, path) in paths.iter().enumerate() {
            let others = paths.iter().enumerate().filter(|(other, _)| *other != index);
            let others: Vec<_> = others.map(|(_, other)| format!("'{}'", other.display())).collect();
            let message =
                format!("model '{name}' also exists in {}; none of them is loaded", others.join(" and "));
            report.findings.push(Finding::error(*path, message).of(name));
        }
    }
}

/// A name for configurations that no model has was probably mistyped.
fn check_config_name(
    folders: &[CheckedFolder],
    repositories: &[PathBuf],
    context: &Context<'_>,
    report: &mut Report,
) {
    let Some(name) = &context.reading.config_name else { return };
    let file = Path::new("configs").join(format!("{name}.pbtxt"));
    if !folders.is_empty() && !folders.iter().any(|folder| folder.path.join(&file).exists()) {
        for repository in repositories {
            let message = format!("no model has a configuration '{}'; each has its own", file.display());
            report.findings.push(Finding::warning(repository, message));
        }
    }
}

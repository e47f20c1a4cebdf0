//! `nereid add`: puts a model into a repository, with the layout and the configuration that a server needs.

mod configuration;
pub(crate) mod sample;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use nereid_assembly::{
    Additions, EngineCheck, LocalModel, Parts, Platform, ReadOptions, Sources, StagedModel, Transfer,
    external_data, is_address, redacted,
};
use nereid_check::{AgentContext, Context, Report, Severity};
use nereid_core::model_config::ModelConfig;
use nereid_options::{AddOptions, DEFAULT_REPOSITORY};
use nereid_terminal::path_segment;

use crate::hosting;
use crate::pull::pull_with_progress;

/// Prints the model's place and a command that sends a request to it.
pub(crate) fn run(options: &AddOptions) -> ExitCode {
    match add(options) {
        Ok(text) => {
            // The reader may close the pipe early, as `head` does.
            let _ = writeln!(std::io::stdout(), "{}", text.trim_end());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("nereid add: {error}");
            ExitCode::FAILURE
        }
    }
}

fn add(options: &AddOptions) -> Result<String, String> {
    let repository = &options.repository;
    if is_address(repository) {
        let address = redacted(&repository.to_string_lossy());
        return Err(format!("--repository is '{address}', but must be a folder"));
    }
    let mut config = options.platform();
    config.backends.program = Some(hosting::PROGRAM.into());
    let (additions, sources) = stage(options, &config.backends)?;
    let models = additions.staged(options.name.as_deref())?;
    let platform = Platform::find(&config, true).map_err(|error| error.to_string())?;
    let engines = EngineCheck::new(&config.backends, &platform.backends);
    let context = |reading| Context {
        agents: AgentContext { defaults: Vec::new(), refuses: &|_| None, origins: BTreeMap::new() },
        reading: platform.reading(reading),
        backends: &platform.backends.registry,
        engines: &engines,
        gpus: platform.gpus.numbers.clone(),
        deep: false,
    };
    // A server that completes no configuration needs a complete one.
    let completing = context(ReadOptions { complete: true, ..options.reading() });
    let mut added = Vec::new();
    for model in &models {
        let config =
            configure(options, &additions, model, &completing).map_err(|error| additions.named(&error))?;
        added.push((model, config));
    }
    check(options, &additions, &context(options.reading()))?;
    let mut text = String::new();
    for (model, config) in added {
        let path = additions.place(model)?;
        text.push_str(&describe(model, config.as_ref(), &path));
    }
    if let (true, Some(sources), [model]) = (options.moves, sources, &models[..])
        && let Err(error) = sources.remove(&options.source, model)
    {
        eprintln!("warning: the model was added, but its source is left: {error}");
    }
    let option = match repository == Path::new(DEFAULT_REPOSITORY) {
        true => String::new(),
        false => format!(" --model-repository={}", sample::word(&repository.to_string_lossy())),
    };
    Ok(format!("{text}serve it: nereid{option}"))
}

/// Puts the model into the staged repository. Returns its files, if they were on this machine.
fn stage(
    options: &AddOptions,
    backends: &nereid_assembly::BackendsConfig,
) -> Result<(Additions, Option<Sources>), String> {
    let AddOptions { source, repository, name, .. } = options;
    if !source.exists() && is_address(source) {
        let option =
            [(options.moves, "--move"), (options.link, "--link")].into_iter().find(|(is_given, _)| *is_given);
        if let Some((_, option)) = option {
            return Err(format!("{option} is for models on this machine"));
        }
        let additions = Additions::new(repository)?;
        let (address, staged) = (source.to_string_lossy(), additions.staged_repository());
        pull_with_progress(&address, &staged, &Parts::of(&address, repository), backends)?;
        return Ok((additions, None));
    }
    let data = |onnx: &Path| external_data(onnx).map_err(|error| error.message().to_owned());
    let model = LocalModel::find(source, &data)?;
    let additions = Additions::new(repository)?;
    let transfer = match (options.link, options.moves) {
        (true, _) => Transfer::Refer,
        (_, true) => Transfer::Link,
        _ => Transfer::Copy,
    };
    let sources = additions.add(&model, name.as_deref(), transfer)?;
    Ok((additions, Some(sources)))
}

/// Writes the configuration of a new model that has none. Returns the completed one, as far as it is known here.
fn configure(
    options: &AddOptions,
    additions: &Additions,
    model: &StagedModel,
    context: &Context<'_>,
) -> Result<Option<ModelConfig>, String> {
    let completed = || {
        let outcome = nereid_check::completed(&model.name, &[additions.staged_repository()], context);
        outcome.map_err(|error| error.message().to_owned())
    };
    let known = |config: Result<ModelConfig, String>| match config {
        Ok(config) => Ok(Some(config)),
        Err(_) if options.force => Ok(None),
        Err(error) => {
            // A check explains more of what is wrong with a file than its backend does.
            let problems = problems(&nereid_check::check(&[additions.staged_repository()], context));
            let reason = if problems.is_empty() { error } else { problems.join("; ") };
            Err(format!("{reason}{}", hint(options, model)))
        }
    };
    let has_config = model.folder.join("config.pbtxt").exists();
    if model.exists && (options.config.is_some() || !options.input.is_empty()) {
        return Err(format!(
            "model '{}' exists and keeps its configuration: edit its config.pbtxt",
            model.name
        ));
    }
    if let Some(file) = &options.config {
        let text = fs::read_to_string(file);
        let text = text.map_err(|error| format!("cannot read '{}': {error}", file.display()))?;
        additions.write_config(model, &text)?;
        return known(completed());
    }
    if !options.input.is_empty() {
        let mut config = configuration::declared(options);
        model.complete_backend(&mut config)?;
        additions.write_config(model, &configuration::text(&config))?;
        return known(completed());
    }
    let config = known(completed())?;
    if let Some(config) = config.as_ref().filter(|_| !has_config && !model.exists) {
        additions.write_config(model, &configuration::text(config))?;
    }
    Ok(config)
}

/// Files of models that need not declare their tensors.
const UNDECLARED: [&str; 3] = ["model.pt", "model.pt2", "model.py"];

/// The remedies for a model whose configuration cannot be completed.
fn hint(options: &AddOptions, model: &StagedModel) -> &'static str {
    let is_configured = options.config.is_some() || !options.input.is_empty() || model.exists;
    let version = model.folder.join(model.version.to_string());
    match UNDECLARED.iter().any(|file| version.join(file).exists()) {
        _ if is_configured => "",
        true => {
            "; declare its tensors by --input=NAME:TYPE:DIMS and --output=NAME:TYPE:DIMS, give a configuration by --config=FILE, \
             or add it as it is by --force"
        }
        false => "; --force adds it as it is",
    }
}

/// Checks the staged repository as `nereid check` does.
fn check(options: &AddOptions, additions: &Additions, context: &Context<'_>) -> Result<(), String> {
    let report = nereid_check::check(&[additions.staged_repository()], context);
    for finding in &report.findings {
        let is_error = finding.severity == Severity::Error;
        if is_error && !options.force {
            continue;
        }
        eprintln!("warning: {}", additions.named(&finding.to_string()));
    }
    if report.is_good() || options.force {
        return Ok(());
    }
    let problems = additions.named(&problems(&report).join("\n  "));
    Err(format!("the model would not load here; --force adds it all the same\n  {problems}"))
}

fn problems(report: &Report) -> Vec<String> {
    report.of(Severity::Error).map(ToString::to_string).collect()
}

/// Describes an added model, with a first request.
fn describe(model: &StagedModel, config: Option<&ModelConfig>, path: &Path) -> String {
    let StagedModel { name, version, exists, .. } = model;
    let what =
        if *exists { format!("version {version} of model '{name}'") } else { format!("model '{name}'") };
    let first = format!("added {what}: {}\n", path.display());
    match config.map(|config| sample::curl(name, config)) {
        Some(Some(curl)) => format!("{first}ask it: {curl}\n"),
        Some(None) => {
            let name = path_segment(name);
            format!("{first}ask it: by a gRPC stream, or by /v2/models/{name}/generate_stream\n")
        }
        None => first,
    }
}

//! `nereid check`: prints the findings of a check of model repositories.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use nereid_assembly::{
    BackendsConfig, CloudOptions, EngineCheck, Parts, Platform, engines, is_address, pull, redacted,
};
use nereid_check::{AgentContext, Context};
use nereid_options::CheckOptions;
use tempfile::TempDir;

use crate::hosting;

/// Prints the findings. Fails if a model or a repository would not load.
pub(crate) fn run(options: &CheckOptions) -> ExitCode {
    match check(options) {
        Ok((text, code)) => {
            // The reader may close the pipe early, as `head` does.
            let _ = writeln!(std::io::stdout(), "{}", text.trim_end());
            code
        }
        Err(error) => {
            eprintln!("nereid check: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the checks; returns the text to print and the exit code.
fn check(options: &CheckOptions) -> Result<(String, ExitCode), String> {
    let reading = options.reading();
    let mut config = options.platform();
    config.backends.program = Some(hosting::PROGRAM.into());
    let platform = Platform::find(&config, reading.complete).map_err(|error| error.to_string())?;
    let agents = options.agents();
    let fetched = FetchedRepositories::new(&options.repositories, &config.backends)?;
    let engines = EngineCheck::new(&config.backends, &platform.backends);
    let context = Context {
        agents: AgentContext {
            defaults: agents.defaults.clone(),
            refuses: &|agent| agents.refuses(agent),
            origins: fetched.origins(),
        },
        reading: platform.reading(reading),
        backends: &platform.backends.registry,
        engines: &engines,
        gpus: platform.gpus.numbers.clone(),
        deep: options.deep,
    };
    let repositories = fetched.folders();
    if let Some(name) = &options.complete {
        let text = nereid_check::complete(name, &repositories, &context);
        return Ok((fetched.named(text.map_err(|error| error.to_string())?), ExitCode::SUCCESS));
    }
    let report = nereid_check::check(&repositories, &context);
    let text = if options.json { report.to_json() } else { report.to_string() };
    Ok((fetched.named(text), if report.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE }))
}

/// Repositories as folders: remote ones are fetched to temporary folders.
struct FetchedRepositories(Vec<(PathBuf, Option<TempDir>)>);

impl FetchedRepositories {
    fn new(repositories: &[PathBuf], backends: &BackendsConfig) -> Result<Self, String> {
        let fetch = |location: &PathBuf| {
            if location.exists() || !is_address(location) {
                return Ok((location.clone(), None));
            }
            let folder = tempfile::tempdir().map_err(|error| format!("cannot make a folder: {error}"))?;
            let clouds = CloudOptions { engines: engines(backends), ..CloudOptions::default() };
            let address = location.to_string_lossy();
            pull(&address, folder.path(), &Parts::within(folder.path()), clouds, &|_| {})?;
            Ok((redacted(&address).into(), Some(folder)))
        };
        repositories.iter().map(fetch).collect::<Result<_, _>>().map(Self)
    }

    fn folders(&self) -> Vec<PathBuf> {
        let folder = |(location, fetched): &(PathBuf, Option<TempDir>)| {
            fetched.as_ref().map_or_else(|| location.clone(), |folder| folder.path().to_owned())
        };
        self.0.iter().map(folder).collect()
    }

    /// The addresses of fetched repositories, by folder.
    fn origins(&self) -> BTreeMap<PathBuf, String> {
        let fetched = self.0.iter().filter_map(|(location, folder)| Some((location, folder.as_ref()?)));
        fetched
            .map(|(location, folder)| (folder.path().to_owned(), location.to_string_lossy().into_owned()))
            .collect()
    }

    /// Replaces folders of fetched repositories in a text by their addresses.
    fn named(&self, text: String) -> String {
        let origins = self.origins();
        origins
            .iter()
            .fold(text, |text, (folder, location)| text.replace(&*folder.to_string_lossy(), location))
    }
}

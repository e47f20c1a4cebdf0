//! The agents of models whose configurations name none.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use nereid_core::backend_api::{Error, Result, block_on};
use nereid_model_config::proto::ModelRepositoryAgents;
use nereid_model_config::{ModelConfig, parse_text};

use super::NamedAgent;
use crate::store::{LocalStore, Store};

/// The file in a repository that names its models' agents.
pub const AGENTS_FILE: &str = "agents.pbtxt";

/// An agent of the models of some repositories.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentDefault {
    /// The agent.
    pub agent: NamedAgent,
    /// Prefixes of the locations of its repositories; empty for all repositories.
    pub repositories: Vec<String>,
}

impl AgentDefault {
    /// Whether the agent applies to the repository at this location.
    fn is_for(&self, location: &str) -> bool {
        let prefixes = &self.repositories;
        prefixes.is_empty() || prefixes.iter().any(|prefix| location.starts_with(prefix.as_str()))
    }
}

/// The default agents of a repository's models.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentsOfRepository {
    /// In order.
    pub agents: Vec<NamedAgent>,
    /// Whether the repository's own file names them, and not an option.
    pub is_of_file: bool,
}

/// The agents of all repositories.
#[derive(Clone, Debug, Default)]
pub(crate) struct Defaults {
    configured: Arc<[AgentDefault]>,
    /// The contents of the repositories' own files, with the time of reading, by location.
    read: Arc<Mutex<ReadFiles>>,
}

/// Parsed files by location, with the time when they were read.
type ReadFiles = BTreeMap<String, (Instant, Arc<AgentsOfRepository>)>;

impl Defaults {
    pub(crate) fn new(configured: Vec<AgentDefault>) -> Self {
        Self { configured: configured.into(), read: Arc::default() }
    }

    /// The default agents of the models in a store. A file read at `as_of` or later is recent enough.
    ///
    /// # Errors
    /// The repository's file cannot be read, or is invalid.
    pub(crate) async fn of(&self, store: &dyn Store, as_of: Instant) -> Result<Arc<AgentsOfRepository>> {
        let location = store.location();
        if let Some((_, known)) = self.read().get(location).filter(|(since, _)| *since >= as_of) {
            return Ok(Arc::clone(known));
        }
        let began = Instant::now();
        let agents = match store.read(AGENTS_FILE, as_of).await? {
            Some(text) => parse(&text, location)?,
            None => self.configured_for(location),
        };
        let agents = Arc::new(agents);
        self.read().insert(location.to_owned(), (began, Arc::clone(&agents)));
        Ok(agents)
    }

    fn configured_for(&self, location: &str) -> AgentsOfRepository {
        let configured = self.configured.iter().filter(|default| default.is_for(location));
        let agents = configured.map(|default| default.agent.clone()).collect();
        AgentsOfRepository { agents, is_of_file: false }
    }

    fn read(&self) -> MutexGuard<'_, ReadFiles> {
        self.read.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The default agents of a repository's models. Its files are in a local folder; `location` is where they came from.
///
/// # Errors
/// The repository's file cannot be read, or is invalid.
pub fn agents_of_folder(
    folder: &Path,
    location: &str,
    configured: &[AgentDefault],
) -> Result<AgentsOfRepository> {
    let store = LocalStore::new(folder.to_owned());
    let configured = configured.iter().filter(|default| default.is_for(location));
    let configured = configured.map(|default| AgentDefault { repositories: Vec::new(), ..default.clone() });
    let agents = block_on(Defaults::new(configured.collect()).of(&store, Instant::now()))?;
    Ok(AgentsOfRepository::clone(&agents))
}

/// Parses a repository's file, which has the form of a configuration's `model_repository_agents`.
fn parse(text: &[u8], location: &str) -> Result<AgentsOfRepository> {
    let wrong = |problem: String| Error::invalid_arg(format!("{location}/{AGENTS_FILE}: {problem}"));
    let text = std::str::from_utf8(text).map_err(|error| wrong(error.to_string()))?;
    let config = parse_text(&format!("model_repository_agents {{\n{text}\n}}")).map_err(|error| {
        // The wrapping adds a line.
        wrong(format!("{}:{}: {}", error.line().saturating_sub(1), error.column(), error.message()))
    })?;
    let agents = own_agents(&config).unwrap_or_default();
    if config
        != (ModelConfig {
            model_repository_agents: config.model_repository_agents.clone(),
            ..Default::default()
        })
    {
        return Err(wrong("only agents may be named".into()));
    }
    if agents.iter().any(|agent| agent.name.is_empty()) {
        return Err(wrong("an agent has no name".into()));
    }
    Ok(AgentsOfRepository { agents, is_of_file: true })
}

/// The agents that a configuration names, if any.
pub fn own_agents(config: &ModelConfig) -> Option<Vec<NamedAgent>> {
    let ModelRepositoryAgents { agents } = config.model_repository_agents.as_ref()?;
    let named = agents.iter().map(|agent| NamedAgent {
        name: agent.name.clone(),
        parameters: agent.parameters.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
    });
    Some(named.collect())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;

    use super::*;

    fn agent_default(name: &str, repositories: &[&str]) -> AgentDefault {
        let agent = NamedAgent { name: name.to_owned(), parameters: Vec::new() };
        AgentDefault { agent, repositories: repositories.iter().map(|&prefix| prefix.to_owned()).collect() }
    }

    fn names(agents: &AgentsOfRepository) -> Vec<&str> {
        agents.agents.iter().map(|agent| agent.name.as_str()).collect()
    }

    #[test]
    fn options_apply_to_repositories_with_the_prefix() {
        let defaults = Defaults::new(vec![
            agent_default("a", &["s3://one", "s3://two/models"]),
            agent_default("b", &[]),
            agent_default("c", &["/mod"]),
        ]);
        for (location, expected) in [
            ("s3://one", &["a", "b"][..]),
            ("s3://one/deep", &["a", "b"]),
            ("s3://two", &["b"]),
            ("s3://two/models", &["a", "b"]),
            ("/models", &["b", "c"]),
            ("", &["b"]),
        ] {
            assert_eq!(names(&defaults.configured_for(location)), expected, "{location}");
        }
    }

    #[test]
    fn agents_file_overrides_the_options() {
        let folder = tempfile::tempdir().unwrap();
        let store = LocalStore::new(folder.path().to_owned());
        let defaults = Defaults::new(vec![agent_default("option", &[])]);
        let read = |as_of| block_on(defaults.of(&store, as_of));
        assert_eq!(names(&read(Instant::now()).unwrap()), ["option"]);
        for (text, expected) in [
            ("agents { name: 'x' } agents { name: 'y' parameters { key: 'a' value: 'b' } }", &["x", "y"][..]),
            ("agents [ { name: 'z' } ] # with a comment", &["z"]),
            ("", &[]),
        ] {
            fs::write(folder.path().join(AGENTS_FILE), text).unwrap();
            let agents = read(Instant::now()).unwrap();
            assert_eq!((names(&agents), agents.is_of_file), (expected.to_vec(), true), "{text}");
        }
        let before = Instant::now();
        fs::write(folder.path().join(AGENTS_FILE), "agents { name: 'new' }").unwrap();
        assert_eq!(names(&read(before - std::time::Duration::from_secs(60)).unwrap()), [""; 0]);
        assert_eq!(names(&read(Instant::now()).unwrap()), ["new"]);
    }

    #[test]
    fn invalid_agents_file_is_reported_with_line_and_column() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join(AGENTS_FILE)).unwrap();
        let store = LocalStore::new(folder.path().to_owned());
        block_on(Defaults::default().of(&store, Instant::now())).unwrap_err();
        for (text, expected) in [
            ("agents { nam: 'x' }", "agents.pbtxt: 1:"),
            ("\n\nagents { name: 5 }", "agents.pbtxt: 3:"),
            ("agents { }", "an agent has no name"),
            ("agents { name: 'x' } agent { }", "agents.pbtxt: 1:22: "),
            ("agents { name: 'x'", "agents.pbtxt: "),
            ("} backend: 'x' model_repository_agents {", "agents.pbtxt: "),
        ] {
            let error = parse(text.as_bytes(), "/models").unwrap_err();
            assert!(error.message().contains(expected), "{text}: {error}");
        }
        assert!(parse(&[0xff], "/models").is_err());
    }

    proptest! {
        #[test]
        fn agents_file_parser_accepts_or_refuses_any_text(text in "[a-z{}: '\"\\[\\]\n#]{0,60}") {
            let _ = parse(text.as_bytes(), "/models");
        }
    }
}

//! Which repository agents see a model, and who names them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use nereid_repository::{
    AGENTS_FILE, AgentDefault, AgentsOfRepository, NamedAgent, agents_of_folder, own_agents,
};

use super::model::CheckedFolder;
use super::report::{AgentNames, Finding, Report};

/// The agents of a server.
pub struct AgentContext<'a> {
    /// Default agents of models that name none.
    pub defaults: Vec<AgentDefault>,
    /// The reason why an agent with this name and these parameters cannot be used, if any.
    pub refuses: &'a dyn Fn(&NamedAgent) -> Option<String>,
    /// Addresses from which repositories were fetched, by local folder.
    pub origins: BTreeMap<PathBuf, String>,
}

/// The agents of the models in some repositories.
pub(crate) struct Agents<'a> {
    context: &'a AgentContext<'a>,
    of_repositories: BTreeMap<PathBuf, AgentsOfRepository>,
}

impl<'a> Agents<'a> {
    /// Reads the agent files of the repositories and reports their errors.
    pub(crate) fn read(repositories: &[PathBuf], context: &'a AgentContext<'a>, report: &mut Report) -> Self {
        let mut of_repositories = BTreeMap::new();
        for repository in repositories.iter().filter(|repository| repository.is_dir()) {
            let origin = context.origins.get(repository).cloned();
            let location = origin.unwrap_or_else(|| repository.to_string_lossy().into_owned());
            match agents_of_folder(repository, &location, &context.defaults) {
                Ok(agents) => drop(of_repositories.insert(repository.clone(), agents)),
                Err(error) => {
                    report.findings.push(Finding::error(repository.join(AGENTS_FILE), error.message()));
                }
            }
        }
        Self { context, of_repositories }
    }

    /// The agents of a model; reports those that cannot be used.
    pub(crate) fn check(&self, folder: &CheckedFolder, findings: &mut Vec<Finding>) -> Option<AgentNames> {
        let config = folder.config.as_ref().filter(|config| config.is_read)?;
        let own = own_agents(&config.config);
        let repository = folder.path.parent().unwrap_or(Path::new(""));
        let of_repository = self.of_repositories.get(repository);
        let (agents, from) = match (&own, of_repository) {
            (Some(own), _) => (own.as_slice(), "its configuration"),
            (None, Some(AgentsOfRepository { agents, is_of_file: true })) => (agents.as_slice(), AGENTS_FILE),
            (None, Some(AgentsOfRepository { agents, is_of_file: false })) => {
                (agents.as_slice(), "--repository-agent")
            }
            (None, None) => return None,
        };
        for (index, agent) in agents.iter().enumerate().filter(|(_, agent)| !agent.name.is_empty()) {
            if let Some(reason) = (self.context.refuses)(agent) {
                findings.push(match own {
                    Some(_) => config.error(&format!("model_repository_agents.agents[{index}].name"), reason),
                    None => Finding::error(&folder.path, format!("{reason} (named by {from})")),
                });
            }
        }
        let names: Vec<_> = agents.iter().map(|agent| agent.name.clone()).collect();
        (!names.is_empty()).then_some(AgentNames { names, from })
    }
}

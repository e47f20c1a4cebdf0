//! The options of repository agents.

use std::path::PathBuf;

use clap::{ArgAction, Args};
use nereid_assembly::{AgentConfig, AgentDefault, NamedAgent};

/// The options of repository agents.
#[derive(Debug, Args)]
#[command(next_help_heading = "Repository agents")]
pub(crate) struct AgentOptions {
    /// Folder with a subfolder for each installed repository agent.
    #[arg(long, value_name = "PATH")]
    repoagent_directory: Option<PathBuf>,

    /// Agent for every model whose configuration and repository name none, with a setting: dragonfly,proxy=URL. May be
    /// given several times. Agents run in the order of their first mention; the setting repository=PREFIX limits an
    /// agent to repositories whose path starts with PREFIX.
    #[arg(long, value_name = "NAME[,SETTING=VALUE]", value_parser = setting, action = ArgAction::Append)]
    repository_agent: Vec<AgentSetting>,
}

/// One `--repository-agent`.
#[derive(Clone, Debug)]
struct AgentSetting {
    agent: String,
    /// The setting and its value.
    setting: Option<(String, String)>,
}

/// The setting that selects repositories and is not passed to the agent.
const REPOSITORY: &str = "repository";

impl AgentOptions {
    /// The agents that they describe.
    pub(crate) fn agents(&self) -> AgentConfig {
        let mut defaults = Vec::<AgentDefault>::new();
        for AgentSetting { agent, setting } in &self.repository_agent {
            let place = defaults.iter().position(|default| default.agent.name == *agent);
            let place = place.unwrap_or_else(|| {
                let named = NamedAgent { name: agent.clone(), parameters: Vec::new() };
                defaults.push(AgentDefault { agent: named, repositories: Vec::new() });
                defaults.len() - 1
            });
            let AgentDefault { agent, repositories } = &mut defaults[place];
            match setting {
                Some((name, value)) if name == REPOSITORY => repositories.push(value.clone()),
                Some((name, value)) => {
                    // Of the same setting, the last counts.
                    agent.parameters.retain(|(other, _)| other != name);
                    agent.parameters.push((name.clone(), value.clone()));
                }
                None => {}
            }
        }
        defaults.iter_mut().for_each(|default| default.agent.parameters.sort());
        AgentConfig { directory: self.repoagent_directory.clone(), defaults }
    }
}

/// The agent up to the first comma, the setting up to the next equals sign, and the value.
fn setting(text: &str) -> Result<AgentSetting, String> {
    let wrong =
        || Err("must be NAME or NAME,SETTING=VALUE, such as dragonfly,proxy=http://127.0.0.1:4001".into());
    let (agent, setting) = match text.split_once(',') {
        None => (text, None),
        Some((agent, setting)) => match setting.split_once('=') {
            Some((name, value)) if !name.is_empty() => (agent, Some((name.to_owned(), value.to_owned()))),
            _ => return wrong(),
        },
    };
    if agent.is_empty() || agent.contains('=') {
        return wrong();
    }
    Ok(AgentSetting { agent: agent.to_owned(), setting })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        agents: AgentOptions,
    }

    fn parsed(arguments: &[&str]) -> Result<AgentConfig, clap::Error> {
        Line::try_parse_from([&["nereid"], arguments].concat()).map(|line| line.agents.agents())
    }

    #[test]
    fn options_become_agents_in_their_order() {
        let given = parsed(&[
            "--repository-agent=dragonfly,proxy=http://a:1,b=c",
            "--repository-agent=checksum",
            "--repository-agent=dragonfly,repository=s3://one",
            "--repository-agent=dragonfly,repository=s3://two",
            "--repository-agent=dragonfly,fallback=false",
            "--repository-agent=dragonfly,fallback=",
            "--repoagent-directory=agents",
        ]);
        let AgentConfig { directory, defaults } = given.unwrap();
        assert_eq!(directory, Some(PathBuf::from("agents")));
        let texts = |default: &AgentDefault| {
            let AgentDefault { agent, repositories } = default;
            format!("{} {:?} {repositories:?}", agent.name, agent.parameters)
        };
        assert_eq!(
            defaults.iter().map(texts).collect::<Vec<_>>(),
            [
                r#"dragonfly [("fallback", ""), ("proxy", "http://a:1,b=c")] ["s3://one", "s3://two"]"#,
                "checksum [] []"
            ]
        );
        assert!(parsed(&[]).unwrap().defaults.is_empty());
    }

    #[test]
    fn malformed_agent_options_are_refused() {
        for text in ["", ",a=b", "a,", "a,b", "a,=b", "a=b", "a=b,c=d"] {
            assert!(parsed(&[&format!("--repository-agent={text}")]).is_err(), "{text}");
        }
    }
}

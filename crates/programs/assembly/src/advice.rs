//! Advice about models that are not served: what `nereid check` finds of one of them, while the server runs.

use std::collections::BTreeMap;
use std::path::PathBuf;

use nereid_check::{AgentContext, Context, Engines, Finding, Severity, check_model};
use nereid_console::{Advice, Advisor};
use nereid_core::Backends;
use nereid_core::backend_api::{ModelContext, Result};
use nereid_repository::ReadOptions;

use crate::agents::AgentConfig;
use crate::engine_check::EngineCheck;

/// Checks the models of folders on this machine.
pub(crate) struct RepositoryAdvisor {
    pub folders: Vec<PathBuf>,
    pub reading: ReadOptions,
    pub backends: Backends,
    pub engines: EngineCheck,
    pub agents: AgentConfig,
    pub gpus: Vec<i32>,
}

impl Advisor for RepositoryAdvisor {
    fn advise(&self, model: &str) -> Vec<Advice> {
        let context = Context {
            reading: self.reading.clone(),
            backends: &self.backends,
            engines: &self.engines,
            agents: AgentContext {
                defaults: self.agents.defaults.clone(),
                refuses: &|agent| self.agents.refuses(agent),
                origins: BTreeMap::new(),
            },
            gpus: self.gpus.clone(),
            deep: false,
        };
        check_model(&self.folders, model, &context).into_iter().map(advice).collect()
    }
}

fn advice(finding: Finding) -> Advice {
    let path = finding.path.display();
    Advice {
        is_problem: finding.severity == Severity::Error,
        place: finding.place.map_or_else(|| path.to_string(), |place| format!("{path}:{place}")),
        field: finding.field,
        message: finding.message,
    }
}

impl Engines for EngineCheck {
    fn check_engine(&self, model: &ModelContext) -> Result<()> {
        self.check_engine(model)
    }

    fn check_config(&self, model: &ModelContext) -> Result<()> {
        self.check_config(model)
    }

    fn check_file(&self, model: &ModelContext) -> Result<()> {
        self.check_file(model)
    }
}

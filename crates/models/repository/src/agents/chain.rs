//! The agents of a loaded model: notifies each of them of the model's fate, by Triton's rules.
//!
//! Loads and unloads notify the agents in order, their completion in reverse order. A failing agent stops the action
//! for the agents after it. When the model is gone, each agent gets the actions that it still lacks, in sequence.

use std::sync::{Mutex, MutexGuard, PoisonError};

use nereid_core::backend_api::{Error, Result};
use nereid_core::{
    AgentAction, AgentContext, AgentModel, LoadGuard, LoadHooks, ModelLocation, RepositoryAgent,
};

/// The agents of one load of a model.
pub(crate) struct Chain {
    model: String,
    /// Locked during calls: calls for one model are serialised.
    steps: Mutex<Vec<Step>>,
    /// Keep the files that an agent has provided, or from which the model is loaded.
    guards: Mutex<Vec<LoadGuard>>,
}

struct Step {
    agent: String,
    model: Box<dyn AgentModel>,
    last: AgentAction,
}

impl Chain {
    pub(crate) fn new(model: impl Into<String>) -> Self {
        Self { model: model.into(), steps: Mutex::default(), guards: Mutex::default() }
    }

    /// Keeps files as long as the model uses them.
    pub(crate) fn keep(&self, guard: LoadGuard) {
        lock(&self.guards).push(guard);
    }

    /// Runs the next agent; returns the model's new location.
    ///
    /// # Errors
    /// The agent's error. The agent gets no further actions.
    pub(crate) fn load(
        &self,
        agent: &dyn RepositoryAgent,
        name: &str,
        context: AgentContext,
    ) -> Result<ModelLocation> {
        let failed = |error: Error| error.context(format_args!("repository agent '{name}'"));
        let model = agent.begin(context).map_err(failed)?;
        let mut step = Step { agent: name.to_owned(), model, last: AgentAction::Load };
        if let Err(error) = step.act(AgentAction::Load) {
            step.end();
            return Err(failed(error));
        }
        let location = step.model.location();
        lock(&self.steps).push(step);
        Ok(location)
    }

    /// Notifies all agents of an action.
    fn act(&self, action: AgentAction) {
        let mut steps = lock(&self.steps);
        let is_forward = matches!(action, AgentAction::Load | AgentAction::Unload);
        let count = steps.len();
        for number in 0..count {
            let step = &mut steps[if is_forward { number } else { count - 1 - number }];
            if let Err(error) = step.act(action) {
                tracing::error!("repository agent '{}' of '{}': {error}", step.agent, self.model);
                return;
            }
        }
    }
}

impl Step {
    /// Notifies an agent of an action, if it follows the previous one.
    fn act(&mut self, action: AgentAction) -> Result<()> {
        let follows = match action {
            AgentAction::Load => true,
            AgentAction::LoadComplete | AgentAction::LoadFail => self.last == AgentAction::Load,
            AgentAction::Unload => self.last == AgentAction::LoadComplete,
            AgentAction::UnloadComplete => self.last == AgentAction::Unload,
        };
        if !follows {
            return Err(Error::internal(format!("{action:?} cannot follow {:?}", self.last)));
        }
        self.last = action;
        self.model.act(action)
    }

    /// Notifies the agent of the actions that it has missed.
    fn end(mut self) {
        let left: &[AgentAction] = match self.last {
            AgentAction::Load => &[AgentAction::LoadFail],
            AgentAction::LoadComplete => &[AgentAction::Unload, AgentAction::UnloadComplete],
            AgentAction::Unload => &[AgentAction::UnloadComplete],
            AgentAction::LoadFail | AgentAction::UnloadComplete => &[],
        };
        for action in left {
            if let Err(error) = self.act(*action) {
                tracing::error!("repository agent '{}': {error}", self.agent);
            }
        }
    }
}

impl LoadHooks for Chain {
    fn loaded(&self) {
        self.act(AgentAction::LoadComplete);
    }

    fn failed(&self, _: &Error) {
        self.act(AgentAction::LoadFail);
    }

    fn unloading(&self) {
        self.act(AgentAction::Unload);
    }

    fn dropped(&self) {
        let is_unloaded = lock(&self.steps).iter().any(|step| step.last == AgentAction::Unload);
        if is_unloaded {
            self.act(AgentAction::UnloadComplete);
        }
        std::mem::take(&mut *lock(&self.steps)).into_iter().for_each(Step::end);
        std::mem::take(&mut *lock(&self.guards));
    }
}

impl Drop for Chain {
    /// If an agent refused the model, the others receive the failed load.
    fn drop(&mut self) {
        self.dropped();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;

//! Ensembles: models that are graphs of other models.
//!
//! A request to an ensemble becomes requests to its members, each scheduled by the member's own scheduler like any
//! other. A request to the ensemble is a [task](crate::task) that goes on whenever an answer comes, on the thread that
//! brings it. So no thread waits while members execute, and no stack grows with nested ensembles.
//!
//! Knows nothing of model loading: members are looked up in the model table when a request starts.

mod fit;
mod plan;
mod run;
mod wave;

use std::sync::{Arc, Weak};

use arc_swap::ArcSwap;
use nereid_backend_api::{CorrelationId, ModelConfig, Request, Result};
use nereid_model_config::proto::ModelEnsembling;
use nereid_model_config::proto::model_config::SchedulingChoice;
use tokio::sync::Semaphore;

pub(crate) use self::fit::{EnsembleFit, fit};
use self::plan::Plan;
use crate::executor::{Executor, ReadyCheck};
use crate::model::Model;
use crate::table::ModelTable;
use crate::task::TaskGroup;
use nereid_scheduling::{Item, Refusal, Ticket};
use nereid_statistics::ModelStatistics;

/// The steps of a configuration; `None` if it is no ensemble's.
pub(crate) fn steps_of(config: &ModelConfig) -> Option<&ModelEnsembling> {
    match &config.scheduling_choice {
        Some(SchedulingChoice::EnsembleScheduling(ensemble)) => Some(ensemble),
        _ => None,
    }
}

/// Executes the requests of an ensemble: brings them to its members, and their answers together.
pub(crate) struct Graph {
    shared: Arc<Shared>,
    /// The requests in progress.
    runs: Arc<TaskGroup>,
}

/// What all runs of an ensemble share.
struct Shared {
    plan: Plan,
    /// Where members are looked up. It may hold the ensemble, so it is not held.
    models: Weak<ArcSwap<ModelTable>>,
    statistics: Arc<ModelStatistics>,
    /// How many requests each step may have at a time, over all requests; none if any number.
    limits: Vec<Arc<Semaphore>>,
}

impl Graph {
    /// For an ensemble that fits its members; `config` is the one that [`fit()`] gave.
    pub(crate) fn new(
        config: &ModelConfig,
        models: Weak<ArcSwap<ModelTable>>,
        statistics: Arc<ModelStatistics>,
    ) -> Self {
        let plan = Plan::new(config);
        let limits = match plan.max_inflight {
            0 => Vec::new(),
            most => plan.steps.iter().map(|_| Arc::new(Semaphore::new(most))).collect(),
        };
        Self { shared: Arc::new(Shared { plan, models, statistics, limits }), runs: Arc::default() }
    }
}

impl Executor for Graph {
    fn submit(&self, request: Request) -> Result<Option<Ticket>> {
        let shared = Arc::clone(&self.shared);
        match self.runs.spawn(request, |request| run::run(shared, request)) {
            Ok(number) => Ok(Some(Ticket::numbered(number))),
            Err(request) => {
                request.refuse(Refusal::Closing);
                Ok(None)
            }
        }
    }

    fn cancel(&self, ticket: Ticket) {
        // It looks whether its request is still wanted before anything else.
        self.runs.wake(ticket.number());
    }

    /// Requests wait for the members, and are counted there.
    fn pending(&self) -> usize {
        0
    }

    fn close(&self) {
        self.runs.close();
        self.runs.wait_until_done();
    }

    fn check_ready(&self) -> Vec<ReadyCheck> {
        let Some(models) = self.shared.models.upgrade().map(|models| models.load_full()) else {
            return Vec::new();
        };
        let mut members: Vec<&Arc<Model>> = Vec::new();
        let mut found = self.members(&models);
        while let Some(member) = found.pop() {
            if !members.iter().any(|known| Arc::ptr_eq(known, member)) {
                members.push(member);
                found.extend(member.executor().members(&models));
            }
        }
        let backends = members.iter().filter(|member| !member.executor().delegates());
        backends.flat_map(|member| member.executor().check_ready()).collect()
    }

    fn delegates(&self) -> bool {
        true
    }

    /// A request continues a sequence here if it continues one in a member.
    fn goes_on(&self, sequence: &CorrelationId) -> bool {
        let Some(models) = self.shared.models.upgrade().map(|models| models.load_full()) else {
            return false;
        };
        self.members(&models).iter().any(|member| member.has_sequence(sequence))
    }

    fn members<'a>(&self, models: &'a ModelTable) -> Vec<&'a Arc<Model>> {
        let steps = self.shared.plan.steps.iter();
        steps.filter_map(|step| models.find_exactly(&step.model, step.version).ok()).collect()
    }

    fn still_fits(&self, model: &Model, models: &ModelTable) -> Result<bool> {
        fit::still_fits(model, models)
    }

    fn member_count(&self) -> usize {
        self.shared.plan.steps.len()
    }
}

#[cfg(test)]
mod tests;

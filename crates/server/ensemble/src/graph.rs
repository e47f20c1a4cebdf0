//! The executor of an ensemble.

use std::sync::Arc;

use nereid_backend_api::{CorrelationId, ModelConfig, Request, Result};
use nereid_core::{
    Composite, Executor, Item as _, Model, ModelStatistics, ModelTable, ReadyCheck, Refusal, Sequences,
    ServedModels, Ticket,
};
use nereid_model_config::EnsembleConstants;
use nereid_tasks::TaskGroup;
use tokio::sync::Semaphore;

use crate::flow::Flow;
use crate::flow::deadlines::Deadlines;
use crate::plan::Plan;
use crate::{fit, run};

/// Executes the requests of an ensemble by requests to its members.
pub(crate) struct Graph {
    shared: Arc<Shared>,
    constants: EnsembleConstants,
    /// The requests in progress.
    runs: Arc<TaskGroup>,
}

/// State shared by all runs of an ensemble.
pub(crate) struct Shared {
    pub plan: Plan,
    /// Conditions, maps, fallbacks and time limits, if there are any.
    pub flow: Option<Flow>,
    /// Wakes requests whose steps have taken too long.
    pub deadlines: Deadlines,
    /// The table in which members are looked up.
    pub models: ServedModels,
    pub statistics: Arc<ModelStatistics>,
    /// Permits of each step, over all requests; empty if steps are unlimited.
    pub limits: Vec<Arc<Semaphore>>,
}

impl Graph {
    /// For a configuration that fits its members.
    pub(crate) fn new(
        config: &ModelConfig,
        constants: EnsembleConstants,
        models: ServedModels,
        statistics: Arc<ModelStatistics>,
    ) -> Self {
        let plan = Plan::new(config);
        let flow = Flow::new(config, &constants, &plan);
        let limits = match plan.max_inflight {
            0 => Vec::new(),
            most => plan.steps.iter().map(|_| Arc::new(Semaphore::new(most))).collect(),
        };
        Self {
            shared: Arc::new(Shared {
                plan,
                flow,
                deadlines: Deadlines::default(),
                models,
                statistics,
                limits,
            }),
            constants,
            runs: Arc::default(),
        }
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
        // The task checks first whether its request was cancelled.
        self.runs.wake(ticket.number());
    }

    /// Requests wait in the members' queues, and are counted there.
    fn pending(&self) -> usize {
        0
    }

    fn close(&self) {
        self.runs.close();
        self.runs.wait_until_done();
    }

    fn check_ready(&self) -> Vec<ReadyCheck> {
        let Some(models) = self.shared.models.now() else { return Vec::new() };
        let mut members: Vec<&Arc<Model>> = Vec::new();
        let mut found = self.members(&models);
        while let Some(member) = found.pop() {
            let Some(member) = member else { continue };
            if !members.iter().any(|known| Arc::ptr_eq(known, member)) {
                members.push(member);
                let inner = member.executor().composite();
                found.extend(inner.into_iter().flat_map(|inner| inner.members(&models)));
            }
        }
        let backends = members.iter().filter(|member| !member.is_composite());
        backends.flat_map(|member| member.executor().check_ready()).collect()
    }

    fn sequences(&self) -> Option<&dyn Sequences> {
        Some(self)
    }

    fn composite(&self) -> Option<&dyn Composite> {
        Some(self)
    }
}

impl Sequences for Graph {
    /// A request continues a sequence here if it continues one in a member.
    fn continues(&self, sequence: &CorrelationId) -> bool {
        let Some(models) = self.shared.models.now() else { return false };
        let mut steps = self.shared.plan.steps.iter();
        steps.any(|step| models.continues_sequence(&step.model, step.version, sequence))
    }
}

impl Composite for Graph {
    fn members<'a>(&self, models: &'a ModelTable) -> Vec<Option<&'a Arc<Model>>> {
        let steps = self.shared.plan.steps.iter();
        steps.map(|step| models.find_exactly(&step.model, step.version).ok()).collect()
    }

    fn still_fits(&self, model: &Model, models: &ModelTable) -> Result<bool> {
        fit::still_fits(model, &self.constants, models)
    }
}

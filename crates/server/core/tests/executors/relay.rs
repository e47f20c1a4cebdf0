//! An executor outside of the crate: relays the requests of a model to another one. Models whose configuration has
//! `ensemble_scheduling` relay to the model of their first step, and depend on the models of all steps.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use nereid_core::backend_api::{
    CorrelationId, Error, InferRequest, Request, RequestTrace, Responder, Response, Result,
};
use nereid_core::model_config::ModelConfig;
use nereid_core::model_config::proto::model_config::SchedulingChoice;
use nereid_core::{
    BuildError, Composite, ComputeSum, Executable, Executor, ExecutorFactory, Executors, Item as _, Model,
    ModelSpec, ModelTable, ReadyCheck, Refusal, ScopedName, Sequences, ServedModels, Ticket, VersionLoad,
};
use nereid_tasks::TaskGroup;

/// The kinds of executors of a server with relays.
pub(crate) fn relays() -> Executors {
    [Arc::new(RelayFactory) as Arc<dyn ExecutorFactory>].into_iter().collect()
}

struct RelayFactory;

/// The names of the models that a relay depends on. It sends requests to the first one.
fn members(config: &ModelConfig) -> Option<Vec<String>> {
    match &config.scheduling_choice {
        Some(SchedulingChoice::EnsembleScheduling(ensemble)) => {
            Some(ensemble.step.iter().map(|step| step.model_name.clone()).collect())
        }
        _ => None,
    }
}

impl ExecutorFactory for RelayFactory {
    fn accepts(&self, spec: &ModelSpec) -> bool {
        members(&spec.config).is_some()
    }

    fn dependencies(&self, config: &ModelConfig) -> Option<BTreeSet<String>> {
        Some(members(config)?.into_iter().collect())
    }

    fn build(&self, load: &VersionLoad<'_>) -> Result<Executable, BuildError> {
        let config = load.spec.config.clone();
        let relay = Relay {
            members: members(&config).unwrap_or_default(),
            models: load.models.clone(),
            runs: Arc::default(),
        };
        relay.find_all()?;
        let statistics = load.statistics(&config);
        Ok(Executable::new(config, load.spec.labels.clone(), statistics, Arc::new(relay)))
    }
}

struct Relay {
    members: Vec<String>,
    models: ServedModels,
    runs: Arc<TaskGroup>,
}

impl Relay {
    /// The model that gets the requests.
    fn find(&self) -> Result<Arc<Model>> {
        self.find_all()?.into_iter().next().ok_or_else(|| Error::internal("a relay without a step"))
    }

    fn find_all(&self) -> Result<Vec<Arc<Model>>> {
        let models = self.models.now().ok_or_else(|| Error::unavailable("the server has ended"))?;
        self.members.iter().map(|member| models.find(ScopedName::everywhere(member), None).cloned()).collect()
    }
}

impl Executor for Relay {
    fn submit(&self, request: Request) -> Result<Option<Ticket>> {
        let relayed = self.runs.spawn(request, |request| {
            let target = self.find();
            async move {
                let (mut request, responder, _) = request.into_parts();
                // The trace ends when the request is answered.
                let trace = request.trace.take();
                (request.trace, request.allocator) = (trace.as_ref().map(RequestTrace::child), None);
                let outcome = match target {
                    Ok(target) => relay(&target, request, &responder).await,
                    Err(error) => Err(error),
                };
                responder.finish_with(outcome);
            }
        });
        match relayed {
            Ok(number) => Ok(Some(Ticket::numbered(number))),
            Err(request) => {
                request.refuse(Refusal::Closing);
                Ok(None)
            }
        }
    }

    fn cancel(&self, ticket: Ticket) {
        self.runs.wake(ticket.number());
    }

    fn pending(&self) -> usize {
        0
    }

    fn close(&self) {
        self.runs.close();
        self.runs.wait_until_done();
    }

    fn check_ready(&self) -> Vec<ReadyCheck> {
        let target = self.find();
        vec![Box::pin(async move { target?.ready().await })]
    }

    fn sequences(&self) -> Option<&dyn Sequences> {
        Some(self)
    }

    fn composite(&self) -> Option<&dyn Composite> {
        Some(self)
    }
}

/// The one answer of the target, unless the request is cancelled first.
async fn relay(target: &Arc<Model>, request: InferRequest, responder: &Responder) -> Result<Response> {
    let mut answers = target.infer_for(request, &Arc::<ComputeSum>::default())?;
    poll_fn(|context| match responder.is_cancelled() {
        true => Poll::Ready(Err(Error::cancelled("the request was cancelled"))),
        false => answers.poll_single(context),
    })
    .await
}

impl Sequences for Relay {
    fn continues(&self, sequence: &CorrelationId) -> bool {
        self.find().is_ok_and(|target| target.has_sequence(sequence))
    }
}

impl Composite for Relay {
    fn members<'a>(&self, models: &'a ModelTable) -> Vec<Option<&'a Arc<Model>>> {
        self.members.iter().map(|member| models.find(ScopedName::everywhere(member), None).ok()).collect()
    }

    fn still_fits(&self, _: &Model, models: &ModelTable) -> Result<bool> {
        self.members
            .iter()
            .try_for_each(|member| models.find(ScopedName::everywhere(member), None).map(drop))
            .map(|()| true)
    }
}

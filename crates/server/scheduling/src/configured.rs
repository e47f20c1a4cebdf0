//! Builds the scheduler that a model's configuration selects.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use nereid_backend_api::{CustomBatching, ModelConfig, Request, SequenceState};
use nereid_model_config::latency_objective;
use nereid_model_config::proto::model_config::SchedulingChoice;
use nereid_model_config::proto::model_queue_policy::TimeoutAction;
use nereid_model_config::proto::{ModelDynamicBatching, ModelQueuePolicy};

use super::batcher::adaptive::{AdaptiveBatcher, Objective};
use super::batcher::{Batcher, Policy, Rules};
use super::{Fifo, Handoff, Order, Queue, RequestFormer, Scheduler, sequence};
use crate::rate_limiter::Permits;
use crate::shedding::ServiceTime;
use crate::timer::{Ring, Timer};

/// The context of a scheduler besides its configuration.
pub struct SchedulerContext<'a> {
    /// How many instances there are.
    pub instances: usize,
    /// The backend's own rules for batches.
    pub custom: Option<Arc<dyn CustomBatching>>,
    /// Asked before each execution, if executions are limited.
    pub permits: Option<Permits>,
    /// Watches over requests that wait.
    pub timer: &'a Timer,
    /// The numbers of requests in the queue and in the backlog at which a batcher starts.
    pub hold: (usize, usize),
    /// The initial states of every sequence.
    pub states: Vec<SequenceState>,
    /// Whether instances take requests one at a time, see [`Pulls`](super::Pulls).
    pub is_continuous: bool,
    /// Execution times, if requests that would wait too long are refused.
    pub service: Option<Arc<ServiceTime>>,
}

/// The scheduler of a checked configuration.
pub fn scheduler(config: &ModelConfig, context: SchedulerContext<'_>) -> Arc<dyn Scheduler> {
    let SchedulerContext { instances, custom, permits, timer, hold, states, is_continuous, service } =
        context;
    if let Some(SchedulingChoice::SequenceBatching(batching)) = &config.scheduling_choice {
        let context =
            sequence::configured::SchedulerContext { instances, permits, timer, hold, states, service };
        return sequence::configured::scheduler(config, batching, context);
    }
    let Some(SchedulingChoice::DynamicBatching(batching)) = &config.scheduling_choice else {
        return Arc::new(Handoff::new(Fifo::default(), instances, permits, None, service));
    };
    let rules = Rules { hold: hold.0, ..rules(batching, config.max_batch_size) };
    let (rules, custom) = if is_continuous { (rules.one_at_a_time(), None) } else { (rules, custom) };
    let order = batching.preserve_ordering.then(Arc::<Order>::default);
    let former = RequestFormer::new(config, custom, order);
    match latency_objective(config) {
        None => batching_scheduler(Batcher::new(rules, former), instances, permits, timer, service),
        Some(latency) => {
            let objective = Objective { model: config.name.clone(), latency, instances };
            let batcher = AdaptiveBatcher::new(rules, former, objective, Instant::now());
            batching_scheduler(batcher, instances, permits, timer, service)
        }
    }
}

fn batching_scheduler<Q: Queue<Item = Request> + Send + 'static>(
    queue: Q,
    instances: usize,
    permits: Option<Permits>,
    timer: &Timer,
    service: Option<Arc<ServiceTime>>,
) -> Arc<dyn Scheduler> {
    Arc::new_cyclic(|scheduler: &Weak<Handoff<_>>| {
        let alarm = timer.alarm(Weak::<Handoff<_>>::clone(scheduler) as Weak<dyn Ring>);
        Handoff::new(queue, instances, permits, Some(alarm), service)
    })
}

fn rules(batching: &ModelDynamicBatching, max_batch_size: i32) -> Rules {
    let size = |size: i32| usize::try_from(size).unwrap_or(0);
    Rules {
        max_batch_size: size(max_batch_size).max(1),
        preferred: batching.preferred_batch_size.iter().map(|preferred| size(*preferred)).collect(),
        delay: Duration::from_micros(batching.max_queue_delay_microseconds),
        levels: batching.priority_levels,
        default_level: if batching.priority_levels == 0 { 0 } else { batching.default_priority_level },
        default_policy: batching.default_queue_policy.as_ref().map(policy).unwrap_or_default(),
        policies: batching.priority_queue_policy.iter().map(|(level, it)| (*level, policy(it))).collect(),
        hold: 0,
    }
}

fn policy(policy: &ModelQueuePolicy) -> Policy {
    let timeout = Duration::from_micros(policy.default_timeout_microseconds);
    Policy {
        max_queue_size: usize::try_from(policy.max_queue_size).unwrap_or(usize::MAX),
        timeout: (!timeout.is_zero()).then_some(timeout),
        allow_timeout_override: policy.allow_timeout_override,
        delays_expired: policy.timeout_action() == TimeoutAction::Delay,
    }
}

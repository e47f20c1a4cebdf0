//! Builds the sequence batcher that a model's configuration selects.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use nereid_backend_api::{Buffer, Error, ModelConfig, Result, SequenceState, Shape, Tensor};
use nereid_model_config::proto::model_sequence_batching::initial_state::StateData;
use nereid_model_config::proto::model_sequence_batching::{State, StrategyChoice};
use nereid_model_config::proto::{ModelSequenceBatching, model_sequence_batching::StrategyOldest};

use super::super::batcher::{self, Batcher};
use super::super::{Order, RequestFormer};
use super::SequenceScheduler;
use super::prepare::{RequestPreparer, zeros};
use super::rules::{Rules, Sequences};
use crate::rate_limiter::Permits;
use crate::shedding::ServiceTime;
use crate::timer::{Ring, Timer};

/// The most sequences of a model that may wait for a slot. Each has a request in progress, and the reference sets no limit.
const MAX_BACKLOG: usize = 16_384;

/// The context of a sequence batcher besides its configuration.
pub struct SchedulerContext<'a> {
    /// How many instances there are.
    pub instances: usize,
    /// Asked before each execution, if executions are limited.
    pub permits: Option<Permits>,
    /// Watches over sequences.
    pub timer: &'a Timer,
    /// Nothing leaves until this many requests wait in slots, and this many in the backlog.
    pub hold: (usize, usize),
    /// The initial states of every sequence.
    pub states: Vec<SequenceState>,
    /// Execution times, if requests that would wait too long are refused.
    pub service: Option<Arc<ServiceTime>>,
}

/// The sequence batcher of a checked configuration.
pub fn scheduler(
    config: &ModelConfig,
    batching: &ModelSequenceBatching,
    context: SchedulerContext<'_>,
) -> Arc<SequenceScheduler> {
    let SchedulerContext { instances, permits, timer, hold, states, service } = context;
    let size = |size: i32| usize::try_from(size).unwrap_or(0);
    let max_batch_size = size(config.max_batch_size).max(1);
    let (oldest, direct) = match &batching.strategy_choice {
        Some(StrategyChoice::Oldest(oldest)) => (Some(oldest), None),
        Some(StrategyChoice::Direct(direct)) => (None, Some(direct)),
        None => (None, None),
    };
    let candidates = oldest.map_or(0, |oldest| size(oldest.max_candidate_sequences));
    let wait = direct.map(|direct| {
        let delay = Duration::from_micros(direct.max_queue_delay_microseconds);
        (delay, direct.minimum_slot_utilization)
    });
    let rules = Rules {
        slots: if candidates > 0 { candidates } else { max_batch_size },
        idle: Duration::from_micros(batching.max_sequence_idle_microseconds),
        backlog: MAX_BACKLOG,
        iterates: batching.iterative_sequence,
        wait: wait.filter(|(delay, share)| !delay.is_zero() && *share > 0.0),
        hold: if oldest.is_some() { (0, 0) } else { hold },
    };
    let batcher = |oldest: &StrategyOldest| {
        let rules = batcher::Rules {
            max_batch_size,
            preferred: oldest.preferred_batch_size.iter().map(|preferred| size(*preferred)).collect(),
            delay: Duration::from_micros(oldest.max_queue_delay_microseconds),
            hold: hold.0,
            ..batcher::Rules::default()
        };
        let order = oldest.preserve_ordering.then(Arc::<Order>::default);
        Batcher::new(rules, RequestFormer::new(config, None, order))
    };
    Arc::new_cyclic(|scheduler: &Weak<SequenceScheduler>| {
        let observer = (oldest.is_some() || batching.iterative_sequence).then(|| scheduler.clone());
        let preparer = RequestPreparer::new(config, batching, states, observer);
        let sequences = Sequences::new(rules, preparer, instances, || oldest.map(batcher));
        let alarm = timer.alarm(Weak::<SequenceScheduler>::clone(scheduler) as Weak<dyn Ring>);
        SequenceScheduler::new(sequences, instances, permits, alarm, service)
    })
}

/// The initial states of a model's sequences. `files` holds the files that the configuration names, by name.
///
/// # Errors
/// Which state cannot be made, and why.
pub fn initial_states(
    config: &ModelConfig,
    batching: &ModelSequenceBatching,
    files: &BTreeMap<String, Bytes>,
) -> Result<Vec<SequenceState>> {
    let state = |state: &State| {
        initial_state(config, state, files)
            .map_err(|error| error.context(format_args!("state '{}'", state.input_name)))
    };
    batching.state.iter().map(state).collect()
}

fn initial_state(
    config: &ModelConfig,
    state: &State,
    files: &BTreeMap<String, Bytes>,
) -> Result<SequenceState> {
    let data_type = state.data_type().element_type().ok_or_else(|| Error::invalid_arg("has no data_type"))?;
    let initial = state.initial_state.first();
    // A dimension of any size begins with one.
    let dims = initial.map_or(&state.dims, |initial| &initial.dims).iter();
    let mut shape: Shape = dims.map(|&dim| if dim < 0 { 1 } else { dim }).collect();
    if config.max_batch_size > 0 {
        shape.push_front(1);
    }
    if shape.element_count().is_none() {
        return Err(Error::invalid_arg(format!("cannot begin with the shape {shape}")));
    }
    let contents = match initial.and_then(|initial| initial.state_data.as_ref()) {
        None | Some(StateData::ZeroData(_)) => zeros(data_type, &shape),
        Some(StateData::DataFile(file)) => {
            let contents =
                files.get(file).ok_or_else(|| Error::invalid_arg(format!("has no file '{file}'")))?;
            match data_type.byte_size() {
                None => contents.clone(),
                Some(element) => {
                    let size = shape.element_count().unwrap_or(0).saturating_mul(element);
                    let short = || {
                        let has = contents.len();
                        Error::invalid_arg(format!("takes {size} bytes, but file '{file}' has {has}"))
                    };
                    contents.get(..size).is_some().then(|| contents.slice(..size)).ok_or_else(short)?
                }
            }
        }
    };
    let buffers = [Buffer::host(contents)].into_iter().collect();
    let value = Tensor { name: state.input_name.clone(), data_type, shape, buffers };
    value.check_contents()?;
    let shares_memory = state.use_same_buffer_for_input_output;
    Ok(SequenceState { output: state.output_name.clone(), value, shares_memory })
}

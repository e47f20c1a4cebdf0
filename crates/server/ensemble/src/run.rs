//! One request to an ensemble, from its tensors to its answers. Ensembles with conditions, maps or fallbacks run in
//! [`flow`](crate::flow).
//!
//! A step runs as soon as its inputs are complete. The first failure ends the request; dropping the answers of the other
//! steps cancels them.

use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use nereid_backend_api::{
    Answer, BatchMonitor, Error, ExecutionTimes, InferRequest, Phase, Request, RequestTrace, Responder,
    Response, Result,
};
use nereid_core::{ComputeSum, Model, ResponseStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::graph::Shared;
use crate::wave::{Sequence, Value, Wave};
use crate::{flow, request};

/// The wave of the request itself.
const REQUEST: u64 = 0;

/// Answers a request to an ensemble.
pub(crate) async fn run(shared: Arc<Shared>, request: Request) {
    let started = Instant::now();
    let batch_size = request.batch_size();
    let (request, responder, _) = request.into_parts();
    // The ensemble reports the sum of its members' reports, which may arrive after the answer.
    responder.await_report();
    responder.mark(Phase::Started, started);
    let responder = Arc::new(responder);
    let end = match &shared.flow {
        None => run_waves(&shared, request, batch_size, &responder).await,
        // On the heap, so that other ensembles do not reserve memory for it.
        Some(flow) => Box::pin(flow::run(&shared, flow, request, batch_size, &responder)).await,
    };
    // The trace ends when the request is answered.
    let RunEnd { outcome, computed, trace: _trace } = match end {
        Ok(end) => end,
        Err(error) => return responder.finish_with(Err(in_ensemble(&shared.plan.name, &error))),
    };
    let last = match outcome {
        Ok(last) => last,
        Err(error) => return responder.finish_with(Err(in_ensemble(&shared.plan.name, &error))),
    };
    let (reporter, statistics) = (Arc::clone(&responder), Arc::clone(&shared.statistics));
    computed.finish(move |sum| {
        let inputs_ready = started + sum.input;
        let outputs_ready = inputs_ready + sum.infer;
        let times =
            ExecutionTimes { started, inputs_ready, outputs_ready, ended: outputs_ready + sum.output };
        statistics.executed(batch_size, times);
        reporter.report(times);
    });
    match last {
        Some(response) => responder.finish_with(Ok(response)),
        None => responder.finish(),
    }
}

/// The end of a run: all of its requests to members have ended, or are cancelled.
pub(crate) struct RunEnd {
    /// The last response, which is not sent yet.
    pub outcome: Result<Option<Response>>,
    pub computed: Arc<ComputeSum>,
    pub trace: Option<RequestTrace>,
}

async fn run_waves(
    shared: &Shared,
    request: InferRequest,
    batch_size: usize,
    responder: &Responder,
) -> Result<RunEnd> {
    let mut run = Run::new(shared, request, batch_size, responder)?;
    let outcome = run.execute().await.map(|()| run.last.take());
    Ok(RunEnd { outcome, computed: Arc::clone(&run.computed), trace: run.template.trace.take() })
}

fn in_ensemble(name: &str, error: &Error) -> Error {
    Error::new(error.code(), format!("in ensemble '{name}', {}", error.message()))
}

/// A step of a wave whose inputs are complete.
struct Ready {
    wave: u64,
    step: usize,
}

/// A request to a member.
struct Live {
    ready: Ready,
    answers: ResponseStream,
    /// Whether the member may answer any number of times.
    is_decoupled: bool,
    batch: usize,
    sequence: Sequence,
    /// The permit of `max_inflight_requests`.
    _permit: Option<OwnedSemaphorePermit>,
}

/// Something that a run waits for.
enum WaitingFor {
    Answer(Live),
    Permit(Ready, Arc<Semaphore>),
}

enum Event {
    /// An answer; `None` after the last.
    Answered(Live, Option<Answer>),
    Permitted(Ready, OwnedSemaphorePermit),
}

async fn event_of(awaited: WaitingFor) -> Result<Event> {
    match awaited {
        WaitingFor::Answer(mut live) if live.is_decoupled => {
            let answer = live.answers.next().await;
            Ok(Event::Answered(live, answer))
        }
        WaitingFor::Answer(mut live) => {
            let answer = live.answers.single().await;
            Ok(Event::Answered(live, Some(answer)))
        }
        WaitingFor::Permit(ready, limit) => {
            let closed = |_| Error::internal("the semaphore of max_inflight_requests was closed");
            Ok(Event::Permitted(ready, limit.acquire_owned().await.map_err(closed)?))
        }
    }
}

impl Event {
    fn wave(&self) -> u64 {
        let (Self::Answered(Live { ready, .. }, _) | Self::Permitted(ready, _)) = self;
        ready.wave
    }
}

/// The events since the last poll, older waves first; none if nothing is awaited.
///
/// `FuturesUnordered` may yield a member's second answer before the first. Sorting by wave preserves the order of members
/// that answer in order.
fn poll_events<F>(awaited: &mut FuturesUnordered<F>, context: &mut Context<'_>) -> Poll<Result<Vec<Event>>>
where
    F: Future<Output = Result<Event>>,
{
    let mut events = Vec::new();
    while let Poll::Ready(event) = awaited.poll_next_unpin(context) {
        let Some(event) = event.transpose()? else { break };
        events.push(event);
    }
    if events.is_empty() && !awaited.is_empty() {
        return Poll::Pending;
    }
    events.sort_by_key(Event::wave);
    Poll::Ready(Ok(events))
}

struct Run<'a> {
    shared: &'a Shared,
    responder: &'a Responder,
    /// The ensemble's request without its inputs: the template of all requests to members.
    template: InferRequest,
    /// The member of each step, held so that it is not unloaded in the meantime.
    members: Vec<Option<Arc<Model>>>,
    needed: Vec<bool>,
    /// Indices in the plan of the requested outputs.
    wanted: Vec<usize>,
    batch: usize,
    waves: BTreeMap<u64, Wave>,
    next_wave: u64,
    ready: VecDeque<Ready>,
    /// Number of steps that wait for a permit, by rank.
    throttled: BTreeMap<usize, usize>,
    /// Decoupled members whose answers are not read until later steps have caught up.
    paused: Vec<Live>,
    computed: Arc<ComputeSum>,
    /// Number of responses made.
    made: usize,
    /// The latest response, kept until it is known whether another one follows.
    last: Option<Response>,
}

impl<'a> Run<'a> {
    /// A run with the request's own tensors set.
    fn new(
        shared: &'a Shared,
        mut template: InferRequest,
        batch_size: usize,
        responder: &'a Responder,
    ) -> Result<Self> {
        let plan = &shared.plan;
        let wanted = plan.wanted_by(&template);
        let needed = plan.needed_for(&wanted);
        let models = shared.models.now();
        let members = plan.steps.iter().zip(&needed).map(|(step, needed)| {
            let gone = || Error::unavailable("the server is stopping");
            let find = || models.as_ref().ok_or_else(gone)?.find_for(&step.model, step.version, &template);
            needed.then(find).transpose()
        });
        let members = members.collect::<Result<_>>()?;
        let batch = if plan.batches { batch_size } else { 0 };
        let inputs = std::mem::take(&mut template.inputs);
        let mut run = Self {
            shared,
            responder,
            template,
            members,
            needed,
            wanted,
            batch,
            waves: BTreeMap::new(),
            next_wave: REQUEST,
            ready: VecDeque::new(),
            throttled: BTreeMap::new(),
            paused: Vec::new(),
            computed: Arc::default(),
            made: 0,
            last: None,
        };
        let mut values: BTreeMap<_, _> = plan.inputs.values().map(|&tensor| (tensor, None)).collect();
        for input in inputs {
            if let Some(&tensor) = plan.inputs.get(&input.name) {
                values.insert(tensor, Some(input));
            }
        }
        let values = values
            .into_iter()
            .map(|(tensor, given)| (tensor, Value { tensor: given, batch, sequence: None }));
        let wave = run.begin_wave();
        run.fill(wave, values.collect());
        Ok(run)
    }

    /// Runs all steps. Sends each response except the last when it is made.
    async fn execute(&mut self) -> Result<()> {
        let mut awaited = FuturesUnordered::new();
        loop {
            while let Some(ready) = self.ready.pop_front() {
                let limit = self.shared.limits.get(ready.step);
                match limit.map(|limit| Arc::clone(limit).try_acquire_owned()) {
                    Some(Err(_)) => {
                        *self.throttled.entry(self.rank(ready.step)).or_default() += 1;
                        let limit = Arc::clone(&self.shared.limits[ready.step]);
                        awaited.push(event_of(WaitingFor::Permit(ready, limit)));
                    }
                    Some(Ok(permit)) => awaited.push(event_of(self.begin(ready, Some(permit))?)),
                    None => awaited.push(event_of(self.begin(ready, None)?)),
                }
            }
            for live in self.resumed() {
                awaited.push(event_of(WaitingFor::Answer(live)));
            }
            if !(awaited.is_empty() && self.paused.is_empty())
                && let Some(response) = self.last.take()
            {
                self.responder.send(Ok(response));
            }
            let events = poll_fn(|context| {
                if self.responder.is_cancelled() {
                    return Poll::Ready(Err(Error::cancelled("the request was cancelled")));
                }
                poll_events(&mut awaited, context)
            });
            let events = events.await?;
            if events.is_empty() {
                break;
            }
            for event in events {
                match event {
                    Event::Permitted(ready, permit) => {
                        let rank = self.rank(ready.step);
                        if let Some(count) = self.throttled.get_mut(&rank) {
                            *count -= 1;
                            if *count == 0 {
                                self.throttled.remove(&rank);
                            }
                        }
                        awaited.push(event_of(self.begin(ready, Some(permit))?));
                    }
                    Event::Answered(live, Some(answer)) => {
                        self.take(&live, answer?)?;
                        if live.is_decoupled {
                            self.paused.push(live);
                        } else {
                            self.end(live.ready.wave);
                        }
                    }
                    Event::Answered(live, None) => self.end(live.ready.wave),
                }
            }
        }
        // A decoupled ensemble may answer nothing.
        if self.made == 0 && !self.shared.plan.is_decoupled {
            return Err(Error::invalid_arg(
                "an output was not produced: a member returned other outputs than its configuration declared when \
                 the ensemble was loaded",
            ));
        }
        Ok(())
    }

    /// The decoupled members whose answers are read again: no step behind them waits for a permit.
    ///
    /// A waiting step waits for requests of its own or a higher rank, which are never paused for it, so some request can
    /// always continue.
    fn resumed(&mut self) -> Vec<Live> {
        let Some(rank) = self.throttled.keys().next_back().copied() else {
            return std::mem::take(&mut self.paused);
        };
        let (resumed, paused) =
            std::mem::take(&mut self.paused).into_iter().partition(|live| self.rank(live.ready.step) >= rank);
        self.paused = paused;
        resumed
    }

    fn rank(&self, step: usize) -> usize {
        self.shared.plan.steps[step].rank
    }

    fn begin_wave(&mut self) -> u64 {
        let number = self.next_wave;
        self.next_wave += 1;
        self.waves.insert(number, Wave::new(&self.shared.plan, &self.needed, &self.wanted));
        number
    }

    /// Sets tensors of a wave, and responds once it has all outputs.
    fn fill(&mut self, number: u64, values: Vec<(usize, Value)>) {
        let plan = &self.shared.plan;
        let Some(wave) = self.waves.get_mut(&number) else { return };
        let mut steps = Vec::new();
        let mut outputs = 0;
        for (tensor, value) in values {
            outputs += self.wanted.iter().filter(|&&output| plan.outputs[output].tensor == tensor).count();
            wave.set(plan, &self.needed, tensor, value, &mut steps);
        }
        wave.open += steps.len();
        let responds = wave.complete_outputs(outputs);
        self.ready.extend(steps.into_iter().map(|step| Ready { wave: number, step }));
        if responds {
            self.respond(number);
        }
        self.forget_if_over(number);
    }

    /// A request to a member of that wave has ended.
    fn end(&mut self, wave: u64) {
        if let Some(wave) = self.waves.get_mut(&wave) {
            wave.open -= 1;
        }
        self.forget_if_over(wave);
    }

    fn forget_if_over(&mut self, number: u64) {
        if self.waves.get(&number).is_some_and(|wave| wave.open == 0) {
            self.waves.remove(&number);
        }
    }

    /// Makes the request to a step's member.
    fn begin(&mut self, ready: Ready, permit: Option<OwnedSemaphorePermit>) -> Result<WaitingFor> {
        let step = &self.shared.plan.steps[ready.step];
        let (Some(member), Some(wave)) = (&self.members[ready.step], self.waves.get_mut(&ready.wave)) else {
            return Err(Error::internal("a step was scheduled that no requested output needs"));
        };
        let signature = member.signature();
        let batches = signature.max_batch_size > 0;
        let mut sequence: Option<Sequence> = None;
        let mut inputs = Vec::with_capacity(step.inputs.len());
        for (name, tensor) in &step.inputs {
            let Some(value) = wave.read(*tensor) else { continue };
            let value = match signature.input(name) {
                Some(input) => value.shaped_for(&input.dims, batches),
                None => value,
            };
            request::join_sequences(&mut sequence, value.sequence, member.name(), &self.shared.plan.name);
            if let Some(mut input) = value.tensor {
                input.name.clone_from(name);
                inputs.push(input);
            }
        }
        let first_dim = inputs.first().and_then(|input| input.shape.first());
        let batch = match first_dim {
            _ if !batches => 0,
            Some(&size) => usize::try_from(size).unwrap_or(0),
            None => 1,
        };
        let sequence = sequence.unwrap_or_else(|| Sequence::of(&self.template));
        let policy_contents = request::policy_contents(&self.template, &self.shared.plan, step);
        let request = request::to_member(&self.template, step, inputs, &sequence, policy_contents);
        let is_decoupled = member.is_decoupled();
        let answers = member.infer_for(request, &self.computed)?;
        Ok(WaitingFor::Answer(Live { ready, answers, is_decoupled, batch, sequence, _permit: permit }))
    }

    /// Takes a member's answer.
    fn take(&mut self, live: &Live, mut response: Response) -> Result<()> {
        let sequence = live.sequence.after_response(&response.parameters)?;
        let wave = if live.is_decoupled { self.begin_wave() } else { live.ready.wave };
        let step = &self.shared.plan.steps[live.ready.step];
        let values = step.outputs.iter().map(|(name, tensor)| {
            let given = response.outputs.iter().position(|output| output.name == *name);
            // A step that reads an omitted output runs without it, if the input is optional.
            let given = given.map(|index| response.outputs.swap_remove(index));
            (*tensor, Value { tensor: given, batch: live.batch, sequence: Some(sequence.clone()) })
        });
        let values = values.collect();
        self.fill(wave, values);
        Ok(())
    }

    /// Makes a response from a complete wave.
    fn respond(&mut self, number: u64) {
        let Some(wave) = self.waves.get_mut(&number) else { return };
        let mut response = Response::default();
        for &output in &self.wanted {
            let output = &self.shared.plan.outputs[output];
            let Some(value) = wave.read(output.tensor) else { continue };
            let value = value.shaped_for(&output.dims, self.batch > 0);
            if let (Some(sequence), Some(_)) = (&value.sequence, &value.tensor) {
                sequence.write_to(&mut response.parameters);
            }
            if let Some(mut tensor) = value.tensor {
                tensor.name.clone_from(&output.name);
                response.outputs.push(tensor);
            }
        }
        self.made += 1;
        if let Some(before) = self.last.replace(response) {
            self.responder.send(Ok(before));
        }
    }
}

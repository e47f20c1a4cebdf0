//! One request, from its tensors to its answer.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;
use std::time::Instant;

use futures_util::stream::FuturesUnordered;
use nereid_backend_api::{Error, ErrorCode, InferRequest, Responder, Response, Result, Tensor};
use nereid_core::{ComputeSum, Model};
use tokio::sync::OwnedSemaphorePermit;

use super::plan::{Flow, FlowStep};
use super::requests::Requests;
use super::rows::Rows;
use super::running::{Event, Running, answer, permit, poll_events};
use super::tensors::{Piece, Source, Tensors};
use crate::graph::Shared;
use crate::run::RunEnd;
use crate::wave::Value;

/// Runs a request. Requests to members that are still in progress at its end are cancelled.
pub(crate) async fn run(
    shared: &Shared,
    flow: &Flow,
    request: InferRequest,
    batch_size: usize,
    responder: &Responder,
) -> Result<RunEnd> {
    let mut run = Run::new(shared, flow, request, batch_size, responder)?;
    let outcome = run.execute().await.map(Some);
    Ok(RunEnd { outcome, computed: Arc::clone(&run.computed), trace: run.template.trace.take() })
}

struct Run<'a> {
    shared: &'a Shared,
    flow: &'a Flow,
    responder: &'a Responder,
    /// The ensemble's request without its inputs: the template of all requests to members.
    template: InferRequest,
    /// The member of each needed step, held so that it is not unloaded in the meantime.
    members: Vec<Option<Result<Arc<Model>>>>,
    tensors: Tensors<'a>,
    steps: Vec<Progress>,
    /// Steps whose tensors are complete.
    ready: VecDeque<usize>,
    running: Vec<Running>,
    /// Number of the next step that runs, for events.
    next_run: u64,
    /// Indices in the plan of the requested outputs.
    wanted: Vec<usize>,
    /// Number of requested outputs that are not complete.
    outputs_missing: usize,
    computed: Arc<ComputeSum>,
}

/// The progress of a step towards its start.
struct Progress {
    /// Number of incomplete tensors.
    missing: usize,
    is_skipped: bool,
    /// The rows of a fallback that replaces a failed step.
    rows: Option<Rows>,
    /// Number of its fallbacks that have been used.
    fallbacks_used: usize,
}

impl<'a> Run<'a> {
    /// A run with the request's own tensors set.
    fn new(
        shared: &'a Shared,
        flow: &'a Flow,
        mut template: InferRequest,
        batch_size: usize,
        responder: &'a Responder,
    ) -> Result<Self> {
        let plan = &shared.plan;
        let wanted = plan.wanted_by(&template);
        let needed = flow.needed_for(wanted.iter().map(|&output| plan.outputs[output].tensor).collect());
        let models = shared.models.now();
        let members = plan.steps.iter().zip(&needed).map(|(step, needed)| {
            let gone = || Error::unavailable("the server is stopping");
            let find = || models.as_ref().ok_or_else(gone)?.find_for(&step.model, step.version, &template);
            needed.then(find)
        });
        let members = members.collect();
        let inputs = std::mem::take(&mut template.inputs);
        let batch = if plan.batches { batch_size } else { 0 };
        let progress = |step: &FlowStep| Progress {
            missing: step.waits_for.len(),
            is_skipped: false,
            rows: None,
            fallbacks_used: 0,
        };
        let mut run = Self {
            shared,
            flow,
            responder,
            template,
            members,
            tensors: Tensors::new(flow, batch),
            steps: flow.steps.iter().map(progress).collect(),
            ready: VecDeque::new(),
            running: Vec::new(),
            next_run: 0,
            outputs_missing: wanted.len(),
            wanted,
            computed: Arc::default(),
        };
        let mut completed = Vec::new();
        for (name, &tensor) in &plan.inputs {
            let given = inputs.iter().find(|input| input.name == *name).cloned();
            run.tensors.give(tensor, Value { tensor: given, batch, sequence: None }, &mut completed)?;
        }
        run.advance(completed)?;
        Ok(run)
    }

    async fn execute(&mut self) -> Result<Response> {
        loop {
            while self.outputs_missing > 0
                && let Some(step) = self.ready.pop_front()
            {
                self.begin(step)?;
            }
            // Steps that run still are needed by skipped steps only.
            if self.outputs_missing == 0 {
                return self.response();
            }
            if self.running.is_empty() {
                return Err(Error::internal("no step can run, but outputs are missing"));
            }
            let events = poll_fn(|context| {
                if self.responder.is_cancelled() {
                    return Poll::Ready(Err(Error::cancelled("the request was cancelled")));
                }
                poll_events(&mut self.running, context).map(Ok)
            });
            for (number, event) in events.await? {
                self.handle(number, event)?;
            }
        }
    }

    /// Complete tensors may let steps run, or decide that they are skipped.
    fn advance(&mut self, mut completed: Vec<usize>) -> Result<()> {
        let mut place = 0;
        while let Some(&tensor) = completed.get(place) {
            place += 1;
            let outputs = &self.shared.plan.outputs;
            let is_output = |output: &&usize| outputs[**output].tensor == tensor;
            self.outputs_missing -= self.wanted.iter().filter(is_output).count();
            for &step in &self.flow.tensors[tensor].readers {
                self.steps[step].missing -= 1;
                if self.is_skipped(step, tensor)? {
                    self.steps[step].is_skipped = true;
                    for &(_, output) in &self.shared.plan.steps[step].outputs {
                        self.tensors.write(output, None, &mut completed)?;
                    }
                }
                self.schedule(step);
            }
        }
        Ok(())
    }

    /// Whether a tensor that is complete now rules out that a step runs. A step is skipped as soon as this is known, since
    /// other steps may write its outputs.
    fn is_skipped(&mut self, step: usize, tensor: usize) -> Result<bool> {
        let FlowStep { conditions, replaces, .. } = &self.flow.steps[step];
        let is_condition = conditions.iter().any(|&(condition, _)| condition == tensor);
        if !is_condition || replaces.is_some() || self.steps[step].is_skipped || self.members[step].is_none()
        {
            return Ok(false);
        }
        let known: Vec<_> = conditions
            .iter()
            .copied()
            .filter(|&(condition, _)| self.tensors.is_complete(condition))
            .collect();
        Ok(self.tensors.rows_where(&known)?.len(self.tensors.rows()) == 0)
    }

    /// Schedules a needed step whose tensors are complete, a fallback only if it is to run.
    fn schedule(&mut self, step: usize) {
        let Progress { missing, is_skipped, rows, .. } = &self.steps[step];
        let is_due = self.flow.steps[step].replaces.is_none() || rows.is_some();
        if *missing == 0 && is_due && !is_skipped && self.members[step].is_some() {
            self.ready.push_back(step);
        }
    }

    /// Begins a step whose tensors are complete.
    fn begin(&mut self, step: usize) -> Result<()> {
        let rows = match self.steps[step].rows.take() {
            Some(rows) => rows,
            None => self.tensors.rows_where(&self.flow.steps[step].conditions)?,
        };
        let member = match &self.members[step] {
            Some(Ok(member)) => Arc::clone(member),
            Some(Err(error)) => {
                let error = error.clone();
                return self.fail(step, rows, error);
            }
            None => return Err(Error::internal("a step was scheduled that no requested output needs")),
        };
        let context = (self.shared, self.flow);
        let requests = Requests::new(context, &self.tensors, &self.template, (step, &rows), &member);
        let requests = match requests {
            Ok(requests) => requests,
            Err(error) => return self.fail(step, rows, error),
        };
        let count = requests.count();
        let mut running = Running {
            number: self.next_run,
            step,
            member,
            rows,
            requests,
            next: 0,
            awaited: FuturesUnordered::new(),
            answers: std::iter::repeat_with(|| None).take(count).collect(),
            answers_missing: count,
            deadline: None,
        };
        self.next_run += 1;
        if count == 0 {
            return self.succeed(running);
        }
        while running.awaited.len() < self.flow.max_in_flight && running.next < count {
            if let Err(error) = self.request_next(&mut running) {
                return self.fail(step, running.rows, error);
            }
        }
        let limit = self.flow.steps[step].time_limit.and_then(|limit| Instant::now().checked_add(limit));
        running.deadline = limit.map(|end| self.shared.deadlines.at(end));
        self.running.push(running);
        Ok(())
    }

    /// Makes the request for the next element, once there is a permit.
    fn request_next(&self, running: &mut Running) -> Result<()> {
        let element = running.next;
        running.next += 1;
        match self.shared.limits.get(running.step) {
            None => self.request(running, element, None),
            Some(limit) => match Arc::clone(limit).try_acquire_owned() {
                Ok(held) => self.request(running, element, Some(held)),
                Err(_) => {
                    running.awaited.push(Box::pin(permit(element, Arc::clone(limit))));
                    Ok(())
                }
            },
        }
    }

    fn request(
        &self,
        running: &mut Running,
        element: usize,
        permit: Option<OwnedSemaphorePermit>,
    ) -> Result<()> {
        let request = running.requests.make(element, self.shared, &self.template);
        let answers = running.member.infer_for(request, &self.computed)?;
        running.awaited.push(Box::pin(answer(element, answers, permit)));
        Ok(())
    }

    fn handle(&mut self, number: u64, event: Event) -> Result<()> {
        // An earlier event may have ended it.
        let Some(place) = self.running.iter().position(|running| running.number == number) else {
            return Ok(());
        };
        let mut running = self.running.swap_remove(place);
        let outcome = match event {
            Event::Permitted(element, permit) => self.request(&mut running, element, Some(permit)),
            Event::Closed => Err(Error::internal("the semaphore of max_inflight_requests was closed")),
            Event::Expired => Err(self.expired(running.step)),
            Event::Answered(element, answer) => answer.and_then(|answer| {
                if running.answers[element].replace(answer).is_none() {
                    running.answers_missing -= 1;
                }
                if running.next < running.answers.len() { self.request_next(&mut running) } else { Ok(()) }
            }),
        };
        match outcome {
            Err(error) => {
                let Running { step, rows, .. } = running;
                self.fail(step, rows, error)
            }
            Ok(()) if running.answers_missing == 0 => self.succeed(running),
            Ok(()) => {
                self.running.push(running);
                Ok(())
            }
        }
    }

    fn expired(&self, step: usize) -> Error {
        let model = &self.shared.plan.steps[step].model.name;
        let limit = self.flow.steps[step].time_limit.unwrap_or_default();
        Error::unavailable(format!(
            "step {step} (model '{model}') took longer than its time limit of {limit:?}"
        ))
    }

    /// A step has all answers.
    fn succeed(&mut self, running: Running) -> Result<()> {
        let Running { step, member, rows, requests, answers, .. } = running;
        let answers = answers.into_iter().flatten().collect();
        let values = match requests.outputs(self.shared, &member, answers) {
            Ok(values) => values,
            Err(error) => return self.fail(step, rows, error),
        };
        let outputs = self.shared.plan.steps[step].outputs.iter().map(|&(_, tensor)| tensor);
        let mut values: Vec<_> = outputs.zip(values).map(|(tensor, value)| (tensor, Some(value))).collect();
        let writer = self.flow.steps[step].replaces.unwrap_or(step);
        let pieces = self.shared.plan.steps[writer].outputs.iter().map(|&(_, tensor)| {
            let value = values.iter_mut().find(|(written, _)| *written == tensor);
            let filler = || self.flow.tensors[tensor].on_error.clone().map(Source::Filler);
            let source = value.and_then(|(_, value)| value.take()).map(Source::Value).or_else(filler);
            (tensor, source.map(|source| Piece { rows: rows.clone(), source }))
        });
        let pieces = pieces.collect();
        self.end(pieces)
    }

    /// A step has failed: its next fallback runs, or its outputs have values, or the request fails.
    fn fail(&mut self, step: usize, rows: Rows, error: Error) -> Result<()> {
        // What the client cancelled has not failed.
        if error.code() == ErrorCode::Cancelled || self.responder.is_cancelled() {
            return Err(error);
        }
        let flow = self.flow;
        let writer = flow.steps[step].replaces.unwrap_or(step);
        let plan = &self.shared.plan;
        let used = &mut self.steps[writer].fallbacks_used;
        let fallback = flow.steps[writer].fallbacks.get(*used).copied();
        let replacement = match fallback {
            Some(fallback) => format!("step {fallback} (model '{}')", plan.steps[fallback].model.name),
            None if flow.steps[writer].has_values => "the values of its outputs".to_owned(),
            None => return Err(error),
        };
        self.shared.statistics.record_fallback();
        let (ensemble, model) = (&plan.name, &plan.steps[step].model.name);
        // A model that is down fails every request: the log has the 1st, 10th, 100th failure and so on.
        let count = flow.steps[step].failures.fetch_add(1, Relaxed) + 1;
        if 10_u64.pow(count.ilog10()) == count {
            tracing::warn!(
                "ensemble '{ensemble}': step {step} (model '{model}') failed, using {replacement} ({count} failures so \
                 far): {error}"
            );
        } else {
            tracing::debug!("ensemble '{ensemble}': step {step} (model '{model}') failed: {error}");
        }
        if let Some(fallback) = fallback {
            *used += 1;
            self.steps[fallback].rows = Some(rows);
            self.schedule(fallback);
            return Ok(());
        }
        let pieces = plan.steps[writer].outputs.iter().map(|&(_, tensor)| {
            let filler = flow.tensors[tensor].on_error.clone().map(Source::Filler);
            (tensor, filler.map(|source| Piece { rows: rows.clone(), source }))
        });
        let pieces = pieces.collect();
        self.end(pieces)
    }

    /// A step has ended, with these outputs.
    fn end(&mut self, pieces: Vec<(usize, Option<Piece>)>) -> Result<()> {
        let mut completed = Vec::new();
        for (tensor, piece) in pieces {
            self.tensors.write(tensor, piece, &mut completed)?;
        }
        self.advance(completed)
    }

    /// The response with all outputs.
    fn response(&self) -> Result<Response> {
        let plan = &self.shared.plan;
        let mut response = Response::default();
        for &output in &self.wanted {
            let output = &plan.outputs[output];
            if !self.tensors.is_whole(output.tensor) {
                return Err(Error::internal(format!("output '{}' has no value in some rows", output.name)));
            }
            let value = self.tensors.of_rows(output.tensor, &Rows::All)?;
            let value = value.shaped_for(&output.dims, plan.batches);
            if let (Some(sequence), Some(_)) = (&value.sequence, &value.tensor) {
                sequence.write_to(&mut response.parameters);
            }
            if let Some(tensor) = value.tensor {
                response.outputs.push(Tensor { name: output.name.clone(), ..tensor });
            }
        }
        Ok(response)
    }
}

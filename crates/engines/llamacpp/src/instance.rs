//! An instance: takes requests from the model's queue as sequences become free, and executes them together.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nereid_backend_api::{
    Batch, BatchMonitor, Error, ExecutionTimes, Instance, Intake, Next, Request, Result,
};

use crate::contract::{self, Format, PromptTokens, Wish};
use crate::engine::{Engine, Token, Vocabulary};
use crate::guide::{self, Compiler};
use crate::metrics::Metrics;
use crate::scheduler::{Client, Finish, Generation, Load, Owner, Part, Scheduler};
use crate::tokens;

/// An instance over an engine.
pub(crate) struct LanguageInstance<E> {
    scheduler: Scheduler<E, Reply>,
    vocabulary: Arc<dyn Vocabulary>,
    /// Longer texts have more tokens than the context.
    longest_text: usize,
    /// The names of the engine's adapters, by their numbers.
    adapters: Vec<String>,
    /// Whether requests of different senders share cached prefixes.
    shares_prefixes: bool,
    compiler: Compiler,
    /// Requests whose forms are being compiled.
    waiting: Vec<Waiting>,
    /// `None` if the server takes none.
    metrics: Option<Arc<Mutex<Metrics>>>,
}

/// A request that was read and checked.
struct Prepared {
    wish: Wish,
    prompt: Vec<Token>,
    adapter: Option<usize>,
}

/// A request whose form is being compiled.
struct Waiting {
    generation: Generation<Reply>,
    guide: guide::Pending,
}

/// How long an instance without anything else to do waits for a form before it looks for further requests.
const PATIENCE: Duration = Duration::from_millis(2);

impl<E: Engine> LanguageInstance<E> {
    pub(crate) fn new(
        scheduler: Scheduler<E, Reply>,
        vocabulary: Arc<dyn Vocabulary>,
        longest_text: usize,
        adapters: Vec<String>,
        shares_prefixes: bool,
        metrics: Option<Metrics>,
    ) -> Self {
        let compiler = Compiler::new(Arc::clone(&vocabulary));
        Self {
            scheduler,
            vocabulary,
            longest_text,
            adapters,
            shares_prefixes,
            compiler,
            waiting: Vec::new(),
            metrics: metrics.map(|metrics| Arc::new(Mutex::new(metrics))),
        }
    }

    /// Admits the request of a batch, or answers it with what is wrong.
    fn admit(&mut self, batch: Batch) {
        let (started, monitor) = (Instant::now(), batch.monitor());
        for request in batch.into_requests() {
            if let Some(answer) = tokens::answer(&request, &*self.vocabulary, self.longest_text) {
                request.answer(answer);
                continue;
            }
            match self.prepare(&request) {
                Ok(Prepared { mut wish, prompt, adapter }) => {
                    let inputs_ready = Instant::now();
                    request.responder().mark(nereid_backend_api::Phase::InputsReady, inputs_ready);
                    let text = if wish.format.repeats_input { wish.text } else { String::new() };
                    let owner = Owner {
                        flow: if self.shares_prefixes { 0 } else { request.flow.id },
                        salt: std::mem::take(&mut wish.parameters.cache_salt),
                    };
                    let client = Reply {
                        request,
                        format: wish.format,
                        vocabulary: Arc::clone(&self.vocabulary),
                        pending: Part { text, ..Part::default() },
                        input_tokens: prompt.len(),
                        cached_tokens: 0,
                        output_tokens: 0,
                        first_token: None,
                        metrics: self.metrics.clone(),
                        monitor: Arc::clone(&monitor),
                        started,
                        inputs_ready,
                    };
                    let structure = wish.parameters.structure.take();
                    let parameters = wish.parameters;
                    let generation = Generation { client, prompt, parameters, owner, guide: None, adapter };
                    match structure.map(|structure| self.compiler.begin(structure)) {
                        None => self.scheduler.admit(generation, Instant::now()),
                        Some(Ok(guide)) => self.waiting.push(Waiting { generation, guide }),
                        Some(Err(error)) => generation.client.fail(error),
                    }
                }
                Err(error) => request.answer(Err(error)),
            }
        }
    }

    /// Reads a request, its text as tokens, and its adapter.
    fn prepare(&self, request: &Request) -> Result<Prepared> {
        let mut wish = Wish::of(request, self.vocabulary.size())?;
        let most = self.scheduler.longest_guess();
        if let Some(guessed) = wish.parameters.speculative_tokens.filter(|guessed| *guessed > most) {
            return Err(Error::invalid_arg(format!(
                "sampling parameter 'speculative_tokens' is {guessed}, but must be at most {most}, as the model's parameter"
            )));
        }
        let context = self.scheduler.limits().context;
        let too_long = |length: String| {
            Error::invalid_arg(format!(
                "the prompt has {length}, but the context holds {context} tokens, of which one is for the output"
            ))
        };
        if wish.text.len() > self.longest_text {
            return Err(too_long(format!("{} bytes", wish.text.len())));
        }
        let prompt = match wish.tokens.take() {
            Some(tokens) => {
                if wish.format.repeats_input {
                    let text = self.vocabulary.detokenize(&tokens);
                    wish.text = String::from_utf8_lossy(&text).into_owned();
                }
                tokens
            }
            None => self
                .vocabulary
                .tokenize_marked(&wish.text, wish.literal_mark, true)
                .map_err(|reason| Error::invalid_arg(format!("input 'text_input': {reason}")))?,
        };
        if let Some(mark) = wish.literal_mark {
            wish.text = wish.text.replace(mark, "");
        }
        match prompt.len() {
            0 => Err(Error::invalid_arg("the prompt has no tokens")),
            length if length >= context => Err(too_long(format!("{length} tokens"))),
            _ => Ok(Prepared { adapter: self.adapter(wish.parameters.adapter.as_deref())?, wish, prompt }),
        }
    }
}

impl<E: Engine> LanguageInstance<E> {
    /// The number of the adapter with a name.
    fn adapter(&self, name: Option<&str>) -> Result<Option<usize>> {
        let Some(name) = name else { return Ok(None) };
        let number = self.adapters.iter().position(|adapter| adapter == name);
        let missing = || {
            Error::not_found(format!(
                "the model has no adapter '{name}' (available: {})",
                if self.adapters.is_empty() { "none".to_owned() } else { self.adapters.join(", ") }
            ))
        };
        number.map(Some).ok_or_else(missing)
    }

    /// Whether there is nothing to do.
    fn is_idle(&self) -> bool {
        self.scheduler.is_idle() && self.waiting.is_empty()
    }

    /// Admits the requests whose forms are compiled, and evaluates one batch.
    fn step(&mut self) {
        let mut place = 0;
        while let Some(Waiting { generation, guide }) = self.waiting.get(place) {
            let is_alone = place == 0 && self.scheduler.is_idle();
            let outcome = match guide.poll(if is_alone { PATIENCE } else { Duration::ZERO }) {
                _ if generation.client.is_cancelled() => Err(Error::cancelled("the request was cancelled")),
                Some(outcome) => outcome,
                None => {
                    place += 1;
                    continue;
                }
            };
            let mut generation = self.waiting.remove(place).generation;
            match outcome {
                Ok(guide) => {
                    generation.guide = Some(guide);
                    self.scheduler.admit(generation, Instant::now());
                }
                Err(error) => generation.client.fail(error),
            }
        }
        if !self.scheduler.is_idle() {
            self.scheduler.step(Instant::now());
        }
        if let Some(metrics) = &self.metrics {
            let load = self.scheduler.load();
            let load = Load { waiting: load.waiting + self.waiting.len(), ..load };
            metrics.lock().unwrap_or_else(PoisonError::into_inner).set_load(load);
        }
    }
}

impl<E: Engine + Send> Instance for LanguageInstance<E> {
    fn execute(&mut self, batch: Batch) {
        self.admit(batch);
        while !self.is_idle() {
            self.step();
        }
    }

    fn executes_continuously(&self) -> bool {
        true
    }

    fn capacity(&self) -> usize {
        self.scheduler.limits().sequences
    }

    fn run(&mut self, mut intake: Intake) {
        loop {
            let mut has_ended = false;
            while self.scheduler.room() > self.waiting.len() {
                match intake.try_next(|_| true) {
                    Next::Request(batch) => self.admit(batch),
                    Next::Full | Next::Nothing => break,
                    Next::Ended => {
                        has_ended = true;
                        break;
                    }
                }
            }
            match (self.is_idle(), has_ended) {
                (true, true) => return,
                (true, false) => intake.wait(),
                (false, _) => self.step(),
            }
        }
    }
}

/// Answers a request: part by part, or with the whole output.
pub(crate) struct Reply {
    request: Request,
    format: Format,
    vocabulary: Arc<dyn Vocabulary>,
    /// Output that is not sent yet.
    pending: Part,
    input_tokens: usize,
    /// Tokens of the prompt that were in the cache.
    cached_tokens: usize,
    output_tokens: usize,
    first_token: Option<Instant>,
    metrics: Option<Arc<Mutex<Metrics>>>,
    monitor: Arc<dyn BatchMonitor>,
    started: Instant,
    inputs_ready: Instant,
}

impl Reply {
    fn append(&mut self, part: Part) {
        self.output_tokens += part.tokens;
        if part.tokens > 0 {
            self.first_token.get_or_insert_with(Instant::now);
        }
        self.pending.text.push_str(&part.text);
        self.pending.tokens += part.tokens;
        self.pending.logprobs.extend(part.logprobs);
    }

    /// A response of what is not sent yet.
    fn response(&mut self, finish: Option<Finish>) -> Result<nereid_backend_api::Response> {
        let part = std::mem::take(&mut self.pending);
        let prompt = PromptTokens { count: self.input_tokens, cached: self.cached_tokens };
        contract::response(&self.request, self.format, &part, prompt, finish, &*self.vocabulary)
    }
}

impl Client for Reply {
    fn is_cancelled(&self) -> bool {
        self.request.responder().is_cancelled()
    }

    fn admitted(&mut self, cached: usize) {
        self.cached_tokens = cached;
        if let Some(metrics) = &self.metrics {
            let metrics = metrics.lock().unwrap_or_else(PoisonError::into_inner);
            metrics.add_prompt(self.input_tokens, cached);
        }
    }

    fn part(&mut self, part: Part) {
        self.append(part);
        if self.format.streams && !self.pending.text.is_empty() {
            let response = self.response(None);
            self.request.responder().send(response);
        }
    }

    fn finish(mut self, part: Part, finish: Finish) {
        self.append(part);
        let outputs_ready = Instant::now();
        self.request.responder().mark(nereid_backend_api::Phase::OutputsReady, outputs_ready);
        let response = self.response(Some(finish));
        let times = ExecutionTimes {
            started: self.started,
            inputs_ready: self.inputs_ready,
            outputs_ready,
            ended: Instant::now(),
        };
        // Before the answer: a client with an answer finds the execution in the statistics and metrics.
        self.monitor.executed(self.request.batch_size(), times);
        if let (Some(metrics), Some(first)) = (&self.metrics, self.first_token) {
            let (first, whole) = (first - self.started, outputs_ready - self.started);
            let metrics = metrics.lock().unwrap_or_else(PoisonError::into_inner);
            metrics.add_output(self.output_tokens, first, whole, finish);
        }
        self.request.answer(response);
    }

    fn fail(self, error: Error) {
        self.request.answer(Err(error));
    }
}

#[cfg(test)]
mod tests;

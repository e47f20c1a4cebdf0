//! Continuous batching: which tokens of which requests are evaluated next.
//!
//! Each step evaluates one batch: the next token of every request that generates, with guesses of those that follow, and parts of prompts as
//! far as there is room. The requests of a batch have the same adapter; those with different ones take turns.
//! Requests join and leave between two steps. A request occupies one of the engine's sequences; what it leaves there is reused by
//! later requests that begin with the same tokens.
//!
//! The scheduler knows neither the library nor the server: it has an [`Engine`], a [`Vocabulary`] and the [`Client`]s of its
//! requests, and takes the time from its caller.

mod pace;
mod slot;
mod spill;

use std::iter;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nereid_backend_api::Error;

use self::pace::Pace;
pub(crate) use self::slot::Owner;
use self::slot::{Active, Slot};
pub(crate) use self::spill::Spill;
use crate::engine::{BatchToken, DecodeError, Engine, Limits, Token, Vocabulary};
use crate::guide::Guide;
use crate::parameters::SamplingParameters;
use crate::sampler::TokenLogprob;
use crate::speculation::{Speculation, Unfinished};

/// Shorter common prefixes are not worth sharing between sequences.
const MIN_SHARED: usize = 16;

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finish {
    /// The model ended the text, or a stop string or token did.
    Stop,
    /// `max_tokens`, the context or the time limit.
    Length,
}

/// The load of a scheduler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) running: usize,
    /// Requests that are paused, or are not admitted yet.
    pub(crate) waiting: usize,
    /// Tokens of running requests in the cache. Those that several share count for each.
    pub(crate) used: usize,
    /// Pauses so far.
    pub(crate) preemptions: usize,
    pub(crate) guesses: Guesses,
}

/// The guesses so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Guesses {
    pub(crate) count: usize,
    /// Their tokens, and those among them that the model chose.
    pub(crate) tokens: usize,
    pub(crate) accepted: usize,
}

/// A part of a request's output.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Part {
    /// May be empty: characters and stop strings are held back until they are whole.
    pub(crate) text: String,
    /// Tokens since the previous part.
    pub(crate) tokens: usize,
    /// For each of these tokens, if requested.
    pub(crate) logprobs: Vec<Vec<TokenLogprob>>,
}

/// Receives the output of a request.
pub(crate) trait Client {
    fn is_cancelled(&self) -> bool;

    /// The request has a sequence, which holds this many tokens of its prompt already.
    fn admitted(&mut self, cached: usize);

    /// Another part; more follow.
    fn part(&mut self, part: Part);

    /// The last part.
    fn finish(self, part: Part, finish: Finish);

    /// The request failed.
    fn fail(self, error: Error);
}

/// A request that is ready to execute.
pub(crate) struct Generation<C> {
    pub(crate) client: C,
    /// Not empty, and shorter than the context.
    pub(crate) prompt: Vec<Token>,
    pub(crate) parameters: SamplingParameters,
    pub(crate) owner: Owner,
    /// Keeps the output within a form.
    pub(crate) guide: Option<Guide>,
    /// The engine's adapter, by its number.
    pub(crate) adapter: Option<usize>,
}

/// Executes requests on an engine.
pub(crate) struct Scheduler<E, C> {
    engine: E,
    vocabulary: Arc<dyn Vocabulary>,
    limits: Limits,
    /// The longest time that a request may take.
    time_limit: Option<Duration>,
    slots: Vec<Slot<C>>,
    /// Counts admissions: which slot was used last, and which request came first.
    admitted: u64,
    preemptions: usize,
    /// `None` to evaluate one token of a sequence at a time.
    speculation: Option<Speculation>,
    guesses: Guesses,
    /// Prefixes that left the cache; `None` to drop them.
    spill: Option<Spill>,
    pace: Pace,
    batch: Vec<BatchToken>,
    /// The adapter of the last batch.
    adapter: Option<usize>,
}

impl<E: Engine, C: Client> Scheduler<E, C> {
    pub(crate) fn new(
        engine: E,
        vocabulary: Arc<dyn Vocabulary>,
        time_limit: Option<Duration>,
        speculation: Option<Speculation>,
    ) -> Self {
        let limits = engine.limits();
        let slots = (0..limits.sequences).map(|_| Slot::default()).collect();
        Self {
            engine,
            vocabulary,
            limits,
            time_limit,
            slots,
            admitted: 0,
            preemptions: 0,
            speculation,
            guesses: Guesses::default(),
            spill: None,
            pace: Pace::default(),
            batch: Vec::new(),
            adapter: None,
        }
    }

    /// Saves prefixes that leave the cache.
    pub(crate) fn with_spill(self, spill: Option<Spill>) -> Self {
        Self { spill, ..self }
    }

    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    /// The current load.
    pub(crate) fn load(&self) -> Load {
        let active = || self.slots.iter().filter(|slot| slot.active.is_some());
        let waiting = active().filter(|slot| slot.is_paused).count();
        Load {
            running: active().count() - waiting,
            waiting,
            used: active().map(|slot| slot.tokens.len()).sum(),
            preemptions: self.preemptions,
            guesses: self.guesses,
        }
    }

    /// The most tokens that may be guessed for a request.
    pub(crate) fn longest_guess(&self) -> usize {
        self.speculation.as_ref().map_or(0, Speculation::most)
    }

    /// How many further requests can be admitted. Paused ones come first.
    pub(crate) fn room(&self) -> usize {
        if self.slots.iter().any(|slot| slot.is_paused) {
            return 0;
        }
        self.slots.iter().filter(|slot| slot.active.is_none()).count()
    }

    /// Whether there is nothing to do.
    pub(crate) fn is_idle(&self) -> bool {
        self.slots.iter().all(|slot| slot.active.is_none())
    }

    /// Admits a request. It fails without [room](Self::room).
    pub(crate) fn admit(&mut self, mut generation: Generation<C>, now: Instant) {
        let Some((number, reused)) = self.assign(&generation) else {
            return generation.client.fail(Error::internal("every sequence of the engine is in use"));
        };
        generation.client.admitted(reused);
        self.admitted += 1;
        let deadline = self.time_limit.and_then(|limit| now.checked_add(limit));
        let most = self.longest_guess();
        if let Some(slot) = self.slots.get_mut(number) {
            slot.tokens.truncate(reused);
            slot.used = self.admitted;
            slot.owner.clone_from(&generation.owner);
            slot.adapter = generation.adapter;
            slot.active = Some(Active::new(generation, deadline, most));
        }
    }

    /// The sequence for a request, and how many tokens of its prompt it holds.
    fn assign(&mut self, generation: &Generation<C>) -> Option<(usize, usize)> {
        // The last token is evaluated in any case, for its logits.
        let reusable = generation.prompt.get(..generation.prompt.len().saturating_sub(1)).unwrap_or(&[]);
        let common = |slot: &Slot<C>| match slot.adapter == generation.adapter {
            true => slot.common_prefix(reusable, &generation.owner),
            false => 0,
        };
        let longest = |slots: &[Slot<C>]| {
            let (number, slot) = slots.iter().enumerate().max_by_key(|(_, slot)| common(slot))?;
            let length = common(slot);
            // A request that continues nearly all that a sequence holds takes its place. Others leave it for later ones.
            let continues = slot.active.is_none() && length > 0 && length * 10 >= slot.tokens.len() * 9;
            Some((number, length, continues))
        };
        let idle = self.slots.iter().enumerate().filter(|(_, slot)| slot.active.is_none());
        let (oldest, _) = idle.min_by_key(|(_, slot)| (!slot.tokens.is_empty(), slot.used))?;
        let (_, length, _) = longest(&self.slots)?;
        if let Some(restored) = self.restore(oldest, reusable, generation, length) {
            return Some((oldest, restored));
        }
        // If there was no room, other sequences may have been evicted.
        let (longest, length, continues) = longest(&self.slots)?;
        if longest == oldest || continues {
            if !continues {
                self.save(longest);
            }
            return Some((longest, self.engine.truncate(longest, length)));
        }
        self.evict(oldest);
        let shared = if length < MIN_SHARED { 0 } else { self.engine.share(longest, oldest, length) };
        let shared_tokens = reusable.get(..shared).unwrap_or(&[]).to_vec();
        self.slots.get_mut(oldest)?.tokens = shared_tokens;
        Some((oldest, shared))
    }

    /// Refills a sequence with the longest saved prefix of a prompt, if it is much longer than the `known` tokens in the cache. Returns
    /// the length of the prefix.
    fn restore(
        &mut self,
        number: usize,
        prompt: &[Token],
        generation: &Generation<C>,
        known: usize,
    ) -> Option<usize> {
        let Generation { owner, adapter, .. } = generation;
        let spill = self.spill.as_mut()?;
        let state = spill.get(prompt, owner, *adapter, known + spill.least)?;
        self.evict(number);
        // Tokens that sequences share count for each, so this may evict more than is needed.
        while self.slots.iter().map(|slot| slot.tokens.len()).sum::<usize>() + state.tokens
            > self.limits.cache
        {
            if !self.evict_oldest() {
                break;
            }
        }
        if !self.engine.restore(number, &state.bytes) {
            return None;
        }
        let restored = self.engine.truncate(number, state.common);
        self.slots.get_mut(number)?.tokens = prompt.get(..restored)?.to_vec();
        Some(restored)
    }

    /// Empties the sequence of an ended request, and saves its state.
    fn evict(&mut self, number: usize) {
        self.save(number);
        if let Some(slot) = self.slots.get_mut(number) {
            slot.tokens.clear();
        }
        self.engine.truncate(number, 0);
    }

    /// Saves the state of a sequence, unless it is short, or also in the cache or a file.
    fn save(&mut self, number: usize) {
        let (Some(spill), Some(slot)) = (&mut self.spill, self.slots.get(number)) else { return };
        let Slot { tokens, owner, adapter, .. } = slot;
        let mut others = self.slots.iter().enumerate().filter(|(other, _)| *other != number);
        let is_held =
            |other: &Slot<C>| other.adapter == *adapter && other.common_prefix(tokens, owner) == tokens.len();
        if tokens.len() >= spill.least
            && !spill.holds(tokens, owner, *adapter)
            && !others.any(|(_, other)| is_held(other))
            && let Some(state) = self.engine.state(number)
        {
            spill.put(tokens, owner, *adapter, &state);
        }
    }

    /// Empties the sequence of the ended request that came first. Returns whether there was one.
    fn evict_oldest(&mut self) -> bool {
        let slots = self.slots.iter().enumerate();
        let ended = slots.filter(|(_, slot)| slot.active.is_none() && !slot.tokens.is_empty());
        let oldest = ended.min_by_key(|(_, slot)| slot.used).map(|(number, _)| number);
        oldest.into_iter().for_each(|number| self.evict(number));
        oldest.is_some()
    }

    /// Evaluates one batch, and delivers what follows from it.
    pub(crate) fn step(&mut self, now: Instant) {
        self.pace.begin_step(now);
        self.release_ended(now);
        self.adapter = self.next_adapter();
        let mut batch = std::mem::take(&mut self.batch);
        let generating = self.fill(&mut batch);
        if !batch.is_empty() {
            self.pace.begin_batch(now, batch.len(), batch.len() - generating);
            let mut outcome = self.decode(&batch);
            if outcome == Err(DecodeError::CacheFull) && batch.iter().any(|entry| entry.is_guess) {
                batch.retain(|entry| !entry.is_guess);
                outcome = self.decode(&batch);
            }
            match outcome {
                Ok(()) => self.take_outputs(&batch),
                Err(error) => self.fail(&batch, &error),
            }
        }
        self.batch = batch;
        if self.is_idle() {
            self.pace.pause();
        }
    }

    /// Releases requests that were cancelled, or ran out of time.
    fn release_ended(&mut self, now: Instant) {
        let mut has_ended = false;
        for slot in &mut self.slots {
            if let Some(active) = slot.active.take_if(|active| active.client.is_cancelled()) {
                active
                    .client
                    .fail(Error::new(nereid_backend_api::ErrorCode::Cancelled, "the request was cancelled"));
            } else if let Some(active) =
                slot.active.take_if(|active| active.deadline.is_some_and(|deadline| now >= deadline))
            {
                active.finish(Finish::Length);
            } else {
                continue;
            }
            slot.is_paused = false;
            has_ended = true;
        }
        if has_ended {
            self.resume();
        }
    }

    /// The adapter of the next batch: of those in use the next one after the last.
    fn next_adapter(&self) -> Option<usize> {
        let running = || self.slots.iter().filter(|slot| slot.active.is_some() && !slot.is_paused);
        let adapters = || running().map(|slot| slot.adapter);
        adapters().filter(|adapter| *adapter > self.adapter).min().or_else(|| adapters().min()).flatten()
    }

    /// Collects the tokens to evaluate next. Returns how many of them belong to requests that generate.
    fn fill(&mut self, batch: &mut Vec<BatchToken>) -> usize {
        batch.clear();
        let mut texts = unfinished(&self.slots, self.adapter, self.limits.context);
        let guesses = self.speculation.as_mut().map(|speculation| {
            // Every request has its next token in the batch, then come the guesses.
            let mut room = self.limits.batch.saturating_sub(texts.len());
            for text in &mut texts {
                text.most = text.most.min(room);
                room -= text.most;
            }
            speculation.guess(&texts)
        });
        for (index, Unfinished { sequence, tokens, next, .. }) in texts.into_iter().enumerate() {
            let guess =
                guesses.as_ref().and_then(|guesses| guesses.get(index)).map_or(&[][..], Vec::as_slice);
            let tokens = (tokens.len()..).zip([&next].into_iter().chain(guess)).enumerate();
            batch.extend(tokens.map(|(place, (position, token))| BatchToken {
                token: *token,
                position,
                sequence,
                has_output: true,
                is_guess: place > 0,
            }));
        }
        let room = self.limits.batch.saturating_sub(batch.len());
        let generating = batch.len();
        let generates = |slot: &Slot<C>| slot.active.as_ref().is_some_and(|active| active.next.is_some());
        let is_alone = !self.slots.iter().any(generates);
        let room = room.min(self.pace.prompt_tokens(is_alone));
        for (sequence, length) in self.shares(room) {
            let Some(slot) = self.slots.get(sequence) else { continue };
            let Some(active) = &slot.active else { continue };
            let rest = active.prompt.get(slot.tokens.len()..).unwrap_or(&[]);
            batch.extend(rest.iter().take(length).enumerate().map(|(place, token)| BatchToken {
                token: *token,
                position: slot.tokens.len() + place,
                sequence,
                has_output: place + 1 == rest.len(),
                is_guess: false,
            }));
        }
        generating
    }

    /// How many tokens of each prompt are evaluated next, `room` in all: the shortest rest first, so that a long prompt does not hold up
    /// short ones, but at least half of the room for the prompt that came first, so that it is not held up by them.
    fn shares(&self, room: usize) -> Vec<(usize, usize)> {
        let reads = |slot: &Slot<C>| slot.is_reading() && slot.adapter == self.adapter;
        let rest = |(number, slot): (usize, &Slot<C>)| {
            let active = slot.active.as_ref()?;
            Some((active.prompt.len().saturating_sub(slot.tokens.len()), slot.used, number))
        };
        let slots = self.slots.iter().enumerate();
        let mut prompts: Vec<_> = slots.filter(|(_, slot)| reads(slot)).filter_map(rest).collect();
        prompts.sort_unstable();
        let first = prompts.iter().min_by_key(|(_, used, _)| *used).copied();
        let mut reserved = first.map_or(0, |(rest, ..)| rest.min(room.div_ceil(2)));
        let mut left = room;
        let share = |(rest, used, number): (usize, u64, usize)| {
            if first.is_some_and(|(_, earliest, _)| used == earliest) {
                reserved = 0;
            }
            let length = rest.min(left - reserved);
            left -= length;
            (number, length)
        };
        prompts.into_iter().map(share).collect()
    }

    /// Evaluates a batch. If the cache is full, sequences of ended requests are evicted from it, the oldest first.
    fn decode(&mut self, batch: &[BatchToken]) -> Result<(), DecodeError> {
        loop {
            let outcome = self.engine.decode(batch, self.adapter);
            if outcome != Err(DecodeError::CacheFull) || !self.evict_oldest() {
                return outcome;
            }
        }
    }

    /// Handles a batch that was not evaluated. If the cache is full, the last request that came is paused, or fails if it is the
    /// only one that runs. Any other error fails all requests of the batch.
    fn fail(&mut self, batch: &[BatchToken], error: &DecodeError) {
        let mut failed: Vec<usize> = batch.iter().map(|entry| entry.sequence).collect();
        failed.sort_unstable();
        failed.dedup();
        let slots = self.slots.iter().enumerate();
        let running = || slots.clone().filter(|(_, slot)| slot.active.is_some() && !slot.is_paused);
        let error = match error {
            DecodeError::CacheFull if running().count() > 1 => {
                let last = running().max_by_key(|(_, slot)| slot.used).map(|(number, _)| number);
                return last.into_iter().for_each(|number| self.pause(number));
            }
            DecodeError::CacheFull => {
                Error::unavailable("the cache of the context has no room for the request")
            }
            DecodeError::Failed(reason) => Error::internal(format!("llama.cpp failed: {reason}")),
        };
        for number in failed {
            self.engine.truncate(number, 0);
            let Some(slot) = self.slots.get_mut(number) else { continue };
            slot.tokens.clear();
            if let Some(active) = slot.active.take() {
                active.client.fail(error.clone());
            }
        }
        self.resume();
    }

    /// Takes a request out of the cache, until another one ends. It is then read again, with what it has written.
    fn pause(&mut self, number: usize) {
        self.engine.truncate(number, 0);
        self.preemptions += 1;
        if let Some(slot) = self.slots.get_mut(number) {
            slot.pause();
        }
    }

    /// Continues the paused requests, after another one has ended.
    fn resume(&mut self) {
        self.slots.iter_mut().for_each(|slot| slot.is_paused = false);
    }

    /// Chooses the next tokens after a batch.
    fn take_outputs(&mut self, batch: &[BatchToken]) {
        let mut has_ended = false;
        let mut rest = batch.iter().enumerate().peekable();
        while let Some((place, entry)) = rest.next() {
            let Some(slot) = self.slots.get_mut(entry.sequence) else { continue };
            slot.tokens.push(entry.token);
            if !entry.has_output {
                continue;
            }
            // The chosen token is part of the context, though it may be the last and is then not evaluated.
            let has_room = slot.tokens.len() + 1 < self.limits.context;
            let Some(mut active) = slot.active.take() else { continue };
            if active.resume() {
                slot.active = Some(active);
                continue;
            }
            let logits = self.engine.logits(place);
            slot.active = active.advance(logits, &*self.vocabulary, has_room);
            has_ended |= slot.active.is_none();
            let chosen = slot.active.as_ref().and_then(|active| active.next);
            let is_next = |next: &(usize, &BatchToken)| next.1.is_guess && next.1.sequence == entry.sequence;
            if rest.peek().is_some_and(|next| is_next(next) && chosen == Some(next.1.token)) {
                // The guess was right: its logits follow.
                continue;
            }
            let wrong = iter::from_fn(|| rest.next_if(is_next)).count();
            self.end_guess(batch, entry.sequence, wrong);
        }
        if has_ended {
            self.resume();
        }
    }

    /// Removes the wrong tokens of a guess from the sequence, and counts the others.
    fn end_guess(&mut self, batch: &[BatchToken], sequence: usize, wrong: usize) {
        let guessed = batch.iter().filter(|entry| entry.is_guess && entry.sequence == sequence).count();
        let Some(slot) = self.slots.get_mut(sequence).filter(|_| guessed > 0) else { return };
        self.guesses.count += 1;
        self.guesses.tokens += guessed;
        self.guesses.accepted += guessed - wrong;
        if let Some(active) = &mut slot.active {
            active.guesses.observe(guessed, guessed - wrong);
        }
        if wrong == 0 {
            return;
        }
        let kept = self.engine.truncate(sequence, slot.tokens.len());
        if kept < slot.tokens.len() {
            // The engine can only remove all: the request is read again.
            slot.pause();
            slot.is_paused = false;
        }
    }
}

/// The texts of the requests that generate with an adapter.
fn unfinished<C: Client>(slots: &[Slot<C>], adapter: Option<usize>, context: usize) -> Vec<Unfinished<'_>> {
    let generating = slots.iter().enumerate().filter_map(|(sequence, slot)| {
        let active = slot.active.as_ref().filter(|_| slot.adapter == adapter)?;
        let room = context.saturating_sub(slot.tokens.len() + 2);
        let most = active.longest_guess().min(room);
        Some(Unfinished { sequence, tokens: &slot.tokens, next: active.next?, most })
    });
    generating.collect()
}

#[cfg(test)]
mod tests;

//! A sequence of the engine, and the request that occupies it.

use std::time::Instant;

use nereid_backend_api::Error;

use super::{Client, Finish, Generation, Part};
use crate::engine::{Token, Vocabulary};
use crate::guide::Guide;
use crate::parameters::SamplingParameters;
use crate::sampler::{Sampled, Sampler};
use crate::speculation::GuessLength;
use crate::text::{Pushed, TextStream};

/// Whose tokens a sequence holds. Only requests of the same owner reuse them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Owner {
    /// The number of the sender; 0 for unknown ones, and for all if they share what is cached.
    pub(crate) flow: u64,
    /// The request's `cache_salt`.
    pub(crate) salt: String,
}

/// A sequence of the engine.
pub(super) struct Slot<C> {
    /// The tokens that the engine holds.
    pub(super) tokens: Vec<Token>,
    pub(super) owner: Owner,
    /// The adapter with which they were evaluated.
    pub(super) adapter: Option<usize>,
    /// When it was assigned, as a number of admissions.
    pub(super) used: u64,
    /// The request that occupies it.
    pub(super) active: Option<Active<C>>,
    /// Whether the request waits for room in the cache, and has none of its tokens there.
    pub(super) is_paused: bool,
}

impl<C> Default for Slot<C> {
    fn default() -> Self {
        Self {
            tokens: Vec::new(),
            owner: Owner::default(),
            adapter: None,
            used: 0,
            active: None,
            is_paused: false,
        }
    }
}

impl<C> Slot<C> {
    /// How many of the first tokens of a prompt it holds.
    pub(super) fn common_prefix(&self, prompt: &[Token], owner: &Owner) -> usize {
        if self.owner != *owner {
            return 0;
        }
        self.tokens.iter().zip(prompt).take_while(|(held, wanted)| held == wanted).count()
    }

    /// Whether a part of the prompt is not evaluated yet, and the request not paused.
    pub(super) fn is_reading(&self) -> bool {
        !self.is_paused && self.active.as_ref().is_some_and(|active| active.next.is_none())
    }

    /// Empties the sequence. Its request will be read again, with its output so far.
    pub(super) fn pause(&mut self) {
        let tokens = std::mem::take(&mut self.tokens);
        let Some(active) = &mut self.active else { return };
        self.is_paused = true;
        if let Some(next) = active.next.take() {
            active.prompt = tokens;
            active.resumes_with = Some(next);
        }
    }
}

/// A request in progress.
pub(super) struct Active<C> {
    pub(super) client: C,
    pub(super) prompt: Vec<Token>,
    /// The chosen token that is not evaluated yet; `None` while the prompt is read.
    pub(super) next: Option<Token>,
    pub(super) deadline: Option<Instant>,
    pub(super) guesses: GuessLength,
    /// The chosen token of a request that is read again after a pause.
    resumes_with: Option<Token>,
    parameters: SamplingParameters,
    sampler: Sampler,
    guide: Option<Guide>,
    text: TextStream,
    generated: usize,
    piece: Vec<u8>,
}

impl<C: Client> Active<C> {
    /// Up to `guesses` tokens are guessed, unless the request has another limit.
    pub(super) fn new(generation: Generation<C>, deadline: Option<Instant>, guesses: usize) -> Self {
        let Generation { client, prompt, mut parameters, guide, .. } = generation;
        let sampler = Sampler::new(&parameters, &prompt);
        let guesses = GuessLength::new(parameters.speculative_tokens.unwrap_or(guesses).min(guesses));
        let text = TextStream::new(std::mem::take(&mut parameters.stop), parameters.includes_stop);
        Self {
            client,
            prompt,
            next: None,
            deadline,
            guesses,
            resumes_with: None,
            parameters,
            sampler,
            guide,
            text,
            generated: 0,
            piece: Vec::new(),
        }
    }

    /// Ends the request with the text that was held back.
    pub(super) fn finish(mut self, finish: Finish) {
        let text = self.text.finish();
        self.client.finish(Part { text, ..Part::default() }, finish);
    }

    /// How many tokens are guessed at most. The model chooses one more than were right.
    pub(super) fn longest_guess(&self) -> usize {
        let left =
            self.parameters.max_tokens.map_or(usize::MAX, |most| most.saturating_sub(self.generated + 1));
        self.guesses.current().min(left)
    }

    /// Continues after a pause, once all of its tokens are evaluated again. Returns whether there was one.
    pub(super) fn resume(&mut self) -> bool {
        self.next = self.resumes_with.take();
        self.next.is_some()
    }

    /// Chooses the next token, and delivers it. `None` if it was the last one. `has_room` is whether the context can take it.
    pub(super) fn advance(
        mut self,
        logits: &[f32],
        vocabulary: &dyn Vocabulary,
        has_room: bool,
    ) -> Option<Self> {
        if let Some(Err(error)) = self.guide.as_mut().map(Guide::prepare) {
            self.client.fail(error);
            return None;
        }
        let Self { parameters, sampler, guide, generated, piece, text: stream, .. } = &mut self;
        // A form decides itself when the output may end.
        let has_form = guide.is_some();
        let may_end = *generated >= parameters.min_tokens || has_form;
        let ends = |token: Token| {
            let may_be_end = !parameters.ignores_end || has_form;
            (may_be_end && vocabulary.is_end(token)) || parameters.stop_tokens.contains(&token)
        };
        let Some(Sampled { token, logprobs }) = sampler.sample(logits, parameters, |token| {
            (!may_end && ends(token)) || guide.as_ref().is_some_and(|guide| !guide.allows(token))
        }) else {
            self.client.fail(Error::internal("the model gave no token that may follow"));
            return None;
        };
        let is_end = ends(token);
        let is_complete = match guide.as_mut().map(|guide| guide.accept(token)) {
            Some(Err(error)) => {
                self.client.fail(error);
                return None;
            }
            Some(Ok(is_complete)) => is_complete,
            None => false,
        };
        *generated += 1;
        let mut part = Part { text: String::new(), tokens: 1, logprobs: Vec::new() };
        if parameters.logprobs.is_some() {
            part.logprobs.push(logprobs);
        }
        piece.clear();
        if !is_end || parameters.includes_stop {
            vocabulary.piece(token, !parameters.skips_special_tokens, piece);
        }
        let Pushed { text, is_stopped } = stream.push(piece, may_end);
        part.text = text;
        let finish = if is_end || is_stopped || is_complete {
            Finish::Stop
        } else if !has_room || self.parameters.max_tokens.is_some_and(|most| self.generated >= most) {
            Finish::Length
        } else {
            self.client.part(part);
            self.next = Some(token);
            return Some(self);
        };
        if !is_stopped {
            part.text.push_str(&self.text.finish());
        }
        self.client.finish(part, finish);
        None
    }
}

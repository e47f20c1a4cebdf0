//! The choices of an answer: the responses of one or several requests to a model, as pieces of text.

use std::sync::Arc;
use std::task::{Context, Poll};

use serde::Serialize;

use crate::contract::{Finish, Piece};
use crate::error::Outcome;
use crate::logprobs::TokenLogprobs;
use crate::metrics::Measured;
use crate::search::{StopCutter, Utf8Joiner};
use crate::traces::Answers;

/// The choices of an answer. Dropped early, as when the client disconnects, they cancel their requests.
pub(crate) struct Choices {
    choices: Vec<Choice>,
    /// The choice to look at first.
    next: usize,
    /// Counts their tokens for the limits of the sender.
    meter: Option<Arc<dyn nereid_core::Usage>>,
}

/// Properties of a choice.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChoiceOptions {
    /// Texts that end the output.
    pub stop: Arc<[String]>,
    /// The largest number of tokens.
    pub max_tokens: Option<u64>,
    /// Whether the tokens of its prompt count: those of one prompt are counted once.
    pub counts_prompt: bool,
}

/// News of a choice.
#[derive(Debug, Default)]
pub(crate) struct Delta {
    /// The number of the choice.
    pub index: usize,
    /// More of its text.
    pub text: String,
    /// Why it has ended. Nothing follows.
    pub finish: Option<Finish>,
    /// The probabilities of tokens in this text, or slightly ahead of it.
    pub logprobs: Option<Vec<TokenLogprobs>>,
}

/// Numbers of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Usage {
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
    pub total_tokens: u64,
    /// Set by models that report cached tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_tokens_details: Option<PromptTokensDetails>,
}

/// Which tokens of a prompt were cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct PromptTokensDetails {
    pub cached_tokens: u64,
}

struct Choice {
    options: ChoiceOptions,
    /// `None` once the choice has ended, or if it is not measured.
    measured: Option<Measured>,
    /// `None` once the choice has ended.
    answers: Option<Answers>,
    joiner: Utf8Joiner,
    cutter: StopCutter,
    prompt_tokens: Option<u64>,
    cached_tokens: Option<u64>,
    output_tokens: Option<u64>,
    finish: Option<Finish>,
}

impl Choices {
    /// The choices that these requests generate, in order, each with what measures it.
    pub(crate) fn new(
        requests: impl IntoIterator<Item = (Answers, ChoiceOptions, Option<Measured>)>,
        meter: Option<Arc<dyn nereid_core::Usage>>,
    ) -> Self {
        let choices = requests.into_iter().map(|(answers, options, measured)| Choice {
            options,
            measured,
            answers: Some(answers),
            joiner: Utf8Joiner::default(),
            cutter: StopCutter::default(),
            prompt_tokens: None,
            cached_tokens: None,
            output_tokens: None,
            finish: None,
        });
        Self { choices: choices.collect(), next: 0, meter }
    }

    /// The next piece of any choice. `None` after the end of the last one.
    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Outcome<Delta>>> {
        let count = self.choices.len();
        let mut is_over = true;
        for offset in 0..count {
            let index = (self.next + offset) % count;
            let Some(choice) = self.choices.get_mut(index).filter(|choice| choice.answers.is_some()) else {
                continue;
            };
            is_over = false;
            if let Poll::Ready(delta) = choice.poll(index, context) {
                self.next = index + 1;
                return Poll::Ready(Some(delta));
            }
        }
        if is_over { Poll::Ready(None) } else { Poll::Pending }
    }

    /// The tokens so far. `None` unless the model counts them.
    pub(crate) fn usage(&self) -> Option<Usage> {
        let counted = || self.choices.iter().filter(|choice| choice.options.counts_prompt);
        let prompt_tokens = counted().map(|choice| choice.prompt_tokens).sum::<Option<u64>>()?;
        let cached_tokens = counted().map(|choice| choice.cached_tokens).sum::<Option<u64>>();
        let prompt_tokens_details = cached_tokens.map(|cached_tokens| PromptTokensDetails { cached_tokens });
        let completion_tokens =
            self.choices.iter().map(|choice| choice.output_tokens).sum::<Option<u64>>()?;
        let total_tokens = prompt_tokens.saturating_add(completion_tokens);
        Some(Usage { prompt_tokens, completion_tokens, total_tokens, prompt_tokens_details })
    }
}

impl Drop for Choices {
    /// Counts the tokens for the limits of the sender, who may have left before the end.
    fn drop(&mut self) {
        if let Some(meter) = &self.meter {
            meter.generated(self.choices.iter().filter_map(|choice| choice.output_tokens).sum());
        }
    }
}

impl Choice {
    /// Polls a choice that has not ended.
    fn poll(&mut self, index: usize, context: &mut Context<'_>) -> Poll<Outcome<Delta>> {
        loop {
            let Some(answers) = &mut self.answers else { return Poll::Pending };
            let answer = match answers.poll_next(context) {
                Poll::Ready(answer) => answer,
                Poll::Pending => return Poll::Pending,
            };
            let mut delta = Delta { index, ..Delta::default() };
            match answer {
                Some(response) => {
                    let piece = response.map_err(Into::into).and_then(|response| Piece::read(&response));
                    let piece = match piece {
                        Ok(piece) => piece,
                        Err(failure) => {
                            self.answers = None;
                            self.measured = None;
                            return Poll::Ready(Err(failure));
                        }
                    };
                    self.add(piece, &mut delta);
                }
                None => self.end(&mut delta),
            }
            self.measure(delta.finish);
            // Pieces whose text is held back are no news.
            if !delta.text.is_empty() || delta.finish.is_some() || delta.logprobs.is_some() {
                return Poll::Ready(Ok(delta));
            }
        }
    }

    fn add(&mut self, piece: Piece, delta: &mut Delta) {
        self.prompt_tokens = piece.prompt_tokens.or(self.prompt_tokens);
        self.cached_tokens = piece.cached_tokens.or(self.cached_tokens);
        if let Some(tokens) = piece.output_tokens {
            self.output_tokens = Some(self.output_tokens.unwrap_or(0).saturating_add(tokens));
        }
        self.finish = piece.finish.or(self.finish);
        delta.logprobs = piece.logprobs.filter(|tokens| !tokens.is_empty());
        let text = self.joiner.push(piece.text);
        if self.cutter.push(&text, &self.options.stop, &mut delta.text) {
            // The model may go on without this.
            self.answers = None;
            delta.finish = Some(Finish::Stop);
        }
    }

    fn measure(&mut self, finish: Option<Finish>) {
        if let Some(measured) = &mut self.measured {
            measured.piece(self.prompt_tokens, self.output_tokens, finish);
        }
        if finish.is_some() {
            self.measured = None;
        }
    }

    fn end(&mut self, delta: &mut Delta) {
        self.answers = None;
        let rest = self.joiner.finish();
        let is_stopped = self.cutter.push(&rest, &self.options.stop, &mut delta.text);
        if !is_stopped {
            self.cutter.finish(&mut delta.text);
        }
        let is_full =
            self.output_tokens.zip(self.options.max_tokens).is_some_and(|(count, limit)| count >= limit);
        let by_count = if is_full { Finish::Length } else { Finish::Stop };
        delta.finish = Some(if is_stopped { Finish::Stop } else { self.finish.unwrap_or(by_count) });
    }
}

//! Chooses the next token from logits.
//!
//! The order is vLLM's: bias, tokens that may not follow yet, penalties, temperature, `min_p`, `top_k`, `top_p`. Reported
//! probabilities follow from the unchanged logits.

use std::cmp::Ordering;
use std::collections::HashMap;

use crate::engine::Token;
use crate::parameters::SamplingParameters;

/// How many of the most likely tokens `top_p` considers first.
const FIRST_NUCLEUS: usize = 256;

/// Chooses the tokens of one request.
pub(crate) struct Sampler {
    random: fastrand::Rng,
    /// How often each token occurred: in the prompt, and in the output.
    seen: HashMap<Token, Occurrences>,
    /// Kept for the next token.
    scores: Vec<f32>,
    candidates: Vec<Candidate>,
}

#[derive(Clone, Copy, Default)]
struct Occurrences {
    in_prompt: bool,
    in_output: u32,
}

#[derive(Clone, Copy)]
struct Candidate {
    token: Token,
    /// The logit, and later the weight.
    value: f32,
}

/// The probability of a token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct TokenLogprob {
    pub(crate) token: Token,
    pub(crate) logprob: f32,
    /// 1 for the most likely token.
    pub(crate) rank: usize,
}

/// A chosen token.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sampled {
    pub(crate) token: Token,
    /// The token first, then the requested number of the most likely ones, without it. Empty unless requested.
    pub(crate) logprobs: Vec<TokenLogprob>,
}

impl Sampler {
    /// A sampler for a request with this prompt.
    pub(crate) fn new(parameters: &SamplingParameters, prompt: &[Token]) -> Self {
        let random = parameters.seed.map_or_else(fastrand::Rng::new, fastrand::Rng::with_seed);
        let mut seen: HashMap<Token, Occurrences> = HashMap::new();
        if parameters.repetition_penalty != 1.0 {
            for token in prompt {
                seen.entry(*token).or_default().in_prompt = true;
            }
        }
        Self { random, seen, scores: Vec::new(), candidates: Vec::new() }
    }

    /// Chooses a token. Those that are `excluded` may not follow. `None` if no token may.
    pub(crate) fn sample(
        &mut self,
        logits: &[f32],
        parameters: &SamplingParameters,
        excluded: impl Fn(Token) -> bool,
    ) -> Option<Sampled> {
        let scores = if self.adjusts(parameters) {
            self.scores.clear();
            self.scores.extend_from_slice(logits);
            self.adjust(parameters);
            &self.scores
        } else {
            logits
        };
        // Mostly, the most likely token may follow, and none has to be checked but that.
        let likely = (parameters.temperature == 0.0).then(|| highest(scores)).flatten();
        let likely = likely.filter(|token| !excluded(*token));
        // Comparisons with undefined logits are false, so these never follow.
        let possible = (0..).zip(scores).filter(|(_, score)| **score > f32::NEG_INFINITY);
        let possible = possible.filter(|(token, _)| !excluded(*token));
        let mut candidates = possible.map(|(token, score)| Candidate { token, value: *score });
        let higher = |best: Candidate, other: Candidate| if other.value > best.value { other } else { best };
        let token = if let Some(likely) = likely {
            likely
        } else if parameters.temperature == 0.0 {
            candidates.reduce(higher)?.token
        } else {
            self.candidates.clear();
            self.candidates.extend(&mut candidates);
            let best = self.candidates.iter().copied().reduce(higher)?;
            self.draw(best, parameters)
        };
        self.seen.entry(token).or_default().in_output += 1;
        let logprobs = parameters.logprobs.map(|count| logprobs(logits, token, count)).unwrap_or_default();
        Some(Sampled { token, logprobs })
    }

    /// Whether bias or penalties change the logits.
    fn adjusts(&self, parameters: &SamplingParameters) -> bool {
        let SamplingParameters { repetition_penalty, frequency_penalty, presence_penalty, .. } = *parameters;
        let has_penalties = (repetition_penalty, frequency_penalty, presence_penalty) != (1.0, 0.0, 0.0);
        !parameters.logit_bias.is_empty() || (has_penalties && !self.seen.is_empty())
    }

    /// Applies bias and penalties.
    fn adjust(&mut self, parameters: &SamplingParameters) {
        let mut change = |token: Token, change: &dyn Fn(f32) -> f32| {
            if let Some(score) = usize::try_from(token).ok().and_then(|token| self.scores.get_mut(token)) {
                *score = change(*score);
            }
        };
        for (token, bias) in &parameters.logit_bias {
            change(*token, &|score| score + bias);
        }
        let SamplingParameters { repetition_penalty, frequency_penalty, presence_penalty, .. } = *parameters;
        if repetition_penalty == 1.0 && frequency_penalty == 0.0 && presence_penalty == 0.0 {
            return;
        }
        for (token, Occurrences { in_prompt, in_output }) in &self.seen {
            change(*token, &|mut score| {
                if *in_prompt || *in_output > 0 {
                    score = if score > 0.0 { score / repetition_penalty } else { score * repetition_penalty };
                }
                if *in_output > 0 {
                    #[expect(clippy::cast_precision_loss, reason = "counts of tokens are small")]
                    let count = *in_output as f32;
                    score -= frequency_penalty * count + presence_penalty;
                }
                score
            });
        }
    }

    /// Draws a token at random from the candidates.
    fn draw(&mut self, best: Candidate, parameters: &SamplingParameters) -> Token {
        let SamplingParameters { temperature, top_k, top_p, min_p, .. } = *parameters;
        if min_p > 0.0 {
            // A token with the fraction `min_p` of the highest probability is this far below the highest logit.
            let least = best.value + min_p.ln() * temperature;
            self.candidates.retain(|candidate| candidate.value >= least);
        }
        if top_k > 0 && top_k < self.candidates.len() {
            self.candidates.select_nth_unstable_by(top_k - 1, descending);
            self.candidates.truncate(top_k);
        }
        for candidate in &mut self.candidates {
            candidate.value = ((candidate.value - best.value) / temperature).exp();
        }
        if top_p < 1.0 {
            self.keep_nucleus(top_p);
        }
        let total: f64 = self.candidates.iter().map(|candidate| f64::from(candidate.value)).sum();
        let mut left = self.random.f64() * total;
        for candidate in &self.candidates {
            left -= f64::from(candidate.value);
            if left < 0.0 {
                return candidate.token;
            }
        }
        best.token
    }

    /// Keeps the most likely candidates whose weights add up to the fraction `top_p`.
    fn keep_nucleus(&mut self, top_p: f32) {
        let total: f64 = self.candidates.iter().map(|candidate| f64::from(candidate.value)).sum();
        let wanted = total * f64::from(top_p);
        let mut considered = FIRST_NUCLEUS;
        loop {
            // Most distributions have their weight in a few tokens: sorting all of them would take longer.
            let head = if considered < self.candidates.len() {
                let (head, ..) = self.candidates.select_nth_unstable_by(considered, descending);
                head
            } else {
                &mut self.candidates
            };
            head.sort_unstable_by(descending);
            let mut sum = 0.0;
            let enough = head.iter().position(|candidate| {
                sum += f64::from(candidate.value);
                sum >= wanted
            });
            match enough {
                Some(last) => return self.candidates.truncate(last + 1),
                None if considered >= self.candidates.len() => return,
                None => considered *= 4,
            }
        }
    }
}

/// The first token with the highest score. `None` if no score is a number above negative infinity.
fn highest(scores: &[f32]) -> Option<Token> {
    // In lanes, for which compilers use vector instructions.
    let (chunks, rest) = scores.as_chunks::<16>();
    let mut lanes = [f32::NEG_INFINITY; 16];
    for chunk in chunks {
        for (lane, score) in lanes.iter_mut().zip(chunk) {
            *lane = if *score > *lane { *score } else { *lane };
        }
    }
    let highest = lanes.iter().chain(rest).copied().fold(f32::NEG_INFINITY, f32::max);
    let is_highest = |score: &f32| *score == highest && highest > f32::NEG_INFINITY;
    scores.iter().position(is_highest).and_then(|token| Token::try_from(token).ok())
}

/// The highest value first; equal ones by their tokens, so that a seed decides alone.
fn descending(one: &Candidate, other: &Candidate) -> Ordering {
    other.value.total_cmp(&one.value).then(one.token.cmp(&other.token))
}

/// The probability of a token, and of the `count` most likely ones.
fn logprobs(logits: &[f32], token: Token, count: usize) -> Vec<TokenLogprob> {
    let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 =
        logits.iter().filter(|logit| !logit.is_nan()).map(|logit| f64::from(logit - highest).exp()).sum();
    #[expect(clippy::cast_possible_truncation, reason = "probabilities are reported in single precision")]
    let normaliser = highest + sum.ln() as f32;
    let place = |token: Token| usize::try_from(token).ok().and_then(|token| logits.get(token)).copied();
    let own = place(token).unwrap_or(f32::NEG_INFINITY);
    let above =
        (0..).zip(logits).filter(|(other, logit)| **logit > own || (**logit == own && *other < token));
    let mut found = vec![TokenLogprob { token, logprob: own - normaliser, rank: above.count() + 1 }];
    let tokens = (0..).zip(logits).filter(|(_, logit)| !logit.is_nan());
    let mut best: Vec<Candidate> = tokens.map(|(token, logit)| Candidate { token, value: *logit }).collect();
    if count > 0 && count < best.len() {
        best.select_nth_unstable_by(count - 1, descending);
    }
    best.truncate(count);
    best.sort_unstable_by(descending);
    let ranked = (1..).zip(best).filter(|(_, candidate)| candidate.token != token);
    found.extend(ranked.map(|(rank, Candidate { token, value })| TokenLogprob {
        token,
        logprob: value - normaliser,
        rank,
    }));
    found
}

#[cfg(test)]
mod tests;

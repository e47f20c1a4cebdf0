//! Speculation: guesses the next tokens of running requests, so that one batch evaluates several of them.
//!
//! The model itself decides: a guess is kept as long as it is what the request chooses, so the output is the same as without. Guesses
//! come from the text itself (`lookup`) or from a smaller model (`draft`).

mod draft;
mod lookup;

use crate::engine::{Engine, Token};

use self::draft::DraftModel;

/// Guesses tokens.
pub(crate) struct Speculation {
    /// The most tokens of a guess.
    most: usize,
    /// `None` to look up what followed the last tokens before.
    draft: Option<DraftModel>,
}

/// A text whose next tokens are guessed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unfinished<'a> {
    /// The sequence of the engine that holds it.
    pub(crate) sequence: usize,
    /// The evaluated tokens.
    pub(crate) tokens: &'a [Token],
    /// The chosen token after them.
    pub(crate) next: Token,
    /// The most tokens to guess.
    pub(crate) most: usize,
}

impl Speculation {
    /// Guesses up to `most` tokens by lookup.
    pub(crate) fn by_lookup(most: usize) -> Self {
        Self { most, draft: None }
    }

    /// Guesses up to `most` tokens by a smaller model, with the first `vocabulary` tokens in common. A token to which it gives a
    /// smaller probability than `likely` ends a guess.
    pub(crate) fn by_model(
        most: usize,
        engine: Box<dyn Engine + Send>,
        vocabulary: usize,
        likely: f32,
    ) -> Self {
        Self { most, draft: Some(DraftModel::new(engine, vocabulary, likely)) }
    }

    /// The most tokens of a guess.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// The guesses for these texts; empty where there is none.
    pub(crate) fn guess(&mut self, texts: &[Unfinished<'_>]) -> Vec<Vec<Token>> {
        match &mut self.draft {
            Some(draft) => draft.guess(texts),
            None => texts.iter().map(lookup::guess).collect(),
        }
    }
}

/// How many tokens are guessed for a request: more after good guesses, fewer after wrong ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GuessLength {
    most: usize,
    current: usize,
}

impl GuessLength {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, current: most }
    }

    pub(crate) fn current(self) -> usize {
        self.current
    }

    /// Of `guessed` tokens, the model chose the first `accepted`.
    pub(crate) fn observe(&mut self, guessed: usize, accepted: usize) {
        if accepted == guessed {
            self.current = (self.current + 2).min(self.most);
        } else {
            // The next guess has one token more than were right.
            self.current = (accepted + 1).min(self.most);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_follows_what_was_right() {
        let mut length = GuessLength::new(6);
        for (guessed, accepted, expected) in
            [(6, 6, 6), (6, 0, 1), (1, 1, 3), (3, 3, 5), (5, 3, 4), (2, 2, 6)]
        {
            length.observe(guessed, accepted);
            assert_eq!(length.current(), expected);
        }
        let mut none = GuessLength::new(0);
        none.observe(0, 0);
        assert_eq!(none.current(), 0);
    }
}

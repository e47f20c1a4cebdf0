//! Guesses by a smaller model with the same vocabulary, which writes the most likely text token by token.

use super::Unfinished;
use crate::engine::{BatchToken, DecodeError, Engine, Token};

/// The most tokens of a text that the model reads at a time, lest the requests wait for it.
const READ: usize = 128;

/// A smaller model, with one sequence for each of the larger one.
pub(super) struct DraftModel {
    engine: Box<dyn Engine + Send>,
    /// The tokens that it has in common with the larger model.
    vocabulary: usize,
    /// Less likely tokens are not worth a guess.
    likely: f32,
    /// The tokens that the engine holds, by sequence.
    held: Vec<Vec<Token>>,
    /// Set after a failure, which is logged once.
    has_failed: bool,
}

impl DraftModel {
    pub(super) fn new(engine: Box<dyn Engine + Send>, vocabulary: usize, likely: f32) -> Self {
        let held = vec![Vec::new(); engine.limits().sequences];
        Self { engine, vocabulary, likely, held, has_failed: false }
    }

    /// The guesses for these texts. A long text is read over several calls, and has none before.
    pub(super) fn guess(&mut self, texts: &[Unfinished<'_>]) -> Vec<Vec<Token>> {
        let mut guesses = vec![Vec::new(); texts.len()];
        if self.has_failed {
            return guesses;
        }
        let mut batch = Vec::new();
        for text in texts.iter().filter(|text| text.most > 0) {
            self.read(text, &mut batch);
        }
        while !batch.is_empty() && self.decode(&batch, texts) {
            let evaluated = std::mem::take(&mut batch);
            for (place, entry) in evaluated.iter().enumerate().filter(|(_, entry)| entry.has_output) {
                let of_sequence = |text: &Unfinished<'_>| text.sequence == entry.sequence;
                let Some(index) = texts.iter().position(of_sequence) else { continue };
                let (Some(text), Some(guess)) = (texts.get(index), guesses.get_mut(index)) else { continue };
                let Some(token) = likely(self.engine.logits(place), self.vocabulary, self.likely) else {
                    continue;
                };
                guess.push(token);
                let position = entry.position + 1;
                if guess.len() < text.most && position < self.engine.limits().context {
                    batch.push(BatchToken { token, position, ..*entry });
                }
            }
        }
        guesses
    }

    /// Adds what the model has not read of a text to a batch, as far as there is room.
    fn read(&mut self, text: &Unfinished<'_>, batch: &mut Vec<BatchToken>) {
        let Some(held) = self.held.get_mut(text.sequence) else { return };
        let limits = self.engine.limits();
        if text.tokens.len() >= limits.context {
            return;
        }
        // The last token is evaluated in any case, for its logits.
        let common = held.iter().zip(text.tokens).take_while(|(one, other)| one == other).count();
        if common < held.len() {
            let kept = self.engine.truncate(text.sequence, common);
            held.truncate(kept);
        }
        let unread = text.tokens.iter().chain([&text.next]).enumerate().skip(held.len());
        let room = READ.min(limits.batch.saturating_sub(batch.len()));
        batch.extend(unread.take(room).map(|(position, token)| BatchToken {
            token: *token,
            position,
            sequence: text.sequence,
            has_output: position == text.tokens.len(),
            is_guess: false,
        }));
    }

    /// Evaluates a batch. Returns whether that succeeded.
    fn decode(&mut self, batch: &[BatchToken], texts: &[Unfinished<'_>]) -> bool {
        let mut outcome = self.engine.decode(batch, None);
        if outcome == Err(DecodeError::CacheFull) {
            self.forget(|sequence| !texts.iter().any(|text| text.sequence == sequence));
            outcome = self.engine.decode(batch, None);
        }
        match outcome {
            Ok(()) => {
                for entry in batch {
                    if let Some(held) = self.held.get_mut(entry.sequence) {
                        held.push(entry.token);
                    }
                }
                return true;
            }
            Err(DecodeError::CacheFull) => {}
            Err(DecodeError::Failed(reason)) => {
                tracing::warn!("no further speculation, because the draft model failed: {reason}");
                self.has_failed = true;
            }
        }
        self.forget(|_| true);
        false
    }

    /// Empties sequences.
    fn forget(&mut self, which: impl Fn(usize) -> bool) {
        for (sequence, held) in self.held.iter_mut().enumerate().filter(|(sequence, _)| which(*sequence)) {
            self.engine.truncate(sequence, 0);
            held.clear();
        }
    }
}

/// The most likely token, if it is likely enough to be worth a guess.
fn likely(logits: &[f32], vocabulary: usize, least: f32) -> Option<Token> {
    let higher = |best: (Token, f32), other: (Token, f32)| if other.1 > best.1 { other } else { best };
    let (token, highest) = (0..).zip(logits.iter().copied()).reduce(higher)?;
    let weight: f32 = logits.iter().map(|logit| (logit - highest).exp()).sum();
    let is_common = usize::try_from(token).is_ok_and(|token| token < vocabulary);
    (is_common && 1.0 / weight >= least).then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Limits;
    use crate::testing::Scripted;

    fn text(sequence: usize, tokens: &str, most: usize) -> (usize, Vec<Token>, usize) {
        (sequence, tokens.bytes().map(Token::from).collect(), most)
    }

    fn guess(draft: &mut DraftModel, texts: &[(usize, Vec<Token>, usize)]) -> Vec<String> {
        let mut unfinished = Vec::new();
        for (sequence, tokens, most) in texts {
            let (next, tokens) = tokens.split_last().unwrap();
            unfinished.push(Unfinished { sequence: *sequence, tokens, next: *next, most: *most });
        }
        let shown = |token: Token| char::from(u8::try_from(token).unwrap());
        let guesses = draft.guess(&unfinished).into_iter();
        guesses.map(|guess| guess.into_iter().map(shown).collect()).collect()
    }

    #[test]
    fn texts_are_continued_together_and_what_is_known_is_not_read_again() {
        let limits = Limits { sequences: 3, context: 300, cache: 400, batch: 64 };
        let (engine, record) = Scripted::new(limits);
        let mut draft = DraftModel::new(Box::new(engine), 128, 0.7);
        let evaluated = || std::mem::take(&mut record.lock().unwrap().evaluated);
        let found = guess(&mut draft, &[text(0, "xxab", 3), text(2, "k", 1), text(1, "q", 0)]);
        assert_eq!((found, evaluated()), (vec!["cde".to_owned(), "l".to_owned(), String::new()], 5 + 2));
        // The guess was right.
        assert_eq!(
            (guess(&mut draft, &[text(0, "xxabcde", 2)]), evaluated()),
            (vec!["fg".to_owned()], 1 + 1)
        );
        // It was wrong from the second token on.
        assert_eq!((guess(&mut draft, &[text(0, "xxabcdefk", 1)]), evaluated()), (vec!["l".to_owned()], 1));
    }

    #[test]
    fn long_texts_are_read_in_parts() {
        let limits = Limits { sequences: 1, context: 1000, cache: 1000, batch: 512 };
        let (engine, _) = Scripted::new(limits);
        let mut draft = DraftModel::new(Box::new(engine), 128, 0.7);
        let found: Vec<_> =
            (0..4).map(|_| guess(&mut draft, &[text(0, &"b".repeat(300), 2)]).remove(0)).collect();
        assert_eq!(found, ["", "", "cd", "cd"]);
        // A text that is longer than the model's context has no guess.
        assert_eq!(guess(&mut draft, &[text(0, &"b".repeat(1001), 2)]), [""]);
    }

    #[test]
    fn full_cache_and_failures_end_in_no_guess() {
        let limits = Limits { sequences: 2, context: 30, cache: 30, batch: 30 };
        let (engine, record) = Scripted::new(limits);
        let mut draft = DraftModel::new(Box::new(engine), 128, 0.7);
        assert_eq!(guess(&mut draft, &[text(0, &"a".repeat(20), 1)]), ["b"]);
        // The other sequence is evicted.
        assert_eq!(guess(&mut draft, &[text(1, &"b".repeat(20), 1)]), ["c"]);
        let both = [text(0, &"a".repeat(20), 1), text(1, &"b".repeat(20), 1)];
        assert_eq!(guess(&mut draft, &both), ["", ""]);
        assert_eq!(guess(&mut draft, &both[..1]), ["b"]);
        record.lock().unwrap().outcomes = vec![DecodeError::Failed("broken".to_owned())];
        assert_eq!(guess(&mut draft, &[text(0, "ab", 1)]), [""]);
        assert_eq!(guess(&mut draft, &[text(0, "ab", 1)]), [""]);
    }

    #[test]
    fn unlikely_and_unknown_tokens_are_not_guessed() {
        for (logits, vocabulary, expected) in [
            (&[][..], 9, None),
            (&[0.0, 5.0, 0.0][..], 9, Some(1)),
            (&[0.0, 5.0, 0.0], 1, None),
            (&[5.0, 5.0, 0.0], 9, None),
            (&[f32::NAN, 5.0], 9, None),
        ] {
            assert_eq!(likely(logits, vocabulary, 0.7), expected, "{logits:?}");
        }
    }
}

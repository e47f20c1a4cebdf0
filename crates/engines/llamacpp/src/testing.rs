//! A scripted engine for tests: a model that writes the alphabet.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::engine::{BatchToken, DecodeError, Engine, Limits, Token, Vocabulary};

/// The last of the characters that a scripted model writes: it ends the text.
pub(crate) const END: Token = 0;

/// Writes the characters that follow the prompt's last one in the alphabet.
pub(crate) struct Alphabet;

impl Vocabulary for Alphabet {
    fn tokenize(&self, text: &str, _: bool) -> Result<Vec<Token>, String> {
        Ok(text.bytes().map(Token::from).collect())
    }

    fn pair(&self, query: &str, document: &str) -> Result<Vec<Token>, String> {
        self.tokenize(&format!("{query}|{document}"), true)
    }

    /// Literal text is in upper case.
    fn tokenize_literally(&self, text: &str) -> Result<Vec<Token>, String> {
        self.tokenize(&text.to_uppercase(), false)
    }

    fn detokenize(&self, tokens: &[Token]) -> Vec<u8> {
        let mut text = Vec::new();
        tokens.iter().for_each(|token| self.piece(*token, true, &mut text));
        text
    }

    fn text(&self, token: Token) -> String {
        format!("_{token}")
    }

    fn piece(&self, token: Token, special: bool, target: &mut Vec<u8>) {
        match token {
            END if special => target.extend(b"<end>"),
            END => {}
            _ => target.push(u8::try_from(token).unwrap()),
        }
    }

    fn is_end(&self, token: Token) -> bool {
        token == END
    }

    fn size(&self) -> usize {
        128
    }
}

/// The calls of an engine, and its state.
#[derive(Default)]
pub(crate) struct Record {
    pub(crate) batches: Vec<Vec<BatchToken>>,
    /// The tokens of the sequences.
    pub(crate) held: HashMap<usize, Vec<Token>>,
    pub(crate) shared: Vec<(usize, usize, usize)>,
    /// How many sequences were restored.
    pub(crate) restored: usize,
    /// The adapters with which the tokens of the sequences were evaluated.
    pub(crate) adapters: HashMap<usize, Option<usize>>,
    /// The outcomes of the next evaluations.
    pub(crate) outcomes: Vec<DecodeError>,
    pub(crate) evaluated: usize,
}

/// After each token follows the next one of the alphabet, and after `z` the end. An adapter skips one more token than its number.
pub(crate) struct Scripted {
    limits: Limits,
    record: Arc<Mutex<Record>>,
    logits: Vec<Vec<f32>>,
}

impl Scripted {
    pub(crate) fn new(limits: Limits) -> (Self, Arc<Mutex<Record>>) {
        let record = Arc::<Mutex<Record>>::default();
        (Self { limits, record: Arc::clone(&record), logits: Vec::new() }, record)
    }
}

impl Engine for Scripted {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn decode(&mut self, batch: &[BatchToken], adapter: Option<usize>) -> Result<(), DecodeError> {
        let record = &mut *self.record.lock().unwrap();
        if let Some(error) = record.outcomes.pop() {
            return Err(error);
        }
        assert!((1..=self.limits.batch).contains(&batch.len()));
        if record.held.values().map(Vec::len).sum::<usize>() + batch.len() > self.limits.cache {
            return Err(DecodeError::CacheFull);
        }
        self.logits.clear();
        for entry in batch {
            assert!(entry.sequence < self.limits.sequences);
            let held = record.held.entry(entry.sequence).or_default();
            let known = record.adapters.entry(entry.sequence).or_insert(adapter);
            if held.is_empty() {
                *known = adapter;
            }
            assert_eq!(*known, adapter, "all tokens of a sequence have its adapter");
            assert_eq!(held.len(), entry.position, "tokens continue their sequences");
            held.push(entry.token);
            assert!(held.len() <= self.limits.context);
            let mut logits = vec![0.0; if entry.has_output { 128 } else { 0 }];
            let step = 1 + adapter.map_or(0, |number| Token::try_from(number).unwrap() + 1);
            let next = if entry.token + step > Token::from(b'z') { END } else { entry.token + step };
            if let Some(logit) = logits.get_mut(usize::try_from(next).unwrap()) {
                *logit = 9.0;
            }
            self.logits.push(logits);
        }
        record.evaluated += batch.len();
        record.batches.push(batch.to_vec());
        Ok(())
    }

    fn logits(&self, place: usize) -> &[f32] {
        &self.logits[place]
    }

    fn truncate(&mut self, sequence: usize, length: usize) -> usize {
        let mut record = self.record.lock().unwrap();
        let held = record.held.entry(sequence).or_default();
        assert!(length <= held.len());
        held.truncate(length);
        length
    }

    /// The adapter, if there is one, and the tokens.
    fn state(&mut self, sequence: usize) -> Option<Vec<u8>> {
        let record = self.record.lock().unwrap();
        let adapter = record.adapters[&sequence].map_or(-1, |adapter| Token::try_from(adapter).unwrap());
        let tokens = [adapter].into_iter().chain(record.held[&sequence].iter().copied());
        Some(tokens.flat_map(Token::to_le_bytes).collect())
    }

    fn restore(&mut self, sequence: usize, state: &[u8]) -> bool {
        let record = &mut *self.record.lock().unwrap();
        let (tokens, _) = state.as_chunks();
        let mut tokens = tokens.iter().map(|bytes| Token::from_le_bytes(*bytes));
        let adapter = usize::try_from(tokens.next().unwrap()).ok();
        let tokens: Vec<_> = tokens.collect();
        assert!(record.held.get(&sequence).is_none_or(Vec::is_empty), "an empty sequence");
        if record.held.values().map(Vec::len).sum::<usize>() + tokens.len() > self.limits.cache {
            return false;
        }
        record.restored += 1;
        record.held.insert(sequence, tokens);
        record.adapters.insert(sequence, adapter);
        true
    }

    fn share(&mut self, from: usize, to: usize, length: usize) -> usize {
        let mut record = self.record.lock().unwrap();
        let tokens = record.held[&from][..length].to_vec();
        assert!(record.held.get(&to).is_none_or(Vec::is_empty), "an empty sequence");
        record.held.insert(to, tokens);
        let adapter = record.adapters[&from];
        record.adapters.insert(to, adapter);
        record.shared.push((from, to, length));
        length
    }
}

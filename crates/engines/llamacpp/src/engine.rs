//! An engine as the scheduler uses it: evaluation of batches over several sequences, and a vocabulary.
//!
//! Knows no library. `context.rs` implements both traits for llama.cpp, tests for engines that they script.

/// A token's number in the vocabulary.
pub(crate) type Token = i32;

/// One token of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchToken {
    pub(crate) token: Token,
    /// The token's place in its sequence.
    pub(crate) position: usize,
    pub(crate) sequence: usize,
    /// Whether the logits of the next token are wanted.
    pub(crate) has_output: bool,
    /// Whether the token is a guess, which the logits before it may refute.
    pub(crate) is_guess: bool,
}

/// Why a batch was not evaluated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DecodeError {
    /// The cache has no room for the batch. No sequence has changed.
    CacheFull,
    /// The library failed. Sequences may hold some of the batch's tokens.
    Failed(String),
}

/// The limits of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// How many sequences it holds.
    pub(crate) sequences: usize,
    /// The longest sequence, in tokens.
    pub(crate) context: usize,
    /// Tokens of all sequences together. Those that sequences share count once.
    pub(crate) cache: usize,
    /// The largest batch, in tokens.
    pub(crate) batch: usize,
}

/// Evaluates tokens of several sequences, and caches what it has evaluated.
pub(crate) trait Engine {
    fn limits(&self) -> Limits;

    /// Evaluates a batch, whose tokens continue their sequences, with an adapter, by its number. All tokens of a sequence have the same
    /// adapter.
    ///
    /// # Errors
    /// The batch was not evaluated.
    fn decode(&mut self, batch: &[BatchToken], adapter: Option<usize>) -> Result<(), DecodeError>;

    /// The logits after the token at this place of the last batch, one for each token of the vocabulary. Empty if the token had
    /// no output.
    fn logits(&self, place: usize) -> &[f32];

    /// Shortens a sequence to its first `length` tokens. Returns how many it still holds: 0 if the engine can only remove all.
    fn truncate(&mut self, sequence: usize, length: usize) -> usize;

    /// The state of a sequence, for [`restore`](Self::restore). `None` if the engine could not shorten a restored sequence.
    fn state(&mut self, sequence: usize) -> Option<Vec<u8>>;

    /// Fills an empty sequence from a saved state. Returns whether the cache had room; otherwise the sequence stays empty.
    fn restore(&mut self, sequence: usize, state: &[u8]) -> bool;

    /// Replaces an empty sequence by the first `length` tokens of another. Returns how many it now holds: 0 if the engine cannot
    /// share them.
    fn share(&mut self, from: usize, to: usize, length: usize) -> usize;
}

/// Text as tokens, and back.
pub(crate) trait Vocabulary: Send + Sync {
    /// The tokens of a text; with `adds_special`, also those that begin and end every text.
    ///
    /// # Errors
    /// The text cannot be tokenized.
    fn tokenize(&self, text: &str, adds_special: bool) -> Result<Vec<Token>, String>;

    /// The tokens of a query and a document, as a model that scores pairs takes them.
    ///
    /// # Errors
    /// A text cannot be tokenized, or the vocabulary lacks a separator.
    fn pair(&self, query: &str, document: &str) -> Result<Vec<Token>, String>;

    /// The tokens of a text, in which no special ones are found.
    ///
    /// # Errors
    /// The text cannot be tokenized.
    fn tokenize_literally(&self, text: &str) -> Result<Vec<Token>, String>;

    /// As [`tokenize`](Self::tokenize). Between two marks, the text has no special tokens.
    ///
    /// # Errors
    /// The text cannot be tokenized.
    fn tokenize_marked(
        &self,
        text: &str,
        mark: Option<char>,
        adds_special: bool,
    ) -> Result<Vec<Token>, String> {
        let Some(mark) = mark.filter(|mark| text.contains(*mark)) else {
            return self.tokenize(text, adds_special);
        };
        let frame = if adds_special { self.tokenize("", true)? } else { Vec::new() };
        let (first, last) = frame.split_at(frame.len().min(1));
        let mut tokens = first.to_vec();
        for (number, part) in text.split(mark).enumerate().filter(|(_, part)| !part.is_empty()) {
            let is_literal = number % 2 == 1;
            tokens.extend(if is_literal {
                self.tokenize_literally(part)?
            } else {
                self.tokenize(part, false)?
            });
        }
        if let [one, other, ..] = tokens[..]
            && first == [one]
            && one == other
        {
            // A chat template has written the first token, too.
            tokens.remove(0);
        }
        tokens.extend(last);
        Ok(tokens)
    }

    /// The text of tokens, special ones included. All of them are tokens of the vocabulary.
    fn detokenize(&self, tokens: &[Token]) -> Vec<u8>;

    /// The text by which the vocabulary has a token: with its marks for spaces and bytes.
    fn text(&self, token: Token) -> String;

    /// Appends the bytes of a token, which may be a part of a character. Special tokens are empty unless `special`.
    fn piece(&self, token: Token, special: bool, target: &mut Vec<u8>);

    /// Whether the token ends a text.
    fn is_end(&self, token: Token) -> bool;

    /// How many tokens there are.
    fn size(&self) -> usize;
}

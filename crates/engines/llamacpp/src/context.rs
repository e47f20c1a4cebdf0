//! A context of llama.cpp as an [`Engine`]: evaluates batches, and holds the cache of its sequences.

use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use crate::api::{Api, ContextParams, RawBatch, RawContext};
use crate::embedding::Embedder;
use crate::engine::{BatchToken, DecodeError, Engine, Limits, Token, Vocabulary as _};
use crate::weights::{Pooling, Task, Weights};

/// The library's outcome for a batch that found no room in the cache.
const NO_ROOM: i32 = 1;

/// The end of a range of positions that has none.
const NO_END: i32 = -1;

/// A context, used by one thread at a time.
pub(crate) struct Context {
    weights: Arc<Weights>,
    context: NonNull<RawContext>,
    limits: Limits,
    vocabulary: usize,
    /// The adapter of the last batch.
    adapter: Option<usize>,
    buffers: Buffers,
}

// SAFETY: a context may be used on any thread, by one at a time: all functions on it take `&mut self`, but for reading logits, which
// changes nothing that another reader sees.
unsafe impl Send for Context {}

/// The arrays of a batch, kept for the next one.
#[derive(Default)]
struct Buffers {
    tokens: Vec<i32>,
    positions: Vec<i32>,
    /// One for each token.
    counts: Vec<i32>,
    sequences: Vec<i32>,
    /// Points to the elements of `sequences`.
    pointers: Vec<*mut i32>,
    outputs: Vec<i8>,
}

impl Context {
    /// Makes a context, in which up to `guesses` guessed tokens of each sequence are evaluated at once.
    ///
    /// # Errors
    /// The library's reason.
    pub(crate) fn new(
        weights: &Arc<Weights>,
        limits: Limits,
        threads: usize,
        guesses: usize,
    ) -> Result<Self, String> {
        let mut params = params(weights, limits, threads)?;
        // Without a limit, the library has room for the logits of all tokens of a batch.
        let outputs = limits.sequences.saturating_mul(guesses + 1).min(limits.batch);
        params.n_outputs_max = u32::try_from(outputs).unwrap_or(u32::MAX);
        Self::with(weights, limits, params)
    }

    /// Makes a context for embeddings. A text has to fit into one batch.
    ///
    /// # Errors
    /// The library's reason.
    pub(crate) fn for_embeddings(
        weights: &Arc<Weights>,
        limits: Limits,
        threads: usize,
        pooling: Pooling,
    ) -> Result<Self, String> {
        const MEAN: i32 = 1;
        let mut params = params(weights, limits, threads)?;
        params.embeddings = 1;
        params.n_outputs_max_per_seq = 0;
        if pooling == Pooling::Mean {
            params.pooling_type = MEAN;
        }
        Self::with(weights, limits, params)
    }

    fn with(weights: &Arc<Weights>, limits: Limits, params: ContextParams) -> Result<Self, String> {
        let library = weights.library();
        // SAFETY: the parameters are the library's own, and the model lives at least as long as the context, which holds it.
        let (context, log) = library.with_log(|api| unsafe { (api.context_new)(weights.raw(), params) });
        let context = NonNull::new(context).ok_or(if log.is_empty() {
            "no reason was given".to_owned()
        } else {
            log
        })?;
        // SAFETY: the context was made just now.
        let batch = usize::try_from(unsafe { (library.api.context_batch)(context.as_ptr()) }).unwrap_or(0);
        // The library takes no larger batches than its cache, and ends the process for larger ones.
        let limits = Limits { batch: limits.batch.min(batch), ..limits };
        let vocabulary = weights.size();
        let (weights, buffers) = (Arc::clone(weights), Buffers::default());
        Ok(Self { weights, context, limits, vocabulary, adapter: None, buffers })
    }

    fn api(&self) -> &Api {
        &self.weights.library().api
    }

    /// Changes the adapter of the next batches.
    fn use_adapter(&mut self, adapter: Option<usize>) -> Result<(), String> {
        let mut used: Vec<_> = adapter.and_then(|number| self.weights.adapter(number)).into_iter().collect();
        let mut scales = vec![1.0; used.len()];
        let context = self.context.as_ptr();
        // SAFETY: both arrays have this length. The adapters belong to the context's model, and live as long.
        let set = |api: &Api| unsafe {
            (api.adapters_set)(context, used.as_mut_ptr(), used.len(), scales.as_mut_ptr())
        };
        match self.weights.library().with_log(set) {
            (0, _) => {
                self.adapter = adapter;
                Ok(())
            }
            (_, log) => Err(format!("the adapter cannot be used: {log}")),
        }
    }

    /// Removes the tokens of a sequence from a position on. Returns whether the library could.
    fn remove(&mut self, sequence: i32, from: i32) -> bool {
        // SAFETY: the context lives as long as this object. The library checks sequences and positions.
        unsafe {
            let memory = (self.api().context_memory)(self.context.as_ptr());
            memory.is_null() || (self.api().sequence_remove)(memory, sequence, from, NO_END)
        }
    }

    /// The vector of a sequence of the last batch.
    fn embedding(&self, sequence: usize) -> Result<Vec<f32>, String> {
        let missing = || "the model has no embedding for the text".to_owned();
        let sequence = i32::try_from(sequence).map_err(|_| missing())?;
        // SAFETY: the library returns null for sequences without an embedding.
        let values = unsafe { (self.api().embedding)(self.context.as_ptr(), sequence) };
        if values.is_null() {
            return Err(missing());
        }
        let size = match self.weights.task() {
            Task::Score => self.weights.classes(),
            _ => self.weights.embedding_size(),
        };
        // SAFETY: the library keeps a vector of the model's size for each sequence of the last batch, or a number for each class.
        Ok(unsafe { slice::from_raw_parts(values, size) }.to_vec())
    }

    /// The first position that a sequence holds; none if it is empty.
    fn start(&self, sequence: i32) -> Option<i32> {
        // SAFETY: as above.
        let start = unsafe {
            let memory = (self.api().context_memory)(self.context.as_ptr());
            if memory.is_null() { -1 } else { (self.api().sequence_start)(memory, sequence) }
        };
        (start >= 0).then_some(start)
    }
}

/// The parameters that all contexts have in common.
fn params(weights: &Weights, limits: Limits, threads: usize) -> Result<ContextParams, String> {
    let number = |number: usize| u32::try_from(number).map_err(|_| format!("{number} is too large"));
    let threads = i32::try_from(threads).map_err(|_| format!("{threads} threads are too many"))?;
    // SAFETY: the function takes nothing.
    let mut params = unsafe { (weights.library().api.context_default_params)() };
    params.n_ctx = number(limits.cache)?;
    params.n_batch = number(limits.batch)?;
    params.n_ubatch = params.n_batch;
    params.n_seq_max = number(limits.sequences)?;
    params.n_threads = threads;
    params.n_threads_batch = threads;
    // One cache for all sequences: a batch of any of them is evaluated at once, and they share prefixes without copies.
    params.kv_unified = 1;
    Ok(params)
}

impl Embedder for Context {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn embed(&mut self, texts: &[&[Token]]) -> Result<Vec<Vec<f32>>, String> {
        let token = |sequence, (position, token): (usize, &Token)| BatchToken {
            token: *token,
            position,
            sequence,
            has_output: true,
            is_guess: false,
        };
        let batch: Vec<_> = texts
            .iter()
            .enumerate()
            .flat_map(|(sequence, text)| text.iter().enumerate().map(move |entry| token(sequence, entry)))
            .collect();
        let outcome = self.decode(&batch, None).map_err(|error| match error {
            DecodeError::CacheFull => "the cache of the context has no room for the texts".to_owned(),
            DecodeError::Failed(reason) => reason,
        });
        let found =
            outcome.and_then(|()| (0..texts.len()).map(|sequence| self.embedding(sequence)).collect());
        (0..texts.len()).for_each(|sequence| {
            self.truncate(sequence, 0);
        });
        found
    }
}

impl Engine for Context {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn decode(&mut self, batch: &[BatchToken], adapter: Option<usize>) -> Result<(), DecodeError> {
        let failed = |what: &str| DecodeError::Failed(what.to_owned());
        if adapter != self.adapter {
            self.use_adapter(adapter).map_err(DecodeError::Failed)?;
        }
        if batch.len() > self.limits.batch {
            return Err(failed("the batch is too large"));
        }
        let count = self.buffers.fill(batch).ok_or_else(|| failed("a position is too large"))?;
        let Buffers { tokens, positions, counts, pointers, outputs, .. } = &mut self.buffers;
        let raw = RawBatch {
            n_tokens: count,
            token: tokens.as_mut_ptr(),
            embd: std::ptr::null_mut(),
            pos: positions.as_mut_ptr(),
            n_seq_id: counts.as_mut_ptr(),
            seq_id: pointers.as_mut_ptr(),
            logits: outputs.as_mut_ptr(),
        };
        let context = self.context.as_ptr();
        // SAFETY: the arrays have one element for each token of the batch, and live during the call. The library checks tokens,
        // positions and sequences.
        let (outcome, log) = self.weights.library().with_log(|api| unsafe { (api.decode)(context, raw) });
        match outcome {
            0 => Ok(()),
            NO_ROOM => Err(DecodeError::CacheFull),
            code if log.is_empty() => Err(DecodeError::Failed(format!("llama_decode returned {code}"))),
            _ => Err(DecodeError::Failed(log)),
        }
    }

    fn logits(&self, place: usize) -> &[f32] {
        let Ok(place) = i32::try_from(place) else { return &[] };
        // SAFETY: the library returns null for tokens without an output.
        let logits = unsafe { (self.api().logits)(self.context.as_ptr(), place) };
        if logits.is_null() {
            return &[];
        }
        // SAFETY: the library keeps one logit for each token of the vocabulary, until the next call that takes `&mut self`.
        unsafe { slice::from_raw_parts(logits, self.vocabulary) }
    }

    fn truncate(&mut self, sequence: usize, length: usize) -> usize {
        let (Ok(number), Ok(from)) = (i32::try_from(sequence), i32::try_from(length)) else { return 0 };
        // A model that attends to a window may have dropped the first tokens, which a shorter sequence needs again.
        if length > 0 && self.remove(number, from) && self.start(number) == Some(0) {
            return length;
        }
        self.remove(number, 0);
        0
    }

    fn state(&mut self, sequence: usize) -> Option<Vec<u8>> {
        let number = i32::try_from(sequence).ok()?;
        if self.weights.has_recurrent_state() || self.start(number) != Some(0) {
            return None;
        }
        let context = self.context.as_ptr();
        // SAFETY: the context lives as long as this object. The library checks the sequence.
        let size = unsafe { (self.api().state_size)(context, number) };
        let mut state = vec![0; size];
        // SAFETY: the array has this length.
        let written = unsafe { (self.api().state_get)(context, state.as_mut_ptr(), size, number) };
        (size > 0 && written == size).then_some(state)
    }

    fn restore(&mut self, sequence: usize, state: &[u8]) -> bool {
        let Ok(number) = i32::try_from(sequence) else { return false };
        let context = self.context.as_ptr();
        // SAFETY: the array has this length. The library wrote it for a context with the same parameters.
        let set = |api: &Api| unsafe { (api.state_set)(context, state.as_ptr(), state.len(), number) };
        let (read, _) = self.weights.library().with_log(set);
        if read == state.len() && self.start(number) == Some(0) {
            return true;
        }
        self.remove(number, 0);
        false
    }

    fn share(&mut self, from: usize, to: usize, length: usize) -> usize {
        if self.weights.has_recurrent_state() {
            return 0;
        }
        let numbers = (i32::try_from(from), i32::try_from(to), i32::try_from(length));
        let (Ok(from), Ok(target), Ok(end)) = numbers else { return 0 };
        // SAFETY: as above.
        unsafe {
            let memory = (self.api().context_memory)(self.context.as_ptr());
            if !memory.is_null() {
                (self.api().sequence_copy)(memory, from, target, 0, end);
            }
        }
        if self.start(target) == Some(0) {
            return length;
        }
        self.remove(target, 0);
        0
    }
}

impl Buffers {
    /// Fills the arrays with a batch, and returns its length; `None` if a number does not fit.
    fn fill(&mut self, batch: &[BatchToken]) -> Option<i32> {
        let Self { tokens, positions, counts, sequences, pointers, outputs } = self;
        for array in [&mut *tokens, positions, counts, sequences] {
            array.clear();
        }
        pointers.clear();
        outputs.clear();
        for BatchToken { token, position, sequence, has_output, .. } in batch {
            tokens.push(*token);
            positions.push(i32::try_from(*position).ok()?);
            counts.push(1);
            sequences.push(i32::try_from(*sequence).ok()?);
            outputs.push(i8::from(*has_output));
        }
        pointers.extend(sequences.iter_mut().map(|sequence| sequence as *mut i32));
        i32::try_from(batch.len()).ok()
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: nothing else uses the context.
        unsafe { (self.api().context_free)(self.context.as_ptr()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_of_a_batch_agree() {
        let mut buffers = Buffers::default();
        for lengths in [0, 3, 1, 100] {
            let batch: Vec<BatchToken> = (0..lengths)
                .map(|place| BatchToken {
                    token: 7,
                    position: place,
                    sequence: place % 3,
                    has_output: place == 2,
                    is_guess: false,
                })
                .collect();
            assert_eq!(buffers.fill(&batch), i32::try_from(lengths).ok());
            assert_eq!(buffers.pointers.len(), lengths);
            for (place, entry) in batch.iter().enumerate() {
                // SAFETY: the pointers point to elements of `sequences`, which has not changed since.
                let sequence = unsafe { *buffers.pointers[place] };
                assert_eq!(sequence, i32::try_from(entry.sequence).unwrap());
                assert_eq!((buffers.tokens[place], buffers.counts[place]), (7, 1));
                assert_eq!(buffers.outputs[place], i8::from(entry.has_output));
            }
        }
        let far =
            BatchToken { token: 1, position: usize::MAX, sequence: 0, has_output: false, is_guess: false };
        assert_eq!(buffers.fill(&[far]), None);
    }
}

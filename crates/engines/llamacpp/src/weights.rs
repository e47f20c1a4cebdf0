//! A model in memory: its weights, its metadata and its vocabulary.

use std::ffi::{CString, c_char};
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::adapters::AdapterFile;
use crate::api::{Api, RawAdapter, RawModel, RawVocabulary};
use crate::engine::{Token, Vocabulary};
use crate::library::{LlamaCpp, text_at};

/// Most pieces of tokens are shorter.
const PIECE: usize = 64;

/// The output that a model makes from text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// More text.
    Generate,
    /// A vector.
    Embed(Pooling),
    /// How well two texts fit.
    Score,
    /// Something that this backend has no tensors for, such as a translation.
    Unsupported,
}

/// How the vectors of a text's tokens become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pooling {
    /// By the file's setting.
    OfModel,
    /// By their mean.
    Mean,
}

/// A loaded model. Contexts share it.
pub(crate) struct Weights {
    library: Arc<LlamaCpp>,
    model: NonNull<RawModel>,
    vocabulary: *const RawVocabulary,
    /// Number of tokens.
    size: i32,
    /// The longest piece of a token, in bytes.
    longest_piece: usize,
    /// The model frees them.
    adapters: Vec<NonNull<RawAdapter>>,
}

// SAFETY: the library does not change a loaded model, and its functions on models and vocabularies may be called on any thread.
unsafe impl Send for Weights {}
// SAFETY: as above.
unsafe impl Sync for Weights {}

impl Weights {
    /// Loads a GGUF file, or the parts of a split one in their order. `gpu_layers` is how many layers go to a GPU, if there is one;
    /// -1 for all.
    ///
    /// # Errors
    /// The library's reason.
    pub(crate) fn load(library: &Arc<LlamaCpp>, parts: &[PathBuf], gpu_layers: i32) -> Result<Self, String> {
        let files = parts.iter().map(|path| CString::new(path.as_os_str().as_encoded_bytes()));
        let files: Vec<CString> =
            files.collect::<Result<_, _>>().map_err(|_| "its path has a zero byte".to_owned())?;
        let pointers: Vec<*const c_char> = files.iter().map(|file| file.as_ptr()).collect();
        // SAFETY: the function takes nothing.
        let mut params = unsafe { (library.api.model_default_params)() };
        params.n_gpu_layers = gpu_layers;
        // SAFETY: the parameters are the library's own, and the paths live during the call.
        let (model, log) =
            library.with_log(|api| unsafe { (api.model_load)(pointers.as_ptr(), pointers.len(), params) });
        let model =
            NonNull::new(model).ok_or(if log.is_empty() { "no reason was given".to_owned() } else { log })?;
        // SAFETY: the model was loaded, and its vocabulary lives as long.
        let vocabulary = unsafe { (library.api.model_vocabulary)(model.as_ptr()) };
        // SAFETY: as above.
        let size = unsafe { (library.api.vocabulary_size)(vocabulary) };
        let mut weights = Self {
            library: Arc::clone(library),
            model,
            vocabulary,
            size,
            longest_piece: 0,
            adapters: Vec::new(),
        };
        let mut piece = Vec::new();
        for token in 0..size {
            piece.clear();
            weights.piece(token, true, &mut piece);
            weights.longest_piece = weights.longest_piece.max(piece.len());
        }
        Ok(weights)
    }

    /// Loads LoRA adapters, before any context is made.
    ///
    /// # Errors
    /// The library's reason, with the file.
    pub(crate) fn load_adapters(&mut self, files: &[AdapterFile]) -> Result<(), String> {
        for (_, path) in files {
            let refused = |reason: &str| format!("adapter {}: {reason}", path.display());
            let file = CString::new(path.as_os_str().as_encoded_bytes());
            let file = file.map_err(|_| refused("its path has a zero byte"))?;
            // SAFETY: the model was loaded, and the path lives during the call.
            let load = |api: &Api| unsafe { (api.adapter_load)(self.raw(), file.as_ptr()) };
            let (adapter, log) = self.library.with_log(load);
            let adapter = NonNull::new(adapter).ok_or_else(|| refused(&log))?;
            // SAFETY: the adapter was loaded just now.
            if unsafe { (self.api().adapter_trigger_length)(adapter.as_ptr()) } > 0 {
                return Err(refused("it applies after certain tokens only, which is not supported"));
            }
            self.adapters.push(adapter);
        }
        Ok(())
    }

    /// The adapter with a number, in the order in which they were loaded.
    pub(crate) fn adapter(&self, number: usize) -> Option<*mut RawAdapter> {
        self.adapters.get(number).map(|adapter| adapter.as_ptr())
    }

    pub(crate) fn library(&self) -> &Arc<LlamaCpp> {
        &self.library
    }

    pub(crate) fn raw(&self) -> *mut RawModel {
        self.model.as_ptr()
    }

    fn api(&self) -> &Api {
        &self.library.api
    }

    /// The longest context that the model was trained with.
    pub(crate) fn trained_context(&self) -> usize {
        // SAFETY: the model lives as long as this object; so in all further calls.
        let length = unsafe { (self.api().model_context_length)(self.raw()) };
        usize::try_from(length).unwrap_or(0)
    }

    /// The output that the model makes from text.
    pub(crate) fn task(&self) -> Task {
        // SAFETY: as above.
        let (encodes, decodes) = unsafe {
            ((self.api().model_has_encoder)(self.raw()), (self.api().model_has_decoder)(self.raw()))
        };
        let architecture = self.metadata("general.architecture").unwrap_or_default();
        let pooling = self.metadata(&format!("{architecture}.pooling_type"));
        match pooling.as_deref() {
            None | Some("0") if decodes && !encodes => Task::Generate,
            None | Some("0") if encodes && !decodes => Task::Embed(Pooling::Mean),
            Some("1" | "2" | "3") => Task::Embed(Pooling::OfModel),
            Some("4") => Task::Score,
            _ => Task::Unsupported,
        }
    }

    /// How many numbers an embedding has.
    pub(crate) fn embedding_size(&self) -> usize {
        // SAFETY: as above.
        usize::try_from(unsafe { (self.api().model_embedding_size)(self.raw()) }).unwrap_or(0)
    }

    /// How many classes a model that scores pairs has.
    pub(crate) fn classes(&self) -> usize {
        // SAFETY: as above.
        usize::try_from(unsafe { (self.api().model_classes)(self.raw()) }).unwrap_or(0)
    }

    /// Whether the state of a sequence belongs to all of its tokens together: no part of them can be removed or shared.
    pub(crate) fn has_recurrent_state(&self) -> bool {
        // SAFETY: as above.
        unsafe { (self.api().model_is_recurrent)(self.raw()) || (self.api().model_is_hybrid)(self.raw()) }
    }

    /// Architecture, size and quantisation, such as `llama 135M Q4_1`.
    pub(crate) fn description(&self) -> String {
        // SAFETY: the buffer has the length that is passed.
        text_of(|buffer, length| unsafe { (self.api().model_description)(self.raw(), buffer, length) })
            .unwrap_or_default()
    }

    /// A value of the file's metadata.
    pub(crate) fn metadata(&self, key: &str) -> Option<String> {
        let key = CString::new(key).ok()?;
        // SAFETY: the buffer has the length that is passed, and the key lives during the call.
        text_of(|buffer, length| unsafe {
            (self.api().model_metadata)(self.raw(), key.as_ptr(), buffer, length)
        })
    }

    /// The text of the token that begins every text.
    pub(crate) fn first_token(&self) -> Option<String> {
        // SAFETY: the vocabulary lives as long as the model; so in all further calls.
        self.text_of(unsafe { (self.api().first_token)(self.vocabulary) })
    }

    /// The text of the token that ends a text.
    pub(crate) fn last_token(&self) -> Option<String> {
        // SAFETY: as above.
        self.text_of(unsafe { (self.api().last_token)(self.vocabulary) })
    }

    fn text_of(&self, token: Token) -> Option<String> {
        // SAFETY: as above; the library checks the number of a token.
        let text = || unsafe { text_at((self.api().vocabulary_text)(self.vocabulary, token)) };
        (0..self.size).contains(&token).then(text)
    }

    /// Texts of more bytes have more than `tokens` tokens.
    pub(crate) fn longest_text(&self, tokens: usize) -> usize {
        tokens.saturating_mul(self.longest_piece.max(1))
    }
}

impl Drop for Weights {
    fn drop(&mut self) {
        // SAFETY: contexts hold this object, so none is left.
        unsafe { (self.api().model_free)(self.raw()) };
    }
}

impl Weights {
    /// The texts of the tokens that only templates and models write.
    pub(crate) fn control_tokens(&self) -> Vec<String> {
        // SAFETY: as above; the number is a token's.
        let is_control = |token: &Token| unsafe { (self.api().is_control)(self.vocabulary, *token) };
        let texts = (0..self.size).filter(is_control).filter_map(|token| self.text_of(token));
        texts.filter(|text| !text.is_empty()).collect()
    }

    /// The tokens of a text; with `finds_special`, special ones where their texts are.
    fn tokens_of(&self, text: &str, adds_special: bool, finds_special: bool) -> Result<Vec<Token>, String> {
        let too_long = || "the text is too long".to_owned();
        let length = i32::try_from(text.len()).map_err(|_| too_long())?;
        let mut tokens = vec![0; text.len() / 2 + 8];
        loop {
            let room = i32::try_from(tokens.len()).map_err(|_| too_long())?;
            // SAFETY: text and buffer have the lengths that are passed.
            let count = unsafe {
                let text = text.as_ptr().cast::<c_char>();
                (self.api().tokenize)(
                    self.vocabulary,
                    text,
                    length,
                    tokens.as_mut_ptr(),
                    room,
                    adds_special,
                    finds_special,
                )
            };
            if let Ok(count) = usize::try_from(count) {
                tokens.truncate(count);
                return Ok(tokens);
            }
            let needed =
                count.checked_neg().and_then(|needed| usize::try_from(needed).ok()).ok_or_else(too_long)?;
            if needed <= tokens.len() {
                return Err("the vocabulary cannot tokenize the text".to_owned());
            }
            tokens.resize(needed, 0);
        }
    }

    /// A token that the vocabulary need not have.
    fn known(&self, token: Token) -> Option<Token> {
        (0..self.size).contains(&token).then_some(token)
    }
}

impl Vocabulary for Weights {
    fn tokenize(&self, text: &str, adds_special: bool) -> Result<Vec<Token>, String> {
        let mut tokens = self.tokens_of(text, adds_special, true)?;
        // SAFETY: as above.
        let first = unsafe { (self.api().first_token)(self.vocabulary) };
        if adds_special && tokens.starts_with(&[first, first]) {
            // A chat template has written the first token, too.
            tokens.remove(0);
        }
        Ok(tokens)
    }

    fn pair(&self, query: &str, document: &str) -> Result<Vec<Token>, String> {
        if let Some(template) = self.metadata("tokenizer.chat_template.rerank") {
            return self.tokens_of(&filled(&template, query, document), false, true);
        }
        // SAFETY: the vocabulary lives as long as the model.
        let (first, last, separator) = unsafe {
            let api = self.api();
            let first = (api.adds_first)(self.vocabulary).then(|| (api.first_token)(self.vocabulary));
            let end = self.known((api.last_token)(self.vocabulary));
            let end = end.unwrap_or_else(|| (api.separator_token)(self.vocabulary));
            let last = (api.adds_last)(self.vocabulary).then_some(end);
            let separator =
                (api.adds_separator)(self.vocabulary).then(|| (api.separator_token)(self.vocabulary));
            (first, last, separator)
        };
        let [first, last, separator] =
            [first, last, separator].map(|token| token.and_then(|token| self.known(token)));
        if last.is_none() && separator.is_none() {
            return Err("the vocabulary has no token that ends a query".to_owned());
        }
        let mut tokens: Vec<Token> = first.into_iter().collect();
        tokens.extend(self.tokens_of(query, false, false)?);
        tokens.extend(last.into_iter().chain(separator));
        tokens.extend(self.tokens_of(document, false, false)?);
        tokens.extend(last);
        Ok(tokens)
    }

    fn tokenize_literally(&self, text: &str) -> Result<Vec<Token>, String> {
        self.tokens_of(text, false, false)
    }

    fn detokenize(&self, tokens: &[Token]) -> Vec<u8> {
        let Ok(count) = i32::try_from(tokens.len()) else { return Vec::new() };
        let mut text = vec![0_u8; tokens.len().saturating_mul(8).max(PIECE)];
        loop {
            let Ok(room) = i32::try_from(text.len()) else { return Vec::new() };
            // SAFETY: both arrays have the lengths that are passed. The library checks the tokens' numbers.
            let length = unsafe {
                let buffer = text.as_mut_ptr().cast::<c_char>();
                (self.api().detokenize)(self.vocabulary, tokens.as_ptr(), count, buffer, room, false, true)
            };
            if let Ok(length) = usize::try_from(length) {
                text.truncate(length);
                return text;
            }
            let needed = usize::try_from(length.unsigned_abs()).unwrap_or(0);
            if needed <= text.len() {
                return Vec::new();
            }
            text.resize(needed, 0);
        }
    }

    fn text(&self, token: Token) -> String {
        self.text_of(token).unwrap_or_default()
    }

    fn piece(&self, token: Token, special: bool, target: &mut Vec<u8>) {
        if !(0..self.size).contains(&token) {
            return;
        }
        let start = target.len();
        let mut room = PIECE;
        loop {
            target.resize(start + room, 0);
            let Some(buffer) = target.get_mut(start..) else {
                return;
            };
            // SAFETY: the buffer has the length that is passed, which is small.
            let length = unsafe {
                let length = i32::try_from(room).unwrap_or(i32::MAX);
                (self.api().piece)(
                    self.vocabulary,
                    token,
                    buffer.as_mut_ptr().cast::<c_char>(),
                    length,
                    0,
                    special,
                )
            };
            match usize::try_from(length) {
                Ok(length) => return target.truncate(start + length),
                Err(_) => {
                    let needed = usize::try_from(i64::from(length).unsigned_abs()).unwrap_or(0);
                    if needed <= room {
                        return target.truncate(start);
                    }
                    room = needed;
                }
            }
        }
    }

    fn is_end(&self, token: Token) -> bool {
        // SAFETY: as above; the number is a token's.
        (0..self.size).contains(&token) && unsafe { (self.api().is_end)(self.vocabulary, token) }
    }

    fn size(&self) -> usize {
        usize::try_from(self.size).unwrap_or(0)
    }
}

/// Fills the placeholders of a template. Placeholders in the texts themselves are kept.
fn filled(template: &str, query: &str, document: &str) -> String {
    const PLACES: [&str; 2] = ["{query}", "{document}"];
    let mut text = String::with_capacity(template.len() + query.len() + document.len());
    let mut rest = template;
    while let Some((start, place)) = PLACES.iter().filter_map(|place| Some((rest.find(place)?, place))).min()
    {
        text.push_str(rest.get(..start).unwrap_or_default());
        text.push_str(if *place == PLACES[0] { query } else { document });
        rest = rest.get(start + place.len()..).unwrap_or_default();
    }
    text + rest
}

/// A text that `read` writes to a buffer, returning its whole length, or less than 0.
fn text_of(read: impl Fn(*mut c_char, usize) -> i32) -> Option<String> {
    let mut buffer = vec![0_u8; 256];
    loop {
        let length = usize::try_from(read(buffer.as_mut_ptr().cast(), buffer.len())).ok()?;
        if length < buffer.len() {
            buffer.truncate(length);
            return Some(String::from_utf8_lossy(&buffer).into_owned());
        }
        // With the zero at its end.
        buffer.resize(length + 1, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_filled_once() {
        for (template, expected) in [
            ("<q>{query}<d>{document}<end>", "<q>a {document}<d>b {query}<end>"),
            ("{document}{query}{query}", "b {query}a {document}a {document}"),
            ("{other} {", "{other} {"),
            ("", ""),
        ] {
            assert_eq!(filled(template, "a {document}", "b {query}"), expected);
        }
    }

    #[test]
    fn text_is_read_whole_however_long_it_is() {
        for length in [0, 1, 255, 256, 257, 5000] {
            let text = "x".repeat(length);
            let read = |buffer: *mut c_char, room: usize| {
                let written = length.min(room - 1);
                // SAFETY: the buffer has that room.
                unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), buffer.cast(), written) };
                i32::try_from(length).unwrap()
            };
            assert_eq!(text_of(read).unwrap(), text);
        }
        assert_eq!(text_of(|_, _| -1), None);
    }
}

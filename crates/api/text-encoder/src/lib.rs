//! Texts as tokens, and embeddings and scores from a model's outputs, as configured by the files in the model's folder.
//!
//! The files are in the formats of Hugging Face's packages: `tokenizer.json` for the tokens; `modules.json` and the files that it names for
//! embeddings, as sentence-transformers writes them; `config.json` for scores. Parameters of the model's configuration take
//! precedence. This crate knows no server, request or engine: it turns texts into numbers of tokens, and rows of numbers into vectors.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
#![deny(clippy::indexing_slicing)]
#![forbid(unsafe_code)]

mod dense;
mod files;
mod head;
mod pooling;
mod recipe;
mod tokens;
mod weights;

pub use files::{Folders, TOKENIZER, TOKENIZER_LIMIT};
pub use head::{Head, Scoring};
pub use pooling::{Mode, Pooling, normalize};
pub use recipe::Recipe;
pub use tokens::{Encoder, Refusal, Tokens, Truncation};

/// The text processing of a model, read from its files.
#[derive(Debug)]
pub struct TextModel {
    /// Makes tokens of texts.
    pub encoder: Encoder,
    /// How outputs become embeddings.
    pub recipe: Recipe,
    /// How logits become scores.
    pub head: Head,
}

impl TextModel {
    /// Reads the files of a model. `parameter` looks up parameters of its configuration. Blocks.
    ///
    /// # Errors
    /// A file is missing, damaged, or needs an unsupported feature. The message names the file.
    pub fn read<'p>(folders: &Folders, parameter: &dyn Fn(&str) -> Option<&'p str>) -> Result<Self, String> {
        Ok(Self {
            encoder: Encoder::read(folders, parameter)?,
            recipe: Recipe::read(folders, parameter)?,
            head: Head::read(folders)?,
        })
    }
}

/// The value of a parameter that is true or false.
fn flag<'p>(name: &str, parameter: &dyn Fn(&str) -> Option<&'p str>) -> Result<Option<bool>, String> {
    match parameter(name) {
        None => Ok(None),
        Some("true") => Ok(Some(true)),
        Some("false") => Ok(Some(false)),
        Some(other) => Err(format!("{name}: must be true or false, not '{other}'")),
    }
}

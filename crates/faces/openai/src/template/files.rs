//! Where a model's chat template comes from: its configuration, or the files of its tokenizer.

use std::path::{Path, PathBuf};

use nereid_core::Model;
use nereid_core::backend_api::Result;
use nereid_model_files::read_text;
use serde::Deserialize;

/// The templates of a model by their names, and the tokens that they mention.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Sources {
    /// Name and text of each template.
    pub templates: Vec<(String, String)>,
    /// Name and text of special tokens.
    pub tokens: Vec<(&'static str, String)>,
}

/// The special tokens that templates use.
const TOKENS: [&str; 4] = ["bos_token", "eos_token", "unk_token", "pad_token"];

impl Sources {
    /// Reads the sources of a model: parameters of its configuration come first, then files in the version's folder, in the
    /// model's folder, and in the folder of the weights if the version's `model.json` names one, as for the vLLM backend.
    ///
    /// # Errors
    /// A file exists and cannot be read.
    pub(crate) fn read(model: &Model) -> Result<Self> {
        let mut sources = Self::default();
        let parameters = &model.config().parameters;
        let parameter = |name: &str| parameters.get(name).map(|value| value.string_value.clone());
        if let Some(template) = parameter("chat_template") {
            sources.templates.push((String::new(), template));
        }
        for name in TOKENS {
            sources.tokens.extend(parameter(name).map(|token| (name, token)));
        }
        let version = model.directory().join(model.version().to_string());
        let weights = weights(&version)?;
        for folder in
            [Some(version.as_path()), Some(model.directory()), weights.as_deref()].into_iter().flatten()
        {
            sources.add_folder(folder)?;
        }
        Ok(sources)
    }

    /// Adds what is still missing from the files of a folder.
    fn add_folder(&mut self, folder: &Path) -> Result<()> {
        let config: TokenizerConfig = json(&folder.join("tokenizer_config.json"))?.unwrap_or_default();
        if self.templates.is_empty() {
            let alone: Option<ChatTemplateFile> = json(&folder.join("chat_template.json"))?;
            self.templates = match text(&folder.join("chat_template.jinja"))? {
                Some(template) => vec![(String::new(), template)],
                None => match alone.map(|file| file.chat_template).or(config.chat_template) {
                    None => Vec::new(),
                    Some(Templates::One(template)) => vec![(String::new(), template)],
                    Some(Templates::Named(all)) => {
                        all.into_iter().map(|one| (one.name, one.template)).collect()
                    }
                },
            };
        }
        let tokens = [config.bos_token, config.eos_token, config.unk_token, config.pad_token];
        for (name, token) in TOKENS.into_iter().zip(tokens) {
            if let Some(token) = token
                && self.tokens.iter().all(|(known, _)| *known != name)
            {
                self.tokens.push((name, token.into_text()));
            }
        }
        Ok(())
    }
}

/// The part of `tokenizer_config.json` that matters here.
#[derive(Default, Deserialize)]
struct TokenizerConfig {
    chat_template: Option<Templates>,
    bos_token: Option<Token>,
    eos_token: Option<Token>,
    unk_token: Option<Token>,
    pad_token: Option<Token>,
}

#[derive(Deserialize)]
struct ChatTemplateFile {
    chat_template: Templates,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Templates {
    One(String),
    Named(Vec<NamedTemplate>),
}

#[derive(Deserialize)]
struct NamedTemplate {
    name: String,
    template: String,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Token {
    Text(String),
    Described { content: String },
}

impl Token {
    fn into_text(self) -> String {
        match self {
            Self::Text(text) | Self::Described { content: text } => text,
        }
    }
}

/// The folder of the weights that the vLLM backend's file names, if it names a folder.
fn weights(version: &Path) -> Result<Option<PathBuf>> {
    #[derive(Deserialize)]
    struct VllmModel {
        tokenizer: Option<String>,
        model: Option<String>,
    }
    let Some(VllmModel { tokenizer, model }) = json(&version.join("model.json"))? else { return Ok(None) };
    let folder = tokenizer.or(model).map(PathBuf::from);
    Ok(folder.filter(|folder| folder.is_absolute() && folder.is_dir()))
}

/// A JSON file, if it exists.
fn json<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<Option<T>> {
    let Some(text) = text(path)? else { return Ok(None) };
    serde_json::from_str(&text)
        .map(Some)
        .map_err(|error| nereid_core::backend_api::Error::invalid_arg(format!("{}: {error}", path.display())))
}

/// A text file, if it exists.
fn text(path: &Path) -> Result<Option<String>> {
    match read_text(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.is_missing() => Ok(None),
        Err(error) => Err(nereid_core::backend_api::Error::cannot_read(path, &error)),
    }
}

#[cfg(test)]
mod tests;

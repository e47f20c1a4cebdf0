//! Profiles of models: contract, chat template, and format of tool calls. A version's profile is read with its first request.

use std::sync::{Arc, Weak};

use nereid_core::Model;
use nereid_core::backend_api::Result;
use nereid_tasks::long_work;
use quick_cache::sync::Cache;

use crate::contract::TextContract;
use crate::embeddings::EmbeddingContract;
use crate::error::{Failure, Outcome};
use crate::images::ImageContract;
use crate::literals::ControlTokens;
use crate::parsing::{Formats, ToolFormat};
use crate::template::{ChatTemplate, Conversation, Sources};
use crate::tokenized::TokenModel;

/// Profiles kept at once.
const CAPACITY: usize = 1024;

/// The profiles of models by the numbers of their loads.
pub(crate) struct Profiles(Cache<u64, Kept>);

/// A profile, kept only as long as its version.
#[derive(Clone)]
struct Kept {
    version: Weak<Model>,
    profile: Arc<Profile>,
}

/// The profile of a version.
#[derive(Debug)]
pub(crate) struct Profile {
    /// The contract of a model that generates text.
    pub text: Option<TextContract>,
    /// The contract of a model of embeddings, or the reason why its configuration is invalid.
    embedding: std::result::Result<Option<EmbeddingContract>, String>,
    /// The files of a model that takes tokens, or the reason why they are unusable.
    tokens: std::result::Result<Option<Arc<TokenModel>>, String>,
    /// The images that the model takes, or the reason why its configuration is invalid.
    images: std::result::Result<Option<ImageContract>, String>,
    /// The chat template, if there is one, or the reason why it is unusable.
    template: std::result::Result<Option<ChatTemplate>, String>,
    /// The control tokens that messages must not have, or the reason why they are unknown.
    control_tokens: std::result::Result<Option<ControlTokens>, String>,
    /// The formats of tool calls and reasoning.
    formats: std::result::Result<Formats, String>,
}

impl Profiles {
    pub(crate) fn new() -> Self {
        Self(Cache::new(CAPACITY))
    }

    /// The profile of a version.
    ///
    /// # Errors
    /// `Unavailable` if the server is stopping.
    pub(crate) async fn of(&self, model: &Arc<Model>) -> Result<Arc<Profile>> {
        let number = model.load_number();
        let kept = self.0.get_or_insert_async(&number, async {
            let (read, version) = (Arc::clone(model), Arc::downgrade(model));
            let profile = Arc::new(long_work::run(move || Profile::read(&read)).await?);
            // Vocabularies take memory, so drop the profiles of unloaded versions.
            self.0.retain(|_, kept| kept.version.strong_count() > 0);
            Ok(Kept { version, profile })
        });
        Ok(kept.await?.profile)
    }
}

impl Profile {
    /// Reads the files of a model. Blocks.
    fn read(model: &Model) -> Self {
        let text = TextContract::of(model);
        let template = match text {
            None => Ok(None),
            Some(_) => Sources::read(model)
                .map_err(|error| error.message().to_owned())
                .and_then(ChatTemplate::compile),
        };
        let formats = Formats::of(model, template.as_ref().ok().and_then(Option::as_ref));
        let (embedding, images) = (EmbeddingContract::of(model), ImageContract::of(model));
        let (tokens, control_tokens) = (TokenModel::read(model), ControlTokens::of(model));
        Self { text, embedding, tokens, images, template, control_tokens, formats }
    }

    /// The contract of a model that generates text.
    ///
    /// # Errors
    /// The model generates no text.
    pub(crate) fn text_contract(&self, model: &str) -> Outcome<TextContract> {
        self.text.ok_or_else(|| {
            Failure::invalid_field(
                "model",
                format!(
                    "model '{model}' does not generate text: that takes an input 'text_input' and an output 'text_output' of BYTES"
                ),
            )
        })
    }

    /// The contract of a model of embeddings.
    ///
    /// # Errors
    /// The model makes none, or its configuration is invalid.
    pub(crate) fn embedding_contract(&self, model: &str) -> Outcome<EmbeddingContract> {
        match &self.embedding {
            Ok(Some(contract)) => Ok(contract.clone()),
            Ok(None) => Err(Failure::invalid_field(
                "model",
                format!(
                    "model '{model}' makes no embeddings: that takes an input 'embedding_request', or one BYTES input and an \
                     output of floating-point numbers that is named 'embedding' or by the parameter embedding_output, or the \
                     inputs and outputs of a transformer with tokenizer.json beside it"
                ),
            )),
            Err(error) => Err(Failure::broken_model(format!("model '{model}': {error}"))),
        }
    }

    /// The files of a model that takes tokens; `None` if the model is another.
    ///
    /// # Errors
    /// A file or a parameter of the configuration is invalid.
    pub(crate) fn token_model(&self, model: &str) -> Outcome<Option<&Arc<TokenModel>>> {
        let tokens = self.tokens.as_ref().map(Option::as_ref);
        tokens.map_err(|error| Failure::broken_model(format!("model '{model}': {error}")))
    }

    /// The chat template.
    ///
    /// # Errors
    /// The model has none, or an invalid one.
    pub(crate) fn chat_template(&self, model: &str) -> Outcome<&ChatTemplate> {
        match &self.template {
            Ok(Some(template)) => Ok(template),
            Ok(None) => Err(Failure::invalid_field(
                "model",
                format!(
                    "model '{model}' has no chat template: add tokenizer_config.json or chat_template.jinja to its folder, or use \
                     /v1/completions"
                ),
            )),
            Err(error) => Err(Failure::broken_model(format!("model '{model}': {error}"))),
        }
    }

    /// Renders the prompt of a conversation. Returns it, and the mark around control tokens in the conversation's texts.
    ///
    /// # Errors
    /// The model has no template, or it cannot be rendered.
    pub(crate) fn prompt(
        &self,
        model: &str,
        mut conversation: Conversation,
    ) -> Outcome<(String, Option<char>)> {
        let tokens = self.control_tokens.as_ref();
        let tokens = tokens.map_err(|error| Failure::broken_model(format!("model '{model}': {error}")))?;
        let mark = tokens.as_ref().and_then(|tokens| tokens.enclose(&mut conversation));
        Ok((self.chat_template(model)?.render(conversation)?, mark))
    }

    /// The images that the model takes; `None` if it takes none.
    ///
    /// # Errors
    /// The configuration is invalid.
    pub(crate) fn images(&self, model: &str) -> Outcome<Option<&ImageContract>> {
        let images = self.images.as_ref().map(Option::as_ref);
        images.map_err(|error| Failure::broken_model(format!("model '{model}': {error}")))
    }

    /// How the model writes tool calls and reasoning.
    ///
    /// # Errors
    /// The configuration names an unknown format.
    pub(crate) fn formats(&self, model: &str) -> Outcome<&Formats> {
        self.formats.as_ref().map_err(|error| Failure::broken_model(format!("model '{model}': {error}")))
    }

    /// The format of the tool calls that the model writes by itself.
    ///
    /// # Errors
    /// The format is unknown.
    pub(crate) fn tool_format(&self, model: &str) -> Outcome<ToolFormat> {
        self.formats(model)?.tools.ok_or_else(|| {
            Failure::unsupported(
                "tools",
                format!(
                    "model '{model}' has no known format of tool calls: set the parameter tool_call_parser of its configuration to \
                     one of {}, or tool_choice to 'required' or a function",
                    ToolFormat::NAMES
                ),
            )
        })
    }
}

//! Model configurations from text, and the context that a backend receives to load one.

use std::path::PathBuf;
use std::sync::Arc;

use nereid_backend_api::{ModelContext, NoPeers};
use nereid_model_config::{ModelConfig, normalise, parse_text};

/// The configuration of the model `name` that this text describes, by the backend `scripted` unless it names another.
///
/// # Panics
/// If the text is not a configuration.
#[track_caller]
pub fn config(name: &str, text: &str) -> ModelConfig {
    let mut config = parse_text(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    name.clone_into(&mut config.name);
    if config.backend.is_empty() && config.platform.is_empty() {
        "scripted".clone_into(&mut config.backend);
    }
    config
}

/// [`config`] with defaults filled in, as repositories pass it to the server.
///
/// # Panics
/// If the text is not a configuration.
#[track_caller]
pub fn normalised(name: &str, text: &str) -> ModelConfig {
    let mut config = config(name, text);
    normalise(&mut config);
    config
}

/// The context for loading version 1 of the model in this folder. The backend may complete the configuration.
pub fn context(directory: impl Into<PathBuf>, config: ModelConfig) -> ModelContext {
    ModelContext {
        name: config.name.clone(),
        version: 1,
        directory: directory.into(),
        config,
        complete: true,
        peers: Arc::new(NoPeers),
    }
}

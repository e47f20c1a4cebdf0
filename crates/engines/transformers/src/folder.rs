//! Checks a model's folder without its packages.

use nereid_backend_api::{Error, ModelContext, Result};
use nereid_model_files::read_text;
use serde::Deserialize;

/// The model's configuration, as Hugging Face's packages write it.
const CONFIG: &str = "config.json";

/// The ends of the names of architectures that generate text.
const CAUSAL: [&str; 2] = ["ForCausalLM", "LMHeadModel"];

/// The part of the configuration that matters here.
#[derive(Deserialize)]
struct Config {
    #[serde(default)]
    architectures: Option<Vec<String>>,
}

/// Checks that a version's folder has a language model.
///
/// # Errors
/// The configuration cannot be read, or the model is of another kind.
pub fn check_file(model: &ModelContext) -> Result<()> {
    let path = model.version_directory().join(CONFIG);
    let text = read_text(&path).map_err(|error| Error::cannot_read(&path, &error))?;
    let config: Config = serde_json::from_str(&text)
        .map_err(|error| Error::invalid_arg(format!("{}: {error}", path.display())))?;
    let architectures = config.architectures.unwrap_or_default();
    if architectures.iter().any(|name| CAUSAL.iter().any(|end| name.ends_with(end))) {
        return Ok(());
    }
    let found = match &architectures[..] {
        [] => "it names no architecture".to_owned(),
        names => format!("the architecture is {}", names.join(", ")),
    };
    Err(Error::unsupported(format!(
        "{}: {found}, but backend 'transformers' serves causal language models (...ForCausalLM); export other models to ONNX, for \
         instance with `optimum-cli export onnx`",
        path.display()
    )))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use nereid_backend_api::ErrorCode;
    use nereid_testkit::{context, normalised};

    use super::*;

    fn check(config: Option<&str>) -> Result<()> {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("1")).unwrap();
        if let Some(config) = config {
            fs::write(folder.path().join("1/config.json"), config).unwrap();
        }
        check_file(&context(folder.path().to_str().unwrap(), normalised("m", "backend: 'transformers'")))
    }

    #[test]
    fn causal_language_models_pass() {
        for config in [
            r#"{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}"#,
            r#"{"architectures": ["GPT2LMHeadModel"]}"#,
            r#"{"architectures": ["Other", "Qwen2ForCausalLM"]}"#,
        ] {
            assert_eq!(check(Some(config)), Ok(()), "{config}");
        }
    }

    #[test]
    fn other_models_are_refused_with_what_serves_them() {
        for (config, code, reason) in [
            (None, ErrorCode::NotFound, "No such file"),
            (Some("{"), ErrorCode::InvalidArg, "config.json: EOF"),
            (Some("7"), ErrorCode::InvalidArg, "config.json: invalid"),
            (Some("{}"), ErrorCode::Unsupported, "it names no architecture"),
            (Some(r#"{"architectures": null}"#), ErrorCode::Unsupported, "it names no architecture"),
            (Some(r#"{"architectures": []}"#), ErrorCode::Unsupported, "it names no architecture"),
            (Some(r#"{"architectures": [1]}"#), ErrorCode::InvalidArg, "invalid type"),
            (
                Some(r#"{"architectures": ["BertModel"]}"#),
                ErrorCode::Unsupported,
                "the architecture is BertModel, but backend 'transformers' serves causal language models",
            ),
        ] {
            let error = check(config).unwrap_err();
            assert!(error.code() == code && error.message().contains(reason), "{config:?}: {error}");
        }
    }
}

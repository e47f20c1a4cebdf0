//! Recognises language models in the layout of Hugging Face's hub, by the names of the files in a folder.

/// The weights, whole or as a list of their parts.
const WEIGHTS: [&str; 2] = ["model.safetensors", "model.safetensors.index.json"];

/// Endings of configurations, tokenizers and templates.
const ENDINGS: [&str; 5] = ["jinja", "json", "model", "tiktoken", "txt"];

/// Whether a file has a model's weights, or lists their parts.
pub fn is_transformers_model(name: &str) -> bool {
    WEIGHTS.contains(&name)
}

/// Whether a folder with these files has what a language model needs: its configuration, and a tokenizer.
pub fn has_transformers_model<'a>(names: impl Iterator<Item = &'a str> + Clone) -> bool {
    let has = |known: &[&str]| names.clone().any(|name| known.contains(&name));
    has(&WEIGHTS) && has(&["config.json"]) && has(&["tokenizer.json", "tokenizer.model", "vocab.json"])
}

/// Whether a file in the folder of a model is one of the model's. Weights in other formats, and those for other programs, are not.
pub fn is_of_transformers_model(name: &str) -> bool {
    let is_part = name.starts_with("model") && name.ends_with(".safetensors");
    let is_other = name.rsplit_once('.').is_some_and(|(stem, ending)| {
        ENDINGS.contains(&ending) && !stem.is_empty() && !stem.ends_with(".index")
    });
    WEIGHTS.contains(&name) || is_part || is_other
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_have_weights_configuration_and_tokenizer() {
        for (names, is_model) in [
            (&["config.json", "model.safetensors", "tokenizer.json"][..], true),
            (&["config.json", "model.safetensors.index.json", "tokenizer.model"], true),
            (&["config.json", "model.safetensors", "vocab.json", "merges.txt"], true),
            (&["model.safetensors", "tokenizer.json"], false),
            (&["config.json", "model.safetensors"], false),
            (&["config.json", "tokenizer.json", "adapter_model.safetensors"], false),
            (&[], false),
        ] {
            assert_eq!(has_transformers_model(names.iter().copied()), is_model, "{names:?}");
        }
    }

    #[test]
    fn files_for_other_programs_are_left_out() {
        for (name, is_own) in [
            ("model.safetensors", true),
            ("model-00001-of-00002.safetensors", true),
            ("model.safetensors.index.json", true),
            ("chat_template.jinja", true),
            ("merges.txt", true),
            ("tokenizer.model", true),
            ("consolidated.safetensors", false),
            ("pytorch_model.bin", false),
            ("pytorch_model.bin.index.json", false),
            ("model.onnx", false),
            ("README.md", false),
            (".json", false),
            ("config", false),
        ] {
            assert_eq!(is_of_transformers_model(name), is_own, "{name}");
        }
    }
}

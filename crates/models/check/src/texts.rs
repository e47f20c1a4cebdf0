//! Checks the files that OpenAI's interface needs for embeddings and scores of texts.

use std::path::Path;

use nereid_core::model_config::{ModelConfig, backend_name};
use nereid_text_encoder::{Folders, TextModel};

use super::report::Finding;

/// Files of tokenizers, chat templates and sentence-transformers.
const FILES: [&str; 8] = [
    "chat_template.jinja",
    "chat_template.json",
    "config.json",
    "config_sentence_transformers.json",
    "modules.json",
    "sentence_bert_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
];

/// Backends whose models have tokenizers of their own kind, or do with the files as they like.
const OTHERS: [&str; 5] = ["llamacpp", "python", "tensorrtllm", "transformers", "vllm"];

/// Whether an entry in a model's folder is for texts: a file, or the folder of a step such as `1_Pooling`.
pub(crate) fn is_of_texts(name: &str, is_folder: bool) -> bool {
    if !is_folder {
        return FILES.contains(&name);
    }
    name.split_once('_').is_some_and(|(place, step)| {
        place.parse::<u8>().is_ok() && ["Dense", "LayerNorm", "Normalize", "Pooling"].contains(&step)
    })
}

/// Reports files that keep the model from taking texts. Tensors it takes all the same.
pub(crate) fn check(folder: &Path, config: &ModelConfig, versions: &[i64], findings: &mut Vec<Finding>) {
    let takes_tokens = config.input.is_empty() || config.input.iter().any(|input| input.name == "input_ids");
    if !takes_tokens || backend_name(config).is_none_or(|backend| OTHERS.contains(&backend)) {
        return;
    }
    let parameter = |name: &str| config.parameters.get(name).map(|value| value.string_value.as_str());
    for version in versions.iter().filter_map(|version| u64::try_from(*version).ok()) {
        let folders = Folders::new(folder, version);
        if folders.have_tokenizer()
            && let Err(error) = TextModel::read(&folders, &parameter)
        {
            let message = format!("takes no texts by OpenAI's interface: {error}");
            findings.push(Finding::warning(folder.join(version.to_string()), message));
        }
    }
}

#[cfg(test)]
mod tests {
    use nereid_core::model_config::parse_text;

    use super::*;

    #[test]
    fn files_and_folders_for_texts_are_known() {
        for (name, is_folder, expected) in [
            ("tokenizer.json", false, true),
            ("tokenizer.json", true, false),
            ("1_Pooling", true, true),
            ("2_Normalize", true, true),
            ("1_Pooling", false, false),
            ("1_backup", true, false),
            ("v_Pooling", true, false),
            ("vocab.txt", false, false),
        ] {
            assert_eq!(is_of_texts(name, is_folder), expected, "{name}");
        }
    }

    #[test]
    fn damaged_files_of_models_that_take_tokens_are_reported() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("1")).unwrap();
        std::fs::write(folder.path().join("1/tokenizer.json"), "{").unwrap();
        let found = |config: &str| {
            let mut findings = Vec::new();
            check(folder.path(), &parse_text(config).unwrap(), &[1], &mut findings);
            findings.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
        };
        let input = |name: &str| {
            format!("backend: 'onnxruntime' input {{ name: '{name}' data_type: TYPE_INT64 dims: -1 }}")
        };
        for config in ["backend: 'onnxruntime'", "backend: 'openvino'", &input("input_ids")] {
            let message = found(config);
            assert!(
                message.contains("takes no texts by OpenAI's interface: ")
                    && message.contains("tokenizer.json: EOF"),
                "{message}"
            );
        }
        for config in ["backend: 'transformers'", "platform: 'ensemble'", &input("x")] {
            assert_eq!(found(config), "");
        }
    }
}

//! Which of several sources counts.

use std::fs;

use tempfile::TempDir;

use super::*;

/// A folder with these files.
fn folder(files: &[(&str, &str)]) -> TempDir {
    let folder = TempDir::new().unwrap();
    for (name, text) in files {
        fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

fn read(folders: &[&TempDir]) -> Result<Sources> {
    let mut sources = Sources::default();
    for folder in folders {
        sources.add_folder(folder.path())?;
    }
    Ok(sources)
}

#[test]
fn first_template_counts_and_tokens_add_up() {
    let config = r#"{"chat_template": "from config", "bos_token": {"content": "<s>", "lstrip": false}, "eos_token": "</s>", "x": 1}"#;
    let named = r#"{"chat_template": [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}], "eos_token": "<end>"}"#;
    let plain = folder(&[("tokenizer_config.json", config)]);
    let jinja = folder(&[("tokenizer_config.json", config), ("chat_template.jinja", "from jinja")]);
    let json = folder(&[
        ("tokenizer_config.json", config),
        ("chat_template.json", "{\"chat_template\": \"from json\"}"),
    ]);
    let named = folder(&[("tokenizer_config.json", named)]);
    let empty = folder(&[]);
    for (folders, templates, eos) in [
        (&[&empty, &plain][..], &[("", "from config")][..], "</s>"),
        (&[&jinja, &named], &[("", "from jinja")], "</s>"),
        (&[&json], &[("", "from json")], "</s>"),
        (&[&named, &plain], &[("default", "a"), ("tool_use", "b")], "<end>"),
    ] {
        let sources = read(folders).unwrap();
        let found: Vec<_> =
            sources.templates.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
        assert_eq!(found, templates);
        assert!(sources.tokens.contains(&("eos_token", eos.to_owned())), "{:?}", sources.tokens);
    }
    assert!(read(&[&plain]).unwrap().tokens.contains(&("bos_token", "<s>".to_owned())));
    assert_eq!(read(&[&empty]).unwrap(), Sources::default());
}

#[test]
fn unreadable_files_are_named() {
    for (name, text) in [
        ("tokenizer_config.json", "{"),
        ("tokenizer_config.json", "{\"bos_token\": 1}"),
        ("chat_template.json", "{}"),
    ] {
        let broken = folder(&[(name, text)]);
        let error = read(&[&broken]).unwrap_err();
        assert!(error.message().contains(name), "{error}");
    }
}

#[test]
fn weights_of_vllm_are_a_folder_that_exists() {
    let elsewhere = folder(&[]);
    let path = elsewhere.path().display();
    for (json, expected) in [
        (format!("{{\"model\": \"{path}\", \"disable_log_requests\": true}}"), true),
        (format!("{{\"model\": \"facebook/opt-125m\", \"tokenizer\": \"{path}\"}}"), true),
        ("{\"model\": \"facebook/opt-125m\"}".to_owned(), false),
        ("{\"model\": \"/nowhere/at/all\"}".to_owned(), false),
        ("{}".to_owned(), false),
    ] {
        let version = folder(&[("model.json", &json)]);
        assert_eq!(weights(version.path()).unwrap().is_some(), expected, "{json}");
    }
    assert_eq!(weights(elsewhere.path()).unwrap(), None);
}

//! The layouts of sentence-transformers, old and new, and parameters before them.

use std::fs;

use serde_json::{Value, json};

use super::*;

fn read(files: &[(&str, Value)], parameters: &[(&str, &'static str)]) -> Result<Recipe, String> {
    let model = tempfile::tempdir().unwrap();
    for (name, contents) in files {
        let path = model.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, contents.to_string()).unwrap();
    }
    let parameter = |name: &str| parameters.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
    Recipe::read(&Folders::new(model.path(), 1), &parameter)
}

fn modules(types: &[&str]) -> (&'static str, Value) {
    let module = |(place, name): (usize, &&str)| {
        let path = if place == 0 { String::new() } else { format!("{place}_{name}") };
        json!({"idx": place, "name": place.to_string(), "path": path, "type": format!("sentence_transformers.models.{name}")})
    };
    ("modules.json", types.iter().enumerate().map(module).collect())
}

const ROWS: [&[f32]; 2] = [&[1.0, 2.0], &[3.0, 6.0]];

#[test]
fn modules_say_how_vectors_are_pooled_and_scaled() {
    let older = json!({"word_embedding_dimension": 2, "pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false});
    let root = json!({"pooling_mode_mean_sqrt_len_tokens": true, "include_prompt": false});
    let several = json!({"pooling_mode_lasttoken": true, "pooling_mode_mean_tokens": true, "pooling_mode_max_tokens": true});
    let newer = json!({"embedding_dimension": 2, "pooling_mode": "lasttoken", "include_prompt": true});
    let newer_several = json!({"pooling_mode": ["cls", "weightedmean"]});
    for (config, modes) in [
        (older, vec![Mode::First]),
        (root, vec![Mode::MeanSquareRoot]),
        (several, vec![Mode::Max, Mode::Mean, Mode::Last]),
        (newer, vec![Mode::Last]),
        (newer_several, vec![Mode::First, Mode::Weighted]),
        (json!({}), vec![Mode::Mean]),
    ] {
        let names = ["Transformer", "Pooling", "Normalize"];
        let recipe = read(&[modules(&names), ("1_Pooling/config.json", config.clone())], &[]).unwrap();
        assert_eq!(recipe.pooling.modes, modes, "{config}");
        assert!(recipe.normalizes);
        assert_eq!(recipe.excludes_prompt(), config["include_prompt"] == json!(false));
    }
    let plain = read(&[], &[]).unwrap();
    assert_eq!(plain.embed(&ROWS, 0), [2.0, 4.0]);
    let by_hand = read(&[("1_Pooling/config.json", json!({"pooling_mode_cls_token": true}))], &[]).unwrap();
    assert_eq!(by_hand.embed(&ROWS, 0), [1.0, 2.0]);
}

#[test]
fn parameters_come_before_files() {
    let files = [modules(&["Transformer", "Pooling", "Normalize"]), ("1_Pooling/config.json", json!({}))];
    let recipe = read(&files, &[("pooling", "cls, last"), ("normalize", "false")]).unwrap();
    assert_eq!(recipe.embed(&ROWS, 0), [1.0, 2.0, 3.0, 6.0]);
    let recipe = read(&[], &[("normalize", "true")]).unwrap();
    assert_eq!(recipe.finish(vec![3.0, 4.0]), [0.6, 0.8]);
}

#[test]
fn prompts_have_names_and_a_default() {
    let prompts = json!({"prompts": {"query": "query: ", "document": "", "none": null}, "default_prompt_name": "query"});
    let recipe = read(&[("config_sentence_transformers.json", prompts)], &[]).unwrap();
    assert_eq!(recipe.prompt(None), Ok("query: "));
    assert_eq!(recipe.prompt(Some("document")), Ok(""));
    assert_eq!(
        recipe.prompt(Some("passage")),
        Err("the model has no prompt 'passage' (available: document, query)".to_owned())
    );
    assert_eq!(read(&[], &[]).unwrap().prompt(None), Ok(""));
}

#[test]
fn shorter_vectors_need_a_model_made_for_them() {
    let any = json!({"is_matryoshka": true});
    let some = json!({"is_matryoshka": true, "matryoshka_dimensions": [2, 8]});
    for (config, parameter, sizes) in [
        (json!({}), None, [false, false]),
        (json!({}), Some("true"), [true, true]),
        (any.clone(), None, [true, true]),
        (any, Some("false"), [false, false]),
        (some.clone(), None, [true, false]),
        (some, Some("true"), [true, false]),
    ] {
        let parameters: Vec<_> = parameter.map(|value| ("matryoshka", value)).into_iter().collect();
        let recipe = read(&[("config.json", config.clone())], &parameters).unwrap();
        assert_eq!([2, 3].map(|size| recipe.check_size(size).is_ok()), sizes, "{config} {parameter:?}");
    }
}

#[test]
fn unsupported_and_damaged_files_are_refused_by_name() {
    let outside = json!([{"path": "../other", "type": "Pooling"}]);
    for (files, parameters, message) in [
        (
            vec![modules(&["Transformer", "Pooling", "CNN"]), ("1_Pooling/config.json", json!({}))],
            vec![],
            "modules.json: the module 'CNN' is not supported",
        ),
        (
            vec![modules(&["Transformer", "Pooling"])],
            vec![],
            "modules.json: 1_Pooling/config.json is missing",
        ),
        (
            vec![
                modules(&["Transformer", "Pooling"]),
                ("1_Pooling/config.json", json!({"pooling_mode": "x"})),
            ],
            vec![],
            "1_Pooling/config.json: pooling: unknown value 'x'",
        ),
        (vec![("modules.json", json!({}))], vec![], "modules.json: invalid type"),
        (
            vec![("modules.json", outside)],
            vec![],
            "cannot read ../other/config.json: the path must stay within",
        ),
        (
            vec![("config_sentence_transformers.json", json!({"default_prompt_name": "x"}))],
            vec![],
            "default_prompt_name: there is no prompt 'x'",
        ),
        (vec![], vec![("pooling", "x")], "pooling: unknown value 'x'"),
        (vec![], vec![("normalize", "x")], "normalize: must be true or false, not 'x'"),
        (vec![], vec![("matryoshka", "x")], "matryoshka: must be true or false, not 'x'"),
    ] {
        let error = read(&files, &parameters).unwrap_err();
        assert!(error.contains(message), "{error}");
    }
}

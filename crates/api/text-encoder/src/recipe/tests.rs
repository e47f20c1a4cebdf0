//! The layouts of sentence-transformers, old and new, and parameters before them.

use std::fs;

use serde_json::{Value, json};

use super::*;

fn read(files: &[(&str, Value)], parameters: &[(&str, &'static str)]) -> Result<Recipe, String> {
    let files: Vec<_> =
        files.iter().map(|(name, contents)| (*name, contents.to_string().into_bytes())).collect();
    read_bytes(&files, parameters)
}

fn read_bytes(files: &[(&str, Vec<u8>)], parameters: &[(&str, &'static str)]) -> Result<Recipe, String> {
    let model = tempfile::tempdir().unwrap();
    for (name, contents) in files {
        let path = model.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, contents).unwrap();
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
    assert_eq!(plain.embed(&ROWS, 0).unwrap(), [2.0, 4.0]);
    let by_hand = read(&[("1_Pooling/config.json", json!({"pooling_mode_cls_token": true}))], &[]).unwrap();
    assert_eq!(by_hand.embed(&ROWS, 0).unwrap(), [1.0, 2.0]);
}

#[test]
fn parameters_come_before_files() {
    let files = [modules(&["Transformer", "Pooling", "Normalize"]), ("1_Pooling/config.json", json!({}))];
    let recipe = read(&files, &[("pooling", "cls, last"), ("normalize", "false")]).unwrap();
    assert_eq!(recipe.embed(&ROWS, 0).unwrap(), [1.0, 2.0, 3.0, 6.0]);
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

/// A file of safetensors with tensors of this type, shape and these bytes.
fn tensors(all: &[(&str, &str, &[usize], &[u8])]) -> Vec<u8> {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, kind, shape, bytes) in all {
        let begin = data.len();
        data.extend_from_slice(bytes);
        header.insert(
            (*name).to_owned(),
            json!({"dtype": kind, "shape": shape, "data_offsets": [begin, data.len()]}),
        );
    }
    let header = Value::from(header).to_string().into_bytes();
    [(header.len() as u64).to_le_bytes().to_vec(), header, data].concat()
}

fn singles(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// The files of a model with a dense layer of two inputs and three outputs behind the pooling.
fn dense(config: Value, weights: Option<Vec<u8>>, last: &[&str]) -> Vec<(&'static str, Vec<u8>)> {
    let (name, list) = modules(&[&["Transformer", "Pooling", "Dense"], last].concat());
    let mut files = vec![
        (name, list.to_string().into_bytes()),
        ("1_Pooling/config.json", b"{}".to_vec()),
        ("2_Dense/config.json", config.to_string().into_bytes()),
    ];
    files.extend(weights.map(|weights| ("2_Dense/model.safetensors", weights)));
    files
}

const MATRIX: [f32; 6] = [1.0, 0.0, 0.5, -1.0, 0.25, 0.25];

fn layer(activation: Value) -> Value {
    json!({"in_features": 2, "out_features": 3, "bias": true, "activation_function": activation})
}

fn weights() -> Vec<u8> {
    tensors(&[
        ("linear.bias", "F32", &[3], &singles(&[0.0, 1.0, -2.0])),
        ("linear.weight", "F32", &[3, 2], &singles(&MATRIX)),
    ])
}

#[test]
fn dense_layers_follow_the_pooling() {
    // The mean is [2, 4], so the sums are [2, -2, -0.5].
    for (activation, expected) in [
        ("torch.nn.modules.linear.Identity", [2.0_f32, -2.0, -0.5]),
        ("torch.nn.modules.activation.ReLU", [2.0, 0.0, 0.0]),
        ("torch.nn.modules.activation.Tanh", [0.964_027_6, -0.964_027_6, -0.462_117_16]),
        ("torch.nn.modules.activation.Sigmoid", [0.880_797_1, 0.119_202_92, 0.377_540_66]),
    ] {
        let recipe = read_bytes(&dense(layer(json!(activation)), Some(weights()), &[]), &[]).unwrap();
        let found = recipe.embed(&ROWS, 0).unwrap();
        assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{activation}: {found:?}");
        // What the model made of a whole text is complete.
        assert_eq!(recipe.finish(vec![3.0, 4.0]), [3.0, 4.0]);
    }
    let identity = layer(json!("torch.nn.modules.linear.Identity"));
    let normalized = read_bytes(&dense(identity.clone(), Some(weights()), &["Normalize"]), &[]).unwrap();
    let length = (4.0 + 4.0 + 0.25_f32).sqrt();
    let found = normalized.embed(&ROWS, 0).unwrap();
    assert!(found.iter().zip([2.0, -2.0, -0.5]).all(|(a, b)| (a - b / length).abs() < 1e-6), "{found:?}");
    let unscaled =
        read_bytes(&dense(identity.clone(), Some(weights()), &["Normalize"]), &[("normalize", "false")])
            .unwrap();
    assert_eq!(unscaled.embed(&ROWS, 0).unwrap(), [2.0, -2.0, -0.5]);
    // Halves, and no bias.
    let halves = |kind, bytes: fn(f32) -> [u8; 2]| {
        let matrix: Vec<u8> = MATRIX.iter().flat_map(|value| bytes(*value)).collect();
        tensors(&[("linear.weight", kind, &[3, 2], &matrix)])
    };
    let mut bare = identity;
    bare["bias"] = json!(false);
    for file in [
        halves("F16", |value| half::f16::from_f32(value).to_le_bytes()),
        halves("BF16", |value| half::bf16::from_f32(value).to_le_bytes()),
    ] {
        let recipe = read_bytes(&dense(bare.clone(), Some(file), &[]), &[]).unwrap();
        assert_eq!(recipe.embed(&ROWS, 0).unwrap(), [2.0, -3.0, 1.5]);
    }
    let long =
        read_bytes(&dense(layer(json!(null)), Some(weights()), &[]), &[("pooling", "cls,max")]).unwrap();
    let error = long.embed(&ROWS, 0).unwrap_err();
    assert!(error.contains("have 4 numbers, but the dense layer takes 2"), "{error}");
}

#[test]
fn dense_layers_that_are_not_understood_are_refused_by_name() {
    let identity = || layer(json!("torch.nn.modules.linear.Identity"));
    let with = |name: &str, value: Value| {
        let mut config = identity();
        config[name] = value;
        config
    };
    let matrix = singles(&MATRIX);
    let truncated = weights()[..40].to_vec();
    for (config, weights, message) in [
        (
            layer(json!("torch.nn.modules.activation.GELU")),
            Some(weights()),
            "2_Dense/config.json: unknown activation function 'torch.nn.modules.activation.GELU' (available: Identity, ReLU, Sigmoid, Tanh)",
        ),
        (
            with("module_input_name", json!("token_embeddings")),
            Some(weights()),
            "module_input_name: 'token_embeddings' is not supported",
        ),
        (json!({"out_features": 3}), Some(weights()), "2_Dense/config.json: missing field `in_features`"),
        (
            with("in_features", json!(3)),
            Some(weights()),
            "tensor 'linear.weight' has the shape [3, 2], but config.json has [3, 3]",
        ),
        (
            with("use_residual", json!(true)),
            Some(weights()),
            "2_Dense/config.json: use_residual is not supported",
        ),
        (identity(), None, "2_Dense/model.safetensors is missing"),
        (identity(), Some(truncated), "2_Dense/model.safetensors: "),
        (identity(), Some(tensors(&[("linear.weight", "F32", &[3, 2], &matrix)])), "linear.bias"),
        (
            with("bias", json!(false)),
            Some(tensors(&[("linear.weight", "I32", &[3, 2], &matrix)])),
            "tensor 'linear.weight' has the type I32 (available: F32, F16, BF16)",
        ),
    ] {
        let error = read_bytes(&dense(config, weights, &[]), &[]).unwrap_err();
        assert!(error.contains(message), "{error}");
    }
    let pickle = [dense(identity(), None, &[]), vec![("2_Dense/pytorch_model.bin", b"x".to_vec())]].concat();
    let error = read_bytes(&pickle, &[]).unwrap_err();
    assert!(error.contains("pytorch_model.bin is not read, because it may contain code"), "{error}");
}

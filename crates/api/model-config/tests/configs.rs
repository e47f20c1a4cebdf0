//! Reads every configuration of `tests/configs`, completes it with defaults, checks it and writes it as JSON:
//! compared with recordings of Triton where they exist, otherwise with hand-written outcomes. See the README there.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use nereid_model_config::{
    ModelConfig, Stage, ValidationErrors, from_json, normalise, parse_text, to_json, to_text, validate,
    validate_ensemble,
};
use serde_json::Value;

/// The expected outcome of a configuration.
enum Expected {
    Json(String),
    /// The fields with errors, in order; `text` if it cannot even be read.
    Refused(Vec<String>),
}

struct Case {
    name: String,
    text: String,
    expected: Expected,
    recorded: bool,
}

fn cases() -> Vec<Case> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/configs");
    let mut cases = Vec::new();
    for (part, recorded) in [("recorded", true), ("by_rule", false)] {
        for entry in fs::read_dir(folder.join(part)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "pbtxt") {
                cases.push(case(&path, recorded));
            }
        }
    }
    cases.sort_by(|left, right| left.name.cmp(&right.name));
    cases
}

fn case(path: &Path, recorded: bool) -> Case {
    let beside = |extension: &str| -> Option<String> {
        let path: PathBuf = path.with_extension(extension);
        path.exists().then(|| fs::read_to_string(path).unwrap())
    };
    let expected = match (beside("json"), beside("refused")) {
        (Some(json), None) => Expected::Json(json),
        (None, Some(fields)) => Expected::Refused(fields.lines().map(str::to_owned).collect()),
        _ => panic!("{}: needs either a .json or a .refused beside it", path.display()),
    };
    let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
    Case { name, text: fs::read_to_string(path).unwrap(), expected, recorded }
}

impl Case {
    /// The configuration as the server reads it, before it checks other models.
    fn read(&self) -> Result<ModelConfig, Vec<String>> {
        let mut config = parse_text(&self.text).map_err(|_| vec!["text".to_owned()])?;
        if config.name.is_empty() {
            config.name.clone_from(&self.name);
        }
        normalise(&mut config);
        validate(&config, Stage::Final).map_err(fields)?;
        Ok(config)
    }
}

fn fields(errors: ValidationErrors) -> Vec<String> {
    errors.errors().iter().map(|error| error.field().to_owned()).collect()
}

/// Checks an ensemble against its models. The result is part of its configuration.
fn finish(
    mut config: ModelConfig,
    models: &BTreeMap<&str, &ModelConfig>,
) -> Result<ModelConfig, Vec<String>> {
    let decoupled = validate_ensemble(&config, models).map_err(fields)?;
    if config.platform == "ensemble" {
        config.model_transaction_policy.get_or_insert_default().decoupled = decoupled;
    }
    Ok(config)
}

/// Compares without regard to the order of keys, and to whole numbers written as fractions.
fn same(ours: &Value, theirs: &Value) -> bool {
    match (ours, theirs) {
        (Value::Object(ours), Value::Object(theirs)) => {
            ours.len() == theirs.len()
                && ours.iter().all(|(key, ours)| theirs.get(key).is_some_and(|theirs| same(ours, theirs)))
        }
        (Value::Array(ours), Value::Array(theirs)) => {
            ours.len() == theirs.len() && ours.iter().zip(theirs).all(|(ours, theirs)| same(ours, theirs))
        }
        (Value::Number(ours), Value::Number(theirs)) if ours.is_f64() != theirs.is_f64() => {
            ours.as_f64() == theirs.as_f64()
        }
        _ => ours == theirs,
    }
}

/// The difference from the expected outcome, if any.
fn differs(case: &Case, models: &BTreeMap<&str, &ModelConfig>) -> Option<String> {
    let result = case.read().and_then(|config| finish(config, models));
    match (&case.expected, result) {
        (Expected::Json(expected), Ok(config)) => {
            let expected: Value = serde_json::from_str(expected).unwrap();
            let written = to_json(&config);
            let ours: Value = serde_json::from_str(&written).unwrap();
            if !same(&ours, &expected) {
                return Some(format!("gives {ours:#}\ninstead of {expected:#}"));
            }
            // Both Triton's JSON and ours are read back to the same configuration.
            for json in [&expected.to_string(), &written] {
                match from_json(json) {
                    Ok(read) if read == config => {}
                    other => {
                        return Some(format!("comes back from JSON as {other:?}\ninstead of {config:?}"));
                    }
                }
            }
            (parse_text(&to_text(&config)).as_ref() != Ok(&config))
                .then(|| "does not come back as text".to_owned())
        }
        (Expected::Json(_), Err(fields)) => Some(format!("is refused: {fields:?}")),
        (Expected::Refused(_), Ok(_)) => Some("is not refused".to_owned()),
        (Expected::Refused(expected), Err(fields)) => {
            (fields != *expected).then(|| format!("is refused for {fields:?} instead of {expected:?}"))
        }
    }
}

#[test]
fn configurations_match_triton() {
    let cases = cases();
    let read: Vec<ModelConfig> = cases.iter().filter_map(|case| case.read().ok()).collect();
    let models: BTreeMap<&str, &ModelConfig> =
        read.iter().map(|config| (config.name.as_str(), config)).collect();
    // A member counts as decoupled even if only its own members make it so.
    let finished: Vec<ModelConfig> =
        read.iter().filter_map(|config| finish(config.clone(), &models).ok()).collect();
    let models: BTreeMap<&str, &ModelConfig> =
        models.into_iter().chain(finished.iter().map(|config| (config.name.as_str(), config))).collect();

    let different: Vec<String> =
        cases.iter().filter_map(|case| Some(format!("{}: {}", case.name, differs(case, &models)?))).collect();
    assert!(
        different.is_empty(),
        "{} of {} differ:\n{}",
        different.len(),
        cases.len(),
        different.join("\n\n")
    );
}

/// Normalising again changes nothing, and a valid configuration is also valid before completion.
#[test]
fn normalising_is_idempotent_and_valid_before_completion() {
    for case in cases() {
        let Ok(config) = case.read() else { continue };
        let mut again = config.clone();
        normalise(&mut again);
        assert_eq!(again, config, "{}", case.name);
        assert_eq!(validate(&config, Stage::BeforeCompletion), Ok(()), "{}", case.name);
    }
}

#[test]
fn corpus_has_enough_of_each_kind() {
    let cases = cases();
    let count = |recorded: bool, good: bool| {
        let fits =
            |case: &&Case| case.recorded == recorded && matches!(case.expected, Expected::Json(_)) == good;
        cases.iter().filter(fits).count()
    };
    assert!(count(true, true) >= 60 && count(true, false) >= 60, "a folder has been lost");
    assert!(count(false, true) > 0 && count(false, false) > 0, "a folder has been lost");
}

//! Properties of every input: the fuzz targets check them on libFuzzer's inputs, and an ordinary test on the corpus.

// Each fuzz target uses one of these functions.
#![allow(dead_code)]

use std::collections::BTreeMap;

use nereid_model_config::{
    ModelConfig, ServedVersions, Stage, backend_name, default_model_filename, from_json, normalise,
    parse_text, platform_name, read_text, served_versions, to_json, to_text, validate, validate_ensemble,
};

/// Reading text never panics, both readers agree, and what is printed is read back.
pub fn text(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let parsed = parse_text(&text);
    let reading = read_text(&text);

    assert_eq!(reading.problems.first().map(|problem| problem.error()), parsed.as_ref().err());
    let lines = text.matches('\n').count() + 1;
    for problem in &reading.problems {
        let place = problem.error().place();
        assert!((1..=lines).contains(&place.line), "{place} of {lines} lines");
        assert!((1..=text.len() + 1).contains(&place.column), "{place}");
        assert!(!problem.error().message().is_empty());
    }
    // Clients may request any text as a path.
    for path in text.lines().take(8) {
        let _ = reading.places.find(path);
        let _ = reading.explains(path);
    }

    let printed = to_text(&reading.config);
    let again =
        parse_text(&printed).unwrap_or_else(|error| panic!("{error} in what was printed:\n{printed}"));
    assert_eq!(to_text(&again), printed);
    if let Ok(config) = parsed {
        assert_eq!(to_text(&config), printed);
    }
}

/// Every parsable configuration can be normalised, checked and serialised; normalising is idempotent.
pub fn config(data: &[u8]) {
    let Ok(mut config) = parse_text(&String::from_utf8_lossy(data)) else { return };
    write(&config);
    let _ = validate(&config, Stage::BeforeCompletion);
    normalise(&mut config);
    write(&config);

    let _ = validate_ensemble(&config, &BTreeMap::from([(config.name.as_str(), &config)]));
    let before = validate(&config, Stage::BeforeCompletion);
    let last = validate(&config, Stage::Final);
    if last.is_ok() {
        assert_eq!(before, Ok(()), "a complete configuration is no less right before completion");
    }
    for error in before.err().iter().chain(&last.err()).flat_map(|errors| errors.errors()) {
        assert!(!error.field().is_empty() && !error.reason().is_empty(), "{error}");
    }

    let once = to_text(&config);
    normalise(&mut config);
    assert_eq!(to_text(&config), once);
}

fn write(config: &ModelConfig) {
    let _ = (backend_name(config), platform_name(config), default_model_filename(config));
    let ServedVersions { served, .. } = served_versions(config.version_policy.as_ref(), &[1, 2, 10]);
    assert!(served.is_sorted());
    let json = to_json(config);
    let again = from_json(&json).unwrap_or_else(|error| panic!("{error} in what was written:\n{json}"));
    assert_eq!(to_json(&again), json);
    let text = to_text(config);
    let again = parse_text(&text).unwrap_or_else(|error| panic!("{error} in what was printed:\n{text}"));
    assert_eq!(to_text(&again), text);
}

/// Parsing JSON never panics, errors contain a position, and serialised values parse back.
pub fn json(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    match from_json(&text) {
        Ok(config) => write(&config),
        Err(error) => {
            let lines = text.matches('\n').count() + 1;
            assert!((1..=lines).contains(&error.line()), "{error}");
            assert!((1..=text.len() + 1).contains(&error.column()), "{error}");
            assert!(!error.message().is_empty());
        }
    }
}

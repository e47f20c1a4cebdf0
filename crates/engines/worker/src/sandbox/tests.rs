//! Settings of the operator, and parameters of models.

use nereid_backend_api::ErrorCode;

use super::*;

fn settings(given: &[(&str, &str)]) -> SandboxSettings {
    SandboxSettings::new("python", &given.iter().copied().collect()).unwrap()
}

fn policy(given: &[(&str, &str)], parameters: &[(&str, &str)]) -> Result<Policy> {
    let parameters: String = parameters
        .iter()
        .map(|(key, value)| format!("parameters {{ key: '{key}' value: {{ string_value: '{value}' }} }}\n"))
        .collect();
    let config = nereid_testkit::config("m", &parameters);
    settings(given).of_model(&nereid_testkit::context("/models/m", config), vec!["/backend".into()])
}

#[test]
fn settings_are_known_for_all_models_and_for_one() {
    for name in SandboxSettings::NAMES {
        for (key, expected) in [
            (name.to_owned(), true),
            (format!("{name}.model"), true),
            (format!("{name}.a.b"), true),
            (format!("{name}x"), false),
            (format!("x{name}"), false),
        ] {
            assert_eq!(SandboxSettings::has(&key), expected, "{key}");
        }
    }
    assert!(!SandboxSettings::has("") && !SandboxSettings::has("memory"));
}

#[test]
fn defaults_take_only_what_no_model_needs() {
    let policy = policy(&[], &[]).unwrap();
    assert_eq!((policy.level, policy.memory), (Level::Basic, None));
    assert!(!policy.is_closed());
}

#[test]
fn models_tighten_the_operators_settings_and_never_loosen_them() {
    let words = ["off", "basic", "on", "required"];
    for (given, operator) in words.iter().enumerate() {
        for (own, model) in words.iter().enumerate() {
            let level = policy(&[("sandbox", operator)], &[("sandbox", model)]).unwrap().level;
            assert_eq!(level, words[given.max(own)].parse().unwrap(), "{operator} {model}");
        }
    }
    let words = ["off", "local", "on"];
    for (given, operator) in words.iter().enumerate() {
        for (own, model) in words.iter().enumerate() {
            let found = policy(&[("sandbox-network", operator)], &[("sandbox_network", model)]).unwrap();
            assert_eq!(found.network, words[given.min(own)].parse().unwrap(), "{operator} {model}");
        }
    }
    for (given, own, expected) in [
        (None, None, None),
        (Some("5"), None, Some(5)),
        (None, Some("7"), Some(7)),
        (Some("5"), Some("7"), Some(5)),
        (Some("9"), Some("7"), Some(7)),
    ] {
        let operator: Vec<_> = given.map(|value| ("sandbox-memory", value)).into_iter().collect();
        let model: Vec<_> = own.map(|value| ("sandbox_memory", value)).into_iter().collect();
        assert_eq!(policy(&operator, &model).unwrap().memory, expected, "{given:?} {own:?}");
    }
    for (given, own, expected) in [
        (None, None, None),
        (Some("1.5"), None, Some("1.5")),
        (None, Some("7"), Some("7")),
        (Some("5"), Some("0.7"), Some("0.7")),
        (Some("0.5"), Some("7"), Some("0.5")),
    ] {
        let operator: Vec<_> = given.map(|value| ("sandbox-cpus", value)).into_iter().collect();
        let model: Vec<_> = own.map(|value| ("sandbox_cpus", value)).into_iter().collect();
        let found = policy(&operator, &model).unwrap().cpus;
        assert_eq!(found, expected.map(|value| value.parse().unwrap()), "{given:?} {own:?}");
    }
}

#[test]
fn required_limit_of_processors_is_refused_where_the_system_cannot_enforce_it() {
    let given = [("sandbox-cpus.m", "0.5")];
    let limited = policy(&given, &[]).unwrap();
    let required = policy(&given, &[("sandbox", "required")]);
    match Support::missing_limit(&limited) {
        None => assert_eq!(required.unwrap().cpus, limited.cpus),
        Some(missing) => {
            let error = required.unwrap_err();
            assert_eq!(error.code(), ErrorCode::Unavailable);
            assert!(error.message().ends_with(&missing), "{error}");
        }
    }
    // A limit without a sandbox has no effect.
    assert!(policy(&[("sandbox", "off"), ("sandbox-cpus", "1")], &[]).is_ok());
}

#[test]
fn models_cannot_name_further_paths_or_variables() {
    let keys = ["sandbox-read", "sandbox_read", "sandbox-write", "sandbox_write", "sandbox_variables"];
    for key in keys {
        let given = [("sandbox", "on"), ("sandbox-network", "on")];
        assert_eq!(policy(&given, &[(key, "/etc/shadow")]).unwrap(), policy(&given, &[]).unwrap());
    }
}

#[test]
fn operators_name_paths_for_all_models_or_for_one() {
    let given = [
        ("sandbox-read", "/data: /more:"),
        ("sandbox-write.other", "/elsewhere"),
        ("sandbox-write.m", "/scratch"),
        ("sandbox-network", "off"),
        ("sandbox-network.m", "local"),
        ("sandbox-variables", "HF_TOKEN:A"),
    ];
    let found = policy(&given, &[]).unwrap();
    let paths = |paths: &[&str]| paths.iter().map(PathBuf::from).collect::<Vec<_>>();
    assert_eq!(found.readable, paths(&["/data", "/more", "/backend", "/models/m"]));
    assert_eq!(found.writable, paths(&["/scratch"]));
    assert_eq!(
        (found.network, found.variables),
        (Network::Local, vec!["HF_TOKEN".to_owned(), "A".to_owned()])
    );
}

#[test]
fn devices_of_gpus_stay_open_where_instances_use_them() {
    for (groups, expected) in [
        ("", false),
        ("instance_group { count: 2 }", false),
        ("instance_group { kind: KIND_CPU }", false),
        ("instance_group { kind: KIND_GPU }", true),
        ("instance_group { kind: KIND_MODEL }", true),
        ("instance_group { kind: KIND_CPU } instance_group { kind: KIND_GPU }", true),
    ] {
        let context = nereid_testkit::context("/models/m", nereid_testkit::config("m", groups));
        assert_eq!(settings(&[]).of_model(&context, Vec::new()).unwrap().gpus, expected, "{groups}");
    }
}

#[test]
fn invalid_values_are_refused_by_name() {
    for (key, value) in [
        ("sandbox", "yes"),
        ("sandbox-network", "all"),
        ("sandbox-memory", "1 GB"),
        ("sandbox-memory", "-1"),
        ("sandbox-cpus", "0"),
        ("sandbox-cpus", "all"),
    ] {
        let error = SandboxSettings::new("python", &BackendSettings::from_iter([(key, value)])).unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArg);
        assert!(error.message().starts_with(&format!("backend setting '{key}' is '{value}': ")), "{error}");
        let parameter = key.replace('-', "_");
        let error = policy(&[], &[(&parameter, value)]).unwrap_err();
        assert!(
            error.message().starts_with(&format!("model 'm': parameter '{parameter}' is '{value}': ")),
            "{error}"
        );
    }
}

#[test]
fn processes_without_a_model_keep_to_the_default_level() {
    for (given, expected) in
        [("off", Level::Off), ("basic", Level::Basic), ("on", Level::Basic), ("required", Level::Basic)]
    {
        assert_eq!(settings(&[("sandbox", given)]).without_model().unwrap().level, expected);
    }
}

//! Settings, and the location of a model's file.

use std::fs;
use std::time::Duration;

use nereid_backend_api::{Backend, BackendSettings, ErrorCode};

use crate::PythonBackend;
use crate::options::Options;

fn options(settings: &[(&str, &str)]) -> Result<Options, String> {
    let settings = BackendSettings::from_iter(settings.iter().copied());
    Options::new(&settings).map_err(|error| error.message().to_owned())
}

#[test]
fn limits_parse_as_seconds_and_zero_means_default() {
    for (value, execute, start) in [
        (None, None, 30.0),
        (Some("2"), Some(2.0), 2.0),
        (Some(" 0.5 "), Some(0.5), 0.5),
        (Some("0"), None, 30.0),
    ] {
        let settings: Vec<_> = ["execute-timeout-seconds", "stub-timeout-seconds"]
            .into_iter()
            .flat_map(|key| value.map(|value| (key, value)))
            .collect();
        let limits = options(&settings).unwrap().limits;
        assert_eq!(limits.execute, execute.map(Duration::from_secs_f64), "{value:?}");
        assert_eq!(limits.start, Duration::from_secs_f64(start), "{value:?}");
    }
}

#[test]
fn invalid_settings_are_refused_by_name() {
    for (key, value) in [
        ("execute-timeout-seconds", "soon"),
        ("execute-timeout-seconds", "-1"),
        ("execute-timeout-seconds", "NaN"),
        ("execute-timeout-seconds", "1e300"),
        ("stub-timeout-seconds", ""),
        ("install-requirements", "maybe"),
    ] {
        let error = options(&[(key, value)]).unwrap_err();
        assert!(error.starts_with(&format!("backend setting '{key}' is '{value}', expected")), "{error}");
    }
    // Settings of Triton's backend without effect here are accepted with any value.
    options(&[("shm-default-byte-size", "x"), ("thread-pool-size", "8")]).unwrap();
}

#[test]
fn missing_or_outside_file_is_refused_before_start() {
    let folder = std::env::temp_dir().join(format!("nereid-python-{}", std::process::id()));
    fs::create_dir_all(folder.join("m/1/folder")).unwrap();
    fs::write(folder.join("m/1/other.py"), "").unwrap();
    // An interpreter that does not exist: the file is refused first.
    let settings = BackendSettings::from_iter([("python", "/nowhere/python")]);
    let python = PythonBackend::new(&settings, &folder).unwrap();
    let refused = |backend: &str, file: &str| {
        let config = format!("backend: '{backend}' default_model_filename: '{file}'");
        let config = nereid_testkit::config("m", &config);
        python.load(nereid_testkit::context(folder.join("m"), config)).err().unwrap()
    };
    for (backend, file, part) in [
        ("python", "", "m/1/model.py: No such file"),
        ("python", "", "other.py"),
        ("python", "../../other.py", "must stay within"),
        ("python", "folder", "m/1/folder: "),
        ("written", "", "written/model.py: No such file"),
    ] {
        let error = refused(backend, file);
        assert_eq!(error.code(), ErrorCode::NotFound, "{file}: {error}");
        assert!(error.message().contains(part), "{file}: {error}");
    }
    let error = refused("python", "other.py");
    assert!(error.message().contains("/nowhere/python"), "{error}");
    fs::remove_dir_all(&folder).unwrap();
}

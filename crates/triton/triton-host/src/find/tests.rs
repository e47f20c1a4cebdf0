//! Finding libraries in folders with and without them.

use std::fs;

use super::*;

/// A model `m` and a folder of backends, with these files in them.
fn folders(files: &[&str]) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for file in files {
        let path = root.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }
    root
}

fn config(runtime: &str) -> ModelConfig {
    ModelConfig { name: "m".into(), runtime: runtime.into(), ..ModelConfig::default() }
}

/// The files found for version 1 of `m` with backend `x`, relative to the root.
fn found(files: &[&str], runtime: &str) -> Result<String> {
    let root = folders(files);
    let places = Places::new(&root.path().join("m"), 1, &root.path().join("backends"), "x");
    let found = places.find(&config(runtime), "x")?;
    let relative = |path: &Path| path.strip_prefix(root.path()).unwrap().display().to_string();
    assert!(found.python.is_some() || found.library.parent() == Some(&*found.directory));
    Ok(relative(&found.library))
}

#[test]
fn nearest_library_is_used() {
    let near = ["m/1/libtriton_x.so", "m/libtriton_x.so", "backends/x/libtriton_x.so"];
    for first in 0..near.len() {
        assert_eq!(found(&near[first..], "").unwrap(), near[first]);
    }
}

#[test]
fn missing_library_lists_all_searched_folders() {
    let error = found(&["backends/y/libtriton_y.so"], "").unwrap_err();
    assert_eq!(error.code(), nereid_backend_api::ErrorCode::InvalidArg);
    assert!(error.message().starts_with("cannot find 'libtriton_x.so' (searched "), "{error}");
    for folder in ["m/1'", "m'", "backends/x'"] {
        assert!(error.message().contains(folder), "{error}");
    }
}

#[test]
fn missing_python_library_error_has_an_install_hint() {
    let missing = |files: &[&str], backend: &str, runtime: &str| {
        let root = folders(files);
        let places = Places::new(&root.path().join("m"), 1, &root.path().join("backends"), backend);
        places.find(&config(runtime), backend).unwrap_err().to_string()
    };
    for (files, backend, runtime, is_hinted) in [
        (["m/config.pbtxt"], "python", "", true),
        (["m/config.pbtxt"], "python", "libtriton_python.so", true),
        // A backend that is written in Python.
        (["backends/vllm/model.py"], "vllm", "", true),
        (["m/config.pbtxt"], "x", "", false),
        (["m/config.pbtxt"], "python", "libother.so", false),
    ] {
        let error = missing(&files, backend, runtime);
        assert_eq!(
            error.contains("`pip install nvidia-pytriton`"),
            is_hinted,
            "{backend} {runtime}: {error}"
        );
    }
}

#[test]
fn runtime_selects_another_library() {
    let files = ["backends/x/libtriton_x.so", "backends/x/libtriton_x_special.so"];
    assert_eq!(found(&files, "libtriton_x_special.so").unwrap(), files[1]);
    let error = found(&files, "libother.so").unwrap_err();
    assert!(error.message().starts_with("model 'm': cannot find 'libother.so' (searched "), "{error}");
}

#[test]
fn runtime_outside_the_folders_is_refused() {
    for runtime in ["../y/libtriton_y.so", "/lib/libc.so", "a/b.so", "..", "."] {
        let error = found(&["backends/y/libtriton_y.so"], runtime).unwrap_err();
        assert!(error.message().contains("is not a file name"), "{error}");
    }
}

#[test]
fn backend_in_python_runs_on_the_python_backend() {
    let files = ["backends/x/model.py", "backends/python/libtriton_python.so"];
    for runtime in ["", "model.py"] {
        assert_eq!(found(&files, runtime).unwrap(), files[1]);
    }
    let error = found(&files[..1], "").unwrap_err();
    assert!(error.message().contains("is written in Python and needs"), "{error}");

    let root = folders(&files);
    let backends = root.path().join("backends");
    let places = Places::new(&root.path().join("m"), 1, &backends, "x");
    assert_eq!(places.find(&config(""), "x").unwrap().directory, backends.join("x"));
}

#[test]
fn model_has_own_library_in_its_folder_or_by_runtime() {
    let brought = |files: &[&str], runtime: &str| {
        let root = folders(files);
        let places = Places::new(&root.path().join("m"), 1, &root.path().join("backends"), "x");
        places.has_own_library(&config(runtime), "x")
    };
    assert!(brought(&["m/1/libtriton_x.so"], ""));
    assert!(brought(&["m/libtriton_x.so"], ""));
    assert!(brought(&[], "libtriton_x_special.so"));
    assert!(!brought(&["backends/x/libtriton_x.so"], ""));
    assert!(!brought(&[], "model.py"));
}

#[test]
fn batching_library_is_found_by_default_or_by_parameter() {
    let root = folders(&["m/1/model", "backends/x/batchstrategy.so", "m/own.so", "other/batchstrategy.so"]);
    let places = Places::new(&root.path().join("m"), 1, &root.path().join("backends"), "x");
    let default = places.batcher(&config("")).unwrap();
    assert_eq!(default, Some(root.path().join("backends/x/batchstrategy.so")));

    let named = |path: &str| {
        let mut config = config("");
        let string_value = root.path().join(path).display().to_string();
        let value = nereid_model_config::proto::ModelParameter { string_value };
        config.parameters.insert(BATCHER_PATH.into(), value);
        places.batcher(&config)
    };
    assert_eq!(named("m/own.so").unwrap(), Some(root.path().join("m/own.so")));
    assert!(named("m/none.so").unwrap_err().message().ends_with("which does not exist"));
    assert!(named("other/batchstrategy.so").unwrap_err().message().ends_with("not in the model's folder"));
    assert!(named("m/../other/batchstrategy.so").is_err());
    assert!(named("m/1").unwrap_err().message().ends_with("not a regular file"));

    let sequences = |named: bool| {
        let mut config = config("");
        config.scheduling_choice = Some(SchedulingChoice::SequenceBatching(Default::default()));
        if named {
            config.parameters.insert(BATCHER_PATH.into(), Default::default());
        }
        places.batcher(&config)
    };
    assert_eq!(sequences(false), Ok(None));
    assert!(
        sequences(true).unwrap_err().message().ends_with("a library cannot choose the batches of sequences")
    );
}

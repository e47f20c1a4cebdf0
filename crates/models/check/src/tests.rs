//! Repositories with models for several engines, on a machine that lacks some of them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use nereid_core::backend_api::{Error, ModelContext, Result};
use tempfile::TempDir;

use super::*;

/// Engines of which one is missing, and one refuses every file.
struct Machine {
    missing: &'static str,
    refusing: &'static str,
}

impl Engines for Machine {
    fn check_engine(&self, model: &ModelContext) -> Result<()> {
        match model.config.backend == self.missing {
            true => Err(Error::unavailable("its library is not installed")),
            false => Ok(()),
        }
    }

    fn check_config(&self, model: &ModelContext) -> Result<()> {
        match model.config.backend == "pytorch" && model.config.input.is_empty() {
            true => Err(Error::invalid_arg("list all inputs")),
            false => Ok(()),
        }
    }

    fn check_file(&self, model: &ModelContext) -> Result<()> {
        match model.config.backend == self.refusing {
            true => Err(Error::unsupported(format!("refuses version {}", model.version))),
            false => Ok(()),
        }
    }
}

const TENSORS: &str =
    "input { name: 'x' data_type: TYPE_FP32 dims: 1 } output { name: 'y' data_type: TYPE_FP32 dims: 1 }";

/// Writes the files, which have no contents but for configurations.
fn repository(files: &[(&str, &str)]) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for (name, contents) in files {
        let path = root.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, contents).unwrap();
    }
    root
}

fn check(repository: &Path, machine: &Machine) -> Report {
    check_with(repository, machine, ReadOptions::default())
}

fn check_with(repository: &Path, machine: &Machine, reading: ReadOptions) -> Report {
    with_context(machine, reading, |context| super::check(&[repository.to_owned()], context))
}

fn with_context<T>(machine: &Machine, reading: ReadOptions, run: impl FnOnce(&Context<'_>) -> T) -> T {
    let mut backends = Backends::default();
    for (name, completes_config) in [("onnxruntime", true), ("pytorch", false), ("python", true)] {
        backends.register_lazy(name, completes_config, || Err(Error::internal("a check opens no backend")));
    }
    backends.refuse("tensorrt", Error::unavailable("install TensorRT"));
    let agents = AgentContext { defaults: Vec::new(), refuses: &|_| None, origins: BTreeMap::new() };
    let context =
        Context { reading, backends: &backends, engines: machine, agents, gpus: Vec::new(), deep: false };
    run(&context)
}

/// The findings as `path: field: message`, relative to the repository.
fn findings(repository: &TempDir, machine: &Machine, severity: Severity) -> Vec<String> {
    let report = check(repository.path(), machine);
    let found = report.of(severity).map(|finding| {
        let path = finding.path.strip_prefix(repository.path()).unwrap().display().to_string();
        [Some(path), finding.field.clone(), Some(finding.message.clone())]
    });
    found.map(|parts| parts.into_iter().flatten().collect::<Vec<_>>().join(": ")).collect()
}

const ALL_INSTALLED: Machine = Machine { missing: "", refusing: "" };

#[test]
fn model_without_an_engine_would_not_load() {
    let torch = format!("backend: 'pytorch' {TENSORS}");
    let repository = repository(&[
        ("onnx/config.pbtxt", "backend: 'onnxruntime'"),
        ("onnx/1/model.onnx", ""),
        ("bare/1/model.onnx", ""),
        ("torch/config.pbtxt", &torch),
        ("torch/1/model.pt", ""),
    ]);
    for (missing, expected) in [
        ("", &[][..]),
        ("openvino", &[]),
        ("pytorch", &["torch/config.pbtxt: backend: its library is not installed"]),
        (
            "onnxruntime",
            &[
                "bare: backend: its library is not installed",
                "onnx/config.pbtxt: backend: its library is not installed",
            ],
        ),
    ] {
        let machine = Machine { missing, refusing: "" };
        assert_eq!(findings(&repository, &machine, Severity::Error), expected, "{missing}");
        let failing =
            check(repository.path(), &machine).models.iter().filter(|model| !model.would_load).count();
        assert_eq!(failing, expected.len(), "{missing}");
    }
}

#[test]
fn configurations_without_tensors_are_doubtful_where_nothing_completes_them() {
    let whole = format!("backend: 'onnxruntime' {TENSORS}");
    let no_output = "backend: 'onnxruntime' input { name: 'x' data_type: TYPE_FP32 dims: 1 }";
    for (config, complete, expected) in [
        ("backend: 'onnxruntime'", false, &["input", "output"][..]),
        ("platform: 'onnxruntime_onnx'", false, &["input", "output"]),
        (no_output, false, &["output"]),
        (&whole, false, &[]),
        ("backend: 'onnxruntime'", true, &[]),
        ("backend: 'python'", false, &[]),
    ] {
        let file = if config.contains("python") { "m/1/model.py" } else { "m/1/model.onnx" };
        let repository = repository(&[("m/config.pbtxt", config), (file, "")]);
        let reading = ReadOptions { complete, ..ReadOptions::default() };
        let report = check_with(repository.path(), &ALL_INSTALLED, reading);
        let fields: Vec<_> = report.of(Severity::Warning).filter_map(|it| it.field.as_deref()).collect();
        assert_eq!(fields, expected, "{config}, {complete}");
        assert_eq!(report.of(Severity::Error).count(), 0, "{config}, {complete}");
    }
}

#[test]
fn engine_refuses_the_files_of_served_versions() {
    let machine = Machine { missing: "", refusing: "onnxruntime" };
    let repository = repository(&[
        ("all/config.pbtxt", "backend: 'onnxruntime' version_policy { all { } }"),
        ("all/1/model.onnx", ""),
        ("all/2/model.onnx", ""),
        ("newest/1/model.onnx", ""),
        ("newest/3/model.onnx", ""),
        ("empty/config.pbtxt", "backend: 'onnxruntime'"),
        ("empty/1/notes.txt", ""),
        ("script/config.pbtxt", "backend: 'python'"),
        ("script/1/model.py", ""),
    ]);
    assert_eq!(
        findings(&repository, &machine, Severity::Error),
        [
            "all/1: refuses version 1",
            "all/2: refuses version 2",
            "empty/1: has no 'model.onnx'",
            "newest/3: refuses version 3",
        ]
    );
}

#[test]
fn backend_that_completes_nothing_needs_a_configuration() {
    for (files, expected) in [
        (
            &[("m/1/model.pt", "")][..],
            "m: has no config.pbtxt, and backend 'pytorch' does not complete one: write a config.pbtxt that lists all inputs and \
             outputs",
        ),
        (
            &[("m/1/model.pt", ""), ("m/config.pbtxt", "backend: 'pytorch'")],
            "m/config.pbtxt: list all inputs",
        ),
        (&[("m/1/model.onnx", "")], ""),
        (&[("m/1/model.onnx", ""), ("m/config.pbtxt", "backend: 'onnxruntime'")], ""),
    ] {
        let found = findings(&repository(files), &ALL_INSTALLED, Severity::Error);
        assert_eq!(found.join("\n"), expected, "{files:?}");
    }
}

#[test]
fn only_an_unknown_backend_has_a_suggestion() {
    for (config, expected) in [
        ("backend: 'tensorrt'", "backend: install TensorRT"),
        ("platform: 'tensorrt_plan'", "platform: install TensorRT"),
        (
            "backend: 'tensort'",
            "backend: model 'm': backend 'tensort' is not installed (available: onnxruntime, python, pytorch); did \
          you mean 'tensorrt'?",
        ),
        (
            "backend: 'phyton'",
            "backend: model 'm': backend 'phyton' is not installed (available: onnxruntime, python, pytorch); did \
          you mean 'python'?",
        ),
        (
            "backend: 'mine'",
            "backend: model 'm': backend 'mine' is not installed (available: onnxruntime, python, pytorch)",
        ),
    ] {
        let files = [("m/config.pbtxt", &*format!("{config} {TENSORS}")), ("m/1/model.plan", "")];
        let found = findings(&repository(&files), &ALL_INSTALLED, Severity::Error);
        assert_eq!(found, [format!("m/config.pbtxt: {expected}")], "{config}");
    }
}

#[test]
fn requirements_are_used_by_models_that_may_be_in_python() {
    for (config, file, expected) in [
        ("backend: 'python'", "requirements.txt", ""),
        ("backend: 'my_python_backend'", "requirements.txt", ""),
        ("backend: 'python'", "requirement.txt", "unused file; did you mean 'requirements.txt'?"),
        ("backend: 'python'", "config.pbtx", "unused file; did you mean 'config.pbtxt'?"),
        ("backend: 'onnxruntime'", "requirements.txt", "unused file"),
    ] {
        let path = format!("m/{file}");
        let repository = repository(&[
            ("m/config.pbtxt", config),
            ("m/1/model.py", ""),
            ("m/1/model.onnx", ""),
            (&path, ""),
        ]);
        let expected = if expected.is_empty() { String::new() } else { format!("{path}: {expected}") };
        assert_eq!(
            findings(&repository, &ALL_INSTALLED, Severity::Warning).join("\n"),
            expected,
            "{config} {file}"
        );
    }
}

#[test]
fn folder_in_place_of_a_repository_is_one_problem() {
    for (files, expected) in [
        (
            &[("docs/a.md", ""), ("models/m/1/model.onnx", ""), ("models/n/1/model.onnx", "")][..],
            ": has no models, but its folder 'models' looks like a repository: name that folder",
        ),
        (
            &[("config.pbtxt", "backend: 'onnxruntime'"), ("1/model.onnx", "")],
            ": looks like a model: name the folder above it, which is the repository",
        ),
    ] {
        let repository = repository(files);
        assert_eq!(findings(&repository, &ALL_INSTALLED, Severity::Error), [expected]);
        let report = check(repository.path(), &ALL_INSTALLED);
        assert!(report.models.is_empty() && !report.is_good(), "{report}");
    }
}

#[test]
fn empty_repository_is_a_warning_with_what_to_do() {
    let repository = repository(&[]);
    let warnings = findings(&repository, &ALL_INSTALLED, Severity::Warning);
    assert_eq!(warnings, [": has no models: each needs a folder of its own, such as <model>/1/model.onnx"]);
    assert!(check(repository.path(), &ALL_INSTALLED).is_good());
}

#[test]
fn one_model_is_checked_as_among_all() {
    let ensemble = |member: &str, version: &str| {
        format!(
            "platform: 'ensemble' {TENSORS} ensemble_scheduling {{ step {{ model_name: '{member}' model_version: {version} \
             input_map {{ key: 'x' value: 'x' }} output_map {{ key: 'y' value: 'y' }} }} }}"
        )
    };
    let (good, outer) = (format!("backend: 'python' {TENSORS}"), ensemble("inner", "-1"));
    let (inner, lost) = (ensemble("good", "7"), ensemble("goood", "-1"));
    let one = repository(&[
        ("good/config.pbtxt", &good),
        ("good/1/model.py", ""),
        ("twice/config.pbtxt", &good),
        ("twice/1/model.py", ""),
        ("typo/config.pbtxt", "backend: 'python'\ninput { name: 'x' data_type: TYPE_FP33 dims: 1 }"),
        ("typo/02/model.py", ""),
        ("inner/config.pbtxt", &inner),
        ("inner/1/x", ""),
        ("outer/config.pbtxt", &outer),
        ("outer/1/x", ""),
        ("lost/config.pbtxt", &lost),
        ("circle/config.pbtxt", &ensemble("circle", "-1")),
        ("file", ""),
    ]);
    let two = repository(&[("twice/1/model.py", "")]);
    let repositories = [one.path().to_owned(), two.path().to_owned()];
    let texts = |findings: &[Finding]| findings.iter().map(ToString::to_string).collect::<Vec<_>>();
    with_context(&ALL_INSTALLED, ReadOptions::default(), |context| {
        let all = super::check(&repositories, context).findings;
        let mut with_findings = 0;
        for name in ["good", "twice", "typo", "inner", "outer", "lost", "circle", "file", "absent", "..", ""]
        {
            let own: Vec<_> =
                all.iter().filter(|finding| finding.model.as_deref() == Some(name)).cloned().collect();
            assert_eq!(texts(&check_model(&repositories, name, context)), texts(&own), "{name}");
            with_findings += usize::from(!own.is_empty());
        }
        assert!(with_findings >= 4, "{all:?}");
    });
}

/// The findings about parameters of a model on several lines: place, field and message.
fn of_parameters(parameters: &[(&str, &str)], severity: Severity) -> Vec<String> {
    let parameter = |(key, value): &(&str, &str)| {
        format!("parameters {{ key: '{key}' value {{ string_value: '{value}' }} }}\n")
    };
    let text: String = parameters.iter().map(parameter).collect();
    let repository = repository(&[
        ("m/config.pbtxt", &format!("backend: 'onnxruntime' {TENSORS}\n{text}")),
        ("m/1/model.onnx", ""),
    ]);
    let report = check(repository.path(), &ALL_INSTALLED);
    let line = |finding: &Finding| {
        let line = finding.place.map_or(0, |place| place.line);
        format!("{line}: {}: {}", finding.field.as_deref().unwrap_or_default(), finding.message)
    };
    report.of(severity).map(line).collect()
}

#[test]
fn parameters_of_the_server_are_checked_as_a_load_does() {
    let number = "but must be a whole number";
    for (parameters, expected) in [
        (&[("load_schedule", "0 8 * * *"), ("load_schedule_keep", "9h"), ("keep_loaded", "TRUE")][..], vec![]),
        (&[("instances_max", "4"), ("instances_min", "2"), ("latency_objective", "x")], vec![]),
        (&[("release_versions", "1=95, 2=5"), ("release_promote_after", "1000")], vec![]),
        (
            &[("keep_loaded", "true"), ("load_schedule", "8:00")],
            vec![
                "3: parameters[\"load_schedule\"]: is '8:00', but must be five fields as in cron and an optional time zone, \
                 such as '0 8 * * MON-FRI Europe/Berlin'"
                    .to_owned(),
            ],
        ),
        (
            // Each is reported.
            &[("load_on_demand", "yes"), ("idle_timeout_secs", "-1"), ("memory_byte_size", "5G")],
            vec![
                "2: parameters[\"load_on_demand\"]: is 'yes', but must be true or false".to_owned(),
                format!("3: parameters[\"idle_timeout_secs\"]: is '-1', {number}"),
                format!("4: parameters[\"memory_byte_size\"]: is '5G', {number}"),
            ],
        ),
        (
            &[("load_schedule_keep", "9h")],
            vec!["2: parameters[\"load_schedule_keep\"]: has no effect without 'load_schedule'".to_owned()],
        ),
        (
            &[("instances_max", "2"), ("instances_min", "3"), ("release_shadow", "2=1")],
            vec![
                "3: parameters[\"instances_min\"]: is 3, more than 'instances_max', which is 2".to_owned(),
                "4: parameters[\"release_shadow\"]: has no effect without 'release_versions'".to_owned(),
            ],
        ),
        (
            &[("latency_objective_microseconds", "0")],
            vec![
                "2: parameters[\"latency_objective_microseconds\"]: is '0', but must be a whole number of microseconds from 1 \
                 to 3600000000 (an hour)"
                    .to_owned(),
            ],
        ),
    ] {
        assert_eq!(of_parameters(parameters, Severity::Error), expected, "{parameters:?}");
    }
}

#[test]
fn names_like_those_of_the_server_are_doubtful() {
    for (name, meant) in [
        ("load_schedul", Some("load_schedule")),
        ("Load_On_Demand", Some("load_on_demand")),
        ("idle_timeout", Some("idle_timeout_secs")),
        ("latency_objective", Some("latency_objective_microseconds")),
        ("release_version", Some("release_versions")),
        ("instances_maximum", Some("instances_max")),
        ("load_on_demand", None),
        // Backends may have these.
        ("min", None),
        ("keep", None),
        ("byte_size", None),
        ("intra_op_thread_count", None),
        ("FORCE_CPU_ONLY_INPUT_TENSORS", None),
        ("$default:x", None),
        ("", None),
        ("é_", None),
    ] {
        let meaning = |meant: &str| {
            format!(
                "2: parameters[{name:?}]: no part of the server reads this parameter; did you mean '{meant}'?"
            )
        };
        let expected: Vec<_> = meant.map(meaning).into_iter().collect();
        assert_eq!(of_parameters(&[(name, "true")], Severity::Warning), expected, "{name}");
    }
}

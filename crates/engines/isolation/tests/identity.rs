//! The identity backend in separate processes: it conforms as it does in the server, and no misbehaving model ends this
//! process.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nereid_backend_api::{
    Backend, BackendCapabilities, DataType, ErrorCode, InferRequest, Instance, InstanceContext, InstanceKind,
    Model, ModelContext, Result, Tensor,
};
use nereid_identity::IdentityBackend;
use nereid_isolation::{Isolation, Processes, Settings, Trial};
use nereid_testkit::{Executions, Recorder, conformance};
use nereid_worker::{Launch, SandboxSettings};

const MODEL: &str = r#"
    max_batch_size: 4
    input [ { name: "INPUT0" data_type: TYPE_INT8 dims: [ -1 ] } ]
    output [ { name: "OUTPUT0" data_type: TYPE_INT8 dims: [ -1 ] } ]
"#;

const SETTINGS: Settings =
    Settings { isolation: Some(Isolation::Load), load: Some(Some(Duration::from_secs(3))), execute: None };

fn launch(behaviour: &str) -> Launch {
    let mut program: PathBuf = std::env::current_exe().unwrap();
    program.pop();
    program.pop();
    program.push("examples/fragile_host");
    Launch { program, arguments: vec![behaviour.into()], ..Launch::default() }
}

fn missing() -> Launch {
    Launch { program: "/nowhere/program".into(), ..launch("") }
}

/// A model that behaves like this while it loads.
fn context(load: &str) -> ModelContext {
    let parameter = format!("parameters {{ key: 'load' value {{ string_value: '{load}' }} }}");
    nereid_testkit::context("m", nereid_testkit::normalised("m", &format!("{MODEL} {parameter}")))
}

fn request(id: &str, contents: &[u8]) -> InferRequest {
    InferRequest {
        id: id.to_owned(),
        inputs: vec![Tensor::new("INPUT0", DataType::Int8, [1, contents.len() as i64], contents.to_vec())],
        ..InferRequest::default()
    }
}

fn processes(settings: Settings) -> Processes {
    Processes::new(launch(""), settings, SandboxSettings::default(), BackendCapabilities::default()).unwrap()
}

fn subject(backend: Arc<dyn Backend>) -> conformance::Subject {
    let wrong = nereid_testkit::normalised("m", &MODEL.replace("OUTPUT0", "OUTPUT1"));
    conformance::Subject {
        backend,
        model: context(""),
        request: |number| request("", &[number; 2]),
        outputs: |number| vec![Tensor::new("OUTPUT0", DataType::Int8, [1, 2], vec![number; 2])],
        max_batch: 4,
        reports_executions: true,
        refused: vec![(nereid_testkit::context("m", wrong), "no output 'OUTPUT0'")],
        faulty: None,
    }
}

#[test]
fn isolated_backend_passes_conformance() {
    let unlimited = Settings { load: Some(None), ..SETTINGS };
    let faulty = conformance::Faulty::from((|| request("refuses", &[1, 2]), "it refuses"));
    conformance::backend(conformance::Subject {
        faulty: Some(faulty),
        ..subject(Arc::new(processes(unlimited)))
    });
    let trial = Trial::new(Arc::new(IdentityBackend), launch(""), unlimited);
    conformance::backend(subject(Arc::new(trial)));
}

/// Counts the loads that reach the backend.
#[derive(Default)]
struct Counted(AtomicUsize);

impl Backend for Counted {
    fn load(&self, context: ModelContext) -> Result<Box<dyn Model>> {
        self.0.fetch_add(1, Ordering::Relaxed);
        IdentityBackend.load(context)
    }
}

#[test]
fn model_failing_its_trial_is_not_loaded_in_the_server() {
    let counted = Arc::<Counted>::default();
    let trial = Trial::new(Arc::clone(&counted) as _, launch(""), SETTINGS);
    for (load, code, part) in [
        (
            "aborts",
            ErrorCode::InvalidArg,
            "was killed by signal 6 (SIGABRT: aborted); it is not loaded into the server",
        ),
        ("hangs", ErrorCode::InvalidArg, "did not answer in time; it is not loaded into the server"),
        ("refuses", ErrorCode::Unsupported, "it refuses"),
    ] {
        let error = trial.load(context(load)).err().unwrap();
        assert!(error.code() == code && error.message().contains(part), "{load}: {error}");
        assert_eq!(counted.0.load(Ordering::Relaxed), 0, "{load}");
    }
    trial.load(context("")).unwrap();
    assert_eq!(counted.0.load(Ordering::Relaxed), 1);
}

/// The processes that run with this argument.
fn running_with(argument: &str) -> usize {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = all.filter_map(|entry| std::fs::read_to_string(entry.path().join("cmdline")).ok());
    lines.filter(|line| line.contains(argument)).count()
}

#[test]
fn trial_process_is_reused_until_a_failure() {
    let argument = format!("tries, for {}", std::process::id());
    let trial = Trial::new(Arc::new(IdentityBackend), launch(&argument), SETTINGS);
    for (load, left) in [("", 1), ("", 1), ("refuses", 0), ("", 1), ("aborts", 0), ("", 1)] {
        assert_eq!(trial.load(context(load)).is_ok(), load.is_empty(), "'{load}'");
        let deadline = Instant::now() + Duration::from_secs(20);
        // A killed process takes a moment to disappear; an idle one stays for seconds.
        while running_with(&argument) != left {
            assert!(Instant::now() < deadline, "after '{load}': {}", running_with(&argument));
            std::thread::yield_now();
        }
    }
    drop(trial);
    let deadline = Instant::now() + Duration::from_secs(20);
    while running_with(&argument) > 0 {
        assert!(Instant::now() < deadline);
        std::thread::yield_now();
    }
}

#[test]
fn missing_host_program_skips_only_default_trials() {
    for (isolation, loads) in [(None, 1), (Some(Isolation::Load), 0)] {
        let counted = Arc::<Counted>::default();
        let trial = Trial::new(Arc::clone(&counted) as _, missing(), Settings { isolation, ..SETTINGS });
        assert_eq!(usize::from(trial.load(context("")).is_ok()), loads);
        assert_eq!(counted.0.load(Ordering::Relaxed), loads);
    }
    assert!(
        Processes::new(missing(), SETTINGS, SandboxSettings::default(), BackendCapabilities::default())
            .is_err()
    );
}

#[test]
fn unopenable_backend_is_refused_with_the_reason() {
    for (behaviour, part) in
        [("refuses", "it refuses"), ("aborts", "was killed by signal 6 (SIGABRT: aborted)")]
    {
        let error = Processes::new(
            launch(behaviour),
            SETTINGS,
            SandboxSettings::default(),
            BackendCapabilities::default(),
        )
        .err()
        .unwrap();
        assert!(error.message().contains(part), "{error}");
    }
}

/// Sends a request with this id; returns the size of the answer or the error.
fn execute(instance: &mut dyn Instance, id: &str, size: usize) -> Result<usize, String> {
    let contents: Vec<u8> = (0..size).map(|at| at as u8).collect();
    let (request, recorder) = Recorder::request(request(id, &contents), 1);
    instance.execute(Arc::<Executions>::default().batch(vec![request]));
    let response = recorder.answer().map_err(|error| error.message().to_owned())?;
    assert_eq!(&*response.outputs[0].contiguous().unwrap(), contents);
    Ok(response.outputs[0].byte_size())
}

#[test]
fn crashed_process_fails_its_requests_and_is_restarted() {
    let processes = processes(Settings { execute: Some(Some(Duration::from_secs(2))), ..SETTINGS });
    for (load, part) in [("aborts", "(SIGABRT: aborted)"), ("hangs", "in time"), ("refuses", "it refuses")] {
        let error = processes.load(context(load)).err().unwrap();
        assert!(error.message().contains(part), "{load}: {error}");
    }
    let model = processes.load(context("")).unwrap();
    let mut instance = model.create_instance(InstanceContext::new("m_0", InstanceKind::Cpu)).unwrap();
    assert_eq!(model.engine(), None);
    for (id, part) in [
        ("aborts", "'m_0' was killed by signal 6 (SIGABRT: aborted)"),
        ("hangs", "did not answer in time"),
        ("refuses", "it refuses"),
    ] {
        for size in [0, 1, 8 << 10, (8 << 10) + 1, 3 << 20] {
            assert_eq!(execute(&mut *instance, "", size), Ok(size), "after '{id}'");
        }
        let error = execute(&mut *instance, id, 100).unwrap_err();
        assert!(error.contains(part), "{id}: {error}");
    }
    assert_eq!(execute(&mut *instance, "answered later", 10_000), Ok(10_000));
    assert_eq!(model.ready(), Ok(()));
}

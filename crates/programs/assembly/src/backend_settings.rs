//! The names of settings that the built-in backends read. Libraries of backends read what they like.

use nereid_backend_api::BackendSettings;
use nereid_core::model_config::nearest_name;
use nereid_isolation::Settings as IsolationSettings;
use nereid_python::PythonBackend;
use nereid_worker::SandboxSettings;

use crate::backends::{BackendSetting, BackendsConfig};
use crate::transformers;

/// Settings that choose the library of a framework's backend, and between it and another engine.
const LIBRARY: &str = "library";
const ENGINE: &str = "engine";

/// Settings of built-in backends that these do not read, each as a sentence. `installed` are the backends with a library in the
/// backend directory.
pub(crate) fn ineffective_settings(config: &BackendsConfig, installed: &[String]) -> Vec<String> {
    let mut sentences: Vec<_> =
        config.settings.iter().filter_map(|setting| sentence(config, installed, setting)).collect();
    // Scripts may repeat a setting to override it.
    sentences.dedup();
    sentences
}

fn sentence(config: &BackendsConfig, installed: &[String], setting: &BackendSetting) -> Option<String> {
    let BackendSetting { backend: Some(backend), key, .. } = setting else { return None };
    let is_library = match &**backend {
        "python" => config.settings_of(backend).get(ENGINE) == Some("library"),
        // An installed library replaces only this backend.
        "fil" | transformers::NAME => installed.contains(backend),
        _ => false,
    };
    let names = names(backend).filter(|_| !is_library)?;
    if names.contains(&&**key) || runs_in_processes(backend) && SandboxSettings::has(key) {
        return None;
    }
    let nearest = nearest_name(key, names.into_iter());
    let hint = nearest.map_or_else(String::new, |nearest| format!("; did you mean '{nearest}'?"));
    Some(format!(
        "--backend-config={backend},{key} has no effect: the built-in backend '{backend}' has no such setting{hint}"
    ))
}

/// The settings that a built-in backend reads; `None` for other backends.
fn names(backend: &str) -> Option<Vec<&'static str>> {
    let own: Vec<_> = match backend {
        "identity" | "fil" | "caffe2" => vec![],
        "onnxruntime" => [ENGINE, LIBRARY].into_iter().chain(nereid_onnxruntime::SETTINGS).collect(),
        "openvino" | "llamacpp" => vec![LIBRARY],
        "tensorflow" => [ENGINE, LIBRARY].into_iter().chain(nereid_tensorflow::SETTINGS).collect(),
        "pytorch" => vec![ENGINE, LIBRARY],
        "python" => [ENGINE].into_iter().chain(PythonBackend::settings()).collect(),
        transformers::NAME => transformers::settings().collect(),
        _ => return None,
    };
    let has_isolation = runs_in_processes(backend) && !["python", transformers::NAME].contains(&backend);
    let isolation = IsolationSettings::NAMES.into_iter().filter(|_| has_isolation);
    let sandbox = SandboxSettings::NAMES.into_iter().filter(|_| runs_in_processes(backend));
    Some(own.into_iter().chain(BackendSettings::FOR_EVERY_BACKEND).chain(isolation).chain(sandbox).collect())
}

fn runs_in_processes(backend: &str) -> bool {
    !matches!(backend, "identity" | "fil")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sentences about settings, written as on the command line.
    fn ineffective(settings: &[&str], installed: &[&str]) -> Vec<String> {
        let settings = settings.iter().map(|setting| {
            let (name, value) = setting.split_once('=').unwrap();
            let (backend, key) =
                name.split_once(',').map_or((None, name), |(backend, key)| (Some(backend), key));
            BackendSetting {
                backend: backend.map(str::to_owned),
                key: key.to_owned(),
                value: value.to_owned(),
            }
        });
        let config = BackendsConfig { settings: settings.collect(), ..BackendsConfig::default() };
        ineffective_settings(&config, &installed.iter().map(|&name| name.to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn unknown_settings_of_built_in_backends_are_named_with_the_nearest_one() {
        for (setting, hint) in [
            ("python,foo=1", None),
            ("python,shm_growth_byte_size=1", Some("shm-growth-byte-size")),
            ("python,execute-timeout-second=1", Some("execute-timeout-seconds")),
            ("python,sandbox-netwrk=on", Some("sandbox-network")),
            ("python,libary=/x", None),
            ("onnxruntime,libary=/x", Some("library")),
            ("onnxruntime,intra_op_thread_cuont=1", Some("intra_op_thread_count")),
            ("openvino,engine=x", None),
            ("tensorflow,allow_soft_placement=false", Some("allow-soft-placement")),
            ("tensorflow,gpu-memory-fraction=0.5", None),
            ("pytorch,isolaton=process", Some("isolation")),
            ("caffe2,library=/x", None),
            ("llamacpp,default_max_batch_size=4", Some("default-max-batch-size")),
            ("transformers,execute-timeout-seconds=1", Some("stub-timeout-seconds")),
            ("transformers,stub-timeout-second=1", Some("stub-timeout-seconds")),
            ("transformers,isolation=process", None),
            ("fil,sandbox=on", None),
            ("identity,isolation=process", None),
        ] {
            let (backend, key) = setting.split_once('=').unwrap().0.split_once(',').unwrap();
            let hint = hint.map_or_else(String::new, |hint| format!("; did you mean '{hint}'?"));
            let expected = format!(
                "--backend-config={backend},{key} has no effect: the built-in backend '{backend}' has no such setting{hint}"
            );
            assert_eq!(ineffective(&[setting], &[]), [expected]);
            // For all backends, a library may read it.
            assert_eq!(ineffective(&[&format!("{key}=1")], &[]), [""; 0], "{setting}");
        }
        assert_eq!(ineffective(&["python,foo=1", "python,foo=2"], &[]).len(), 1);
    }

    #[test]
    fn settings_that_backends_and_libraries_read_pass() {
        let passing = [
            "python,sandbox.some.model=on",
            "python,sandbox-read.m=/x",
            "python,shm-default-byte-size=1",
            "python,thread-pool-size=4",
            "python,engine=builtin",
            "onnxruntime,enable-global-threadpool=1",
            "openvino,sandbox-memory=1",
            "llamacpp,execute-timeout-seconds=3",
            "tensorflow,default-max-batch-size=8",
            "caffe2,isolation=none",
            "fil,default-max-batch-size=8",
            "transformers,python=/venv",
            "transformers,sandbox=on",
            "onnxruntime,min-compute-capability=6.0",
            "tensorrt,coalesce-request-input=true",
            "dali,foo=1",
            "own,foo=1",
        ];
        assert_eq!(ineffective(&passing, &[]), [""; 0]);
        assert_eq!(ineffective(&["python,foo=1", "python,engine=library"], &[]), [""; 0]);
        assert_eq!(ineffective(&["fil,foo=1"], &["fil"]), [""; 0]);
        assert_eq!(ineffective(&["fil,foo=1"], &["own"]).len(), 1);
    }

    #[test]
    fn settings_in_the_documents_are_known() {
        let page = include_str!("../../../../docs/python.md");
        let table = page.split("| `--backend-config=python,...` |").nth(1).unwrap();
        let rows: Vec<_> = table.lines().skip(2).map_while(|line| line.strip_prefix("| `")).collect();
        assert!(rows.len() > 5, "{rows:?}");
        for row in rows {
            let key = row.split('=').next().unwrap();
            assert_eq!(ineffective(&[&format!("python,{key}=1")], &[]), [""; 0]);
        }
    }
}

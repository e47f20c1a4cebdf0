//! Built-in backends that are isolated in separate processes, or whose models are tried there: the server's side, and
//! the code of those processes.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nereid_backend_api::{Backend, BackendCapabilities, Error, Result};
use nereid_isolation::{Isolation, Processes, Settings, Trial};
use nereid_sandbox::Policy;
use nereid_worker::{Launch, SandboxSettings};

use crate::backends::{self, BackendSetting, BackendsConfig};

/// The first argument of a process that hosts a backend. The remaining arguments are for [`host`].
pub const HOST: &str = "host-backend";

/// Environment variable that lets such a process log at level info.
pub const HOST_INFORMS: &str = nereid_isolation::INFORMS;

/// Default isolation of a backend. libtorch hangs on some damaged files, and llama.cpp ends its process when an assertion fails.
fn by_default(name: &str) -> Isolation {
    match name {
        "pytorch" => Isolation::Load,
        "llamacpp" => Isolation::Process,
        _ => Isolation::None,
    }
}

/// Opens a built-in backend, isolated from the server according to its settings.
///
/// # Errors
/// The backend cannot be opened, or a setting has an unknown value.
pub(crate) fn open(
    name: &str,
    config: &BackendsConfig,
    capabilities: BackendCapabilities,
) -> Result<Arc<dyn Backend>> {
    let settings = Settings::of(&config.settings_of(name))?;
    let launch = config.program.as_ref().map(|program| launch(program.clone(), name, config));
    Ok(match (settings.isolation.unwrap_or_else(|| by_default(name)), launch) {
        (Isolation::None, _) => backends::open(name, config)?,
        (Isolation::Load, Some(launch)) => {
            let backend = backends::open(name, config)?;
            let sandbox = SandboxSettings::new(name, &config.settings_of(name))?;
            let launch = Launch { policy: sandbox.without_model()?, ..launch };
            if backend.capabilities().is_isolated {
                backend
            } else {
                Arc::new(Trial::new(backend, launch, settings))
            }
        }
        (Isolation::Process, Some(launch)) => {
            tracing::info!("backend '{name}' runs in separate processes");
            let sandbox = SandboxSettings::new(name, &config.settings_of(name))?;
            let processes = Processes::new(launch, settings, sandbox, capabilities)?;
            // Threads of llama.cpp wait for each other without sleeping.
            Arc::new(if name == "llamacpp" { processes.limiting_threads("threads") } else { processes })
        }
        (_, None) if settings.isolation.is_none() => backends::open(name, config)?,
        (_, None) => {
            return Err(Error::unavailable(
                "the setting 'isolation' takes the program nereid: a server inside an application has no process for a \
                 backend",
            ));
        }
    })
}

fn launch(program: PathBuf, name: &str, config: &BackendsConfig) -> Launch {
    let mut arguments: Vec<OsString> = vec![HOST.into(), name.into(), config.directory.clone().into()];
    for BackendSetting { backend, key, value } in &config.settings {
        arguments.extend([backend.clone().unwrap_or_default().into(), key.into(), value.into()]);
    }
    // Otherwise llama.cpp runs a debugger before it ends its process, and requests wait for that.
    let variables = vec![("GGML_NO_BACKTRACE".into(), Some("1".into()))];
    let settings = config.settings_of(name);
    let library = settings.get("library").map(Path::new);
    // Setting a library names its folder: others that it needs are beside it.
    let beside = library.map(|library| library.parent().unwrap_or(library).to_owned());
    let active = std::env::var_os("VIRTUAL_ENV").map(PathBuf::from);
    let readable =
        [program.clone(), config.directory.clone()].into_iter().chain(beside).chain(active).collect();
    let policy = Policy { readable, ..Policy::default() };
    Launch { program, arguments, variables, policy, ..Launch::default() }
}

/// The backend and the configuration that the arguments after [`HOST`] describe.
fn described(mut arguments: impl Iterator<Item = OsString>) -> Option<(String, BackendsConfig)> {
    let name = arguments.next()?.into_string().ok()?;
    let directory = arguments.next()?.into();
    let words: Vec<String> =
        arguments.map(OsString::into_string).collect::<std::result::Result<_, _>>().ok()?;
    let settings = words.chunks(3).map(|words| match words {
        [backend, key, value] => Some(BackendSetting {
            backend: (!backend.is_empty()).then(|| backend.clone()),
            key: key.clone(),
            value: value.clone(),
        }),
        _ => None,
    });
    let settings = settings.collect::<Option<_>>()?;
    Some((name, BackendsConfig { directory, settings, program: None }))
}

/// Hosts the backend that the arguments after [`HOST`] describe, until the server that started this process ends it.
///
/// # Errors
/// The process was not started by a server.
pub fn host(arguments: impl Iterator<Item = OsString>) -> io::Result<()> {
    let described = described(arguments);
    let (name, config) = described
        .ok_or_else(|| io::Error::other("this program is started by a server, with its arguments"))?;
    nereid_worker::host(&format!("backend {name}"), || backends::open(&name, &config))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(backend: Option<&str>, key: &str, value: &str) -> BackendSetting {
        BackendSetting { backend: backend.map(str::to_owned), key: key.to_owned(), value: value.to_owned() }
    }

    #[test]
    fn a_process_has_the_settings_of_the_server() {
        for settings in [
            vec![],
            vec![setting(None, "default-max-batch-size", "3"), setting(Some("x"), "library", "/a b,c=d")],
            vec![setting(Some("y"), "", ""), setting(Some("x"), "key", "-1")],
        ] {
            let config = BackendsConfig { directory: "/some/where".into(), settings, program: None };
            let launch = launch("/nereid".into(), "x", &config);
            assert_eq!((launch.program, &*launch.arguments[0]), ("/nereid".into(), HOST.as_ref()));
            let (name, found) = described(launch.arguments.into_iter().skip(1)).unwrap();
            assert_eq!((&*name, found.directory, found.settings), ("x", config.directory, config.settings));
        }
        for words in [&[][..], &["x"], &["x", "/", "one"], &["x", "/", "one", "two"]] {
            assert!(described(words.iter().map(OsString::from)).is_none(), "{words:?}");
        }
    }

    #[test]
    fn isolation_without_a_program_is_refused_only_if_configured() {
        for (value, refused) in [("none", false), ("load", true), ("process", true), ("half", true)] {
            let settings = vec![setting(Some("onnxruntime"), "isolation", value)];
            let config = BackendsConfig { settings, ..BackendsConfig::default() };
            let opened = open("onnxruntime", &config, BackendCapabilities::default());
            let isolation = opened.err().filter(|error| error.message().contains("isolation"));
            assert_eq!(isolation.is_some(), refused, "{value}");
        }
    }
}

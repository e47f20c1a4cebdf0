//! Environments with the packages of a `requirements.txt`, created by uv if it is installed, otherwise by venv and pip.
//!
//! Both installers use their own settings: indexes, proxies and caches.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use nereid_model_files as model_files;
use ring::digest::{Context, SHA256};

use crate::activation::Variables;
use crate::archive::hex;
use crate::command;
use crate::confined;
use crate::interpreter::{Interpreter, find};
use crate::{Error, Requested};

/// Name of the list next to the model's configuration.
pub(crate) const FILE: &str = "requirements.txt";

/// Runs an installer for as long as the server lives.
const GUARD: &str = include_str!("guard.py");

/// Said where an installation fails.
const WAY_OUT: &str =
    "--backend-config=python,install-requirements=false runs the model without its requirements.txt";

/// Said where an installation takes too long.
const LONGER: &str = "--backend-config=python,install-timeout-seconds=N allows more time";

/// Reads a model's list; `None` if it is missing or lists nothing.
pub(crate) fn read(model: &Path) -> Result<Option<String>, Error> {
    let path = model.join(FILE);
    match model_files::read_text(&path) {
        Ok(text) => Ok(text.lines().any(is_requirement).then_some(text)),
        Err(error) if error.is_missing() => Ok(None),
        Err(cause) => Err(Error::Requirements { path, cause }),
    }
}

fn is_requirement(line: &str) -> bool {
    let line = line.trim_start();
    !line.is_empty() && !line.starts_with('#')
}

/// The key of an environment: the same for all models with this list, unless the list names files.
pub(crate) fn key(text: &str, model: &Path, base: &Interpreter) -> String {
    let mut context = Context::new(&SHA256);
    let mut add = |part: &[u8]| {
        context.update(&(part.len() as u64).to_le_bytes());
        context.update(part);
    };
    add(text.as_bytes());
    add(base.version.to_string().as_bytes());
    add(base.program.as_os_str().as_encoded_bytes());
    if names_files(text) {
        add(model.as_os_str().as_encoded_bytes());
    }
    format!("requirements-{}", hex(context))
}

/// Whether a list names files, other lists or local packages, which may differ from model to model.
fn names_files(text: &str) -> bool {
    const OPTIONS: [&str; 10] =
        ["-r", "--requirement", "-c", "--constraint", "-e", "--editable", "-f", "--find-links", ".", "/"];
    text.lines().map(str::trim_start).any(|line| {
        OPTIONS.iter().any(|option| line.starts_with(option))
            || line.contains("file:")
            || (!line.starts_with('#') && (line.contains(".whl") || line.contains(".tar.gz")))
    })
}

/// The variables of such an environment, as set by its `bin/activate`.
pub(crate) fn variables(folder: &Path) -> Variables {
    let known = std::env::var_os("PATH").unwrap_or_default();
    let mut path = OsString::from(folder.join("bin"));
    if !known.is_empty() {
        path.push(":");
        path.push(known);
    }
    vec![
        ("PATH".into(), Some(path)),
        ("PYTHONHOME".into(), None),
        ("VIRTUAL_ENV".into(), Some(folder.as_os_str().to_owned())),
    ]
}

/// Makes the environment in an empty folder.
///
/// # Errors
/// An installer fails; its words are in the error.
pub(crate) fn install(
    requested: &Requested<'_>,
    base: &Interpreter,
    folder: &Path,
    lock: &File,
    limit: Duration,
    progress: &dyn Fn(&str),
) -> Result<(), Error> {
    let model = requested.model_folder;
    let list = model.join(FILE);
    let list = std::path::absolute(&list).map_err(Error::io(list.display().to_string()))?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let uv = find("uv", &path);
    let tool = uv.as_deref().unwrap_or(&base.program);
    progress(&format!(
        "installing {} for Python {} in {} with {}",
        list.display(),
        base.version,
        folder.display(),
        if uv.is_some() { "uv" } else { "pip" }
    ));
    let run = |program: &Path, arguments: &[OsString]| {
        let words: Vec<_> = arguments.iter().map(|word| word.to_string_lossy()).collect();
        let what = format!("{} {}", program.display(), words.join(" "));
        // An installer that outlived the server would hold the environment's lock.
        let mut command = Command::new(&base.program);
        command.args(["-I", "-S", "-c", GUARD, &std::process::id().to_string()]).arg(program);
        // Relative paths in the list are relative to the model's folder.
        command.current_dir(model).args(arguments).env_remove("PYTHONHOME").env_remove("PYTHONPATH");
        let policy = confined::installing(requested.policy, folder, &[&base.program, program]);
        let confinement = confined::confine(&mut command, &policy)?;
        if let Some(temporary) = confinement.temporary() {
            // The user's caches are out of reach.
            command.env("PIP_CACHE_DIR", temporary.join("pip")).env("UV_CACHE_DIR", temporary.join("uv"));
        }
        // The installer inherits the lock, so that no process removes the folder while it runs, even if this process is
        // killed.
        let held = lock.try_clone().map_err(Error::io("the lock of an environment"))?;
        let mut line = |line: &str| progress(line);
        command::run(&mut command, &what, limit, Some(Stdio::from(held)), &mut line)?.success(&what)
    };
    let python = folder.join("bin/python");
    let with = |options: &'static str, last: &[&OsStr]| -> Vec<OsString> {
        options.split(' ').map(OsStr::new).chain(last.iter().copied()).map(OsStr::to_owned).collect()
    };
    let (make, installer, install) = match &uv {
        Some(uv) => (
            with(
                "venv --quiet --no-project --allow-existing --python",
                &[base.program.as_ref(), folder.as_ref()],
            ),
            uv,
            with(
                "pip install --color never --no-progress --python",
                &[python.as_ref(), "-r".as_ref(), list.as_ref()],
            ),
        ),
        None => (
            with("-m venv", &[folder.as_ref()]),
            &python,
            with(
                "-m pip --disable-pip-version-check --no-input install --no-color --progress-bar=off -r",
                &[list.as_ref()],
            ),
        ),
    };
    let outcome = run(tool, &make).and_then(|_| run(installer, &install));
    outcome.map(drop).map_err(|error| match error {
        Error::Failed { what, words } => Error::Failed { what, words: format!("{words}\n{WAY_OUT}") },
        Error::Slow { what, words, limit } => {
            let words = format!("{words}\n{LONGER}, and {WAY_OUT}");
            Error::Slow { what, words: words.trim_start().to_owned(), limit }
        }
        error => error,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Version;

    fn base(micro: u32) -> Interpreter {
        Interpreter { program: "/usr/bin/python3".into(), version: Version { major: 3, minor: 11, micro } }
    }

    #[test]
    fn empty_requirements_need_no_environment() {
        let model = tempfile::tempdir().unwrap();
        assert!(read(model.path()).unwrap().is_none());
        for (text, lists) in
            [("", false), ("\n  \n# numpy\n", false), ("numpy\n", true), ("# a\n  -r b.txt", true)]
        {
            std::fs::write(model.path().join(FILE), text).unwrap();
            assert_eq!(read(model.path()).unwrap().is_some(), lists, "{text:?}");
        }
        std::fs::write(model.path().join(FILE), b"\xff\xfe").unwrap();
        assert!(matches!(read(model.path()), Err(Error::Requirements { .. })));
        std::fs::remove_file(model.path().join(FILE)).unwrap();
        std::fs::create_dir(model.path().join(FILE)).unwrap();
        let error = read(model.path()).unwrap_err().to_string();
        assert!(error.ends_with("requirements.txt: not a regular file but a directory"), "{error}");
    }

    #[test]
    fn equal_requirements_share_an_environment_unless_they_name_files() {
        let (one, two) = (Path::new("/models/one"), Path::new("/models/two"));
        for (text, shared) in [
            ("numpy==2.4.6\nrequests>=2\n", true),
            ("--index-url https://example.com/simple\nnumpy\n", true),
            ("package @ https://example.com/package\n", true),
            ("-r others.txt\n", false),
            ("  -c limits.txt\nnumpy\n", false),
            ("./package\n", false),
            ("package @ file:///packages/package\n", false),
            ("wheels/package-1.0-py3-none-any.whl\n", false),
            ("--no-index\n--find-links wheels\n", false),
        ] {
            assert_eq!(key(text, one, &base(7)) == key(text, two, &base(7)), shared, "{text}");
            assert_eq!(key(text, one, &base(7)), key(text, one, &base(7)));
            assert_ne!(key(text, one, &base(7)), key(text, one, &base(8)));
            assert_ne!(key(text, one, &base(7)), key(&format!("{text}#"), one, &base(7)));
        }
    }

    /// The processes whose command line contains a text.
    fn running_with(text: &str) -> usize {
        let all = std::fs::read_dir("/proc").unwrap().flatten();
        let lines = all.filter_map(|entry| std::fs::read_to_string(entry.path().join("cmdline")).ok());
        lines.filter(|line| line.contains(text)).count()
    }

    #[test]
    fn installer_ends_with_the_server_and_with_everything_it_started() {
        // A server that starts an installer, which starts another process, and ends once both run.
        let server = r#"
import os, subprocess, sys, time
guard, seconds = sys.argv[1:]
installer = "sleep %s & sleep %s" % (seconds, seconds)
line = [sys.executable, "-c", guard, str(os.getpid()), "sh", "-c", installer]
started = subprocess.Popen(line, start_new_session=True, stdout=subprocess.PIPE)
def command(pid):
    try:
        return open("/proc/%s/cmdline" % pid).read()
    except OSError:
        return ""
# This process, the guard, the shell and its two processes.
while sum(seconds in command(pid) for pid in os.listdir("/proc") if pid.isdigit()) < 5:
    time.sleep(0.05)
"#;
        let seconds = format!("98765.{}", std::process::id());
        let ended = Command::new("python3").args(["-c", server, GUARD, &seconds]).status().unwrap();
        assert!(ended.success());
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        while running_with(&seconds) > 0 {
            assert!(std::time::Instant::now() < deadline, "an installer outlives its server");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    #[test]
    fn end_of_an_installer_is_that_of_its_guard() {
        let server = std::process::id().to_string();
        for (script, expected) in [("exit 0", Some(0)), ("exit 7", Some(7)), ("kill -9 $$", None)] {
            let mut command = Command::new("python3");
            command.args(["-I", "-S", "-c", GUARD, &server, "sh", "-c", script]);
            let ended = command::run(&mut command, "sh", Duration::from_secs(60), None, &mut |_| {}).unwrap();
            assert_eq!(ended.status.code(), expected, "{script}: {}", ended.words());
        }
        let mut command = Command::new("python3");
        command.args(["-I", "-S", "-c", GUARD, &server, "/no/such/installer"]);
        let ended = command::run(&mut command, "it", Duration::from_secs(60), None, &mut |_| {}).unwrap();
        assert_eq!(ended.words(), "cannot run /no/such/installer: No such file or directory");
    }
}

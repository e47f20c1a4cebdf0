//! Finds interpreters and queries their version and properties.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nereid_sandbox::Policy;

use crate::command;
use crate::confined;
use crate::{Environment, Error, Settings};

/// The oldest Python that models run on: major and minor version.
pub const OLDEST: (u32, u32) = (3, 9);

/// Time limit for an interpreter's start. The first start from a slow disk takes seconds.
const START_LIMIT: Duration = Duration::from_secs(60);

/// Runs on any version of Python, so that an unsupported one can report its version.
const PROBE: &str = r#"
import os, sys
text = "%d.%d.%d\n%s\n%s\n%s\n" % (
    tuple(sys.version_info[:3])
    + (getattr(getattr(sys, "implementation", None), "name", "cpython"), getattr(sys, "abiflags", ""), sys.executable)
)
os.write(1, text if str is bytes else os.fsencode(text))
"#;

/// An interpreter's version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// As 3 in 3.11.7.
    pub major: u32,
    /// As 11 in 3.11.7.
    pub minor: u32,
    /// As 7 in 3.11.7.
    pub micro: u32,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.micro)
    }
}

/// An interpreter that can run models.
#[derive(Clone, Debug)]
pub(crate) struct Interpreter {
    pub program: PathBuf,
    pub version: Version,
}

impl Interpreter {
    pub(crate) fn into_environment(
        self,
        variables: Vec<(OsString, Option<OsString>)>,
        origin: String,
    ) -> Environment {
        let folders = confined::folders(&self.program);
        Environment {
            interpreter: self.program,
            version: self.version,
            variables,
            origin,
            folders,
            in_use: None,
        }
    }

    /// The program in an environment's folder. A dangling link counts, too: it means that the environment is damaged.
    pub(crate) fn in_environment(folder: &Path) -> Option<PathBuf> {
        ["bin/python3", "bin/python"]
            .map(|name| folder.join(name))
            .into_iter()
            .find(|it| it.is_symlink() || it.is_file())
    }

    /// Starts the program and validates its properties.
    ///
    /// # Errors
    /// The program does not start, or is unsuitable for models.
    pub(crate) fn probe(program: &Path) -> Result<Self, Error> {
        Self::probe_within(&Policy::default(), program, &[])
    }

    /// As [`probe`](Self::probe), with variables of its environment. Under the policy, it reads its own folders, too.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn probe_within(
        policy: &Policy,
        program: &Path,
        variables: &[(OsString, Option<OsString>)],
    ) -> Result<Self, Error> {
        let broken = |cause: String| Error::Broken { program: program.to_owned(), cause };
        let mut command = Command::new(program);
        command.args(["-S", "-c", PROBE]);
        let mut policy = policy.clone();
        policy.readable.extend(confined::folders(program));
        let confinement = confined::confine(&mut command, &policy)?;
        for (name, value) in variables {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let ended =
            command::run(&mut command, &program.display().to_string(), START_LIMIT, None, &mut |_| {})
                .map_err(|error| match error {
                    Error::Io { cause, .. } if is_of_the_file(&cause) => broken(cause.to_string()),
                    error => error,
                })?;
        drop(confinement);
        if !ended.status.success() {
            return Err(broken(ended.words()));
        }
        let mut lines = ended.output.split(|byte| *byte == b'\n');
        let mut next = || lines.next().unwrap_or_default();
        let version = parse(next()).ok_or_else(|| broken("its output has no version".to_owned()))?;
        let implementation = String::from_utf8_lossy(next()).into_owned();
        let flags = String::from_utf8_lossy(next()).into_owned();
        let reported = PathBuf::from(OsString::from_vec(next().to_vec()));
        if implementation != "cpython" {
            return Err(Error::NotCPython { program: program.to_owned(), what: implementation });
        }
        if (version.major, version.minor) < OLDEST {
            return Err(Error::TooOld { program: program.to_owned(), found: version });
        }
        if flags.contains('t') {
            let what = format!("the free-threaded build of Python {version}");
            return Err(Error::NotCPython { program: program.to_owned(), what });
        }
        // A program found by its name may be a script that chooses an interpreter, as pyenv's is. The interpreter starts
        // faster.
        let program =
            if reported.is_absolute() && reported.is_file() { reported } else { program.to_owned() };
        Ok(Self { program, version })
    }
}

/// Succeeds if the interpreter finds all packages that its arguments name.
const FIND: &str =
    "import sys; from importlib.util import find_spec; sys.exit(not all(map(find_spec, sys.argv[1:])))";

impl Interpreter {
    /// Whether `find_spec` finds all of these packages.
    pub(crate) fn has_packages(&self, names: &[&str]) -> bool {
        let mut command = Command::new(&self.program);
        command.args(["-I", "-c", FIND]).args(names);
        let what = self.program.display().to_string();
        let ended = command::run(&mut command, &what, START_LIMIT, None, &mut |_| {});
        ended.is_ok_and(|ended| ended.status.success())
    }
}

/// Whether starting failed because of the program's file, and not because of the machine's state.
fn is_of_the_file(cause: &io::Error) -> bool {
    use rustix::io::Errno;
    const OF_FILES: [Errno; 7] =
        [Errno::NOENT, Errno::ACCESS, Errno::NOEXEC, Errno::LOOP, Errno::NOTDIR, Errno::ISDIR, Errno::LIBBAD];
    cause.raw_os_error().is_some_and(|code| OF_FILES.iter().any(|errno| errno.raw_os_error() == code))
}

fn parse(text: &[u8]) -> Option<Version> {
    let mut parts = std::str::from_utf8(text).ok()?.split('.').map(|part| part.parse().ok());
    let version = Version { major: parts.next()??, minor: parts.next()??, micro: parts.next()?? };
    parts.next().is_none().then_some(version)
}

/// The interpreter of models that name no environment, and why it is this one.
pub(crate) fn of_server(settings: &Settings) -> Result<(Interpreter, String), Error> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    if let Some(chosen) = &settings.interpreter {
        let program = if chosen.is_dir() {
            Interpreter::in_environment(chosen).ok_or_else(|| Error::NoInterpreter {
                name: "bin/python3".to_owned(),
                place: chosen.display().to_string(),
            })?
        } else if chosen.components().count() > 1 {
            chosen.clone()
        } else {
            find(chosen, &path).ok_or_else(|| missing(chosen, &path))?
        };
        let program = std::path::absolute(&program).map_err(Error::io(program.display().to_string()))?;
        return Ok((Interpreter::probe(&program)?, "the option --backend-config=python,python".to_owned()));
    }
    if let Some(active) = &settings.active
        && let Some(program) = Interpreter::in_environment(active)
    {
        let origin = format!("the active virtual environment {}", active.display());
        return Ok((Interpreter::probe(&program)?, origin));
    }
    let name = OsStr::new("python3");
    let program = find(name, &path).ok_or_else(|| missing(name, &path))?;
    Ok((Interpreter::probe(&program)?, format!("{} in PATH", program.display())))
}

fn missing(name: impl AsRef<OsStr>, path: &OsStr) -> Error {
    Error::NoInterpreter {
        name: name.as_ref().to_string_lossy().into_owned(),
        place: format!("the folders of PATH ({})", path.to_string_lossy()),
    }
}

/// The first program of this name in the folders of a search path.
pub(crate) fn find(name: impl AsRef<Path>, path: &OsStr) -> Option<PathBuf> {
    let is_program = |file: &PathBuf| {
        file.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    std::env::split_paths(path)
        .filter(|folder| folder.is_absolute())
        .map(|folder| folder.join(name.as_ref()))
        .find(is_program)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A program that answers like an interpreter.
    fn script(folder: &Path, name: &str, body: &str) -> PathBuf {
        let path = folder.join(name);
        fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    #[test]
    fn unsuitable_interpreters_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        for (body, expected) in [
            ("printf '3.9.0\\ncpython\\n\\n\\n'", Ok("3.9.0")),
            ("printf '3.14.2\\ncpython\\n\\n/no/such\\n'", Ok("3.14.2")),
            ("printf '4.0.0\\ncpython\\nx\\n\\n'", Ok("4.0.0")),
            ("printf '3.8.18\\ncpython\\n\\n\\n'", Err("is Python 3.8.18; models need 3.9 or newer")),
            ("printf '2.7.18\\ncpython\\n\\n\\n'", Err("is Python 2.7.18; models need 3.9 or newer")),
            ("printf '3.11.13\\npypy\\n\\n\\n'", Err("is pypy; models need CPython")),
            ("printf '3.13.0\\ncpython\\nt\\n\\n'", Err("is the free-threaded build of Python 3.13.0")),
            ("echo hello", Err("does not work: its output has no version")),
            ("echo 3.11", Err("does not work: its output has no version")),
            ("echo cannot find encodings >&2; exit 1", Err("does not work: cannot find encodings")),
            ("kill -SEGV $$", Err("does not work: signal: 11 (SIGSEGV)")),
        ] {
            let program = script(folder.path(), "python3", body);
            match (Interpreter::probe(&program), expected) {
                (Ok(found), Ok(version)) => {
                    assert_eq!(
                        (found.version.to_string().as_str(), found.program),
                        (version, program),
                        "{body}"
                    );
                }
                (Err(error), Err(part)) => {
                    let text = error.to_string();
                    assert!(
                        text.starts_with(&format!("{} ", program.display())) && text.contains(part),
                        "{text}"
                    );
                }
                (found, _) => panic!("{body}: {found:?}"),
            }
        }
        for damaged in ["none", "."] {
            let error = Interpreter::probe(&folder.path().join(damaged)).unwrap_err();
            assert!(error.is_damage(), "{error}");
        }
    }

    #[test]
    fn interpreter_of_this_machine_reports_version_and_path() {
        let path = std::env::var_os("PATH").unwrap();
        let found = Interpreter::probe(&find("python3", &path).unwrap()).unwrap();
        assert!((found.version.major, found.version.minor) >= OLDEST);
        assert!(found.program.is_absolute() && found.program.is_file());
    }

    #[test]
    fn packages_are_found_without_importing_them() {
        let path = std::env::var_os("PATH").unwrap();
        let found = Interpreter::probe(&find("python3", &path).unwrap()).unwrap();
        assert!(found.has_packages(&[]) && found.has_packages(&["json", "asyncio"]));
        assert!(!found.has_packages(&["json", "no_such_package"]));
    }

    #[test]
    fn first_folder_of_the_search_path_wins() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(one.path().join("python3"), "not a program").unwrap();
        fs::create_dir(one.path().join("python")).unwrap();
        let program = script(two.path(), "python3", "");
        let path = std::env::join_paths([Path::new("relative"), one.path(), two.path()]).unwrap();
        assert_eq!(find("python3", &path), Some(program));
        assert_eq!(find("python", &path), None);
        assert_eq!(find("python3", OsStr::new("")), None);
    }

    #[test]
    fn option_overrides_active_environment_overrides_search_path() {
        let folder = tempfile::tempdir().unwrap();
        let bin = folder.path().join("bin");
        fs::create_dir(&bin).unwrap();
        let own = script(&bin, "python3", "printf '3.12.0\\ncpython\\n\\n\\n'");
        let other = script(folder.path(), "other", "printf '3.13.0\\ncpython\\n\\n\\n'");
        let settings = |interpreter: Option<&Path>, active: Option<&Path>| Settings {
            interpreter: interpreter.map(Path::to_owned),
            active: active.map(Path::to_owned),
            ..Settings::default()
        };
        let program = |settings: &Settings| of_server(settings).map(|(found, _)| found.program);
        assert_eq!(program(&settings(Some(&other), Some(folder.path()))).unwrap(), other);
        assert_eq!(program(&settings(Some(folder.path()), None)).unwrap(), own);
        assert_eq!(program(&settings(None, Some(folder.path()))).unwrap(), own);
        // A virtual environment that was deleted is ignored.
        assert_ne!(program(&settings(None, Some(Path::new("/no/such")))).unwrap(), own);
        let error = program(&settings(Some(Path::new("no-such-python")), None)).unwrap_err().to_string();
        assert!(error.contains("'no-such-python' is not in the folders of PATH"), "{error}");
        let error = program(&settings(Some(&bin), None)).unwrap_err().to_string();
        assert!(error.contains("'bin/python3' is not in"), "{error}");
        let error = program(&settings(Some(Path::new("/no/such/python")), None)).unwrap_err().to_string();
        assert!(error.contains("/no/such/python does not work: No such file"), "{error}");
    }
}

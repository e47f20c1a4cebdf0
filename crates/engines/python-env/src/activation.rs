//! Runs an environment's `bin/activate` and collects the variables that it changes.
//!
//! Activation scripts may contain any shell code, and conda's run further scripts, so a real shell runs them: with
//! empty standard input, and for a limited time.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use nereid_sandbox::Policy;

use crate::command;
use crate::confined;
use crate::error::Error;
use crate::interpreter::find;

/// Differences from the server's variables: new values, or `None` for variables to remove.
pub(crate) type Variables = Vec<(OsString, Option<OsString>)>;

/// Variables that the shell itself changes.
const OF_SHELLS: [&str; 5] = ["_", "OLDPWD", "PWD", "SHLVL", "PS1"];

/// Variables that name folders of the script's own.
const TEMPORARY: [&str; 4] = ["HOME", "TMPDIR", "TMP", "TEMP"];

/// Runs the script under a policy; returns the variables that it sets and removes.
///
/// # Errors
/// The script is missing, fails, or exceeds the limit.
pub(crate) fn run(environment: &Path, limit: Duration, policy: &Policy) -> Result<Variables, Error> {
    let script = environment.join("bin/activate");
    if nereid_model_files::check(&script).is_err() {
        return Err(Error::NoActivation(environment.to_owned()));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let what = script.display().to_string();
    let missing = |name: &str| Error::Failed {
        what: what.clone(),
        words: format!("{name} is not in the folders of PATH ({})", path.to_string_lossy()),
    };
    let shell = ["bash", "sh"].into_iter().find_map(|name| find(name, &path)).ok_or_else(|| missing("sh"))?;
    let lister = find("env", &path).ok_or_else(|| missing("env"))?;
    let mut command = Command::new(shell);
    // The script's output must not mix with the variables. $0 is the script, because scripts for plain shells find
    // their folder by it. The script may change all variables and arguments, so the program that lists them has an
    // absolute path.
    let lister = lister.to_string_lossy().replace('\'', r"'\''");
    command.arg("-c").arg(format!(r#". "$0" >&2 && exec '{lister}' -0"#)).arg(&script);
    let confinement = confined::confine(&mut command, policy)?;
    let output = command::run(&mut command, &what, limit, None, &mut |_| {})?.success(&what)?;
    let mut changed = changes(std::env::vars_os().collect(), &output);
    if confinement.temporary().is_some() {
        // The script's folder for temporary files goes with it.
        changed.retain(|(name, _)| !TEMPORARY.iter().any(|temporary| name == temporary));
    }
    Ok(changed)
}

/// The search path after the script, if it changed it.
pub(crate) fn search_path(variables: &Variables) -> Option<OsString> {
    variables.iter().find(|(name, _)| name == "PATH").and_then(|(_, value)| value.clone())
}

/// Compares the output of `env -0` with the variables before.
fn changes(mut before: BTreeMap<OsString, OsString>, output: &[u8]) -> Variables {
    let is_of_shell = |name: &OsStr| OF_SHELLS.iter().any(|other| name == *other);
    let mut variables = Variables::new();
    for line in output.split(|byte| *byte == 0) {
        // A name may begin with '=', but has at least one character.
        let Some(at) = line.iter().skip(1).position(|byte| *byte == b'=').map(|at| at + 1) else { continue };
        let name = OsString::from_vec(line[..at].to_vec());
        let value = OsString::from_vec(line[at + 1..].to_vec());
        let known = before.remove(&name);
        if known.as_ref() != Some(&value) && !is_of_shell(&name) {
            variables.push((name, Some(value)));
        }
    }
    variables.extend(before.into_keys().filter(|name| !is_of_shell(name)).map(|name| (name, None)));
    variables.sort();
    variables
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn activate(script: &str, limit: Duration) -> Result<Variables, Error> {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("bin")).unwrap();
        fs::write(folder.path().join("bin/activate"), script).unwrap();
        run(folder.path(), limit, &Policy::default())
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn activation_reports_exported_and_removed_variables_only() {
        let script = "echo activated\nexport MARK=$'two\\nlines = 2' EMPTY=\nLOCAL=3\nset -- a b\nunset PATH\ncd /\nPS1=x\nexport PS1\n";
        let expected = [("EMPTY", Some("")), ("MARK", Some("two\nlines = 2")), ("PATH", None)];
        assert_eq!(
            activate(script, LONG).unwrap(),
            expected.map(|(name, value)| (name.into(), value.map(Into::into)))
        );
        assert_eq!(activate("", LONG).unwrap(), []);
    }

    #[test]
    fn variables_with_any_bytes_are_compared() {
        let before = [("KEPT", "1"), ("CHANGED", "1"), ("GONE", "1"), ("PWD", "/")];
        let before = before.map(|(name, value)| (name.into(), value.into())).into();
        let output = b"KEPT=1\0CHANGED=2=3\0=ODD=4\0_=/usr/bin/env\0PWD=/x\0BYTES=\xff\0nonsense\0\0";
        let set = |name: &str, value: &[u8]| (name.into(), Some(OsString::from_vec(value.to_vec())));
        let expected =
            [set("=ODD", b"4"), set("BYTES", b"\xff"), set("CHANGED", b"2=3"), ("GONE".into(), None)];
        assert_eq!(changes(before, output), expected);
    }

    #[test]
    fn failing_script_is_reported_with_its_output() {
        for (script, part) in [
            ("echo no such thing >&2; return 3", "bin/activate failed: no such thing"),
            ("exit 7", "bin/activate failed: exit status: 7"),
            ("if", "bin/activate failed: "),
        ] {
            let error = activate(script, LONG).unwrap_err().to_string();
            assert!(error.contains(part), "{script}: {error}");
        }
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("bin/activate")).unwrap();
        assert!(matches!(run(folder.path(), LONG, &Policy::default()), Err(Error::NoActivation(_))));
    }

    #[test]
    fn waiting_script_is_killed() {
        let error = activate("echo asking >&2; sleep 1000", Duration::from_secs(2)).unwrap_err();
        assert!(error.to_string().ends_with("did not end within 2 s: asking"), "{error}");
        // A script that reads sees the end of its input.
        assert_eq!(activate("read answer; export A=1", LONG).unwrap().len(), 1);
    }
}

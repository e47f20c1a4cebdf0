//! Runs what an environment contains within the model's sandbox: its scripts, its interpreter, and what installs its packages.

use std::path::{Path, PathBuf};
use std::process::Command;

use nereid_sandbox::{Confinement, Network, Policy, Sandbox};

use crate::Error;

/// The folders of an installation that an interpreter reads.
const PARTS: [&str; 6] = ["bin", "include", "lib", "lib32", "lib64", "share"];

/// Files that mark a folder as an environment, all of which belongs to its interpreter.
const MARKS: [&str; 2] = ["conda-meta", "pyvenv.cfg"];

/// The settings of installers, in the user's folder and the system's.
const INSTALLERS: [&str; 5] = [".config/pip", ".pip", ".config/uv", "/etc/pip.conf", "/etc/uv"];

/// How the names of variables begin that configure installers and proxies.
const INSTALLERS_VARIABLES: [&str; 2] = ["PIP_", "UV_"];

/// Proxies, in either case.
const PROXIES: [&str; 4] = ["ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY"];

/// Has a command run under a policy.
pub(crate) fn confine(command: &mut Command, policy: &Policy) -> Result<Confinement, Error> {
    Ok(Sandbox::prepare(policy)?.confine(command))
}

/// A policy for running what a folder contains: only that is readable, and nothing can be reached.
pub(crate) fn within(policy: &Policy, folder: &Path) -> Policy {
    let mut readable = policy.readable.clone();
    readable.push(folder.to_owned());
    Policy { readable, network: Network::Off, writable: Vec::new(), gpus: false, ..policy.clone() }
}

/// A policy for installing packages into a folder: the installer uses the network and its own settings.
pub(crate) fn installing(policy: &Policy, folder: &Path, programs: &[&Path]) -> Policy {
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let mut readable = policy.readable.clone();
    readable.extend(programs.iter().flat_map(|program| folders(program)));
    readable.extend(INSTALLERS.iter().map(|place| home.join(place)));
    let mut variables = policy.variables.clone();
    for (name, value) in std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
    {
        if INSTALLERS_VARIABLES.iter().any(|prefix| name.starts_with(prefix)) {
            // Certificates, files of settings, folders of packages.
            readable.extend(value.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from));
            variables.push(name);
        } else if PROXIES.iter().any(|proxy| name.eq_ignore_ascii_case(proxy)) {
            variables.push(name);
        }
    }
    variables.push("HOME".to_owned());
    let writable = vec![folder.to_owned()];
    Policy { readable, writable, variables, network: Network::On, gpus: false, ..policy.clone() }
}

/// What a program reads of its installations: the one that its path names, the one that it is a link to, and the one that
/// its environment was made from.
pub(crate) fn folders(program: &Path) -> Vec<PathBuf> {
    let prefix = |program: &Path| program.parent().and_then(Path::parent).map(Path::to_owned);
    let named = prefix(program);
    let real = program.canonicalize().ok().and_then(|real| prefix(&real));
    let base = named.as_deref().and_then(base);
    let mut folders = vec![program.to_owned()];
    for folder in [named, real, base].into_iter().flatten() {
        if MARKS.iter().any(|mark| folder.join(mark).exists()) {
            folders.push(folder);
        } else {
            folders.extend(PARTS.iter().map(|part| folder.join(part)));
        }
    }
    folders
}

/// The installation that a virtual environment was made from.
fn base(environment: &Path) -> Option<PathBuf> {
    let config = nereid_model_files::read_text(&environment.join("pyvenv.cfg")).ok()?;
    let mut lines = config.lines().filter_map(|line| line.split_once('='));
    let (_, home) = lines.find(|(key, _)| key.trim() == "home")?;
    Path::new(home.trim()).parent().map(Path::to_owned)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn interpreter_reads_its_environment_and_the_installation_behind_it() {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().join(path);
        for folder in ["base/bin", "env/bin", "copied/bin", "plain/bin"] {
            fs::create_dir_all(at(folder)).unwrap();
        }
        for program in ["base/bin/python3", "copied/bin/python3", "plain/bin/python3"] {
            fs::write(at(program), "").unwrap();
        }
        symlink(at("base/bin/python3"), at("env/bin/python3")).unwrap();
        fs::write(at("env/pyvenv.cfg"), "version = 3\n").unwrap();
        let home = format!("include-system-site-packages = false\nhome = {}\n", at("base/bin").display());
        fs::write(at("copied/pyvenv.cfg"), home).unwrap();
        for (program, contains, lacks) in [
            ("env/bin/python3", vec!["env", "base/lib", "base/bin"], vec!["base", "."]),
            ("copied/bin/python3", vec!["copied", "base/lib"], vec!["base"]),
            ("plain/bin/python3", vec!["plain/lib", "plain/bin"], vec!["plain"]),
        ] {
            let found = folders(&at(program));
            for (names, expected) in [(contains, true), (lacks, false)] {
                for name in names {
                    assert_eq!(found.contains(&at(name)), expected, "{program} {name}: {found:?}");
                }
            }
        }
    }
}

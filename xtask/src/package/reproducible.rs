//! Compiler flags for reproducible builds: the same sources give the same bytes in every folder.
//!
//! Knows folders and compilers, not what is built. The rest of a build's bytes follow from the sources, `Cargo.lock`, the compiler and
//! the linker.

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::Command;

use super::source_date;
use crate::project::Project;

/// Flags of the Rust compiler as cargo reads them: separated by this character, so that paths may have spaces.
const ENCODED: &str = "CARGO_ENCODED_RUSTFLAGS";
const SEPARATOR: &str = "\u{1f}";

/// Flags separated by spaces. Cargo ignores them if encoded ones are set.
const FLAGS: &str = "RUSTFLAGS";

/// Flags of C compilers, as the crate `cc` reads them.
const C_FLAGS: &str = "CFLAGS";

/// Lets a command of cargo build with the flags of the environment, `more`, and those for the same bytes in every folder.
pub fn set_flags(command: &mut Command, project: &Project, more: &[OsString]) {
    let mut flags = own_flags(env::var_os(ENCODED).as_deref(), env::var_os(FLAGS).as_deref());
    flags.extend(more.iter().cloned());
    flags.extend(renamed(project).map(|renamed| joined("--remap-path-prefix=", &renamed)));
    command.env(ENCODED, flags.join(OsStr::new(SEPARATOR)));
    let mut c_flags = env::var_os(C_FLAGS).unwrap_or_default();
    for renamed in renamed(project) {
        c_flags.push(joined(" -ffile-prefix-map=", &renamed));
    }
    command.env(C_FLAGS, c_flags);
    // The allocator's C code has the time of its compilation.
    if let Ok(date) = source_date(project) {
        command.env("SOURCE_DATE_EPOCH", date.to_string());
    }
}

/// The flags of the environment.
fn own_flags(encoded: Option<&OsStr>, plain: Option<&OsStr>) -> Vec<OsString> {
    let split = |flags: &OsStr, at: &dyn Fn(char) -> bool| {
        let flags = flags.to_string_lossy().into_owned();
        flags.split(at).filter(|flag| !flag.is_empty()).map(OsString::from).collect()
    };
    match (encoded, plain) {
        (Some(encoded), _) => split(encoded, &|character| SEPARATOR.contains(character)),
        (None, Some(plain)) => split(plain, &char::is_whitespace),
        (None, None) => Vec::new(),
    }
}

/// The folders of this machine, and their names in what is built. The last one that a path begins with counts.
fn renamed(project: &Project) -> impl Iterator<Item = (PathBuf, &'static str)> {
    let home = || Some(PathBuf::from(env::var_os("HOME")?).join(".cargo"));
    let cargo = env::var_os("CARGO_HOME").map(PathBuf::from).or_else(home);
    let own = [(project.root.clone(), "/nereid"), (project.target.clone(), "/target")];
    cargo.map(|cargo| (cargo, "/cargo")).into_iter().chain(own)
}

fn joined(flag: &str, (folder, name): &(PathBuf, &str)) -> OsString {
    let mut text = OsString::from(flag);
    text.push(folder);
    text.push("=");
    text.push(name);
    text
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::project::rustc;

    /// A program that knows the places of its sources, also of a generated one.
    const SOURCE: &str = r#"
        include!(concat!(env!("OUT_DIR"), "/generated.rs"));
        fn main() {
            println!("{} {}", generated(), file!());
            let place: &'static std::panic::Location<'static> = std::panic::Location::caller();
            assert_ne!(std::env::args().count(), 1234, "{place}");
        }
    "#;

    #[test]
    fn compilers_take_the_time_of_the_sources_for_the_present() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let project = Project { root: root.to_owned(), target: root.join("target") };
        let mut command = Command::new("cargo");
        set_flags(&mut command, &project, &[]);
        let expected = source_date(&project).unwrap().to_string();
        let found =
            command.get_envs().find(|(name, _)| *name == "SOURCE_DATE_EPOCH").and_then(|(_, value)| value);
        assert_eq!(found, Some(OsStr::new(&expected)));
    }

    /// Builds the program in a folder; its bytes.
    fn built(folder: &Path, is_renamed: bool) -> Vec<u8> {
        let project = Project { root: folder.join("source code"), target: folder.join("target") };
        let out = project.target.join("out");
        for folder in [&project.root, &out] {
            fs::create_dir_all(folder).unwrap();
        }
        fs::write(project.root.join("main.rs"), SOURCE).unwrap();
        let generated = "fn generated() -> &'static str { file!() }";
        fs::write(out.join("generated.rs"), generated).unwrap();
        let mut command = Command::new(rustc());
        set_flags(&mut command, &project, &[]);
        let flags =
            command.get_envs().find(|(name, _)| *name == ENCODED).and_then(|(_, flags)| flags).unwrap();
        let flags: Vec<_> = flags.to_str().unwrap().split(SEPARATOR).map(str::to_owned).collect();
        let program = project.target.join("program");
        command.env("OUT_DIR", &out).args(["--edition=2024", "-Cstrip=symbols", "-o"]).arg(&program);
        command.arg(project.root.join("main.rs")).args(flags.iter().filter(|_| is_renamed));
        assert!(command.status().unwrap().success());
        fs::read(program).unwrap()
    }

    #[test]
    fn builds_in_two_folders_give_the_same_bytes() {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let [first, second] = folders.each_ref().map(|folder| built(folder.path(), true));
        let has = |bytes: &[u8], text: &str| bytes.windows(text.len()).any(|at| at == text.as_bytes());
        assert!(has(&first, "/nereid/main.rs") && has(&first, "/target/out/generated.rs"));
        assert!(!has(&first, folders[0].path().to_str().unwrap()));
        assert_eq!(first, second);
        // Without the flags, the folders show.
        let [first, second] = folders.each_ref().map(|folder| built(folder.path(), false));
        assert_ne!(first, second);
    }

    #[test]
    fn flags_of_the_environment_stay() {
        for (encoded, plain, expected) in [
            (None, None, vec![]),
            (None, Some(" -Ca  -Db "), vec!["-Ca", "-Db"]),
            (Some("-Ca b\u{1f}-D"), None, vec!["-Ca b", "-D"]),
            (Some("-Ca"), Some("-Db"), vec!["-Ca"]),
            (Some(""), Some("-Db"), vec![]),
        ] {
            assert_eq!(own_flags(encoded.map(OsStr::new), plain.map(OsStr::new)), expected);
        }
    }
}

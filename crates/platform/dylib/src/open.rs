//! Opens a shared library. A failure shows the dynamic loader's reason, such as the dependency that is missing.

use std::env::consts::ARCH;
use std::error::Error;
use std::fs::File;
use std::io::Read;
use std::iter;
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL, RTLD_NOW};

/// When the functions that a library calls are looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binding {
    /// All during the load: a missing function fails it.
    Now,
    /// Each on its first call.
    Lazy,
}

/// The dynamic loader rejected a library.
#[derive(Debug, thiserror::Error)]
#[error("cannot load {}: {reason}", path.display())]
pub struct LoadError {
    /// The library.
    pub path: PathBuf,
    /// The loader's reason.
    pub reason: String,
}

impl LoadError {
    /// The error with all its causes, on one line.
    pub fn new(path: &Path, error: &(dyn Error + 'static)) -> Self {
        let causes = iter::successors(Some(error), |&error| error.source()).map(ToString::to_string);
        let causes: Vec<_> = causes.collect();
        let reason = causes.join(": ").split_whitespace().collect::<Vec<_>>().join(" ");
        let own_path = format!("{}: ", path.display());
        let reason = reason.strip_prefix(&own_path).map(str::to_owned).unwrap_or(reason);
        Self { path: path.to_owned(), reason }
    }
}

/// Loads a library. Its symbols are not visible to libraries loaded later.
///
/// # Errors
/// The dynamic loader's reason.
///
/// # Safety
/// Loading runs the library's initializers: the file must be trusted like the program itself.
pub unsafe fn open(path: &Path, binding: Binding) -> Result<Library, LoadError> {
    let binding = match binding {
        Binding::Now => RTLD_NOW,
        Binding::Lazy => RTLD_LAZY,
    };
    // SAFETY: the caller trusts the library.
    let library = unsafe { Library::open(Some(path), binding | RTLD_LOCAL) };
    library.map_err(|error| {
        // libloading's message only names the failed call; the reason is its source.
        let mut error = LoadError::new(path, error.source().unwrap_or(&error));
        // glibc reports a library for another architecture as a missing file.
        if let Some(other) = architecture(path).filter(|architecture| *architecture != ARCH) {
            error.reason = format!("it is built for {other}, not for {ARCH} ({})", error.reason);
        }
        error
    })
}

/// The architecture that a library is built for, by Rust's name. `None` if it is not an ELF file or for none of these.
fn architecture(path: &Path) -> Option<&'static str> {
    let mut header = [0; 20];
    File::open(path).and_then(|mut file| file.read_exact(&mut header)).ok()?;
    let [0x7f, b'E', b'L', b'F', _, order, .., first, second] = header else { return None };
    // ELF's e_machine, at the same place in files of all kinds.
    let machine = [first, second];
    match if order == 2 { u16::from_be_bytes(machine) } else { u16::from_le_bytes(machine) } {
        3 => Some("x86"),
        21 => Some("powerpc64"),
        22 => Some("s390x"),
        40 => Some("arm"),
        62 => Some("x86_64"),
        183 => Some("aarch64"),
        243 => Some("riscv64"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn failure(path: &Path) -> String {
        // SAFETY: the file is not a library, so nothing runs.
        unsafe { open(path, Binding::Now) }.unwrap_err().to_string()
    }

    #[test]
    fn load_error_shows_the_path_and_the_loaders_reason_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("libtext.so");
        fs::write(&path, "text").unwrap();
        let message = failure(&path);
        let start = format!("cannot load {}: ", path.display());
        let reason = message.strip_prefix(&start).unwrap();
        assert!(
            !reason.is_empty() && !reason.contains("libtext.so") && !reason.contains("dlopen"),
            "{message}"
        );
    }

    /// The start of an ELF file with this byte order and machine.
    fn library(order: u8, machine: [u8; 2]) -> Vec<u8> {
        let mut header = b"\x7fELF\x02\0\x01".to_vec();
        header[5] = order;
        header.resize(18, 0);
        header.extend(machine);
        header.resize(512, 0);
        header
    }

    #[test]
    fn load_error_names_the_architecture_of_a_foreign_library() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("libx.so");
        for (name, order, machine) in [
            ("x86", 1, [3, 0]),
            ("powerpc64", 2, [0, 21]),
            ("powerpc64", 1, [21, 0]),
            ("s390x", 2, [0, 22]),
            ("arm", 1, [40, 0]),
            ("x86_64", 1, [62, 0]),
            ("aarch64", 1, [183, 0]),
            ("riscv64", 1, [243, 0]),
        ] {
            fs::write(&path, library(order, machine)).unwrap();
            let message = failure(&path);
            let expected = format!("libx.so: it is built for {name}, not for {ARCH} (");
            assert_eq!(message.contains(&expected), name != ARCH, "{message}");
        }
        for other in
            [library(1, [0, 0]), library(1, [255, 255]), library(1, [183, 0])[..19].to_vec(), Vec::new()]
        {
            fs::write(&path, other).unwrap();
            assert!(!failure(&path).contains("built for"), "{}", failure(&path));
        }
    }

    #[test]
    fn load_error_names_a_missing_file() {
        let message = failure(Path::new("/no/such/libx.so"));
        assert!(
            message.starts_with("cannot load /no/such/libx.so: cannot open shared object file"),
            "{message}"
        );
    }
}

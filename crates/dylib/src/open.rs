//! Opens a shared library. A failure shows the dynamic loader's reason, such as the dependency that is missing.

use std::error::Error;
use std::iter;
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL, RTLD_NOW};

/// When the functions that a library calls are looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binding {
    /// All of them while it is loaded: a missing one fails the load.
    Now,
    /// Each when it is first called.
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
    // libloading says only which function failed; the reason is in its source.
    library.map_err(|error| LoadError::new(path, error.source().unwrap_or(&error)))
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
    fn the_loaders_reason_is_shown_once_with_the_path() {
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

    #[test]
    fn a_missing_file_is_reported_as_such() {
        let message = failure(Path::new("/no/such/libx.so"));
        assert!(
            message.starts_with("cannot load /no/such/libx.so: cannot open shared object file"),
            "{message}"
        );
    }
}

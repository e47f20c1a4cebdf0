//! The user's cache: folders that outlive servers and are shared by all of a user's.

use std::fmt;
use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

/// A folder cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnusableFolder {
    /// The folder.
    pub folder: PathBuf,
    /// The cause.
    pub cause: String,
}

impl fmt::Display for UnusableFolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot use the folder {}: {}", self.folder.display(), self.cause)
    }
}

impl std::error::Error for UnusableFolder {}

/// Creates a folder of this name that only this user can write to: in `$XDG_CACHE_HOME/nereid`, else `~/.cache/nereid`,
/// else a folder for temporary files.
///
/// # Errors
/// No folder is usable; the cause is the last one's.
pub fn cache_folder(name: &str) -> Result<PathBuf, UnusableFolder> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let candidates = [
        variable("XDG_CACHE_HOME").map(|folder| folder.join("nereid")),
        variable("HOME").map(|folder| folder.join(".cache/nereid")),
        Some(std::env::temp_dir().join(format!("nereid-{}", rustix::process::geteuid()))),
    ];
    first_usable(candidates.into_iter().flatten(), name)
}

/// Creates a folder of this name in another one, which may be open to other users. Only this user can write to the new one.
///
/// # Errors
/// The folder cannot be created, or belongs to others.
pub fn private_subfolder(parent: &Path, name: &str) -> Result<PathBuf, UnusableFolder> {
    let folder = parent.join(name);
    match make_private(&folder) {
        Ok(()) => Ok(folder),
        Err(cause) => Err(UnusableFolder { folder, cause }),
    }
}

fn first_usable(candidates: impl Iterator<Item = PathBuf>, name: &str) -> Result<PathBuf, UnusableFolder> {
    let mut last =
        UnusableFolder { folder: PathBuf::from(name), cause: "no cache folder is configured".to_owned() };
    for folder in candidates {
        let inner = folder.join(name);
        match make_private(&inner).and_then(|()| check_owner(&folder)) {
            Ok(()) => return Ok(inner),
            Err(cause) => last = UnusableFolder { folder: inner, cause },
        }
    }
    Err(last)
}

/// Creates a folder that only this user can write to, unless it exists.
fn make_private(folder: &Path) -> Result<(), String> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(|error| error.to_string())?;
    check_owner(folder)
}

/// Otherwise, other users could place their own programs there.
fn check_owner(folder: &Path) -> Result<(), String> {
    let found = folder.symlink_metadata().map_err(|error| error.to_string())?;
    if !found.is_dir() {
        return Err(format!("{} is not a folder", folder.display()));
    }
    if found.uid() != rustix::process::geteuid().as_raw() {
        return Err(format!("{} belongs to another user", folder.display()));
    }
    if found.mode() & 0o022 != 0 {
        return Err(format!("{} is writable by other users", folder.display()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn unsafe_cache_folders_are_refused() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        let usable = |names: &[&str]| first_usable(names.iter().map(|name| at(name)), "inner");
        let made = usable(&["deep/own"]).unwrap();
        assert_eq!(made, at("deep/own/inner"));
        assert_eq!(made.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(usable(&["deep/own"]).unwrap(), made);

        fs::write(at("file"), "").unwrap();
        fs::create_dir(at("open")).unwrap();
        fs::set_permissions(at("open"), fs::Permissions::from_mode(0o777)).unwrap();
        fs::create_dir(at("elsewhere")).unwrap();
        symlink("elsewhere", at("link")).unwrap();
        for (name, part) in [
            ("file", "Not a directory"),
            ("open", "is writable by other users"),
            ("link", "is not a folder"),
            ("file/x", "Not a directory"),
        ] {
            let error = usable(&[name]).unwrap_err().to_string();
            assert!(error.contains(part), "{name}: {error}");
            assert_eq!(usable(&[name, "next"]).unwrap(), at("next/inner"), "{name}");
        }
    }
}

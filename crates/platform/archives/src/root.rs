//! The folder that an archive is unpacked into.
//!
//! Each component of a path is opened in the folder before it and never followed if it is a link, so no entry reaches
//! anything outside through links that the archive made before. Links themselves are only made; [`check_links`] resolves
//! all of them when the archive is unpacked.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Component, Path, PathBuf};

use rustix::fd::OwnedFd;
use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, linkat, mkdirat, open, openat, readlinkat, statat, symlinkat,
    unlinkat,
};
use rustix::io::Errno;

use crate::Links;

/// The most components of a path.
const MAX_DEPTH: usize = 128;

/// The most links on the way to a file, as on Linux.
const MAX_LINKS: usize = 40;

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The folder that an archive is unpacked into.
pub(crate) struct Root(OwnedFd);

impl Root {
    /// Opens an existing folder, which may be reached by links.
    pub(crate) fn open(folder: &Path) -> Result<Self, String> {
        let flags = FOLDER.difference(OFlags::NOFOLLOW);
        open(folder, flags, Mode::empty()).map(Self).map_err(|error| error.to_string())
    }

    /// Makes a folder and those that it is in, unless they are there.
    pub(crate) fn make_folder(&self, path: &Path) -> Result<(), String> {
        self.enter(&components(path)?, path).map(drop)
    }

    /// Makes a file with these permissions, in the place of a file or link that may be there.
    pub(crate) fn make_file(&self, path: &Path, mode: Mode) -> Result<File, String> {
        let (parent, name) = self.parent(path)?;
        vacate(&parent, &name, path)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat(&parent, &name, flags, mode).map(File::from).map_err(|error| named(path, error))
    }

    /// Makes a symbolic link, in the place of a file or link that may be there.
    pub(crate) fn make_link(&self, path: &Path, target: &Path) -> Result<(), String> {
        let (parent, name) = self.parent(path)?;
        vacate(&parent, &name, path)?;
        symlinkat(target, &parent, &name).map_err(|error| named(path, error))
    }

    /// Makes a second name of a file of the folder, in the place of a file or link that may be there.
    pub(crate) fn make_hard_link(&self, path: &Path, target: &Path) -> Result<(), String> {
        let refused = || {
            let (path, target) = (path.display(), target.display());
            format!("'{path}' is a link to '{target}', which leads out of the folder")
        };
        let (from, file) = self.parent(target).map_err(|_| refused())?;
        let found = statat(&from, &file, AtFlags::SYMLINK_NOFOLLOW).map_err(|error| named(path, error))?;
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            return Err(format!(
                "'{}' is a link to '{}', which is not a file",
                path.display(),
                target.display()
            ));
        }
        let (parent, name) = self.parent(path)?;
        vacate(&parent, &name, path)?;
        linkat(&from, &file, &parent, &name, AtFlags::empty()).map_err(|error| named(path, error))
    }

    /// The folder of a path, made if it is not there, and the last component.
    fn parent(&self, path: &Path) -> Result<(OwnedFd, OsString), String> {
        let mut components = components(path)?;
        let name = components.pop().ok_or_else(|| leads_out(path))?;
        Ok((self.enter(&components, path)?, name.to_owned()))
    }

    fn enter(&self, components: &[&OsStr], path: &Path) -> Result<OwnedFd, String> {
        let mut folder = self.0.try_clone().map_err(|error| format!("'{}': {error}", path.display()))?;
        for component in components {
            folder = match openat(&folder, *component, FOLDER, Mode::empty()) {
                Ok(inner) => inner,
                Err(Errno::NOENT) => {
                    mkdirat(&folder, *component, Mode::from_raw_mode(0o777))
                        .map_err(|error| named(path, error))?;
                    openat(&folder, *component, FOLDER, Mode::empty()).map_err(|error| named(path, error))?
                }
                Err(Errno::LOOP | Errno::NOTDIR) => {
                    let component = component.to_string_lossy();
                    return Err(format!("'{}': '{component}' is not a folder", path.display()));
                }
                Err(error) => return Err(named(path, error)),
            };
        }
        Ok(folder)
    }
}

/// Resolves every symbolic link of a folder.
///
/// # Errors
/// A link that leads out of the folder, or has an absolute target that `links` does not allow.
pub fn check_links(folder: &Path, links: Links) -> Result<(), String> {
    let root = Root::open(folder)?;
    let mut open = vec![PathBuf::new()];
    while let Some(inner) = open.pop() {
        let failed = |error: Errno| named(&inner, error);
        let at = if inner.as_os_str().is_empty() { Path::new(".") } else { &inner };
        let opened = openat(&root.0, at, FOLDER, Mode::empty()).map_err(failed)?;
        for entry in Dir::new(opened).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            let path = inner.join(name);
            let found = statat(&root.0, &path, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
            match FileType::from_raw_mode(found.st_mode) {
                FileType::Directory => open.push(path),
                FileType::Symlink if !stays_inside(&root.0, &path, links)? => {
                    let target = read_link(&root.0, &path).map_err(failed)?.unwrap_or_default();
                    let (path, target) = (path.display(), target.display());
                    return Err(format!("'{path}' is a link to '{target}', which leads out of the folder"));
                }
                _ => {}
            }
        }
    }
    Ok(())
}

/// Whether a link resolves to something in the folder, or to nothing. What does not exist counts as a folder, so that no
/// file that is added later changes the outcome.
fn stays_inside(root: &OwnedFd, link: &Path, links: Links) -> Result<bool, String> {
    // The resolved components, without links.
    let mut resolved = PathBuf::new();
    let mut left: VecDeque<OsString> = link.components().map(|part| part.as_os_str().to_owned()).collect();
    let mut followed = 0;
    while let Some(part) = left.pop_front() {
        match Path::new(&part).components().next() {
            None | Some(Component::CurDir) => continue,
            Some(Component::ParentDir) => {
                if !resolved.pop() {
                    return Ok(false);
                }
                continue;
            }
            Some(Component::RootDir | Component::Prefix(_)) => return Ok(false),
            Some(Component::Normal(_)) => resolved.push(&part),
        }
        let Some(target) = read_link(root, &resolved).map_err(|error| named(link, error))? else { continue };
        followed += 1;
        if followed > MAX_LINKS {
            return Ok(false);
        }
        if target.is_absolute() {
            return Ok(links == Links::Absolute);
        }
        resolved.pop();
        for part in target.components().rev() {
            left.push_front(part.as_os_str().to_owned());
        }
    }
    Ok(true)
}

/// The target of a link; `None` for anything else, and where there is nothing.
fn read_link(root: &OwnedFd, path: &Path) -> Result<Option<PathBuf>, Errno> {
    match readlinkat(root, path, Vec::new()) {
        Ok(target) => Ok(Some(PathBuf::from(OsString::from_vec(target.into_bytes())))),
        Err(Errno::INVAL | Errno::NOENT | Errno::NOTDIR) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The components of a relative path without `..`.
fn components(path: &Path) -> Result<Vec<&OsStr>, String> {
    let mut components = Vec::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::Normal(name) => components.push(name),
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return Err(leads_out(path)),
        }
    }
    if components.len() > MAX_DEPTH {
        return Err(format!("an entry is {} folders deep, more than {MAX_DEPTH}", components.len()));
    }
    Ok(components)
}

/// Removes a file or link, if there is one.
fn vacate(parent: &OwnedFd, name: &OsStr, path: &Path) -> Result<(), String> {
    match unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(named(path, error)),
    }
}

fn leads_out(path: &Path) -> String {
    format!("'{}' leads out of the folder", path.display())
}

fn named(path: &Path, error: Errno) -> String {
    format!("'{}': {}", path.display(), io::Error::from(error))
}

//! Whether the libraries of frameworks are installed, found out without loading them.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::{env, fs};

use nereid_backend_api::{Error, Result};
use nereid_openvino::{LibraryLocation, Place};

/// The folders that the dynamic loader searches last.
const SYSTEM: [&str; 6] = [
    "/usr/local/lib",
    "/usr/lib",
    "/usr/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib64",
];

/// The paths of the libraries in all other folders of the dynamic loader, each followed by a zero byte.
const LOADER_CACHE: &str = "/etc/ld.so.cache";

/// Checks that the file of a library exists and is one. `library` names the library in messages.
///
/// # Errors
/// The configured file is missing or not a library, or the search found none; `missing` is the message then.
pub(crate) fn check(found: &LibraryLocation, library: &str, missing: &'static str) -> Result<()> {
    match found.place {
        Place::System if is_of_system(&found.path) => Ok(()),
        Place::System => Err(Error::unavailable(missing)),
        place => check_file(&found.path).map_err(|reason| {
            let path = found.path.display();
            Error::unavailable(format!("the {library} {place} cannot be used: {path} {reason}"))
        }),
    }
}

/// Checks that a file begins as a library of this machine does.
///
/// # Errors
/// What is wrong with the file.
fn check_file(path: &Path) -> std::result::Result<(), String> {
    if !path.exists() {
        return Err("does not exist".to_owned());
    }
    let mut head = [0; 20];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut head));
    match read {
        Ok(()) if head.starts_with(LIBRARY) && head.ends_with(&MACHINE.to_le_bytes()) => Ok(()),
        Ok(()) if head.starts_with(LIBRARY) => Err("is for another machine".to_owned()),
        Ok(()) => Err("is not a library".to_owned()),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Err("is not a library".to_owned()),
        Err(error) => Err(format!("cannot be read: {error}")),
    }
}

/// The first bytes of a library: ELF, with 64 bits, little endian.
const LIBRARY: &[u8] = b"\x7fELF\x02\x01";

/// The number of this machine in ELF.
const MACHINE: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };

/// What a file of a library begins with, for tests that need one.
#[cfg(test)]
pub(crate) fn library_head() -> [u8; 20] {
    let mut head = [0; 20];
    head[..LIBRARY.len()].copy_from_slice(LIBRARY);
    head[18..].copy_from_slice(&MACHINE.to_le_bytes());
    head
}

/// Whether the dynamic loader finds a library by its name.
fn is_of_system(name: &Path) -> bool {
    let path = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let mut folders = env::split_paths(&path).chain(SYSTEM.map(PathBuf::from));
    folders.any(|folder| folder.join(name).exists())
        || fs::read(LOADER_CACHE).is_ok_and(|cache| is_in_cache(&cache, name))
}

fn is_in_cache(cache: &[u8], name: &Path) -> bool {
    let entry = [b"/", name.as_os_str().as_encoded_bytes(), b"\0"].concat();
    cache.windows(entry.len()).any(|bytes| bytes == entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(place: Place, path: &Path) -> Option<String> {
        let found = LibraryLocation { path: path.to_owned(), place };
        check(&found, "X library", "no X was found").err().map(|error| error.message().to_owned())
    }

    #[test]
    fn library_is_installed_if_its_file_is_one_of_this_machine() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("libx.so");
        for place in [Place::Setting, Place::Variable("X_PATH"), Place::Backends, Place::Python] {
            let message = format!("the X library {place} cannot be used: {} does not exist", path.display());
            assert_eq!(reason(place, &path), Some(message));
        }
        let mut other_machine = library_head();
        other_machine[18] ^= 1;
        for (contents, expected) in [
            (&b""[..], "is not a library"),
            (b"\x7fELF", "is not a library"),
            (b"<html><body>Not found</body></html>", "is not a library"),
            (&other_machine, "is for another machine"),
        ] {
            fs::write(&path, contents).unwrap();
            let message =
                format!("the X library {} cannot be used: {} {expected}", Place::Setting, path.display());
            assert_eq!(reason(Place::Setting, &path), Some(message));
        }
        fs::write(&path, library_head()).unwrap();
        for place in [Place::Setting, Place::Variable("X_PATH"), Place::Backends, Place::Python] {
            assert_eq!(reason(place, &path), None, "{place}");
        }
    }

    #[test]
    fn library_of_the_system_is_found_by_the_dynamic_loader() {
        let missing = Some("no X was found".to_owned());
        assert_eq!(reason(Place::System, Path::new("libnereid-has-no-such-library.so")), missing);
        // Every program for Linux has it.
        assert_eq!(reason(Place::System, Path::new("libc.so.6")), None);
    }

    #[test]
    fn loader_cache_is_searched_for_whole_names() {
        let cache = b"glibc-ld.so.cache1.1\0libx.so\0/opt/x/libx.so\0/opt/y/liby.so.2\0";
        for (name, expected) in
            [("libx.so", true), ("liby.so.2", true), ("liby.so", false), ("x.so", false), ("libz.so", false)]
        {
            assert_eq!(is_in_cache(cache, Path::new(name)), expected, "{name}");
        }
    }
}

//! Whether the libraries of frameworks are installed, found out without loading them.

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

/// Checks that the file of a library exists. `library` names the library in messages.
///
/// # Errors
/// The configured file does not exist, or the search found nothing, which `missing` describes.
pub(crate) fn check(found: &LibraryLocation, library: &str, missing: &'static str) -> Result<()> {
    match found.place {
        Place::System if is_of_system(&found.path) => Ok(()),
        Place::System => Err(Error::unavailable(missing)),
        _ if found.path.exists() => Ok(()),
        place => Err(Error::unavailable(format!(
            "the {library} {place} cannot be used: {} does not exist",
            found.path.display()
        ))),
    }
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
    fn library_is_installed_if_its_file_exists() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("libx.so");
        for place in [Place::Setting, Place::Variable("X_PATH"), Place::Backends, Place::Python] {
            let message = format!("the X library {place} cannot be used: {} does not exist", path.display());
            assert_eq!(reason(place, &path), Some(message));
        }
        fs::write(&path, "").unwrap();
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

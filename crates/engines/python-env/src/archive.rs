//! Unpacks an environment's archive: a tar file, optionally compressed with gzip, as written by conda-pack and
//! venv-pack.
//!
//! Absolute links are kept, because the interpreter of a virtual environment is one.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read, Seek as _};
use std::path::Path;

pub use nereid_archives::ArchiveLimits;
use nereid_archives::{Format, Links, inspect_tar, unpack_tar};
use ring::digest::{Context, SHA256};

use crate::Error;

/// Unpacks an archive with this digest into an empty folder.
///
/// # Errors
/// The file is not such an archive, exceeds the limits, has a refused entry, or has changed since the digest was
/// computed. The folder may then contain part of the archive.
pub(crate) fn unpack(
    path: &Path,
    digest: &str,
    folder: &Path,
    limits: ArchiveLimits,
    progress: &dyn Fn(&str),
) -> Result<(), Error> {
    let outcome = || {
        let mut file = nereid_model_files::open(path).map_err(|error| error.to_string())?;
        let format = match Format::of(&mut file) {
            Ok(Format::Zip) => Err("a zip file".to_owned()),
            other => other,
        };
        let format = format.map_err(|other| {
            format!(
                "environments must be tar files, plain or compressed by gzip or zstd; this one is {other}"
            )
        })?;
        let total = inspect_tar(format.tar_reader(&file), limits, None)?;
        file.rewind().map_err(|error| error.to_string())?;
        progress(&format!("unpacking {} ({} MB) to {}", path.display(), total >> 20, folder.display()));
        let mut reader = DigestReader { inner: &file, context: Context::new(&SHA256) };
        unpack_tar(format.tar_reader(&mut reader), folder, Links::Absolute, None, &|done| {
            progress(&format!("unpacking {}: {} of {} MB", path.display(), done >> 20, total >> 20));
        })?;
        io::copy(&mut reader, &mut io::sink()).map_err(|error| error.to_string())?;
        if hex(reader.context) == digest {
            Ok(())
        } else {
            Err("the archive changed while it was read".to_owned())
        }
    };
    outcome().map_err(|cause| Error::Archive { path: path.to_owned(), cause })
}

/// Computes the digest of what passes.
struct DigestReader<'a> {
    inner: &'a File,
    context: Context,
}

impl Read for DigestReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.context.update(&buffer[..count]);
        Ok(count)
    }
}

/// The first 32 hex digits of a digest: unique in practice, and short enough for the paths in scripts, which systems
/// limit.
pub(crate) fn hex(context: Context) -> String {
    context.finish().as_ref()[..16].iter().fold(String::new(), |mut text, byte| {
        // Writing to text does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tar::{Builder, EntryType, Header};

    use super::*;

    /// An archive with one file.
    fn archive() -> Vec<u8> {
        let mut builder = Builder::new(Vec::new());
        let mut header = Header::new_ustar();
        header.set_size(1);
        header.set_mode(0o644);
        builder.append_data(&mut header, "bin/activate", b"a".as_slice()).unwrap();
        builder.into_inner().unwrap()
    }

    fn unpacked(bytes: &[u8], digest: Option<&str>) -> Result<bool, String> {
        let folder = tempfile::tempdir().unwrap();
        let (path, to) = (folder.path().join("archive"), folder.path().join("to"));
        fs::create_dir(&to).unwrap();
        fs::write(&path, bytes).unwrap();
        let mut context = Context::new(&SHA256);
        context.update(bytes);
        let own = hex(context);
        unpack(&path, digest.unwrap_or(&own), &to, ArchiveLimits::default(), &|_| {})
            .map_err(|error| error.to_string())?;
        Ok(to.join("bin/activate").exists())
    }

    #[test]
    fn archive_changed_since_its_digest_is_refused() {
        assert_eq!(unpacked(&archive(), None), Ok(true));
        let error = unpacked(&archive(), Some(&"0".repeat(32))).unwrap_err();
        assert!(error.ends_with("the archive changed while it was read"), "{error}");
    }

    /// An archive of entries with these names, kinds and targets of links. Tools refuse to write some of the names.
    fn archive_of(entries: &[(&str, EntryType, &str)]) -> Vec<u8> {
        let mut builder = Builder::new(Vec::new());
        for (name, kind, target) in entries {
            let mut header = Header::new_ustar();
            header.set_entry_type(*kind);
            header.set_mode(0o644);
            let ustar = header.as_ustar_mut().unwrap();
            ustar.name[..name.len()].copy_from_slice(name.as_bytes());
            ustar.linkname[..target.len()].copy_from_slice(target.as_bytes());
            header.set_size(0);
            header.set_cksum();
            builder.append(&header, io::empty()).unwrap();
        }
        builder.into_inner().unwrap()
    }

    #[test]
    fn archive_that_leads_out_of_its_folder_is_refused() {
        let outside = tempfile::tempdir().unwrap();
        let out = outside.path().to_str().unwrap();
        let file = format!("{out}/written");
        for entries in [
            &[("../written", EntryType::Regular, "")][..],
            &[("bin/../../written", EntryType::Regular, "")],
            &[(file.as_str(), EntryType::Regular, "")],
            &[("bin", EntryType::Symlink, out), ("bin/written", EntryType::Regular, "")],
            &[("bin", EntryType::Symlink, ".."), ("bin/written", EntryType::Regular, "")],
            &[("bin/python", EntryType::Link, "/etc/passwd")],
            &[("bin/python", EntryType::Link, "../archive")],
            &[("bin/null", EntryType::Char, "")],
        ] {
            let error = unpacked(&archive_of(entries), None);
            assert!(error.is_err(), "{entries:?}");
            assert_eq!(fs::read_dir(&outside).unwrap().count(), 0, "{entries:?}");
        }
    }

    #[test]
    fn other_formats_than_tar_are_named() {
        for (bytes, part) in [
            (b"PK\x03\x04".as_slice(), "this one is a zip file"),
            (b"BZh9", "this one is compressed by bzip2"),
            (
                b"x",
                "environments must be tar files, plain or compressed by gzip or zstd; this one is of an unknown format",
            ),
        ] {
            let error = unpacked(bytes, None).unwrap_err();
            assert!(error.contains("/archive: ") && error.contains(part), "{error}");
        }
    }
}

//! The files of a package: in a fixed order, with fixed modes and times, so that a package made twice has the same bytes.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Context as _, Result};

use super::gzip;

/// A file of a package.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub bytes: Vec<u8>,
    pub is_program: bool,
}

impl Entry {
    fn mode(&self) -> u32 {
        if self.is_program { 0o755 } else { 0o644 }
    }
}

/// Files by their paths below the root of the package.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    entries: BTreeMap<String, Entry>,
}

impl Tree {
    pub fn add(&mut self, path: impl Into<String>, bytes: impl Into<Vec<u8>>) {
        self.entries.insert(path.into(), Entry { bytes: bytes.into(), is_program: false });
    }

    pub fn add_program(&mut self, path: impl Into<String>, bytes: impl Into<Vec<u8>>) {
        self.entries.insert(path.into(), Entry { bytes: bytes.into(), is_program: true });
    }

    /// Adds a file of the repository.
    pub fn add_copy(&mut self, path: impl Into<String>, from: &Path) -> Result<()> {
        self.add(path, fs::read(from).with_context(|| format!("cannot read {}", from.display()))?);
        Ok(())
    }

    /// The files, sorted by path.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Entry)> {
        self.entries.iter().map(|(path, entry)| (path.as_str(), entry))
    }

    /// Writes the files below a folder.
    pub fn write(&self, folder: &Path) -> Result<()> {
        for (path, entry) in self.iter() {
            let path = folder.join(path);
            fs::create_dir_all(path.parent().context("a file of a package is in no folder")?)?;
            fs::write(&path, &entry.bytes)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(entry.mode()))?;
        }
        Ok(())
    }

    /// The files as a compressed tar archive, below the folder `top`. All times are `time`, in seconds since 1970.
    pub fn archive(&self, top: &str, time: u64) -> Result<Vec<u8>> {
        let mut archive = tar::Builder::new(Vec::new());
        for (path, entry) in self.iter() {
            let mut header = tar::Header::new_gnu();
            header.set_size(entry.bytes.len() as u64);
            header.set_mode(entry.mode());
            header.set_mtime(time);
            header.set_uid(0);
            header.set_gid(0);
            archive.append_data(&mut header, format!("{top}/{path}"), entry.bytes.as_slice())?;
        }
        gzip(&archive.into_inner()?)
    }
}

/// Writes a package's file, replacing an earlier one at once.
pub fn write_new(path: &Path, bytes: &[u8]) -> Result<()> {
    let folder = path.parent().context("a package is in no folder")?;
    fs::create_dir_all(folder)?;
    // Renamed when it is complete: no reader sees a partial package.
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(bytes)?;
    file.as_file().set_permissions(fs::Permissions::from_mode(0o644))?;
    file.persist(path).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    fn tree(order: &[usize]) -> Tree {
        let mut tree = Tree::default();
        for index in order {
            match index {
                0 => tree.add_program("bin/program", [7; 1000]),
                1 => tree.add("share/doc/a text", "text"),
                _ => tree.add(format!("share/{}/deep", "long".repeat(40)), ""),
            }
        }
        tree
    }

    #[test]
    fn an_archive_has_the_same_bytes_in_any_order_and_at_any_time() {
        let first = tree(&[0, 1, 2]).archive("top-1", 1_000_000_000).unwrap();
        assert_eq!(tree(&[2, 0, 1]).archive("top-1", 1_000_000_000).unwrap(), first);
        assert_ne!(tree(&[0, 1, 2]).archive("top-1", 1_000_000_001).unwrap(), first);
    }

    #[test]
    fn an_archive_contains_every_file_with_its_mode() {
        let archive = tree(&[1, 2, 0]).archive("top", 5).unwrap();
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(archive.as_slice()));
        let mut found = Vec::new();
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).unwrap();
            let header = entry.header();
            assert_eq!((header.mtime().unwrap(), header.uid().unwrap(), header.gid().unwrap()), (5, 0, 0));
            let mode = header.mode().unwrap();
            found.push((entry.path().unwrap().display().to_string(), mode, bytes.len()));
        }
        let long = format!("top/share/{}/deep", "long".repeat(40));
        let expected =
            [("top/bin/program", 0o755, 1000), ("top/share/doc/a text", 0o644, 4), (&long, 0o644, 0)];
        assert_eq!(found, expected.map(|(path, mode, size)| (path.to_owned(), mode, size)));
    }

    #[test]
    fn files_are_written_with_their_modes() {
        let folder = tempfile::tempdir().unwrap();
        tree(&[0, 1]).write(folder.path()).unwrap();
        for (path, mode) in [("bin/program", 0o755), ("share/doc/a text", 0o644)] {
            let found = fs::metadata(folder.path().join(path)).unwrap().permissions().mode();
            assert_eq!(found & 0o777, mode, "{path}");
        }
    }
}

//! The text files of the repository: all that git does not ignore, committed or not.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use ignore::WalkBuilder;

/// A file and its text.
pub struct TextFile {
    /// Relative to the root, with forward slashes.
    pub path: String,
    /// The whole text.
    pub text: String,
}

impl TextFile {
    /// The last part of the path.
    pub fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }
}

/// Reads every UTF-8 file, sorted by path. Other files are data and not checked.
pub fn text_files(root: &Path) -> Result<Vec<TextFile>> {
    let mut files = Vec::new();
    let walk = WalkBuilder::new(root)
        .hidden(false)
        // A released archive has the same files, but no `.git`.
        .require_git(false)
        // What one developer ignores everywhere is still part of this tree.
        .git_global(false)
        .parents(false)
        .filter_entry(|entry| entry.file_name() != ".git")
        .sort_by_file_path(Path::cmp)
        .build();
    for entry in walk {
        let entry = entry.context("cannot walk the repository")?;
        if !entry.file_type().is_some_and(|kind| kind.is_file()) {
            continue;
        }
        let bytes =
            fs::read(entry.path()).with_context(|| format!("cannot read {}", entry.path().display()))?;
        let Ok(text) = String::from_utf8(bytes) else { continue };
        let relative = entry.path().strip_prefix(root)?;
        files.push(TextFile { path: relative.to_string_lossy().replace('\\', "/"), text });
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_and_binary_files_are_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        fs::create_dir_all(root.join("target")).unwrap();
        fs::create_dir_all(root.join(".git")).unwrap();
        fs::create_dir_all(root.join(".ci")).unwrap();
        fs::write(root.join(".gitignore"), "/target/\n").unwrap();
        fs::write(root.join("target/built.rs"), "").unwrap();
        fs::write(root.join(".git/HEAD"), "ref").unwrap();
        fs::write(root.join(".ci/run"), "exit 0").unwrap();
        fs::write(root.join("picture.png"), [0x89, 0x50, 0xff]).unwrap();
        fs::write(root.join("a.rs"), "//! a").unwrap();

        let files = text_files(root).unwrap();
        let paths: Vec<_> = files.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(paths, [".ci/run", ".gitignore", "a.rs"]);
        assert_eq!(files[2].text, "//! a");
        assert_eq!(files[0].name(), "run");
    }
}

//! Documents: the required ones exist, and so do the paths they name.

use std::path::Path;

use pulldown_cmark::{Event, Parser, Tag};

use super::Problem;
use super::tree::TextFile;

/// The required documents.
const REQUIRED: &[&str] =
    &["ARCHITECTURE.md", "CHANGELOG.md", "COMPATIBILITY.md", "CONTRIBUTING.md", "LICENSE", "README.md"];

/// Documents whose paths are checked, and a folder with more. The changelog is excluded because it describes the past.
const CHECKED: &[&str] = &["ARCHITECTURE.md", "COMPATIBILITY.md", "CONTRIBUTING.md", "README.md"];
const CHECKED_FOLDER: &str = "docs/";

/// Top-level folders of this repository: a path in one of them is checked even if the folder no longer exists.
const ROOMS: &[&str] = &[".cargo", ".ci", "benches", "crates", "docs", "examples", "proto", "tests", "xtask"];

/// Extensions that make a bare file name one of ours.
const LONE_ENDINGS: &[&str] = &[".md", ".toml"];

/// Checks that every required document is among the files.
pub fn check_required(files: &[TextFile]) -> Vec<Problem> {
    REQUIRED
        .iter()
        .filter(|name| !files.iter().any(|file| file.path == **name))
        .map(|name| Problem::new(name, 1, "this document is missing"))
        .collect()
}

/// Checks the paths that a document names in backticks, and its links to files. `files` has the files of the repository.
pub fn check_paths(file: &TextFile, files: &[TextFile], root: &Path) -> Vec<Problem> {
    let is_document = CHECKED.contains(&file.path.as_str())
        || file.path.starts_with(CHECKED_FOLDER) && file.path.ends_with(".md");
    if !is_document {
        return Vec::new();
    }
    let folder = root.join(Path::new(&file.path).parent().unwrap_or(Path::new("")));
    let mut problems = Vec::new();
    for (event, range) in Parser::new(&file.text).into_offset_iter() {
        let (named, candidates) = match &event {
            Event::Code(text) if is_path(text, root) => {
                (&**text, vec![root.join(&**text), folder.join(&**text)])
            }
            Event::Code(text) if is_short_path(text) && !names_source(text, files) => (&**text, Vec::new()),
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                match linked(dest_url) {
                    Some(path) => (&**dest_url, vec![folder.join(path)]),
                    None => continue,
                }
            }
            _ => continue,
        };
        if !candidates.iter().any(|path| exists(path)) {
            let line = file.text[..range.start].matches('\n').count() + 1;
            problems.push(Problem::new(&file.path, line, format!("names `{named}`, which does not exist")));
        }
    }
    problems
}

/// A folder or file as written: `name/` must be a folder.
fn exists(path: &Path) -> bool {
    if path.as_os_str().to_string_lossy().ends_with('/') { path.is_dir() } else { path.exists() }
}

/// Whether code in a text looks like a path in this repository.
fn is_path(text: &str, root: &Path) -> bool {
    if !text.chars().all(|c| c.is_ascii_alphanumeric() || "._-/".contains(c)) {
        return false;
    }
    match text.split_once('/') {
        Some((first, _)) => !first.is_empty() && (ROOMS.contains(&first) || root.join(first).is_dir()),
        None => LONE_ENDINGS.iter().any(|ending| text.len() > ending.len() && text.ends_with(ending)),
    }
}

/// Whether code in a text looks like a Rust file of a crate, written without the folders above the crate: `core/src/model.rs`,
/// or `core/model.rs`.
fn is_short_path(text: &str) -> bool {
    let is_plain = text.chars().all(|c| c.is_ascii_alphanumeric() || "._-/".contains(c));
    is_plain && text.ends_with(".rs") && text.find('/').is_some_and(|slash| slash > 0)
}

/// Whether a path ends like the short one, folders named `src` aside.
fn names_source(short: &str, files: &[TextFile]) -> bool {
    let without_src =
        |path: &str| path.split('/').filter(|name| *name != "src").collect::<Vec<_>>().join("/");
    let short = format!("/{}", without_src(short));
    files.iter().any(|file| without_src(&file.path).ends_with(&short))
}

/// The target file of a link, if it is one of ours.
fn linked(url: &str) -> Option<&str> {
    let path = url.split_once('#').map_or(url, |(path, _)| path);
    let is_elsewhere = path.contains(':') || path.starts_with('/');
    (!path.is_empty() && !is_elsewhere).then_some(path)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn file(path: &str, text: &str) -> TextFile {
        TextFile { path: path.to_owned(), text: text.to_owned() }
    }

    /// Checks a document in a tree that has `crates/server/core/src/lib.rs`, `deny.toml` and `docs/start.md`.
    #[track_caller]
    fn check(path: &str, text: &str, expected: &[&str]) {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("crates/server/core/src")).unwrap();
        fs::create_dir_all(folder.path().join("docs")).unwrap();
        for name in ["crates/server/core/src/lib.rs", "deny.toml", "docs/start.md"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        let files = [file("crates/server/core/src/lib.rs", "")];
        let problems = check_paths(&file(path, text), &files, folder.path());
        let found: Vec<_> = problems.iter().map(Problem::to_string).collect();
        assert_eq!(found, expected, "{text}");
    }

    #[test]
    fn missing_path_is_reported_with_its_line() {
        check(
            "README.md",
            "One.\n\nSee `crates/server/core/src/lib.rs`\nand `crates/gone/`, `proto/a.proto`, `gone.toml`.\n",
            &[
                "README.md:4: names `crates/gone/`, which does not exist",
                "README.md:4: names `proto/a.proto`, which does not exist",
                "README.md:4: names `gone.toml`, which does not exist",
            ],
        );
        check(
            "README.md",
            "`docs/start.md/`",
            &["README.md:1: names `docs/start.md/`, which does not exist"],
        );
    }

    #[test]
    fn paths_that_exist_are_fine_from_the_root_and_from_the_document() {
        check("README.md", "`crates/server/core`, `crates/server/core/`, `deny.toml`, `docs/start.md`", &[]);
        check("docs/more.md", "`start.md`, `crates/server/core/src/lib.rs`", &[]);
    }

    #[test]
    fn short_path_of_a_source_file_ends_a_path_of_the_repository() {
        check("README.md", "`core/src/lib.rs`, `core/lib.rs`, `server/core/src/lib.rs`, `lib.rs`", &[]);
        for gone in ["core/src/gone.rs", "ore/lib.rs", "models/core/lib.rs", "core/tests/lib.rs"] {
            check(
                "docs/more.md",
                &format!("See `{gone}`."),
                &[&format!("docs/more.md:1: names `{gone}`, which does not exist")],
            );
        }
    }

    #[test]
    fn foreign_paths_are_ignored() {
        check(
            "README.md",
            "`v2/health/ready`, `text/plain`, `crates/*`, `crates/<name>/`, `config.pbtxt`, `/models/a`, `.md`\n\n\
             ```\ncrates/gone\n```\n",
            &[],
        );
    }

    #[test]
    fn links_to_files_are_followed_and_others_not() {
        check(
            "README.md",
            "[a](docs/gone.md#b)",
            &["README.md:1: names `docs/gone.md#b`, which does not exist"],
        );
        check("README.md", "[a](docs/start.md#b) [c](#d) [e](https://example.org/f) [g](mailto:h@i)", &[]);
        check("docs/more.md", "[a](start.md) [b](../deny.toml)", &[]);
    }

    #[test]
    fn other_texts_are_not_checked() {
        check("CHANGELOG.md", "`crates/gone/`", &[]);
        check("crates/server/core/notes.md", "`crates/gone/`", &[]);
    }

    #[test]
    fn a_missing_document_is_named() {
        let mut files: Vec<_> = REQUIRED.iter().map(|name| file(name, "")).collect();
        assert_eq!(check_required(&files), []);
        files.retain(|file| file.path != "LICENSE");
        files.push(file("docs/LICENSE", ""));
        let found: Vec<_> = check_required(&files).iter().map(Problem::to_string).collect();
        assert_eq!(found, ["LICENSE:1: this document is missing"]);
    }
}

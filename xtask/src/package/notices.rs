//! The third-party notices: the licences of all crates in the program, each text once.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use ignore::WalkBuilder;

use super::components::Component;
use crate::project::Project;

/// How files with licences and notices begin, in capitals.
const NAMES: [&str; 6] = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"];

/// How deep such files are in a crate's folder: sources in C that a crate contains are a few folders down.
const DEPTH: usize = 4;

/// The notices of the pages for browsers, which are copies of packages of npm.
const PAGES: &str = "crates/faces/console/pages/vendor/NOTICE.txt";

/// Writes the notices of these crates and of the other code in the program.
pub fn text(project: &Project, components: &[Component]) -> Result<String> {
    let mut text = "Nereid contains code of the projects below. Each is used under the licence that is named with it; where there is\n\
                    a choice (OR), any of them. Texts that several projects share are printed once, after the list.\n\n"
        .to_owned();
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for component in components.iter().filter(|component| !component.is_own()) {
        let Component { name, version, licence, repository, .. } = component;
        writeln!(text, "{name} {version}: {licence}")?;
        if let Some(repository) = repository {
            writeln!(text, "    {repository}")?;
        }
        if !component.authors.is_empty() {
            writeln!(text, "    by {}", component.authors.join(", "))?;
        }
        for licence in licence_texts(&component.folder)? {
            texts.entry(licence).or_default().push(format!("{name} {version}"));
        }
    }
    text.push_str(
        "Rust's standard library: MIT OR Apache-2.0\n    https://github.com/rust-lang/rust\n    by The Rust Project \
         Developers\n",
    );
    let pages =
        fs::read_to_string(project.root.join(PAGES)).with_context(|| format!("cannot read {PAGES}"))?;
    write!(text, "\n{RULE}\nPages of the console\n\n{pages}")?;
    // Common texts last: they are long, and everybody knows them.
    let mut texts: Vec<_> = texts.into_iter().collect();
    texts.sort_by(|(one, of_one), (other, of_other)| of_one.len().cmp(&of_other.len()).then(one.cmp(other)));
    for (licence, of) in texts {
        write!(text, "\n{RULE}\n{}\n\n{licence}\n", of.join(", "))?;
    }
    Ok(text)
}

const RULE: &str = "--------------------------------------------------------------------------------";

/// The texts in a crate's folder, without differences of white space at the ends of lines.
fn licence_texts(folder: &Path) -> Result<Vec<String>> {
    let mut texts = Vec::new();
    let walk = WalkBuilder::new(folder)
        .standard_filters(false)
        .max_depth(Some(DEPTH))
        .sort_by_file_path(Path::cmp)
        .build();
    for entry in walk {
        let entry = entry.with_context(|| format!("cannot read {}", folder.display()))?;
        let name = entry.file_name().to_string_lossy().to_uppercase();
        let is_code = [".RS", ".C", ".H", ".PY", ".TOML"].iter().any(|ending| name.ends_with(ending));
        if NAMES.iter().any(|known| name.starts_with(known)) && !is_code && entry.path().is_file() {
            let text = String::from_utf8_lossy(&fs::read(entry.path())?).into_owned();
            let lines: Vec<_> = text.lines().map(str::trim_end).collect();
            let text = lines.join("\n").trim_matches('\n').to_owned();
            if !text.is_empty() && !texts.contains(&text) {
                texts.push(text);
            }
        }
    }
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use super::super::components;
    use super::super::elf::Machine;
    use super::*;

    #[test]
    fn every_crate_is_named_and_a_shared_text_is_printed_once() {
        let project = Project::find().unwrap();
        let components = components::of_program(&project, Machine::X86_64).unwrap();
        let text = text(&project, &components).unwrap();
        for component in components.iter().filter(|component| !component.is_own()) {
            assert!(
                text.contains(&format!("\n{} {}: ", component.name, component.version)),
                "{}",
                component.name
            );
        }
        assert!(!text.contains("nereid-core"));
        // Of mimalloc, in C within a crate; of a page; of a crate.
        for notice in ["Microsoft Corporation", "preact-htm.js", "Tokio Contributors"] {
            assert!(text.contains(notice), "{notice}");
        }
    }

    #[test]
    fn texts_are_found_by_name_and_compared_without_trailing_blanks() {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in [
            ("LICENSE-MIT", "a  \nb\n"),
            ("licence.txt", "a\nb"),
            ("c/deep/COPYING", "c\r\n"),
            ("src/license.rs", "code"),
            ("README", "no"),
            ("NOTICE", "\n"),
        ] {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        assert_eq!(licence_texts(folder.path()).unwrap(), ["a\nb", "c"]);
    }
}

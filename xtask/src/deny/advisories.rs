//! The RustSec advisories that the repository keeps, so that tests need no network.
//!
//! `advisories.md` holds the metadata of every advisory about a crate, without its prose. cargo-deny reads databases only as git
//! repositories, so the file is unfolded into one.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use ignore::WalkBuilder;

use crate::project::{Project, show};

/// The file with all advisories, from the root of the repository.
const FILE: &str = "xtask/advisories.md";
/// What starts an advisory, in that file as in the database's own.
const START: &str = "```toml\n";
/// The folder in which cargo-deny looks for its default database.
const DATABASE: &str = "advisory-db-3157b0e258782691";
/// Members of an advisory's metadata that decide nothing.
const SKIPPED: [&str; 6] = ["aliases", "categories", "keywords", "license", "references", "related"];

/// One advisory: its crate, its id, its metadata in TOML, and its title.
#[derive(Debug, PartialEq, Eq)]
struct Advisory {
    package: String,
    id: String,
    metadata: String,
    title: String,
}

impl Advisory {
    /// Reads what follows [`START`].
    fn parse(text: &str) -> Result<Self> {
        let (metadata, rest) = text.split_once("```").context("the metadata does not end")?;
        let title = rest.lines().find_map(|line| line.strip_prefix("# ")).context("no title")?;
        let value = |key: &str| {
            let line =
                metadata.lines().find_map(|line| line.strip_prefix(key)?.trim_start().strip_prefix('='));
            line.map(|value| value.trim().trim_matches('"').to_owned()).with_context(|| format!("no {key}"))
        };
        Ok(Self {
            package: value("package")?,
            id: value("id")?,
            metadata: metadata.to_owned(),
            title: title.trim().to_owned(),
        })
    }

    /// The text in the database's format.
    fn text(&self) -> String {
        format!("{START}{}```\n\n# {}\n", self.metadata, self.title)
    }

    /// The same without members that decide nothing; these may span lines.
    fn shortened(mut self) -> Self {
        let mut kept = String::new();
        let mut open = 0_i32;
        for line in self.metadata.lines() {
            let key = line.split('=').next().unwrap_or_default().trim();
            let skipped = open > 0 || SKIPPED.contains(&key);
            if skipped {
                open += brackets(line);
            } else if !line.trim().is_empty() {
                kept += line;
                kept.push('\n');
            }
        }
        self.metadata = kept;
        self
    }
}

/// How many brackets a line opens and leaves open.
fn brackets(line: &str) -> i32 {
    line.chars().fold(0, |open, character| match character {
        '[' => open + 1,
        ']' => open - 1,
        _ => open,
    })
}

/// Unfolds the kept advisories into a database. Returns the folder for cargo-deny's `db-path`.
pub fn unfold(project: &Project) -> Result<PathBuf> {
    let path = project.root.join(FILE);
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let advisories = parse(&text)?;
    let root = project.scratch("advisories");
    let database = root.join(DATABASE);
    if fs::read_to_string(database.join("source")).is_ok_and(|source| source == text) {
        return Ok(root);
    }
    if database.exists() {
        fs::remove_dir_all(&database).with_context(|| format!("cannot remove {}", database.display()))?;
    }
    for advisory in &advisories {
        let folder = database.join("crates").join(&advisory.package);
        fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        write(&folder.join(format!("{}.md", advisory.id)), &advisory.text())?;
    }
    let git = |arguments: &[&str]| {
        let mut git = project.command("git");
        git.arg("-C").arg(&database).args(["-c", "user.name=xtask", "-c", "user.email=xtask@localhost"]);
        show(git.args(arguments))
    };
    git(&["init", "--quiet"])?;
    git(&["add", "crates"])?;
    git(&["commit", "--quiet", "--message", "Advisories"])?;
    // Written last: a database without it is incomplete.
    write(&database.join("source"), &text)?;
    Ok(root)
}

/// Replaces the kept advisories by those of a clone of the database.
pub fn update(project: &Project, clone: &Path) -> Result<()> {
    let mut advisories = Vec::new();
    for entry in WalkBuilder::new(clone.join("crates")).sort_by_file_path(Ord::cmp).build() {
        let path = entry?.into_path();
        if path.extension().is_some_and(|extension| extension == "md") {
            let text =
                fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            let text =
                text.strip_prefix(START).with_context(|| format!("{} has no metadata", path.display()))?;
            let advisory =
                Advisory::parse(text).with_context(|| format!("cannot read {}", path.display()))?;
            advisories.push(advisory.shortened());
        }
    }
    let newest = advisories.iter().map(|advisory| &advisory.id).max();
    let Some(newest) = newest else { bail!("{} has no advisories", clone.display()) };
    let mut text = format!(
        "<!--\nMetadata of RustSec's advisory database (github.com/rustsec/advisory-db), up to {newest}, without the prose.\n\
         CC0-1.0; advisories imported from GitHub's database: CC-BY-4.0.\n\
         Made by `cargo xtask deny --update-advisories CLONE`.\n-->\n"
    );
    for advisory in &advisories {
        write!(text, "\n{}", advisory.text())?;
    }
    write(&project.root.join(FILE), &text)?;
    println!("{FILE}: {} advisories, up to {newest}", advisories.len());
    Ok(())
}

fn parse(text: &str) -> Result<Vec<Advisory>> {
    let mut parts = text.split(START);
    parts.next();
    let advisories = parts.map(Advisory::parse).collect::<Result<Vec<_>>>()?;
    if advisories.is_empty() {
        bail!("{FILE} has no advisories");
    }
    Ok(advisories)
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: &str = "[advisory]\nid = \"RUSTSEC-2024-0003\"\npackage = \"h2\"\nkeywords = [\n  \"http\",\n  \"http2\",\n]\n\
        date = \"2024-01-17\"\naliases = [\"X\"]\n\n[versions]\npatched = [\"^0.3.24\", \">= 0.4.2\"]\n```\n\n# Resource exhaustion\n\nProse.\n";

    #[test]
    fn shortened_advisory_keeps_what_decides() {
        let advisory = Advisory::parse(LONG).unwrap().shortened();
        assert_eq!((advisory.package.as_str(), advisory.id.as_str()), ("h2", "RUSTSEC-2024-0003"));
        assert_eq!(
            advisory.text(),
            "```toml\n[advisory]\nid = \"RUSTSEC-2024-0003\"\npackage = \"h2\"\ndate = \"2024-01-17\"\n[versions]\n\
             patched = [\"^0.3.24\", \">= 0.4.2\"]\n```\n\n# Resource exhaustion\n"
        );
    }

    #[test]
    fn file_of_advisories_is_read_back() {
        let advisory = Advisory::parse(LONG).unwrap().shortened();
        let text = format!("<!-- head -->\n\n{}\n{}", advisory.text(), advisory.text());
        assert_eq!(parse(&text).unwrap(), [advisory, Advisory::parse(LONG).unwrap().shortened()]);
        assert!(parse("<!-- head -->").is_err());
        assert!(parse("```toml\nid = \"x\"\n").is_err());
    }
}

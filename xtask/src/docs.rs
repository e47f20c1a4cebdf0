//! The documentation as a site: pages with a menu and a search for each version, and every link and heading checked.
//!
//! The pages are the repository's Markdown files as they are, so readers of the repository need no site. The tool is MkDocs.

mod versions;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::Args;
use ignore::WalkBuilder;

use crate::project::{Project, show};
use crate::venv::Venv;
use versions::{TEMPLATE, Version, publish};

const PACKAGES: &str = "mkdocs==1.6.1\n";

/// Folders whose files pages link to. Of all others, only pages are part of the site.
const FOLDERS: &[&str] = &["deploy", "docs", "examples", "proto"];

/// The settings. Links of any kind that lead nowhere are warnings, which `--strict` makes errors.
const SETTINGS: &str = "\
site_name: Nereid
docs_dir: source
site_dir: built
use_directory_urls: false
theme: {name: readthedocs, highlightjs: false, custom_dir: theme}
extra_css: [versions.css]
plugins: [search]
markdown_extensions: [tables, fenced_code, sane_lists, toc]
validation:
  omitted_files: ignore
  links: {not_found: warn, absolute_links: warn, unrecognized_links: warn, anchors: warn}
";

/// How the list of versions looks, at the top of a page; and the cells of tables, which the theme would not wrap.
const STYLE: &str = "\
.wy-table-responsive table td, .wy-table-responsive table th { white-space: normal; }
.versions { float: right; }
.versions summary { cursor: pointer; }
.versions > a { display: block; }
.versions > a[aria-current] { font-weight: bold; }
.versions + .admonition { clear: right; }
";

/// The version and the place of the site.
#[derive(Args, Default)]
pub struct Docs {
    /// Build the pages of a release, such as 0.1.0, rather than the unreleased ones
    #[arg(long, value_name = "VERSION")]
    release: Option<Version>,
    /// The site, with its other versions [default: xtask/docs/site in the target folder]
    #[arg(long, value_name = "FOLDER")]
    site: Option<PathBuf>,
    /// Where the site is published: pages then name the newest release's as the one for search engines
    #[arg(long)]
    url: Option<String>,
}

/// Builds a version of the site, and prints the site's place.
///
/// # Errors
/// A link leads nowhere, or MkDocs cannot be installed.
pub fn run(project: &Project, docs: &Docs) -> Result<()> {
    let folder = project.scratch("docs");
    let source = folder.join("source");
    if source.exists() {
        fs::remove_dir_all(&source).context("cannot remove the last site's source")?;
    }
    for file in files(&project.root)? {
        copy(&project.root.join(&file), &source.join(&file))
            .with_context(|| format!("cannot copy {}", file.display()))?;
    }
    fs::write(source.join("versions.css"), STYLE).context("cannot write the style")?;
    fs::create_dir_all(folder.join("theme"))?;
    fs::write(folder.join("theme/main.html"), TEMPLATE).context("cannot write the template")?;
    let settings = folder.join("mkdocs.yml");
    fs::write(&settings, format!("{SETTINGS}{}", menu(&source)?)).context("cannot write the settings")?;
    let venv = Venv::with(project, "docs-environment", PACKAGES)?;
    show(
        venv.command(project, &["-m", "mkdocs", "build", "--strict", "--quiet", "--config-file"])
            .arg(settings),
    )?;
    let site = docs.site.clone().unwrap_or_else(|| folder.join("site"));
    fs::create_dir_all(&site).with_context(|| format!("cannot make {}", site.display()))?;
    let version = docs.release.unwrap_or(Version::Development);
    publish(&folder.join("built"), &site, version, docs.url.as_deref())?;
    println!("documentation: {}", site.join("index.html").display());
    Ok(())
}

/// The files of the site, relative to the root.
fn files(root: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in WalkBuilder::new(root).require_git(false).git_global(false).parents(false).build() {
        let entry = entry.context("cannot walk the repository")?;
        let relative = entry.path().strip_prefix(root)?;
        let is_page = relative.extension().is_some_and(|extension| extension == "md");
        let is_linked =
            FOLDERS.iter().any(|folder| relative.starts_with(folder)) || relative == Path::new("LICENSE");
        if entry.file_type().is_some_and(|kind| kind.is_file()) && (is_page || is_linked) {
            files.push(relative.to_owned());
        }
    }
    Ok(files)
}

/// Copies a file. Pages lose what only rustdoc understands.
fn copy(from: &Path, to: &Path) -> Result<()> {
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder)?;
    }
    if from.extension().is_some_and(|extension| extension == "md") {
        fs::write(to, for_site(&fs::read_to_string(from)?))?;
    } else {
        fs::copy(from, to)?;
    }
    Ok(())
}

/// The page, with kinds of blocks that MkDocs knows.
fn for_site(page: &str) -> String {
    page.replace("```rust,no_run\n", "```rust\n")
}

/// The menu: the overview's pages in the order of its table, then all others that belong to users.
fn menu(source: &Path) -> Result<String> {
    let overview = fs::read_to_string(source.join("docs/README.md")).context("cannot read docs/README.md")?;
    let mut menu = String::from("nav:\n  - README.md\n  - docs/README.md\n");
    for page in pages(&overview) {
        menu.push_str(&format!("  - docs/{page}\n"));
    }
    menu.push_str("  - COMPATIBILITY.md\n  - ARCHITECTURE.md\n  - CONTRIBUTING.md\n  - CHANGELOG.md\n");
    Ok(menu)
}

/// The pages of the same folder that a page links to, in order, each once.
fn pages(page: &str) -> Vec<&str> {
    let mut pages = Vec::new();
    for link in page.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
        if link.ends_with(".md") && !link.contains('/') && !pages.contains(&link) {
            pages.push(link);
        }
    }
    pages
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn menus_have_each_page_of_the_folder_once() {
        let page = "[a](b.md), [c](../UP.md), [d](e.md#part), [f](g.md) and [b](b.md) of [x](https://h/x.md)";
        assert_eq!(pages(page), ["b.md", "g.md"]);
        assert!(pages("nothing ](").is_empty());
    }

    #[test]
    fn kinds_of_blocks_are_plain() {
        assert_eq!(for_site("```rust,no_run\nlet a;\n```\n"), "```rust\nlet a;\n```\n");
    }

    #[test]
    fn pages_of_all_folders_and_files_of_some_are_on_the_site() {
        let folder = tempfile::tempdir().unwrap();
        for file in ["README.md", "docs/a.md", "docs/a.svg", "crates/x/README.md", "crates/x/x.rs", "LICENSE"]
        {
            let path = folder.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let mut found = files(folder.path()).unwrap();
        found.sort();
        let expected = ["LICENSE", "README.md", "crates/x/README.md", "docs/a.md", "docs/a.svg"];
        assert_eq!(found, expected.map(PathBuf::from));
    }
}

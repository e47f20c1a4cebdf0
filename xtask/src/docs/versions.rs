//! The versions of the site: a folder for each release, one for what is not released, and links between their pages.
//!
//! Pages are built with marks. Each build fills them again in all folders, so the pages of old releases link to newer ones without a
//! script. The rest of an old release stays as it was built.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};
use std::fs;
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context as _, Result, bail};
use ignore::WalkBuilder;

/// A template of MkDocs's theme that places the marks.
pub const TEMPLATE: &str = r#"{%- extends "base.html" %}
{%- block site_meta %}{{ super() }}<!--canonical--><!--/canonical-->{% endblock %}
{%- block content %}<!--versions--><!--/versions--><!--notice--><!--/notice-->{{ super() }}{% endblock %}
"#;

/// The folder with a copy of the newest release.
const LATEST: &str = "latest";

const HOME: &str = "index.html";

/// A version of the documentation, in the order of their age.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// A release: later ones with the same two numbers take its place.
    Release(u64, u64),
    /// The pages of an unreleased checkout.
    Development,
}

impl FromStr for Version {
    type Err = anyhow::Error;

    /// Reads a release (`0.1` or `0.1.2`), or the name of a folder.
    fn from_str(text: &str) -> Result<Self> {
        if text == "dev" {
            return Ok(Self::Development);
        }
        let numbers: Result<Vec<u64>, _> = text.split('.').map(str::parse).collect();
        match numbers.as_deref() {
            Ok(&[major, minor] | &[major, minor, _]) => Ok(Self::Release(major, minor)),
            _ => bail!("'{text}' is not a release: expected numbers such as 0.1.2"),
        }
    }
}

impl fmt::Display for Version {
    /// The name of its folder.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Release(major, minor) => write!(f, "{major}.{minor}"),
            Self::Development => f.write_str("dev"),
        }
    }
}

/// The pages of each folder, by their paths.
struct Site<'a> {
    folder: &'a Path,
    /// Where the site is published.
    url: Option<&'a str>,
    versions: BTreeMap<Version, BTreeSet<String>>,
}

/// Puts a version that was built into the site, in the place of an older build, and links all versions.
///
/// # Errors
/// A link of the site leads nowhere.
pub fn publish(built: &Path, site: &Path, version: Version, url: Option<&str>) -> Result<()> {
    let home = site.join(version.to_string());
    replace(&home, built)?;
    let site = Site::read(site, url.map(|url| url.trim_end_matches('/')))?;
    if let Some(newest) = site.newest() {
        replace(&site.folder.join(LATEST), &site.folder.join(newest.to_string()))?;
    }
    for (version, pages) in &site.versions {
        site.link(&version.to_string(), *version, pages)?;
        if Some(*version) == site.newest() {
            site.link(LATEST, *version, pages)?;
        }
    }
    fs::write(site.folder.join(HOME), site.entrance())?;
    check(site.folder)
}

impl<'a> Site<'a> {
    fn read(folder: &'a Path, url: Option<&'a str>) -> Result<Self> {
        let mut versions = BTreeMap::new();
        for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
            let entry = entry?;
            let name = entry.file_name();
            let version = name.to_str().and_then(|name| name.parse::<Version>().ok());
            if let Some(version) = version.filter(|version| *name == *version.to_string()) {
                versions.insert(version, pages(&entry.path())?);
            }
        }
        Ok(Self { folder, url, versions })
    }

    /// The newest release.
    fn newest(&self) -> Option<Version> {
        self.versions.keys().rev().copied().find(|version| *version != Version::Development)
    }

    /// The folder whose pages are those to read, for readers without a choice.
    fn preferred(&self) -> &'static str {
        if self.newest().is_some() { LATEST } else { "dev" }
    }

    /// Fills the marks of a folder's pages.
    fn link(&self, folder: &str, version: Version, pages: &BTreeSet<String>) -> Result<()> {
        for page in pages {
            let path = self.folder.join(folder).join(page);
            let mut text = fs::read_to_string(&path)?;
            for (mark, content) in [
                ("canonical", self.canonical(folder, page)),
                ("versions", self.chooser(version, page)),
                ("notice", self.notice(version, page)),
            ] {
                text = filled(text, mark, &content);
            }
            fs::write(&path, text)?;
        }
        Ok(())
    }

    /// The address that search engines show for all versions of a page.
    fn canonical(&self, folder: &str, page: &str) -> String {
        let Some(url) = self.url else { return String::new() };
        let newest = self.newest().and_then(|version| self.versions.get(&version));
        let folder = if newest.is_some_and(|pages| pages.contains(page)) { LATEST } else { folder };
        format!(r#"<link rel="canonical" href="{url}/{folder}/{page}">"#)
    }

    /// A list of links to this page in each version.
    fn chooser(&self, version: Version, page: &str) -> String {
        let mut text = format!(r#"<details class="versions"><summary>Version {version}</summary>"#);
        for other in self.versions.keys().rev() {
            let label = match other {
                Version::Release(..) if Some(*other) == self.newest() => format!("{other} (latest)"),
                _ => other.to_string(),
            };
            let current = if *other == version { r#" aria-current="true""# } else { "" };
            // Writing to a string cannot fail.
            let _ = write!(text, r#"<a href="{}"{current}>{label}</a> "#, self.same(*other, page));
        }
        text.push_str("</details>");
        text
    }

    /// A warning on pages of other versions than the newest release.
    fn notice(&self, version: Version, page: &str) -> String {
        let Some(newest) = self.newest().filter(|newest| *newest != version) else { return String::new() };
        let what = match version {
            Version::Release(..) => format!("This page describes release {version}."),
            Version::Development => "This page describes what is not released yet.".to_owned(),
        };
        let link = self.same(newest, page);
        format!(
            r#"<div class="admonition warning"><p>{what} The newest release is <a href="{link}">{newest}</a>.</p></div>"#
        )
    }

    /// The page of another version, or its first one if it has no such page, as a link from any folder.
    fn same(&self, version: Version, page: &str) -> String {
        let has_it = self.versions.get(&version).is_some_and(|pages| pages.contains(page));
        let folder = match version {
            Version::Release(..) if Some(version) == self.newest() => LATEST.to_owned(),
            _ => version.to_string(),
        };
        let up = "../".repeat(page.matches('/').count() + 1);
        format!("{up}{folder}/{}", if has_it { page } else { HOME })
    }

    /// The page of the site itself, which leads to the newest release.
    fn entrance(&self) -> String {
        let to = format!("{}/{HOME}", self.preferred());
        format!(
            "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Nereid</title>\
             <meta http-equiv=\"refresh\" content=\"0; url={to}\"></head><body><a href=\"{to}\">Nereid</a></body></html>\n"
        )
    }
}

/// The text with this content between the two ends of a mark. The page of the search has but the first one.
fn filled(text: String, mark: &str, content: &str) -> String {
    let (start, end) = (format!("<!--{mark}-->"), format!("<!--/{mark}-->"));
    let ends = text.split_once(&start).and_then(|(before, rest)| Some((before, rest.split_once(&end)?.1)));
    match ends {
        Some((before, after)) => format!("{before}{start}{content}{end}{after}"),
        None => text,
    }
}

/// The pages below a folder that the theme made. HTML files of examples have no marks.
fn pages(folder: &Path) -> Result<BTreeSet<String>> {
    let mut pages = BTreeSet::new();
    for path in files(folder)? {
        if path.ends_with(".html")
            && fs::read_to_string(folder.join(&path)).is_ok_and(|text| text.contains("<!--canonical-->"))
        {
            pages.insert(path);
        }
    }
    Ok(pages)
}

/// The files below a folder, by their paths in it.
fn files(folder: &Path) -> Result<Vec<String>> {
    let mut files = Vec::new();
    for entry in WalkBuilder::new(folder).standard_filters(false).build() {
        let entry = entry.context("cannot walk the site")?;
        if entry.file_type().is_some_and(|kind| kind.is_file()) {
            let path = entry.path().strip_prefix(folder)?;
            files.push(path.to_str().context("the path of a file of the site is not UTF-8")?.to_owned());
        }
    }
    Ok(files)
}

/// Replaces a folder by a copy of another one.
fn replace(folder: &Path, by: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    for file in files(by)? {
        let to = folder.join(&file);
        if let Some(parent) = to.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::copy(by.join(&file), &to).with_context(|| format!("cannot write {}", to.display()))?;
    }
    Ok(())
}

/// Follows the relative links of all pages, also those from version to version.
fn check(site: &Path) -> Result<()> {
    let mut dead = Vec::new();
    let mut all = pages(site)?;
    all.insert(HOME.to_owned());
    for page in &all {
        let text = fs::read_to_string(site.join(page))?;
        let folder = Path::new(page).parent().unwrap_or(Path::new(""));
        for link in links(&text) {
            if !site.join(folder).join(link).exists() {
                dead.push(format!("{page}: {link}"));
            }
        }
    }
    if !dead.is_empty() {
        bail!("links of the site that lead nowhere:\n{}", dead.join("\n"));
    }
    Ok(())
}

/// The relative links of a page, without their anchors.
fn links(page: &str) -> impl Iterator<Item = &str> {
    let starts = ["href=\"", "src=\""].into_iter().flat_map(|start| page.split(start).skip(1));
    starts.filter_map(|rest| rest.split(['"', '#', '?']).next()).filter(|link| {
        let is_elsewhere = link.split('/').next().is_some_and(|first| first.contains(':'));
        !link.is_empty() && !link.starts_with('/') && !is_elsewhere
    })
}

#[cfg(test)]
mod tests;

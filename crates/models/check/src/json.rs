//! The report for programs: one JSON object.
//!
//! docs/check.md documents the format. Members may be added, but never renamed or removed.

use std::path::Path;

use serde::Serialize;

use super::report::{CheckedModel, Finding, Report, Severity};

#[derive(Serialize)]
struct Document<'a> {
    ok: bool,
    models: Vec<Model<'a>>,
    problems: Vec<Item<'a>>,
    warnings: Vec<Item<'a>>,
}

#[derive(Serialize)]
struct Model<'a> {
    name: &'a str,
    repository: String,
    versions: &'a [i64],
    backend: Option<&'a str>,
    agents: Option<Agents<'a>>,
    would_load: bool,
}

#[derive(Serialize)]
struct Agents<'a> {
    names: &'a [String],
    from: &'a str,
}

#[derive(Serialize)]
struct Item<'a> {
    model: Option<&'a str>,
    path: String,
    line: Option<usize>,
    column: Option<usize>,
    field: Option<&'a str>,
    message: &'a str,
    nearest: Option<&'a str>,
}

impl Report {
    /// The report as JSON, on several lines.
    #[expect(clippy::expect_used, reason = "writing names and values to memory cannot fail")]
    pub fn to_json(&self) -> String {
        let items = |severity| self.of(severity).map(item).collect();
        let document = Document {
            ok: self.is_good(),
            models: self.models.iter().map(model).collect(),
            problems: items(Severity::Error),
            warnings: items(Severity::Warning),
        };
        serde_json::to_string_pretty(&document).expect("names are strings, and writing to memory cannot fail")
    }
}

fn model(model: &CheckedModel) -> Model<'_> {
    Model {
        name: &model.name,
        repository: show(&model.repository),
        versions: &model.versions,
        backend: model.backend.as_deref(),
        agents: model.agents.as_ref().map(|agents| Agents { names: &agents.names, from: agents.from }),
        would_load: model.would_load,
    }
}

fn item(finding: &Finding) -> Item<'_> {
    Item {
        model: finding.model.as_deref(),
        path: show(&finding.path),
        line: finding.place.map(|place| place.line),
        column: finding.place.map(|place| place.column),
        field: finding.field.as_deref(),
        message: &finding.message,
        nearest: finding.nearest.as_deref(),
    }
}

/// JSON has text only, and a path may be more.
fn show(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

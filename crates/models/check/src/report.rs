//! The findings of a check and their human-readable form. The machine-readable form is in `json`.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;

use nereid_core::model_config::Place;

use crate::table;

/// Whether what was found keeps a model from being loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The model cannot be loaded.
    Error,
    /// The model can be loaded, but this is probably a mistake.
    Warning,
}

/// Something that was found: what, and where.
#[derive(Clone, Debug)]
pub struct Finding {
    /// Whether the finding prevents loading.
    pub severity: Severity,
    /// The model it is about, unless it is about the repository.
    pub model: Option<String>,
    /// The file or folder it is about.
    pub path: PathBuf,
    /// Position in the file, if known.
    pub place: Option<Place>,
    /// The field of the configuration, if it is about one.
    pub field: Option<String>,
    /// The problem, and what would be right.
    pub message: String,
    /// The name that was probably meant. The message has it too.
    pub nearest: Option<String>,
}

impl Finding {
    pub(crate) fn error(path: impl Into<PathBuf>, message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Error,
            model: None,
            path: path.into(),
            place: None,
            field: None,
            message: message.into(),
            nearest: None,
        }
    }

    pub(crate) fn warning(path: impl Into<PathBuf>, message: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, ..Self::error(path, message) }
    }

    /// Says which model it is about.
    pub(crate) fn of(self, model: &str) -> Self {
        Self { model: Some(model.to_owned()), ..self }
    }

    /// Sets the field, and its position if known.
    pub(crate) fn field(self, field: &str, place: Option<Place>) -> Self {
        Self { field: Some(field.to_owned()).filter(|field| !field.is_empty()), place, ..self }
    }

    /// Adds the name that was meant to the message.
    pub(crate) fn meaning(self, nearest: Option<&str>) -> Self {
        match nearest {
            Some(name) => {
                Self { message: format!("{}; did you mean '{name}'?", self.message), ..self }.knowing(nearest)
            }
            None => self,
        }
    }

    /// Notes the name that was meant, which the message has already.
    pub(crate) fn knowing(self, nearest: Option<&str>) -> Self {
        Self { nearest: nearest.map(str::to_owned), ..self }
    }
}

/// `path:line:column: field: message`, the format of compilers and editors.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        if let Some(place) = self.place {
            write!(f, ":{place}")?;
        }
        if let Some(field) = &self.field {
            write!(f, ": {field}")?;
        }
        write!(f, ": {}", self.message)
    }
}

/// A model that was checked.
#[derive(Clone, Debug)]
pub struct CheckedModel {
    /// The model's name.
    pub name: String,
    /// The folder of its repository.
    pub repository: PathBuf,
    /// The versions that would be served, ascending.
    pub versions: Vec<i64>,
    /// The model's backend, if known.
    pub backend: Option<String>,
    /// The model's repository agents, if any.
    pub agents: Option<AgentNames>,
    /// Whether the check found no reason that prevents loading.
    pub would_load: bool,
}

/// The repository agents of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentNames {
    /// The agents' names, in order.
    pub names: Vec<String>,
    /// Source of the names: the model's configuration, the repository's file or an option.
    pub from: &'static str,
}

/// The results of a check.
#[derive(Debug, Default)]
pub struct Report {
    /// The models, by name.
    pub models: Vec<CheckedModel>,
    /// The findings, by location.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Whether every model, and every repository, would load.
    pub fn is_good(&self) -> bool {
        self.of(Severity::Error).next().is_none()
    }

    /// The findings of one severity.
    pub fn of(&self, severity: Severity) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(move |finding| finding.severity == severity)
    }

    /// Names of the models that cannot be loaded.
    pub(crate) fn failing(&self) -> BTreeSet<String> {
        self.of(Severity::Error).filter_map(|finding| finding.model.clone()).collect()
    }

    /// Sorts models by name and findings by location.
    pub(crate) fn sort(&mut self) {
        self.models.sort_by(|one, other| (&one.name, &one.repository).cmp(&(&other.name, &other.repository)));
        self.findings.sort_by(|one, other| (&one.path, one.place).cmp(&(&other.path, other.place)));
    }
}

/// A table of the models, and below it the problems and the warnings.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows: Vec<_> = self.models.iter().map(row).collect();
        f.write_str(table::draw(["Model", "Versions", "Backend", "State"], &rows).trim_start())?;
        if self.models.iter().any(|model| model.agents.is_some()) {
            writeln!(f, "\nRepository agents:")?;
            for CheckedModel { name, agents, .. } in &self.models {
                if let Some(AgentNames { names, from }) = agents {
                    writeln!(f, "  {}: {} (from {from})", one_line(name), one_line(&names.join(", ")))?;
                }
            }
        }
        let (errors, warnings) = (Severity::Error, Severity::Warning);
        for (heading, severity) in [("Problems", errors), ("Warnings", warnings)] {
            if self.of(severity).next().is_some() {
                writeln!(f, "\n{heading}:")?;
                // Names and values may contain any text; a finding is one line.
                self.of(severity)
                    .try_for_each(|finding| writeln!(f, "  {}", one_line(&finding.to_string())))?;
            }
        }
        let failing = self.models.iter().filter(|model| !model.would_load).count();
        write!(
            f,
            "\n{} ({failing} would not load), {}, {}",
            count(self.models.len(), "model"),
            count(self.of(errors).count(), "problem"),
            count(self.of(warnings).count(), "warning")
        )
    }
}

fn row(model: &CheckedModel) -> [String; 4] {
    let versions: Vec<_> = model.versions.iter().map(ToString::to_string).collect();
    let or_none = |text: String| if text.is_empty() { "-".to_owned() } else { one_line(&text) };
    [
        one_line(&model.name),
        or_none(versions.join(", ")),
        or_none(model.backend.clone().unwrap_or_default()),
        if model.would_load { "would load" } else { "would not load" }.to_owned(),
    ]
}

fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

fn one_line(text: &str) -> String {
    let escape =
        |letter: char| if letter.is_control() { letter.escape_default().to_string() } else { letter.into() };
    text.chars().map(escape).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_and_warnings_follow_the_models() {
        let model = |name: &str, would_load| CheckedModel {
            name: name.to_owned(),
            repository: "models".into(),
            versions: if would_load { vec![1, 3] } else { vec![] },
            backend: would_load.then(|| "identity".to_owned()),
            agents: would_load
                .then(|| AgentNames { names: vec!["x".into(), "y".into()], from: "agents.pbtxt" }),
            would_load,
        };
        let place = Some(Place { line: 3, column: 7 });
        let findings = vec![
            Finding::warning("models/stray", "is not a folder"),
            Finding::error("models/b/config.pbtxt", "no field 'nmae'")
                .field("nmae", place)
                .meaning(Some("name")),
        ];
        let report = Report { models: vec![model("a", true), model("b\n", false)], findings };
        assert!(!report.is_good());
        assert_eq!(
            report.to_string(),
            "+-------+----------+----------+----------------+
| Model | Versions | Backend  | State          |
+-------+----------+----------+----------------+
| a     | 1, 3     | identity | would load     |
| b\\n   | -        | -        | would not load |
+-------+----------+----------+----------------+

Repository agents:
  a: x, y (from agents.pbtxt)

Problems:
  models/b/config.pbtxt:3:7: nmae: no field 'nmae'; did you mean 'name'?

Warnings:
  models/stray: is not a folder

2 models (1 would not load), 1 problem, 1 warning"
        );
    }
}

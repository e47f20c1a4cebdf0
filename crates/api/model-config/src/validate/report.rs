//! Problems of a configuration: field and reason. Knows no rule.

use std::fmt;

use crate::shorten::shorten;
use crate::text::suggest::nearest;

/// Limit of reported problems; a file of megabytes can have millions.
const LIMIT: usize = 200;

/// Limit of a path or a reason, in characters.
const SHOWN: usize = 1000;

/// One broken rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValidationError {
    field: String,
    reason: String,
    nearest: Option<String>,
}

impl ValidationError {
    /// The path of the field with the error, in the schema's names: `input[0].dims[1]`. Repeated fields have an
    /// index, map entries their quoted key: `model_warmup[0].inputs["IMAGE"].dims`.
    pub fn field(&self) -> &str {
        &self.field
    }

    /// Whether the error concerns inputs and outputs, which completion may still add to.
    pub fn concerns_tensors(&self) -> bool {
        let root = self.field.split(['[', '.']).next();
        root.is_some_and(|root| ["input", "output", "batch_input", "batch_output"].contains(&root))
    }

    /// Whether the error concerns the choice of versions.
    pub fn concerns_versions(&self) -> bool {
        self.field.starts_with("version_policy")
    }

    /// The error, and what would be right.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// The name that was probably meant, if the field refers to an unknown name. The reason contains it, too.
    pub fn nearest(&self) -> Option<&str> {
        self.nearest.as_deref()
    }
}

impl fmt::Display for ValidationError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "field '{}': {}", self.field, self.reason)
    }
}

/// All rules that a configuration breaks: 1 to 200.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct ValidationErrors {
    model: String,
    errors: Vec<ValidationError>,
}

impl ValidationErrors {
    /// The model's name; empty if it is missing.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// The broken rules, at least one.
    pub fn errors(&self) -> &[ValidationError] {
        &self.errors
    }
}

impl fmt::Display for ValidationErrors {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "model '{}'", self.model)?;
        for (index, error) in self.errors.iter().enumerate() {
            write!(formatter, "{} {error}", if index == 0 { "," } else { ";" })?;
        }
        Ok(())
    }
}

/// The broken rules found so far.
#[derive(Debug, Default)]
pub(super) struct Report {
    errors: Vec<ValidationError>,
}

impl Report {
    pub(super) fn add(&mut self, field: impl Into<String>, reason: impl Into<String>) {
        self.push(field.into(), reason.into(), None);
    }

    /// Like [`Self::add`], for a name that is not in `names`.
    pub(super) fn add_unknown<'a>(
        &mut self,
        field: impl Into<String>,
        reason: impl Into<String>,
        name: &str,
        names: impl IntoIterator<Item = &'a str>,
    ) {
        if self.is_full() {
            return;
        }
        let mut reason = reason.into();
        // If this skips a tensor, the report is unreadable in any case.
        let nearest = nearest(name, names.into_iter().take(LIMIT));
        if let Some(nearest) = nearest {
            reason += &format!("; did you mean '{nearest}'?");
        }
        self.push(field.into(), reason, nearest.map(str::to_owned));
    }

    /// Like [`Self::add`], for a `missing` name that one of the existing names may misspell.
    pub(super) fn add_missing<'a>(
        &mut self,
        field: impl Into<String>,
        reason: impl Into<String>,
        missing: &str,
        given: impl IntoIterator<Item = &'a str>,
    ) {
        let mut reason = reason.into();
        if let Some(nearest) = nearest(missing, given.into_iter().take(LIMIT)) {
            reason += &format!("; is it misspelled as '{nearest}'?");
        }
        self.push(field.into(), reason, None);
    }

    fn push(&mut self, field: String, reason: String, nearest: Option<String>) {
        if !self.is_full() {
            let (field, reason) = (shorten(&field, SHOWN).into_owned(), shorten(&reason, SHOWN).into_owned());
            self.errors.push(ValidationError { field, reason, nearest });
        }
    }

    /// Whether no rule is broken so far.
    pub(super) fn is_empty(&self) -> bool {
        self.errors.is_empty()
    }

    /// Whether the report is full, so that further problems need not be formatted.
    pub(super) fn is_full(&self) -> bool {
        self.errors.len() >= LIMIT
    }

    pub(super) fn finish(self, model: &str) -> Result<(), ValidationErrors> {
        if self.errors.is_empty() {
            return Ok(());
        }
        Err(ValidationErrors { model: model.to_owned(), errors: self.errors })
    }
}

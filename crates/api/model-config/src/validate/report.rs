//! Problems of a configuration: place and reason. Knows no rule.

use std::fmt;

use crate::shorten::shorten;
use crate::text::suggest::nearest;

/// As many problems as anybody will read; a file of megabytes can have millions.
const LIMIT: usize = 200;

/// As much of a path or a reason, in characters.
const SHOWN: usize = 1000;

/// One broken rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValidationError {
    field: String,
    reason: String,
    nearest: Option<String>,
}

impl ValidationError {
    /// The path of the field at fault, in the schema's names: `input[0].dims[1]`. Repeated fields have their index,
    /// entries of maps their key in quotes: `model_warmup[0].inputs["IMAGE"].dims`.
    pub fn field(&self) -> &str {
        &self.field
    }

    /// Whether it concerns inputs and outputs, which completion may still add to.
    pub fn is_of_tensors(&self) -> bool {
        let root = self.field.split(['[', '.']).next();
        root.is_some_and(|root| ["input", "output", "batch_input", "batch_output"].contains(&root))
    }

    /// Whether it concerns the choice of versions.
    pub fn is_of_versions(&self) -> bool {
        self.field.starts_with("version_policy")
    }

    /// What is wrong, and what would be right.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// The name that was probably meant, where the field names something that does not exist. The reason has it too.
    pub fn nearest(&self) -> Option<&str> {
        self.nearest.as_deref()
    }
}

impl fmt::Display for ValidationError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "field '{}': {}", self.field, self.reason)
    }
}

/// All rules that a configuration breaks: at least one, and 200 at most.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct ValidationErrors {
    model: String,
    errors: Vec<ValidationError>,
}

impl ValidationErrors {
    /// The model's name; empty where that is what is missing.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// The broken rules, never none.
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

/// The broken rules that were found so far.
#[derive(Debug, Default)]
pub(super) struct Report {
    errors: Vec<ValidationError>,
}

impl Report {
    pub(super) fn add(&mut self, field: impl Into<String>, reason: impl Into<String>) {
        self.push(field.into(), reason.into(), None);
    }

    /// As [`Self::add`], for a name that is none of `names`.
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
        // A model with enough tensors for this to skip one has an unreadable report in any case.
        let nearest = nearest(name, names.into_iter().take(LIMIT));
        if let Some(nearest) = nearest {
            reason += &format!("; did you mean '{nearest}'?");
        }
        self.push(field.into(), reason, nearest.map(str::to_owned));
    }

    /// As [`Self::add`], where `missing` is none of the names that are given; one of them may be meant.
    pub(super) fn add_missing<'a>(
        &mut self,
        field: impl Into<String>,
        reason: impl Into<String>,
        missing: &str,
        given: impl IntoIterator<Item = &'a str>,
    ) {
        let mut reason = reason.into();
        if let Some(nearest) = nearest(missing, given.into_iter().take(LIMIT)) {
            reason += &format!("; is it the one given as '{nearest}'?");
        }
        self.push(field.into(), reason, None);
    }

    fn push(&mut self, field: String, reason: String, nearest: Option<String>) {
        if !self.is_full() {
            let (field, reason) = (shorten(&field, SHOWN).into_owned(), shorten(&reason, SHOWN).into_owned());
            self.errors.push(ValidationError { field, reason, nearest });
        }
    }

    /// Whether nothing more will be taken, so that nothing more need be written.
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

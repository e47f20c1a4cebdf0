//! Advice about models that are not served.

use serde::Serialize;

/// Checks models without loading them.
pub trait Advisor: Send + Sync {
    /// Checks a model of this name. It may take its time.
    fn advise(&self, model: &str) -> Vec<Advice>;
}

/// Something that is wrong with a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Advice {
    /// Whether the model cannot be loaded because of it; otherwise it is probably a mistake.
    pub is_problem: bool,
    /// The file or folder, with line and column where they are known.
    pub place: String,
    /// The field of the configuration.
    pub field: Option<String>,
    /// The problem, and what would be right.
    pub message: String,
}

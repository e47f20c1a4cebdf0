//! The claims of a token.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::Value;

/// The claims that are used.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Claims {
    pub iss: Option<String>,
    pub sub: Option<String>,
    /// Seconds since 1970.
    pub exp: Option<u64>,
    #[serde(flatten)]
    others: HashMap<String, Value>,
}

impl Claims {
    /// The texts of a claim: of a list, or separated by spaces.
    pub(crate) fn list(&self, claim: &str) -> Vec<&str> {
        match self.others.get(claim) {
            Some(Value::String(text)) => text.split_ascii_whitespace().collect(),
            Some(Value::Array(values)) => values.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        }
    }
}
